"""Site-level noise in the secure sum: bounds, distribution for every survivor set, headroom."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from secfed.crypto.keystream import RoundingStream
from secfed.crypto.lanes import Run, VectorSource
from secfed.dp.accounting.events import DistributedDiscreteGaussian, Skellam
from secfed.dp.accounting.interface import Rdp, calibrate
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.mechanisms.noise import NoisedSource, SiteNoise
from secfed.errors import ConfigError, RangeError
from secfed.wire.layout import Field, Layout, Totals
from tests.dp.oracles import FALSE_ALARM, chi_square_p, skellam_pmf
from tests.simulator import Consortium

SITES = 5


def layout(elements: int = 40, bits: int = 32, sites: int = SITES) -> Layout:
    return Layout(
        (Field("update", (elements,), 1.0, bits), Field("weight", (), 1.0, 64), Field("loss", (), 8.0, 64)),
        sites=sites,
    )


def planned(base: Layout | None = None, **options: object) -> SiteNoise:
    settings: dict[str, object] = {
        "clip_norm": 1.0,
        "noise_multiplier": 0.5,
        "min_survivors": 3,
        "colluders": 1,
        "scales": {"loss": 4.0},
        **options,
    }
    return SiteNoise.plan(base or layout(), **settings)  # type: ignore[arg-type]


def summands(seed: int, elements: int = 40, size: float = 3.0) -> dict[str, torch.Tensor | float]:
    torch.manual_seed(seed)
    return {"update": size * torch.randn(elements), "weight": 0.3, "loss": 2.5}


def lanes_of(noise: SiteNoise, source: VectorSource, chunk: int | None = None) -> list[np.ndarray]:
    """The ring integers of a source, read in pieces as a protection may."""
    runs = []
    for run in noise.layout.shape.runs:
        lanes = np.empty(run.count, run.dtype)
        for start in range(0, run.count, chunk or run.count):
            source.fill(run, lanes[start : start + (chunk or run.count)])
        runs.append(lanes)
    return runs


def encoder(noise: SiteNoise, values: dict[str, torch.Tensor | float], words_key: bytes) -> VectorSource:
    """What a site contributes without noise."""
    return noise.layout.encoder(noise.clip(values), RoundingStream(words_key))


def upload(noise: SiteNoise, values: dict[str, torch.Tensor | float], seed: int) -> list[np.ndarray]:
    """One site's ring integers, noise included."""
    source = noise.noised(encoder(noise, values, bytes([seed]) * 32), bytes([seed + 1]) * 32)
    return lanes_of(noise, source, chunk=7)


def totals(noise: SiteNoise, uploads: list[list[np.ndarray]]) -> Totals:
    sums = tuple(np.sum(runs, axis=0, dtype=runs[0].dtype) for runs in zip(*uploads, strict=True))
    names = tuple(f"site-{number}" for number in range(len(uploads)))
    return noise.layout.decode(sums, names)


@given(seed=st.integers(0, 1000), size=st.sampled_from([0.0, 0.01, 1.0, 1e6]))
def test_everything_is_clipped_jointly(seed: int, size: float) -> None:
    noise, values = planned(), summands(seed, size=size)
    clipped = noise.clip(values)

    def scaled(tensors: Mapping[str, torch.Tensor | float]) -> torch.Tensor:
        parts = [
            torch.as_tensor(value, dtype=torch.float64) / noise.scale(name) for name, value in tensors.items()
        ]
        return torch.cat([part.reshape(-1) for part in parts])

    vector, whole = scaled(clipped), scaled(values)
    assert float(vector.norm()) <= 1.0
    factor = min(1.0, 1.0 / float(whole.norm()))
    assert torch.allclose(vector, whole * factor, rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_never_reach_the_sum(bad: float) -> None:
    with pytest.raises(RangeError, match="NaN or Inf"):
        planned().clip({**summands(1), "loss": bad})
    with pytest.raises(RangeError, match="do not match"):
        planned().clip({"update": torch.zeros(40)})


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_no_rounded_vector_exceeds_the_stated_sensitivity(bits: int) -> None:
    """Invariant 9: L2 and L1 bounds against 300 random rounded vectors, coarse and fine grids."""
    noise = planned(layout(bits=bits), noise_multiplier=0.05)
    steps = {item.name: noise._step(item) for item in noise.layout.fields}
    for seed in range(300):
        read = lanes_of(noise, encoder(noise, summands(seed), seed.to_bytes(32, "big")))
        parts = []
        for run, lanes in zip(noise.layout.shape.runs, read, strict=True):
            signed = lanes.view(np.int32 if run.bits <= 32 else np.int64).astype(float)
            names = [item for item in noise.layout.ordered if item.bits == run.bits]
            edges = np.cumsum([0] + [item.elements for item in names])
            for item, start, stop in zip(names, edges[:-1], edges[1:], strict=True):
                parts.append(signed[start:stop] * steps[item.name])
        vector = np.concatenate(parts)
        assert np.linalg.norm(vector) <= noise.l2
        assert np.abs(vector).sum() <= noise.l1


def test_without_noise_the_total_is_the_clipped_sum_within_the_rounding() -> None:
    """Invariant 9."""
    noise = planned()
    sources = [encoder(noise, summands(seed), bytes([seed]) * 32) for seed in range(SITES)]
    found = totals(noise, [lanes_of(noise, source) for source in sources])
    wanted = sum(noise.clip(summands(seed))["update"] for seed in range(SITES))
    step = noise._step(noise.layout.fields[0])
    assert torch.allclose(found["update"], torch.as_tensor(wanted), atol=SITES * step)


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_noise_does_not_depend_on_chunks_and_repeats_for_a_second_attempt(kind: str) -> None:
    noise, values = planned(kind=kind), summands(3)
    first = lanes_of(noise, noise.noised(encoder(noise, values, bytes(32)), bytes(32)))
    again = lanes_of(noise, encoder(noise, values, bytes(32)))
    bare = [lanes.copy() for lanes in again]
    add_noise(noise, again, bytes(32))
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    add_noise(noise, bare, bytes(31) + b"x")
    assert not np.array_equal(first[0], bare[0])


class AsItIs:
    """A source that leaves what lies in the lanes."""

    def fill(self, run: Run, out: np.ndarray) -> None:
        pass


def add_noise(noise: SiteNoise, runs: list[np.ndarray], noise_key: bytes) -> None:
    """This site's noise on whole runs of ring integers, in place and in two pieces."""
    source = noise.noised(AsItIs(), noise_key)
    for run, lanes in zip(noise.layout.shape.runs, runs, strict=True):
        source.fill(run, lanes[:7])
        source.fill(run, lanes[7:])


def skellam_sums(survivors: tuple[int, ...], draws: int) -> tuple[SiteNoise, np.ndarray, float]:
    """The noise of these sites' sum, in grid steps, on a coarse grid where its shape is visible."""
    base = Layout((Field("update", (draws,), 1.0, 16),), sites=SITES)
    noise = planned(base, noise_multiplier=2.0, scales={}, clip_norm=1.0)
    (run,) = noise.layout.shape.runs
    total = np.zeros(draws, dtype=np.int64)
    for site in survivors:
        lanes = np.zeros(run.count, run.dtype)
        add_noise(noise, [lanes], bytes([100 + site]) * 32)
        total += lanes.view(np.int32)
    return noise, total, noise.share_variance(noise.layout.fields[0])


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_permitted_survivor_set_has_exactly_the_skellam_distribution(count: int) -> None:
    """With and without dropouts: chi-square at 1e-6 per set, for each survivor set of that size."""
    for survivors in itertools.islice(itertools.combinations(range(SITES), count), 4):
        noise, total, share = skellam_sums(survivors, 40_000)
        variance = share * count
        assert chi_square_p(total, skellam_pmf(variance, int(12 * variance**0.5) + 20)) > FALSE_ALARM
        promised = (noise.noise_multiplier * noise.clip_norm / noise._step(noise.layout.fields[0])) ** 2
        honest = count - noise.colluders
        assert share * honest >= promised * (1 - 1e-12)


def test_the_chi_square_test_notices_a_missing_share() -> None:
    _, total, share = skellam_sums((0, 1), 40_000)
    assert chi_square_p(total, skellam_pmf(3 * share, int(12 * (3 * share) ** 0.5) + 20)) < FALSE_ALARM


def test_the_smallest_survivor_set_without_colluders_carries_the_target_within_two_percent() -> None:
    """Invariant 8: the sum over n sites of Skellam shares has variance m."""
    noise, total, share = skellam_sums((0, 1, 2), 40_000)
    promised = (noise.noise_multiplier / noise._step(noise.layout.fields[0])) ** 2
    assert total.var() == pytest.approx(share * 3, rel=0.04)
    assert share * (3 - 1) == pytest.approx(promised, rel=1e-6)


def test_decoded_totals_carry_the_noise_in_real_units() -> None:
    """KS test on totals of the whole pipeline, minus the exact sum, against the promised normal."""
    elements = 4000
    noise = planned(layout(elements), noise_multiplier=0.5, scales={"loss": 4.0})
    values = [summands(seed, elements) for seed in range(4)]
    found = totals(noise, [upload(noise, one, seed) for seed, one in enumerate(values)])
    clean = sum(noise.clip(one)["update"] for one in values)
    deviation = 0.5 * math.sqrt(4 / (3 - 1))
    rest = (found["update"] - torch.as_tensor(clean)).numpy() / deviation
    assert stats.kstest(rest, "norm").pvalue > FALSE_ALARM
    noise.check_totals(found)


@pytest.mark.parametrize("dropped", [(), ("hospital-1",), ("hospital-4",)])
def test_masked_sums_carry_the_same_noise_bit_for_bit(dropped: tuple[str, ...]) -> None:
    noise = planned()
    consortium = Consortium(SITES, runs=noise.layout.shape.runs)

    def source(site: int) -> NoisedSource:
        return noise.noised(encoder(noise, summands(site), bytes([site]) * 32), bytes([site + 1]) * 32)

    attempt = consortium.attempt(
        contributions={name: {"source": source(site)} for site, name in enumerate(consortium.names)},
        silent=dict.fromkeys(dropped, "mask"),
    )
    attempt.run()
    survivors = [site for site, name in enumerate(consortium.names) if name not in dropped]
    masked = noise.layout.decode(attempt.server.sums, attempt.server.survivors)
    in_the_clear = totals(noise, [upload(noise, summands(site), site) for site in survivors])
    assert len(masked.survivors) == len(survivors)
    assert all(torch.equal(masked[name], in_the_clear[name]) for name in masked)
    noise.check_totals(masked)


def test_scalars_get_noise_in_their_own_scale() -> None:
    noise = planned(noise_multiplier=1.0, scales={"loss": 4.0, "weight": 1.0})
    losses, weights = [], []
    zero = {"update": torch.zeros(40), "weight": 0.0, "loss": 0.0}
    for seed in range(200):
        found = totals(noise, [upload(noise, zero, seed)])
        losses.append(found.scalar("loss"))
        weights.append(found.scalar("weight"))
    share = 1.0 / math.sqrt(2)
    assert np.std(losses) == pytest.approx(4.0 * share, rel=0.35)
    assert np.std(weights) == pytest.approx(share, rel=0.35)


def test_the_event_states_what_survives_and_what_rounding_adds() -> None:
    noise = planned(layout(1000, bits=16))
    event = noise.event(7)
    assert isinstance(event, Skellam)
    assert (event.adjacency, event.count) == (Adjacency.ZERO_OUT_SITE, 7)
    coarsest = max(noise._step(item) for item in noise.layout.fields)
    assert event.l2 * coarsest > noise.clip_norm * 1.02, "on 16 bits rounding is not negligible"
    assert event.variance * coarsest**2 == pytest.approx(0.25)
    assert event.l1 >= event.l2
    assert noise.event(7, Adjacency.REPLACE_SITE).adjacency is Adjacency.REPLACE_SITE
    with pytest.raises(ConfigError, match="protects a site"):
        noise.event(1, Adjacency.REPLACE_RECORD)


def test_mixed_steps_are_bounded_by_their_coarsest() -> None:
    """The event's RDP against the sum over fields, each at its own step and its share of the norm."""
    from secfed.dp.accounting import discrete_rdp

    noise = planned(layout(30, bits=16), noise_multiplier=1.0)
    orders = np.array([2.0, 5.0, 20.0])
    event = noise.event(1)
    assert isinstance(event, Skellam)
    whole = discrete_rdp.skellam(orders, event)
    for shares in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]):
        total = np.zeros(3)
        for item, share in zip(noise.layout.fields, shares, strict=True):
            step = noise._step(item)
            l2 = noise.l2 * math.sqrt(share) / step
            l1 = l2 * math.sqrt(item.elements)
            part = Skellam(event.adjacency, l2, l1, (1.0 / step) ** 2, 1)
            total += discrete_rdp.skellam(orders, part)
        assert (total <= whole * (1 + 1e-9)).all()


def test_discrete_gaussian_shares_are_accounted_with_their_gap() -> None:
    noise = planned(kind="discrete-gaussian")
    event = noise.event(2)
    assert isinstance(event, DistributedDiscreteGaussian)
    assert event.shares == 2
    assert event.dimension == noise.layout.elements
    skellam = planned().event(2)
    assert Rdp().epsilon([event], 1e-5) == pytest.approx(Rdp().epsilon([skellam], 1e-5), rel=0.03)


def test_fine_grids_cost_what_the_gaussian_mechanism_costs() -> None:
    """Section 8: 25 releases at epsilon 8 need sigma 3.00; RDP is a little above the exact number."""
    base = Layout((Field("update", (100,), 1.0, 32),), sites=10)

    def mechanism(sigma: float):  # type: ignore[no-untyped-def]
        return planned(base, noise_multiplier=sigma, min_survivors=6, colluders=2, scales={}).event(25)

    sigma = calibrate(8.0, 1e-5, mechanism, preferred=Rdp())
    assert 3.0 <= sigma <= 3.3


def test_lanes_have_room_for_signal_and_noise_of_every_site() -> None:
    """No sum wraps: 20 exchanges at the edge of the clipping, narrow lanes, loud noise."""
    noise = planned(layout(50, bits=16), noise_multiplier=5.0)
    edge = {"update": torch.full((50,), 1e6), "weight": 0.0, "loss": 0.0}
    clean = SITES * noise.clip(edge)["update"]
    for number in range(20):
        found = totals(noise, [upload(noise, edge, number * 7 + site) for site in range(SITES)])
        noise.check_totals(found)
        assert float((found["update"] - clean).abs().max()) < 8 * 5.0 * math.sqrt(5 / 2)


def test_wrap_around_is_refused_at_the_site() -> None:
    """Invariant 9: what does not fit the headroom is never sent."""
    noise = planned(layout(10, bits=16))
    (run, *_) = noise.layout.shape.runs
    lanes = np.full(run.count, 2**15 // SITES, run.dtype)
    others = [np.zeros(one.count, one.dtype) for one in noise.layout.shape.runs[1:]]
    with pytest.raises(RangeError, match="leaves the headroom"):
        add_noise(noise, [lanes, *others], bytes(32))


def test_the_norm_test_at_decoding() -> None:
    noise = planned()
    found = totals(noise, [upload(noise, summands(seed), seed) for seed in range(3)])
    noise.check_totals(found)
    loud = Totals({**found, "update": found["update"] + 10.0}, found.survivors)
    with pytest.raises(RangeError, match="larger than clipped contributions"):
        noise.check_totals(loud)
    with pytest.raises(RangeError, match="2 survivors carry less noise"):
        noise.check_totals(Totals(dict(found), found.survivors[:2]))


def test_more_lanes_than_the_layout_has_are_refused() -> None:
    noise = planned()
    run = noise.layout.shape.runs[0]
    more = [np.zeros(one.count + (one == run), one.dtype) for one in noise.layout.shape.runs]
    with pytest.raises(RangeError, match="more lanes"):
        add_noise(noise, more, bytes(32))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"noise_multiplier": 0.0}, "noise multiplier"),
        ({"noise_multiplier": math.inf}, "noise multiplier"),
        ({"min_survivors": 6}, "3|6 survivors"),
        ({"colluders": 3}, "3 of them colluding"),
        ({"colluders": -1}, "colluding"),
        ({"scales": {"nowhere": 1.0}}, "scales"),
        ({"scales": {"loss": 0.0}}, "scales"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        planned(**options)


def test_lanes_too_narrow_for_the_noise_are_refused() -> None:
    with pytest.raises(RangeError):
        planned(Layout((Field("update", (4,), 1.0, 8),), sites=100), min_survivors=80, scales={})


@pytest.mark.parametrize(
    ("clip_norm", "fits"), [(1e308, False), (5e-324, False), (1e-6, True), (1e100, True)]
)
def test_a_clip_norm_that_cannot_be_computed_with_is_one_error_that_names_the_key(
    clip_norm: float, fits: bool
) -> None:
    def planned() -> SiteNoise:
        layout = Layout((Field("update", (4,), 1.0, 32),), 3)
        return SiteNoise.plan(layout, clip_norm=clip_norm, noise_multiplier=1.0, min_survivors=3, colluders=0)

    if fits:
        assert planned().event(1).times == 1
        return
    with pytest.raises(ConfigError, match=r"privacy\.clip_norm: ") as caught:
        planned()
    assert caught.value.remedy
