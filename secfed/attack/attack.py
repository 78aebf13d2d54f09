"""What an attack is: who tries what, what must stop it, and where the documents admit that nothing does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from secfed.attack.evidence import Finding, Learned
from secfed.attack.scene import RingVector, SimulatedConsortium
from secfed.crypto.lanes import Run
from secfed.crypto.masked import masks
from secfed.crypto.messages import Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError

Protection = Literal["plain", "masked", "encrypted"]

LANES: Final = 4096
_RUNS: Final = (Run(32, LANES),)
_NUMBER = re.compile(r"refusal (\d+): ")


class Impossible(Exception):  # not an error: an attack that this consortium leaves no room for
    """It cannot be tried here; the text says why."""

    def __init__(self, reason: str = "not possible with so few") -> None:
        super().__init__(reason)


@dataclass(frozen=True)
class AttackSetting:
    """What is attacked.

    Attributes:
        hospitals: of the consortium, all of them in the cohort.
        seed: decides updates and identities; everything else is random.
    """

    hospitals: int
    seed: int = 0

    def consortium(self, **options: Any) -> SimulatedConsortium:
        """A new consortium; ``options`` as :class:`SimulatedConsortium` takes them."""
        return SimulatedConsortium(self.hospitals, seed=self.seed, **{"runs": _RUNS, **options})


@dataclass(frozen=True)
class Attack:
    """One attempt to learn something of a single hospital, or to stop or frame one.

    Attributes:
        name: of the command line.
        protection: what it attacks.
        who: the adversary, in words.
        what: what it does, in words.
        run: does it; raises :class:`Impossible` where that cannot be.
        refusals: what must stop it, where that is a refusal of a hospital: one of these.
        limit: the heading of SECURITY.md under which the documents say that it succeeds; None for an attack
            that must bring nothing.
        defence: what stops it, in a word or two, where no refusal does.
    """

    name: str
    protection: Protection
    who: str
    what: str
    run: Callable[[AttackSetting], Finding]
    refusals: tuple[Refusal, ...] = ()
    limit: str | None = None
    defence: str = "masks"

    @property
    def expected(self) -> Learned:
        """What it must bring."""
        return "nothing" if self.limit is None else "everything"

    def as_documented(self, finding: Finding) -> bool:
        """Whether it ended as the documents say."""
        wanted = {refusal.number for refusal in self.refusals}
        return finding.learned == self.expected and (not wanted or bool(wanted & finding.refusals))


def numbers(refusals: Iterable[SecfedError] | Mapping[str, SecfedError]) -> frozenset[int]:
    """The numbers of refusals."""
    errors = refusals.values() if isinstance(refusals, Mapping) else refusals
    found = (_NUMBER.match(error.message) for error in errors)
    return frozenset(int(match.group(1)) for match in found if match)


def lanes_of(consortium: SimulatedConsortium, upload: Upload) -> RingVector:
    """A masked vector as ring integers."""
    total = masks.Accumulator(consortium.shape)
    total.add(upload.vector)
    return total.reduced()


def minus(consortium: SimulatedConsortium, one: RingVector, *others: RingVector) -> RingVector:
    """The difference in the ring."""
    runs = []
    for index, run in enumerate(consortium.shape.runs):
        rest = one[index].copy()
        for other in others:
            rest = rest - other[index]
        runs.append(rest & run.dtype.type((1 << run.bits) - 1))
    return tuple(runs)
