"""The words of a report: its fixed texts (``texts.toml``), and numbers in plain language.

Epsilon is rounded up and what is left is rounded down, so a report never promises more than was computed.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Final

from secfed.audit.languages import Texts, number, say, say_many
from secfed.audit.privacy.evidence import Amount
from secfed.config.protections import TRAITS
from secfed.records.roster_file import AGGREGATOR

# A study id is its name and the digest of its settings; eight digits tell two studies apart on paper.
_STUDY_ID: Final = re.compile(r"([a-z0-9][a-z0-9-]*)-([0-9a-f]{8})[0-9a-f]{56}(?![0-9a-f])")

# Drawn as nothing, and to Python printable: fillers of Hangul, and the Braille cell without dots.
_BLANK: Final = "\u115f\u1160\u2800\u3164\uffa0"

NOTHING: Final = "\N{EN DASH}"
_KEPT: Final = "\n\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}"


def printable(text: str) -> str:
    """A text as it is drawn: study ids short; control and blank characters, which no name needs, marked."""
    shown = _STUDY_ID.sub(r"\1 (\2)", text)
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_unseen(letter) else letter for letter in shown)


def _is_unseen(letter: str) -> bool:
    return letter in _BLANK or not (letter.isprintable() or letter in _KEPT)


def settings_digest(study: str) -> str | None:
    """The digest in a study id, in full."""
    found = _STUDY_ID.fullmatch(study)
    return None if found is None else study[-64:]


TEXTS: Final = Texts(
    tomllib.loads(resources.files("secfed.audit.privacy").joinpath("texts.toml").read_text("utf-8"))
)
ADJACENCY: Final = TEXTS["adjacency"]
PROTECTION: Final = Texts({name: traits.summary for name, traits in TRAITS.items()})
PROTECTION_RELIES: Final = Texts({name: traits.relies_on for name, traits in TRAITS.items()})


def number_up(value: float) -> str:
    """Three decimals, rounded up; tiny values keep two digits."""
    if math.isinf(value):
        return say("unbounded")
    return number(max(math.ceil(value * 1000 - 1e-9) / 1000, 0.001 if value > 0 else 0.0), ".3f")


def number_down(value: float | None) -> str:
    """Three decimals, rounded down; a dash for None."""
    if value is None:
        return NOTHING
    return number(math.floor(value * 1000 + 1e-9) / 1000, ".3f")


def limit(amount: Amount) -> str:
    """The limit, or that there is none."""
    return say("no limit") if amount.limit is None else number(amount.limit, "g")


def delta(value: float) -> str:
    """``1e-5``."""
    mantissa, _, exponent = number(value, "g").partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def period(amount: Amount) -> str:
    """What the budget counts."""
    if amount.period_days is None:
        return say("in all")
    return say_many("last {count} day", "last {count} days", amount.period_days)


def hidden(amount: Amount) -> str:
    """Who is hidden: a record, a site, or a patient with all records."""
    return "patient" if amount.adjacency == "replace-patient" else amount.protects


def statement(amount: Amount) -> str:
    """An epsilon with everything without which it means nothing."""
    if amount.adjacency is None:
        return say(
            "nothing spent (delta {delta}, budget of {whom})",
            delta=delta(amount.delta),
            whom=TEXTS["protects"][amount.protects],
        )
    return say(
        "epsilon {epsilon} at delta {delta}, protecting {whom}, relation {relation}, accountant {accountant} "
        "({version})",
        epsilon=number_up(amount.spent),
        delta=delta(amount.delta),
        whom=TEXTS["protects"][hidden(amount)],
        relation=amount.adjacency,
        accountant=amount.accountant,
        version=amount.version,
    )


def day(time_s: int | None) -> str:
    """A date in UTC."""
    return NOTHING if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d")


def moment(time_s: int) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def rounds(text: str) -> str:
    """``round 7``, ``rounds 1 to 6``."""
    several = "-" in text or "," in text
    return say("rounds {numbers}" if several else "round {numbers}", numbers=dashes(text))


def after_round(round_number: int) -> str:
    """``after round 7``; the model that training began with is not after any."""
    return say("after round {round}", round=round_number) if round_number else say("untrained")


def dashes(text: str) -> str:
    """A range as people write it."""
    return text.replace("-", "\N{EN DASH}")


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def plural(count: int, noun: str) -> str:
    """``1 sum``, ``4 sums``."""
    return say_many(f"{{count:,}} {noun}", f"{{count:,}} {noun}s", count)


def factor(epsilon: float) -> str:
    """e^epsilon, rounded up."""
    if epsilon > 20:
        return say("more than a million")
    value = math.exp(epsilon)
    return number(math.ceil(value * 10) / 10, ",.1f") if value < 100 else number(math.ceil(value), ",")


def percent_up(share: float) -> str:
    """A percentage, rounded up; a bound that excludes nothing is no number."""
    value = math.ceil(share * 1000 - 1e-9) / 10
    return say("no protection left") if value >= 100 else say("{share:.1f} %", share=value)


def of_hundred(share: float) -> int:
    """A share as people count, rounded up."""
    return min(100, math.ceil(share * 100 - 1e-9))


def is_certain(share: float) -> bool:
    """Whether a bound says no more than "all of them"."""
    return of_hundred(share) == 100


def names(values: Sequence[str], most: int = 6) -> str:
    """A list of names, cut with a count."""
    if len(values) <= most:
        return ", ".join(values)
    return say("{names} and {count} more", names=", ".join(values[:most]), count=len(values) - most)


def parties(values: Sequence[str]) -> str:
    """Parties by their names; sites name themselves, the aggregator is one."""
    return ", ".join(say(name) if name == AGGREGATOR else name for name in values)


def fields(layout: Sequence[str]) -> str:
    """Fields by the beginning of their names: a model has many, and they say little one by one.

    Not in words: the records do not say what an algorithm means by a name.
    """
    if not layout:
        return say("not recorded")
    groups: dict[str, list[str]] = {}
    for name in layout:
        groups.setdefault(name.split("/", 1)[0] if "/" in name else "", []).append(name)
    parts = []
    for group, members in groups.items():
        if not group:
            parts.append(names(members, 8))
        elif len(members) <= 3:
            parts.append(", ".join(members))
        else:
            count = plural(len(members), "field")
            parts.append(say("{count} of “{group}”", count=count, group=group))
    return say("; ").join(parts)
