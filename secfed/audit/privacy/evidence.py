"""What an audit report states: plain values, and nothing that is not in a signed record.

The field names are the keys of the report's JSON; :data:`SCHEMA_VERSION` changes with their meaning.
Only named keys of entries are copied, so a value that does not belong into a record does not get into a
report either.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Amount:
    """Where one budget stands.

    Attributes:
        protects: ``record`` or ``site``.
        limit: epsilon that may be spent; None keeps account without a limit.
        spent: epsilon of everything counted, together; infinite if nothing bounds it.
        left: limit - spent, at least 0; None without a limit. Epsilons compose, so it is no sum to fill up.
        delta: at which epsilon is stated.
        period_days: counts this many days up to the report; None counts everything ever.
        adjacency: the relation of neighbours; None if nothing was spent.
        accountant: which computed it; None if nothing was spent.
        version: of the accountant's library.
        relies_on: ``local-noise`` (added at the site), ``sum-noise`` (added in shares by several sites) or
            ``nothing`` (nothing was spent).
    """

    protects: str
    limit: float | None
    spent: float
    left: float | None
    delta: float
    period_days: int | None
    adjacency: str | None
    accountant: str | None
    version: str | None
    relies_on: str


@dataclass(frozen=True)
class Payment:
    """One payment: its place, its event, and every budget after it."""

    line: int
    study: str
    round: int
    exchange: str
    time_s: int
    mechanism: str
    event: dict[str, Any]
    record_private: bool
    after: tuple[Amount, ...]


@dataclass(frozen=True)
class StudySpend:
    """What one study spent at one ledger.

    ``alone`` is what its payments cost by themselves; these numbers of several studies do not add up to the
    total, because epsilons compose.
    """

    study: str
    rounds: str
    payments: int
    first_s: int
    last_s: int
    mechanisms: tuple[str, ...]
    alone: tuple[Amount, ...]


@dataclass(frozen=True)
class Bare:
    """Fields that left without noise, by the study's explicit choice."""

    site: str
    dataset: str
    study: str
    exchange: str
    fields: tuple[str, ...]
    rounds: str
    times: int


@dataclass(frozen=True)
class RefusalFact:
    """Something that was refused or given up. ``what`` is ``budget``, ``message`` or ``round``."""

    what: str
    file: str
    line: int
    site: str
    study: str
    round: int | None
    stage: str
    reason: str
    time_s: int | None


@dataclass(frozen=True)
class LedgerFacts:
    """One ledger that verifies."""

    site: str
    dataset: str
    file: str
    entries: int
    head: str
    last_s: int | None
    recoveries: int
    limit_changes: int
    amounts: tuple[Amount, ...]
    studies: tuple[StudySpend, ...]
    payments: tuple[Payment, ...]


@dataclass(frozen=True)
class Left:
    """What left one site in one exchange of one study.

    Attributes:
        fields: names in the layout's order, empty if the transcript does not say.
        sums: how many sums the site was in.
        rounds: which.
        cohort: smallest and largest number of sites in such a sum.
        paid: how many of these sums the ledger has a payment for.
        bare: fields that the ledger records as leaving without noise.
        privacy: ``paid``, ``partly-paid``, ``bare`` (all without noise, recorded), ``none`` (the study has no
            privacy), ``unknown`` (the ledger or the settings are not here).
    """

    site: str
    exchange: str
    fields: tuple[str, ...]
    sums: int
    rounds: str
    cohort: tuple[int, int]
    paid: int
    bare: tuple[str, ...]
    privacy: str


@dataclass(frozen=True)
class ModelFacts:
    """The model that a study came to, as transcripts name it.

    Attributes:
        sha256: of the file ``model.safetensors``.
        size_bytes: of the file.
        round: last training round of which a sum is in it; 0 for the model that training began with.
        sums: sums that came before it, those of the closing evaluation included.
        recorded_by: whose transcripts name it.
        files: those here that are this model, byte for byte.
    """

    sha256: str
    size_bytes: int
    round: int
    sums: int
    recorded_by: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class StudyFacts:
    """One run of one study, from its transcripts.

    Attributes:
        settings_recorded: whether a transcript states the settings; without it they are None.
        privacy: the study's ``[privacy]``; None without privacy or if not recorded.
        simulated: all sites ran in one process and the noise came from the study's seed.
        parties: whose transcripts are here.
        sums: finished sums, by the aggregator's transcript or, without it, the largest of a site's.
        models: that the study came to; more than one where sites missed its end.
        start: digest of the model that training began with; None if the seed decided, or if not recorded.
    """

    name: str
    settings_recorded: bool
    algorithm: str | None
    protection: str | None
    rounds: int | None
    sites: int | None
    privacy: dict[str, Any] | None
    simulated: bool
    roster_digest: str
    roster_sites: tuple[str, ...]
    parties: tuple[str, ...]
    sums: int
    left: tuple[Left, ...]
    models: tuple[ModelFacts, ...] = ()
    start: str | None = None


@dataclass(frozen=True)
class DecisionFact:
    """One entry of a decision log; what an entry of its kind does not say is empty or None.

    Attributes:
        line: in the file.
        time_s: when it was recorded.
        kind: as :mod:`secfed.records.decision_state` names it.
        study: its id; only the name where a person decided about a name, only the digest where the study has
            not asked.
        decided_s: when a person decided.
        number: of the refusal, as SECURITY.md numbers them; 0 for a message that has no number.
        text: of the refusal.
        round: of the exchange.
        exchange: its name.
        attempt: of the exchange.
        count: refusals of this study with this number, this one included.
        keys: what refused the study: keys of policy.toml, ``roster`` or ``approval``.
        policy: SHA-256 of policy.toml then.
        roster: digest of the pinned roster then.
        with_model: whether the site had the finished model.
        of: kind of the entries that are left out.
        entries: how many were written, or missed.
    """

    line: int
    time_s: int
    kind: str
    study: str = ""
    decided_s: int | None = None
    number: int | None = None
    text: str = ""
    round: int | None = None
    exchange: str = ""
    attempt: int | None = None
    count: int | None = None
    keys: tuple[str, ...] = ()
    policy: str = ""
    roster: str = ""
    with_model: bool | None = None
    of: str = ""
    entries: int | None = None


@dataclass(frozen=True)
class DecisionLogFacts:
    """One decision log that verifies."""

    site: str
    file: str
    head: str
    decisions: tuple[DecisionFact, ...]


@dataclass(frozen=True)
class FileFacts:
    """One file.

    ``kind`` is ``roster``, ``transcript``, ``ledger``, ``decision log`` or ``model``; ``head`` is the last
    entry's hash.
    """

    file: str
    kind: str
    owner: str
    entries: int
    head: str
    sha256: str
    verified: bool


@dataclass(frozen=True)
class ProblemFact:
    """One thing that is wrong."""

    file: str
    line: int | None
    why: str


@dataclass(frozen=True)
class RosterFacts:
    """A roster that signatures were checked against, with fingerprints to compare by telephone."""

    digest: str
    aggregator: str
    sites: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Verification:
    """The result of checking everything.

    ``unchecked`` counts those of the problems that only say that a roster is missing.
    """

    verified: bool
    pinned: bool
    recomputed: int
    problems: tuple[ProblemFact, ...]
    notes: tuple[str, ...]
    files: tuple[FileFacts, ...]
    rosters: tuple[RosterFacts, ...]
    unchecked: int = 0

    @property
    def is_only_unchecked(self) -> bool:
        """Whether nothing is known to be wrong, and files could not be checked for want of a roster."""
        return 0 < self.unchecked == len(self.problems)


@dataclass(frozen=True)
class Report:
    """Everything in an audit report."""

    made_s: int
    secfed_version: str
    folders: tuple[str, ...]
    verification: Verification
    ledgers: tuple[LedgerFacts, ...]
    studies: tuple[StudyFacts, ...]
    bare: tuple[Bare, ...]
    refusals: tuple[RefusalFact, ...]
    decisions: tuple[DecisionLogFacts, ...] = ()
    named_rosters: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites with a ledger, a transcript or a decision log here, sorted."""
        owners = {one.site for one in self.ledgers} | {one.site for one in self.decisions}
        return tuple(sorted(owners | {left.site for study in self.studies for left in study.left}))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, with ``schema_version`` first; an infinite epsilon is ``"unbounded"``."""
        return {"schema_version": SCHEMA_VERSION, **_plain(dataclasses.asdict(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "unbounded"
    return value


def ranges(numbers: set[int]) -> str:
    """``1-4, 7`` for {1, 2, 3, 4, 7}."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def as_text(value: object) -> str | None:
    """Text of an entry, or None."""
    return value if isinstance(value, str) else None


def as_int(value: object) -> int | None:
    """A whole number of an entry, or None."""
    return value if type(value) is int else None
