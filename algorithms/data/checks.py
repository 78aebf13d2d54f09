"""Records of images and texts, tensor by tensor: what is wrong with them, in words that name no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import Tensor

from secfed.algorithms.data.tokens import readable_tokens
from secfed.algorithms.framework.datasets import FederatedData, SiteId, no_records, no_training_records
from secfed.algorithms.framework.unfit import first_class_if_unknown, unfit, zero_if_not_finite
from secfed.errors import DataError

Site = TypeVar("Site")

PARTS: Final = {"train": "training", "test": "held-out"}


class ImagesAndTextsFacts(FederatedData, Protocol):
    """What is public of images and texts."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image; height equals width."""

    @property
    def text_length(self) -> int:
        """Tokens per text, padding included."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""


@dataclass(frozen=True)
class Column:
    """One tensor of a site's records, as the study says that it is."""

    shape: tuple[int, ...]  # of one record
    kind: torch.dtype
    fault: Callable[[Tensor], str | None]  # what is wrong with single values
    fitting: Callable[[Tensor], Tensor]  # the same tensor, with defaults for such values

    def blank(self) -> Tensor:
        """One record that says nothing."""
        return self.fitting(torch.zeros(1, *self.shape, dtype=self.kind))


def image_column(facts: ImagesAndTextsFacts) -> Column:
    """Images: [n, channels, size, size] float32."""
    return Column(tuple(facts.image_shape), torch.float32, _pixel_fault, zero_if_not_finite)


def text_column(facts: ImagesAndTextsFacts) -> Column:
    """Texts: [n, length] int64."""
    fault = partial(_token_fault, vocabulary=facts.vocabulary)
    fitting = partial(readable_tokens, vocabulary=facts.vocabulary)
    return Column((facts.text_length,), torch.int64, fault, fitting)


def class_column(what: str, classes: int, *shape: int) -> Column:
    """Numbers of classes, each ``what``: [n, *shape] int64."""

    def fault(numbers: Tensor) -> str | None:
        outside = bool(((numbers < 0) | (numbers >= classes)).any())
        return f"have a {what} outside the study's {classes} classes" if outside else None

    return Column(shape, torch.int64, fault, partial(first_class_if_unknown, classes=classes))


def checked(
    site_id: SiteId, data: Site, columns: Mapping[str, Column], together: Callable[[Any], str | None]
) -> Site:
    """Check the ``train`` and ``test`` records of one site; ``together`` says what does not belong together.

    At a hospital values that do not fit become defaults, and there is at least one training record
    (:mod:`secfed.algorithms.framework.unfit`). DataError, which names no value, for a wrong shape or type; in
    a simulation also for values that do not fit.
    """
    patients, changed = getattr(data, "train_patients", None), dict[str, Any]()
    for field, part in PARTS.items():
        records = getattr(data, field)
        held = {name: getattr(records, name) for name in columns}
        what = next(filter(None, map(_wrong_form, held, held.values(), columns.values())), None)
        what = what or together(records)
        if what is None and field == "train" and patients is not None and len(patients) != len(records):
            what = "do not have one patient each"
        if what is not None:
            raise unusable(site_id, part, what)
        for name, column in columns.items():
            what = column.fault(held[name])
            if what is not None:
                unfit(unusable(site_id, part, what))
                changed[field] = records = replace(records, **{name: column.fitting(held[name])})
    train, test = (getattr(data, field) for field in PARTS)
    if not len(train):
        # Which pairs are used can follow from their values: columns of the split, reports without words.
        unfit(no_training_records(site_id) if len(test) else no_records(site_id))
        changed["train"] = type(train)(**{name: column.blank() for name, column in columns.items()})
        changed["train_patients"] = None if patients is None else (0,)
    return replace(data, **changed) if changed else data  # type: ignore[type-var]


def _wrong_form(name: str, values: Tensor, column: Column) -> str | None:
    if tuple(values.shape[1:]) == column.shape and values.dtype == column.kind:
        return None
    return (
        f"have {name} of shape {tuple(values.shape[1:])} and type {values.dtype}, "
        f"but the study's have {column.shape} and {column.kind}"
    )


def unusable(site_id: SiteId, part: str, what: str) -> DataError:
    """The error of a site whose training or held-out records cannot be used."""
    return DataError(
        f"site {site_id!r}: {part} records {what}",
        remedy="every site must prepare its records in the same way, as the study's [data] says",
    )


def _pixel_fault(images: Tensor) -> str | None:
    return None if bool(torch.isfinite(images).all()) else "contain NaN or infinite pixels"


def _token_fault(tokens: Tensor, vocabulary: int) -> str | None:
    """Which token a model could not read: unknown, or padding before or between words."""
    if not len(tokens):
        return None
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        return f"have a token outside the vocabulary of {vocabulary}"
    words = tokens != 0
    if not bool(words[:, 0].all()):
        return "have an empty text, or padding before its words"
    if bool((words[:, 1:] & ~words[:, :-1]).any()):
        return "have padding between the words of a text"
    return None
