"""Patients in data sets: each is a number beside its training records, on one side, and never a feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secfed.algorithms.data.image_text.base import ImageTextSite, check_image_text
from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.data.prepare import split_by_patient
from secfed.algorithms.framework.datasets import SiteData, check_site, numbered
from secfed.algorithms.framework.targets import Targets
from secfed.errors import ConfigError, DataError
from secfed.study.build import build_data
from secfed.study.study import Study
from tests.algorithms.vlp_case import pairs

STUDY = """
study = { name = "a", rounds = 1, seed = 7 }
algorithm = { name = "fedavg", weighting = "equal" }
model.name = "logistic-regression"
protection = { name = "plain", min_cohort = 2 }
[data]
name = "csv"
path = "visits.csv"
site_column = "site"
sites = ["north", "south"]
patient_column = "patient"
label_column = "label"
labels = [0, 1]
feature_columns = ["age", "chol"]
scale = { age = [50, 20], chol = [200, 50] }
impute = "centre"
standardize = false
test_fraction = 0.3
"""
PRIVACY = """
[privacy]
unit = "group"
group_size = 4
epsilon = 8.0
delta = 1e-4
adjacency = "replace-patient"
"""
RECORD = '\n[privacy]\nunit = "record"\nepsilon = 8.0\ndelta = 1e-4\n'
WHOSE = [f"p{number}" for number in range(40) for _ in range(1 + number % 4)]  # 100 visits


def visits(whose: list[str] | None = None) -> list[str]:
    """A line per visit; the age says which line it was, and the second column whose."""
    rng = np.random.default_rng(3)
    names = whose or WHOSE
    return [
        f"{('north', 'south')[at % 20 == 0]},{who},{20 + at / 10},{rng.integers(100, 400)},{rng.integers(2)}"
        for at, who in enumerate(names)
    ]


def built(folder: Path, table: list[str], text: str = STUDY + PRIVACY) -> Any:
    (folder / "visits.csv").write_text("\n".join(["site,patient,age,chol,label", *table]) + "\n")
    (folder / "study.toml").write_text(text)
    return build_data(Study.load(folder / "study.toml"))


def load(folder: Path, table: list[str], text: str = STUDY + PRIVACY) -> SiteData:
    site: SiteData = built(folder, table, text).site("north")
    return site


def lines_of(x: torch.Tensor) -> list[int]:
    """Which lines of the table these records were."""
    return [round(((float(age) * 20 + 50) - 20) * 10) for age in x[:, 0]]


class TestTables:
    @pytest.mark.parametrize("privacy", ["", RECORD, PRIVACY])
    def test_a_patient_is_on_one_side_and_its_training_records_have_its_number(
        self, tmp_path: Path, privacy: str
    ) -> None:
        site = load(tmp_path, visits(), STUDY + privacy)
        train, test = lines_of(site.train_x), lines_of(site.test_x)
        assert len(train) + len(test) == 95
        whose = [WHOSE[line] for line in train]
        assert 5 < len({WHOSE[line] for line in test}) < 25
        assert not set(whose) & {WHOSE[line] for line in test}
        assert site.train_patients == numbered(whose)
        assert site.train_x.shape[1] == 2

    def test_a_replaced_patient_leaves_all_others_where_they_are(self, tmp_path: Path) -> None:
        """Another name and other content, as many visits: the same places, sides and numbers."""
        before, replaced = load(tmp_path, visits()), set()
        for gone in ("p7", "p11", "p38"):
            table = [
                line.replace(f",{gone},", ",new,").rsplit(",", 2)[0] + ",111,1"
                if f",{gone}," in line
                else line
                for line in visits()
            ]
            after = load(tmp_path, table)
            assert after.train_patients == before.train_patients
            changed = (before.train_x != after.train_x).any(dim=1) | (before.train_y != after.train_y)
            theirs = {
                number
                for number, moved in zip(before.train_patients or (), changed.tolist(), strict=True)
                if moved
            }
            assert len(theirs) <= 1
            replaced |= theirs
        assert replaced  # some of them are in training

    def test_a_visit_that_is_removed_moves_no_other_where_records_come_and_go(self, tmp_path: Path) -> None:
        whole = load(tmp_path, visits(), STUDY + RECORD)
        for gone in range(0, 100, 9):
            fewer = load(tmp_path, visits()[:gone] + visits()[gone + 1 :], STUDY + RECORD)
            assert set(lines_of(whole.train_x)) - set(lines_of(fewer.train_x)) <= {gone}
            assert set(lines_of(whole.test_x)) - set(lines_of(fewer.test_x)) <= {gone}

    @pytest.mark.parametrize("name", ["", " ", "NA", "nan"])
    def test_a_record_of_nobody_is_an_error_that_names_the_line(self, tmp_path: Path, name: str) -> None:
        table = visits(["p73519", name, "p73519", *WHOSE[3:]])
        with pytest.raises(DataError, match=r"visits\.csv, line 3: column 'patient' is empty") as refused:
            load(tmp_path, table)
        assert "73519" not in str(refused.value)

    def test_a_column_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no column 'person'"):
            load(tmp_path, visits(), STUDY.replace('patient_column = "patient"', 'patient_column = "person"'))

    @pytest.mark.parametrize("column", ["age", "label", "site"])
    def test_a_patient_is_no_feature(self, column: str) -> None:
        with pytest.raises(ConfigError, match=r"^data\.patient_column: is a feature, the label or the site"):
            Study.parse(STUDY.replace('patient_column = "patient"', f'patient_column = "{column}"'))

    def test_a_pool_keeps_patients_through_its_partition(self, tmp_path: Path) -> None:
        text = STUDY.replace('site_column = "site"\n', 'partition = "iid"\n').replace(
            'sites = ["north", "south"]', "sites = 2"
        )
        data = built(tmp_path, visits(), text + PRIVACY)
        for name in data.sites:
            site = data.site(name)
            assert site.train_patients == numbered([WHOSE[line] for line in lines_of(site.train_x)])


class TestArrays:
    X, Y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])

    def tables(self, **more: Any) -> SiteTables:
        sites = {"a": (self.X, self.Y), "b": (self.X, self.Y)}
        return SiteTables(sites, classes=2, standardize=False, test_fraction=0.0, **more)

    def test_a_users_own_arrays(self) -> None:
        whose = {"a": ["x", "y", "x", "x", "z", "y"], "b": np.array([4, 4, 4, 2, 2, 2])}
        data = self.tables(patients=whose)
        assert data.site("a").train_patients == (0, 1, 0, 0, 2, 1)
        assert data.site("b").train_patients == (0, 0, 0, 1, 1, 1)
        assert self.tables().site("a").train_patients is None

    @pytest.mark.parametrize("whose", [{"a": [1] * 6}, {"a": [1] * 6, "b": [1] * 5}, {}])
    def test_every_record_has_a_patient(self, whose: dict[str, list[int]]) -> None:
        with pytest.raises(DataError, match="does not have one patient per record") as refused:
            self.tables(patients=whose)
        assert refused.value.remedy


class TestSplit:
    def test_a_patients_side_follows_from_its_own_name(self) -> None:
        train, test = split_by_patient(WHOSE, 0.3, 5, slots=False)
        assert sorted([*train, *test]) == list(range(100))
        whole = {WHOSE[at] for at in test}
        for start in (1, 10, 50):
            kept = WHOSE[start:]
            assert {kept[at] for at in split_by_patient(kept, 0.3, 5, slots=False)[1]} == whole & set(kept)
        assert {WHOSE[at] for at in split_by_patient(WHOSE, 0.3, 6, slots=False)[1]} != whole

    def test_slots_do_not_look_at_names(self) -> None:
        renamed = [f"other {name}" for name in WHOSE]
        one, other = (split_by_patient(names, 0.3, 5, slots=True) for names in (WHOSE, renamed))
        assert all(map(np.array_equal, one, other))
        assert len(split_by_patient(WHOSE, 0.0, 5, slots=True)[1]) == 0

    def test_the_share_is_kept_on_average(self) -> None:
        for slots in (False, True):
            held_out = split_by_patient([str(at) for at in range(4000)], 0.3, 1, slots=slots)[1]
            assert len(held_out) == pytest.approx(1200, abs=150)  # five deviations


class TestChecks:
    def test_as_many_patients_as_records(self) -> None:
        x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
        with pytest.raises(DataError, match="site 'a' has not one patient per training record"):
            check_site("a", SiteData(x, y, x, y, (0, 1)), input_shape=(2,), targets=Targets.of_classes(2))
        data = pairs()
        site = data.site("hospital-1")
        check_image_text("a", ImageTextSite(site.train, site.test, tuple(range(24))), data)
        with pytest.raises(DataError, match="site 'a': training records do not have one patient each"):
            check_image_text("a", ImageTextSite(site.train, site.test, (0, 1)), data)

    def test_patients_are_in_no_repr(self) -> None:
        x, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
        site = pairs().site("hospital-1")
        named = (SiteData(x, y, x, y, (73519,)), ImageTextSite(site.train, site.test, (73519,)))
        assert "73519" not in "".join(map(repr, named))
