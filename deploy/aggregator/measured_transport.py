"""What carries a run's messages between machines: waits for sites, measures, tells what happens.

Security: nothing here is about what a site sent; only who answered, when, and how many bytes. Of a refusal
the transcript gets a code of :mod:`secfed.wire.refusal_codes`, never words of the site's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from secfed.crypto.codec import Buffer
from secfed.deploy.aggregator.standstill import BEGINNINGS, Refusal
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport.dispatch import StageDispatcher, Watcher
from secfed.deploy.transport.progress import ANSWERS, ARRIVALS, Waits
from secfed.deploy.transport.signals import Stopper, StudyPaused
from secfed.deploy.transport.study_server import Presence, StudyServer
from secfed.errors import PolicyRefused
from secfed.protection.interface import SiteId
from secfed.records.transcript import REFUSED, Log
from secfed.runs.run_report import WAIT, Observer, PerSite, RoundReport
from secfed.server.coordinator import RoundOutcome
from secfed.wire.refusal_codes import recognised
from secfed.wire.transport import OnReply

Tell = Callable[..., None]  # tell("event", name=value, ...): for the operator's log

_LOOK_S: Final = 1.0
_SAYS_S: Final = 10.0  # within which a hospital that refused says that it takes no part now


@dataclass(eq=False)
class MeasuredTransport(Watcher):
    """Carrier of a :class:`~secfed.deploy.aggregator.run.CentralRun` between machines."""

    server: StudyServer
    log: Log
    observer: Observer
    tell: Tell
    stopper: Stopper
    _: KW_ONLY
    deadline_s: float  # that sites have for a step
    quorum: int  # no exchange begins before so many of its sites are there,
    needed_of: Callable[[int], int] = lambda asked: asked  # or so many of those that it asks
    silent_s: float  # a site without a sign of life for so long counts as missing
    wait_for_result: bool  # whether sites do lasting work on a result (they open the sum)
    rounds: int | None = None  # of the study, for the operator
    result_s: float = 60.0  # that sites have for a result that is only told
    slow_s: float = 30.0  # the operator is told whom a step waits for when nothing has come for so long
    after_step: Callable[[], None] = lambda: None
    gives_way: Callable[[float], bool] = lambda _waited_s: False  # asked while an exchange waits to begin
    begins: bool = True  # whether what is asked next opens a stage, and may have to wait for the quorum

    def __post_init__(self) -> None:
        self._link = StageDispatcher(self.server, self._deadline_of, silent_s=self.silent_s, watcher=self)
        self._open: set[SiteId] = set()  # asked in this step, and heard nothing of
        self._answered = 0  # of those asked; who refused or is missing is in neither
        self._since_s = time.monotonic()  # of the last news
        self._named: frozenset[SiteId] = frozenset()  # whom the operator was last told of
        self.start_round(1)

    def _deadline_of(self, stage: str) -> float:
        is_told_only = stage == "result" and not self.wait_for_result
        return min(self.deadline_s, self.result_s) if is_told_only else self.deadline_s

    def start_round(self, number: int) -> None:
        """Forget the last round's dropouts and measurements."""
        self.round = number
        self._gone: dict[SiteId, str] = {}
        self.refusals: dict[SiteId, Refusal] = {}  # the last of every site in this round
        self._seconds = {"train": 0.0, "protect": 0.0, "carry": 0.0, WAIT: 0.0}
        self.server.take_counts()

    def ask(self, stage: str, requests: Mapping[SiteId, Buffer], on_reply: OnReply) -> None:
        """Carry one step."""
        inside = 0.0

        def shielded(site: SiteId, reply: Buffer) -> None:
            nonlocal inside
            start = time.perf_counter()
            with self.stopper.working():
                on_reply(site, reply)
            inside += time.perf_counter() - start
            self._open.discard(site)
            self._answered += 1

        with self.stopper.waiting():
            start = time.perf_counter()
            if self.begins and stage in BEGINNINGS:
                self._wait_for_quorum(requests)
                there = time.perf_counter()
                self._seconds[WAIT] += there - start
                start = there
            self._open, self._answered, self._named = set(requests), 0, frozenset()
            try:
                self._link.ask(stage, requests, shielded)
            finally:
                self.server.waits_for(Waits())
        phase = "train" if stage == "train" else "carry"
        self._seconds[phase] += time.perf_counter() - start - inside
        self.after_step()

    def _wait_for_quorum(self, requests: Mapping[SiteId, Buffer]) -> None:
        """Wait until enough sites are there: rounds that must fail are not begun."""
        needed = min(self.quorum, len(requests), self.needed_of(len(requests)))
        since_s = time.monotonic()
        told: tuple[tuple[SiteId, ...], dict[SiteId, str]] | None = None
        while True:
            if self.gives_way(time.monotonic() - since_s):
                raise StudyPaused("The study is put aside", remedy="secfed consortium resume STUDY")
            there = self._link.wait_for(tuple(requests), needed, _LOOK_S, within_s=self.silent_s)
            if len(there) >= needed:
                if told is not None:
                    self.tell("quorum", sites=list(there))
                return
            self.server.waits_for(Waits(ARRIVALS, len(there), needed))
            why = self._why(site for site in requests if site not in there)
            states = self._absent(requests)
            found = there, states
            if found != told:
                self.tell(
                    "waiting", needed=needed, sites=list(there), **self._place(), why=why, states=states
                )
                told = found

    def progress(self, stage: str, done: int, asked: int) -> None:
        """Tell the observer, and sites that ask, how many have answered."""
        self._since_s = time.monotonic()
        self.server.waits_for(Waits(ANSWERS, self._answered, self._answered + len(self._open)))
        self.observer.stage(self.round, "", stage, done, asked)

    def idle(self, stage: str) -> None:
        """Tell the operator, once for each set of sites, whom a step waits for."""
        waiting = frozenset(self._open)
        if not waiting or waiting == self._named or time.monotonic() - self._since_s < self.slow_s:
            return
        self._named = waiting
        facts = {"answered": self._answered, "asked": self._answered + len(waiting)}
        why = self._why(sorted(waiting))
        self.tell("slow", **self._place(), stage=stage, **facts, sites=sorted(waiting), why=why)

    def _place(self) -> dict[str, Any]:
        return {"round": self.round, "rounds": self.rounds}

    def _why(self, sites: Iterable[SiteId]) -> dict[SiteId, str]:
        """What the link sees of sites that are waited for."""
        seen = self.server.presence()
        return {site: _reason(seen[site], self.silent_s) for site in sites if site in seen}

    def failed(self, sites: Collection[SiteId]) -> Collection[SiteId]:
        """Those of sites that refused which say now that something there has to be put right first.

        An agent says so as soon as it has refused, so this waits a moment for the last of them.
        """
        end_s = time.monotonic() + _SAYS_S
        with self.stopper.waiting():
            while True:
                found = [site for site, state in self._absent(sites).items() if state == Absence.FAILED]
                if len(found) == len(sites) or time.monotonic() >= end_s:
                    return found
                time.sleep(0.1)

    def _absent(self, sites: Iterable[SiteId]) -> dict[SiteId, str]:
        """In one word, why sites take no part now: those that say so."""
        seen = self.server.presence()
        found = {site: seen[site].absence for site in sites if site in seen}
        return {site: str(state) for site, state in found.items() if state is not None}

    def refused(self, stage: str, site: SiteId, kind: str, reason: str) -> None:
        """Record a refusal, and tell the operator."""
        self._gone.setdefault(site, stage)
        kind, reason = recognised(kind, reason)
        self.refusals[site] = Refusal(stage, kind, reason)
        self._open.discard(site)
        told: dict[str, Any] = {"round": self.round, "site": site, "stage": stage, "reason": reason}
        with self.stopper.working():
            self.log.append(REFUSED, told)
        self.tell("refused", **told)

    def missing(self, stage: str, site: SiteId) -> None:
        """Tell the operator."""
        self._gone.setdefault(site, stage)
        self._open.discard(site)
        self.tell("missing", round=self.round, site=site, stage=stage)

    def report(self, outcome: RoundOutcome, wall_s: float) -> RoundReport:
        """What the round that just ended came to, without metrics and without who was asked.

        ``carry`` is the time from request to reply: the way there and back, and the sites' protecting.
        """
        up, down = self.server.take_counts()
        return RoundReport(
            round=outcome.round,
            survivors=outcome.survivors,
            asked=(),
            metrics=None,
            bytes_up_per_site=PerSite.over(size for size in up.values() if size),
            bytes_down_per_site=PerSite.over(size for size in down.values() if size),
            seconds={**self._seconds, "server": max(0.0, wall_s - sum(self._seconds.values()))},
            attempts=sum(summed.spec.attempt + 1 for summed in outcome.sums),
            aborted=outcome.aborted.message if outcome.aborted else None,
            drops=tuple(self._gone.items()),
        )


def _reason(seen: Presence, silent_s: float) -> str:
    """Why a site is waited for, as far as the link can see."""
    if seen.absence is not None:
        said = (seen.declined or "").removeprefix(f"{PolicyRefused.__name__}: ")
        why = "; there, secfed agent status says why" if seen.absence is Absence.FAILED else ""
        return f"{seen.absence}: {said}{why}"
    if seen.silent_s is None:
        return "has never called"
    if not seen.calling and seen.silent_s > silent_s:
        return f"no sign of life for {seen.silent_s:.0f} s"
    return f"its agent is there, and {'at work' if seen.serving else 'opens the study'}"


class SiteVersions:
    """Adds the versions that hospitals say they run to events, and tells of those that differ.

    All parties of a study compute the model's shape, the noise and the masks themselves, so they should run
    the same version. What a hospital says is a name for the operator; nothing is decided by it.
    """

    def __init__(self, presence: Callable[[], Mapping[SiteId, Presence]], tell: Tell, own: str) -> None:
        self._presence, self._tell, self._own = presence, tell, own
        self._warned: set[SiteId] = set()

    def tell(self, event: str, **facts: Any) -> None:
        """Pass an event on; one that lists sites also says what they run."""
        if "sites" in facts:
            known = self._presence()
            said = {site: known[site].software for site in facts["sites"] if site in known}
            facts["software"] = {site: software for site, software in said.items() if software}
        self._tell(event, **facts)
        self.look()

    def look(self) -> None:
        """Warn once of each site that says it runs another version."""
        for site, seen in self._presence().items():
            if seen.software not in ("", self._own) and site not in self._warned:
                self._warned.add(site)
                self._tell("version", site=site, software=seen.software, own=self._own)
