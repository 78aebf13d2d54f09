"""The sweep file: strict, small, and every error names its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.errors import ConfigError
from secfed.sweep.file import SweepFile
from tests.secfed.sweep_case import CURVES, RATES, STUDY, error_of, sweep_file


class TestReading:
    def test_axes_seeds_and_variants_in_the_order_of_the_file(self) -> None:
        found = sweep_file(
            STUDY
            + """
            [sweep]
            seeds = [3, 1]
            jobs = 4
            "data.sites" = [5, 4]
            "protection.name" = ["masked", "plain"]
            [[sweep.panel]]
            name = "p"
            [[sweep.variant]]
            name = "b"
            [[sweep.variant]]
            name = "a"
            """
        )
        assert found.seeds == (3, 1)
        assert found.jobs == 4
        assert found.dimensions == ("panel", "variant", "data.sites", "protection.name")
        assert [axis.values for axis in found.axes] == [(5, 4), ("masked", "plain")]
        assert [variant.name for variant in found.variants] == ["b", "a"]

    def test_a_file_may_begin_with_a_byte_order_mark(self) -> None:
        text = STUDY + "[sweep]\nseeds = [3, 1]\n"
        assert SweepFile.parse("\ufeff" + text).seeds == SweepFile.parse(text).seeds == (3, 1)

    def test_a_study_key_may_be_quoted_or_not(self) -> None:
        quoted = sweep_file(STUDY + '[sweep]\n"algorithm.momentum" = [0.1]\n"data.alpha" = [1.0]')
        assert (
            quoted.axes == sweep_file(STUDY + "[sweep]\nalgorithm.momentum = [0.1]\ndata.alpha = [1.0]").axes
        )
        variant = '[sweep]\n[[sweep.variant]]\nname = "v"\nset = {{ {} = 0.5 }}'
        dotted, nested = (
            sweep_file(STUDY + variant.format(key)).variants[0].set
            for key in ('"algorithm.momentum"', "algorithm.momentum")
        )
        assert dotted == nested == {"algorithm.momentum": 0.5}

    def test_the_seed_of_the_study_is_the_default(self) -> None:
        assert sweep_file(STUDY + "[sweep]").seeds == (0,)
        assert sweep_file(STUDY.replace("rounds = 1", "rounds = 1\nseed = 9") + "[sweep]").seeds == (9,)

    def test_arrays_can_be_values(self) -> None:
        assert sweep_file(STUDY + '[sweep]\n"model.hidden" = [[8], [8, 4]]').axes[0].values == ((8,), (8, 4))

    def test_load_says_where_relative_paths_start(self, tmp_path: Path) -> None:
        (tmp_path / "s.toml").write_text(RATES)
        assert SweepFile.load(tmp_path / "s.toml").folder == tmp_path

    def test_a_missing_file_names_its_neighbour(self, tmp_path: Path) -> None:
        (tmp_path / "sweep.toml").write_text(RATES)
        error = error_of(lambda: SweepFile.load(tmp_path / "sweap.toml"))
        assert "did you mean 'sweep.toml'?" in error.remedy


WRONG = [
    ("", "sweep: this section is missing"),
    ("[sweep]\nseeds = [1, 2", "not valid TOML"),
    ("[sweep]\nseeds = [" + 5000 * "9" + "]", "not valid TOML"),
    ("[sweep]\nseeds = " + 5000 * "[" + 5000 * "]", "nested too deeply"),
    ("[sweep]\nseed = [1]", "sweep.seed: unknown key"),
    ("[sweep]\nseeds = []", "sweep.seeds: is empty"),
    ("[sweep]\nseeds = [1, -1]", "sweep.seeds"),
    ("[sweep]\nseeds = [1, 1]", "sweep.seeds: 1 is there twice"),
    ("[sweep]\njobs = 0", "sweep.jobs"),
    ('[sweep]\n"data.sites" = 4', 'sweep."data.sites": must be a list'),
    ('[sweep]\n"data.sites" = []', 'sweep."data.sites": must be a list'),
    ('[sweep]\n"data.sites" = [4, 4]', 'sweep."data.sites": 4 is there twice'),
    ('[sweep]\n"data.alpha" = [nan]', "nan cannot be the value of an axis"),
    ('[sweep]\n"data.alpha" = [1979-05-27]', "cannot be the value of an axis"),
    (
        '[sweep]\n"data.sites" = [4]\ndata.sites = [5]',
        "sweep: data.sites is there twice, quoted and as a table",
    ),
    (
        '[[sweep.variant]]\nname = "a"\nset = { "data.sites" = 4, data.sites = 5 }',
        "sweep: data.sites is there twice",
    ),
    ("[sweep.axes]\nstrength = [1]", "sweep.axes.strength: no variant says which study key it sets"),
    ("[sweep.axes]\nseed = [1]", "'seed' cannot be the name of an axis"),
    ('[[sweep.variant]]\nname = "A b"', "sweep.variant[1].name"),
    ('[[sweep.variant]]\nnome = "a"', "sweep.variant[1].nome: unknown key"),
    ('[[sweep.variant]]\nname = "a"\n[[sweep.variant]]\nname = "a"', "sweep.variant: 'a' is there twice"),
    ('[[sweep.panel]]\nname = "a"\n[[sweep.panel]]\nname = "a"', "sweep.panel: 'a' is there twice"),
    ('[[sweep.panel]]\nname = "a"\noptional = true', "sweep.panel[1].optional: unknown key"),
    (
        '[sweep.axes]\nstrength = [1]\n[[sweep.variant]]\nname = "a"',
        "sweep.variant 'a': says no study key for the axis 'strength'",
    ),
    ('[[sweep.variant]]\nname = "a"\naxis = { e = "data.sites" }', "axis: there is no axis 'e'"),
    (
        '[[sweep.variant]]\nname = "a"\nremove_at_inf = { e = ["privacy"] }',
        "sweep.variant 'a': remove_at_inf: there is no axis 'e'",
    ),
    ('[sweep]\nremove_at_inf = { "data.sites" = [] }', "sweep.remove_at_inf: there is no axis 'data.sites'"),
    ('[sweep]\n[sweep.figure]\nx = "rate"', "sweep.figure.x: there is no axis 'rate'"),
    ('[sweep]\n[sweep.figure]\nx_scale = "root"', "sweep.figure.x_scale"),
    ('[sweep]\n[sweep.figure]\nxscale = "log"', "sweep.figure.xscale: unknown key"),
]


@pytest.mark.parametrize(("table", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_one_error_with_key_and_remedy(table: str, message: str) -> None:
    error = error_of(lambda: sweep_file(STUDY + table))
    assert isinstance(error, ConfigError)
    assert message in error.message
    assert error.remedy


def test_curves_of_the_tests_are_valid() -> None:
    assert sweep_file(CURVES).dimensions == ("variant", "strength")
