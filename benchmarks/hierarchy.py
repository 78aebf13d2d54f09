"""Masked sums of masked sums: regional aggregators, and one above them; docs/adr/027-regional-aggregators.md.

    python benchmarks/hierarchy.py [--regions 3] [--hospitals 6] [--lanes 1000]

Every region's hospitals run a masked attempt with their regional aggregator. The regional aggregators then
are the sites of an outer attempt, over the very ring integers that they unmasked. Both levels are the
sessions of ``crypto/masked`` as they are. Each sum is compared with that of one flat attempt over the same
hospitals, bit for bit, and a table says what each level held. Played: every region answers and loses one
hospital; a region is lost between its own sum and the outer one, with that number of regions, and with
enough of them to spare one.

Exits with 1 where a sum differs, or a level holds another sum than the ADR says.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import sections

from secfed.attack.scene import Attempt, Integers, RingVector, SimulatedConsortium
from secfed.crypto import thresholds
from secfed.crypto.lanes import Run
from secfed.crypto.messages import Upload
from secfed.errors import RoundAborted

_TOP: Final = 1_000_000  # seed of the outer level's identities; a region's seed is its number
_FLAT: Final = 2_000_000


@dataclass(frozen=True)
class Region:
    """One regional aggregator after its own attempt."""

    name: str
    hospitals: SimulatedConsortium
    survivors: tuple[str, ...]
    total: RingVector  # what this aggregator holds


@dataclass(frozen=True)
class Outcome:
    """What came of one exchange at both levels.

    Attributes:
        total: the sum at the top; None where the outer attempt was given up.
        flat: the sum of one flat attempt over the same hospitals; None likewise.
        held: who held which sum, in how many hospitals, and whether it was found to be so.
    """

    what: str
    regions: tuple[Region, ...]
    total: RingVector | None
    flat: RingVector | None
    held: tuple[tuple[str, str, int, bool], ...]

    @property
    def is_right(self) -> bool:
        """Whether the sum is the flat one bit for bit, and every level held what it should."""
        return same(self.total, self.flat) and all(found for *_, found in self.held)


def play(what: str, regions: int, hospitals: int, lanes: int, *, lost: int = 0) -> Outcome:
    """One exchange at both levels.

    Args:
        what: its name.
        regions: how many; each has ``hospitals``, of which the last falls silent before it uploads.
        lanes: elements of the vector, in lanes of 32 bits, beside one of 64 bits.
        lost: so many regional aggregators fall silent when they should upload their region's sum.
    """
    shape = (Run(32, lanes), Run(64, 1))
    done = tuple(_regional(number, hospitals, shape) for number in range(regions))
    top = SimulatedConsortium(regions, runs=shape, seed=_TOP)
    top.broadcast_digest = done[0].hospitals.broadcast_digest
    names = dict(zip(top.names, done, strict=True))
    gone = top.names[regions - lost :]
    outer = top.attempt(
        contributions={name: {"source": Integers(region.total)} for name, region in names.items()},
        silent=dict.fromkeys(gone, "mask"),
    )
    try:
        total: RingVector | None = outer.run().server.sums
    except RoundAborted:
        total = None
    flat = None if total is None else _flat([names[name] for name in outer.server.survivors], shape)
    return Outcome(what, done, total, flat, tuple(_held(names, outer, total)))


def _regional(number: int, hospitals: int, shape: Sequence[Run]) -> Region:
    """A region's own masked sum, which its aggregator holds when this returns."""
    consortium = SimulatedConsortium(hospitals, runs=shape, seed=number)
    consortium.broadcast_digest = bytes(32)  # all regions trained on one broadcast
    attempt = consortium.attempt(silent={consortium.names[-1]: "mask"}).run()
    total = tuple(run.copy() for run in attempt.server.sums)
    return Region(f"region {number + 1}", consortium, attempt.server.survivors, total)


def _flat(regions: Sequence[Region], shape: Sequence[Run]) -> RingVector:
    """The sum of one attempt over the hospitals of these regions, those that fell silent included."""
    updates = [one.hospitals.updates[name] for one in regions for name in one.hospitals.names]
    silent = [name not in one.survivors for one in regions for name in one.hospitals.names]
    whole = SimulatedConsortium(len(updates), runs=shape, seed=_FLAT)
    whole.updates = dict(zip(whole.names, updates, strict=True))
    gone = [name for name, is_gone in zip(whole.names, silent, strict=True) if is_gone]
    return whole.attempt(silent=dict.fromkeys(gone, "mask")).run().server.sums


def _held(
    names: Mapping[str, Region], outer: Attempt, total: RingVector | None
) -> list[tuple[str, str, int, bool]]:
    held = []
    for region in names.values():
        own = added(region.hospitals.updates[name] for name in region.survivors)
        held.append(
            (f"aggregator of {region.name}", "its sum", len(region.survivors), same(own, region.total))
        )
    uploads = {name: Upload.decode(reply) for stage, name, reply in outer.replies if stage == "mask"}
    masked = not any(
        same(outer.consortium.integers(upload), names[name].total) for name, upload in uploads.items()
    )
    if total is None:
        return [*held, ("the top", "masked sums of regions only", 0, masked)]
    there = [names[name] for name in outer.server.survivors]
    count = sum(len(region.survivors) for region in there)
    held.append(("the top", "the sum", count, masked and same(total, added(one.total for one in there))))
    rest = outer.consortium.minus(total, there[0].total)
    others = count - len(there[0].survivors)
    found = same(rest, added(one.total for one in there[1:]))
    return [*held, (f"both, with {there[0].name}", "the sum of the others", others, found)]


def added(vectors: Iterable[RingVector]) -> RingVector:
    """The sum in the ring."""
    return tuple(sum(runs[1:], start=runs[0].copy()) for runs in zip(*vectors, strict=True))


def same(one: RingVector | None, other: RingVector | None) -> bool:
    """Whether two sums are equal bit for bit, or neither is there."""
    if one is None or other is None:
        return one is other
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--regions", type=int, default=3)
    parser.add_argument("--hospitals", type=int, default=6, help="in each region")
    parser.add_argument("--lanes", type=int, default=1000)
    asked = parser.parse_args()
    count, sizes = asked.regions, (asked.hospitals, asked.lanes)
    spare = count
    while spare - thresholds.default_threshold(spare) < 1:
        spare += 1
    played = [
        play(f"{count} regions, one hospital of each drops", count, *sizes),
        play(f"{count} regions, one of them is lost", count, *sizes, lost=1),
    ]
    if spare > count:
        played.append(play(f"{spare} regions, one of them is lost", spare, *sizes, lost=1))
    for outcome in played:
        print(f"\n{outcome.what}: {told(outcome)}\n")
        rows = [
            [who, sum_of, str(hospitals), "yes" if found else "NO"]
            for who, sum_of, hospitals, found in outcome.held
        ]
        print(sections.table(["who", "holds", "hospitals in it", "checked"], rows))
    return 0 if all(outcome.is_right for outcome in played) else 1


def told(outcome: Outcome) -> str:
    """In words."""
    if outcome.total is None:
        return "the outer attempt was given up, and all hospitals' updates are spent"
    return "equal to the flat sum, bit for bit" if outcome.is_right else "NOT the flat sum"


if __name__ == "__main__":
    raise SystemExit(main())
