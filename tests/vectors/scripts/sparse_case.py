"""A consortium in a sparse graph, of which one site hears everything that scripts are made of.

Seven sites of eight are asked. Of the six others the site has drawn four as holders (``ASIDE``, ``DROPPED``,
the fifth and the last); the first, the last and ``DROPPED`` have drawn it; with the fourth it shares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    NeighbourDeliveries,
    Neighbourhood,
    ProvenUnmaskRequest,
)
from secfed.crypto.refusals import Refusal as R
from tests.vectors.attempt import Envelopes
from tests.vectors.scripts.site_builder import Scripts
from tests.vectors.scripts.world import ASIDE, COHORT, DROPPED, ME, SITES, Honest, World

FIRST, _, _, FOURTH, FIFTH, LAST = COHORT
OUTSIDER: Final = "Altona"  # in the roster, and not asked
THRESHOLD: Final = 4
DRAW: Final = "sparse 1"
HOLDERS: Final = (ASIDE, DROPPED, FIFTH, LAST)
DEALERS: Final = (FIRST, DROPPED, LAST)
GRAPH: Final = {"dropout_rate": 0.1}


def sparse_honest(envelopes: Envelopes) -> Honest:
    """One attempt in a sparse graph."""
    world = World(envelopes, sites=(OUTSIDER, *SITES))
    spec = world.specification(cohort=SITES, threshold=THRESHOLD)
    given = {"limits": SiteLimits(colluders=0)}
    return Honest(world, spec, DRAW, graph=SparseGraph(**GRAPH), given=lambda: given).run()


class SparseScripts(Scripts):
    """What all scripts of the file refer to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.party["limits"]["colluders"] = 0
        requests = {stage: sent[ME] for stage, sent in self.honest.requests.items()}
        self.listed = AdvertDigests.decode(requests["choose"])
        self.neighbourhood = Neighbourhood.decode(requests["share"])
        self.deliveries = NeighbourDeliveries.decode(requests["confirm"])
        self.unmasking = ProvenUnmaskRequest.decode(requests["unmask"])
        self.spec_digest = self.honest.spec.digest
        self.book.add("own advert", self.honest.replies["advertise"][ME])

    def each(self, stage: str, cases: dict[str, tuple[Any, R]]) -> None:
        """One script for every message that is refused in place of the honest one of a stage."""
        for name, (message, refusal) in cases.items():
            self.begin(f"{stage}_{name}").until(stage).refuses(message, refusal).end()
