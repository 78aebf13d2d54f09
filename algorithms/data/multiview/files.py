"""Reading views from ``.npz`` and ``.mat`` files, without running anything that a file might carry.

A cell array of views, ``X``, is read as arrays ``X1``, ``X2`` and so on, and a sparse view as a full one.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.framework.unfit import unfit
from secfed.config.schema import suggestion
from secfed.errors import DataError

Shape = tuple[int, ...]
Scale = str | tuple[float, float]

_NUMBERED: Final = re.compile(r"([A-Za-z_]+)[1-9][0-9]?")  # an entry of a cell array


class ViewFile:
    """Named arrays in one file; ``absent`` is the remedy where the file does not exist."""

    def __init__(self, path: Path, *, absent: str = "check data.path and the rights of the file") -> None:
        self._path = path
        self._absent = absent
        if path.suffix not in (".npz", ".mat"):
            raise DataError(
                f"data.path: {path.name} is neither .npz nor .mat",
                remedy="save the views with numpy.savez, or in MATLAB with save(..., '-v7')",
            )

    def shapes(self) -> dict[str, Shape]:
        """Name to shape of every array, from headers only: no record is read."""
        with self._readable():
            if self._path.suffix == ".mat":
                from scipy.io import whosmat  # a slow import that only this data set needs

                found = {
                    name: (tuple(map(int, shape)), kind) for name, shape, kind in whosmat(str(self._path))
                }
                cells = [name for name, (_, kind) in found.items() if kind == "cell"]
                parts = self._mat(*cells) if cells else {}
                shapes = {name: shape for name, (shape, kind) in found.items() if kind != "cell"}
                return shapes | {name: tuple(value.shape) for name, value in parts.items()}
            with zipfile.ZipFile(self._path) as archive:
                return dict(_npy_shape(archive, entry) for entry in archive.namelist())

    def arrays(self, *names: str) -> Mapping[str, NDArray[Any]]:
        """The arrays of these names; DataError for a file that is unreadable or lacks one."""
        with self._readable():
            if self._path.suffix == ".mat":
                cells = [match[1] for name in names if (match := _NUMBERED.fullmatch(name))]
                arrays = self._mat(*names, *cells)
            else:
                with self._path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                    arrays = {name: stored[name] for name in names if name in stored.files}
        for name in names:
            if name not in arrays:
                raise self.has_no(name)
        return {name: arrays[name] for name in names}

    def _mat(self, *names: str) -> dict[str, NDArray[Any]]:
        """Variables of a MATLAB file, the entries of a cell array as numbered variables; full, not sparse."""
        from scipy.io import loadmat  # see above

        plain: dict[str, NDArray[Any]] = {}
        entries: dict[str, NDArray[Any]] = {}
        for name, value in loadmat(str(self._path), variable_names=list(names)).items():
            if isinstance(value, np.ndarray) and value.dtype == object:
                for number, entry in enumerate(value.reshape(-1), start=1):
                    entries[f"{name}{number}"] = _full(entry)
            elif not name.startswith("__"):
                plain[name] = _full(value)
        return entries | plain

    def view(self, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
        """Check that an array is a view: [n, D] numbers."""
        if values.ndim != 2 or values.dtype.kind not in "fiub":
            message = f"{self._path.name}: {name!r} is not a table of numbers"
            raise DataError(message, remedy="a view has one row per record and one column per feature")
        return values.astype(np.float64)

    def labels(self, name: str, values: NDArray[Any], first: int) -> NDArray[np.int64]:
        """Labels from 0, whatever the shape and number type they are stored in: [n] int64."""
        flat = values.reshape(-1)
        wrong = DataError(f"{self._path.name}: labels {name!r} are not integers", remedy="number the classes")
        if flat.dtype.kind not in "fiub":
            raise wrong
        if flat.dtype.kind == "f":
            whole = np.isfinite(flat) & (flat == np.floor(flat))
            if not whole.all():
                unfit(wrong)
                flat = np.where(whole, flat, first)
        return flat.astype(np.int64) - first

    def names(self, name: str, values: NDArray[Any], what: str) -> NDArray[np.str_]:
        """Whose each record is, ``what`` says of which kind, as text: [n]."""
        try:
            if values.dtype.kind == "S":
                values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError:
            values = np.empty(0)
        if values.dtype.kind not in "iuU":
            message = f"{self._path.name}: {name!r} does not name {what}"
            raise DataError(message, remedy="use UTF-8 or integers")
        return np.char.strip(values.reshape(-1).astype(np.str_))

    def has_no(self, name: str) -> DataError:
        """The error of an array that the file does not hold."""
        return DataError(f"{self._path.name} has no array {name!r}", remedy=suggestion(name, self.shapes()))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DataError(f"{self._path} does not exist", remedy=self._absent) from None
        except OSError as error:
            message = f"cannot read {self._path} ({error.strerror or 'damaged'})"
            raise DataError(message, remedy="check path and rights") from None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a wrong byte makes the readers raise almost anything
            if isinstance(error, NotImplementedError) and self._path.suffix == ".mat":  # said to HDF5
                message = f"{self._path.name} is in MATLAB's 7.3 format"
                raise DataError(message, remedy="save it again with save(..., '-v7'), or as .npz") from None
            raise DataError(
                f"{self._path.name} is damaged, or not a {self._path.suffix} file of plain arrays",
                remedy="save it again; arrays of Python objects are refused, because they can run code",
            ) from None


def _full(value: Any) -> NDArray[Any]:
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value)


def _npy_shape(archive: zipfile.ZipFile, entry: str) -> tuple[str, Shape]:
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        headers = np.lib.format
        read = headers.read_array_header_1_0 if version == (1, 0) else headers.read_array_header_2_0
        shape, _, _ = read(stream)
    return entry.removesuffix(".npy"), shape


def scaled(values: NDArray[np.float64], rule: Scale | None) -> NDArray[np.float32]:
    """A view [n, D] on the scale that its options say, as float32; None leaves it as it is stored.

    [low, high] become 0 and 1; "min-max" takes each feature's own range over these records (a constant
    feature becomes 0).
    """
    with np.errstate(over="ignore", invalid="ignore"):  # NaN and Inf are check_multiview's business
        if isinstance(rule, tuple):
            values = (values - rule[0]) / (rule[1] - rule[0])
        elif rule is not None and len(values):
            low, width = values.min(axis=0), np.ptp(values, axis=0)
            values = (values - low) / np.where(width > 0, width, 1.0)
        return values.astype(np.float32)
