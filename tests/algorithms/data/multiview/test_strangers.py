"""Files as others keep them: cell arrays, labels of any kind, gaps, sparse views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat
from scipy.sparse import csr_matrix

from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.data.multiview.options import MultiviewOptions
from secfed.algorithms.data.multiview.sets import multiview
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError

RNG = np.random.default_rng(4)
FIRST, SECOND = RNG.normal(size=(60, 5)), RNG.normal(size=(60, 3))
CLASSES = np.arange(60) % 3


def loaded(path: Path, **options: Any) -> list[MultiviewSite]:
    given = {
        "name": "multiview",
        "path": path.name,
        "sites": 2,
        "single_view_sites": 0,
        "classes": 3,
        **options,
    }
    data = multiview(checked(MultiviewOptions, given, "data"), 1, path.parent)
    return [data.site(site) for site in data.sites]


def cells(*items: Any) -> np.ndarray:
    made = np.empty((1, len(items)), dtype=object)
    for at, item in enumerate(items):
        made[0, at] = item
    return made


def rows(sites: list[MultiviewSite], view: int = 0) -> set[tuple[float, ...]]:
    found = [one for site in sites if (one := site.views[view]) is not None]
    return {tuple(row) for row in torch.cat(found).tolist()}


def expected(values: np.ndarray) -> set[tuple[float, ...]]:
    return {tuple(row) for row in torch.from_numpy(values.astype(np.float32)).tolist()}


def test_cells_of_a_matlab_array_are_views_by_their_matlab_names(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"X": cells(FIRST, SECOND), "Y": CLASSES[:, None] + 1.0})
    sites = loaded(tmp_path / "x.mat", views=["X{1}", "X{2}"], first_label=1)
    assert (rows(sites), rows(sites, 1)) == (expected(FIRST), expected(SECOND))
    with pytest.raises(DataError, match=r'cell array of 2.*data.views = \["X\{1\}", "X\{2\}"\]'):
        loaded(tmp_path / "x.mat", views=["X"], view_sizes=[5], first_label=1)
    with pytest.raises(DataError, match=r"no array 'X\{3\}'"):
        loaded(tmp_path / "x.mat", views=["X{1}", "X{3}"], first_label=1)
    with pytest.raises(DataError, match=r"data\.first_label \(1 where"):
        loaded(tmp_path / "x.mat", views=["X{1}", "X{2}"])


@pytest.mark.parametrize("of_cells", [True, False])
def test_labels_may_be_texts_that_the_study_lists(tmp_path: Path, of_cells: bool) -> None:
    texts = np.array(["benign", "unsure", "malignant"])[CLASSES]
    stored = cells(*texts.tolist()) if of_cells else texts
    arrays = {"X1": FIRST, "X2": csr_matrix(SECOND), "Y": stored}
    savemat(tmp_path / "x.mat", arrays)
    sites = loaded(tmp_path / "x.mat", class_names=["benign", "unsure", "malignant"])
    by_row = {tuple(row): int(label) for site in sites for row, label in _labelled(site)}
    truth = torch.from_numpy(FIRST.astype(np.float32)).tolist()
    assert [by_row[tuple(row)] for row in truth] == CLASSES.tolist()
    assert rows(sites, 1) == expected(SECOND)  # that was sparse
    with pytest.raises(DataError, match=r"are texts.*list them in data.class_names"):
        loaded(tmp_path / "x.mat")
    with pytest.raises(DataError, match=r"one that data.class_names does not list"):
        loaded(tmp_path / "x.mat", class_names=["benign", "unsure", "other"])
    with pytest.raises(ConfigError, match="other than 3 different labels"):
        loaded(tmp_path / "x.mat", class_names=["benign", "unsure"])


def _labelled(site: MultiviewSite) -> Any:
    assert site.views[0] is not None
    return zip(site.views[0].tolist(), site.labels.tolist(), strict=True)


@pytest.mark.parametrize(("rule", "in_place"), [("record", "mean"), ("zero", 0.0)])
def test_gaps_and_missing_views_are_filled_from_the_record_itself(
    tmp_path: Path, rule: str, in_place: Any
) -> None:
    gaps, missing = FIRST.copy(), SECOND.copy()
    gaps[7, 2] = np.nan
    missing[11] = np.nan  # a record without the second view
    np.savez(tmp_path / "x.npz", X1=gaps, X2=missing, Y=CLASSES)
    filled = FIRST.copy()
    filled[7, 2] = np.nanmean(gaps[7]) if in_place == "mean" else in_place
    without = SECOND.copy()
    without[11] = 0.0
    sites = loaded(tmp_path / "x.npz", missing=rule)
    assert torch.allclose(*(torch.tensor(sorted(found)) for found in (rows(sites), expected(filled))))
    assert rows(sites, 1) == expected(without)
    with pytest.raises(DataError, match=r"x\.npz: view 'X1' has NaN .* in row 8.*data.missing"):
        loaded(tmp_path / "x.npz")


def test_a_range_is_that_of_the_known_values(tmp_path: Path) -> None:
    gaps = FIRST.copy()
    gaps[7, 2] = np.nan
    np.savez(tmp_path / "x.npz", X1=gaps, X2=SECOND, Y=CLASSES)
    found = torch.tensor(sorted(rows(loaded(tmp_path / "x.npz", missing="zero", scale={"X1": "min-max"}))))
    assert float(found.min()) == 0.0
    assert float(found.max()) == 1.0


def test_more_classes_than_records_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X1=FIRST, X2=SECOND, Y=CLASSES)
    with pytest.raises(DataError, match=r"61 classes cannot come from 60 records"):
        loaded(tmp_path / "x.npz", classes=61)


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder.*name the file"):
        loaded(tmp_path / ".")


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "views", "classes", "records"),
    [("uci-digit", 3, 10, 2000), ("MSRCV1", 6, 7, 210), ("BBCSport", 2, 5, 544)],
)
def test_published_cell_arrays_load(
    shared_data: Path, name: str, views: int, classes: int, records: int
) -> None:
    named = [f"X{{{number}}}" for number in range(1, views + 1)]
    path = shared_data.resolve() / f"{name}.mat"
    sites = loaded(path, views=named, classes=classes, first_label=1)
    assert sum(len(site.labels) for site in sites) == records
