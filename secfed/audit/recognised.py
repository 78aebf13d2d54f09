"""Messages of modules that know no catalogue, in the language of the moment.

What the core says of a certificate, a policy or a near twin is an English sentence with values in it, and
some are read from a file long after they were written. They are found again by their words: a text of
``locale/messages-LANGUAGE.po`` has ``{0}``, ``{1}`` where a message has values, and a value that is a
message itself is said in the language, too. The core needs no catalogue for that, nor a code a sentence.

Security: a message may quote what a study centre wrote. Its words stay as they are, unless they are one of
these sentences. Literal parts are looked for once, from left to right, and no part of a message is looked at
twice: no text makes this slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from secfed.audit.languages import ENGLISH, entries_in, quoted, spoken

_MOST_CHARACTERS: Final = 4000  # of a message
_MOST_LEVELS: Final = 30  # of messages inside messages
# Letters of its own from which on a pattern is believed; one of punctuation alone, only for its values.
_SURE, _LIKELY = 6, 3
_MARKS: Final = "(;:,."  # that join messages, in the order in which they are taken apart
_VALUE: Final = re.compile(r"\{(\w+)\}")
_QUOTED: Final = re.compile(r"'([^'\\]*)'")  # as Python writes a name
_LETTER: Final = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class _Pattern:
    """A sentence with values in it, and the same in another language."""

    english: str
    other: str

    @cached_property
    def _parts(self) -> list[str]:
        return _VALUE.split(self.english)

    @cached_property
    def letters(self) -> int:
        """How many letters are its own."""
        return sum(len(_LETTER.findall(part)) for part in self._parts[::2])

    @property
    def order(self) -> tuple[int, int]:
        """Most letters first; of those that only put others together, the widest."""
        mark = "".join(self._parts[::2]).strip()[:1]
        return -self.letters, _MARKS.find(mark) if self.letters < _LIKELY else 0

    def values(self, text: str) -> dict[str, str] | None:
        """What stands in the place of its values; None if the text is not of this pattern."""
        first, *between, last = self._parts[::2] if len(self._parts) > 1 else [self.english, ""]
        names = self._parts[1::2]
        if not names:
            return {} if text == self.english else None
        if not text.startswith(first) or text[:1] == " " != self.english[0]:
            return None
        found, position = [], len(first)
        for part in between:
            start = text.find(part, position)
            if start < 0:
                return None
            found.append(text[position:start])
            position = start + len(part)
        end = len(text) - len(last)
        if end < position or not text.endswith(last):
            return None
        found.append(text[position:end])
        if any(value.endswith((",", ";")) for value in found):  # it reaches into the middle of a list
            return None
        return dict(zip(names, found, strict=True))

    def said(self, values: dict[str, str]) -> str:
        """The other language's sentence with these values."""
        return _VALUE.sub(lambda found: values[found[1]], self.other)


def recognised(text: str) -> str | None:
    """An English message in the language of the moment; None if no pattern knows it."""
    if spoken() == ENGLISH or not text:
        return text
    return _said(text, _MOST_LEVELS, {}) if len(text) <= _MOST_CHARACTERS else None


def known_or_own(text: str) -> str:
    """The same where a part of a text is shown: as it is if no pattern knows it."""
    return recognised(text) or text


def _said(text: str, levels: int, known: dict[str, str | None]) -> str | None:
    """``known`` are parts of the message that were looked at before."""
    if text not in known and levels:
        known[text] = None
        known[text] = _look(text, levels, known)
    return known.get(text)


def _look(text: str, levels: int, known: dict[str, str | None]) -> str | None:
    otherwise = None
    for pattern in _patterns(spoken()):
        values = pattern.values(text)
        if values is None:
            continue
        # A single word is a name: nobody's study is translated because it is called "policy".
        inner = {
            name: _said(value, levels - 1, known) if " " in value.strip() else None
            for name, value in values.items()
        }
        said = pattern.said({name: inner[name] or _own_words(value) for name, value in values.items()})
        if _is_meant(pattern, values, inner):
            return said
        if pattern.letters >= _SURE and levels == _MOST_LEVELS:  # the message as a whole
            otherwise = otherwise or said
    return otherwise


def _own_words(value: str) -> str:
    """A value as it is; names in the language's quotation marks."""
    return _QUOTED.sub(lambda found: quoted(found[1]), value)


def _is_meant(pattern: _Pattern, values: dict[str, str], inner: dict[str, str | None]) -> bool:
    """Whether a text that fits is what the pattern says, and not a list in which it stands."""
    if pattern.letters < _LIKELY:
        return any(inner.values()) or not values
    separators = ";" if pattern.letters >= _SURE else ",;"
    return all(inner[name] or not set(separators) & set(value) for name, value in values.items())


@cache
def _patterns(code: str) -> list[_Pattern]:
    """The one with most letters of its own first."""
    entries = entries_in(f"messages-{code}.po", code)
    found = [_Pattern(keys[0], forms[0]) for keys, forms in entries if keys[0]]
    return sorted(found, key=lambda one: one.order)
