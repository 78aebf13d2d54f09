"""A report as a list of sections of plain blocks, which HTML and PDF both draw.

Every text here is plain text. Nothing is markup until a renderer escapes it, so a name from a study file
or a roster cannot become part of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from secfed.audit.languages import say

Tone = Literal["good", "warn", "bad", "info"]
_NEARLY_SPENT: Final = 0.9  # of a limit


@dataclass(frozen=True)
class Text:
    """One paragraph."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a section, with an optional line below it."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Commands to type, one per line."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Alert:
    """Something that must not be overlooked."""

    tone: Tone
    title: str
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportTable:
    """A table."""

    headers: tuple[str, ...]  # one per column
    rows: tuple[tuple[str, ...], ...]  # as many cells each
    numbers: tuple[int, ...] = ()  # columns aligned to the right
    digests: tuple[int, ...] = ()  # columns in a fixed-width face that may break anywhere
    weights: tuple[int, ...] = ()  # relative widths, for the PDF; equal if empty
    tones: tuple[tuple[int, Tone], ...] = ()  # row -> tone


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table: its header in English, its width beside the others, and the cell of a row."""

    header: str
    weight: int
    cell: Callable[[Row], str]
    kind: Literal["text", "number", "digest"] = "text"


def table(
    columns: Sequence[Column[Row]], rows: Iterable[Row], tone: Callable[[Row], Tone | None] = lambda _: None
) -> ReportTable:
    """One line per row; ``tone`` marks rows that a reader must not overlook."""
    listed = list(rows)
    return ReportTable(
        headers=tuple(say(column.header) for column in columns),
        rows=tuple(tuple(column.cell(row) for column in columns) for row in listed),
        numbers=tuple(place for place, column in enumerate(columns) if column.kind == "number"),
        digests=tuple(place for place, column in enumerate(columns) if column.kind == "digest"),
        weights=tuple(column.weight for column in columns),
        tones=tuple((place, shade) for place, row in enumerate(listed) if (shade := tone(row)) is not None),
    )


@dataclass(frozen=True)
class Card:
    """One budget at a glance."""

    title: str  # sites and data set
    meaning: str  # what is spent means this, in one sentence
    value: str  # what is spent
    of: str  # the limit, in words
    fraction: float | None  # spent / limit, None without a limit
    facts: tuple[tuple[str, str], ...]  # (name, value) below the bar
    warning: str = ""  # shown last, empty for none

    @property
    def nearly_spent(self) -> bool:
        """Whether its bar warns."""
        return self.fraction is not None and self.fraction >= _NEARLY_SPENT


@dataclass(frozen=True)
class Cards:
    """Cards side by side."""

    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Form:
    """Labelled entries; None is left blank for the controller to fill in."""

    rows: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Figure:
    """A drawing of one ledger; renderers draw it in their own format."""

    ledger: int  # index into the report's ledgers
    alt: str  # what it shows, for readers who cannot see it


Block = Text | Heading | Items | Code | Alert | ReportTable | Cards | Form | Figure


@dataclass(frozen=True)
class Section:
    """A numbered part of the report."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False  # for those who look it up: closed on the page, and not on paper


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    subtitle: str
    tone: Tone  # whether everything verified
    verdict: str  # that, in words
    facts: tuple[tuple[str, str], ...]  # (name, value) at the top
    sections: tuple[Section, ...]
    banner: str = ""  # above everything else, empty for none
