"""Local work counted in steps or in passes: what is planned, what is charged, what the next process knows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from secfed.dp.accounting.events import Event, PoissonSampledGaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.training.local_privacy import LocalPrivacy, LossRelease, Phase
from secfed.errors import BudgetExceeded, ConfigError, WrongState
from tests.dp.local_case import BATCH, DELTA, RECORDS, ledger, local, paid, settings
from tests.dp.toys import INFO_NCE, mlp, pairs, parameters, sgd

RATE = 1 / 8


def step(privacy: LocalPrivacy, phase: str = "align", **work: int) -> torch.Tensor:
    """Train a fresh model; its parameters afterwards."""
    model = mlp()
    privacy.run(model, sgd(model, 0.1), INFO_NCE, pairs(RECORDS), phase=phase, **work)
    return parameters(model)


def independent_epsilon(events: list[Event]) -> float:
    """By the library's own accountant, on a grid twice as fine than secfed's."""
    times: Counter[tuple[float, float]] = Counter()
    for event in events:
        assert event.adjacency is Adjacency.REPLACE_RECORD
        times[getattr(event, "sampling_rate", 1.0), event.noise_multiplier] += event.times  # type: ignore[attr-defined]
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, 5e-4)
    for (rate, multiplier), count in times.items():
        inner = dp_accounting.GaussianDpEvent(multiplier)
        sampled = inner if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, inner)
        accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, count))
    return float(accountant.get_epsilon(DELTA))


class TestPlan:
    def test_passes_are_planned_as_so_many_steps_and_more_steps_need_more_noise(self, tmp_path: Path) -> None:
        plans = [{"passes": 2}, {"steps": 16}, {"steps": 200}]
        mechanisms = []
        for plan in plans:
            privacy = local(ledger(tmp_path))
            privacy.plan(Phase("align", RECORDS, BATCH, **plan))
            mechanisms.append(privacy.mechanism("align"))
        by_passes, by_steps, longer = mechanisms
        assert by_passes == by_steps
        assert by_steps.sampling_rate == RATE
        assert by_steps.noise_multiplier < longer.noise_multiplier

    def test_what_cannot_be_planned(self, tmp_path: Path) -> None:
        for passes, steps in ((1, 1), (-1, None), (0, -1)):
            with pytest.raises(ConfigError, match="'align': plan passes or steps"):
                Phase("align", RECORDS, BATCH, passes, steps)
        phase = Phase("align", RECORDS, BATCH, steps=1)
        with pytest.raises(ConfigError, match="same name"):
            local(ledger(tmp_path)).plan(phase, phase)

    def test_a_phase_without_steps_costs_nothing_and_alone_is_no_training(self, tmp_path: Path) -> None:
        alone, beside, privacy = local(ledger(tmp_path)), local(ledger(tmp_path)), local(ledger(tmp_path))
        alone.plan(Phase("joint", RECORDS, BATCH, steps=16))
        beside.plan(Phase("align", RECORDS, BATCH, steps=0), Phase("joint", RECORDS, BATCH, steps=16))
        assert alone.mechanism("joint") == beside.mechanism("joint")
        privacy.plan(Phase("align", RECORDS, BATCH))
        with pytest.raises(WrongState, match="not planned"):
            privacy.mechanism("align")


class TestCharge:
    def test_exactly_the_steps_that_are_run_are_paid(self, tmp_path: Path) -> None:
        book = ledger(tmp_path)
        privacy = local(book)
        privacy.plan(Phase("align", RECORDS, BATCH, steps=7), Phase("joint", RECORDS, BATCH, steps=9))
        model, taken = mlp(), []
        optimiser = sgd(model)
        optimiser.register_step_post_hook(lambda *_: taken.append(1))
        privacy.enter(1, "align")
        privacy.run(model, optimiser, INFO_NCE, pairs(RECORDS), steps=7, phase="align")
        assert len(taken) == 7
        privacy.enter(1, "joint")
        step(privacy, "joint", passes=1)
        sigma = privacy.mechanism("align").noise_multiplier
        replace = Adjacency.REPLACE_RECORD
        assert paid(book) == [
            PoissonSampledGaussian(replace, RATE, sigma, 7),
            PoissonSampledGaussian(replace, RATE, sigma, 8),
        ]

    @pytest.mark.parametrize("work", [{}, {"passes": 1, "steps": 8}])
    def test_passes_or_steps_but_not_both(self, tmp_path: Path, work: dict[str, int]) -> None:
        book = ledger(tmp_path)
        privacy = local(book)
        privacy.plan(Phase("align", RECORDS, BATCH, steps=16))
        privacy.enter(1, "align")
        with pytest.raises(ConfigError, match="either passes or steps"):
            step(privacy, **work)
        assert paid(book) == []

    def test_a_pass_and_its_steps_are_the_same_training(self, tmp_path: Path) -> None:
        privacy = local(ledger(tmp_path, 50.0))
        privacy.plan(Phase("align", RECORDS, BATCH, steps=16))
        privacy.enter(1, "align")
        by_passes = step(privacy, passes=1)
        privacy.enter(1, "align")
        assert torch.equal(step(privacy, steps=8), by_passes)
        privacy.enter(2, "align")
        assert not torch.equal(step(privacy, steps=8), by_passes)

    def test_a_place_that_is_entered_again_starts_from_the_clipping_norm_of_the_first_time(
        self, tmp_path: Path
    ) -> None:
        """The same noise on sums that are clipped elsewhere would be a second release for one payment."""
        book = ledger(tmp_path, 50.0)
        privacy = local(book, settings(clip_quantile=0.5, clip_norm=5.0))
        privacy.plan(Phase("align", RECORDS, BATCH, steps=32))
        results, norms = [], []
        for number in (1, 1, 2, 2):
            privacy.enter(number, "align")
            results.append(step(privacy, steps=8))
            norms.append(float(privacy.save()["clip_norm/align"]))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[2], results[3])
        assert not torch.equal(results[0], results[2])
        assert 5.0 != norms[0] == norms[1] != norms[2] == norms[3]


class TestWholeStudy:
    def test_everything_that_was_planned_stays_just_within_epsilon(self, tmp_path: Path) -> None:
        """Two phases by steps, and a release of losses every round; epsilon by independent accounting."""
        epsilon, rounds, align, joint = 8.0, 3, 2, 5
        book = ledger(tmp_path, epsilon)
        privacy = local(book, settings(epsilon=epsilon, accountant="pld"))
        privacy.plan(
            Phase("align", RECORDS, BATCH, steps=rounds * align),
            Phase("joint", RECORDS, BATCH // 2, steps=rounds * joint),
            losses=LossRelease(records=RECORDS, size=16, releases=rounds, cap=4.0),
        )
        for number in range(1, rounds + 1):
            privacy.enter(number, "weights")
            privacy.release_loss(lambda rows: float(len(rows)) / 8)
            privacy.enter(number, "align")
            step(privacy, "align", steps=align)
            privacy.enter(number, "joint")
            step(privacy, "joint", steps=joint)
        events = paid(book)
        times: dict[float, int] = {}
        for event in events:
            rate = getattr(event, "sampling_rate", 1.0)
            times[rate] = times.get(rate, 0) + event.times
        assert times == {1.0: rounds, RATE: rounds * align, RATE / 2: rounds * joint}
        spent = independent_epsilon(events)
        assert 0.95 * epsilon < spent <= epsilon
        assert book.standings()[0].epsilon <= epsilon
        with pytest.raises(BudgetExceeded):  # nothing is left for another round
            step(privacy, "joint", steps=joint)

    def test_the_parts_are_composed_and_not_added(self, tmp_path: Path) -> None:
        """Losses that alone take half of epsilon leave training far more than half."""
        plans: dict[bool, LocalPrivacy] = {}
        for with_losses in (False, True):
            plans[with_losses] = local(ledger(tmp_path))
            losses = LossRelease(records=RECORDS, size=16, releases=25, cap=4.0, share=0.5)
            plans[with_losses].plan(
                Phase("joint", RECORDS, BATCH, steps=200), losses=losses if with_losses else None
            )
        alone = local(ledger(tmp_path), settings(epsilon=4.0))
        alone.plan(Phase("joint", RECORDS, BATCH, steps=200))
        noise = [one.mechanism("joint").noise_multiplier for one in (plans[False], plans[True], alone)]
        assert noise[0] < noise[1] < 0.75 * noise[2]


class TestNextProcess:
    def test_adapted_clipping_goes_on_where_it_was(self, tmp_path: Path) -> None:
        chosen = settings(clip_quantile=0.5, clip_norm=5.0)
        one, other = local(ledger(tmp_path, 50.0), chosen), local(ledger(tmp_path, 50.0), chosen)
        for privacy in (one, other):
            privacy.plan(Phase("align", RECORDS, BATCH, steps=16))
        one.enter(1, "align")
        step(one, steps=8)
        saved = one.save()
        assert list(saved) == ["clip_norm/align"]
        assert float(saved["clip_norm/align"]) != 5.0
        other.load(saved)
        results = []
        for privacy in (one, other):
            privacy.enter(2, "align")
            results.append(step(privacy, steps=8))
        assert torch.equal(*results)
        assert other.save() == one.save()
