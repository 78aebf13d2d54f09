"""The consortium of the scripts: a roster of seven, of whom six are asked, and one falls silent.

Names are chosen to hurt: "hospital-10" stands before "hospital-2", one site id is not ASCII, and the last two
stand in another order when UTF-16 units are compared instead of code points. The first site of the roster is
not asked, so that no position in the cohort is the one in the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from secfed.crypto import labels, shamir
from secfed.crypto.attempt import SiteContribution, SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Result, Specification
from tests.journals import NoMemory
from tests.ring import Integers
from tests.simulator import STAGES
from tests.vectors.attempt import Envelopes, VectorEntropy
from tests.vectors.primitives import pattern

ASIDE: Final = "St-Anna"  # in the roster, and not asked
DROPPED: Final = "hospital-10"
ME: Final = "hospital-2"
COHORT: Final = ("hospital-1", DROPPED, ME, "klinikum-süd", "\uff3aentrum", "\U0001f3e5")
SITES: Final = (ASIDE, *COHORT)
THRESHOLD: Final = 4
STUDY: Final = "vectors-" + pattern("study").hex()
SHAPE: Final = VectorShape((Run(12, 5), Run(64, 1), Run(32, 2)), pattern("layout digest of the scripts"))
BROADCAST: Final = pattern("broadcast digest of the scripts")
GROUP_KEY: Final = pattern("group key of the scripts")
LIMITS: Final = SiteLimits(colluders=1)


def lanes_of(site: str) -> list[list[int]]:
    """Ring integers, one list per run."""
    return [
        [
            int.from_bytes(pattern(f"{site} lane {run.bits} {at}", 8), "big") % 2**run.bits
            for at in range(run.count)
        ]
        for run in SHAPE.runs
    ]


@dataclass
class World:
    """Identities, and the envelopes that an earlier run has sealed."""

    envelopes: Envelopes = field(default_factory=Envelopes)
    entropies: dict[tuple[str, str], VectorEntropy] = field(default_factory=dict)
    sites: tuple[str, ...] = SITES

    def __post_init__(self) -> None:
        self.aggregator = self.person("aggregator")
        self.people = {name: self.person(name) for name in self.sites}
        self.roster = Roster.of(self.aggregator, list(self.people.values()))

    @staticmethod
    def person(name: str) -> Identity:
        """An identity that depends on its name."""
        return Identity.from_seed(name, pattern(f"{name} identity"))

    def specification(
        self, signer: Identity | None = None, label: bytes = labels.SIGN_SPEC, **changes: Any
    ) -> Specification:
        """The honest specification with changes, signed by the aggregator unless somebody else is named."""
        unsigned = Specification(
            STUDY, 3, 1, "update", 0, COHORT, THRESHOLD, self.roster.digest, SHAPE.digest, BROADCAST
        )
        return signed(replace(unsigned, **changes), signer or self.aggregator, label)

    def entropy(self, site: str, draw: str) -> VectorEntropy:
        """The draws of one site in one attempt; always the same."""
        made = VectorEntropy(f"{draw} {site}", self.envelopes)
        self.entropies[(site, draw)] = made
        return made

    def contribution(self, site: str, draw: str = "first", **changes: Any) -> SiteContribution:
        """What one site brings to an attempt."""
        given: dict[str, Any] = {
            "identity": self.people[site],
            "roster": self.roster,
            "study": STUDY,
            "round": 3,
            "exchange": "update",
            "exchange_index": 1,
            "shape": SHAPE,
            "broadcast_digest": BROADCAST,
            "source": integers(lanes_of(site)),
            "journal": NoMemory(),
            "limits": LIMITS,
        }
        return SiteContribution(**{"entropy": self.entropy(site, draw), **given, **changes})

    def result(self, spec: Specification, survivors: tuple[str, ...]) -> Result:
        """Signed by the aggregator."""
        return signed(Result(spec.digest, survivors, pattern("totals")), self.aggregator, labels.SIGN_RESULT)


def integers(lanes: list[list[int]]) -> Integers:
    """A source of these ring integers."""
    return Integers(tuple(np.array(run, shape.dtype) for run, shape in zip(lanes, SHAPE.runs, strict=True)))


@dataclass
class Honest:
    """One honest attempt: requests and replies by stage and site."""

    world: World
    spec: Specification
    draw: str = "first"
    silent: Mapping[str, str] = field(default_factory=lambda: {DROPPED: "mask"})
    dealing: tuple[str, str, Callable[[int, bytes], bytes]] | None = (
        None  # whose shares of what, and how they change
    )
    graph: SparseGraph | None = None
    given: Callable[[], Mapping[str, Any]] = dict  # to every contribution
    shape: VectorShape = SHAPE
    requests: dict[str, dict[str, bytes]] = field(default_factory=dict)
    replies: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[str, ...]:
        """In order."""
        return STAGES if self.graph is None else (STAGES[0], "choose", *STAGES[1:])

    def run(self) -> Honest:
        """Carry it to its end; only to the last replies where somebody deals what it did not advertise."""
        with self._dealing():
            return self._run()

    @contextmanager
    def _dealing(self) -> Iterator[None]:
        """One site changes the shares of one of its secrets before it seals and states them."""
        split = shamir.split
        if self.dealing is None:
            yield
            return
        site, what, change = self.dealing
        dealt = bytes.fromhex(self.world.entropies[(site, self.draw)].tokens[what])

        def wrong(secret: bytes, threshold: int, points: list[int], **draws: Any) -> dict[int, bytes]:
            shares = split(secret, threshold, points, **draws)
            if secret == dealt:
                return {point: change(at, share) for at, (point, share) in enumerate(shares.items())}
            return shares

        with patch.object(shamir, "split", wrong):
            yield

    def _run(self) -> Honest:
        world, spec = self.world, self.spec
        sites = {
            name: MaskedSite(
                world.contribution(name, self.draw, round=spec.round, **self.given()), self.graph
            )
            for name in spec.cohort
        }
        server = MaskedServer(spec, world.roster, self.shape, graph=self.graph)
        pending = server.begin()
        for stage in self.stages[:-1]:
            self.requests[stage] = {site: bytes(request) for site, request in pending.items()}
            for site, request in pending.items():
                index = self.stages.index
                if index(self.silent.get(site, "result")) <= index(stage):
                    continue
                reply = bytes(sites[site].handle(request))
                self.replies.setdefault(stage, {})[site] = reply
                server.receive(site, reply)
            if stage == "unmask":
                break
            pending = server.advance()
        if self.dealing is None:
            server.advance()
            self.survivors = server.survivors
            self.sums = [[int(lane) for lane in run] for run in server.sums]
            result = world.result(spec, self.survivors).encode()
            self.requests["result"] = dict.fromkeys(self.replies["unmask"], result)
        return self
