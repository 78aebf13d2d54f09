"""The languages of the report and the console: gettext catalogues, and numbers as each language writes them.

    with speaking("de"):
        say("{count:,} sums", count=1234)    -> "1.234 Summen"

A text is written in English where it is used, and looked up in ``locale/LANGUAGE.po`` by that English. The
catalogue is compiled in memory when its language is first spoken: one file to edit, none to build or forget.
"""

from __future__ import annotations

import ast
import gettext
import io
import re
import string
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import resources
from typing import Any, Final

ENGLISH: Final = "en"
LANGUAGES: Final[Mapping[str, str]] = {ENGLISH: "English", "de": "Deutsch", "fr": "Français"}
"""Their own names, by code."""

# What stands for the English comma of thousands and the decimal point.
_NUMBERS: Final = {
    "de": str.maketrans(",.", ".,"),
    "fr": str.maketrans(",.", "\N{NARROW NO-BREAK SPACE},"),
}
_QUOTED: Final = {"de": "„{}“", "fr": "«\N{NO-BREAK SPACE}{}\N{NO-BREAK SPACE}»"}
# French has a space before some punctuation and inside quotation marks, at which no line may break.
_FRENCH_SPACES: Final = re.compile(r" (?=[:;?!%»])|(?<=«) ")
_NOW: Final[ContextVar[str]] = ContextVar("language", default=ENGLISH)


@contextmanager
def speaking(code: str) -> Iterator[None]:
    """Everything inside is said in one of :data:`LANGUAGES`."""
    token = _NOW.set(code)
    try:
        yield
    finally:
        _NOW.reset(token)


def spoken() -> str:
    """The code of the language of the moment."""
    return _NOW.get()


def number(value: float, spec: str) -> str:
    """A number as the language writes it; ``spec`` as for :func:`format`."""
    return format(value, spec).translate(_NUMBERS.get(spoken(), {}))


def quoted(text: str) -> str:
    """A name in quotation marks as the language writes them; in English as Python does, which facts keep."""
    return _QUOTED[spoken()].format(text) if spoken() in _QUOTED else repr(text)


class _Formatter(string.Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        """``!r`` of a text is a quotation."""
        is_quoted = conversion == "r" and isinstance(value, str)
        return quoted(value) if is_quoted else super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Numbers with a format as the language writes them; line and round numbers have none."""
        if format_spec and isinstance(value, int | float):
            return number(value, format_spec)
        return super().format_field(again(value), format_spec)


_FORMATTER: Final = _Formatter()


def say(text: str, /, **values: Any) -> str:
    """An English text in the language of the moment, its placeholders filled."""
    found = _catalogue(spoken()).gettext(text) if text else text  # the empty one is the catalogue's header
    return _FORMATTER.vformat(found, (), values) if values else found


def say_many(one: str, many: str, count: int) -> str:
    """As :func:`say`, for a ``count``."""
    return _FORMATTER.vformat(_catalogue(spoken()).ngettext(one, many, count), (), {"count": count})


class Said(str):
    """An English text that can be said again in another language: records and JSON keep the English."""

    template: str
    values: dict[str, Any]


def said(text: str, /, **values: Any) -> Said:
    """A fact in English, to be said :func:`again` where people read it."""
    with speaking(ENGLISH):
        made = Said(say(text, **values))
    made.template, made.values = text, values
    return made


def again(value: Any) -> Any:
    """What :func:`said` made, in the language of the moment; anything else as it is."""
    return say(value.template, **value.values) if isinstance(value, Said) else value


class Texts(Mapping[str, Any]):
    """A table of English texts that reads in the language of the moment."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return _read(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _read(value: Any) -> Any:
    if isinstance(value, str):
        return say(value)
    if isinstance(value, list):
        return [_read(one) for one in value]
    return Texts(value)


@cache
def _catalogue(code: str) -> gettext.NullTranslations:
    if code == ENGLISH:
        return gettext.NullTranslations()
    return gettext.GNUTranslations(io.BytesIO(_compiled(entries_in(f"{code}.po", code))))


def entries_in(name: str, code: str) -> list[tuple[list[str], list[str]]]:
    """The entries of a file beside the catalogues, with the spaces of its language."""
    entries = entries_of(resources.files("secfed.audit").joinpath("locale", name).read_text("utf-8"))
    if code == "fr":
        entries = [(key, [_french(form) for form in forms] if key[0] else forms) for key, forms in entries]
    return entries


def _french(text: str) -> str:
    return _FRENCH_SPACES.sub("\N{NO-BREAK SPACE}", text)


def entries_of(text: str) -> list[tuple[list[str], list[str]]]:
    """The entries of a ``.po`` file: English, one form or singular and plural, and the translations."""
    entries: list[tuple[list[str], list[str]]] = []
    target: list[str] = []
    for line in text.splitlines():
        keyword, _, quoted = line.partition(" ")
        if keyword == "msgid":
            entries.append(([], []))
        if keyword.startswith("msg"):
            target = entries[-1][keyword.startswith("msgstr")]
            target.append(ast.literal_eval(quoted))
        elif line.startswith('"'):
            target[-1] += ast.literal_eval(line)
    return entries


def _compiled(entries: Sequence[tuple[list[str], list[str]]]) -> bytes:
    """A ``.mo`` file. Source: GNU gettext manual, "The Format of GNU MO Files"."""
    pairs = sorted(("\0".join(keys).encode(), "\0".join(forms).encode()) for keys, forms in entries)
    tables, texts, start = [b"", b""], b"", 28 + 16 * len(pairs)
    for which in (0, 1):
        for pair in pairs:
            tables[which] += struct.pack("<II", len(pair[which]), start + len(texts))
            texts += pair[which] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + tables[0] + tables[1] + texts
