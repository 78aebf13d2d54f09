"""Records by index, on the device of the model: what Poisson sampling draws from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from secfed.dp.training.losses import Batch
from secfed.dp.training.step import onto
from secfed.errors import ConfigError, DataError


class TensorRecords:
    """Records that are rows of tensors of one length; a ``device`` gets only those that are taken."""

    def __init__(self, tensors: Batch, device: torch.device | None = None) -> None:
        lengths = sorted({len(part) for part in tensors})
        if len(lengths) != 1:
            raise DataError(f"private training needs tensors of one length, not {lengths}")
        self._tensors, self._length, self._device = tensors, lengths[0], device

    def __len__(self) -> int:
        return self._length

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """These records, along the first dimension."""
        rows = tuple(part[torch.from_numpy(indices).to(part.device)] for part in self._tensors)
        return rows if self._device is None else onto(self._device, rows)


class LazyRecords:
    """Records that are computed, by a received model for example, when the first is taken: after payment.

    ``make`` is called once and gives tensors with ``count`` records along the first dimension.
    """

    def __init__(self, count: int, make: Callable[[], Batch]) -> None:
        self._count, self._make = count, make
        self._made: TensorRecords | None = None
        self._failure: Exception | None = None  # then no record can be taken, and it is not tried again

    def __len__(self) -> int:
        return self._count

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """These records, along the first dimension."""
        if self._failure is not None:
            raise self._failure
        if self._made is None:
            try:
                self._made = TensorRecords(self._make())
            except Exception as problem:
                self._failure = problem
                raise
        return self._made.take(indices)


class LoaderRecords:
    """The records behind a ``DataLoader``, fetched as it would fetch them; its sampler is not used."""

    def __init__(self, loader: object, device: torch.device) -> None:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise ConfigError(
                "private training samples records itself and needs a DataLoader over indexed records",
                remedy="make the loader with secfed.dp.training.plain_loop.make_loader",
            )
        self._dataset: Any = loader.dataset
        self._collate, self._device = loader.collate_fn, device

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """These records, along the first dimension."""
        wanted = indices.tolist()
        if hasattr(self._dataset, "__getitems__"):
            fetched = self._dataset.__getitems__(wanted)
        else:
            fetched = [self._dataset[index] for index in wanted]
        return onto(self._device, cast(Batch, self._collate(fetched)))


Records = TensorRecords | LazyRecords | LoaderRecords
