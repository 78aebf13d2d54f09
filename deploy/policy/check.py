"""A study against a site's policy: every reason, at once, why it is not permitted.

Each reason has its key, what the study says and what is permitted here, and is fit to be told to the study
centre: paths and budgets of the site are never part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Protocol

from secfed.config.schema import ModelOptions, Options
from secfed.deploy.policy.rules import Anything, Rules, broken, is_nothing
from secfed.deploy.policy.sections import (
    Compute,
    DataSet,
    PrivacyRules,
    ProtectionRules,
    Studies,
    Window,
    is_open,
)
from secfed.dp.accounting.unit import PrivacyUnit, Unit

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from secfed.study.study import Study

_SECTIONS: Final = frozenset({"study", "algorithm", "model", "data", "protection", "privacy"})
_DEVICE: Final = frozenset({"name", "device"})  # the device is what [compute] decides
_LOCAL_FILES: Final = ("words_file", "tokenizer_folder")  # read beside the data set, wherever they point
_DATA: Final = frozenset({"name", "path", "sites"})  # [[data]] and the pinned roster decide these
_START: Final[Rules] = {"start": Anything()}  # where a file is elsewhere; start_sha256 says which model it is
_NOTHING: Final[Rules] = {}


class _Permits(Protocol):
    """What of a policy a study is compared with."""

    @property
    def studies(self) -> Studies: ...

    @property
    def protection(self) -> ProtectionRules: ...

    @property
    def privacy(self) -> PrivacyRules: ...

    @property
    def compute(self) -> Compute: ...

    @property
    def algorithms(self) -> Mapping[str, Rules]: ...

    @property
    def models(self) -> Mapping[str, Rules]: ...

    @property
    def hours(self) -> tuple[Window, ...]: ...

    @property
    def zone(self) -> ZoneInfo | None: ...

    def data_set(self, study: Study) -> DataSet | None: ...


@dataclass(frozen=True)
class Violation:
    """One reason for a refusal; fit to be told to the study centre."""

    key: str  # dotted key of the study, ``kept_state`` or ``hours``
    asked: str
    permitted: str
    temporary: bool = False  # whether waiting helps

    def __str__(self) -> str:
        return f"{self.key}: the study has {self.asked}; permitted here: {self.permitted}"


def violations(policy: _Permits, study: Study, now: datetime, *, sites: int | None = None) -> list[Violation]:
    """See :meth:`secfed.deploy.policy.policy.Policy.check`."""
    found = [
        Violation(name, "this section", "only sections that the policy knows")
        for name in study.tables()
        if name not in _SECTIONS
    ]
    found += _check_study(policy, study)
    found += _check_named("algorithm", study.algorithm, policy.algorithms)
    found += _check_named("model", study.model, policy.models, also=_START)
    found += _check_data(policy, study)
    found += _check_protection(policy, study, sites)
    found += _check_privacy(policy, study)
    if getattr(study.algorithm, "device", None) == "cuda" and not policy.compute.gpu:
        found.append(Violation("algorithm.device", "'cuda'", "training without GPU"))
    if not is_open(policy.hours, now, policy.zone):
        windows = "; ".join(window.describe() for window in policy.hours)
        found.append(Violation("hours", "work now", windows, temporary=True))
    return found


def _check_study(policy: _Permits, study: Study) -> list[Violation]:
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
    # A study that begins with no earlier model has no digest of one.
    fresh = isinstance(options, ModelOptions) and options.start is None
    exempt = _DEVICE | {"start_sha256"} if fresh else _DEVICE
    return _broken(kind, options, {**also, **permitted[options.name]}, exempt)


def _check_data(policy: _Permits, study: Study) -> list[Violation]:
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


def _check_protection(policy: _Permits, study: Study, sites: int | None) -> list[Violation]:
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
    if "graph" in asked.traits.own_options and asked.graph not in rules.graphs:
        found.append(Violation("protection.graph", repr(asked.graph), _listed(rules.graphs)))
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


def _check_privacy(policy: _Permits, study: Study) -> list[Violation]:
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


def _check_budgets(policy: _Permits, study: Study, asked: Mapping[str, Any]) -> list[Violation]:
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
    text = "nothing" if is_nothing(value) else repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
