"""The same records as others write them, through the loaders for files: all give what the plain file gives.

Elsewhere: views (``multiview/test_strangers.py``), images with reports (``image_text/test_files.py``), tables
for statistics as CSV, Parquet and databases (``tabular/test_columns.py``).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.data.notes import notes
from secfed.algorithms.data.transfer.files import TransferFiles
from secfed.algorithms.data.volumes.files import read_volume
from tests.algorithms.data.tabular.test_table import TABLE, load, rows
from tests.algorithms.data.test_notes import TEXTS, options
from tests.algorithms.data.transfer.test_files import IMAGES, LABELS, save
from tests.algorithms.data.transfer.test_files import options as transfer_options

__all__ = ["load", "save"]  # fixtures

NOTES = [{"ward": site, "note": t, "about": a} for site in "abc" for a in TEXTS for t in TEXTS[a] * 5]


def as_csv(records: list[dict[str, Any]], **how: Any) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]), **how)
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue().encode()


def as_lines(records: list[dict[str, Any]], **how: Any) -> bytes:
    return "".join(f"{json.dumps(one, **how)}\n" for one in records).encode()


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("notes.csv", as_csv(NOTES, quoting=csv.QUOTE_ALL, lineterminator="\n"), {}),
        ("notes.csv", b"\xef\xbb\xbf" + as_csv([{"id": n, **one} for n, one in enumerate(NOTES)]), {}),
        ("notes.csv.gz", gzip.compress(as_csv([dict(reversed(one.items())) for one in NOTES])), {}),
        ("notes.jsonl", as_lines(NOTES), {}),
        ("notes.jsonl.gz", gzip.compress(as_lines(NOTES, ensure_ascii=False).replace(b"\n", b"\r\n")), {}),
        (
            "notes.jsonl",
            as_lines([{"ward": o["ward"], "doc": {"text": o["note"]}, "tags": [o["about"]]} for o in NOTES]),
            {"text_column": "doc.text", "label_column": "tags"},
        ),
    ],
    ids=["all quoted", "Excel", "packed, other order", "lines", "packed lines of Windows", "nested"],
)
def test_notes(tmp_path: Path, name: str, content: bytes, columns: dict[str, str]) -> None:
    (tmp_path / "notes.csv").write_bytes(as_csv(NOTES))
    expected = notes(options(), 1, tmp_path).site("b")
    (tmp_path / name).write_bytes(content)
    found = notes(options(path=name, **columns), 1, tmp_path).site("b")
    assert torch.equal(found.train_x, expected.train_x)
    assert torch.equal(found.train_y, expected.train_y)


CELLS = [line.split(",") for line in TABLE.splitlines()]


@pytest.mark.parametrize(
    "table",
    [
        TABLE.replace("\n", "\r\n"),
        "\n".join(",".join(f'"{cell}"' for cell in line) for line in CELLS),  # no last line end
        "\n".join(",".join(reversed(line)) for line in CELLS) + "\n",
        "\n".join(f"{number},{','.join(line)},x" for number, line in enumerate(CELLS)) + "\n\n",
        TABLE.replace("40,1,200", "4e1,1.0,+200.00"),
    ],
    ids=["Windows", "all quoted", "other order", "more columns", "other numbers"],
)
def test_tables(load: Callable[..., Any], table: str) -> None:
    expected = rows(load().site("north"))
    assert rows(load(table).site("north")) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"images": IMAGES[..., None]},
        {"images": IMAGES.astype(np.int64).astype(np.uint8), "labels": LABELS.astype(np.uint8)},
        {"images": np.asfortranarray(IMAGES), "labels": LABELS.astype(np.int16)},
        {"images": IMAGES[::-1][::-1], "labels": LABELS.astype(">i4"), "age": np.zeros(len(LABELS))},
        {"images": np.repeat(IMAGES[..., None], 3, axis=3)},
    ],
    ids=["one channel", "bytes", "columns first", "other byte order, more arrays", "grey as colour"],
)
def test_images_of_a_hospital(save: Callable[..., Path], changes: dict[str, np.ndarray]) -> None:
    keys = transfer_options(test_fraction=0.0)  # which images are held out follows from their bytes
    expected = TransferFiles(keys, 0, save("img")).site("img").train
    found = TransferFiles(keys, 0, save("img", **changes)).site("img").train
    assert expected.images is not None
    assert found.images is not None
    assert torch.allclose(found.images, expected.images, atol=1 / 255)  # grey is rounded again
    assert found.labels is not None
    assert torch.equal(found.labels, expected.labels)  # type: ignore[arg-type]


VOLUME = np.arange(4 * 5 * 6, dtype=np.int16).reshape(6, 5, 4)  # x, y, z
AFFINE = np.diag([0.75, 0.5, 3.0, 1.0])


def flipped(nifti: Any) -> Any:
    affine = AFFINE.copy()
    affine[0, 0], affine[0, 3] = -0.75, 0.75 * 5
    return nifti.Nifti1Image(VOLUME[::-1], affine)


def turned(nifti: Any) -> Any:
    return nifti.Nifti1Image(VOLUME.transpose(2, 0, 1), AFFINE[:, [2, 0, 1, 3]])


def scaled(nifti: Any) -> Any:
    image = nifti.Nifti1Image(VOLUME.astype(np.float32), AFFINE)
    image.header.set_data_dtype(np.uint8)
    return image


def big_endian(nifti: Any) -> Any:
    return nifti.Nifti1Image(VOLUME, AFFINE, header=nifti.Nifti1Header(endianness=">"))


@pytest.mark.parametrize("make", [flipped, turned, scaled, big_endian], ids=lambda make: make.__name__)
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_volumes(tmp_path: Path, make: Callable[[Any], Any], ending: str) -> None:
    nifti = pytest.importorskip("nibabel", reason="the extra imaging is not installed")
    make(nifti).to_filename(tmp_path / f"one{ending}")
    found = read_volume(tmp_path / f"one{ending}", "volume 1")
    assert np.allclose(found.values, VOLUME.T, atol=0.5)
    assert found.spacing == (3.0, 0.5, 0.75)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x, y: (x.tolist(), y.tolist()),
        lambda x, y: (torch.tensor(x), torch.tensor(y)),
        lambda x, y: (x.astype(np.float64), y.astype(np.uint8)),
        lambda x, y: (np.asfortranarray(x), y.astype(bool)),
        lambda x, y: (np.ma.masked_array(x), y.astype(np.float32)),
    ],
    ids=["lists", "tensors", "wide numbers", "truth values", "masked, labels as floats"],
)
def test_arrays_in_memory(convert: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    expected = SiteTables({"a": (x, y)}, classes=2).site("a")
    found = SiteTables({"a": convert(x, y)}, classes=2).site("a")
    assert torch.equal(found.train_x, expected.train_x)
    assert torch.equal(found.train_y, expected.train_y)
