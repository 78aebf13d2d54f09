"""One round, as data flowing one way. Read this file first.

    local update -> summands -> fixed point -> protect -> carry -> sum -> unprotect -> totals -> server step
    [site program]              [site's session]         [ask]    [server's session]          [server program]

A round is a short sequence of exchanges; an exchange is one secure sum. The server program gives the
state to broadcast and takes totals; it never meets anything of a single site. Nothing here opens a
connection, a file or a clock: ``ask`` carries requests and hands over replies (:data:`Ask`). ``number``
is the number of the round, counted from 1, everywhere.

This is the round of a study whose sums the aggregator reads. Where only the sites can open them, the round
is another one: ``opened_rounds.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from secfed.algorithms.framework.base import Algorithm, ServerProgram
from secfed.config.cohort_rules import min_cohort, threshold
from secfed.crypto import labels, thresholds
from secfed.crypto.codec import Buffer, digest
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.masked.disputes import settle
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Result, Specification
from secfed.errors import ProtocolError, RangeError, RoundAborted
from secfed.protection.interface import Protection, RingSums, ServerSession, SiteId
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.frames import READY, Step, Task, encode_state
from secfed.wire.layout import Exchange, Totals, state_digest
from secfed.wire.transport import OnReply

Ask = Callable[[str, Mapping[SiteId, Buffer], OnReply], None]
"""(stage, requests, on_reply): carry one step, and hand over each reply as it comes; a site whose reply is
not handed over has dropped out. What carries a study makes an ``Ask`` out of a link, which knows no stages.
"""


@dataclass(frozen=True)
class Rules:
    """What the aggregator needs for any round of one study."""

    study: str  # study id; names the study and its digest
    identity: Identity  # the aggregator's signing key
    roster: Roster  # the consortium's roster
    protection: Protection  # how summands become totals
    threshold: Callable[[int], int]  # cohort size -> answers needed
    min_cohort: int  # fewest sites worth asking
    # attempts per exchange; a site that drops before anything is revealed costs one. An attempt that ends
    # with complaints is not counted: there are fewer sites after each.
    max_attempts: int = 3
    sites: tuple[SiteId, ...] | None = None  # sites of the study, in roster order; None for the whole roster
    colluders: int | None = None  # sites that may not follow the protocol; None for the default of the roster
    max_dropouts: int | None = None  # sites of an exchange that may be missing; None for any number
    named: tuple[SiteId, ...] | None = None  # all sites of the study; None for those that are asked
    sparse: bool = False  # masks on a sparse graph

    @classmethod
    def of(
        cls,
        study: Study,
        identity: Identity,
        roster: Roster,
        protection: Protection,
        sites: tuple[SiteId, ...] | None = None,
        named: tuple[SiteId, ...] | None = None,
    ) -> Rules:
        """The rules of a study for the members of a roster."""
        section, members = study.protection, len(roster.sites)
        return cls(
            study_id(study),
            identity,
            roster,
            protection,
            partial(threshold, section, members),
            min_cohort(section, members),
            sites=sites,
            colluders=section.colluders_for(members),
            max_dropouts=section.max_dropouts,
            named=named,
            sparse=section.graph == "sparse",
        )

    def of_exchange(self, algorithm: Algorithm, number: int, exchange: Exchange) -> Rules:
        """These rules for one exchange: sites refuse a sum in which more of its members are missing."""
        if self.max_dropouts is None:
            return self
        least = len(algorithm.members(number, exchange, self.named or self.asked)) - self.max_dropouts
        return replace(self, threshold=lambda cohort: max(self.threshold(cohort), least))

    def strangers(self, present: int) -> int:
        """How many of these sites may share no mask with the sum that is unmasked."""
        return max(0, present - self.threshold(present)) if self.sparse else 0

    @property
    def tolerated(self) -> int:
        """Sites that may not follow the protocol."""
        default = thresholds.default_colluders(len(self.roster.sites))
        return default if self.colluders is None else self.colluders

    @property
    def asked(self) -> tuple[SiteId, ...]:
        """Sites that may be asked at all."""
        return self.roster.sites if self.sites is None else self.sites


@dataclass(frozen=True)
class RoundSum:
    """One finished exchange: what the transcript records.

    ``faults`` says, in sentences, which sites did not follow the protocol on the way, or were left out.
    """

    spec: Specification
    result: Result
    totals: Totals
    faults: tuple[str, ...] = ()


def run_round(
    number: int,
    algorithm: Algorithm,
    server: ServerProgram,
    rules: Rules,
    ask: Ask,
    record: Callable[[RoundSum], None],
    *,
    first: int = 0,
    keep: Callable[[int], None] = lambda _: None,
) -> None:
    """Run every exchange of one round; a resumed round begins at exchange ``first``.

    ``keep`` is told of each exchange before it begins: a moment at which everything that is known is in
    ``server``, so that a checkpoint of it is enough.

    Raises:
        RoundAborted: an exchange was given up: see :func:`sum_securely`, or honest sites cannot have made
            its total. The server state is that of the last finished exchange.
    """
    for index, exchange in list(enumerate(algorithm.exchanges(number)))[first:]:
        keep(index)
        state = encode_state(server.broadcast(number, exchange))
        members = algorithm.members(number, exchange, rules.asked)
        own = rules.of_exchange(algorithm, number, exchange)
        ready = train(number, index, exchange, state, members, own, ask)
        parts = algorithm.contributors(number, exchange)
        check_contributors(number, exchange, parts, ready, own.strangers(len(ready)))
        summed = sum_securely(number, index, exchange, state, ready, own, ask)
        record(summed)
        server.absorb(number, exchange, summed.totals)


def train(
    number: int,
    index: int,
    exchange: Exchange,
    state: bytes,
    members: Sequence[SiteId],
    rules: Rules,
    ask: Ask,
) -> list[SiteId]:
    """Broadcast the state and wait for the local work; the sites that have something to contribute."""
    ready: list[SiteId] = []

    def on_reply(site: SiteId, reply: Buffer) -> None:
        if reply == READY:
            ready.append(site)

    task = Task(rules.study, number, index, exchange.name, state).encode()
    ask("train", dict.fromkeys(members, task), on_reply)
    return ready


def check_contributors(
    number: int,
    exchange: Exchange,
    parts: Sequence[tuple[Collection[SiteId], int]],
    ready: Sequence[SiteId],
    strangers: int = 0,
) -> None:
    """Give up, before anything is asked, a sum to a part of which too few sites would add more than zeros.

    Sites refuse it as well (refusal 39); this says why once, and costs no attempt. In a sparse graph each
    site that may be a stranger to the sum is one more that has to add to the part.
    """
    for part, least in parts:
        found, needed = len(set(part) & set(ready)), least + strangers
        if 0 < found < needed:
            raise RoundAborted(
                f"round {number}, exchange {exchange.name!r}: of the sites that can add more than zeros to a "
                f"part of the sum {found} can take part, {needed} are needed; nothing was revealed.",
                remedy="wait for more sites, or enrol more so that dropouts leave enough of every group"
                + (', or set protection.graph = "complete"' if strangers else ""),
            )


@dataclass(frozen=True)
class Attempted:
    """An attempt that came to a sum."""

    spec: Specification
    session: ServerSession
    alive: tuple[SiteId, ...]  # sites that answered to the end
    faults: tuple[str, ...]  # as in :class:`RoundSum`


def sum_securely(
    number: int,
    index: int,
    exchange: Exchange,
    state: bytes,
    ready: Sequence[SiteId],
    rules: Rules,
    ask: Ask,
) -> RoundSum:
    """Sum and announce the result.

    Raises:
        RoundAborted: see :func:`attempt_sum`, or a site put more into the sum than its layout permits.
    """
    done = attempt_sum(number, index, exchange, state_digest(state), ready, rules, ask)
    totals = decode(exchange, done.session)  # before anything is announced
    result = conclude(done.spec, done.session.survivors, done.session.sums, rules)
    frame = carry_step(number, index, done.spec.attempt, result.encode())
    ask("result", dict.fromkeys(done.alive, frame), lambda _site, _reply: None)
    return RoundSum(done.spec, result, totals, done.faults)


def attempt_sum(
    number: int,
    index: int,
    exchange: Exchange,
    broadcast_digest: bytes,
    ready: Sequence[SiteId],
    rules: Rules,
    ask: Ask,
) -> Attempted:
    """Try attempts until one sum succeeds. Once updates may have left the sites, there is no other try.

    An attempt that ends with complaints is followed by one without the sites that ``settle`` names.

    Raises:
        RoundAborted: too few sites are ready, every attempt failed before an update could leave a site, or
            one failed afterwards.
    """
    alive, why, faults = list(ready), "", list[str]()
    fruitless = 0
    for attempt in range(rules.max_attempts + len(ready)):  # after a dispute there are fewer sites
        if fruitless == rules.max_attempts:
            break
        cohort = tuple(site for site in rules.roster.sites if site in alive)
        if missing := too_few(cohort, rules):
            why = why or missing
            break
        spec = specify(number, index, exchange, attempt, cohort, broadcast_digest, rules)
        session = rules.protection.server(exchange, spec, rules.roster)
        step = partial(carry_step, number, index, attempt)
        try:
            drive(session, step, ask, alive, faults)
        except RoundAborted as error:
            if session.spent:
                raise RoundAborted(_because(error.message, faults), remedy=error.remedy) from None
            # Who no longer answers is left out by that; nobody else has to be because of it.
            verdict = settle([one for one in session.disputes if set(one) <= set(alive)], rules.tolerated)
            faults += verdict.sentences
            alive = [site for site in alive if site not in verdict.excluded]
            why = error.message if alive else "every site refused or went silent; nothing was revealed."
            fruitless += not session.disputes
            continue
        return Attempted(spec, session, tuple(alive), tuple(faults))
    raise RoundAborted(
        f"round {number}, exchange {exchange.name!r}: {_because(why, faults)}",
        remedy="see in the transcript who refused, and why; wait for more sites, or enrol more so that the "
        "threshold leaves room for dropouts",
    )


def _because(why: str, faults: Sequence[str]) -> str:
    """Why a sum was given up, and which sites were at fault on the way."""
    return " ".join([why, *(f"{fault}." for fault in faults)])


def too_few(cohort: Sequence[SiteId], rules: Rules) -> str:
    """Why a cohort is not worth asking, since not enough of it could answer; empty if it is."""
    needed = max(rules.min_cohort, rules.threshold(len(cohort)))
    if len(cohort) >= needed:
        return ""
    return f"too few sites for a sum: {len(cohort)} can take part, {needed} are needed; nothing was revealed."


def decode(exchange: Exchange, session: ServerSession) -> Totals:
    """The totals of a finished sum."""
    try:
        return exchange.layout.decode(session.sums, session.survivors)
    except RangeError as error:
        raise RoundAborted(
            error.message, remedy="a site did not follow the protocol; discard the round"
        ) from None


def drive(
    session: ServerSession,
    step: Callable[[Buffer], bytes],
    ask: Ask,
    alive: list[SiteId],
    faults: list[str] | None = None,
) -> None:
    """Carry one attempt's messages to and fro until it is finished.

    Args:
        alive: replaced by the sites that still answer, and answer what they should.
        faults: what was wrong with replies is appended here.
    """
    requests = session.begin()
    while requests:
        answered: list[SiteId] = []

        def on_reply(site: SiteId, reply: Buffer, answered: list[SiteId] = answered) -> None:
            try:
                session.receive(site, reply)
            except ProtocolError as error:
                if faults is not None:
                    faults.append(f"{site}: {error.message.rstrip('.')}")
                return  # a wrong reply counts as missing: the site is dropped
            answered.append(site)

        ask(session.stage, {site: step(message) for site, message in requests.items()}, on_reply)
        alive[:] = answered
        requests = session.advance()


def carry_step(number: int, index: int, attempt: int, message: Buffer) -> bytes:
    """One message of one attempt, as a frame."""
    return Step(number, index, attempt, message).encode()


def specify(
    number: int,
    index: int,
    exchange: Exchange,
    attempt: int,
    cohort: tuple[SiteId, ...],
    broadcast_digest: bytes,
    rules: Rules,
) -> Specification:
    """The signed specification of one attempt."""
    unsigned = Specification(
        study=rules.study,
        round=number,
        exchange_index=index,
        exchange=exchange.name,
        attempt=attempt,
        cohort=cohort,
        threshold=rules.threshold(len(cohort)),
        roster_digest=rules.roster.digest,
        layout_digest=exchange.layout.digest,
        broadcast_digest=broadcast_digest,
    )
    return signed(unsigned, rules.identity, labels.SIGN_SPEC)


def conclude(spec: Specification, survivors: tuple[SiteId, ...], sums: RingSums, rules: Rules) -> Result:
    """The signed result of one attempt."""
    runs = (run.view(np.uint8).data for run in sums)
    unsigned = Result(spec.digest, survivors, digest(labels.TOTALS_DIGEST, spec.layout_digest, *runs))
    return signed(unsigned, rules.identity, labels.SIGN_RESULT)
