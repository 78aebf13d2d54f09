"""What a site permits. The server cannot override it, and what the policy does not name is not permitted.

Every study that arrives is compared with the policy as it is now; every round is, too, since hours and
the file itself change. check.py compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field

from secfed.config.schema import Strict, checked, suggestion
from secfed.config.toml_file import tables_of
from secfed.crypto.attempt import SiteLimits
from secfed.deploy.policy.absence import WAITING_TEXT
from secfed.deploy.policy.check import Violation, violations
from secfed.deploy.policy.rules import OneOf, Rules, read_rules
from secfed.deploy.policy.sections import (
    BudgetRules,
    Compute,
    DataSection,
    DataSet,
    PrivacyRules,
    ProtectionRules,
    Studies,
    Window,
    time_zone,
)
from secfed.dp.accounting.unit import Unit
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files

if TYPE_CHECKING:
    from secfed.dp.accounting.budget import Budget
    from secfed.study.study import Study

_LISTS: Final = ("data", "hours")


class _Top(Strict):
    """Keys outside tables."""

    approve: Literal["manual", "automatic"] = Field(
        default="manual", description='"manual" (a person approves each new study) or "automatic"'
    )
    four_eyes: bool = Field(default=False, description="true: two persons approve each new study")
    timezone: str | None = Field(
        default=None, description='a name such as "Europe/Berlin"; leave it out for the machine\'s own'
    )


@dataclass(frozen=True)
class Policy:
    """A validated policy, table by table. Make one with :meth:`load`."""

    approve: Literal["manual", "automatic"]
    studies: Studies
    protection: ProtectionRules
    privacy: PrivacyRules
    compute: Compute
    algorithms: Mapping[str, Rules] = field(default_factory=dict)
    models: Mapping[str, Rules] = field(default_factory=dict)
    data: tuple[DataSet, ...] = ()
    hours: tuple[Window, ...] = ()  # empty for always
    zone: ZoneInfo | None = None  # of the hours; None for the machine's own
    four_eyes: bool = False  # two persons approve a study

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a policy file."""
        return cls.parse(private_files.read(path, "a policy"), path)

    @classmethod
    def parse(cls, data: bytes, path: Path) -> Self:
        """A policy file that was read."""
        tables = tables_of(data, path)
        try:
            return cls._from_tables(tables)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from None

    @classmethod
    def _from_tables(cls, tables: Mapping[str, Any]) -> Self:
        kinds: Mapping[str, type[Strict]] = {
            "studies": Studies,
            "protection": ProtectionRules,
            "privacy": PrivacyRules,
            "compute": Compute,
        }
        known = {*kinds, *_Top.model_fields, *_LISTS, "algorithms", "models"}
        for name, table in tables.items():
            if name not in known:
                raise ConfigError(f"{name}: unknown section", remedy=suggestion(name, known, "use: "))
            if name in _LISTS:
                _check_list(table, name, f"[[{name}]]")
            if name not in (*_LISTS, *_Top.model_fields) and not isinstance(table, dict):
                raise ConfigError(f"{name}: is a value, not a table", remedy=f"write [{name}]")
        if "privacy" not in tables:
            raise ConfigError(
                "privacy: this section is missing", remedy="add [privacy] with max_epsilon and max_delta"
            )
        top = checked(_Top, {key: tables[key] for key in _Top.model_fields if key in tables}, "")
        read: dict[str, Any] = {
            name: checked(kind, tables.get(name, {}), name) for name, kind in kinds.items()
        }
        for kind in ("algorithms", "models"):
            read[kind] = {
                name: read_rules(table, f"{kind}.{name}", _settings(kind, name))
                for name, table in tables.get(kind, {}).items()
            }
        require = read["privacy"].require
        data = tuple(
            _data_set(table, f"data[{at}]", require) for at, table in enumerate(tables.get("data", ()))
        )
        names = [item.name for item in data]
        if len(set(names)) != len(names):
            raise ConfigError("data.name: two data sets have one name", remedy="one name, one ledger")
        windows = tuple(
            checked(Window, table, f"hours[{at}]") for at, table in enumerate(tables.get("hours", ()))
        )
        if top.four_eyes and top.approve != "manual":
            message = 'four_eyes: is true, and with approve = "automatic" nobody approves'
            raise ConfigError(message, remedy='set approve = "manual"')
        zone = None if top.timezone is None else time_zone(top.timezone)
        return cls(approve=top.approve, data=data, hours=windows, zone=zone, four_eyes=top.four_eyes, **read)

    def data_set(self, study: Study) -> DataSet | None:
        """The data set that a study means; None if the policy names none that fits."""
        table = study.data.model_dump()
        return next((item for item in self.data if item.matches(table)), None)

    @property
    def own_code(self) -> frozenset[str]:
        """Names ``package.module:factory`` that this policy permits to import.

        Security: give it to :meth:`secfed.study.study.Study.parse` for every study that comes from elsewhere.
        """
        named = {*self.algorithms, *self.models, *(item.section.source for item in self.data)}
        for model, rules in self.models.items():
            named |= {str(value) for rule in _of_code(model, rules) for value in rule.values}
        return frozenset(name for name in named if ":" in name)

    @property
    def approvers(self) -> Literal[1, 2]:
        """How many persons approve a study, where persons do."""
        return 2 if self.four_eyes else 1

    def limits(self) -> SiteLimits:
        """What the protocol enforces in every attempt, whatever the study says."""
        return SiteLimits(
            min_cohort=self.protection.min_cohort,
            min_threshold=self.protection.min_threshold,
            colluders=self.protection.colluders,
            max_elements=self.protection.max_elements,
            require_privacy=self.privacy.require,
        )

    def budgets(self, dataset: str) -> tuple[Budget, ...]:
        """Budgets of one data set, for its ledger."""
        from secfed.dp.accounting.budget import Budget  # not for every command: it is slow to import

        for item in self.data:
            if item.name == dataset:
                return tuple(
                    Budget(rule.epsilon, rule.delta, rule.period_days, Unit(rule.protects))
                    for rule in item.budgets
                )
        raise ConfigError(f"data.name: the policy names no data set {dataset!r}", remedy="add [[data]]")

    def enforce(self, study: Study, now: datetime, *, sites: int | None = None) -> DataSet:
        """Refuse a study that this site does not permit, with all reasons, in words for the study centre."""
        found = self.check(study, now, sites=sites)
        data = self.data_set(study)
        if found or data is None:
            waits = bool(found) and all(item.temporary for item in found)
            said = WAITING_TEXT if waits else "is not permitted at this site"
            raise PolicyRefused(
                f"study {study.name!r} {said}: {'; '.join(map(str, found))}",
                remedy="wait" if waits else "change the study, or ask this site to change its policy",
                keys=tuple(item.key for item in found if not item.temporary),
            )
        return data

    def check(self, study: Study, now: datetime, *, sites: int | None = None) -> list[Violation]:
        """Everything in a study that this site does not permit; empty if it does permit it."""
        return violations(self, study, now, sites=sites)


def _data_set(table: Mapping[str, Any], where: str, require_privacy: bool) -> DataSet:
    rest = {key: value for key, value in table.items() if key not in ("budget", "options")}
    section = checked(DataSection, rest, where)
    given = table.get("budget", [])
    _check_list(given, f"{where}.budget", "[[data.budget]]")
    if require_privacy and not given:
        raise ConfigError(
            f"{where}.budget: data set {section.name!r} has no budget",
            remedy="add [[data.budget]] with epsilon, delta and period_days",
        )
    budgets = tuple(checked(BudgetRules, item, f"{where}.budget[{at}]") for at, item in enumerate(given))
    options = table.get("options", {})
    known = _settings("data", section.source)
    rules = None if options == "any" else read_rules(options, f"{where}.options", known)
    return DataSet(section, rules, budgets)


def _check_list(tables: Any, where: str, header: str) -> None:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{where}: is not a list of tables", remedy=f"write {header}")


def _settings(kind: str, name: str) -> Collection[str] | None:
    """Settings of a built-in algorithm, model or data set; None for anything else."""
    from secfed.study.registry import KINDS  # torch

    entry = KINDS[kind.removesuffix("s")][0].get(name)
    return None if entry is None else entry.options.model_fields


def _of_code(model: str, rules: Rules) -> list[OneOf]:
    """The rules of keys that may name code; "any" permits none."""
    from secfed.study.registry import MODELS  # torch

    keys = MODELS[model].options.code_keys if model in MODELS else ()
    return [rule for key in keys if isinstance(rule := rules.get(key), OneOf)]
