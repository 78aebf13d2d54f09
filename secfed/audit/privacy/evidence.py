"""What an audit report states: plain values, and nothing that is not in a signed record.

The field names are the keys of the report's JSON; :data:`SCHEMA_VERSION` changes with their meaning. Only
named keys of entries are copied.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final

from secfed.audit.party import Problem

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Amount:
    """Where one budget stands."""

    protects: str  # "record" or "site"
    limit: float | None  # epsilon that may be spent; None keeps account without a limit
    spent: float  # epsilon of everything counted, together; infinite if nothing bounds it
    left: float | None  # limit - spent, at least 0; None without a limit; epsilons compose, they do not add
    delta: float  # at which epsilon is stated
    period_days: int | None  # counts this many days up to the report; None counts everything ever
    adjacency: str | None  # the relation of neighbours; None if nothing was spent
    accountant: str | None  # which computed it; None if nothing was spent
    version: str | None  # of the accountant's library
    relies_on: str  # "local-noise", "sum-noise" (added in shares by several sites) or "nothing" (not spent)
    # Of members, at most, by a membership test with 1 % false alarms, after everything ever paid; None where
    # it is not the last standing.
    found: float | None = None
    # How often somebody is right, at most, who held both answers for equally likely; as above.
    guessed: float | None = None
    # Everything ever paid, of a budget that counts a period only: what was given away stays given away.
    ever: Amount | None = None

    @property
    def whole(self) -> Amount:
        """What it means rests on this: everything ever paid."""
        return self if self.ever is None else self.ever


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

    def spent_under(self, budget: Amount) -> float | None:
        """Epsilon of one budget after this payment; None where that budget was not in force."""
        for amount in self.after:
            same = (amount.protects, amount.delta, amount.period_days)
            if same == (budget.protects, budget.delta, budget.period_days):
                return amount.spent
        return None


@dataclass(frozen=True)
class StudySpend:
    """What one study spent at one ledger."""

    study: str
    rounds: str
    payments: int
    first_s: int
    last_s: int
    mechanisms: tuple[str, ...]
    alone: tuple[Amount, ...]  # what its payments cost by themselves; epsilons compose, they do not add


@dataclass(frozen=True)
class Bare:
    """Fields that left without noise, as the site noted it."""

    site: str
    dataset: str
    study: str
    exchange: str
    fields: tuple[str, ...]
    rounds: str
    times: int
    values: int | None = None  # how many numbers each time; None if an older version did not record it


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
    """What left one site in one exchange of one study."""

    site: str
    exchange: str
    fields: tuple[str, ...]  # names in the layout's order, empty if the transcript does not say
    sums: int  # how many sums the site was in
    rounds: str  # which
    cohort: tuple[int, int]  # smallest and largest number of sites in such a sum
    paid: int  # how many of these sums the ledger has a payment for
    bare: tuple[str, ...]  # fields that the ledger records as leaving without noise
    # "paid", "partly-paid", "bare" (all without noise, recorded), "none" (the study has no privacy),
    # "unknown" (the ledger or the settings are not here)
    privacy: str


@dataclass(frozen=True)
class ModelFacts:
    """The model that a study came to, as transcripts name it."""

    sha256: str  # of the file "model.safetensors"
    size_bytes: int  # of the file
    round: int  # last training round of which a sum is in it; 0 for the model that training began with
    sums: int  # sums that came before it, those of the closing evaluation included
    recorded_by: tuple[str, ...]  # whose transcripts name it
    files: tuple[str, ...]  # those here that are this model, byte for byte


@dataclass(frozen=True)
class StudyFacts:
    """One run of one study, from its transcripts."""

    name: str
    settings_recorded: bool  # whether a transcript states the settings; without it they are None
    algorithm: str | None
    protection: str | None
    rounds: int | None
    sites: int | None
    privacy: dict[str, Any] | None  # the study's "[privacy]"; None without privacy or if not recorded
    simulated: bool  # all sites ran in one process and the noise came from the study's seed
    roster_digest: str
    roster_sites: tuple[str, ...]
    parties: tuple[str, ...]  # whose transcripts are here
    sums: int  # finished sums, by the aggregator's transcript or, without it, the largest of a site's
    left: tuple[Left, ...]
    models: tuple[ModelFacts, ...] = ()  # that the study came to; more than one where sites missed its end
    start: str | None = None  # digest of the model that training began with; None if the seed decided
    source: str | None = None  # the study's data source; None if its settings are not beside its records
    columns: tuple[str, ...] = ()  # of the table that it reads, the label last; empty if it names none
    withheld: str = ""  # what statistics tell nowhere; "" of another algorithm, or if settings are not here


@dataclass(frozen=True)
class DecisionFact:
    """One entry of a decision log; what an entry of its kind does not say is empty or None."""

    line: int  # in the file
    time_s: int  # when it was recorded
    kind: str  # as :mod:`secfed.records.decision_state` names it
    study: str = ""  # its id, or what is known of it: only the name, or only the digest
    decided_s: int | None = None  # when a person decided
    number: int | None = None  # of the refusal, as in SECURITY.md; 0 for a message without a number
    text: str = ""  # of the refusal
    round: int | None = None  # of the exchange
    exchange: str = ""  # its name
    attempt: int | None = None  # of the exchange
    count: int | None = None  # refusals of this study with this number, this one included
    keys: tuple[str, ...] = ()  # what refused the study: keys of policy.toml, "roster" or "approval"
    policy: str = ""  # SHA-256 of policy.toml then
    roster: str = ""  # digest of the pinned roster then
    with_model: bool | None = None  # whether the site had the finished model
    of: str = ""  # kind of the entries that are left out
    entries: int | None = None  # how many were written, or missed
    by: str = ""  # who decided: the account on the hospital's machine, or who signed in there
    subjects: tuple[str, ...] = ()  # of each in `by`: the provider, its client and its lasting name for them


@dataclass(frozen=True)
class DecisionLogFacts:
    """One decision log that verifies."""

    site: str
    file: str
    head: str
    decisions: tuple[DecisionFact, ...]


@dataclass(frozen=True)
class FileFacts:
    """One file."""

    file: str
    kind: str  # "roster", "transcript", "ledger", "decision log" or "model"
    owner: str
    entries: int
    head: str  # the last entry's hash
    sha256: str
    verified: bool


@dataclass(frozen=True)
class RosterFacts:
    """A roster that signatures were checked against, with fingerprints to compare by telephone."""

    digest: str
    aggregator: str
    sites: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Verification:
    """The result of checking everything."""

    verified: bool
    pinned: bool
    recomputed: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    files: tuple[FileFacts, ...]
    rosters: tuple[RosterFacts, ...]
    unchecked: int = 0  # those of the problems that only say that a roster is missing

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
    secfed_build: str = ""  # digest of the code that made this report

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
