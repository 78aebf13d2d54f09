"""Real sites under masked protection, and an aggregator that may ask whom it likes for what it likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from secfed.algorithms.framework.base import Algorithm
from secfed.config.cohort_rules import min_cohort, threshold
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.errors import SecfedError
from secfed.protection.registry import MASKED
from secfed.server.round import RoundSum, Rules, run_round, sum_securely, train
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.study.build import build
from secfed.study.limits import limits_of, study_id
from secfed.study.study import Study
from secfed.study.warm_start import initial_server
from secfed.wire.frames import encode_state
from secfed.wire.transport import OnReply


class Unread:
    """A transcript that nobody reads."""

    def append(self, kind: str, body: Mapping[str, object]) -> None:
        """Nothing is kept."""


class Hospitals:
    """Real sites with the limits that the study gives them, and an aggregator that may ask for anything."""

    def __init__(self, made: Study) -> None:
        self.algorithm: Algorithm = build(made)
        names = self.algorithm.setting.sites
        aggregator = Identity.generate("aggregator")
        people = {name: Identity.generate(name) for name in names}
        roster = Roster.of(aggregator, list(people.values()))
        self.journals = [Journal() for _ in names]
        self.programs = {name: self.algorithm.site(name) for name in names}
        self.sites = {
            name: build_site(
                Terms(made, self.algorithm, tuple(names)),
                Member(people[name], roster),
                self.programs[name],
                limits=limits_of(made, len(names)),
                draws=Draws.seeded(0, name),
                store=NullStore(journal, study_id(made)),
                services=Services(Unread()),
            )
            for name, journal in zip(names, self.journals, strict=True)
        }
        self.rules = Rules(
            study=study_id(made),
            identity=aggregator,
            roster=roster,
            protection=MASKED,
            threshold=partial(threshold, made.protection, len(names)),
            min_cohort=min_cohort(made.protection, len(names)),
        )
        self.server = initial_server(self.algorithm, None)
        self.refusals: list[tuple[str, str, str]] = []
        self.silent: dict[str, str] = {}

    def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        for site, message in requests.items():
            if self.silent.get(site) == stage:
                continue
            try:
                reply = self.sites[site].handle(message)
            except SecfedError as error:
                self.refusals.append((stage, site, error.message))
            else:
                on_reply(site, reply)

    def task(self, number: int, index: int, cohort: Sequence[str], state: bytes) -> list[str]:
        """Ask these sites for their work on a broadcast; those that have done it."""
        exchange = self.algorithm.exchanges(number)[index]
        return train(number, index, exchange, state, cohort, self.rules, self.ask)

    def broadcast(self, number: int, index: int) -> bytes:
        return encode_state(self.server.broadcast(number, self.algorithm.exchanges(number)[index]))

    def sum_over(self, number: int, index: int, cohort: Sequence[str]) -> RoundSum:
        """What :func:`run_round` does, but over sites of the aggregator's choice."""
        exchange = self.algorithm.exchanges(number)[index]
        state = self.broadcast(number, index)
        ready = self.task(number, index, cohort, state)
        return sum_securely(number, index, exchange, state, ready, self.rules, self.ask)

    def honest(self, number: int) -> None:
        """One round as it should be."""
        run_round(number, self.algorithm, self.server, self.rules, self.ask, lambda _: None)

    def close(self) -> None:
        for journal in self.journals:
            journal.close()
