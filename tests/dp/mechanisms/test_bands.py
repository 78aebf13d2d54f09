"""The tables that decide most candidates: against the exact chances, and against a sampler without tables."""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from secfed.dp.mechanisms import sampler as sampler_module
from secfed.dp.mechanisms.bands import CELL_BITS, SURE_BITS, TOP_BITS, Bands
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.mechanisms.sampler import DiscreteGaussian, NoiseSampler, RoundedNormal, SkellamTarget, Target
from tests.dp.oracles import FALSE_ALARM, deviation_p

MARGIN = 2.0**-36  # the sampler's own
TARGETS: list[Target] = [
    RoundedNormal(0.3),
    RoundedNormal(64.0),
    RoundedNormal(1.9 * 2.0**20),
    RoundedNormal(2.0**48.9),
    DiscreteGaussian(1e-3),
    DiscreteGaussian(0.4),
    DiscreteGaussian(37.3),
    DiscreteGaussian(700.0),
    SkellamTarget(1e-5),
    SkellamTarget(90.0),
    SkellamTarget(5000.0),
    SkellamTarget(2.0**97),
]
# The first 50,000 numbers under the key 00 01 .. 1f, as little-endian int64, by SHA-256; and with a margin
# of 2^-9, which leaves hundreds of them to the decimal comparison.
DRAWN = {
    RoundedNormal(2.0**13): ("ceebfe54d2818cdb3515b200eb21d933", "4fab2de391bcc085c555b467ef83d7b0"),
    RoundedNormal(300.0): ("f9ff8532243698d455260f70114a22dd", "75e9e3eb007e7990f2f0e183c7d0f9cb"),
    DiscreteGaussian(0.4): ("433ac2a6c56da490fc7b433267a3cbfa", "55cfca4dbabb749ca152349207a75d39"),
    DiscreteGaussian(37.3): ("0785c232fd7605b846b861a509499620", "69a2e30d344d590605b14c97ff5de4c4"),
    SkellamTarget(90.0): ("ce1dafeab7fe4caeabf6dc52dc6546cc", "80c001feb898107f10d99c153da68563"),
    SkellamTarget(5000.0): ("5068f1bdbdb19d82692c95dd05b5f349", "b29e2ef48ba6f9e02d00eb59b6e6620d"),
    SkellamTarget(1e12): ("a17c6b4eac61cb4b5086b6a789e07183", "23ad78f2d24d8199a8f051378dd31ba3"),
}
every_target = pytest.mark.parametrize("target", TARGETS, ids=repr)


class WithoutTables(NoiseSampler):
    """The same words, and every candidate compared in double precision: what the tables must not change."""

    def _block(self) -> NDArray[np.int64]:
        words = self._random.words(2 * 8192)
        choice, place = words[:8192], words[8192:]
        band = self._bands.of((choice >> np.uint64(32)).astype(np.uint32))
        accepted = self._compare(band, choice, place)
        bits = self._bands.width_bits
        whole = (band << bits) + (place >> np.uint64(1) >> np.uint64(63 - bits)).astype(np.int64)
        negative = (choice >> np.uint64(31)) & np.uint64(1) == 1
        if self.target.continuous:
            whole += (place << np.uint64(bits) >> np.uint64(63)).astype(np.int64)
        else:
            accepted &= ~(negative & (whole == 0))
        return np.where(negative, -whole, whole)[accepted]


class Words:
    """In place of a random stream: the given words, then zeros."""

    def __init__(self, *first: int) -> None:
        self._first = first

    def words(self, count: int) -> NDArray[np.uint64]:
        out = np.zeros(count, dtype=np.uint64)
        out[: len(self._first)] = self._first
        self._first = ()
        return out


def stream() -> SecureRandom:
    return SecureRandom(bytes(range(32)))


@every_target
def test_tables_change_no_number(target: Target) -> None:
    count = 20_000
    assert np.array_equal(
        NoiseSampler(target, stream()).take(count), WithoutTables(target, stream()).take(count)
    )


@pytest.mark.parametrize(("target", "digests"), DRAWN.items(), ids=map(repr, DRAWN))
def test_a_stored_key_gives_the_noise_that_it_gave_before(target: Target, digests: tuple[str, str]) -> None:
    """An exchange that was cut off is worked on again, perhaps by newer software: it is one release.

    Other numbers here need another label of the noise key, and a refusal of work begun under the old one.
    """
    for options, digest in zip(({}, {"margin": 2.0**-9}), digests, strict=True):
        drawn = NoiseSampler(target, stream(), **options).take(50_000)
        assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:32] == digest


@every_target
def test_a_named_band_is_that_of_all_its_choices(target: Target) -> None:
    bands = Bands(target, MARGIN)
    low = np.arange(2**TOP_BITS, dtype=np.uint64) << np.uint64(32 - TOP_BITS)
    lowest = bands.of(low.astype(np.uint32))
    highest = bands.of((low + np.uint64(2 ** (32 - TOP_BITS) - 1)).astype(np.uint32))
    named = bands.named != bands.undecided
    assert np.array_equal(bands.named[named], lowest[named])
    assert np.array_equal(bands.named[named], highest[named])
    assert named.mean() > 0.998


@every_target
def test_tables_agree_with_exact_chances(target: Target) -> None:
    """In every cell, at its first and last magnitude, in decimal arithmetic."""
    bands = Bands(target, MARGIN)
    cells = bands.undecided << CELL_BITS
    assert not bands.sure[cells:].any()
    assert (bands.over[cells:] == 2**SURE_BITS).all()
    width = Fraction(2) ** (bands.width_bits - CELL_BITS)
    picked = np.random.default_rng(1).choice(cells, min(cells, 150), replace=False)
    with localcontext() as context:
        context.prec = 60
        for cell in picked.tolist():
            first, last = cell * width, (cell + 1) * width
            if not target.continuous:
                first, last = Fraction(first.__floor__()), Fraction(last.__ceil__() - 1)
            bound = Decimal(bands.scale) / int(bands.weights[cell >> CELL_BITS])
            most, least = (
                target.exact_log_ratio(Decimal(end.numerator) / end.denominator).exp() * bound
                for end in (first, last)
            )
            assert Decimal(int(bands.sure[cell])) <= least * 2**SURE_BITS
            assert Decimal(int(bands.over[cell])) >= min(Decimal(1), most) * 2**SURE_BITS


@every_target
def test_no_chance_is_above_one(target: Target) -> None:
    """The premise of rejection: a band's weight bounds the density at its highest point, its start."""
    bands = Bands(target, MARGIN)
    assert int(bands.weights.sum()) == 2**32
    assert bands.weights.min() > 0
    with localcontext() as context:
        context.prec = 60
        for band, weight in enumerate(bands.weights.tolist()):
            start = Decimal(band << bands.width_bits)
            assert target.exact_log_ratio(start).exp() * Decimal(bands.scale) <= weight


@pytest.mark.parametrize("target", [DiscreteGaussian(0.4), DiscreteGaussian(40.0)], ids=repr)
def test_what_is_accepted_has_exactly_the_law(target: DiscreteGaussian) -> None:
    """All numbers enumerated: band mass times the place's share times the chance, against the definition."""
    bands = Bands(target, MARGIN)
    with localcontext() as context:
        context.prec = 80
        accepted = {}
        for whole in range(len(bands.weights) << bands.width_bits):
            weight = Decimal(int(bands.weights[whole >> bands.width_bits]))
            chance = target.exact_log_ratio(Decimal(whole)).exp() * Decimal(bands.scale) / weight
            accepted[whole] = weight / 2**32 / 2**bands.width_bits * chance / 2  # of either sign
        total = 2 * sum(accepted.values()) - accepted[0]
        variance = Decimal(target.deviation) ** 2
        density = {whole: (-Decimal(whole * whole) / (2 * variance)).exp() for whole in accepted}
        norm = 2 * sum(density.values()) - density[0]
        for whole, mass in accepted.items():
            assert abs(mass / total - density[whole] / norm) <= Decimal(2) ** -256 * density[whole]


def test_cells_are_filled_as_the_normal_law_says() -> None:
    """Chi-square over the cells on both sides, tails, and moments of a million numbers."""
    target, count = RoundedNormal(2.0**20), 1_000_000
    drawn = NoiseSampler(target, stream()).take(count)
    width = 2.0**11  # that of a cell
    edges = np.arange(-2048, 2049) * width
    observed = np.histogram(drawn, np.concatenate([[-np.inf], edges - 0.5, [np.inf]]))[0]
    mass = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges - 0.5, [np.inf]]) / target.deviation))
    enough = mass * count > 25
    rest = (observed[~enough].sum(), mass[~enough].sum())
    observed, mass = np.append(observed[enough], rest[0]), np.append(mass[enough], rest[1])
    assert len(mass) > 2000
    assert stats.chisquare(observed, mass / mass.sum() * count).pvalue > FALSE_ALARM
    for distance in (3.0, 4.0, 4.5, 5.0):
        beyond = int((np.abs(drawn) > distance * target.deviation).sum())
        assert stats.binomtest(beyond, count, 2 * stats.norm.sf(distance)).pvalue > FALSE_ALARM
    assert deviation_p(drawn, target.deviation) > FALSE_ALARM
    scaled = drawn / target.deviation
    assert abs(scaled.mean()) < 5 / count**0.5
    assert abs((scaled**4).mean() - 3) < 5 * (96 / count) ** 0.5


@pytest.mark.parametrize("target", [RoundedNormal(2.0**20), DiscreteGaussian(700.0), SkellamTarget(1e6)])
def test_the_whole_tail_is_reachable(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a band's choices, and zeros for all that is compared, give the start of the band."""
    monkeypatch.setattr(sampler_module, "_BLOCK", 1)
    bands = Bands(target, MARGIN)
    for band in range(0, len(bands.weights), 3):
        choice = 0 if not band else int(bands.edges[band - 1])
        words = cast(SecureRandom, Words(choice << 32))
        assert int(NoiseSampler(target, words).take(1)[0]) == band << bands.width_bits
    assert (len(bands.weights) << bands.width_bits) >= target.reach


@pytest.mark.parametrize("target", [RoundedNormal(2.0**20), DiscreteGaussian(700.0), SkellamTarget(1e6)])
def test_tables_leave_few_candidates_undecided(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    compare = NoiseSampler._compare

    def counted(self: NoiseSampler, *arguments: NDArray[np.int64]) -> NDArray[np.bool_]:
        asked.append(len(arguments[0]))
        return compare(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(NoiseSampler, "_compare", counted)
    NoiseSampler(target, stream()).take(500_000)
    assert 100 < sum(asked) < 500_000 / 250
