"""A sparse graph of masks: with whom a site shares them, and how many holders keep its secrets.

In the complete graph every site masks towards, and shares its secrets among, all others. In a sparse one each
site draws ``k`` *holders* at random, after the advertised keys are fixed, shares its secrets among them with
a threshold of its own, and masks towards them and towards every site that drew it (its *neighbours*). How
many it needs it computes from the specification that it accepted and from what it tolerates itself.

Let n sites be enrolled, c of them collude, and ``least`` be the fewest sites that a sum may have. Suppose the
server unmasked a sum over a honest sites with a < least - c. Each of these must have tau of its k holders
among the a - 1 others and the colluders: whoever else held a share and gave it out would be in the sum.
Holders are drawn independently, so that the server finds such a set with a probability of at most

    sum over a from 1 to least - c - 1 of  C(n - c, a) * Pr[Hypergeometric(m - 1, a - 1 + c, k) >= tau] ^ a

with m sites advertised, whatever sites it lets drop once it has seen the graph. The sites choose k and tau so
that the term of every a is at most 2^-(SECURITY_BITS + a) in all attempts together: the sum then holds for
sites that were shown different advertised sets, too, and for any smaller number of colluders. The term a = 1
is also the privacy of the shared secrets. docs/protocol.md, section 10.7, has the whole argument.

Source: Bell, Bonawitz, Gascon, Lepoint, Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead", CCS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

SECURITY_BITS: Final = 40  # an exchange fails to hide a part of its sum with probability 2^-40 at most
ATTEMPTS: Final = 16  # attempts of one exchange that a site takes part in: the server sees a graph in each
DROPOUT_RATE: Final = 0.1  # of a study that names none
LOST_SUMS: Final = 1e-3  # of sums in which as many sites drop, at random, as the study expects
_ROUNDING: Final = 1e-6  # bits; more than floating point is wrong by


@dataclass(frozen=True)
class Holders:
    """How one site shares its secrets: among so many holders, of whom so many rebuild them."""

    count: int
    threshold: int


@dataclass(frozen=True)
class SparseGraph:
    """What a study says about its graph; ``dropout_rate`` is the share of sites that may drop at random."""

    dropout_rate: float = DROPOUT_RATE

    def holders(self, enrolled: int, least: int, colluders: int, advertised: int) -> Holders:
        """The fewest holders that a site of this roster may have, with their threshold.

        ``least`` is the fewest survivors that a sum may have. Where nothing less will do, all other sites are
        holders, and the graph is complete.
        """
        return _fewest(enrolled, least, colluders, advertised, self.dropout_rate, SECURITY_BITS)

    def survives(self, holders: Holders, least: int, advertised: int) -> bool:
        """Whether the dropouts that the study expects leave a site enough of its holders.

        Everybody as a holder is taken as well: where nothing less hides a part, more silence costs the sum.
        """
        if holders == Holders(advertised - 1, least - 1):
            return True
        return log2_lost(advertised, self.dropout_rate, holders) <= math.log2(LOST_SUMS)


def draw(others: Sequence[str], count: int, below: Callable[[int], int]) -> frozenset[str]:
    """``count`` distinct members, every set of so many equally likely."""
    left = list(others)
    return frozenset(left.pop(below(len(left))) for _ in range(count))


def log2_choose(whole: int, part: int) -> float:
    """log2 of the number of ways to choose."""
    gamma = math.lgamma
    return (gamma(whole + 1) - gamma(part + 1) - gamma(whole - part + 1)) / math.log(2)


def log2_tail(population: int, marked: int, drawn: int, least: int) -> float:
    """log2 of the probability that at least ``least`` of ``drawn`` members are marked; rounded up."""
    if least <= max(0, drawn + marked - population):
        return 0.0
    ways = [
        log2_choose(marked, hits) + log2_choose(population - marked, drawn - hits)
        for hits in range(least, min(marked, drawn) + 1)
    ]
    if not ways:
        return -math.inf
    top = max(ways)
    total = top + math.log2(math.fsum(2.0 ** (way - top) for way in ways))
    return min(0.0, total - log2_choose(population, drawn) + _ROUNDING)


def log2_part(enrolled: int, colluders: int, advertised: int, holders: Holders, size: int) -> float:
    """log2 of the bound on a sum over exactly ``size`` honest sites; rounded up."""
    tail = log2_tail(advertised - 1, size - 1 + colluders, holders.count, holders.threshold)
    return log2_choose(enrolled - colluders, size) + size * tail + _ROUNDING


def hides(enrolled: int, colluders: int, advertised: int, holders: Holders, size: int, bits: float) -> bool:
    """Whether ``size`` honest sites and ``colluders`` are no sum of their own but with 2^-(bits + size).

    Nor is any other set of as many sites in all, of which fewer collude: with h honest sites one colluder
    less changes the bound by tail * (h + 1) / (size + 1), which falls with the size. Because C(h, size) is
    at least (h / size)^size, it is below one half where this function says yes. Sets of ``colluders`` sites
    or fewer in all are covered with ``size`` 1, where the honest one is counted as if it could be any site.
    """
    tail = log2_tail(advertised - 1, size - 1 + colluders, holders.count, holders.threshold)
    sets = math.log2(enrolled) if size == 1 else log2_choose(enrolled - colluders, size)
    return sets + size * tail + _ROUNDING <= -(bits + size)


@lru_cache(maxsize=1024)
def log2_lost(advertised: int, dropout_rate: float, holders: Holders) -> float:
    """log2 of the bound on a sum that is lost because a site has too few holders left; rounded up."""
    others = advertised - 1
    dropped = math.ceil(dropout_rate * others)
    return math.log2(advertised) + log2_tail(
        others, dropped, holders.count, holders.count - holders.threshold + 1
    )


@lru_cache(maxsize=256)
def _fewest(
    enrolled: int, least: int, colluders: int, advertised: int, dropout_rate: float, bits: int
) -> Holders:
    per_attempt = bits + math.log2(ATTEMPTS)
    sizes = list(range(1, least - colluders))
    threshold = 0
    for count in range(1, advertised - 1):
        # One holder more carries at most one share more: fewer draws lose fewer, whatever is drawn.
        threshold += 1
        while threshold and log2_lost(advertised, dropout_rate, Holders(count, threshold)) > math.log2(
            LOST_SUMS
        ):
            threshold -= 1
        if not threshold:
            continue
        holders = Holders(count, threshold)
        for size in sizes:
            if not hides(enrolled, colluders, advertised, holders, size, per_attempt):
                # What refused this many refuses one more first: nearly all are turned down at once.
                sizes.remove(size)
                sizes.insert(0, size)
                break
        else:
            return holders
    return Holders(advertised - 1, least - 1)
