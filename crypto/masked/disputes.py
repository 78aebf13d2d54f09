"""Who takes no further part after complaints that prove nothing by themselves.

A complaint says that one of two sites does not follow the protocol, and not which: the accused may have
sealed garbage, or the accuser may be lying. Opening the envelope in public would decide it, and is not a way
out: sites that collude could have themselves accused, and collect shares of others as "evidence".

Honest sites have no disputes with each other. So with at most c sites that do not follow the protocol

- a site with more than c disputes is at fault: were it honest, all its opponents would not be;
- of any other dispute both sites are left out. At least one of them is at fault, so that a culprit costs the
  sum one honest site at most, and takes no further part itself.

Sources: Hirt, Maurer, Przydatek, "Efficient Secure Multi-party Computation", ASIACRYPT 2000 (player
elimination). That a vertex of more than c edges is in every cover by c vertices: Buss and Goldsmith,
"Nondeterminism within P", SIAM J. Comput. 22(3), 1993.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Which sites the next attempt does without."""

    at_fault: tuple[str, ...] = ()  # they cannot be honest unless more sites than expected are not
    separated: tuple[tuple[str, str], ...] = ()  # of each pair at least one is at fault; nobody can say which

    @property
    def excluded(self) -> frozenset[str]:
        """All sites that take no further part."""
        return frozenset(self.at_fault).union(*self.separated)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What an operator reads."""
        alone = (f"{site} does not follow the protocol" for site in self.at_fault)
        pairs = (f"one of {one} and {other} does not follow the protocol" for one, other in self.separated)
        return (*alone, *pairs)


def settle(disputes: Iterable[tuple[str, str]], colluders: int) -> Verdict:
    """Decide which sites to do without.

    ``disputes`` are (who complained, of whom), in the order in which pairs are to be separated.
    """
    left = list(disputes)
    at_fault: list[str] = []
    while len(at_fault) < colluders:
        opponents = {frozenset(dispute) for dispute in left}
        count = Counter(site for pair in opponents for site in pair)
        worst = max(sorted(count), key=lambda site: count[site], default=None)
        if worst is None or count[worst] <= colluders - len(at_fault):
            break
        at_fault.append(worst)
        left = [dispute for dispute in left if worst not in dispute]
    separated: list[tuple[str, str]] = []
    for one, other in left:
        if not any({one, other} & set(pair) for pair in separated):
            separated.append((one, other))
    return Verdict(tuple(at_fault), tuple(separated))
