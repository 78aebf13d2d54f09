"""Noise in the secure sum that hides one unit: sensitivity, headroom, and what honest sites leave of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from secfed.dp.accounting.events import UnitDiscreteGaussian, UnitSkellam, from_value, to_value
from secfed.dp.accounting.interface import statement
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.mechanisms.noise import SiteNoise
from secfed.dp.mechanisms.unit_noise import UnitNoise
from secfed.errors import ConfigError, RangeError
from secfed.wire.layout import Field, Layout
from tests.dp.mechanisms.test_noise import encoder, lanes_of, totals, upload

SITES, RECORDS = 5, 200
BOUNDS = {"sums": float(RECORDS), "count": 2.0 * RECORDS}


def layout(bits: int = 32, elements: int = 40) -> Layout:
    return Layout(
        (Field("sums", (elements,), BOUNDS["sums"], bits), Field("count", (), BOUNDS["count"], 64)),
        sites=SITES,
    )


def planned(base: Layout | None = None, **options: object) -> UnitNoise:
    settings: dict[str, object] = {
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "min_survivors": 4,
        "colluders": 2,
        "scales": {"count": 2.0},
        "bounds": BOUNDS,
        **options,
    }
    return UnitNoise.plan(base or layout(), **settings)  # type: ignore[arg-type]


def of_records(units: torch.Tensor) -> dict[str, torch.Tensor | float]:
    """A site's sums over [n, 41] units of norm 1 at most, the last element in the field with scale 2."""
    summed = units.sum(dim=0)
    return {"sums": summed[:-1], "count": 2.0 * float(summed[-1])}


def vector(noise: SiteNoise, lanes: list[np.ndarray]) -> np.ndarray:
    """Ring integers in scaled units, for norms."""
    parts = []
    for run, read in zip(noise.layout.shape.runs, lanes, strict=True):
        (item,) = (one for one in noise.layout.ordered if one.bits == run.bits)
        signed = read.view(np.int16 if run.bits == 16 else np.int32 if run.bits == 32 else np.int64)
        parts.append(signed.astype(float) * noise._step(item))
    return np.concatenate(parts)


@given(seed=st.integers(0, 10_000), bits=st.sampled_from([16, 32]), place=st.integers(0, RECORDS - 1))
def test_no_unit_moves_the_integers_by_more_than_the_event_says(seed: int, bits: int, place: int) -> None:
    """With any other records, in any direction, after clipping and rounding."""
    noise = planned(layout(bits))
    units = torch.randn(RECORDS, 41, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    units /= units.norm(dim=1, keepdim=True).clamp_min(1.0)
    without = torch.cat([units[:place], units[place + 1 :]])
    words = seed.to_bytes(32, "big")
    one, other = (
        vector(noise, lanes_of(noise, encoder(noise, of_records(some), words))) for some in (units, without)
    )
    event = noise.event(1, Adjacency.ADD_OR_REMOVE_RECORD)
    coarsest = max(noise._step(item) for item in noise.layout.fields)
    assert np.linalg.norm(one - other) <= noise.l2 == pytest.approx(event.l2 * coarsest)
    assert np.abs(one - other).sum() <= noise.l1


@pytest.mark.parametrize("distribution", ["skellam", "discrete-gaussian"])
def test_honest_sites_leave_what_was_claimed_when_colluders_subtract_theirs(distribution: str) -> None:
    noise = planned(layout(elements=4_000), kind=distribution)
    zeros: dict[str, torch.Tensor | float] = {"sums": torch.zeros(4_000), "count": 0.0}
    for survivors in (4, 5):
        uploads = [upload(noise, zeros, 10 * number) for number in range(survivors)]
        whole, shares = (totals(noise, some)["sums"].numpy() for some in (uploads, uploads[:2]))
        known = whole - shares  # two colluders know what they added
        claimed = noise.noise_multiplier * noise.clip_norm
        deviation = claimed * math.sqrt((survivors - 2) / 2)
        assert deviation >= claimed
        low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(known))
        assert low < float(np.sum((known / deviation) ** 2)) < high
        assert stats.kstest(known / deviation, "norm").pvalue > 1e-4


def test_a_site_far_beyond_its_bound_still_fits_with_its_noise() -> None:
    """What it has beyond the bound is cut off, whatever it is: nothing is refused that depends on records."""
    noise = planned()
    for size in (1e3, 1e9, 1e300):
        values = {"sums": torch.full((40,), size, dtype=torch.float64), "count": size}
        read = lanes_of(noise, noise.noised(encoder(noise, values, bytes(32)), bytes(32)))
        found = vector(noise, read)[:40]  # the bound and this site's noise, of deviation sqrt(2)
        assert abs(found.mean() - BOUNDS["sums"]) < 6 * math.sqrt(2 / 40)
    with pytest.raises(RangeError, match="NaN or Inf"):
        noise.clip({"sums": torch.zeros(40), "count": math.nan})


def test_totals_beyond_all_records_and_noise_are_refused() -> None:
    noise = planned()
    full: dict[str, torch.Tensor | float] = {"sums": torch.full((40,), BOUNDS["sums"]), "count": 1.0}
    noise.check_totals(totals(noise, [upload(noise, full, number) for number in range(5)]))
    with pytest.raises(RangeError, match="less noise"):
        noise.check_totals(totals(noise, [upload(noise, full, number) for number in range(3)]))


@pytest.mark.parametrize(
    ("distribution", "kind"), [("skellam", UnitSkellam), ("discrete-gaussian", UnitDiscreteGaussian)]
)
def test_the_event_is_one_of_records_and_reads_back(distribution: str, kind: type) -> None:
    noise = planned(kind=distribution)
    event = noise.event(3, Adjacency.ADD_OR_REMOVE_RECORD)
    assert type(event) is kind
    assert from_value(to_value(event)) == event
    of_site = SiteNoise.plan(
        layout(), clip_norm=1.0, noise_multiplier=2.0, min_survivors=4, colluders=2, kind=noise.kind
    ).event(3)
    assert to_value(of_site)["event"] != to_value(event)["event"]
    # Replacing is adding and removing: twice as far, so epsilon grows.
    replaced = noise.event(3, Adjacency.REPLACE_RECORD)
    assert statement([replaced], 1e-5).epsilon > statement([event], 1e-5).epsilon
    with pytest.raises(ConfigError, match="protects a record"):
        noise.event(1, Adjacency.ZERO_OUT_SITE)


@pytest.mark.parametrize(("survivors", "colluders"), [(2, 1), (3, 2), (5, 4)])
def test_the_noise_of_one_honest_site_is_not_enough(survivors: int, colluders: int) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.noise") as refused:
        planned(min_survivors=survivors, colluders=colluders)
    assert 'privacy.noise = "site"' in str(refused.value)
