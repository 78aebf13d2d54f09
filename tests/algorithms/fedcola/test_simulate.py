"""FedCola through the whole round: protections, dropouts, resumed runs, privacy."""

from __future__ import annotations

import pytest
import torch

from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.algorithms.fedcola.plan import KINDS
from secfed.algorithms.fedcola.site import TRAIN
from secfed.dp.accounting.events import Skellam
from secfed.dp.ledger.ledger import SPENT
from secfed.errors import ConfigError
from secfed.pipeline.noised_algorithm import NoisedAlgorithm, with_privacy
from secfed.runs.run_report import RunReport
from secfed.study.build import build, build_data
from secfed.study.study import Study
from tests.algorithms.fedcola_case import TINY, study
from tests.algorithms.loop import Rounds
from tests.algorithms.whole import ledger, model_bytes, run

PRIVACY = """
[privacy]
unit = "{unit}"
epsilon = 4.0
delta = 1e-3
{more}
"""
GROUPS = "group_size = 4"


def private(unit: str, more: str = "", **changes: object) -> Study:
    """Sites of a group have as many records: noise for one is that for all, and is found once."""
    return study(TINY + PRIVACY.format(unit=unit, more=more), data__uneven=0.0, **changes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, RunReport]:
    out = tmp_path_factory.mktemp("plain")
    report = run(study(), out)
    return model_bytes(out), report


@pytest.mark.slow  # fmcsc's, of several groups and cohorts, too, is quick
def test_models_and_scores_are_identical_under_encrypted_and_plain(tmp_path, plain):
    report = run(study(protection__name="encrypted"), tmp_path)
    assert [entry.aborted for entry in report.rounds] == [None] * 2
    assert report.final == plain[1].final
    recalls = {"image_to_text_recall_at_1", "text_to_image_recall_at_1"}
    assert set(report.final) == {"image_accuracy", "text_accuracy", *recalls}
    assert model_bytes(tmp_path) == plain[0]


def test_a_dropped_site_equals_an_absent_one(tmp_path):
    run(study(), tmp_path / "absent", "image-2@train:2")
    report = run(study(protection__name="masked"), tmp_path / "dropped", "image-2@mask:2")
    assert ("image-2", "mask") in report.rounds[1].drops
    assert report.rounds[1].aborted is None
    assert model_bytes(tmp_path / "absent") == model_bytes(tmp_path / "dropped")


class TestPrivacy:
    @pytest.mark.parametrize(
        ("more", "changes", "named"),
        [
            ("", {"privacy__unit": "record"}, r"privacy\.unit"),
            ("", {"algorithm__weighting": "records"}, r"algorithm\.weighting"),
            ('weights = "unprotected"', {}, r"privacy\.weights"),
            ('metrics = "private"', {}, r"privacy\.metrics"),
        ],
    )
    def test_what_would_make_epsilon_wrong_is_refused(self, more, changes, named):
        with pytest.raises(ConfigError, match=named):
            build(private("site", more, **changes))

    @pytest.mark.parametrize(("unit", "more"), [("group", GROUPS), ("site", "")])
    @pytest.mark.parametrize("over", ["modality", "all"])
    def test_nothing_leaves_but_updates(self, unit, more, over):
        algorithm = build(private(unit, more, algorithm__shared_over=over))
        for number in (1, 2, 3):
            for exchange in algorithm.exchanges(number):
                assert all(field.name.startswith("update/") for field in exchange.layout.fields)

    def test_scores_leave_without_noise_only_if_the_study_says_so(self):
        algorithm = build(private("group", f'{GROUPS}\nmetrics = "unprotected"'))
        found = {e.name: algorithm.unprotected(e) for n in (1, 2, 3) for e in algorithm.exchanges(n)}
        assert {name for name, fields in found.items() if fields} == {f"score-{kind}" for kind in KINDS}

    def test_every_site_pays_for_the_rounds_that_it_trains_in(self, tmp_path):
        made = private("group", GROUPS, data__image_sites=8, data__text_sites=6, data__pair_sites=6)
        made = made.replace("algorithm.participation", 0.5)
        algorithm = build(made)
        run(made, tmp_path)
        for site in algorithm.setting.sites:
            chain = ledger(tmp_path, site, "scenes")
            paid = {entry.body["round"] for entry in chain if entry.kind == SPENT}
            group = algorithm.plan.kind_of[site]
            assert paid == {number for number in (1, 2) if site in algorithm.plan.sampled(group, number)}

    def test_an_image_with_several_captions_is_one_record(self):
        algorithm = build(private("group", GROUPS))
        program = algorithm.site("pairs-1")
        samples = program._train_samples
        first = samples.sources.clone()
        first[1] = first[0]  # two captions of one image, which would lie in two groups
        object.__setattr__(samples, "sources", first)
        rows = program._private_rows().tolist()
        assert 0 in rows
        assert 1 not in rows
        assert len(rows) == len(samples.tokens) - 1

    def test_noise_reaches_every_group_s_model(self, tmp_path):
        made = private("group", GROUPS, algorithm__learning_rate=1e-2)
        quiet = study(algorithm__learning_rate=1e-2, data__uneven=0.0)
        run(made, tmp_path / "noisy")
        run(quiet, tmp_path / "quiet")
        assert model_bytes(tmp_path / "noisy") != model_bytes(tmp_path / "quiet")

    def test_site_level_noise_covers_every_sum_of_updates(self):
        algorithm = with_privacy(private("site"), build(private("site")), build_data(private("site")).sites)
        assert isinstance(algorithm, NoisedAlgorithm)
        assert algorithm.releases == 2 * 5
        assert all(
            isinstance(algorithm.event_of(exchange), Skellam)
            for number in (1, 2)
            for exchange in algorithm.exchanges(number)
        )

    def test_the_loss_of_pairs_is_declared_as_coupled(self):
        rounds = Rounds(build(study()))
        assert not rounds.programs["pairs-1"]._loss().decomposes
        loss = rounds.programs["image-1"]._loss()
        assert loss.decomposes
        algorithm: FedCola = rounds.algorithm
        network = algorithm.plan.network("image", algorithm.initial["image"], torch.device("cpu"))
        rows = rounds.programs["image-1"]._rows(torch.arange(5))
        one_by_one = [loss(network, tuple(part[k : k + 1] for part in rows)) for k in range(5)]
        assert torch.allclose(loss(network, rows), torch.cat(one_by_one), atol=1e-5)
        assert TRAIN == "train"
