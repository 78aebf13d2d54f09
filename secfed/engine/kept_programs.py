"""Site programs that are made when they are needed: a simulation of a thousand hospitals holds a few dozen.

A program has a model and one site's records. What it keeps between rounds (:meth:`SiteProgram.save`) is
little, and is all that stays of one that is put away. Nothing else may matter: the agent of a hospital goes
on from it after a restart, and a worker that replaces another does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from secfed.algorithms.framework.base import SiteProgram
from secfed.algorithms.framework.randomness import seeded
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.dp.training.unit_sums import UnitSums
from secfed.wire.layout import Exchange, State, Summands

PROGRAMS_KEPT: Final = 32  # in one process
PROGRAM: Final = "program/"  # what the program saved, beside what its privacy did


class KeptProgram(SiteProgram):
    """One site's program, wherever it works, that another process can go on with."""

    @abstractmethod
    def kept(self) -> State:
        """What the next process needs, between two rounds: whatever the engine."""

    @abstractmethod
    def go_on(self, kept: State) -> None:
        """Go on from :meth:`kept`; before any work."""


class KeptPrograms:
    """Which programs are there: those that worked last."""

    def __init__(self, most: int = PROGRAMS_KEPT) -> None:
        self._most = most
        self._here: OrderedDict[str, MadeWhenNeeded] = OrderedDict()

    def use(self, site: str, program: MadeWhenNeeded) -> None:
        """This one works next; the one that has not worked for longest goes if there are too many."""
        self._here[site] = program
        self._here.move_to_end(site)
        while len(self._here) > self._most:
            self._here.popitem(last=False)[1].put_away()


class MadeWhenNeeded(KeptProgram):
    """One site's program; made once at first, so that what is wrong with its records shows at once.

    Args:
        make: makes it as it is before any work.
        seed: for own code that draws from torch's global generator: the same numbers in whatever process.
    """

    def __init__(self, site: str, make: Callable[[], SiteProgram], kept: KeptPrograms, seed: int) -> None:
        self._site, self._make, self._kept, self._seed = site, make, kept, seed
        self._program: SiteProgram | None = None
        self._state: State = {}  # of one that was put away
        self._worked = False
        self._privacy: LocalPrivacy | None = None
        self._sums: UnitSums | None = None
        self._there()

    def _there(self) -> SiteProgram:
        program = self._program
        if program is None:
            program = self._make()
            if self._privacy is not None:
                program.use_privacy(self._privacy)
            if self._sums is not None:
                program.use_unit_sums(self._sums)
            if self._state:
                program.load(self._state)
            self._program, self._state = program, {}
        self._kept.use(self._site, self)
        return program

    def put_away(self) -> None:
        """Keep what the program keeps, and nothing else of it."""
        self._state, self._program = self.save(), None
        if self._sums is not None:
            self._sums.rest()

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """As the program's."""
        program, self._worked = self._there(), True
        with seeded(self._seed, "work", self._site, round_number, exchange.name):
            return program.contribute(round_number, exchange, broadcast)

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """As the program's."""
        return self._there().settled(round_number, exchange)

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """As the program's, now and whenever it is made again."""
        self._there().use_privacy(privacy)
        self._privacy = privacy

    def use_unit_sums(self, sums: UnitSums) -> None:
        """As :meth:`use_privacy`."""
        self._there().use_unit_sums(sums)
        self._sums = sums

    def save(self) -> State:
        """As the program's; nothing before its first work."""
        if self._program is None or not self._worked:
            return self._state
        return self._program.save()

    def load(self, state: State) -> None:
        """As the program's."""
        self._there().load(state)
        self._worked = True

    def kept(self) -> State:
        """See :class:`KeptProgram`."""
        own = {PROGRAM + name: value for name, value in self.save().items()}
        return own if self._privacy is None else own | self._privacy.save()

    def go_on(self, kept: State) -> None:
        """See :class:`KeptProgram`."""
        own = {name.removeprefix(PROGRAM): kept[name] for name in kept if name.startswith(PROGRAM)}
        if own:
            self.load(own)
        if self._privacy is not None:
            self._privacy.load({name: kept[name] for name in kept if not name.startswith(PROGRAM)})
