"""Vision-language pre-training under ``[privacy]``: what is refused, planned, sent and paid."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.algorithms.data.image_text.base import ImageTextSite, Pairs
from secfed.dp.accounting.events import Gaussian, PoissonSampledGaussian, Skellam
from secfed.dp.accounting.unit import Adjacency
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.study.build import build, build_data
from secfed.study.study import Study
from tests.algorithms.dro_case import plain
from tests.algorithms.vlp_case import TINY, Rounds
from tests.algorithms.whole import ledger, model_bytes, paid, run
from tests.dp.wards import audit

PRIVACY = """
[privacy]
unit = "{unit}"
epsilon = 8.0
delta = 1e-4
{more}
"""
MORE = {"group": "group_size = 4", "site": "", "record": ""}
EPSILON, STEPS = 8.0, {"align": 2, "joint": 3}


def private(unit: str = "group", more: str = "", **changes: object) -> Study:
    """The tiny study with a ``[privacy]`` table; keys are written ``algorithm__rho``."""
    rho = "" if unit == "group" else "rho = 0.0"
    text = TINY.replace("align_steps", f"{rho}\nalign_steps", 1)
    made = Study.parse(text + PRIVACY.format(unit=unit, more=f"{MORE[unit]}\n{more}"))
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


COMMON: dict[str, Any] = {"batch_size": 8, "learning_rate": 0.02}
ROBUST: dict[str, Any] = {"loss_batches": 2, "loss_batch_size": 8, "gamma": 1.0}
OTHERS: dict[str, dict[str, Any]] = {
    "fedrgb": {**ROBUST, "warmup_rounds": 1, "warmup_steps": 1, "guided_steps": 2, "teacher_steps": 3},
    "vlp-fedprox": {"local_steps": 3},
    "vlp-fedmoon": {"local_steps": 3},
    "vlp-fedema": {"local_steps": 3},
    "vlp-fedldawa": {"local_steps": 3, "warmup_rounds": 1},
}


def rounds_of(name: str, made: Study) -> Rounds:
    """A study of one of the algorithms, exchange by exchange and without noise in the sums."""
    if name != "feddra":
        made = made.replace("algorithm", {"name": name, **COMMON, **OTHERS[name]})
    return Rounds(made)


class Recorder:
    """Stands where a site's privacy stands: writes down, moves every trained parameter, reads no record."""

    def __init__(self, loss: float = 1.0) -> None:
        self.planned: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.records: set[int] = set()
        self.losses: Any = None
        self.loss = loss

    def plan(self, *phases: Any, losses: Any = None) -> None:
        self.planned.update({phase.name: phase.total_steps(1.0) for phase in phases})
        self.records = {phase.records for phase in phases}
        self.losses = losses
        if losses is not None:
            self.planned["losses"] = losses.releases

    def run(self, model: Any, optimiser: Any, loss: Any, data: Any, *, steps: int, phase: str) -> None:
        assert not loss.decomposes
        assert len(data) in self.records
        self.done[phase] += steps
        with torch.no_grad():
            for group in optimiser.param_groups:
                for value in group["params"]:
                    value += 0.01 * steps * group["lr"]

    def release_loss(self, evaluate: Any) -> float:
        self.done["losses"] += 1
        return self.loss


def recorded(rounds: Rounds, losses: tuple[float, ...] = (1.0,) * 5) -> dict[str, Recorder]:
    found = {}
    for (site, program), loss in zip(rounds.programs.items(), losses, strict=True):
        found[site] = Recorder(loss)
        program.use_privacy(found[site])
    return found


class TestRefusals:
    def test_pairs_cannot_be_the_unit_of_a_loss_that_compares_them(self):
        with pytest.raises(ConfigError, match=r"^privacy\.unit.*compares the pairs") as refused:
            build(private("record", algorithm__rho=0.0))
        assert 'unit = "group"' in refused.value.remedy
        assert 'unit = "site"' in refused.value.remedy

    @pytest.mark.parametrize("unit", ["group", "site"])
    @pytest.mark.parametrize(("key", "value"), [("metrics", "private"), ("weights", "unprotected")])
    def test_what_is_not_offered(self, unit, key, value):
        with pytest.raises(ConfigError, match=rf"privacy\.{key}:") as refused:
            build(private(unit).replace(f"privacy.{key}", value))
        assert refused.value.remedy

    def test_robust_weights_need_noise_on_the_losses_which_site_noise_is_not(self):
        with pytest.raises(ConfigError, match=r"^algorithm\.rho:") as refused:
            build(private("site", algorithm__rho=0.1))
        assert "rho = 0" in refused.value.remedy
        assert 'unit = "group"' in refused.value.remedy
        build(private("site"))

    def test_a_share_for_losses_that_are_not_released(self):
        for made in (
            private("group", algorithm__rho=0.0, algorithm__loss_share=0.3),
            private("site", algorithm__loss_share=0.3),
            Study.parse(TINY).replace("algorithm.loss_share", 0.3),
        ):
            with pytest.raises(ConfigError, match=r"^algorithm\.loss_share:"):
                build(made)

    def test_fewer_pairs_than_a_batch_for_the_loss(self):
        with pytest.raises(ConfigError, match="do not fill"):
            run(private(algorithm__loss_batch_size=25))

    def test_a_baseline_refuses_the_same(self):
        with pytest.raises(ConfigError, match=r"^privacy\.unit"):
            rounds_of("vlp-fedmoon", private("record", algorithm__rho=0.0))


class TestPlan:
    @pytest.mark.parametrize(
        ("name", "changes", "planned"),
        [
            ("feddra", {}, {"align": 6, "joint": 9, "losses": 3}),
            ("feddra", {"algorithm__loss_source": "lagged"}, {"align": 6, "joint": 9, "losses": 3}),
            ("feddra", {"algorithm__loss_source": "local"}, {"align": 6, "joint": 9, "losses": 3}),
            ("feddra", {"algorithm__rho": 0.0}, {"align": 6, "joint": 9}),
            ("feddra", {"algorithm__align_steps": 0}, {"joint": 9, "losses": 3}),
            ("fedrgb", {}, {"joint": 1, "encoder": 4, "teacher": 6, "losses": 2}),
            ("vlp-fedprox", {}, {"joint": 9}),
            ("vlp-fedmoon", {}, {"joint": 9}),
            ("vlp-fedema", {}, {"joint": 9}),
            ("vlp-fedldawa", {}, {"joint": 9}),
        ],
    )
    def test_a_site_plans_exactly_what_it_does(self, name, changes, planned):
        rounds = rounds_of(name, private(**changes))
        recorders = recorded(rounds)
        rounds.run()
        for one in recorders.values():
            assert dict(one.planned) == planned
            assert one.done == one.planned

    def test_losses_use_all_pairs_unless_the_study_says_how_many_batches(self):
        for count, groups in ((2, 2), (None, None)):
            rounds = rounds_of("feddra", private(algorithm__loss_batches=count))
            losses = next(iter(recorded(rounds).values())).losses
            assert losses.groups == groups
            assert (losses.records, losses.size) == (24, 8)
            assert losses.cap == rounds.algorithm.rule.cap
            assert losses.share == 0.2


class StepsOfOne(Recorder):
    """Takes the optimiser's own steps, every one along a gradient of ones."""

    def run(self, model: Any, optimiser: Any, loss: Any, data: Any, *, steps: int, phase: str) -> None:
        for _ in range(steps):
            for group in optimiser.param_groups:
                for value in group["params"]:
                    value.grad = torch.ones_like(value)
            optimiser.step()


class TestSteps:
    @pytest.mark.parametrize(("warmup", "moved"), [(0, 2.0), (4, 1 / 4 + 2 / 4)])
    def test_the_rate_rises_over_the_first_private_steps(self, warmup, moved):
        plain = {"algorithm__rho": 0.0, "algorithm__optimizer": "sgd", "algorithm__weight_decay": 0.0}
        rounds = rounds_of("feddra", private(algorithm__learning_rate_warmup=warmup, **plain))
        for program in rounds.programs.values():
            program.use_privacy(StepsOfOne())
        sent = rounds.take(1, 0)["hospital-1"]  # two steps at a rate of 0.02
        for name in rounds.algorithm.stages(1)[0].summed:
            update = torch.as_tensor(sent[f"update/{name}"])
            assert torch.allclose(update, torch.full_like(update, -0.02 * moved), atol=1e-6)


class TestWhatLeaves:
    @pytest.mark.parametrize("name", ["feddra", *OTHERS])
    def test_nothing_but_private_steps_and_noisy_losses_depends_on_records(self, name):
        """With those two replaced, sites with other pairs send the same."""
        sent = []
        for changed in (False, True):
            rounds = rounds_of(name, private())
            for program in rounds.programs.values():
                if changed:
                    program.data = _other(program.data)
            recorded(rounds, (0.5, 1.0, 1.5, 2.0, 2.5))
            given = []
            for number in range(1, 4):
                for index in range(len(rounds.algorithm.exchanges(number))):
                    given += [one for _, one in sorted(rounds.take(number, index).items())]
            sent.append(given)
        for one, other in zip(*sent, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one)

    @pytest.mark.parametrize("name", ["feddra", *OTHERS])
    def test_no_training_loss_and_no_metric(self, name):
        rounds = rounds_of(name, private())
        for number in range(1, 5):
            for exchange in rounds.algorithm.exchanges(number):
                kinds = {field.name.split("/")[0] for field in exchange.layout.fields}
                assert kinds <= {"update", "dro"}
                assert not rounds.algorithm.unprotected(exchange)
        assert not rounds.algorithm.exchanges(4)

    @pytest.mark.parametrize("unit", ["group", "site"])
    def test_metrics_leave_only_if_the_study_says_so_and_are_named(self, unit):
        made = private(unit, 'metrics = "unprotected"')
        algorithm = with_privacy(made, build(made), build_data(made).sites)
        first = algorithm.exchanges(1)[0]
        named = set(algorithm.unprotected(first))
        assert named
        assert all(name.startswith("eval/") for name in named)
        if unit == "site":  # an exchange of its own: site noise covers a whole one
            assert named == {field.name for field in first.layout.fields}

    def test_weights_follow_the_noisy_losses(self):
        rounds, losses = rounds_of("feddra", private()), (0.5, 1.0, 1.5, 2.0, 2.5)
        recorded(rounds, losses)
        rounds.take(1, 0)
        rounds.take(1, 1)  # brings the answer
        wanted = plain(rounds.algorithm.rule, [0.2] * 5, losses)
        got = torch.tensor(list(rounds.weights.values()), dtype=torch.float64)
        assert torch.allclose(got, wanted, atol=1e-6)
        assert got[0] < got[-1]

    def test_without_privacy_what_is_sent_does_depend_on_records(self):
        """The test above can fail."""
        sent = []
        for changed in (False, True):
            rounds = Rounds(Study.parse(TINY))
            for program in rounds.programs.values():
                if changed:
                    program.data = _other(program.data)
            sent.append([rounds.take(1, index)["hospital-1"] for index in range(2)])
        for one, other in zip(*sent, strict=True):
            assert not all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one)


def _other(data: ImageTextSite) -> ImageTextSite:
    train = data.train
    changed = Pairs(train.images.flip(0) * 3.0 - 1.0, train.tokens.flip(0), train.findings, train.masks)
    return ImageTextSite(changed, data.test)


class TestWhatIsPaid:
    @staticmethod
    def events(folder: Path, site: str, dataset: str):
        """Of a verified ledger whose numbers are recomputed."""
        audit(ledger(folder, site, dataset))
        return paid(folder, site, dataset)

    def test_feddra_by_groups(self, tmp_path):
        made = private()
        report = run(made, tmp_path)
        assert report.final == {}  # withheld
        for one in report.privacy.sites:
            assert 0.95 * EPSILON < one.epsilon <= EPSILON
            assert one.refused == 0
            events = self.events(tmp_path, one.site, made.data.name)
            assert all(event.adjacency is Adjacency.REPLACE_RECORD for event in events)
            # Every round: the loss before the first stage, then each stage's steps.
            kinds = [(type(event), event.times) for event in events]
            sampled = [(PoissonSampledGaussian, STEPS[name]) for name in ("align", "joint")]
            assert kinds == [(Gaussian, 1), *sampled] * 3

    def test_feddra_by_sites(self, tmp_path):
        made = private("site")
        report = run(made, tmp_path)
        for one in report.privacy.sites:
            assert 0.95 * EPSILON < one.epsilon <= EPSILON
            events = self.events(tmp_path, one.site, made.data.name)
            assert [type(event) for event in events] == [Skellam] * 6  # three rounds of two sums
            assert all(event.adjacency is Adjacency.ZERO_OUT_SITE for event in events)

    def test_models_are_the_same_bytes_under_plain_and_masked(self, tmp_path):
        models = []
        for protection in ("plain", "masked"):
            made = private("site", study__rounds=1, protection__name=protection)
            run(made, tmp_path / protection)
            models.append(model_bytes(tmp_path / protection))
        assert models[0] == models[1]

    def test_the_dual_encoder_on_synthetic_chest_images(self, tmp_path):
        """Every part of the real network can be clipped by groups: one round, one step of each stage."""
        made = Study.parse(CHEST)
        report = run(made, tmp_path)
        for one in report.privacy.sites:
            assert 0.95 * EPSILON < one.epsilon <= EPSILON
            kinds = [type(event) for event in self.events(tmp_path, one.site, "chest-synthetic")]
            assert kinds == [Gaussian, PoissonSampledGaussian, PoissonSampledGaussian]


CHEST = """
[study]
name = "chest"
rounds = 1
seed = 1
[algorithm]
name = "feddra"
align_steps = 1
joint_steps = 1
batch_size = 8
learning_rate = 1e-3
loss_batch_size = 8
[model]
name = "vision-language"
size = "tiny"
[data]
name = "chest-synthetic"
sites = 3
train = 24
test = 8
[protection]
name = "plain"
min_cohort = 3
[privacy]
unit = "group"
group_size = 4
epsilon = 8.0
delta = 1e-4
"""
