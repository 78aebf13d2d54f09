"""What a site permits. The server cannot override it, and what the policy does not name is not permitted.

Every study that arrives is compared with the policy as it is now; every round is, too, since hours and
the file itself change. A refusal lists all reasons at once, each with its key, what the study says and
what is permitted here. Paths and budgets of the site are never part of a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field

from secfed.config.schema import Options, Strict, checked, suggestion
from secfed.config.toml_file import tables_of
from secfed.crypto.attempt import SiteLimits
from secfed.deploy.policy.absence import WAITING_TEXT
from secfed.deploy.policy.rules import Anything, OneOf, Rules, broken, read_rules
from secfed.deploy.policy.sections import (
    BudgetRules,
    Compute,
    DataSection,
    DataSet,
    PrivacyRules,
    ProtectionRules,
    Studies,
    Window,
    is_open,
    time_zone,
)
from secfed.dp.accounting.unit import PrivacyUnit, Unit
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files

if TYPE_CHECKING:
    from secfed.dp.accounting.budget import Budget
    from secfed.study.study import Study

_LISTS: Final = ("data", "hours")
_SECTIONS: Final = frozenset({"study", "algorithm", "model", "data", "protection", "privacy"})
_DEVICE: Final = frozenset({"name", "device"})  # the device is what [compute] decides
_LOCAL_FILES: Final = ("words_file", "tokenizer_folder")  # read beside the data set, wherever they point
_DATA: Final = frozenset({"name", "path", "sites"})  # [[data]] and the pinned roster decide these
_START: Final[Rules] = {"start": Anything()}  # where a file is elsewhere; start_sha256 says which model it is
_NOTHING: Final[Rules] = {}


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
class Violation:
    """One reason for a refusal; fit to be told to the study centre."""

    key: str  # dotted key of the study, ``kept_state`` or ``hours``
    asked: str
    permitted: str
    temporary: bool = False  # whether waiting helps

    def __str__(self) -> str:
        return f"{self.key}: the study has {self.asked}; permitted here: {self.permitted}"


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
        found = [
            Violation(name, "this section", "only sections that the policy knows")
            for name in study.tables()
            if name not in _SECTIONS
        ]
        found += _check_study(self, study)
        found += _check_named("algorithm", study.algorithm, self.algorithms)
        found += _check_named("model", study.model, self.models, also=_START)
        found += _check_data(self, study)
        found += _check_protection(self, study, sites)
        found += _check_privacy(self, study)
        if getattr(study.algorithm, "device", None) == "cuda" and not self.compute.gpu:
            found.append(Violation("algorithm.device", "'cuda'", "training without GPU"))
        if not is_open(self.hours, now, self.zone):
            windows = "; ".join(window.describe() for window in self.hours)
            found.append(Violation("hours", "work now", windows, temporary=True))
        return found


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


def _check_study(policy: Policy, study: Study) -> list[Violation]:
    found = _above("study.rounds", study.rounds, policy.studies.max_rounds)
    by_name = any(fnmatchcase(study.name, pattern) for pattern in policy.studies.names)
    digest = study.digest().hex()
    if not by_name and digest not in policy.studies.digests:
        asked = f"{study.name!r}, digest {digest[:16]}" if policy.studies.digests else repr(study.name)
        found.insert(0, Violation("study.name", asked, "studies that the policy names"))
    return found


def _check_named(
    kind: str, options: Options, permitted: Mapping[str, Rules], also: Rules = _NOTHING
) -> list[Violation]:
    if options.name not in permitted:
        names = ", ".join(sorted(permitted)) or "none yet"
        return [Violation(f"{kind}.name", repr(options.name), names)]
    return _broken(kind, options, {**also, **permitted[options.name]}, _DEVICE)


def _check_data(policy: Policy, study: Study) -> list[Violation]:
    data = policy.data_set(study)
    if data is None:
        asked = repr(study.data.name)
        path = getattr(study.data, "path", None)
        asked += f" with data.path = {path!r}" if path is not None else ""
        return [Violation("data.name", asked, "data sets that the policy names")]
    if data.options is None:
        named = [(key, getattr(study.data, key, None)) for key in _LOCAL_FILES]
        permitted = "files of this machine that the options of [[data]] name"
        return [Violation(f"data.{key}", repr(value), permitted) for key, value in named if value is not None]
    return _broken("data", study.data, data.options, _DATA)


def _check_protection(policy: Policy, study: Study, sites: int | None) -> list[Violation]:
    from secfed.study.registry import site_ids  # torch; loaded already wherever a study is

    asked, rules = study.protection, policy.protection
    found = []
    if asked.name not in rules.names:
        found.append(Violation("protection.name", repr(asked.name), _listed(rules.names)))
    readers = "aggregator" if asked.traits.aggregator_reads_sums else "sites"
    if readers not in rules.reveal:
        found.append(Violation("protection.reveal", repr(readers), _listed(rules.reveal)))
    if shows_state(study) and rules.kept_state == "refuse":
        has = f"{study.algorithm.name!r}, which keeps something of each hospital from round to round"
        permitted = "such an algorithm only where the aggregator reads no sums, or reads them with noise"
        found.append(Violation("kept_state", has, permitted))
    if "keystream" in asked.traits.own_options and asked.keystream not in rules.keystreams:
        found.append(Violation("protection.keystream", repr(asked.keystream), _listed(rules.keystreams)))
    if "scheme" in asked.traits.own_options and asked.scheme not in rules.schemes:
        found.append(Violation("protection.scheme", repr(asked.scheme), _listed(rules.schemes)))
    if asked.min_cohort < rules.min_cohort:
        least = f"at least {rules.min_cohort}"
        found.append(Violation("protection.min_cohort", str(asked.min_cohort), least))
    found += _above("protection.processes", asked.processes, rules.max_processes)
    named = site_ids(study.data)
    count = len(named) if named is not None else sites
    # The default threshold grows with the cohort, so the smallest permitted cohort is the safe guess.
    cohort = asked.min_cohort if count is None else count
    answers = asked.min_cohort if asked.traits.free_dropouts else asked.threshold_for(cohort)
    answers = max(answers, asked.threshold or 0)
    if count is not None and asked.max_dropouts is not None:
        answers = max(answers, asked.asked_of(count) - asked.max_dropouts)
    if answers < rules.min_threshold:
        least = f"at least {rules.min_threshold}"
        found.append(Violation("protection.threshold", str(answers), least))
    tolerated = asked.tolerated_colluders(cohort)
    if rules.colluders is not None and (tolerated is None or tolerated < rules.colluders):
        has = "a server that sees every update" if tolerated is None else f"{tolerated} under {asked.name}"
        found.append(Violation("protection.colluders", has, f"at least {rules.colluders}"))
    return found


def shows_state(study: Study) -> bool:
    """Whether an aggregator could single out what a hospital keeps: it reads sums, and they have no noise."""
    asked = study.protection
    reads = asked.traits.aggregator_reads_sums and asked.name != "plain"  # which shows it everything anyhow
    privacy = study.privacy
    # With a hospital as the unit nothing that it keeps has noise, and neither have such metrics.
    noisy = privacy is not None and (privacy.unit != "site" or privacy.metrics != "unprotected")
    return study.algorithm.keeps_state and reads and not noisy


def _check_privacy(policy: Policy, study: Study) -> list[Violation]:
    asked, rules = study.tables().get("privacy"), policy.privacy
    if asked is None:
        if not rules.require:
            return []
        return [Violation("privacy", "no differential privacy", "studies with [privacy] only")]
    found = []
    for key, limit in (("epsilon", rules.max_epsilon), ("delta", rules.max_delta)):
        if limit is not None and not asked[key] <= limit:
            found.append(Violation(f"privacy.{key}", f"{asked[key]:g}", f"at most {limit:g}"))
    found += _check_budgets(policy, study, asked)
    relation = asked.get("adjacency") or str(PrivacyUnit.default(Unit(asked["unit"])).adjacency)
    chosen = {
        "unit": (asked["unit"], rules.units),
        "noise": ("sum" if asked["noise"] == "sum" else "site", rules.noise),
        "adjacency": (relation, rules.adjacency),
        "accountant": (asked.get("accountant", "pld"), rules.accountants),
        "metrics": (asked.get("metrics", "withheld"), rules.metrics),
        "weights": (asked.get("weights", "withheld"), rules.weights),
    }
    for key, (value, permitted) in chosen.items():
        if value not in permitted:
            found.append(Violation(f"privacy.{key}", repr(value), _listed(permitted)))
    return found


def _check_budgets(policy: Policy, study: Study, asked: Mapping[str, Any]) -> list[Violation]:
    """A study that no budget can ever cover is refused at once, not in its last rounds."""
    data = policy.data_set(study)
    protects = PrivacyUnit.default(Unit(asked["unit"])).adjacency.protects
    for budget in data.budgets if data is not None else ():
        # Epsilon at a smaller delta is larger, so this is certain.
        certain = asked["epsilon"] > budget.epsilon and asked["delta"] >= budget.delta
        if certain and Unit(budget.protects) is protects:
            covered = "what the data set's budget covers"
            return [Violation("privacy.epsilon", f"{asked['epsilon']:g}", covered)]
    return []


def _above(key: str, asked: int, limit: int) -> list[Violation]:
    return [Violation(key, str(asked), f"at most {limit}")] if asked > limit else []


def _broken(kind: str, options: Options, rules: Rules, exempt: frozenset[str]) -> list[Violation]:
    found = broken(options, rules, exempt=exempt)
    return [Violation(f"{kind}.{name}", _shown(value), what) for name, value, what in found]


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values) or "none"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
