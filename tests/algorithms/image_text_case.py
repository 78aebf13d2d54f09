"""Pairs of images and texts in files: what the tests of reading them write, and how they read it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.image_text.files import image_text
from secfed.algorithms.data.image_text.options import ImageTextOptions
from secfed.algorithms.data.tokens import HashTokenizer
from secfed.config.schema import checked

Image = pytest.importorskip("PIL.Image")

BY_COLUMN = {"sites": ["north", "south"], "site_column": "site", "test_fraction": 0.0}


def picture(level: int, mode: str = "L", size=(20, 10), kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    colour = level if mode in ("L", "I;16") else (level, 0, 0)
    Image.new(mode, size, colour).save(stream, kind)
    return stream.getvalue()


def write_pairs(folder: Path) -> Path:
    """Write 24 pairs at two sites, as JSON Lines and CSV, and their images in a folder and a zip."""
    (folder / "images").mkdir()
    rows, lines = [], ["image,text,site,edema,mass,part,patient"]
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for at in range(24):
            site, part = ("north", "south")[at % 2], ("train", "train", "test", "other")[at % 4]
            name, content = f"{at}.png", picture(10 * at)
            (folder / "images" / name).write_bytes(content)
            archive.writestr(name, content)
            text = f"image number {at}"
            rows.append(
                {
                    "image": name,
                    "text": text,
                    "site": site,
                    "edema": at % 3 == 0,
                    "mass": None if at % 2 else 1,
                    "part": part,
                    "patient": f"p{at // 4}",
                    "note": {"kind": ["CT", "MR"][at // 12]},
                }
            )
            lines.append(f"{name},{text},{site},{int(at % 3 == 0)},{'' if at % 2 else 1},{part},p{at // 4}")
        table = "\n".join(map(json.dumps, rows)) + "\n\n"
        archive.writestr("pairs.jsonl", table)
    (folder / "pairs.jsonl").write_text(table)
    (folder / "pairs.csv").write_text("\n".join(lines))
    return folder


def load(place: Path, seed: int = 0, **keys):
    keys = {key: value for key, value in {"images": "images", **keys}.items() if value is not None}
    table = {"name": "image-text", "path": ".", "table": "pairs.jsonl", "size": 8, "text_length": 6}
    if "partition" not in keys:
        keys = {**BY_COLUMN, **keys}
    if "split_column" in keys or "test_table" in keys:
        keys.pop("test_fraction", None)
    options = checked(ImageTextOptions, {**table, **keys}, "data")
    return image_text(options, seed, place)


def tokens(*texts: str) -> torch.Tensor:
    return HashTokenizer(4096, 6).encode(texts)


def mean_total_variation(labels: Sequence[Any]) -> float:
    """How different sites are, 0 to 1: the mean over pairs; of each site, the class of every record."""
    known = np.unique(np.concatenate(labels))
    mixtures = [(np.asarray(site)[:, np.newaxis] == known).mean(axis=0) for site in labels]
    return float(np.mean([np.abs(one - other).sum() / 2 for one, other in combinations(mixtures, 2)]))
