"""A consortium in one process, with a server that may do anything: tool for every test of the protocol.

The sites are real :class:`~secfed.crypto.masked_site.MaskedSite` sessions over real journals. The server
is a real :class:`~secfed.crypto.masked_server.MaskedServer` whose requests a test may replace, hold back,
reorder or make up, for each site by itself. Colluding sites are real sites that hand everything they know
to the server: identity key, secrets, and every share that was sealed to them.

    consortium = Consortium(5)
    attempt = consortium.attempt()
    attempt.run(until="unmask")           # honest so far; attempt.requests holds the pending messages
    attempt.refused("hospital-0", forged, Refusal.VIEW_SIGNATURE)

``Attempt(down=..., up=...)`` are hooks on every message to and from a site, ``silent`` makes sites drop.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from secfed.crypto import labels, sealing, thresholds
from secfed.crypto.attempt import Entropy, SiteContribution, SiteLimits
from secfed.crypto.codec import Buffer, digest
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked_server import MaskedServer
from secfed.crypto.masked_site import (
    Closed,
    MaskedSite,
    State,
)
from secfed.crypto.messages import (
    Message,
    Result,
    Specification,
    Upload,
    peek_type,
)
from secfed.crypto.refusals import Refusal
from secfed.errors import ProtocolError, SecfedError
from secfed.journal import Journal
from tests.journals import WatchedJournal
from tests.ring import Integers, add_in_ring, random_vector

STAGES = ("advertise", "share", "mask", "consistency", "unmask", "result")
_REQUESTS = dict(zip((0, 2, 4, 6, 8, 10), STAGES, strict=True))  # type of the request -> stage
TINY = (Run(16, 3), Run(32, 2), Run(64, 1))

Hook = Callable[[str, str, Buffer], Buffer | None]  # (stage, site, message) -> message, None to swallow it
M = TypeVar("M", bound=Message)


class SeededEntropy(Entropy):
    """Secrets that depend on a seed only. Sealing stays random: nothing downstream depends on it."""

    def __init__(self, *seed: object) -> None:
        self._seed = repr(seed).encode()
        self._drawn = 0

    def token(self, purpose: str) -> bytes:
        """32 bytes."""
        self._drawn += 1
        return hashlib.sha256(b"%s/%s/%d" % (self._seed, purpose.encode(), self._drawn)).digest()

    def below(self, limit: int) -> int:
        """An integer below ``limit``, off uniform by less than 2^-200."""
        wide = self.token("below, high") + self.token("below, low")
        return int.from_bytes(wide, "big") % limit

    def seal_key(self) -> sealing.SealKey:
        """A key from two further tokens."""
        mlkem_seed = self.token("seal key, d") + self.token("seal key, z")
        return sealing.SealKey.from_seeds(mlkem_seed, self.token("seal key, X25519"))


class Consortium:
    """Sites with pinned identities, one update each, and an aggregator.

    Args:
        sites: how many sites.
        runs: runs of the vector.
        threshold: answers needed; None is the default for the cohort.
        limits: what every site insists on.
        seed: identities, updates and the broadcast derive from it.

    Attributes:
        names: site ids, in roster order.
        updates: each site's ring integers.
        journals: each site's journal; it lives as long as the consortium.
    """

    def __init__(
        self,
        sites: int = 5,
        *,
        runs: Sequence[Run] = TINY,
        threshold: int | None = None,
        limits: SiteLimits | None = None,
        seed: int = 0,
    ) -> None:
        self.seed = seed
        self.names = tuple(f"hospital-{index:0{len(str(sites - 1))}d}" for index in range(sites))
        self.aggregator = self.person("aggregator")
        self.identities = {name: self.person(name) for name in self.names}
        self.roster = Roster.of(self.aggregator, list(self.identities.values()))
        self.limits = SiteLimits() if limits is None else limits
        self.threshold = threshold
        self.shape = VectorShape(tuple(runs), hashlib.sha256(repr(tuple(runs)).encode()).digest())
        self.broadcast_digest = hashlib.sha256(f"broadcast {seed}".encode()).digest()
        generator = np.random.default_rng(seed)
        self.updates = {name: random_vector(self.shape, generator) for name in self.names}
        self._opened: list[Journal] = []
        self.journals: dict[str, WatchedJournal] = {}
        self.forget(self.names)
        weakref.finalize(self, _close, self._opened)

    def person(self, name: str) -> Identity:
        """An identity that depends on the name and the seed; sybils are made with it too."""
        return Identity.from_seed(name, hashlib.sha256(f"identity {self.seed} {name}".encode()).digest())

    def forget(self, names: Iterable[str]) -> None:
        """These sites start with an empty journal, as if it had been lost or rolled back while they slept."""
        for name in names:
            self._opened.append(Journal())
            self.journals[name] = WatchedJournal(self._opened[-1])

    def specification(self, *, signer: Identity | None = None, **changes: Any) -> Specification:
        """A specification signed by the aggregator, or by someone else; ``changes`` replace its fields."""
        cohort = changes.get("cohort", self.names)
        threshold = self.threshold
        if threshold is None:
            threshold = thresholds.default_threshold(len(cohort))
        unsigned = Specification(
            study="study",
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
        given = SiteContribution(
            identity=self.identities[name],
            roster=self.roster,
            study="study",
            round=1,
            exchange="update",
            exchange_index=0,
            shape=self.shape,
            broadcast_digest=self.broadcast_digest,
            source=Integers(self.updates[name]),
            journal=self.journals[name],
            limits=self.limits,
        )
        return replace(given, **changes)

    def attempt(self, spec: Specification | None = None, **options: Any) -> Attempt:
        """An attempt over this consortium; see :class:`Attempt`."""
        return Attempt(self, self.specification() if spec is None else spec, **options)

    def expected(self, survivors: Iterable[str]) -> list[list[int]]:
        """The true sum over these sites."""
        return add_in_ring((self.updates[name] for name in survivors), self.shape)


PROVOKED: set[Refusal] = set()  # what Attempt.refused has seen in the running test


def provokes(refusal: Refusal) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a test as the one that provokes a refusal; it fails if the refusal does not come."""

    def register(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            PROVOKED.clear()
            test(*args, **kwargs)
            assert refusal in PROVOKED, f"{test.__name__} never provoked {refusal.name}"

        run.provokes = refusal  # type: ignore[attr-defined]
        return run

    return register


def _close(journals: list[Journal]) -> None:
    for journal in journals:
        journal.close()


class Attempt:
    """One attempt, carried step by step.

    Args:
        consortium: who takes part.
        spec: the specification that the honest part of the server works with.
        contributions: site -> changes to its :class:`SiteContribution` (e.g. another round).
        silent: site -> stage from which on it does not answer.
        down: hook on every request; its result is what the site gets.
        up: hook on every reply; its result is what the server gets.
        sites: sites to run; the cohort's members in the roster by default.

    Attributes:
        requests: what the server wants to send next, by site.
        replies: everything that left a site: (stage, site, bytes).
        refusals: what sites refused with.
        states: every state that a site went through.
    """

    def __init__(
        self,
        consortium: Consortium,
        spec: Specification,
        *,
        contributions: Mapping[str, Mapping[str, Any]] | None = None,
        silent: Mapping[str, str] | None = None,
        down: Hook | None = None,
        up: Hook | None = None,
        sites: Sequence[str] | None = None,
    ) -> None:
        self.consortium, self.spec = consortium, spec
        self._silent, self._down, self._up = silent or {}, down, up
        members = [name for name in spec.cohort if name in consortium.names] if sites is None else sites
        serving = {"round": spec.round, "exchange_index": spec.exchange_index, "exchange": spec.exchange}
        changes = contributions or {}
        self.sites = {
            name: MaskedSite(consortium.contribution(name, **{**serving, **changes.get(name, {})}))
            for name in members
        }
        self.server = MaskedServer(spec, consortium.roster, consortium.shape)
        self.requests: dict[str, Buffer] = dict(self.server.begin())
        self.replies: list[tuple[str, str, bytes]] = []
        self.refusals: dict[str, SecfedError] = {}
        self.states: dict[str, list[State]] = {name: [site.state] for name, site in self.sites.items()}
        self._finished = False

    @property
    def stage(self) -> str:
        """The stage that the pending requests belong to; "result" and "over" come last."""
        if self._finished:
            return "over"
        return "result" if self.server.stage == "done" else self.server.stage

    def deliver(self, site: str, message: Buffer) -> bytes:
        """Hand a message to a site; what it answers is recorded as having left the site.

        Raises:
            SecfedError: the site refuses.
        """
        reply = bytes(self.sites[site].handle(message))
        self.replies.append((_REQUESTS[peek_type(message)], site, reply))
        self.states[site].append(self.sites[site].state)
        return reply

    def step(self) -> None:
        """Carry the pending requests and their replies, then let the server close its step.

        Raises:
            RoundAborted: too few sites are left.
        """
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

    def run(self, until: str = "over") -> Attempt:
        """Go on until the pending requests belong to stage ``until``."""
        assert until in (*STAGES, "over")
        while self.stage != until:
            assert self.stage != "over", f"the attempt never reached {until}"
            self.step()
        return self

    def _is_silent(self, site: str, stage: str) -> bool:
        since = self._silent.get(site)
        return since is not None and STAGES.index(since) <= STAGES.index(stage)

    def result(self, **changes: Any) -> Result:
        """The signed result; ``changes`` replace its fields before signing."""
        sums = self.server.sums
        runs = (run.view(np.uint8).data for run in sums)
        unsigned = Result(
            self.spec.digest,
            self.server.survivors,
            digest(labels.TOTALS_DIGEST, self.spec.layout_digest, *runs),
        )
        unsigned = replace(unsigned, **changes)
        signature = self.consortium.aggregator.sign(labels.SIGN_RESULT, unsigned.body())
        return replace(unsigned, signature=signature)

    def pending(self, site: str, kind: type[M], **changes: Any) -> bytes:
        """The pending request to a site with some of its fields replaced."""
        return replace(kind.decode(self.requests[site]), **changes).encode()

    def uploaded(self, site: str) -> Upload:
        """The masked vector that left a site."""
        return next(
            Upload.decode(reply) for stage, name, reply in self.replies if (stage, name) == ("mask", site)
        )

    def refused(self, site: str, message: Buffer, refusal: Refusal) -> SecfedError:
        """Assert that a message gains the server nothing at all; return the error.

        The site raises this refusal's error class with its number in the text, answers nothing, notes no
        use of its update, and from then on refuses even the message it was waiting for.
        """
        session, journal = self.sites[site], self.consortium.journals[site]
        replies, noted = len(self.replies), (list(journal.left), list(journal.spent))
        with pytest.raises(SecfedError) as caught:
            self.deliver(site, message)
        error = caught.value
        assert type(error) is refusal.error, f"{error!r} is not {refusal.error.__name__}"
        assert error.message.startswith(f"refusal {refusal.number}: "), error.message
        assert f"SECURITY.md explains refusal {refusal.number}" in error.remedy
        assert len(self.replies) == replies, "a reply left the site"
        assert (journal.left, journal.spent) == noted, "the update was spent"
        assert isinstance(session.state, Closed)
        assert session.result is None
        PROVOKED.add(refusal)
        honest = self.requests.get(site, self.spec.encode())
        with pytest.raises(SecfedError, match=rf"^refusal {Refusal.OUT_OF_ORDER.number}: "):
            self.deliver(site, honest)
        return error
