"""What a run tells about itself: a report per round, a report per run, and who listens while it runs.

Everything here is a plain value. Nothing in a report comes from a single site's data, except the
fields named ``oracle``, ``compare`` and ``zeroed``, which exist in simulation only and are labelled
wherever they are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from secfed.algorithms.metrics.noise_error import is_error
from secfed.runs.frames import frame

PHASES = ("train", "protect", "carry", "server")
WAIT = "wait"  # beside the phases, between machines only: until enough hospitals were there to begin

Metrics = Mapping[str, float]

CLIPPED: Final = "clipped_share"  # of one update, by protection.bound; beside the oracle's numbers
_LEADING = ("roc_auc", "accuracy", "loss")


@dataclass(frozen=True)
class PerSite:
    """Sizes over the sites of one round, in bytes; no site's own size is kept."""

    mean: float  # mean over the sites that sent or received anything
    max: int  # the largest

    @classmethod
    def over(cls, sizes_bytes: Iterable[int]) -> PerSite:
        """Summarise; no sizes at all give zeros."""
        sizes = list(sizes_bytes)
        return cls(sum(sizes) / len(sizes), max(sizes)) if sizes else cls(0.0, 0)


@dataclass(frozen=True)
class SiteSpent:
    """What one site's data set spent."""

    site: str
    epsilon: float  # spent so far, at the study's delta
    limit: float | None  # what its budget allows; None for no limit
    refused: int  # rounds that the budget refused


@dataclass(frozen=True)
class PrivacyReport:
    """What a study under differential privacy spent, at every site."""

    unit: str  # what was clipped: record, group or site
    adjacency: str  # the relation that epsilon is stated for
    delta: float  # likewise
    accountant: str  # name and version
    dataset: str  # name of the data set
    sites: tuple[SiteSpent, ...]
    unprotected: tuple[str, ...]  # fields that left in sums without noise
    weak_delta: tuple[str, ...] = ()  # sites with so many records that delta is 1 / records or more
    engines: tuple[str, ...] = ()  # that clipped records in local steps, at any site
    words: Mapping[str, str] = field(default_factory=dict)  # what fields hold, as the algorithm says

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **{name: getattr(self, name) for name in ("unit", "adjacency", "delta", "accountant", "dataset")},
            "sites": {
                one.site: {"epsilon": one.epsilon, "limit": one.limit, "refused_rounds": one.refused}
                for one in self.sites
            },
            "unprotected": list(self.unprotected),
            **({"weak_delta": list(self.weak_delta)} if self.weak_delta else {}),
            **({"engines": list(self.engines)} if self.engines else {}),
        }


@dataclass(frozen=True)
class Zeroed:
    """What one site added zeros for because its local work failed; only a simulation knows."""

    site: str
    contributions: int  # how many of them lack something
    first: str  # what failed first, in words

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"contributions": self.contributions, "first": self.first}


@dataclass(frozen=True)
class RoundReport:
    """What one round did.

    Metrics of round r's model are summed together with the contributions of round r + 1, so a report
    is first made without them and completed later (:meth:`completed`). They need not come all at once.
    """

    round: int  # counted from 1
    survivors: tuple[str, ...]  # sites whose contribution is in a sum of the round
    asked: tuple[str, ...]  # sites that were asked
    metrics: Metrics | None  # of the model after this round; None while they are not known
    bytes_up_per_site: PerSite  # what sites sent
    bytes_down_per_site: PerSite  # what sites received
    # wall seconds by phase; keys from :data:`PHASES`, and :data:`WAIT` where anybody waited
    seconds: Mapping[str, float]
    attempts: int = 1  # masking attempts over the round's exchanges; more than exchanges means retries
    # why the round was given up, None if it was not. Of a round with several exchanges, those that were
    # finished before have moved the model; the one that was given up has not.
    aborted: str | None = None
    drops: tuple[tuple[str, str], ...] = ()  # (site, stage) of every dropout seen
    # which site was the first to give up, and why; only a simulation knows, and run.json does not say it
    gave_up: str | None = None

    @property
    def busy_s(self) -> float:
        """Wall seconds of work, without those that passed until enough hospitals were there."""
        return sum(seconds for phase, seconds in self.seconds.items() if phase != WAIT)

    def completed(self, found: Metrics) -> RoundReport:
        """The report with the metrics that are known by now; the same object if none is new."""
        if found == self.metrics:  # most often, and soon told
            return self
        if self.metrics is not None and _same({**self.metrics, **found}, self.metrics):
            return self
        return replace(self, metrics={**(self.metrics or {}), **found})

    def row(self) -> dict[str, object]:
        """The round as a row of a table, by column."""
        return {
            **(self.metrics or {}),
            "survivors": len(self.survivors),
            "asked": len(self.asked),
            "attempts": self.attempts,
            "up_bytes_per_site": self.bytes_up_per_site.mean,
            "down_bytes_per_site": self.bytes_down_per_site.mean,
            **{f"{phase}_s": seconds for phase, seconds in self.seconds.items()},
            "aborted": self.aborted,
        }

    def to_json(self) -> dict[str, Any]:
        """One element of ``rounds`` in run.json."""
        return {
            "round": self.round,
            "metrics": numbers(self.metrics or {}),
            "survivors": list(self.survivors),
            "asked": list(self.asked),
            "bytes_up_per_site": self.bytes_up_per_site.mean,
            "bytes_up_per_site_max": self.bytes_up_per_site.max,
            "bytes_down_per_site": self.bytes_down_per_site.mean,
            "bytes_down_per_site_max": self.bytes_down_per_site.max,
            "seconds": numbers(self.seconds),
            "attempts": self.attempts,
            "aborted": self.aborted,
            "drops": [{"site": site, "stage": stage} for site, stage in self.drops],
        }


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison, both measured on the same held-out records."""

    where: str  # whose held-out records: a site, or ``mean`` over the sites
    federated: Metrics  # metrics of the federated model there
    other: Metrics  # metrics of the model it is compared with


@dataclass(frozen=True)
class Comparison:
    """The federated model beside another way of training. Simulation only: it looks at single sites."""

    other: str  # what it is compared with, for example ``alone``
    rows: tuple[ComparisonRow, ...]  # one per site, and ``mean`` last

    def to_json(self) -> dict[str, Any]:
        """The value of ``compare`` in run.json."""
        rows = [
            {"where": r.where, "federated": numbers(r.federated), self.other: numbers(r.other)}
            for r in self.rows
        ]
        return {"label": "oracle", "other": self.other, "rows": rows}


@dataclass(frozen=True, repr=False)
class RunReport:
    """What a whole run did: the content of run.json. Printed, it is in short."""

    study: str  # the study's name
    algorithm: str
    protection: str  # ``plain``, ``masked``, ``closed`` or ``encrypted``
    sites: tuple[str, ...]  # ids of the enrolled sites
    rounds: tuple[RoundReport, ...]  # one report per round, in order
    final: Metrics  # metrics of the final model, from sums; empty if it was not measured
    saw: str  # one sentence: what the aggregator saw (``aggregator_saw.py``)
    initial: Metrics | None = None  # metrics of the initial model, from sums, if they were measured
    # numbers that need single sites; computed outside the protocol, simulation only
    oracle: Metrics | None = None
    compare: Comparison | None = None  # the comparison that was asked for; simulation only
    privacy: PrivacyReport | None = None  # what was spent; simulation only
    closing_aborted: str | None = None  # why the closing evaluation was given up; None if it was not
    start: str | None = None  # digest of the model that the study began with; None where the seed decided
    kept_round: int | None = None  # whose model was kept, where the study chooses by a metric
    stopped_after: int | None = None  # the round that ended training early
    zeroed: tuple[Zeroed, ...] = ()  # sites whose local work failed, and added zeros; simulation only
    chance: Metrics = field(default_factory=dict)  # what guessing reaches, where that is known; for figures
    machine: Mapping[str, Any] | None = None  # what it ran on (``machine.py``)

    def __repr__(self) -> str:
        hospitals, rounds = len(self.sites), len(self.rounds)
        shown = ", ".join(f"{name} {self.final[name]:.4f}" for name in ordered_metrics([self.final]))
        title = f"{self.study}: {self.algorithm}, {self.protection}, {hospitals} hospitals, {rounds} rounds"
        return f"{title}\nFinal model: {shown or 'not measured'}\n{self.saw}"

    @property
    def last_measured(self) -> tuple[int, Metrics] | None:
        """The newest model that was measured: after which round (0: none), and its metrics."""
        known = [(0, self.initial), *((report.round, report.metrics) for report in self.rounds)]
        return next(((number, metrics) for number, metrics in reversed(known) if metrics), None)

    def frame(self) -> Any:
        """A pandas frame with a row per round: metrics, survivors, bytes, seconds, what was given up.

        Round 0 is the model before training. ConfigError without pandas.
        """
        rows: dict[int, Mapping[str, object]] = {0: self.initial} if self.initial else {}
        rows |= {report.round: report.row() for report in self.rounds}
        return frame(rows, "round", whole=("survivors", "asked", "attempts"))

    def sites_frame(self) -> Any:
        """A pandas frame with a row per site: rounds in a sum, epsilon, failures, comparisons.

        What only a simulation knows. ConfigError without pandas.
        """
        rows: dict[str, dict[str, object]] = {
            site: {"rounds_in_sum": sum(site in report.survivors for report in self.rounds)}
            for site in self.sites
        }
        for spent in self.privacy.sites if self.privacy else ():
            rows[spent.site] |= {"epsilon": spent.epsilon, "epsilon_limit": spent.limit}
        for failed in self.zeroed:
            rows[failed.site]["failed_contributions"] = failed.contributions
        if self.compare is not None:
            for row in self.compare.rows:
                for way, metrics in (("federated", row.federated), (self.compare.other, row.other)):
                    named = {f"{way}_{name}": value for name, value in metrics.items()}
                    rows.get(row.where, {}).update(named)  # the mean has no row
        return frame(rows, "site", whole=("failed_contributions",))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready content of run.json; a number that is not finite becomes null."""
        content: dict[str, Any] = {
            "study": self.study,
            "algorithm": self.algorithm,
            "protection": self.protection,
            "sites": list(self.sites),
            "rounds": [report.to_json() for report in self.rounds],
            "final": numbers(self.final),
            "aggregator_saw": self.saw,
        }
        optional = {
            "start_sha256": self.start,
            "kept_round": self.kept_round,
            "stopped_after": self.stopped_after,
            "closing_aborted": self.closing_aborted,
            "privacy": self.privacy and self.privacy.to_json(),
            "zeroed": {one.site: one.to_json() for one in self.zeroed} or None,
            "initial": None if self.initial is None else numbers(self.initial),
            "oracle": None if self.oracle is None else numbers(self.oracle),
            "compare": self.compare and self.compare.to_json(),
            "machine": self.machine,
        }
        return content | {name: value for name, value in optional.items() if value is not None}


class Observer:
    """Listens to a run. Called in the run's own thread; it must be quick and must not raise.

    Override what is of interest.
    """

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """The run begins."""

    def stage(self, round_number: int, exchange: str, stage: str, done: int, total: int) -> None:
        """Progress within a round: ``done`` of ``total`` sites have finished this stage."""

    def round_finished(self, report: RoundReport) -> None:
        """A round is over; called again with the same round number once its metrics are known."""

    def round_kept(self, report: RoundReport) -> None:
        """A round that was finished before this start of the run, which was told of it then."""
        self.round_finished(report)

    def finished(self, report: RunReport) -> None:
        """The run is over."""


SilentObserver = Observer


class CallingObserver(Observer):
    """Gives every report of a round to a function."""

    def __init__(self, function: Callable[[RoundReport], None]) -> None:
        self._function = function

    def round_finished(self, report: RoundReport) -> None:
        """Call it: again with the same round number once more metrics are known."""
        self._function(report)


class Observers(Observer):
    """Tells several observers, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self._all = observers

    def started(self, study: str, sites: Sequence[str], rounds: int) -> None:
        """Tell each."""
        for one in self._all:
            one.started(study, sites, rounds)

    def stage(self, round_number: int, exchange: str, stage: str, done: int, total: int) -> None:
        """Tell each."""
        for one in self._all:
            one.stage(round_number, exchange, stage, done, total)

    def round_finished(self, report: RoundReport) -> None:
        """Tell each."""
        for one in self._all:
            one.round_finished(report)

    def round_kept(self, report: RoundReport) -> None:
        """Tell each."""
        for one in self._all:
            one.round_kept(report)

    def finished(self, report: RunReport) -> None:
        """Tell each."""
        for one in self._all:
            one.finished(report)


def complete(reports: dict[int, RoundReport], metrics: Mapping[int, Metrics], observer: Observer) -> None:
    """Complete the reports of rounds whose metrics a later sum brought, and tell the observer of each."""
    for number, found in metrics.items():
        known = reports.get(number)
        if known is None:
            continue
        completed = known.completed(found)
        if completed is not known:
            reports[number] = completed
            observer.round_finished(completed)


class _Server(Protocol):
    @property
    def stopped(self) -> int | None: ...

    def kept(self, rounds: int) -> int: ...


def chosen_round(server: _Server, rounds: int) -> dict[str, Any]:
    """What a report says of a study that ended early, or that kept another model than the last."""
    stopped = server.stopped
    kept, last = server.kept(rounds), rounds if stopped is None else stopped
    chosen = {"kept_round": kept} if kept != last else {}
    return chosen if stopped is None else {**chosen, "stopped_after": stopped}


def ordered_metrics(reports: Iterable[Metrics | None]) -> list[str]:
    """Every metric that occurs: what people look at first, then others as they come, further losses last.

    Errors of metrics are left out: they are shown beside their metric.
    """
    named = dict.fromkeys(name for metrics in reports for name in metrics or {})
    names = [name for name in named if not is_error(name)]

    def place(name: str) -> int:
        return _LEADING.index(name) if name in _LEADING else len(_LEADING) + name.endswith("loss")

    return sorted(names, key=place)


def _same(first: Metrics, second: Metrics) -> bool:
    # An undefined metric (NaN) equals itself here: a report must not count as new because of it.
    return set(map(repr, first.items())) == set(map(repr, second.items()))


def numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """Values as run.json holds them."""
    # JSON has no NaN or infinity; an undefined metric (an AUC over one class) is null.
    return {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
