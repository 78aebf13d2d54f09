"""A consortium in one process, whose aggregator may do anything.

Sites are real sessions over real journals; an attack may replace, hold back or make up the real server's
requests. Colluding sites are real sites that hand it everything: identity key, secrets and opened shares.

    consortium = SimulatedConsortium(5, runs=[Run(32, 4096)])
    attempt = consortium.attempt()
    attempt.run(until="unmask")           # honest so far; attempt.requests holds the pending messages
    attempt.deliver("hospital-0", forged)  # raises what the site refuses with
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import labels, thresholds
from secfed.crypto.attempt import AttemptJournal, SiteContribution, SiteLimits
from secfed.crypto.codec import Buffer, digest
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.masked.states import ClientState
from secfed.crypto.messages import Result, Specification, Upload, peek_type
from secfed.errors import ProtocolError, SecfedError, WrongState
from secfed.site.journal import Journal

STAGES: Final = ("advertise", "share", "confirm", "mask", "consistency", "unmask", "result")
_REQUESTS = dict(zip((0, 2, 4, 19, 6, 8, 10), STAGES, strict=True))  # type of the request -> stage
_REQUESTS |= {20: "choose", 22: "share", 24: "confirm", 25: "unmask"}  # in a sparse graph
_ORDER: Final = ("advertise", "choose", *STAGES[1:])
_STUDY: Final = "study"

RingVector = tuple[NDArray[Any], ...]
"""One array of ring integers per run."""

Hook = Callable[[str, str, Buffer], Buffer | None]
"""(stage, site, message) -> message, None to swallow it."""


class Integers:
    """A vector source over ring integers that are there already."""

    def __init__(self, runs: RingVector) -> None:
        self._runs = list(runs)

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """Hand out the next lanes; WrongState if they are asked for in other pieces than the shape's."""
        while not self._runs[0].size:
            self._runs.pop(0)
        if self._runs[0].size < out.size or self._runs[0].dtype != run.dtype:
            raise WrongState("the vector was asked for in other pieces than its shape's")
        out[:] = self._runs[0][: out.size]
        self._runs[0] = self._runs[0][out.size :]


class SimulatedConsortium:
    """Sites with pinned identities, one update each, and an aggregator; all derive from ``seed``.

    ``threshold`` is the number of answers needed, None the cohort's default; ``limits`` are every site's;
    ``graph`` None is the complete one.
    Journals live as long as the consortium.
    """

    def __init__(
        self,
        sites: int = 5,
        *,
        runs: Sequence[Run],
        threshold: int | None = None,
        limits: SiteLimits | None = None,
        seed: int = 0,
        graph: SparseGraph | None = None,
        cipher: StreamCipher = StreamCipher.CHACHA20,
    ) -> None:
        self.seed, self.graph, self.cipher = seed, graph, cipher
        self.names = tuple(f"hospital-{index:0{len(str(sites - 1))}d}" for index in range(sites))
        self.aggregator = self.person("aggregator")
        self.identities = {name: self.person(name) for name in self.names}
        self.roster = Roster.of(self.aggregator, list(self.identities.values()))
        self.limits = SiteLimits() if limits is None else limits
        self.threshold = threshold
        self.shape = VectorShape(tuple(runs), hashlib.sha256(repr(tuple(runs)).encode()).digest())
        self.broadcast_digest = hashlib.sha256(f"broadcast {seed}".encode()).digest()
        self._opened = ExitStack()
        weakref.finalize(self, self._opened.close)
        self.journals: dict[str, AttemptJournal] = {}
        self.forget(self.names)

    @cached_property
    def updates(self) -> dict[str, RingVector]:
        """Each site's ring integers."""
        generator = np.random.default_rng(self.seed)
        return {name: self.update(generator) for name in self.names}

    def update(self, generator: np.random.Generator) -> RingVector:
        """One site's ring integers: zero on average, and small beside the ring, as updates are."""
        values = [generator.normal(scale=1 << (run.bits // 2), size=run.count) for run in self.shape.runs]
        runs = zip(self.shape.runs, values, strict=True)
        return tuple(_in_ring(run, np.rint(lanes).astype(np.int64).astype(run.dtype)) for run, lanes in runs)

    def zeros(self) -> RingVector:
        """A vector of zeros: a guess without knowledge."""
        return tuple(np.zeros(run.count, run.dtype) for run in self.shape.runs)

    def integers(self, upload: Upload) -> RingVector:
        """A masked vector as ring integers."""
        total = masks.Accumulator(self.shape)
        total.add(upload.vector)
        return total.reduced()

    def minus(self, one: Sequence[NDArray[Any]], *others: Sequence[NDArray[Any]]) -> RingVector:
        """The difference in the ring."""
        return tuple(
            _in_ring(run, one[index] - sum(other[index] for other in others))
            for index, run in enumerate(self.shape.runs)
        )

    def person(self, name: str) -> Identity:
        """An identity that depends on the name and the seed; sybils are made with it too."""
        return Identity.from_seed(name, hashlib.sha256(f"identity {self.seed} {name}".encode()).digest())

    def journal(self) -> AttemptJournal:
        """A new, empty journal, which is closed with the consortium."""
        journal = Journal()
        self._opened.callback(journal.close)
        return journal

    def forget(self, names: Iterable[str]) -> None:
        """These sites start with an empty journal, as if it had been lost or rolled back while they slept."""
        for name in names:
            self.journals[name] = self.journal()

    def specification(self, *, signer: Identity | None = None, **changes: Any) -> Specification:
        """A specification signed by the aggregator, or by someone else; ``changes`` replace its fields."""
        cohort = changes.get("cohort", self.names)
        threshold = thresholds.default_threshold(len(cohort)) if self.threshold is None else self.threshold
        unsigned = Specification(
            study=_STUDY,
            round=1,
            exchange_index=0,
            exchange="update",
            attempt=0,
            cohort=self.names,
            threshold=threshold,
            roster_digest=self.roster.digest,
            layout_digest=self.shape.digest,
            broadcast_digest=self.broadcast_digest,
        )
        unsigned = replace(unsigned, **changes)
        signer = self.aggregator if signer is None else signer
        return replace(unsigned, signature=signer.sign(labels.SIGN_SPEC, unsigned.body()))

    def contribution(self, name: str, **changes: Any) -> SiteContribution:
        """One site's input to one attempt, as that site believes it to be; ``changes`` replace its fields."""
        own = SiteContribution(
            identity=self.identities[name],
            roster=self.roster,
            study=_STUDY,
            round=1,
            exchange="update",
            exchange_index=0,
            shape=self.shape,
            broadcast_digest=self.broadcast_digest,
            source=changes.pop("source", None) or Integers(self.updates[name]),
            journal=self.journals[name],
            limits=self.limits,
            cipher=self.cipher,
        )
        return replace(own, **changes)

    def attempt(self, spec: Specification | None = None, **options: Any) -> Attempt:
        """An attempt over this consortium."""
        return Attempt(self, self.specification() if spec is None else spec, **options)


def _in_ring(run: Run, lanes: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(lanes & run.dtype.type((1 << run.bits) - 1))


class Attempt:
    """One attempt of the honest specification ``spec``, carried step by step by ``sites``, or its cohort.

    ``contributions`` changes a site's :class:`SiteContribution`; ``silent`` is the stage from which on a site
    does not answer; ``down`` and ``up`` are hooks whose results replace every request and every reply;
    ``shape`` is that of uploads, or the consortium's.
    """

    def __init__(
        self,
        consortium: SimulatedConsortium,
        spec: Specification,
        *,
        contributions: Mapping[str, Mapping[str, Any]] | None = None,
        silent: Mapping[str, str] | None = None,
        down: Hook | None = None,
        up: Hook | None = None,
        sites: Sequence[str] | None = None,
        shape: VectorShape | None = None,
    ) -> None:
        self.consortium, self.spec = consortium, spec
        self._silent, self._down, self._up = silent or {}, down, up
        members = [name for name in spec.cohort if name in consortium.names] if sites is None else sites
        serving = {"round": spec.round, "exchange_index": spec.exchange_index, "exchange": spec.exchange}
        changes = contributions or {}
        self.sites = {
            name: MaskedSite(
                consortium.contribution(name, **{**serving, **changes.get(name, {})}), consortium.graph
            )
            for name in members
        }
        shape = shape or consortium.shape
        self.server = MaskedServer(
            spec, consortium.roster, shape, graph=consortium.graph, cipher=consortium.cipher
        )
        self.requests: dict[str, Buffer] = dict(self.server.begin())  # what the server wants to send next
        self.replies: list[tuple[str, str, bytes]] = []  # stage, site and bytes of what left a site
        self.refusals: dict[str, SecfedError] = {}
        self.states: dict[str, list[ClientState]] = {name: [site.state] for name, site in self.sites.items()}
        self._finished = False

    @property
    def stage(self) -> str:
        """The stage that the pending requests belong to; "result" and "over" come last."""
        if self._finished:
            return "over"
        return "result" if self.server.stage == "done" else self.server.stage

    def deliver(self, site: str, message: Buffer) -> bytes:
        """Hand a message to a site, which may refuse; what it answers is recorded as having left the site."""
        reply = bytes(self.sites[site].handle(message))
        self.replies.append((_REQUESTS[peek_type(message)], site, reply))
        self.states[site].append(self.sites[site].state)
        return reply

    def step(self) -> None:
        """Carry pending requests and their replies, then let the server close its step or abort the round."""
        stage = self.stage
        for site, honest in self.requests.items():
            if self._is_silent(site, stage):
                continue
            request = honest if self._down is None else self._down(stage, site, honest)
            if request is None or site not in self.sites:
                continue
            try:
                reply: Buffer | None = self.deliver(site, request)
            except SecfedError as refusal:
                self.refusals[site] = refusal
                continue
            if self._up is not None and reply is not None:
                reply = self._up(stage, site, reply)
            if reply is None or stage == "result":
                continue
            try:
                self.server.receive(site, reply)
            except ProtocolError as refusal:
                self.refusals[f"server about {site}"] = refusal
        if stage == "result":
            self._finished, self.requests = True, {}
            return
        asked = list(self.requests)
        self.requests = dict(self.server.advance())
        if self.stage == "result":
            self.requests = dict.fromkeys(asked, self.result().encode())

    def run(self, until: str = "over") -> Self:
        """Go on until the pending requests belong to stage ``until``; RoundAborted if too few are left."""
        while self.stage != until:
            if self.stage == "over":
                raise WrongState(f"the attempt never reached {until}")
            self.step()
        return self

    def _is_silent(self, site: str, stage: str) -> bool:
        since = self._silent.get(site)
        return since is not None and _ORDER.index(since) <= _ORDER.index(stage)

    def result(self, **changes: Any) -> Result:
        """The signed result; ``changes`` replace its fields before signing."""
        runs = (run.view(np.uint8).data for run in self.server.sums)
        totals = digest(labels.TOTALS_DIGEST, self.spec.layout_digest, *runs)
        unsigned = replace(Result(self.spec.digest, self.server.survivors, totals), **changes)
        signature = self.consortium.aggregator.sign(labels.SIGN_RESULT, unsigned.body())
        return replace(unsigned, signature=signature)

    def uploaded(self, site: str) -> Upload:
        """The masked vector that left a site."""
        from_site = (reply for stage, name, reply in self.replies if (stage, name) == ("mask", site))
        return Upload.decode(next(from_site))
