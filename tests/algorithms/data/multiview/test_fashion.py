"""Three views of clothing, on generated files in the format of the published ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.multiview.fashion import IMAGES, LABELS, multi_fashion
from secfed.algorithms.data.multiview.options import MultiFashionOptions
from secfed.errors import DataError

COUNT = 10 * 26  # eight records of three pieces a class, and two pieces left over


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Piece i is all i // 10 but for its first pixel, which is its class."""
    labels = (np.arange(COUNT) % 10).astype(np.uint8)
    images = np.repeat((np.arange(COUNT) // 10).astype(np.uint8), 784).reshape(COUNT, 28, 28)
    images[:, 0, 0] = labels
    for name, values in ((IMAGES, images), (LABELS, labels)):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
    return tmp_path


def load(folder: Path, seed: int = 1, **keys: Any) -> Any:
    table = {"sites": 4, "single_view_sites": 0, "min_records": 1, "path": ".", **keys}
    return multi_fashion(MultiFashionOptions(name="multi-fashion", **table), seed, folder)


def test_every_record_is_three_pieces_of_its_class_and_no_piece_is_there_twice(folder: Path) -> None:
    data = load(folder)
    assert (data.view_sizes, data.classes) == ((784,) * 3, 10)
    sites = [data.site(site) for site in data.sites]
    labels = torch.cat([site.labels for site in sites])
    assert torch.bincount(labels).tolist() == [8] * 10
    pieces = []
    for view in range(3):
        values = torch.cat([site.views[view] for site in sites]) * 255
        assert torch.equal(values[:, 0].round().long(), labels)
        pieces += list(zip(labels.tolist(), values[:, 1].round().long().tolist(), strict=True))
    assert len(set(pieces)) == len(pieces) == 240


def test_the_set_is_the_same_for_every_seed_and_only_its_division_is_not(folder: Path) -> None:
    def records(seed: int) -> set[tuple[float, ...]]:
        data = load(folder, seed)
        sites = (data.site(site) for site in data.sites)
        return {
            tuple(row) for site in sites for row in torch.stack(site.views, 1)[:, :, :2].flatten(1).tolist()
        }

    assert records(1) == records(2)
    assert not torch.equal(*(load(folder, seed).site("hospital-1").views[0] for seed in (1, 2)))


def test_files_may_be_unpacked(folder: Path) -> None:
    packed = load(folder).site("hospital-1")
    for name in (IMAGES, LABELS):
        (folder / name).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
        (folder / f"{name}.gz").unlink()
    assert torch.equal(load(folder).site("hospital-1").views[2], packed.views[2])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, None, r"does not exist.*SECFED_DATA"),
        (LABELS, b"", "damaged"),
        (LABELS, idx(np.zeros(COUNT - 1, np.uint8)), "are not those of Fashion-MNIST"),
        (LABELS, idx(np.full(COUNT, 10, np.uint8)), "are not those of Fashion-MNIST"),
        (IMAGES, idx(np.zeros((COUNT, 27, 28), np.uint8)), "are not those of Fashion-MNIST"),
        (IMAGES, idx(np.zeros((COUNT, 28, 28), np.uint8))[:-1], "damaged"),
    ],
)
def test_wrong_files_are_refused(folder: Path, name: str, content: bytes | None, message: str) -> None:
    path = folder / f"{name}.gz"
    path.unlink()
    if content is not None:
        path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message):
        load(folder).site("hospital-1")
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot read"):
        load(folder).site("hospital-1")
