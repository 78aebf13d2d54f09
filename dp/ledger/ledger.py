"""The privacy ledger: one per data set and site, written before any private step runs.

A signed hash chain with its own labels. :meth:`Ledger.spend` takes the lock, verifies the whole chain,
computes what every budget would stand at, refuses or appends, and returns once the entry is on the disk: a
crash leaves a budget spent for nothing, never a release that nobody paid for. The lock is held only during a
call, so several studies may use one data set. Budgets are recorded with every change.

Security: the chain shows changes, not a truncated or restored *older* file. Put :attr:`Ledger.head` into the
transcript of every round, and give a ledger what transcripts recorded (:mod:`secfed.dp.ledger.heads`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from secfed.crypto import labels
from secfed.crypto.identity import Identity
from secfed.dp.accounting.budget import Budget, Spent, Standing, standing
from secfed.dp.accounting.events import Event, to_value
from secfed.dp.accounting.interface import Accountant, Pld
from secfed.dp.ledger.heads import Recorded, lacking
from secfed.errors import BudgetExceeded, TranscriptError
from secfed.records.chain_file import ChainFile, Verified, torn_summary
from secfed.records.clock import checked_s, refuse_ahead, time_s
from secfed.records.hash_chain import OPENED, Chain, ChainType, Entry, canonical_json, verify_chain
from secfed.storage.file_lock import locked

LEDGER = ChainType("ledger", labels.LEDGER_CHAIN, labels.SIGN_LEDGER)

# Kinds of entries. OPENED comes from the chain itself.
BUDGETS = "budgets"  # the limits in force from here on
SPENT = "spent"  # one event, paid before it happened
REFUSED = "refused"  # an event that a budget did not cover
UNPROTECTED = "unprotected"  # fields that left in a sum without noise: by choice, or undeclared
RECOVERED = "recovered"  # an unfinished last line was dropped after a crash

_ANEW: Final = (
    "give the data set another name in policy.toml, with what is left of its budgets (docs/operators.md, "
    "back up and restore)"
)
_RESTORE: Final = f"put its newest copy back; if that is lost, {_ANEW}"
_SAME_RELEASE: Final = ("study", "round", "exchange", "event", "record_private")


class Ledger:
    """The ledger of one data set at one site; the file is created on first use, its folder must exist.

    The budgets come from the site's policy; an entry is never dated before the one above it, whatever the
    ``clock`` says (seconds since 1970). ``recorded`` is what transcripts recorded of the site's ledgers.
    ``TranscriptError``: the existing ledger does not verify, belongs to another site or data set, lacks a
    state that was recorded of it, or cannot be written. So does every later use: also of a file that was
    replaced by an older copy meanwhile.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        dataset: str,
        budgets: Sequence[Budget],
        *,
        accountant: Accountant | None = None,
        clock: Callable[[], float] = time.time,
        lock_timeout_s: float = 60.0,
        open_file: Callable[[Path], ChainFile] = ChainFile,
        recorded: Iterable[Recorded] = (),
    ) -> None:
        self.path, self.dataset, self.budgets = path, dataset, tuple(budgets)
        self._identity, self._accountant, self._clock = identity, accountant or Pld(), clock
        self._lock_timeout_s, self._open_file = lock_timeout_s, open_file
        self._recorded = tuple(one for one in recorded if one.dataset == dataset)
        self._newest: bytes | None = None  # head after the last use here
        self._verified: Verified | None = None  # what the last use verified
        self._read: dict[bytes, Spent] = {}  # by the hash of their entries: hundreds are read with each use
        with self._writing():
            pass  # verifies, opens and records the budgets

    def spend(
        self,
        event: Event,
        *,
        study: str,
        round_number: int,
        exchange: str,
        record_private: bool = False,
        release: str | None = None,
    ) -> Entry:
        """Pay for one event; it is on the disk when this returns. Only then may the step run.

        ``record_private``, for noise in the secure sum: what is summed was itself computed under record-level
        events that this ledger already paid for, so this event costs records nothing. ``release`` is the id
        of this very release; if it was paid before, the old entry is returned and nothing is spent: the work
        was cut off by a crash and is being done again.

        Raises:
            BudgetExceeded: nothing is spent; the refusal is recorded, once for each release.
            TranscriptError: nothing is spent: the ledger does not verify or cannot be written, its entries
                are dated ahead of the clock, or another event was paid under this release id.

        Security: doing paid work again is free only if at most one of its outcomes can ever leave. The
        caller owes that: the id commits to the broadcast and to the secret key of sampling and noise, the
        key is on the disk before the payment, and nothing leaves before the outcome is on the disk, too.
        """
        default = self._payment_id()
        release = release or default
        with self._writing() as (chain, entries):
            now_s = self._now_s(entries)
            body = {
                **_place(study, round_number, exchange),
                "event": to_value(event),
                "record_private": record_private,
                "time_s": now_s,
            }
            if release is not None:
                paid = _paid(self.path, entries, {**body, "release": release})
                if paid is not None:
                    return paid
                body["release"] = release
            self._refuse_ahead(entries)
            spent = [*self._spent_of(entries), Spent(event, now_s, record_private)]
            standings = self._standings(spent, now_s)
            over = [item for item in standings if item.exceeded]
            if over:
                refused = {**body, "budgets": [item.budget.to_value() for item in over]}
                if release is None or not _is_recorded(entries, refused):
                    chain.append(REFUSED, refused)
                raise self._exceeded(f"round {round_number}", study, over[0].budget)
            return chain.append(SPENT, {**body, "after": [item.to_value() for item in standings]})

    def check_study(self, study: str, whole: Iterable[Event] = ()) -> None:
        """Refuse now what a study would be refused for later; nothing is spent or recorded.

        Before its first payment that is ``whole``, all that it will pay here in any order: budgets have to
        carry it beside what was spent. Once it has paid, only payments decide. A payment that was refused
        last is asked again, until the budgets cover it because a period is over or the policy permits more.

        Raises:
            BudgetExceeded: they do not.
            TranscriptError: as of :meth:`spend`.
        """
        with self._writing() as (_, entries):
            self._refuse_ahead(entries)
            now_s = self._now_s(entries)
            own = [entry for entry in entries if entry.body.get("study") == study]
            if own and own[-1].kind == REFUSED:
                refused = replace(Spent.from_body(own[-1].body), time_s=now_s)
                self._check("the next payment", study, [*self._spent_of(entries), refused], now_s)
            spent = once_over(entries, study, whole, now_s)
            if spent is not None:
                self._check("the whole", study, spent, now_s)

    def _check(self, what: str, study: str, spent: Sequence[Spent], now_s: int) -> None:
        for item in self._standings(spent, now_s):
            if item.exceeded:
                raise self._exceeded(what, study, item.budget)

    def _payment_id(self) -> str | None:
        """The release id of a payment that is not given one."""
        return None

    def _note_id(self) -> str | None:
        """The release id of a note that is not given one."""
        return None

    def _spent_of(self, entries: Sequence[Entry]) -> list[Spent]:
        self._read = {
            entry.hash: self._read.get(entry.hash) or Spent.from_body(entry.body)
            for entry in entries
            if entry.kind == SPENT
        }
        return list(self._read.values())

    def _standings(self, spent: Sequence[Spent], now_s: int) -> list[Standing]:
        return [standing(budget, spent, now_s, self._accountant) for budget in self.budgets]

    def _exceeded(self, what: str, study: str, budget: Budget) -> BudgetExceeded:
        return BudgetExceeded(
            f"data set {self.dataset!r}: {what} of study {study!r} would exceed {budget.describe()}",
            remedy="leave the study, lower its privacy.epsilon, raise epsilon of [[data.budget]] in "
            "policy.toml, or wait until the period is over",
        )

    def spender(self, *, study: str, round_number: int, exchange: str) -> Callable[[Event], Entry]:
        """:meth:`spend` for one exchange, as private training wants it."""
        return lambda event: self.spend(event, study=study, round_number=round_number, exchange=exchange)

    def note_unprotected(
        self,
        fields: Sequence[str],
        *,
        study: str,
        round_number: int,
        exchange: str,
        values: int | None = None,
        release: str | None = None,
    ) -> Entry:
        """Record which fields leave in a sum without noise, as the study chose explicitly; once a release.

        ``values`` is how many numbers these fields are, together.
        """
        release = release or self._note_id()
        with self._writing() as (chain, entries):
            body = {**_place(study, round_number, exchange), "fields": list(fields)}
            if values is not None:
                body["values"] = values
            if release is not None:
                body["release"] = release
                for entry in entries:
                    if entry.kind == UNPROTECTED and entry.body.get("release") == release:
                        return entry
            return chain.append(UNPROTECTED, {**body, "time_s": self._now_s(entries)})

    def standings(self) -> tuple[Standing, ...]:
        """Where every budget stands now."""
        with self._writing() as (_, entries):
            return tuple(self._standings(self._spent_of(entries), self._now_s(entries)))

    @property
    def head(self) -> bytes:
        """Hash of the last entry: 32 bytes. Goes into the transcript of every round."""
        with self._writing() as (chain, _):
            return chain.head

    def _refuse_ahead(self, entries: Sequence[Entry]) -> None:
        refuse_ahead(self.path, entries, checked_s(self.path, self._clock()), _ANEW)

    def _now_s(self, entries: Sequence[Entry]) -> int:
        # A clock that was set back must not let an old entry look newer than a new one.
        return max([checked_s(self.path, self._clock()), *map(time_s, entries[-1:])])

    @contextmanager
    def _writing(self) -> Iterator[tuple[Chain, tuple[Entry, ...]]]:
        """The verified chain, ready to append to, while no other process can."""
        with locked(self.path, self._lock_timeout_s):
            if not self.path.exists():
                self._check_recorded(())  # before an empty one takes its place
            file = self._open_file(self.path)
            try:
                entries, torn = file.recover(
                    self._identity.public_bytes,
                    LEDGER,
                    owner=self._identity.name,
                    known=self._verified,
                    remedy=_RESTORE,
                )
                self._verified = file.verified
                self._check_recorded(entries)  # before anything is appended: that would hide the older copy
                chain = Chain(self._identity, LEDGER, sink=file.append, entries=entries)
                opening = {"owner": self._identity.name, "dataset": self.dataset}
                if not entries:
                    entries = (chain.append(OPENED, opening),)
                elif entries[0].body.get("dataset") != self.dataset:
                    message = f"{self.path}: opened for another data set"
                    raise TranscriptError(message, remedy="give each data set its own ledger")
                if torn:
                    entries = (*entries, chain.append(RECOVERED, self._dated(entries, torn_summary(torn))))
                limits = [budget.to_value() for budget in self.budgets]
                in_force = [entry.body["budgets"] for entry in entries if entry.kind == BUDGETS]
                if not in_force or in_force[-1] != limits:
                    entries = (*entries, chain.append(BUDGETS, self._dated(entries, {"budgets": limits})))
                try:
                    yield chain, entries
                finally:
                    self._newest = chain.head
            finally:
                file.close()

    def _check_recorded(self, entries: Sequence[Entry]) -> None:
        """Refuse a ledger that lacks what a transcript recorded, or what this process saw in it."""
        hashes = {entry.hash.hex() for entry in entries} if self._recorded else set()
        missing = [one for one in self._recorded if one.head not in hashes]
        if missing:
            raise TranscriptError(f"{self.path}: {lacking(missing)}", remedy=_RESTORE)
        if self._newest is not None and all(entry.hash != self._newest for entry in reversed(entries)):
            raise TranscriptError(
                f"{self.path}: it was replaced while it was in use, by an older copy or a second history",
                remedy=_RESTORE,
            )

    def _dated(self, entries: Sequence[Entry], body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "time_s": self._now_s(entries)}


def _place(study: str, round_number: int, exchange: str) -> dict[str, Any]:
    return {"study": study, "round": round_number, "exchange": exchange}


def _paid(path: Path, entries: Iterable[Entry], body: Mapping[str, Any]) -> Entry | None:
    """The entry that paid for this release already; TranscriptError if it paid for something else."""
    asked = {**body, "event": json.loads(canonical_json(body["event"]))}  # as an entry spells it
    for entry in entries:
        if entry.kind == SPENT and entry.body.get("release") == body["release"]:
            if any(entry.body.get(name) != asked[name] for name in _SAME_RELEASE):
                raise TranscriptError(
                    f"{path}: a release that was paid for as something else is being repeated",
                    remedy="remove the unfinished exchange in the state folder; it will not be contributed",
                )
            return entry
    return None


def _is_recorded(entries: Iterable[Entry], refused: Mapping[str, Any]) -> bool:
    """Whether this very refusal stands there already: who asks again and again must not fill the disk."""
    asked = {**json.loads(canonical_json(refused)), "time_s": 0}
    return any({**entry.body, "time_s": 0} == asked for entry in entries if entry.kind == REFUSED)


def has_paid(entries: Iterable[Entry], study: str) -> bool:
    """Whether a study has begun to pay from a ledger."""
    return any(entry.kind == SPENT and entry.body.get("study") == study for entry in entries)


def once_over(entries: Sequence[Entry], study: str, whole: Iterable[Event], now_s: int) -> list[Spent] | None:
    """All that will be spent when a study that pays ``whole`` is over; None if it has begun to pay.

    It counts as paid now, however long the study takes.
    """
    if has_paid(entries, study):
        return None
    return [*spent_of(entries), *(Spent(event, now_s) for event in whole)]


def spent_of(entries: Iterable[Entry]) -> list[Spent]:
    """What a ledger's entries spent, in order; TranscriptError if one cannot be read."""
    return [Spent.from_body(entry.body) for entry in entries if entry.kind == SPENT]


def verify(lines: Iterable[bytes], public_bytes: bytes, *, owner: str | None = None) -> tuple[Entry, ...]:
    """Check a ledger offline: chain and signatures; BrokenChain names the first bad line."""
    return verify_chain(lines, public_bytes, LEDGER, owner=owner)
