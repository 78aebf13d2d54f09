"""One round of a study whose sums the sites open, at an aggregator that cannot read what it sums.

    expected state -> local update -> summands -> fixed point -> protect -> carry -> sum -> carry -> open
    -> totals -> server step (at every site) -> signed state digest

Protect and open are to encrypt and decrypt, or to mask under a closing stream and to take it off. The
aggregator keeps past sums, as unreadable as they are, so that a site which was away can take them later. It
compares the digests of the sites' states; it never has a state itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from secfed.algorithms.framework.base import Algorithm
from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import (
    AnySum,
    KeyDelivery,
    KeyHello,
    KeyPackages,
    KeyRequest,
    StateView,
)
from secfed.crypto.encrypted.study_keys import check_hello, key_context
from secfed.crypto.identity import verify
from secfed.crypto.messages import DIGEST_BYTES
from secfed.errors import ProtocolError, RoundAborted
from secfed.protection.interface import SiteId
from secfed.protection.opened_at_sites import ExpectedState, OpenedAtSites
from secfed.records.transcript import Log
from secfed.server.coordinator import Keeper, RoundOutcome, StudyRun
from secfed.server.round import (
    Ask,
    Rules,
    attempt_sum,
    carry_step,
    check_contributors,
    drive,
    specify,
    too_few,
)
from secfed.storage import failpoints
from secfed.storage.atomic import write_durably
from secfed.wire.frames import Notice, Task
from secfed.wire.layout import Exchange, State
from secfed.wire.transport import OnReply


@dataclass
class SumStore:
    """The unreadable sums of a study, one file each: as unreadable to the aggregator as everything else."""

    folder: Path
    count: int = 0

    def append(self, summed: bytes) -> None:
        """Keep one more sum: on the disk, whole or not at all, when this returns."""
        failpoints.failpoint("aggregate: before a sum is stored")
        write_durably(self.folder / f"{self.count:06d}.sum", summed)
        failpoints.failpoint("aggregate: after a sum is stored")
        self.count += 1

    def read(self, index: int) -> bytes:
        """One sum."""
        return (self.folder / f"{index:06d}.sum").read_bytes()


class OpenedRounds(StudyRun):
    """One study at an aggregator that adds what it cannot read: it has no server program and no totals.

    Attributes:
        state: digest of the state that most sites have; zeros while unknown.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        rounds: int,
        protection: OpenedAtSites,
        rules: Rules,
        store: SumStore,
        ask: Ask,
        log: Log,
        keeper: Keeper | None = None,
    ) -> None:
        super().__init__(rounds, log, keeper)
        self._algorithm, self.protection, self.rules, self.store = algorithm, protection, rules, store
        self.ask = ask
        self.state, self.public_key = bytes(DIGEST_BYTES), b""
        if keeper is not None and keeper.state is not None:
            store.count = int(keeper.facts["sums"])
            self.state = bytes.fromhex(keeper.facts["state"])

    def _saved(self) -> tuple[State, Mapping[str, Any]]:
        return {}, {"sums": self.store.count, "state": self.state.hex()}

    def _round(self, number: int, outcome: RoundOutcome) -> None:
        """Run every exchange; where one is given up, the sites' states are those after the one before."""
        algorithm = self._algorithm
        for index, exchange in list(enumerate(algorithm.exchanges(number)))[self._first(number) :]:
            self._keep(number, index)
            members = algorithm.members(number, exchange, self.rules.asked)
            keyed = self.share_keys(members)
            ready = self.train(number, index, exchange, keyed)
            parts = algorithm.contributors(number, exchange)
            strangers = self.rules.of_exchange(algorithm, number, exchange).strangers(len(ready))
            check_contributors(number, exchange, parts, ready, strangers)
            summed, faults = self.sum_up(number, index, exchange, ready)
            # Before it is stored: every site would refuse it, now and whenever it catches up.
            check_contributors(number, exchange, parts, summed.result.survivors)
            self.store.append(summed.encode())
            states = self.publish(summed, keyed)
            more = {"states": states}
            self._record(outcome, summed, {**more, "faults": faults} if faults else more)
            if not states:
                raise RoundAborted(
                    f"round {number}, exchange {exchange.name!r}: no hospital could open the sum.",
                    remedy="see in the hospitals' logs why; where all of them refused it and have stopped, "
                    "the study has to be started again",
                )

    def share_keys(self, members: Sequence[SiteId]) -> list[SiteId]:
        """Bring the study key to members that lack it; the members that have it now.

        The site that holds the key is asked for it also where it is not a member of this cohort.
        """
        hellos: dict[SiteId, KeyHello] = {}
        context = key_context(
            self.rules.study, self.rules.roster, self.protection.form, self.protection.holder
        )
        hello_request = Notice(KeyRequest(()).encode()).encode()

        def on_hello(site: SiteId, reply: Buffer) -> None:
            hello = KeyHello.decode(reply)
            check_hello(hello, self.rules.roster, context)
            if hello.site == site:
                hellos[site] = hello

        self._ask(
            "keys", dict.fromkeys(dict.fromkeys([*members, self.protection.holder]), hello_request), on_hello
        )
        holding = [site for site in hellos if hellos[site].holds_key]
        lacking = tuple(hello for hello in hellos.values() if not hello.holds_key)
        if not lacking or self.protection.holder not in holding:
            return [site for site in members if site in holding]
        packed: list[KeyPackages] = []
        waiting = {hello.site for hello in lacking}
        request = Notice(KeyRequest(lacking).encode()).encode()
        self._ask(
            "keys", {self.protection.holder: request}, lambda _, r: packed.append(KeyPackages.decode(r))
        )
        for packages in packed:
            self.public_key = packages.public_key
            # Recipients are the holder's word: a site that asked for no key gets none, a stranger cannot.
            deliveries = {
                package.recipient: Notice(KeyDelivery(packages.public_key, package).encode()).encode()
                for package in packages.packages
                if package.recipient in waiting
            }
            self._ask("keys", deliveries, lambda site, _: holding.append(site))
        return [site for site in members if site in holding]

    def train(self, number: int, index: int, exchange: Exchange, members: Sequence[SiteId]) -> list[SiteId]:
        """Ask for the local work; sites that lag behind take the sums they missed first.

        One that does not take a sum is asked nothing more in this exchange: a silence costs a deadline.
        """
        views: dict[SiteId, StateView] = {}
        on_view = partial(self._take_view, views)
        asked = list(members)
        for _ in range(2):
            expected = ExpectedState(self.store.count, self.state).encode()
            task = Task(self.rules.study, number, index, exchange.name, expected).encode()
            self._ask("train", dict.fromkeys(asked, task), on_view)
            behind = {site: view.sums for site, view in views.items() if view.sums < self.store.count}
            if not behind:
                break
            views = {site: view for site, view in views.items() if site not in behind}
            for missing in range(min(behind.values()), self.store.count):
                if late := [site for site, sums in behind.items() if sums <= missing]:
                    taken: dict[SiteId, StateView] = {}
                    summed = Notice(self.store.read(missing)).encode()
                    self._ask("train", dict.fromkeys(late, summed), partial(self._take_view, taken))
                    for site in late:
                        if site not in taken or taken[site].sums <= missing:
                            del behind[site]
            asked = [site for site in members if site in behind]  # not who refused, or is silent
            on_view = partial(self._take_view, views)
        current = {site: view for site, view in views.items() if view.sums == self.store.count}
        self.state = _most_common(current)
        return [site for site in members if site in current and current[site].state_digest == self.state]

    def sum_up(
        self, number: int, index: int, exchange: Exchange, ready: list[SiteId]
    ) -> tuple[AnySum, list[str]]:
        """One sum, and which sites were at fault on the way.

        Where an upload answers the specification there is one attempt: an update that has left once never
        leaves again, and dropouts need no second one.

        Raises:
            RoundAborted: too few sites, or see :func:`attempt_sum`.
        """
        rules = self.rules.of_exchange(self._algorithm, number, exchange)
        if self.protection.traits.opened_by_shares:
            done = attempt_sum(number, index, exchange, self.state, ready, rules, self.ask)
            return self.protection.relayed(done.spec, done.session, self.rules.identity), list(done.faults)
        cohort = tuple(site for site in rules.roster.sites if site in ready)
        if missing := too_few(cohort, rules):
            raise RoundAborted(
                f"round {number}, exchange {exchange.name!r}: {missing}", remedy="wait for more sites"
            )
        spec = specify(number, index, exchange, 0, cohort, self.state, rules)
        session = self.protection.server(exchange, spec, rules.roster)
        drive(session, partial(carry_step, number, index, 0), self.ask, list(cohort))
        return self.protection.relayed(spec, session, self.rules.identity), []

    def publish(self, summed: AnySum, members: Sequence[SiteId]) -> dict[str, list[SiteId]]:
        """Hand the sum to every site with the key; which sites came to which state (hex digest)."""
        views: dict[SiteId, StateView] = {}
        notice = Notice(summed.encode()).encode()
        self._ask("result", dict.fromkeys(members, notice), partial(self._take_view, views))
        current = {site: view for site, view in views.items() if view.sums == self.store.count}
        self.state = _most_common(current)
        states: dict[str, list[SiteId]] = {}
        for site, view in sorted(current.items()):
            states.setdefault(view.state_digest.hex(), []).append(site)
        return states

    def _take_view(self, views: dict[SiteId, StateView], site: SiteId, reply: Buffer) -> None:
        view = StateView.decode(reply)
        study = self.rules.study.encode()
        public = self.rules.roster.public(site)
        verify(public, view.signature, labels.SIGN_STATE, study, view.body(), who=site)
        if view.site == site:
            views[site] = view

    def _ask(self, stage: str, requests: dict[SiteId, bytes], on_reply: OnReply) -> None:
        def guarded(site: SiteId, reply: Buffer) -> None:
            try:
                on_reply(site, reply)
            except ProtocolError:
                return  # a wrong reply is no reply

        self.ask(stage, requests, guarded)


def _most_common(views: dict[SiteId, StateView]) -> bytes:
    """The digest that most sites have; zeros for none."""
    counted = Counter(view.state_digest for view in views.values()).most_common(1)
    return counted[0][0] if counted else bytes(DIGEST_BYTES)
