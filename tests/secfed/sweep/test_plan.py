"""From a sweep file to studies: the product, what variants change, and refusals before anything starts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from secfed.errors import ConfigError
from secfed.sweep.file import SweepFile
from secfed.sweep.plan import SweepPlan, SweepRun, make_plan, read_study
from tests.secfed.sweep_case import CURVES, RATES, STUDY, error_of, plan, sweep_file


def studies(found: SweepPlan) -> list[dict[str, Any]]:
    return [read_study(run.text, Path()).tables() for run in found.runs]


class TestProduct:
    def test_every_combination_once_seed_by_seed(self) -> None:
        found = plan(RATES + '"protection.bits" = [32, 16]')
        assert [(run.seed, *run.at.values()) for run in found.runs] == [
            (seed, rate, bits) for seed in (1, 2) for rate in (0.1, 0.2, 0.3) for bits in (32, 16)
        ]

    def test_each_study_holds_its_values_and_nothing_else_changes(self) -> None:
        found = plan()
        for run, tables in zip(found.runs, studies(found), strict=True):
            assert tables["algorithm"]["learning_rate"] == run.at["algorithm.learning_rate"]
            assert tables["study"]["seed"] == run.seed
        without = [
            {**t, "algorithm": {**t["algorithm"], "learning_rate": 0}, "study": {**t["study"], "seed": 0}}
            for t in studies(found)
        ]
        assert all(tables == without[0] for tables in without)

    def test_the_digest_is_the_study_s(self) -> None:
        for run in plan().runs:
            assert run.digest == read_study(run.text, Path()).digest().hex()

    def test_the_study_s_own_tables_are_not_changed(self) -> None:
        sweep = sweep_file(CURVES)
        before = repr(sweep.tables)
        make_plan(sweep)
        assert repr(sweep.tables) == before

    def test_relative_paths_start_at_the_sweep_file(self, tmp_path: Path) -> None:
        assert read_study(plan().runs[0].text, tmp_path).folder == tmp_path


class TestNames:
    def test_a_folder_says_where_a_run_stands(self) -> None:
        first = plan().runs[0]
        assert first.folder == f"learning_rate=0.1_seed=1-{first.digest[:8]}"
        assert plan(CURVES).runs[0].folder.startswith("momentum_strength=inf_seed=1-")

    def test_keys_that_end_alike_are_told_apart(self) -> None:
        found = plan(
            STUDY + '[sweep]\n"algorithm.name" = ["fedavg"]\n"protection.name" = ["plain", "masked"]'
        )
        assert found.runs[0].title == "algorithm.name=fedavg, protection.name=plain, seed=0"

    def test_no_value_leads_out_of_the_folder(self) -> None:
        for value in ("../../etc/passwd", "/etc/shadow", "a\\b", ".hidden", "x" * 300, ("..", "/")):
            name = SweepRun({"path": value}, 1, digest="ab" * 32).folder
            assert "/" not in name
            assert "\\" not in name
            assert not name.startswith(".")
            assert len(name) < 120


class TestVariants:
    def test_set_remove_and_axis(self) -> None:
        found = plan(
            STUDY
            + """
            [sweep]
            [sweep.axes]
            strength = [0.5]
            [[sweep.variant]]
            name = "prox"
            set = { "algorithm.name" = "fedprox" }
            remove = ["algorithm.learning_rate", "protection"]
            axis = { strength = "algorithm.mu" }
            [[sweep.variant]]
            name = "avg"
            axis = { strength = "algorithm.momentum" }
            """
        )
        prox, avg = studies(found)
        assert (prox["algorithm"]["name"], prox["algorithm"]["mu"]) == ("fedprox", 0.5)
        assert prox["protection"]["name"] == "masked"  # the default, because the table is gone
        assert (avg["algorithm"]["name"], avg["algorithm"]["momentum"]) == ("fedavg", 0.5)
        assert avg["algorithm"]["learning_rate"] == 0.1

    PANELS = (
        STUDY
        + """
        [sweep]
        [[sweep.panel]]
        name = "small"
        set = { algorithm.learning_rate = 0.5 }
        [[sweep.panel]]
        name = "large"
        [[sweep.variant]]
        name = "avg"
        [[sweep.variant]]
        name = "prox"
        remove = ["algorithm"]
        set = { algorithm.name = "fedprox" }
        in_panel.small = { algorithm.mu = 0.5, algorithm.learning_rate = 0.2 }
        """
    )

    def test_a_variant_has_settings_of_its_own_in_a_panel(self) -> None:
        found = studies(plan(self.PANELS))
        rates = [(t["algorithm"]["learning_rate"], t["algorithm"].get("mu")) for t in found]
        assert rates[:2] == [(0.5, None), (0.2, 0.5)]  # what the panel set went with the table
        assert rates[2] == (0.1, None)
        assert rates[3][1] != 0.5

    def test_a_panel_and_a_variant_in_it_set_a_key_only_if_it_was_left_out(self) -> None:
        text = self.PANELS.replace('remove = ["algorithm"]', "")
        text = text.replace("in_panel.small = { algorithm.mu = 0.5,", "in_panel.small = {")
        error = error_of(lambda: plan(text))
        assert "algorithm.learning_rate: is set by sweep.panel 'small' too" in error.message

    def test_settings_for_a_panel_that_is_not_there_are_refused(self) -> None:
        error = error_of(lambda: plan(self.PANELS.replace("in_panel.small", "in_panel.smal")))
        assert "there is no panel 'smal'" in error.message

    def test_inf_leaves_out_the_axis_key_and_what_is_named(self) -> None:
        text = CURVES.replace("strength = []", 'strength = ["protection"]')
        at_inf = [t for run, t in zip(plan(text).runs, studies(plan(text)), strict=True) if inf(run.at)]
        assert all(tables["algorithm"]["momentum"] == 0.0 for tables in at_inf)
        assert all(tables["protection"]["name"] == "masked" for tables in at_inf)

    def test_without_noise_all_variants_are_one_study(self) -> None:
        found = [run for run in plan(CURVES).runs if inf(run.at)]
        assert len(found) == 6  # two variants, three seeds
        assert len({run.digest for run in found}) == 3

    def test_inf_of_a_plain_axis(self) -> None:
        text = (
            STUDY
            + '[sweep]\nremove_at_inf = { "data.alpha" = ["data.partition"] }\n"data.alpha" = [inf, 0.5]'
        )
        text = text.replace("sites = 4", 'sites = 4\npartition = "dirichlet"')
        assert [t["data"]["partition"] for t in studies(plan(text))] == ["iid", "dirichlet"]

    def test_inf_that_nothing_explains_is_refused_with_a_hint(self) -> None:
        error = error_of(lambda: plan(STUDY + '[sweep]\n"algorithm.momentum" = [inf]'))
        assert "algorithm.momentum" in error.message
        assert "or name it in remove_at_inf" in error.message

    def test_panels_come_before_variants(self) -> None:
        found = plan(
            STUDY
            + """
            [sweep]
            [[sweep.panel]]
            name = "digits"
            set = { data.name = "digits" }
            [[sweep.panel]]
            name = "cancer"
            [[sweep.variant]]
            name = "v"
            set = { data.sites = 5 }
            """
        )
        assert [(t["data"]["name"], t["data"]["sites"]) for t in studies(found)] == [
            ("digits", 5),
            ("breast-cancer", 5),
        ]


def inf(at: Any) -> bool:
    return any(isinstance(value, float) and math.isinf(value) for value in at.values())


class TestRefusals:
    def test_all_bad_combinations_are_told_at_once(self) -> None:
        error = error_of(lambda: plan(RATES.replace("[0.1, 0.2, 0.3]", "[0.1, -1.0, -2.0]")))
        assert isinstance(error, ConfigError)
        assert error.message.startswith("2 of 3 combinations cannot be run; nothing was started:")
        assert "learning_rate=-1: algorithm.learning_rate" in error.message
        assert "learning_rate=-2: algorithm.learning_rate" in error.message
        assert "seed" not in error.message  # one line per point, not per seed

    def test_one_cause_is_told_once(self) -> None:
        text = RATES + '"protection.bits" = [2]'
        error = error_of(lambda: plan(text))
        assert error.message.count("protection.bits: ") == 1
        assert "and 2 more" in error.message

    def test_pieces_that_do_not_fit_together_are_found_before_the_first_run(self) -> None:
        error = error_of(lambda: plan(RATES + '"model.name" = ["logistic-regression", "small-cnn"]'))
        assert "3 of 6 combinations" in error.message
        assert "small-cnn" in error.message

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ("set = { study.seed = 1 }", "study.seed: is set by sweep.seeds too"),
            (
                'set = { algorithm.momentum = 0.5 }\naxis = { e = "algorithm.momentum" }',
                "algorithm.momentum: is set by sweep.variant 'v' too",
            ),
            ('axis = { e = "algorithm.name.x" }', "'name' is a value, not a table"),
            ('axis = { e = "momentum" }', "'momentum' is not a study key"),
            (
                'remove = ["algorithm.momentun"]\naxis = { e = "algorithm.momentum" }',
                "no 'algorithm.momentun'",
            ),
            ('axis = { e = "algorithm.momentun" }', "algorithm.momentun: unknown key"),
        ],
    )
    def test_a_variant_that_makes_no_sense(self, table: str, message: str) -> None:
        text = STUDY + f'[sweep.axes]\ne = [0.5]\n[[sweep.variant]]\nname = "v"\n{table}'
        if "axis" not in table:
            text += '\naxis = { e = "algorithm.momentum" }'
        assert message in error_of(lambda: plan(text)).message

    def test_remove_at_inf_of_a_key_that_is_not_there(self) -> None:
        error = error_of(lambda: plan(CURVES.replace("strength = []", 'strength = ["privacy"]')))
        assert "remove_at_inf: the study has no 'privacy'" in error.message


class TestPlainAtInf:
    TEXT = CURVES + (
        '\n[[sweep.variant]]\nname = "other"\nplain_at_inf = PLAIN\nset = { algorithm.local_epochs = 7 }\n'
        'axis = { strength = "algorithm.weight_decay" }\nremove_at_inf = { strength = [] }\n'
    )

    @pytest.mark.parametrize("plain", ["true", "false"])
    def test_a_variant_without_its_own_settings_at_inf_is_the_study_itself(self, plain: str) -> None:
        found = plan(self.TEXT.replace("PLAIN", plain))
        mine = [run for run in found.runs if run.at["variant"] == "other"]
        own = {run.at["strength"]: "local_epochs = 7" in run.text for run in mine}
        assert own == {value: value != math.inf or plain == "false" for value in own}
        bare = {run.digest for run in mine if run.at["strength"] == math.inf}
        others = {run.digest for run in found.runs if run.at["variant"] != "other"}
        assert (bare <= others) == (plain == "true")


class TestOptional:
    TEXT = (
        CURVES
        + '\n[[sweep.variant]]\nname = "later"\nset = { algorithm.name = "fedlater" }\n'
        + ('axis = { strength = "algorithm.mu" }\nremove_at_inf = { strength = ["algorithm"] }\n')
    )

    def test_a_refused_variant_fails_the_sweep_unless_it_is_optional(self) -> None:
        assert "'fedlater'" in error_of(lambda: plan(self.TEXT)).message

    def test_an_optional_one_is_missing_as_a_whole_and_says_why(self) -> None:
        found = plan(self.TEXT + "optional = true")
        assert set(found.missing) == {"later"}
        mine = [run for run in found.runs if run.at["variant"] == "later"]
        assert len(mine) == 9
        assert all(run.unavailable == found.missing["later"] and not run.digest for run in mine)
        assert all(run.digest for run in found.runs if run.at["variant"] != "later")

    def test_points_that_happen_to_work_are_left_out_with_the_others(self) -> None:
        text = self.TEXT.replace('strength = ["algorithm"]', 'strength = ["algorithm.name"]')
        text = text.replace('set = { algorithm.name = "fedlater" }', 'set = { algorithm.optimizer = "sgd" }')
        text = text.replace(
            'remove_at_inf = { strength = ["algorithm.name"] }', "remove_at_inf = { strength = [] }"
        )
        found = plan(text + "optional = true")  # at inf mu is not set, and the study is fine
        assert "algorithm.mu: unknown key" in found.missing["later"]
        assert all(run.unavailable for run in found.runs if run.at["variant"] == "later")


class TestExamples:
    def test_the_small_one_is_valid(self, repository: Path) -> None:
        found = make_plan(SweepFile.load(repository / "examples" / "sweep-breast-cancer.toml"))
        assert len({run.digest for run in found.runs}) == 12

    def test_the_epsilon_study_labels_the_paper_s_way_as_no_guarantee(self, repository: Path) -> None:
        found = SweepFile.load(repository / "examples" / "fmcsc-epsilon.toml")
        paper, *sound = found.variants
        assert "not a guarantee" in paper.title
        assert paper.note.startswith("not a guarantee, because")
        assert not paper.optional
        assert [variant.optional for variant in sound] == [True, True, False]
        assert found.axes[0].values == (math.inf, 100, 50, 20, 10, 5, 2)
