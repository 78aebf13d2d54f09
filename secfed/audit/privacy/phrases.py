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
from typing import Any, Final

from secfed.audit.privacy.evidence import Amount
from secfed.config.protections import TRAITS

# A study id is its name and the digest of its settings; eight digits tell two studies apart on paper.
_STUDY_ID: Final = re.compile(r"([a-z0-9][a-z0-9-]*)-([0-9a-f]{8})[0-9a-f]{56}(?![0-9a-f])")

NOTHING: Final = "\N{EN DASH}"


def printable(text: str) -> str:
    """A text as it is drawn: study ids short, control characters, which have no place in a name, marked."""
    shown = _STUDY_ID.sub(r"\1 (\2)", text)
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in shown
    )


def settings_digest(study: str) -> str | None:
    """The digest in a study id, in full."""
    found = _STUDY_ID.fullmatch(study)
    return None if found is None else study[-64:]


TEXTS: Final[dict[str, Any]] = tomllib.loads(
    resources.files("secfed.audit.privacy").joinpath("texts.toml").read_text("utf-8")
)
ADJACENCY: Final[dict[str, str]] = TEXTS["adjacency"]
PROTECTION: Final = {name: traits.summary for name, traits in TRAITS.items()}
PROTECTION_RELIES: Final = {name: traits.relies_on for name, traits in TRAITS.items()}


def number_up(value: float) -> str:
    """Three decimals, rounded up; tiny values keep two digits."""
    if math.isinf(value):
        return "unbounded"
    if 0 < value < 0.001:
        return "0.001"
    return f"{math.ceil(value * 1000 - 1e-9) / 1000:.3f}"


def number_down(value: float | None) -> str:
    """Three decimals, rounded down; a dash for None."""
    if value is None:
        return NOTHING
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def limit(amount: Amount) -> str:
    """The limit, or that there is none."""
    return "no limit" if amount.limit is None else f"{amount.limit:g}"


def delta(value: float) -> str:
    """``1e-5``."""
    mantissa, _, exponent = f"{value:g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def period(amount: Amount) -> str:
    """What the budget counts."""
    return "in all" if amount.period_days is None else f"last {amount.period_days} days"


def hidden(amount: Amount) -> str:
    """Who is hidden: a record, a site, or a patient with all records."""
    return "patient" if amount.adjacency == "replace-patient" else amount.protects


def statement(amount: Amount) -> str:
    """An epsilon with everything without which it means nothing."""
    if amount.adjacency is None:
        return f"nothing spent (delta {delta(amount.delta)}, {amount.protects} budget)"
    return (
        f"epsilon {number_up(amount.spent)} at delta {delta(amount.delta)}, protecting a {hidden(amount)}, "
        f"relation {amount.adjacency}, accountant {amount.accountant} ({amount.version})"
    )


def day(time_s: int | None) -> str:
    """A date in UTC."""
    return NOTHING if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d")


def moment(time_s: int) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def rounds(text: str) -> str:
    """``round 7``, ``rounds 1 to 6``."""
    return f"{'rounds' if '-' in text or ',' in text else 'round'} {dashes(text)}"


def after_round(number: int) -> str:
    """``after round 7``; the model that training began with is not after any."""
    return f"after round {number}" if number else "untrained"


def dashes(text: str) -> str:
    """A range as people write it."""
    return text.replace("-", "\N{EN DASH}")


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def plural(count: int, noun: str) -> str:
    """``1 sum``, ``4 sums``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def factor(epsilon: float) -> str:
    """e^epsilon, rounded up."""
    if epsilon > 20:
        return "more than a million"
    value = math.exp(epsilon)
    return f"{math.ceil(value * 10) / 10:,.1f}" if value < 100 else f"{math.ceil(value):,}"


def percent_up(share: float) -> str:
    """A percentage, rounded up; a bound that excludes nothing is no number."""
    value = math.ceil(share * 1000 - 1e-9) / 10
    return "no protection left" if value >= 100 else f"{value:.1f} %"


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
    return f"{', '.join(values[:most])} and {len(values) - most} more"


def fields(layout: Sequence[str]) -> str:
    """Fields by the beginning of their names: a model has many, and they say little one by one.

    Not in words: the records do not say what an algorithm means by a name.
    """
    if not layout:
        return "not recorded"
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
            quoted = f"\N{LEFT DOUBLE QUOTATION MARK}{group}\N{RIGHT DOUBLE QUOTATION MARK}"
            parts.append(f"{plural(len(members), 'field')} of {quoted}")
    return "; ".join(parts)
