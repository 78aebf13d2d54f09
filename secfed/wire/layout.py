"""Layout, Summands, Totals: named tensors on one side, one flat vector of ring integers on the other.

A :class:`Layout` lists the fields of one exchange. Its digest enters every signature and every mask
derivation of the exchange, so two parties with different layouts cannot complete a sum together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.crypto import labels
from secfed.crypto.codec import Writer, digest
from secfed.crypto.fixedpoint import FixedPoint, Scratch
from secfed.crypto.lanes import Run, VectorShape
from secfed.errors import ConfigError, RangeError
from secfed.wire.quantise import Rounding, values_of

Summands = Mapping[str, torch.Tensor | float]
State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Field:
    """One named block of the flat vector."""

    name: str
    shape: tuple[int, ...]  # ``()`` for a scalar
    bound: float  # largest magnitude of one site's element; larger values are clipped to it
    bits: int = 32  # ring width on the wire: 8..32, or 64 (the default for scalars and counts)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The ordered fields of one flat vector, with headroom for ``sites`` enrolled sites.

    Fields of equal width stand together in a *run*; runs are ordered by first appearance.

    Raises:
        ConfigError: no fields, or two fields of one name.
        RangeError: bits without headroom for the roster.
    """

    fields: tuple[Field, ...]
    sites: int

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"a layout has two fields of the name {twice!r}", remedy="rename one of them")
        for field in self.fields:
            if any(size < 0 for size in field.shape):
                raise ConfigError(f"field {field.name!r} has a negative size in its shape {field.shape}")
            _rule(field, self.sites)
        if not self.elements:
            raise ConfigError("a layout needs at least one element", remedy="sum at least one number")

    @property
    def elements(self) -> int:
        """Number of elements over all fields."""
        return sum(field.elements for field in self.fields)

    @cached_property
    def ordered(self) -> tuple[Field, ...]:
        """Fields in wire order: grouped by width."""
        widths = list(dict.fromkeys(field.bits for field in self.fields))
        return tuple(field for bits in widths for field in self.fields if field.bits == bits)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical encoding of sites and fields: 32 bytes."""
        writer = Writer().uint(self.sites, 4)
        writer.many(self.ordered, _write_field)
        return digest(labels.LAYOUT_DIGEST, writer.done())

    @cached_property
    def shape(self) -> VectorShape:
        """What the cryptography needs to know: runs of equal width and the digest."""
        counts: dict[int, int] = {}
        for field in self.ordered:
            counts[field.bits] = counts.get(field.bits, 0) + field.elements
        return VectorShape(runs=tuple(Run(bits, count) for bits, count in counts.items()), digest=self.digest)

    def encoder(self, summands: Summands, rounding: Rounding) -> Encoder:
        """Check summands against the layout and prepare them for quantisation.

        Raises:
            RangeError: a missing or unknown field, a wrong shape, NaN or Inf.
        """
        return Encoder(self, summands, rounding)

    def decode(self, sums: tuple[NDArray[Any], ...], survivors: tuple[str, ...]) -> Totals:
        """Turn the summed runs into named totals (float64 tensors).

        Raises:
            RangeError: a sum outside the range that honest summands can reach.
        """
        values: dict[str, torch.Tensor] = {}
        left = {run.bits: lanes for run, lanes in zip(self.shape.runs, sums, strict=True)}
        for field in self.ordered:
            lanes, left[field.bits] = np.split(left[field.bits], [field.elements])
            with _naming(field):
                flat = _rule(field, self.sites).decode(lanes, len(survivors))
            values[field.name] = torch.from_numpy(flat).reshape(field.shape)
        return Totals(values, survivors)


def _rule(field: Field, sites: int) -> FixedPoint:
    """The fixed-point rule of a field."""
    with _naming(field):
        return FixedPoint.choose(bound=field.bound, bits=field.bits, sites=sites)


@contextmanager
def _naming(field: Field) -> Iterator[None]:
    """Say in a range error which field it is about."""
    try:
        yield
    except RangeError as error:
        raise RangeError(f"field {field.name!r}: {error.message}", remedy=error.remedy) from None


def _write_field(writer: Writer, field: Field) -> None:
    writer.text(field.name).many(field.shape, lambda w, size: w.uint(size, 8))
    writer.text(float(field.bound).hex()).uint(field.bits, 1)


class Encoder:
    """Summands, ready to be read once, front to back, as ring integers.

    The cryptography pulls chunks straight into its outgoing buffer; no second copy of the vector is
    made. Reading is sequential so that the rounding stream is the same under every protection.
    """

    def __init__(self, layout: Layout, summands: Summands, rounding: Rounding) -> None:
        unknown = set(summands) - {field.name for field in layout.fields}
        missing = {field.name for field in layout.fields} - set(summands)
        if unknown or missing:
            names = ", ".join(sorted(unknown | missing))
            raise RangeError(f"summands do not match the layout: {names}")
        tensors: dict[str, torch.Tensor] = {}
        for field in layout.fields:
            value = summands[field.name]
            tensor = torch.as_tensor(value, dtype=None if isinstance(value, torch.Tensor) else torch.float64)
            if tuple(tensor.shape) != field.shape:
                raise RangeError(f"field {field.name!r} has shape {tuple(tensor.shape)}, not {field.shape}")
            if tensor.dtype not in (torch.float32, torch.float64):
                tensor = tensor.to(torch.float64)
            tensors[field.name] = tensor.detach()
        for name in _not_finite(tensors):
            raise RangeError(
                f"field {name!r} contains NaN or Inf",
                remedy="lower the learning rate or check the site's data",
            )
        self.layout = layout
        self.clipped = 0
        self._rounding = rounding
        scratch = Scratch()
        self._unread = deque(
            (field.bits, values_of(_rule(field, layout.sites), tensors[field.name], scratch))
            for field in layout.ordered
            if field.elements
        )

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """Write the run's next ``len(out)`` ring integers; runs are read in layout order, front to back."""
        done = 0
        while done < out.size:
            if not self._unread or self._unread[0][0] != run.bits:
                raise RangeError("the vector was read past its end or out of order")
            values = self._unread[0][1]
            room = out[done : done + values.left]
            self.clipped += values.take(room, self._rounding)
            done += room.size
            if not values.left:
                self._unread.popleft()


def _not_finite(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Fields with NaN or Inf, in their order; a device is waited for once."""
    # Extrema carry NaN and Inf along, without a second tensor of the field's size.
    filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    finite = {name: torch.stack(torch.aminmax(one)).isfinite().all() for name, one in filled.items()}
    found: dict[str, bool] = {}
    for device in {one.device for one in finite.values()}:
        names = [name for name, one in finite.items() if one.device == device]
        found |= zip(names, torch.stack([finite[name] for name in names]).cpu().tolist(), strict=True)
    return [name for name in filled if not found[name]]


@dataclass(frozen=True)
class Totals(Mapping[str, torch.Tensor]):
    """The sums over the survivors, float64 by field name: all that a server step may read."""

    tensors: Mapping[str, torch.Tensor]
    survivors: tuple[str, ...]
    # Standard deviation of the noise in every element, over the field's scale; 0 without noise in the sum.
    noise: float = 0.0

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def scalar(self, name: str) -> float:
        """A scalar total as a Python number."""
        return float(self.tensors[name])


@dataclass(frozen=True)
class Exchange:
    """One secure sum: its name within the round, the cohort it runs over, its layout."""

    name: str
    cohort: str
    layout: Layout


def state_digest(state_bytes: bytes) -> bytes:
    """Digest of a broadcast as it travels (safetensors bytes)."""
    return digest(labels.BROADCAST_DIGEST, state_bytes)
