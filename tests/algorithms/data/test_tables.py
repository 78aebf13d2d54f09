from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from secfed.algorithms.data.memory import SiteTables
from secfed.algorithms.data.prepare import Facts, Preparation, PreparedRecords, prepare
from secfed.algorithms.framework.datasets import LabelledData
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.errors import ConfigError, DataError
from secfed.study.build import build_data
from secfed.study.study import Study
from tests.secfed.privacy_case import study as private_study


def data(text: str, seed: int = 1) -> LabelledData:
    study = f'study = {{ name = "a", rounds = 1, seed = {seed} }}\nalgorithm.name = "fedavg"\n'
    study += f'model.name = "mlp"\nprotection = {{ name = "plain", min_cohort = 1 }}\n[data]\n{text}'
    return build_data(Study.parse(study))


@pytest.mark.parametrize(
    ("text", "shape", "classes", "total"),
    [('name = "breast-cancer"', (30,), 2, 569), ('name = "digits"', (1, 8, 8), 10, 1797)],
)
@pytest.mark.parametrize("partition", ["", 'partition = "dirichlet"\nalpha = 5.0'])
def test_embedded_data_reaches_every_site_as_described(text, shape, classes, total, partition):
    found = data(f"{text}\nsites = 5\n{partition}")
    sites = [found.site(site) for site in found.sites]
    assert (found.input_shape, found.classes) == (shape, classes)
    assert found.sites == tuple(f"hospital-{i}" for i in range(1, 6))
    assert sum(len(site.train_y) + len(site.test_y) for site in sites) == total
    for site in sites:
        assert site.train_x.shape[1:] == site.test_x.shape[1:] == shape
        assert len(site.test_y) == pytest.approx(0.2 * (len(site.train_y) + len(site.test_y)), abs=1)


def test_public_facts_are_known_without_reading_a_record(monkeypatch):
    def forbidden():
        raise AssertionError("records were read")

    monkeypatch.setattr("secfed.algorithms.data.pool._load_digits", forbidden)
    assert data('name = "digits"').classes == 10


def test_the_seed_decides_partition_and_split():
    one, same, other = (data('name = "breast-cancer"', seed).site("hospital-1") for seed in (1, 1, 2))
    assert torch.equal(one.train_x, same.train_x)
    assert torch.equal(one.test_x, same.test_x)
    assert not torch.equal(one.train_x, other.train_x)


def test_positive_breast_cancer_is_malignant():
    found = data('name = "breast-cancer"\nsites = 2\ntest_fraction = 0')
    assert sum(int(found.site(site).train_y.sum()) for site in found.sites) == 212


def test_an_unknown_site_is_an_error_that_lists_the_sites():
    with pytest.raises(DataError, match=r"'hospital-9' is not in this study.*hospital-1, hospital-2"):
        data('name = "breast-cancer"').site("hospital-9")


RNG = np.random.default_rng(0)


def prepared(x: np.ndarray, rules: Preparation, y: np.ndarray | None = None, shape: tuple[int, ...] = (3,)):
    labels = np.arange(len(x)) % 2 if y is None else y
    return prepare("north", PreparedRecords(x, labels), Facts(("north",), rules, shape, 2, 4))


def test_standardising_uses_training_records_only():
    x = RNG.normal(5.0, 3.0, size=(200, 3))
    rules = Preparation(0.25, standardize=True)
    site = prepared(x, rules)
    assert torch.allclose(site.train_x.mean(dim=0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(site.train_x.std(dim=0, correction=0), torch.ones(3), atol=1e-5)
    assert not torch.allclose(site.test_x.mean(dim=0), torch.zeros(3), atol=1e-5)
    # Changing held-out records changes nothing that training sees.
    changed = x.copy()
    raw = prepared(x, Preparation(0.25, standardize=False))
    held_out = [
        int(np.flatnonzero((x.astype(np.float32) == row.numpy()).all(axis=1))[0]) for row in raw.test_x
    ]
    changed[held_out] = 1e6
    assert torch.equal(prepared(changed, rules).train_x, site.train_x)


def test_a_constant_column_becomes_zero():
    x = RNG.normal(size=(50, 3))
    x[:, 1] = 7.0
    site = prepared(x, Preparation(0.2, standardize=True))
    assert not site.train_x[:, 1].any()


def test_missing_values_become_the_median_of_the_training_records():
    x = np.tile(np.arange(1.0, 101.0)[:, None], (1, 3))
    x[::10, 0] = np.nan
    x[:, 1] = np.nan
    site = prepared(x, Preparation(0.2, standardize=False, impute="median"))
    assert not torch.isnan(site.train_x).any()
    known = site.train_x[:, 2][site.train_x[:, 2] == site.train_x[:, 0]]
    filled = site.train_x[:, 0][site.train_x[:, 2] % 10 == 1]
    assert len(filled)
    assert set(filled.tolist()) == {float(np.median(known))}
    assert set(site.train_x[:, 1].tolist()) == {0.0}  # never measured at this site


def test_columns_on_a_public_scale_are_left_alone():
    x = RNG.normal(5.0, 3.0, size=(60, 3))
    site = prepared(x, Preparation(0.0, standardize=True, fixed=(1,)))
    assert torch.allclose(site.train_x[:, 1], torch.from_numpy(x[:, 1]).float())


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize(
    ("value", "impute", "says"),
    [
        (math.nan, "none", "site 'north': a feature in row 4 of its records is NaN.*Remedy: repair"),
        (math.inf, "median", "site 'north' has features that are infinite.*Remedy: repair"),
        (math.inf, "none", "site 'north' has features that are infinite.*Remedy: repair"),
        (1e300, "median", "site 'north' has features that are infinite or too large.*Remedy: repair"),
        (1e300, "none", "site 'north' has features that are infinite or too large.*Remedy: repair"),
    ],
)
def test_what_cannot_be_trained_on_is_an_error_that_names_the_site(value, impute, says, standardize):
    x = RNG.normal(size=(20, 3))
    x[3, 1] = value
    with pytest.raises(DataError, match=says):
        prepared(x, Preparation(0.0, standardize, impute=impute))


def test_a_single_record_is_an_error_and_at_a_hospital_trained_on_and_not_held_out():
    with pytest.raises(DataError, match="site 'north' has one record"):
        prepared(np.zeros((1, 3)), Preparation(0.4, standardize=True))
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        site = prepared(np.zeros((1, 3)), Preparation(0.4, standardize=True))
    assert (len(site.train_y), len(site.test_y), len(heard)) == (1, 0, 1)


def test_a_site_whose_records_are_all_held_out_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"site 'north' has no training records.*data\.test_fraction"):
        prepared(np.zeros((2, 3)), Preparation(0.9, standardize=True))


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ([0, 1, 2, 0], "label outside the study's 2 classes"),
        ([0, 1, -1, 0], "label outside the study's 2 classes"),
        ([0, 1, math.nan, 0], "labels that are no integers"),
        ([0, 1, 0.5, 0], "labels that are no integers"),
        ([0, 1, 1], "not have one label per record"),
    ],
)
def test_wrong_labels_of_a_users_tables_name_the_site(labels, what):
    x = RNG.normal(size=(4, 2))
    tables = {"north": (x, [0, 1, 0, 1]), "south": (x, labels)}
    with pytest.raises(DataError, match=f"site 'south'.*{what}"):
        SiteTables(tables, classes=2, test_fraction=0).site("south")


def test_sites_of_different_width_are_an_error_that_names_the_site():
    tables = SiteTables({"a": (np.zeros((9, 2)), [0] * 9), "b": (np.zeros((9, 3)), [0] * 9)}, classes=2)
    with pytest.raises(DataError, match=r"site 'b'.*shape \(3,\).*shape \(2,\)"):
        tables.site("b")


def test_a_site_without_records_does_not_decide_the_shape_of_a_record():
    tables = SiteTables({"a": ([], []), "b": (np.zeros((9, 3)), [0] * 9)}, classes=2)
    assert tables.input_shape == (3,)
    with pytest.raises(DataError, match="site 'a' has no records"):
        tables.site("a")


def test_no_error_or_repr_shows_a_value_of_a_record():
    x = np.full((8, 2), 123.456)
    x[0, 0] = math.nan
    tables = SiteTables({"a": (x, [0] * 8)}, classes=2, standardize=False)
    with pytest.raises(DataError) as caught:
        tables.site("a")
    assert "123" not in str(caught.value)
    good = data('name = "breast-cancer"').site("hospital-1")
    assert "tensor" not in repr(good)


@pytest.mark.parametrize(
    ("split", "unit"), [("content", "add-or-remove-record"), ("position", "replace-record")]
)
def test_the_held_out_records_stay_with_privacy_where_the_study_names_how_they_are_drawn(
    split: str, unit: str
) -> None:
    bare = private_study().replace("privacy", None).replace("data.split", split)
    private = private_study().replace("privacy.adjacency", unit).replace("data.split", split)
    for site in build_data(bare).sites:
        one, other = build_data(bare).site(site), build_data(private).site(site)
        assert torch.equal(one.test_x, other.test_x)
    unfitting = {"content": "position", "position": "content"}[split]
    with pytest.raises(ConfigError, match=f'data.split.*set data.split = "{split}"'):
        build_data(private.replace("data.split", unfitting))


def test_a_remedy_names_what_the_data_set_has() -> None:
    tables = SiteTables({"a": ([[1.0], [2.0]], [0, 1])}, classes=2)
    with pytest.raises(ConfigError, match="Remedy: in your factory, give SiteTables standardize=False"):
        tables.for_record_privacy()
    with pytest.raises(DataError, match="has 1 classes"):
        SiteTables({"a": ([[1.0], [2.0]], [0, 0])}, classes=1)
