"""What a site is made of; :func:`secfed.site.build.build_site` joins it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from secfed.algorithms.framework.base import Algorithm
from secfed.config.sections import BROADCAST_BOUND
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.crypto.messages import FinalModel
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.pipeline.stage import Stage
from secfed.protection.interface import Protection
from secfed.records.transcript import Log
from secfed.site.containment import Alarm
from secfed.wire.layout import State
from secfed.wire.quantise import Rounding


@dataclass(frozen=True)
class Member:
    """Who the site is, and the roster that its administrator pinned."""

    identity: Identity
    roster: Roster


@dataclass(frozen=True)
class Agreement:
    """What every party derives from a study."""

    study: str  # study id
    algorithm: Algorithm  # the study's plan; layouts come from here
    protection: Protection  # how summands become totals
    sites: tuple[str, ...]  # the study's, in roster order
    # digest of the model that the first broadcast must hold; None where the seed decides
    begins_with: bytes | None = None
    broadcast_bound: float = BROADCAST_BOUND  # largest magnitude of a number in a broadcast


@dataclass(frozen=True)
class Draws:
    """A site's randomness. Security: outside simulation from a key that is secret and this site's own.

    Each is fresh for every exchange, and the same for all attempts of one.
    """

    rounding: Callable[[int, int], Rounding]  # (round, exchange index) -> words for stochastic rounding
    # (round, exchange) -> 32 bytes for the noise in one sum
    noise_key: Callable[[int, str], bytes] = field(repr=False)
    # (round, exchange) -> source of sampling and noise in local steps
    local: Callable[[int, str], SecureRandom] = field(repr=False)

    @classmethod
    def seeded(cls, seed: int, site: str) -> Draws:
        """From the study's seed, so that a study gives the same model bytes every time.

        Security: whoever knows the seed can remove the noise and undo the rounding. Simulations and tests.
        """

        def rounding(number: int, index: int) -> Rounding:
            return rounding_stream_for_simulation(seed, site, str(number), str(index))

        def noise_key(number: int, exchange: str) -> bytes:
            stream = SecureRandom.for_simulation(seed, "noise in the sum", site, number, exchange)
            return stream.words(4).tobytes()

        return cls(rounding, noise_key, partial(SecureRandom.for_simulation, seed, "local steps", site))


@dataclass(frozen=True)
class Standing:
    """Where a site stands between two rounds, beside its program and its server program."""

    stopped: bool  # whether it works on nothing of the study any more
    # Where the sites open the sums:
    sums: int = 0  # how many it has taken
    last: tuple[int, int] = (0, 0)  # round and exchange index of the newest
    keys: KeyPair | None = field(default=None, repr=False)  # the study's; None while it has none


@dataclass(frozen=True)
class Services:
    """What a site tells, and asks of its surroundings."""

    log: Log  # its transcript
    # told where local work failed and added zeros. Security: what it says depends on records, and must stay
    # at this site.
    alarm: Alarm = lambda _failure: None
    # given the finished model, checked; by default nothing is done with it
    take_model: Callable[[FinalModel], None] = lambda _final: None
    # gives the model that the study begins with, where the site holds the state itself
    initial_model: Callable[[], State | None] = lambda: None
    # contain failures of values only, and let defects of the program through: simulation only
    only_values: bool = False
    # a stage that looks at what leaves the program: simulation only
    watch: Stage = field(default_factory=Stage)
