"""Rules for one setting of a study: a range, a list of permitted values, or anything.

    local_epochs = { min = 1, max = 5 }      a number; of an array, every element
    optimizer = ["sgd"]                      one of these; of an array, every element; of a table, every key
                                             and every value
    patient_column = ["pid", ""]             the same, or left out: for some settings the widest choice
    batch_size = "any"                       not restricted

A setting without a rule must have its default value; a rule binds the default, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from secfed.config.schema import Options, suggestion
from secfed.errors import ConfigError

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Anything:
    """Not restricted."""

    def permits(self, value: Any) -> bool:  # noqa: ARG002
        """Whether a study may have this value."""
        return True

    def describe(self) -> str:
        """What is permitted."""
        return "anything"


@dataclass(frozen=True)
class Range:
    """A number from ``low`` to ``high``, both included; None: unbounded. Of an array, every element."""

    low: float | None
    high: float | None

    def permits(self, value: Any) -> bool:
        """Whether a study may have this value."""
        if isinstance(value, list | tuple):
            return bool(value) and all(self.permits(item) for item in value)
        if isinstance(value, bool) or not isinstance(value, int | float) or _is_nan(value):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def describe(self) -> str:
        """What is permitted."""
        bounds = [f"at least {_shown(self.low)}"] if self.low is not None else []
        bounds += [f"at most {_shown(self.high)}"] if self.high is not None else []
        return " and ".join(bounds)


@dataclass(frozen=True)
class OneOf:
    """One of some values; "" among them, or none at all, permits a setting that is empty or left out."""

    values: tuple[Scalar, ...]

    def permits(self, value: Any) -> bool:
        """Whether a study may have this value."""
        if is_nothing(value):
            return not self.values or "" in self.values
        if isinstance(value, list | tuple):
            return all(self.permits(item) for item in value)
        if isinstance(value, Mapping):
            return all(self.permits(name) and self.permits(item) for name, item in value.items())
        # To Python, true is 1; to a person who writes a policy it is not.
        return any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in self.values
        )

    def describe(self) -> str:
        """What is permitted."""
        named = [repr(item) for item in self.values if item != ""] + ["nothing"] * ("" in self.values)
        return "one of " + ", ".join(named) if self.values else "nothing"


Rule = Anything | Range | OneOf
Rules = Mapping[str, Rule]

_HELP: Final = 'write { min = 1, max = 5 }, an array of permitted values, or "any"'


def read_rules(table: Any, where: str, known: Collection[str] | None = None) -> Rules:
    """The rules of one algorithm, model or data set."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: is a value, not a table", remedy=f"write [{where}]")
    for name in table:
        if known is not None and name not in known:  # it would look like a rule and permit nothing
            raise ConfigError(
                f"{where}.{name}: a rule for a setting that does not exist",
                remedy=suggestion(name, known, "settings: "),
            )
    return {name: read_rule(rule, f"{where}.{name}") for name, rule in table.items()}


def read_rule(rule: Any, where: str) -> Rule:
    """One rule."""
    if rule == "any":
        return Anything()
    if isinstance(rule, list | tuple):
        if not all(isinstance(item, str | int | float) for item in rule):
            raise ConfigError(f"{where}: an array of plain values is expected", remedy=_HELP)
        return OneOf(tuple(rule))
    if not isinstance(rule, dict) or not rule:
        raise ConfigError(f"{where}: is not a rule", remedy=_HELP)
    for key, bound in rule.items():
        if key not in ("min", "max"):
            raise ConfigError(f"{where}.{key}: unknown key", remedy=suggestion(key, ("min", "max"), "use: "))
        if isinstance(bound, bool) or not isinstance(bound, int | float) or _is_nan(bound):
            raise ConfigError(f"{where}.{key}: must be a number, not {bound!r}", remedy=_HELP)
    low, high = rule.get("min"), rule.get("max")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{where}: min is above max", remedy="no value would be permitted; swap them")
    return Range(low, high)


def broken(options: Options, rules: Rules, *, exempt: frozenset[str]) -> list[tuple[str, Any, str]]:
    """Settings that break a rule, or have neither a rule nor their default; and what is permitted."""
    found = []
    fields = type(options).model_fields
    for name, value in options.for_policy().items():
        if name in exempt:
            continue
        field, rule = fields.get(name), rules.get(name)
        has_default = field is not None and not field.is_required()
        default = field.get_default(call_default_factory=True) if field is not None and has_default else None
        if rule is not None:
            if not rule.permits(value):
                found.append((name, value, rule.describe()))
        elif not has_default:
            found.append((name, value, "nothing: the policy has no rule for it"))
        elif value != default:
            found.append((name, value, f"its default {default!r}, as the policy has no rule for it"))
    return found


def is_nothing(value: Any) -> bool:
    """Whether a study leaves a setting out, or names nothing in it."""
    return value is None or (isinstance(value, list | tuple | Mapping) and not value)


def _is_nan(value: float) -> bool:
    # An int of TOML has no limit, and math.isnan() refuses one that no float holds.
    return isinstance(value, float) and math.isnan(value)


def _shown(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
