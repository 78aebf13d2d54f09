"""A report as a list of sections of plain blocks, which HTML and PDF both draw.

Every text here is plain text. Nothing is markup until a renderer escapes it, so a name from a study file
or a roster cannot become part of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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
    """A table.

    Attributes:
        headers: one per column.
        rows: as many cells each.
        numbers: columns aligned to the right.
        digests: columns in a fixed-width face that may break anywhere.
        weights: relative widths, for the PDF; equal if empty.
        tones: row -> tone.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()
    digests: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    tones: tuple[tuple[int, Tone], ...] = ()


@dataclass(frozen=True)
class Card:
    """One budget at a glance.

    Attributes:
        title: site and data set.
        value: what is spent.
        of: the limit, in words.
        fraction: spent / limit, None without a limit.
        facts: (name, value) below the bar.
        warning: shown last, empty for none.
    """

    title: str
    value: str
    of: str
    fraction: float | None
    facts: tuple[tuple[str, str], ...]
    warning: str = ""

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
    """A drawing of one ledger; renderers draw it in their own format.

    Attributes:
        ledger: index into the report's ledgers.
        alt: what it shows, for readers who cannot see it.
    """

    ledger: int
    alt: str


Block = Text | Heading | Items | Code | Alert | ReportTable | Cards | Form | Figure


@dataclass(frozen=True)
class Section:
    """A numbered part of the report."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    new_page: bool = False


@dataclass(frozen=True)
class Document:
    """The whole report.

    Attributes:
        title: of the document.
        subtitle: one line below it.
        tone: whether everything verified.
        verdict: that, in words.
        facts: (name, value) at the top.
        sections: in order.
    """

    title: str
    subtitle: str
    tone: Tone
    verdict: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
