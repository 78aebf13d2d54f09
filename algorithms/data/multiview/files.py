"""Reading views from ``.npz`` and ``.mat`` files, without running anything that a file might carry."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secfed.algorithms.data.tabular.options import Cell, canonical
from secfed.algorithms.framework.unfit import unfit
from secfed.config.schema import suggestion
from secfed.errors import DataError

Shape = tuple[int, ...]
Scale = str | tuple[float, float]


class ViewFile:
    """Named arrays in one file; ``absent`` is the remedy where the file does not exist.

    Cells of a MATLAB cell array have names as in MATLAB: ``X{1}`` is the first one of ``X``.
    """

    def __init__(self, path: Path, *, absent: str = "check data.path and the rights of the file") -> None:
        self._path = path
        self._absent = absent
        if path.is_dir():
            raise DataError(f"data.path: {path} is a folder", remedy="name the file of the views")
        if path.suffix not in (".npz", ".mat"):
            raise DataError(
                f"data.path: {path.name} is neither .npz nor .mat",
                remedy="save the views with numpy.savez, or in MATLAB with save(..., '-v7')",
            )

    def shapes(self, *cells: str) -> dict[str, Shape]:
        """Name to shape of every array, from headers only: no record is read, but for ``cells`` of a .mat."""
        if self._path.suffix == ".mat":
            with self._readable():
                from scipy.io import whosmat  # a slow import that only this data set needs

                found = {name: tuple(map(int, shape)) for name, shape, _ in whosmat(str(self._path))}
            inside = [name for name in cells if "{" in name and name.partition("{")[0] in found]
            return found | {name: one.shape for name, one in self.arrays(*inside).items()}
        with self._readable(), zipfile.ZipFile(self._path) as archive:
            return dict(_npy_shape(archive, entry) for entry in archive.namelist())

    def arrays(self, *names: str) -> Mapping[str, NDArray[Any]]:
        """The arrays of these names; DataError for a file that is unreadable or lacks one."""
        with self._readable():
            if self._path.suffix == ".mat":
                from scipy.io import loadmat  # see above

                wanted = list(dict.fromkeys(name.partition("{")[0] for name in names))
                arrays = _with_cells(loadmat(str(self._path), variable_names=wanted), names)
            else:
                with self._path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                    arrays = {name: stored[name] for name in names if name in stored.files}
        for name in names:
            if name not in arrays:
                raise self.has_no(name)
        return {name: arrays[name] for name in names}

    def view(self, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
        """Check that an array is a view: [n, D] numbers."""
        if values.dtype == object:
            cells = ", ".join(f'"{name}{{{number}}}"' for number in range(1, values.size + 1))
            message = f"{self._path.name}: {name!r} is a cell array of {values.size}"
            raise DataError(message, remedy=f"name its cells as views: data.views = [{cells}]")
        if values.ndim != 2 or values.dtype.kind not in "fiub":
            message = f"{self._path.name}: {name!r} is not a table of numbers"
            raise DataError(message, remedy="a view has one row per record and one column per feature")
        return values.astype(np.float64)

    def labels(
        self, name: str, values: NDArray[Any], first: int, known: Sequence[Cell] | None = None
    ) -> NDArray[np.int64]:
        """Labels from 0, whatever the shape and type they are stored in: [n] int64.

        Numbers count from ``first``; where the study lists the labels (``known``), their order counts.
        """
        flat = values.reshape(-1)
        if known is not None:
            places = {canonical(label): place for place, label in enumerate(known)}
            texts = [canonical(text) for text in self._texts(name, flat).tolist()]
            if any(text not in places for text in texts):
                message = f"{self._path.name}: labels {name!r} hold one that data.class_names does not list"
                unfit(DataError(message, remedy="list every label in data.class_names"))
            return np.array([places.get(text, 0) for text in texts], dtype=np.int64)
        if flat.dtype.kind in "USO":
            message = f"{self._path.name}: labels {name!r} are texts"
            raise DataError(message, remedy="list them in data.class_names, in the order of the classes")
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
        if values.dtype.kind in "fb":
            raise self._nameless(name, what)
        return self._texts(name, values.reshape(-1), what)

    def _texts(self, name: str, flat: NDArray[Any], what: str = "classes") -> NDArray[np.str_]:
        if flat.dtype == object:  # of a cell array: each an array of one text or number
            flat = np.array([str(np.asarray(cell).reshape(-1)[0]) if np.size(cell) else "" for cell in flat])
        try:
            if flat.dtype.kind == "S":
                flat = np.char.decode(flat, "utf-8")
        except UnicodeDecodeError:
            raise self._nameless(name, what) from None
        if flat.dtype.kind not in "iuUfb":
            raise self._nameless(name, what)
        return np.char.strip(flat.astype(np.str_))

    def _nameless(self, name: str, what: str) -> DataError:
        message = f"{self._path.name}: {name!r} does not name {what}"
        return DataError(message, remedy="use UTF-8 or integers")

    def has_no(self, name: str) -> DataError:
        """The error of an array that the file does not hold."""
        named = suggestion(name, self.shapes())
        if self._path.suffix == ".mat" and "{" not in name:
            named += '; the cells of an array X are "X{1}", "X{2}" and so on'
        return DataError(f"{self._path.name} has no array {name!r}", remedy=named)

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


def _with_cells(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays by their names; a sparse matrix becomes a full one."""
    arrays = {}
    for name in names:
        whole, brace, number = name.partition("{")
        value = found.get(whole)
        if value is None:
            continue
        if brace:
            place = number.removesuffix("}")
            cells = np.asarray(value).reshape(-1, order="F")  # as MATLAB counts
            if cells.dtype != object or not place.isdigit() or not 1 <= int(place) <= len(cells):
                continue
            value = cells[int(place) - 1]
        arrays[name] = value.toarray() if hasattr(value, "toarray") else np.asarray(value)
    return arrays


def known_values(values: NDArray[np.float64], rule: str) -> NDArray[np.float64]:
    """A view [n, D] without NaN: each becomes the mean of what is known of the same record, else 0."""
    gaps = np.isnan(values)
    if rule != "record" or not gaps.any():
        return values
    count = (~gaps).sum(axis=1, keepdims=True)
    mean = np.where(gaps, 0.0, values).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    return np.where(gaps, mean, values)


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
            known = ~np.isnan(values)
            low = np.where(known, values, np.inf).min(axis=0)
            width = np.where(known, values, -np.inf).max(axis=0) - low
            values = (values - low) / np.where(width > 0, width, 1.0)
        return values.astype(np.float32)
