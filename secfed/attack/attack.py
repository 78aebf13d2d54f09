"""What an attack is: who tries what, what must stop it, and where the documents admit that nothing does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from secfed.attack.evidence import Finding
from secfed.attack.scene import SimulatedConsortium
from secfed.crypto.lanes import Run
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError

Protection = Literal["plain", "masked", "closed", "encrypted"]

AGGREGATOR: Final = "the aggregator"
LANES: Final = 4096
_NUMBER = re.compile(r"refusal (\d+): ")


class Impossible(Exception):  # not an error: an attack that this consortium leaves no room for
    """It cannot be tried here; the text says why."""

    def __init__(self, reason: str = "not possible with so few") -> None:
        super().__init__(reason)


@dataclass(frozen=True)
class AttackSetting:
    """How many hospitals are attacked; the seed decides updates and identities, everything else is random."""

    hospitals: int
    seed: int = 0

    def consortium(self, **options: Any) -> SimulatedConsortium:
        """A new consortium; ``options`` as :class:`SimulatedConsortium` takes them."""
        return SimulatedConsortium(self.hospitals, seed=self.seed, **{"runs": (Run(32, LANES),), **options})

    def between(self, least: int, most: int) -> int:
        """The number of hospitals, cut to ``most``; :class:`Impossible` if fewer than ``least``."""
        if self.hospitals < least:
            raise Impossible
        return min(self.hospitals, most)


Play = Callable[[AttackSetting], Finding]


@dataclass(frozen=True)
class Attack:
    """One attempt to learn something of a single hospital, or to stop or frame one."""

    name: str
    protection: Protection
    who: str  # the adversary, and what it does, in words
    what: str
    run: Play  # sets the scene and plays; raises :class:`Impossible` where that cannot be
    refusals: tuple[Refusal, ...] = ()  # one of these must stop it, where a refusal of a hospital does
    # the heading of SECURITY.md that admits that it succeeds; None where it must bring nothing
    limit: str | None = None
    defence: str = "masks"  # what stops it, in a word or two, where no refusal does

    @property
    def expected(self) -> Literal["nothing", "everything"]:
        """What the documents say it learns."""
        return "nothing" if self.limit is None else "everything"

    def as_documented(self, finding: Finding) -> bool:
        """Whether it ended as the documents say."""
        required = {refusal.number for refusal in self.refusals}
        return finding.learned == self.expected and (not required or bool(required & finding.refusals))


def attack(
    name: str, what: str, *, who: str = AGGREGATOR, on: Protection = "masked", **verdict: Any
) -> Callable[[Play], Attack]:
    """Make a function that plays an attack an :class:`Attack`; ``verdict`` is its last three attributes."""
    return lambda play: Attack(name, on, who, what, play, **verdict)


def attacks_of(module: Mapping[str, object]) -> tuple[Attack, ...]:
    """The attacks that a module defines, in its order, from its ``vars()``."""
    return tuple(one for one in module.values() if isinstance(one, Attack))


def numbers(refusals: Iterable[SecfedError]) -> frozenset[int]:
    """The numbers of the refusals among these errors."""
    matches = (_NUMBER.match(error.message) for error in refusals)
    return frozenset(int(match.group(1)) for match in matches if match)


@contextmanager
def attack_folder() -> Iterator[Path]:
    """A folder for what hospitals write while they are attacked."""
    with TemporaryDirectory(prefix="secfed-attack-") as folder:
        yield Path(folder)
