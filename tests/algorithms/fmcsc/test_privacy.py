"""FMCSC under ``[privacy]``: what is refused, what leaves, what is paid, and who is averaged."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from secfed.algorithms.fmcsc.algorithm import Fmcsc
from secfed.algorithms.fmcsc.privacy import ALL_VIEWS, OWN_VIEW, PRETRAIN, TEACH, phases
from secfed.dp.accounting.events import PoissonSampledGaussian, Skellam
from secfed.dp.accounting.unit import Adjacency
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import NoisedAlgorithm, with_privacy
from secfed.study.build import build, build_data
from secfed.study.study import Study
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import make_plan
from tests.algorithms.fmcsc_case import LARGE, TINY, Rounds
from tests.algorithms.whole import model_bytes, paid, run

PRIVACY = """
[privacy]
unit = "{unit}"
epsilon = 2.0
delta = 1e-3
{more}
"""
MORE = {"group": "group_size = 4", "site": "", "record": ""}
UNITS = ["group", "site"]
QUICK = {"study__rounds": 2, "algorithm__pretrain_rounds": 1}
QUICK |= {"algorithm__kmeans_iterations": 1, "algorithm__group_iterations": 1}
MULTI, SINGLE = "hospital-1", "hospital-4"


def private(unit: str, more: str = "", weights: str = "public", **changes: object) -> Study:
    """The tiny study with a ``[privacy]`` table."""
    text = TINY.replace('name = "fmcsc"', f'name = "fmcsc"\nweights = "{weights}"')
    made = Study.parse(text + PRIVACY.format(unit=unit, more=f"{MORE[unit]}\n{more}"))
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def plans(algorithm: Fmcsc) -> list[list[str]]:
    """Names of the exchanges of every round."""
    rounds = algorithm.plan.rounds
    return [[plan.name for plan in algorithm.exchanges(number)] for number in range(1, rounds + 2)]


class TestRefusals:
    @pytest.mark.parametrize("contrast", ["eq5", "ntxent"])
    def test_records_cannot_be_the_unit_of_a_loss_that_compares_them(self, contrast):
        made = private("record").replace("algorithm.contrast", contrast)
        with pytest.raises(ConfigError, match=r"^privacy\.unit.*feature contrast.*couples") as refused:
            build(made)
        assert 'unit = "group"' in refused.value.remedy
        assert 'unit = "site"' in refused.value.remedy

    @pytest.mark.parametrize("unit", UNITS)
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("algorithm.weights", "mi"),
            ("algorithm.weights", None),  # the default
            ("algorithm.paper_laplace_epsilon", 10.0),
            ("privacy.weights", "unprotected"),
        ],
    )
    def test_what_would_leave_beside_epsilon(self, unit, key, value):
        with pytest.raises(ConfigError, match=f"^{key}:") as refused:
            build(private(unit).replace(key, value))
        assert refused.value.remedy

    @pytest.mark.parametrize(
        ("unit", "more", "changes", "said"),
        [
            ("group", 'metrics = "private"', {}, "privacy.metrics:"),
            ("group", 'adjacency = "replace-patient"', {}, "privacy.adjacency:.*leave it out"),
            ("site", "", {"algorithm__view_types": "hidden"}, "algorithm.view_types:"),
            ("site", "", {"protection__threshold": 4}, "algorithm.name:.*'full', but a sum needs 4"),
        ],
    )
    def test_what_is_not_offered(self, unit, more, changes, said):
        with pytest.raises(ConfigError, match=f"^{said}"):
            build(private(unit, more, **changes))

    def test_what_is_nearly_that_is_offered(self):
        build(private("group", algorithm__view_types="hidden"))
        build(private("site", protection__threshold=3))

    def test_too_few_records_for_a_group(self):
        with pytest.raises(ConfigError, match="do not fill one group"):
            run(private("group", privacy__group_size=25))


class TestWhatLeaves:
    @pytest.mark.parametrize("unit", UNITS)
    def test_withheld_metrics_leave_nothing(self, unit):
        algorithm = build(private(unit, algorithm__evaluate="every"))
        assert plans(algorithm)[-1] == []
        assert {name.split("-")[0] for names in plans(algorithm) for name in names} == {"pretrain", "train"}
        for number in range(1, 5):
            for exchange in algorithm.exchanges(number):
                assert algorithm.unprotected(exchange) == ()
                kinds = {field.name.split("/")[0] for field in exchange.layout.fields}
                assert kinds == ({"update"} if unit == "site" else kinds - {"loss"})
                assert "loss" not in kinds

    @pytest.mark.parametrize("unit", UNITS)
    def test_scores_leave_only_if_the_study_says_so_and_it_is_written_down(self, tmp_path, unit):
        report = run(private(unit, 'metrics = "unprotected"', **QUICK), tmp_path)
        assert set(report.final) == {"acc", "nmi", "ari"}
        noted = report.privacy.unprotected
        assert set(noted) == {"sum", "outer", "records", "sums", "counts", "inertia", "table"}

    def test_what_a_site_counts_does_not_depend_on_its_records(self):
        rounds = Rounds(private("group", weights="equal", data__per_site=16, data__views=LARGE))
        for site, program in rounds.programs.items():
            privacy = _Untrained()
            program.use_privacy(privacy)
            exchange = rounds.algorithm.exchanges(1)[0]
            got = program.contribute(1, exchange, rounds.server.broadcast(1, exchange))
            view = rounds.algorithm.plan.view_of[site]
            owned = [view in (None, at) for at in (0, 1)]
            assert [got["sites/view-1"], got["sites/view-2"]] == [float(one) for one in owned]
            assert not [name for name in got if "weight" in name and not name.startswith("update/")]
            assert privacy.trained == [(PRETRAIN, 2)]


class _Untrained:
    """Stands where a site's privacy stands, and trains nothing."""

    def __init__(self) -> None:
        self.planned: dict[str, int] = {}
        self.trained: list[tuple[str, int]] = []

    def plan(self, *planned) -> None:
        self.planned = {phase.name: phase.passes for phase in planned}

    def run(self, model, optimiser, loss, data, *, passes, phase) -> None:
        self.trained.append((phase, passes))


class TestPlan:
    @pytest.mark.parametrize("weights", ["public", "equal"])
    @pytest.mark.parametrize("share", [0.6, 1.0])
    def test_a_site_plans_exactly_what_it_trains(self, weights, share):
        made = private("group", weights=weights, algorithm__pretrain_share=share)
        made = made.replace("study.rounds", 6).replace("algorithm.pretrain_rounds", 4)
        rounds = Rounds(made)
        watched = {}
        for site, program in rounds.programs.items():
            watched[site] = _Untrained()
            program.use_privacy(watched[site])
        for number in range(1, 7):
            for index in range(len(rounds.algorithm.exchanges(number))):
                rounds.take(number, index)
        for one in watched.values():
            trained = {name: sum(p for phase, p in one.trained if phase == name) for name in one.planned}
            assert trained == one.planned
        assert {one.planned[PRETRAIN] for one in watched.values()} <= {0, 2, 4, 6, 8}
        assert watched[MULTI].planned | {PRETRAIN: 0} == {PRETRAIN: 0, ALL_VIEWS: 4, TEACH: 12, OWN_VIEW: 0}
        assert watched[SINGLE].planned[OWN_VIEW] == (0 if weights == "public" else 4)

    def test_a_site_that_does_not_take_part_plans_nothing(self):
        made = private("group", algorithm__participation=0.75, data__views=[-1] * 4 + [0] * 4)
        plan = build(made).plan
        away = next(site for site in plan.sites if site not in plan.participants)
        assert all(phase.passes == 0 for phase in phases(plan, away, 24))

    @pytest.mark.parametrize("unit", UNITS)
    def test_sites_that_count_nothing_are_not_in_the_sum(self, unit):
        for weights, members in (("public", 3), ("equal", 6)):
            plan = build(private(unit, weights=weights)).plan
            assert len(plan.trainers(1)) == members


class TestWhatIsPaid:
    @pytest.mark.parametrize(
        ("unit", "weights", "multi", "single"),
        [
            # 2 rounds x 2 passes of pre-training; 2 rounds x (2 passes, then 3 for each of 2 views; or 2).
            ("group", "equal", 4 + 2 * (2 + 2 * 3), 4 + 2 * 2),
            # 2 sums of pre-training; 2 rounds x 3 groups, of which sites with one view are in none.
            ("site", "public", 2 + 2 * 3, 2),
        ],
    )
    def test_ledgers_hold_what_was_planned_and_no_more_than_was_promised(
        self, tmp_path, unit, weights, multi, single
    ):
        report = run(private(unit, weights=weights), tmp_path)
        spent = {one.site: one.epsilon for one in report.privacy.sites}
        for site, times in ((MULTI, multi), (SINGLE, single)):
            events = paid(tmp_path, site, "tests.algorithms.fmcsc_case:blobs")
            assert sum(event.times for event in events) == times
            kind, adjacency = {
                "group": (PoissonSampledGaussian, Adjacency.REPLACE_RECORD),
                "site": (Skellam, Adjacency.ZERO_OUT_SITE),
            }[unit]
            assert all(isinstance(event, kind) and event.adjacency is adjacency for event in events)
        assert report.final == {}  # withheld
        assert max(spent.values()) <= 2.0
        assert spent[MULTI] > 1.9
        # Each site chooses the noise of its own steps; noise in the sums is the same for all.
        assert spent[SINGLE] > 1.9 if unit == "group" else spent[SINGLE] < 1.9

    def test_models_are_the_same_bytes_under_plain_and_masked(self, tmp_path):
        models = []
        for protection in ("plain", "masked"):
            run(private("site", protection__name=protection, **QUICK), tmp_path / protection)
            models.append(model_bytes(tmp_path / protection))
        assert models[0] == models[1]


def test_every_point_of_the_epsilon_study_can_be_run(repository):
    path = repository / "examples" / "fmcsc-epsilon.toml"
    text = path.read_text().replace("[inf, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0]", "[inf, 10.0]")
    found = make_plan(SweepFile.parse(text, folder=path.parent))
    assert not found.missing
    assert len(found.runs) == 3 * 4 * 2 * 5
    units = {"record-dp": "group", "site-dp": "site", "canonical": "record"}
    for one in found.runs:
        made, unit = Study.parse(one.text), units.get(one.at["variant"])
        noise = one.at["epsilon"] != math.inf
        assert (made.privacy.unit if made.privacy else None) == (unit if noise else None)
        if one.at["variant"] == "canonical":
            assert made.privacy is None or made.privacy.noise == "sum"
            continue
        assert (made.algorithm.paper_laplace_epsilon is not None) == (noise and unit is None)


class TestSiteLevel:
    def test_all_that_a_site_adds_to_a_sum_is_clipped_together_and_every_sum_is_a_release(self):
        made = private("site", weights="equal", privacy__clip_norm=1e-3)
        rounds = Rounds(made)
        noised = with_privacy(made, rounds.algorithm, rounds.algorithm.plan.sites)
        assert isinstance(noised, NoisedAlgorithm)
        assert noised.releases == 2 + 2 * 3
        clipped = 0
        for number in range(1, 5):
            for index, outer in enumerate(noised.exchanges(number)):
                stages = noised.pipeline(outer)
                for one in rounds.take(number, index).values():
                    norm, after = _norm(one), _norm(stages.at_site(outer, one))
                    assert after <= 1e-3
                    assert after == pytest.approx(min(norm, 1e-3))
                    clipped += norm > 1e-3
        assert clipped > 20

    def test_a_model_moves_by_the_mean_over_the_survivors_that_count(self):
        rounds = Rounds(private("site", weights="equal", data__views=LARGE))
        before = rounds.group("full")
        lost = {"hospital-1"}
        got = rounds.take(1, 0, lambda given: {s: one for s, one in given.items() if s not in lost})
        for name, owners in (("enc.0.0.bias", "23456"), ("dec.1.0.bias", "23789")):
            updates = [got[f"hospital-{at}"][f"update/{name}"] for at in owners]
            moved = rounds.group("full")[name] - before[name]
            assert torch.allclose(moved, torch.stack(updates).mean(dim=0), atol=1e-6)
        rounds.take(2, 0)
        for number, counted in ((3, "123"), (4, "123456")):  # at first only what multi-view sites teach
            for index in range(3):
                before = rounds.group("view-1")
                got = rounds.take(number, index)
                if index == 1:
                    updates = [got[f"hospital-{at}"]["update/enc.0.0.bias"] for at in counted]
                    moved = rounds.group("view-1")["enc.0.0.bias"] - before["enc.0.0.bias"]
                    assert torch.allclose(moved, torch.stack(updates).mean(dim=0), atol=1e-6)

    def test_fewer_than_three_owners_of_a_view_are_not_averaged(self):
        rounds = Rounds(private("site", data__views=LARGE))
        before = rounds.group("full")
        rounds.take(1, 0, lambda given: {site: given[site] for site in given if site[-1] in "14567"})
        after = rounds.group("full")
        assert torch.equal(after["enc.1.0.weight"], before["enc.1.0.weight"])
        assert not torch.equal(after["enc.0.0.weight"], before["enc.0.0.weight"])


def _norm(summands) -> float:
    return math.sqrt(
        sum(float((torch.as_tensor(v, dtype=torch.float64) ** 2).sum()) for v in summands.values())
    )


class TestRecordsByThemselves:
    @staticmethod
    def study(data: str, unit: str) -> Study:
        start, rest = TINY.split("[data]")
        text = start.replace('name = "fmcsc"', 'name = "fmcsc"\nweights = "public"')
        protection = "[protection]" + rest.split("[protection]")[1]
        return Study.parse(f"{text}[data]\n{data}\n{protection}" + PRIVACY.format(unit=unit, more=MORE[unit]))

    @pytest.mark.parametrize(
        ("data", "key"),
        [
            ('name = "bdgp"', r"data\.scale"),
            (
                'name = "multiview"\nclasses = 3\npath = "x.npz"\nview_sizes = [2, 2]\nscale.X2 = "min-max"',
                "X2",
            ),
        ],
    )
    def test_scaling_by_all_records_is_refused_for_records_and_not_for_sites(self, data, key):
        with pytest.raises(ConfigError, match=key) as refused:
            build_data(self.study(data, "group"))
        assert "[low, high]" in refused.value.remedy
        build_data(self.study(data, "site"))

    @pytest.mark.parametrize(
        "data",
        [
            'name = "bdgp"\nscale = { visual = [0.0, 0.2], text = [0.0, 1.0] }',
            'name = "mnist-usps"',
            'name = "digits-views"',
            'name = "multiview"\nclasses = 3\npath = "x.npz"\nview_sizes = [2, 2]\nscale.X2 = [0.0, 1.0]',
        ],
    )
    def test_public_scales_are_accepted(self, data):
        build_data(self.study(data, "group"))

    @pytest.mark.parametrize(
        "scale", ["{ visual = [0.0, 1.0] }", "{ visual = [1.0, 0.0], text = [0.0, 1.0] }"]
    )
    def test_a_scale_that_is_incomplete_or_empty_is_refused(self, scale):
        with pytest.raises(ConfigError, match=r"data\.scale"):
            self.study(f'name = "bdgp"\nscale = {scale}', "group")

    def test_bdgp_is_read_on_the_public_scale(self, tmp_path):
        rng = np.random.default_rng(1)
        stored = {"X1": rng.random((40, 1750)), "X2": rng.random((40, 79)), "Y": np.arange(40) % 5}
        np.savez(tmp_path / "b.npz", **stored)
        data = f'name = "bdgp"\nsites = 4\npath = "{tmp_path}/b.npz"\nmin_records = 1\n'
        data += "scale = { visual = [0.0, 0.5], text = [-1.0, 1.0] }"
        found = build_data(self.study(data, "group"))
        visual, text = found.site("hospital-1").views
        rows = [np.abs(stored["X1"] / 0.5 - row).sum(axis=1).argmin() for row in visual.numpy()]
        assert np.allclose(visual.numpy(), stored["X1"][rows] / 0.5, atol=1e-6)
        if text is not None:
            assert np.allclose(text.numpy(), (stored["X2"][rows] + 1) / 2, atol=1e-6)
