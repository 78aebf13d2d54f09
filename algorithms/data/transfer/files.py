"""``transfer-files``: hospitals' own images, texts and pairs, one ``SITE.npz`` of plain NumPy arrays each.

Image sites have ``images`` and ``labels``, text sites ``texts`` and ``labels``, pairs sites ``images`` and
``texts`` (caption i describes image ``sources[i]``, without ``sources`` image i); any site may have
``patients``, one per row. Arrays of Python objects are refused, because they can run code. Whether a row is
held out follows from its patient, or else its image or text, and the study's seed: nobody is in both parts,
and adding a row moves no other one. Errors name the site, the file and the array; never what stands there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from secfed.algorithms.data.base import site_index
from secfed.algorithms.data.image_files import FLAT, Preparation
from secfed.algorithms.data.images_and_texts import ImagesAndTexts, drawn
from secfed.algorithms.data.multiview.files import ViewFile
from secfed.algorithms.data.table_lines import is_unicode
from secfed.algorithms.data.tokens import words_of
from secfed.algorithms.data.transfer.base import Kind, Samples, TransferSite, check_transfer
from secfed.algorithms.data.transfer.options import TransferFilesOptions
from secfed.algorithms.framework.datasets import SiteId, numbered
from secfed.errors import DataError

_ARRAYS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "image": ("images", "labels"),
    "text": ("texts", "labels"),
    "pairs": ("images", "texts"),
}
_GREY: Final = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow converts colours
_AT_ONCE: Final = 256  # images that are prepared together, to bound the memory it takes

Pixels = NDArray[np.uint8]
Ids = NDArray[np.int64]


class TransferFiles(ImagesAndTexts):
    """Records that already belong to sites; see the module."""

    def __init__(self, options: TransferFilesOptions, seed: int, folder: Path) -> None:
        super().__init__(options, options.first_token_tokenizer(folder))
        self.kind_of: dict[SiteId, Kind] = options.kind_of
        self.image_classes, self.text_classes = options.classes
        self._options, self._seed, self._root = options, seed, folder / options.path

    def site(self, site_id: SiteId) -> TransferSite:
        """One site's records; no other site's file is looked at."""
        site_index(self.sites, site_id)
        kind = self.kind_of[site_id]
        name = f"{site_id}.npz"
        try:
            records = _Records(kind, self._arrays(kind, name), name)
            held_out = self._held_out(records)
        except DataError as error:
            raise DataError(f"site {site_id!r}: {error.message}", remedy=error.remedy) from None
        train, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        whose = records.patients
        patients = None if whose is None else numbered(whose[row] for row in train.tolist())
        site = TransferSite(kind, self._samples(records, train), self._samples(records, test), patients)
        return check_transfer(site_id, site, self)

    def _arrays(self, kind: Kind, name: str) -> Mapping[str, NDArray[Any]]:
        file = ViewFile(self._root / name, absent="check data.path; every site needs its own SITE.npz there")
        wanted = _ARRAYS[kind]
        if self._options.patients:
            wanted = (*wanted, "patients")
        stored = file.shapes()
        more = ("patients", "sources") if kind == "pairs" else ("patients",)
        return file.arrays(*dict.fromkeys((*wanted, *(key for key in more if key in stored))))

    def _held_out(self, records: _Records) -> NDArray[np.bool_]:
        whose = records.patients or records.content()
        side = {who: drawn(self._options.test_fraction, self._seed, "held out", who) for who in set(whose)}
        return np.array([side[who] for who in whose], dtype=np.bool_)

    def _samples(self, records: _Records, rows: Ids) -> Samples:
        images, tokens, labels, sources = records.images, None, None, None
        if records.sources is not None:
            used = np.unique(records.sources[rows])
            sources = torch.from_numpy(np.searchsorted(used, records.sources[rows]).astype(np.int64))
            images = records.images[used] if records.images is not None else None
        elif images is not None:
            images = images[rows]
        if records.texts is not None:
            tokens = self._tokenizer.encode([records.texts[row] for row in rows.tolist()])
        if records.labels is not None:
            labels = torch.from_numpy(records.labels[rows])
        prepared = None if images is None else prepared_images(images, self._rules)
        return Samples(prepared, tokens, labels, sources)


class _Records:
    """The arrays of one file, checked."""

    def __init__(self, kind: Kind, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        def checked(key: str, check: Callable[[NDArray[Any], str], Any]) -> Any:
            return check(arrays[key], f"{name}: {key!r}") if key in arrays else None

        self.images: Pixels | None = checked("images", pixels)
        self.texts: Sequence[str] | None = checked("texts", _texts)
        self.labels: Ids | None = checked("labels", integers)
        self.sources: Ids | None = checked("sources", integers)
        self.patients: tuple[str, ...] | None = checked("patients", _patients)
        images = 0 if self.images is None else len(self.images)
        rows = images if self.texts is None else len(self.texts)
        for key in ("labels", "sources", "patients"):
            if key in arrays and len(arrays[key]) != rows:
                raise DataError(
                    f"{name}: {key!r} does not have one entry per row",
                    remedy="a row is an image; at text sites a text, at pairs sites a caption",
                )
        if kind == "pairs":
            self.sources = self._checked_sources(name, images, rows)
            self._check_one_patient_per_image(name, images)

    def content(self) -> list[str]:
        """What each row is held out by where patients are not named: its image, else its text."""
        if self.images is None:
            return list(self.texts or ())
        of_image = [hashlib.blake2b(image.tobytes(), digest_size=32).hexdigest() for image in self.images]
        return of_image if self.sources is None else [of_image[source] for source in self.sources.tolist()]

    def _checked_sources(self, name: str, images: int, rows: int) -> Ids:
        sources = self.sources
        if sources is None:
            if images != rows:
                raise DataError(
                    f"{name}: 'images' and 'texts' do not have as many rows",
                    remedy="add the array sources: the position of the image that each caption describes",
                )
            return np.arange(rows, dtype=np.int64)
        if rows and not 0 <= int(sources.min()) <= int(sources.max()) < images:
            raise DataError(
                f"{name}: 'sources' has a position that no image has",
                remedy="the first image is number 0, the last one the number of images less 1",
            )
        if len(np.unique(sources)) < images:
            raise DataError(f"{name}: an image has no caption in 'sources'", remedy="leave it out of images")
        return sources

    def _check_one_patient_per_image(self, name: str, images: int) -> None:
        """Captions of one image must not be of two patients, or one of them could be held out alone."""
        if self.sources is None or self.patients is None:
            return
        whose = np.array(numbered(self.patients), dtype=np.int64)
        owner = np.zeros(images, dtype=np.int64)
        owner[self.sources] = whose
        if bool((owner[self.sources] != whose).any()):
            message = f"{name}: 'patients' gives captions of one image to two patients"
            raise DataError(message, remedy="name the same patient for all captions of an image")


def pixels(values: NDArray[Any], where: str) -> Pixels:
    """Check that an array holds images: [n, height, width], or that with 1 or 3 channels last, of uint8."""
    if values.ndim == 4 and values.shape[3] == 1:
        values = values[..., 0]
    colour = values.ndim == 4 and values.shape[3] == 3
    if values.dtype != np.uint8 or not (values.ndim == 3 or colour) or 0 in values.shape[1:]:
        message = f"{where} are not images"
        raise DataError(message, remedy="store [n, height, width] or [n, height, width, 3] uint8")
    return values


def integers(values: NDArray[Any], where: str) -> Ids:
    """Check that an array is one integer per row: [n]."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(f"{where} is not one integer per row", remedy="store [n] integers, counted from 0")
    return values.astype(np.int64)


def prepared_images(images: Pixels, rules: Preparation) -> Tensor:
    """Resize and normalise images, each by itself: [n, channels, size, size] float32."""
    prepared = torch.empty(len(images), rules.channels, rules.size, rules.size)
    for start in range(0, len(images), _AT_ONCE):
        some = torch.from_numpy(np.ascontiguousarray(images[start : start + _AT_ONCE])).float() / 255
        some = some.unsqueeze(1) if some.dim() == 3 else some.permute(0, 3, 1, 2)
        if rules.channels == 1 and some.shape[1] == 3:
            some = (some * torch.tensor(_GREY).reshape(1, 3, 1, 1)).sum(dim=1, keepdim=True)
        some = _resized(some.expand(-1, rules.channels, -1, -1), rules)
        prepared[start : start + _AT_ONCE] = _normalised(some, rules)
    return prepared


def _resized(images: Tensor, rules: Preparation) -> Tensor:
    height, width = images.shape[2:]
    if rules.resize == "crop":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        images = images[:, :, top : top + side, left : left + side]
    elif rules.resize == "pad":
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        images = pad(images, (left, side - width - left, top, side - height - top))
    if tuple(images.shape[2:]) == (rules.size, rules.size):
        return images
    small = interpolate(images, size=(rules.size, rules.size), mode="bicubic", antialias=True)
    return small.clamp(0, 1)  # a bicubic filter overshoots at edges


def _normalised(images: Tensor, rules: Preparation) -> Tensor:
    if rules.constants is None:
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        spread = images.std(dim=(1, 2, 3), keepdim=True, correction=0)
        return (images - mean) / spread.clamp(min=FLAT)
    means, spreads = (torch.tensor(numbers).reshape(1, -1, 1, 1) for numbers in rules.constants)
    return (images - means) / spreads


def _texts(values: NDArray[Any], where: str) -> Sequence[str]:
    if values.ndim != 1 or values.dtype.kind != "U":
        message = f"{where} is not one text per row"
        raise DataError(message, remedy="store numpy.array(texts), without dtype=object")
    texts: list[str] = values.tolist()
    for number, text in enumerate(texts):
        if not words_of(text) or not is_unicode(text):
            message = f"{where}, position {number}: is not a text, or has no word in it"
            raise DataError(message, remedy="leave that row out of every array of the file")
    return texts


def _patients(values: NDArray[Any], where: str) -> tuple[str, ...]:
    names: list[str] = []
    if values.ndim == 1 and values.dtype.kind in "iuU":
        names = [str(value).strip() for value in values.tolist()]
    if len(names) != values.size or not all(name and is_unicode(name) for name in names):
        message = f"{where} does not name every patient"
        raise DataError(message, remedy="store [n] integers or texts, none empty")
    return tuple(names)
