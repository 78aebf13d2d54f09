"""Cost of a masked sum over up to 10,000 sites: complete graph, sparse graph, two levels; for docs/scale.md.

    python benchmarks/hierarchy_cost.py [--quick]

First table, measured: processor seconds of one site and of the server, without vectors, in whole attempts
of the complete graph. Constants come from the smallest and the largest; the size between says how good the
model is. Second table, modelled from these constants and docs/protocol.md, section 13: ten million
parameters in lanes of 32 bits, 5% of the sites drop after they confirmed. *Adders* are machines that add
masked vectors and make their share of the streams to be removed. Third table: what else two levels change.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import sections
from scipy import special, stats

from secfed.attack.scene import SimulatedConsortium
from secfed.bench.masked import keystream_and_add
from secfed.crypto import shamir, thresholds
from secfed.crypto.identity import verify
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks
from secfed.dp.accounting.empirical_bounds import gaussian_delta, gaussian_epsilon

SIZES: Final = (6, 9, 12) if "--quick" in sys.argv else (10, 20, 40)
LANES: Final = 10_000_000  # parameters of the model in the second table, in lanes of 32 bits
DROPPED: Final = 0.05  # share of the sites that confirms and never uploads
REGION: Final = 100  # sites of a region
DELTA: Final = 1e-5


@dataclass(frozen=True)
class Graph:
    """Neighbours with a common mask, holders of a secret's shares, and how many of these rebuild it."""

    neighbours: int
    holders: int
    threshold: int

    @classmethod
    def complete(cls, sites: int) -> Graph:
        """Everybody, docs/adr/002."""
        return cls(sites - 1, sites, thresholds.default_threshold(sites))

    @classmethod
    def sparse(cls, sites: int) -> Graph:
        """Own holders, and on average as many sites that chose this one; docs/adr/026."""
        holders, threshold = sparse_holders(sites)
        both = 2 * holders - holders * holders // (sites - 1)
        return cls(both, holders, threshold)


@dataclass(frozen=True)
class Constants:
    """Processor seconds on this machine."""

    start: float  # a site, whatever the cohort: its keys and its own messages
    site: float  # a site, per neighbour: two envelopes each way, their signatures, an advert, a view
    member: float  # the server, per site: its keys and its messages
    server: float  # the server, per envelope that it relays: a signature and its digests
    check: float  # one signature checked
    evaluate: float  # one point of a polynomial, per coefficient
    interpolate: float  # one secret, per square of the threshold
    lane: float  # one lane of one stream, made and added
    upload: float  # one lane of an upload, hashed and added

    def of_site(self, sites: int, graph: Graph) -> float:
        """A site's seconds without its vector."""
        views = max(0, thresholds.default_threshold(sites) - graph.neighbours - 1)
        dealing = 2 * graph.holders * graph.threshold * self.evaluate
        return self.start + graph.neighbours * self.site + views * self.check + dealing

    def of_server(self, sites: int, graph: Graph) -> float:
        """A server's seconds without vectors."""
        envelopes = sites * graph.neighbours
        return sites * self.member + envelopes * self.server + sites * graph.threshold**2 * self.interpolate


@cache
def sparse_holders(sites: int, *, dropping: float = 0.1) -> tuple[int, int]:
    """Fewest holders, and shares that rebuild, for 2^-40 against (n/3 - 1) colluders; see docs/adr/026.

    The bound is a union bound over honest sets that could be split off, each of whose members has that many
    of its holders in the set or among the colluders. Where the share ``dropping`` of the sites is gone, a
    secret is lost with probability 0.001 at most.
    """
    colluders = thresholds.default_colluders(sites)
    honest = sites - colluders
    size = np.arange(1, honest // 2 + 1)
    choices = special.gammaln(honest + 1) - special.gammaln(size + 1) - special.gammaln(honest - size + 1)

    def bound(holders: int) -> tuple[float, int]:
        lost = sites * stats.binom.cdf(np.arange(holders + 1) - 1, holders, 1 - dropping)
        threshold = int(np.flatnonzero(lost <= 1e-3)[-1])
        inside = stats.hypergeom.logsf(threshold - 1, sites - 1, size - 1 + colluders, holders)
        return float(special.logsumexp(choices + size * inside)) / math.log(2), threshold

    low, high = 1, sites - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle)[0] <= -40 else (middle, high)
    return high, bound(high)[1]


def attempt_s(sites: int) -> tuple[float, float]:
    """Processor seconds of one site (the median) and of the server in an attempt with hardly any vector."""
    consortium = SimulatedConsortium(sites, runs=(Run(32, 1),))
    attempt = consortium.attempt()
    spent = dict.fromkeys(consortium.names, 0.0)
    real, start = attempt.deliver, time.process_time()

    def deliver(site: str, message: bytes) -> bytes:
        before = time.process_time()
        reply = real(site, message)
        spent[site] += time.process_time() - before
        return reply

    attempt.deliver = deliver  # type: ignore[method-assign]
    attempt.run()
    whole = time.process_time() - start
    return float(np.median(list(spent.values()))), whole - sum(spent.values())


def measured() -> tuple[list[tuple[int, float, float]], Constants]:
    """(sites, seconds of a site, seconds of the server), and the constants that follow."""
    attempt_s(3)  # the first use of libraries is not part of it
    found = [(sites, *attempt_s(sites)) for sites in SIZES]
    points = list(range(1, 101))
    evaluate = _seconds(lambda: shamir.split(bytes(32), 100, points)) / 100**2
    shares = shamir.split(bytes(32), 100, points)
    interpolate = _seconds(lambda: shamir.combine(shares, 100)) / 100**2
    one = SimulatedConsortium(3, runs=(Run(32, 1),)).aggregator
    signature = one.sign(b"label", b"")
    check = _seconds(lambda: verify(one.public_bytes, signature, b"label", b"", who=""))
    words = np.ones(1 << 20, np.uint32)
    lane = _seconds(lambda: keystream_and_add(words, 4)) / 4 / words.size
    total = masks.Accumulator(VectorShape((Run(32, words.size),), b""))
    wire = memoryview(words.tobytes())
    upload = _seconds(lambda: (masks.vector_digest(wire), total.add(wire))) / words.size
    constants = Constants(0.0, 0.0, 0.0, 0.0, check, evaluate, interpolate, lane, upload)
    (few, site_few, server_few), (many, site_many, server_many) = (
        (
            n,
            site - constants.of_site(n, Graph.complete(n)),
            server - constants.of_server(n, Graph.complete(n)),
        )
        for n, site, server in (found[0], found[-1])
    )
    neighbour = (site_many - site_few) / (many - few)
    envelope = (server_many / many - server_few / few) / (many - few)
    start, member = site_few - neighbour * (few - 1), server_few / few - envelope * (few - 1)
    return found, replace(constants, start=start, site=neighbour, member=member, server=envelope)


def _seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(9):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return sorted(times)[4]


def site_bytes(sites: int, graph: Graph) -> int:
    """Up and down beside the vector: docs/protocol.md, section 13, and names of 16 bytes in lists."""
    envelopes = 2 * 2530 * graph.neighbours
    adverts = 2554 * (graph.neighbours + 2)
    names = 16 * sites * 3  # sharing set, survivors, dropped or shares' peers
    digests = 0 if graph.neighbours == sites - 1 else 48 * sites
    return (
        envelopes + adverts + names + digests + 80 * thresholds.default_threshold(sites) + 50 * graph.holders
    )


def modelled(constants: Constants) -> list[list[str]]:
    rows = []
    for sites in (100, 300, 1000, 3000, 10_000):
        regions = max(3, sites // REGION)
        kinds = [("complete", sites, Graph.complete(sites), 1), ("sparse", sites, Graph.sparse(sites), 1)]
        if sites >= 3 * REGION:
            kinds.append((f"sparse, {regions} adders", sites, Graph.sparse(sites), regions))
            kinds.append((f"two levels, {regions} regions", REGION, Graph.complete(REGION), 1))
        for kind, cohort, graph, machines in kinds:
            there = cohort * (1 - DROPPED)
            streams = there + cohort * DROPPED * graph.neighbours * (1 - DROPPED)
            stream = constants.lane * LANES
            server = constants.of_server(cohort, graph) + stream * streams + constants.upload * LANES * there
            rows.append(
                [
                    f"{sites:,}",
                    kind,
                    f"{graph.neighbours:,}",
                    f"{constants.of_site(cohort, graph):,.1f}",
                    f"{stream * (graph.neighbours + 1):,.1f}",
                    f"{site_bytes(cohort, graph) / 1e6:,.1f}",
                    f"{server / machines:,.0f}",
                    f"{4 * LANES * cohort / machines / 1e9:,.1f}",
                ]
            )
    return rows


def changed() -> list[list[str]]:
    """What two levels change beside the cost."""
    rows = []
    at_top = _distance(3.0)
    for sites, region in ((30, 10), (300, 100), (1000, 100), (10_000, 100)):
        regions, least = sites // region, thresholds.default_threshold(region)
        lost = [stats.binom.cdf(thresholds.default_threshold(n) - 1, n, 0.9) for n in (sites, region)]
        rows.append(
            [
                f"{sites:,} in {regions}",
                f"{thresholds.default_colluders(sites) + 1:,}",
                str(thresholds.default_colluders(region) + 1),
                f"{region - least} of {region}",
                f"{lost[0]:.1g}",
                f"{lost[1]:.1g}",
                f"{gaussian_epsilon(at_top * math.sqrt(regions), DELTA):.1f}",
                f"{math.sqrt(regions):.1f}",
            ]
        )
    return rows


def _distance(epsilon: float) -> float:
    """Sensitivity in standard deviations of the Gaussian release with that epsilon."""
    low, high = 1e-3, 10.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) < DELTA else (low, middle)
    return low


def main() -> None:
    found, constants = measured()
    rows = [
        [
            str(sites),
            f"{1000 * site:.1f}",
            f"{1000 * constants.of_site(sites, Graph.complete(sites)):.1f}",
            f"{1000 * server:.1f}",
            f"{1000 * constants.of_server(sites, Graph.complete(sites)):.1f}",
        ]
        for sites, site, server in found
    ]
    print(sections.machine(), "\n")
    columns = ["sites", "a site, ms", "its model, ms", "the server, ms", "its model, ms"]
    print(sections.table(columns, rows), "\n")
    print(constants, "\n")
    columns = ["sites", "how", "neighbours", "site: keys and shares, s", "site: masks, s"]
    columns += ["site: MB beside the vector", "busiest server, s", "its vectors, GB"]
    print(sections.table(columns, modelled(constants)), "\n")
    columns = ["sites, in regions", "colluders too many, flat", "too many in one region, two levels"]
    columns += ["may drop in a region", "sum lost at 10% dropouts, flat", "a region lost, two levels"]
    columns += ["epsilon of a region's sum, 3.0 at the top", "or noise at the top, times"]
    print(sections.table(columns, changed()))


if __name__ == "__main__":
    main()
