"""DRO weights from secure sums: equal to the plain formulas, whoever drops out, whatever is replayed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.loss import BLUR
from secfed.algorithms.dro.options import DroOptions
from secfed.algorithms.dro.rule import WEIGHT_FLOOR, DroRule
from secfed.algorithms.dro.site import SiteWeight
from secfed.config.schema import checked
from secfed.crypto.fixedpoint import FixedPoint
from secfed.errors import ConfigError, MalformedMessage, RangeError, Replay
from tests.algorithms.dro_case import a_rule, names, plain, private, totals

EXTREMES = ("low", "nearly-low", "cap", "one-high", "one-low", "spread")


def extreme(kind: str, count: int, cap: float) -> list[float]:
    return {
        "low": [0.0] * count,
        "nearly-low": [0.05 * cap * site / (count - 1) for site in range(count)],
        "cap": [cap] * count,
        "one-high": [cap] + [0.0] * (count - 1),
        "one-low": [0.0] + [cap] * (count - 1),
        "spread": [cap * site / (count - 1) for site in range(count)],
    }[kind]


def far_off(rule: DroRule, weights, losses) -> float:
    wanted = plain(rule, weights, losses)
    return float((private(rule, weights, losses) - wanted).abs().max())


# --- equal to the plain formulas


@pytest.mark.parametrize("exponent", [6.24, 10.0])
@pytest.mark.parametrize("count", [3, 4, 5, 17, 50])
def test_private_weights_are_the_plain_ones_at_every_extreme(count, exponent):
    for rho in (1e-4, 0.1, 0.6, count):
        rule = a_rule(count, cap=exponent, rho=rho, least_step_scale=0.0)
        for kind in EXTREMES:
            weights = torch.full((count,), rule.initial, dtype=torch.float64)
            for again in ("spread", kind):  # from equal weights, and from what those become
                losses = extreme(kind, count, exponent)
                assert far_off(rule, weights, losses) < 1e-6, (rho, kind)
                weights = plain(rule, weights, extreme(again, count, exponent)).clamp(min=WEIGHT_FLOOR)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_private_weights_are_the_plain_ones(data):
    count = data.draw(st.integers(3, 50))
    cap = data.draw(st.floats(0.5, 10.0))
    rule = a_rule(
        count,
        cap=cap,
        gamma=data.draw(st.floats(0.0, 10.0 / cap - 1e-9)),
        rho=data.draw(st.one_of(st.just(0.0), st.floats(1e-3, 3.0))),
        least_step_scale=0.0,
        divergence_factor=data.draw(st.sampled_from([0.5, 1.0])),
    )
    raw = data.draw(st.lists(st.floats(1e-8, 1.0), min_size=count, max_size=count))
    losses = data.draw(st.lists(st.floats(0.0, 2 * cap), min_size=count, max_size=count))
    weights = torch.tensor(raw, dtype=torch.float64) / math.fsum(raw)
    new = private(rule, weights, losses)
    torch.testing.assert_close(new, plain(rule, weights, losses), atol=1e-6, rtol=0)
    assert float(new.sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(new.max()) <= rule.largest(count)


@pytest.mark.parametrize("count", [3, 10, 50])
@pytest.mark.parametrize("exponent", [6.24, 10.0])
def test_kl_weights_are_the_plain_ones_to_a_thousandth(count, exponent):
    for rho in (1e-3, 0.1, 1.0):
        rule = a_rule(count, cap=exponent, rho=rho, least_step_scale=0.0, divergence="kl", noised=True)
        weights = plain(rule, [rule.initial] * count, extreme("spread", count, exponent)).clamp(
            min=WEIGHT_FLOOR
        )
        for kind in EXTREMES:
            assert far_off(rule, [rule.initial] * count, extreme(kind, count, exponent)) < 1e-3, (rho, kind)
            assert far_off(rule, weights, extreme(kind, count, exponent)) < 1e-3, (rho, kind)


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_with_gamma_0_or_equal_losses_equal_weights_stay_equal(divergence):
    for changes, losses in (({"gamma": 0.0}, [1.0, 5.0, 2.0, 0.1, 3.0]), ({}, [2.5] * 5)):
        rule = a_rule(5, divergence=divergence, noised=True, **changes)
        torch.testing.assert_close(private(rule, [0.2] * 5, losses), torch.full((5,), 0.2).double())


def test_rho_0_gives_equal_weights_and_a_step_scale_of_exactly_1():
    for count in (4, 5, 49):
        rule = a_rule(count, rho=0.0)
        new = private(rule, [1.0 / count] * count, [float(site % 6) for site in range(count)])
        assert new.tolist() == [1.0 / count] * count
        assert {rule.step_scale(weight, count) for weight in new.tolist()} == {1.0}


@pytest.mark.parametrize(("least", "floor"), [(0.0, WEIGHT_FLOOR), (0.25, 0.05)])
def test_a_weight_never_dies(least, floor):
    rule = a_rule(5, rho=10.0, least_step_scale=least)
    weights = [0.2] * 5
    for _ in range(40):
        weights = private(rule, weights, [6.0, 1.0, 1.0, 1.0, 1.0]).tolist()
    assert min(weights) == floor
    for _ in range(10):
        weights = private(rule, weights, [0.0, 6.0, 1.0, 1.0, 1.0]).tolist()
    assert weights[1] > 0.99


def test_step_scales():
    rule = a_rule(5)
    assert rule.radius == a_rule(5, rho=0.2, divergence_factor=1.0).radius == pytest.approx(0.2)
    top = 1.0 + math.sqrt(0.2 * 4)
    assert rule.step_scale(0.25, 5) == pytest.approx(1.25)
    assert rule.step_scale(0.9, 5) == pytest.approx(top)
    assert a_rule(5, weight_convention="simplex").step_scale(0.25, 5) == pytest.approx(0.25)
    assert a_rule(5, weight_convention="simplex").step_scale(0.9, 5) == pytest.approx(top / 5)
    assert a_rule(5, divergence="kl").step_scale(0.9, 5) < 5.0
    new = private(rule, [0.2] * 5, [6.0, 0.0, 0.0, 0.0, 0.0])
    assert rule.step_scale(float(new[0]), 5) == pytest.approx(top)


# --- refusals


def test_losses_that_are_none_count_as_the_cap_and_stop_nothing():
    rule = a_rule(5)
    for loss in (math.nan, math.inf, -math.inf):
        assert rule.summand(0.2, loss) == rule.summand(0.2, rule.cap)
        assert rule.loss(torch.tensor([1.0, loss])) == pytest.approx((1.0 + rule.cap) / 2, abs=BLUR)
    assert rule.summand(0.2, -0.123456) == rule.summand(0.2, 0.0)
    assert rule.loss(torch.tensor([1.0, -0.5])) == pytest.approx(0.5, abs=BLUR)


def test_weights_that_are_none_are_refused_without_their_value():
    rule = a_rule(5)
    with pytest.raises(RangeError):
        rule.loss(torch.tensor([]))
    for weight in (0.0, -0.1, 1.5, math.nan):
        with pytest.raises(RangeError, match="weight"):
            rule.summand(weight, 1.0)


def test_too_large_an_exponent_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.gamma.*Remedy: set algorithm\.gamma"):
        DroRule.make(DroOptions(gamma=2.0), sites=names(5), colluders=1, batch=64)
    assert DroRule.make(DroOptions(gamma=1.6), sites=names(5), colluders=1, batch=64).cap == pytest.approx(
        1.5 * math.log(64)
    )
    assert DroRule.make(DroOptions(loss_cap=4.0), sites=names(5), colluders=1, batch=1).cap == 4.0
    assert DroRule.make(DroOptions(), sites=names(5), colluders=1, batch=64, cap_factor=2.0).cap == (
        pytest.approx(2.0 * math.log(64))
    )
    with pytest.raises(ConfigError, match=r"algorithm\.loss_cap"):
        DroRule.make(DroOptions(), sites=names(5), colluders=1, batch=1)


def test_options_are_checked():
    assert checked(DroOptions, {}, "algorithm") == DroOptions()
    with pytest.raises(ConfigError, match=r"algorithm\.divergence_factor"):
        checked(DroOptions, {"divergence_factor": 0.7}, "algorithm")
    with pytest.raises(ConfigError, match=r"algorithm\.rho"):
        checked(DroOptions, {"rho": -0.1}, "algorithm")


# --- the loss


def test_a_loss_is_the_capped_mean_with_a_blur_far_below_it():
    rule = a_rule(5)
    batches = torch.tensor([1.0, 2.0, 100.0])
    mean = (1.0 + 2.0 + rule.cap) / 3
    found = rule.loss(batches)
    assert 0.0 < found - mean < BLUR
    assert rule.loss(batches) == found
    nearly = batches.clone()
    nearly[0] = torch.nextafter(nearly[0], torch.tensor(2.0))
    assert abs((rule.loss(nearly) - found) / BLUR) > 0.01  # another last bit, quite another blur


def test_blurs_are_uniform():
    rule = a_rule(5)
    parts = [torch.tensor([1.0 + step * 2.0**-20, 3.0]) for step in range(400)]
    blurs = torch.tensor([(rule.loss(part) - float(part.double().mean())) / BLUR for part in parts])
    assert 0.0 <= float(blurs.min()) < 0.05
    assert 0.95 < float(blurs.max()) < 1.0
    assert abs(float(blurs.mean()) - 0.5) < 0.06


# --- dropouts, answers, replays


def test_absent_sites_keep_their_weight_and_the_others_share_the_whole():
    rule, losses = a_rule(6), [1.0, 2.0, 3.0, 1.5, 2.5, 0.5]
    weights = [0.1, 0.15, 0.2, 0.25, 0.2, 0.1]
    answer = rule.answer(1, totals(rule, weights, losses, absent=["site-02"]))
    assert answer is not None
    assert answer.n == 5
    new = [rule.weight(*one, answer) for one in zip(rule.sites, weights, losses, strict=True)]
    assert new[2] == 0.2
    there = [0, 1, 3, 4, 5]
    wanted = plain(rule, [weights[i] for i in there], [losses[i] for i in there])
    torch.testing.assert_close(
        torch.tensor([new[i] for i in there], dtype=torch.float64), wanted, atol=1e-9, rtol=0
    )
    # It comes back with the stale weight: the sum of weights is above 1, and the next answer mends that.
    assert math.fsum(new) == pytest.approx(1.2, abs=1e-8)
    again = private(rule, new, losses)
    assert float(again.sum()) == pytest.approx(1.0, abs=1e-8)
    torch.testing.assert_close(again, plain(rule, new, losses), atol=1e-9, rtol=0)


def test_below_the_minimum_there_is_no_answer_and_nobody_changes():
    rule, losses = a_rule(5), [1.0, 2.0, 3.0, 1.5, 2.5]
    got = totals(rule, [0.2] * 5, losses, absent=["site-00", "site-01"])
    assert rule.answer(1, got) is None
    assert rule.weight("site-02", 0.2, 3.0, None) == 0.2


def test_sums_that_drown_in_rounding_give_no_answer():
    rule = a_rule(6, rho=10.0)
    weights = [1.0 - 5e-9] + [1e-9] * 5
    assert rule.answer(1, totals(rule, weights, [0.0] * 6)) is not None
    assert rule.answer(1, totals(rule, weights, [0.0] * 6, absent=["site-00"])) is None


def test_an_answer_travels_in_a_broadcast():
    rule = a_rule(5)
    answer = rule.answer(7, totals(rule, [0.2] * 5, [1.0, 2.0, 3.0, 1.5, 2.5], absent=["site-03"]))
    assert answer is not None
    state = answer.to_state()
    assert {tensor.dtype for tensor in state.values()} == {torch.float64}
    assert DroAnswer.from_state({**state, "weight": torch.zeros(2)}) == answer
    assert DroAnswer.from_state({"weight": torch.zeros(2)}) is None
    assert answer.members == (True, True, True, False, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dro/sums", None),
        ("dro/sums", torch.tensor([math.nan, 1.0])),
        ("dro/members", torch.tensor([1.0, 0.5, 1.0, 1.0, 1.0])),
        ("dro/members", torch.zeros(5)),
        ("dro/round", torch.tensor(1.5)),
        ("dro/round", torch.tensor([1.0, 2.0])),
    ],
)
def test_an_answer_that_is_none_is_refused(name, value):
    state = dict(DroAnswer(1, (1.0, 1.0), (True,) * 5).to_state())
    del state[name]
    if value is not None:
        state[name] = value
    with pytest.raises(MalformedMessage, match="DRO answer"):
        DroAnswer.from_state(state)


def test_an_answer_of_another_study_is_refused():
    rule = a_rule(5)
    for wrong in (
        DroAnswer(1, (1.0,), (True,) * 5),
        DroAnswer(1, (1.0, 1.0), (True,) * 4),
        DroAnswer(1, (1.0, 1.0), (True, True, True, False, False)),
        DroAnswer(1, (-1.0, 1.0), (True,) * 5),
    ):
        with pytest.raises(MalformedMessage):
            rule.weight("site-00", 0.2, 1.0, wrong)


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_sums_that_no_sites_add_up_to_are_refused_whatever_arithmetic_would_make_of_them(divergence):
    rule = a_rule(5, divergence=divergence, kl_nodes=2, noised=True)
    tiny = ((5e-324, 5e-324), (1e-200, 1e-300), (1e-300, 1.0))
    for sums in (*tiny, (1e200, 1.0), (1.0, 1e300), (1.7e308,) * 2):
        with pytest.raises(MalformedMessage, match="no sites add up to"):
            rule.weight("site-00", 0.2, 1.0, DroAnswer(1, sums, (True,) * 5))


@pytest.mark.parametrize("count", [2, 3, 5, 80])
def test_what_a_lying_site_can_make_of_the_sums_is_no_reason_to_stop(count):
    for rule in (a_rule(count, noised=True), a_rule(count, divergence="kl", kl_nodes=2, noised=True)):
        fields, sites = rule.fields(), len(rule.sites)
        largest = [
            2.0**63 * FixedPoint.choose(bound=one.bound, bits=64, sites=sites).step for one in fields[:2]
        ]
        sums = (largest[0], largest[-1])
        assert 0.0 < rule.weight(rule.sites[0], 1 / count, 1.0, DroAnswer(1, sums, (True,) * count)) <= 1.0


def test_a_site_gives_one_summand_per_round_and_uses_an_answer_once():
    rule, losses = a_rule(4), [1.0, 2.0, 3.0, 1.5]
    answer = rule.answer(1, totals(rule, [0.25] * 4, losses))
    start = SiteWeight.start(rule)
    waiting, summand = start.offer(rule, 1, 1.0)
    assert summand == rule.summand(0.25, 1.0)
    with pytest.raises(Replay):
        waiting.offer(rule, 1, 1.1)
    assert start.apply(rule, "site-00", answer) == start  # no summand of its own, nothing to apply
    used = waiting.apply(rule, "site-00", answer)
    assert used.weight == rule.weight("site-00", 0.25, 1.0, answer) != 0.25
    assert used.apply(rule, "site-00", answer) == used
    with pytest.raises(Replay):
        used.offer(rule, 1, 1.0)
    assert SiteWeight.load(used.save()) == used
    assert SiteWeight.load(waiting.save()) == waiting
    assert used.scale(rule) == rule.step_scale(used.weight, 4)
    assert "0.25" not in repr(start)


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_whether_an_answer_is_refused_does_not_depend_on_whether_the_site_waits_for_it(divergence):
    """It waits only where its loss could be measured, which depends on its records."""
    rule = a_rule(4, divergence=divergence, noised=True)
    start = SiteWeight.start(rule)
    waiting, _ = start.offer(rule, 1, 1.0)
    answer = rule.answer(1, totals(rule, [0.25] * 4, [1.0, 2.0, 3.0, 1.5]))
    bad = (
        replace(answer, members=(True,) * 5),
        replace(answer, sums=answer.sums[:-1]),
        replace(answer, members=(False, False, False, True)),
        replace(answer, sums=(1e300,) * len(answer.sums)),
        replace(answer, sums=(0.0,) * len(answer.sums)),
        replace(answer, round=7, members=(True,) * 5),  # of a round that this site was not in
    )
    for state in (start, waiting, waiting.apply(rule, "site-00", answer)):
        for one in bad:
            with pytest.raises(MalformedMessage):
                state.apply(rule, "site-00", one)


def test_an_answer_that_comes_late_still_counts_and_one_that_never_comes_does_not():
    rule, losses = a_rule(4), [1.0, 2.0, 3.0, 1.5]
    answer = rule.answer(1, totals(rule, [0.25] * 4, losses))
    waiting, _ = SiteWeight.start(rule).offer(rule, 1, 1.0)
    saved = SiteWeight.load(waiting.save())
    assert saved.apply(rule, "site-00", None) == saved
    assert saved.apply(rule, "site-00", answer).weight == rule.weight("site-00", 0.25, 1.0, answer)
    later, _ = waiting.offer(rule, 2, 1.2)
    assert later.weight == 0.25
    assert later.apply(rule, "site-00", answer) == later


@pytest.mark.parametrize("kept", [[1.0, 2.0], [1.0, math.nan, 0.0, 0.0, 0.0], 1.0])
def test_a_damaged_weight_is_one_clear_error(kept):
    with pytest.raises(MalformedMessage, match="is damaged"):
        SiteWeight.load({"dro/site_weight": torch.tensor(kept, dtype=torch.float64)})


def test_a_number_too_long_to_be_written_is_refused_without_it():
    with pytest.raises(ConfigError, match=r"dro\.\w+: .* not a number of thousands of digits"):
        checked(DroOptions, {next(iter(DroOptions.model_fields)): 16**5000}, "dro")
