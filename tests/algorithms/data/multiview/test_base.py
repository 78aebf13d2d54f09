from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import torch

from secfed.algorithms.data.multiview.base import MultiviewData, MultiviewSite, check_multiview
from secfed.algorithms.data.multiview.options import MultiviewOptions
from secfed.algorithms.data.multiview.sets import multiview
from secfed.algorithms.framework.datasets import LabelledData
from secfed.config.schema import checked
from secfed.errors import ConfigError, DataError

N = 90
X1 = np.arange(N * 3, dtype=np.float64).reshape(N, 3)  # column 0 of record i is 3 i: it identifies the record
X2 = 1000 + 3 * np.arange(N, dtype=np.float64)[:, None] * [1, 2]
Y = np.arange(N) % 3
FACTS = SimpleNamespace(sites=("a",), view_sizes=(3, 2), classes=2, view_of={"a": None})


def options(**keys) -> MultiviewOptions:
    table = {"name": "multiview", "path": "views.npz", "classes": 3, "sites": 6, "min_records": 5} | keys
    return checked(
        MultiviewOptions, {key: value for key, value in table.items() if value is not None}, "data"
    )


def separate(**keys) -> MultiviewOptions:
    """Records that an array of the file gives to sites."""
    sites = {"site_key": "where", "sites": ["north", "south"], "min_records": None}
    return options(**(sites | keys))


@pytest.fixture
def save(tmp_path):
    def save(name: str = "views.npz", **arrays) -> Path:
        found = {"X1": X1, "X2": X2, "Y": Y} | arrays
        found = {key: value for key, value in found.items() if value is not None}
        (scipy.io.savemat if name.endswith(".mat") else lambda p, d: np.savez(p, **d))(tmp_path / name, found)
        return tmp_path

    return save


def first_columns(site: MultiviewSite) -> list[np.ndarray | None]:
    """The record that each row is, by view."""
    starts = (0.0, 1000.0)
    return [
        None if view is None else (view[:, 0].double().numpy() - start) / 3
        for view, start in zip(site.views, starts, strict=True)
    ]


@pytest.mark.parametrize("name", ["views.npz", "views.mat"])
def test_every_record_reaches_one_site_with_all_or_one_of_its_views(save, name):
    data = multiview(options(path=name), 1, save(name))
    assert isinstance(data, MultiviewData)
    assert not isinstance(data, LabelledData)
    assert (data.view_sizes, data.classes, len(data.sites)) == ((3, 2), 3, 6)
    seen = []
    for at, site_id in enumerate(data.sites):
        site, view = data.site(site_id), data.view_of[site_id]
        assert (view is None) == (at < 3)
        assert site.held == ((0, 1) if view is None else (view,))
        rows = [found for found in first_columns(site) if found is not None]
        assert all(np.array_equal(found, rows[0]) for found in rows)
        assert np.array_equal(site.labels.numpy(), rows[0].astype(np.int64) % 3)
        assert site.labels.dtype == torch.int64
        assert all(found.dtype == torch.float32 for found in site.views if found is not None)
        seen.extend(rows[0].tolist())
    assert sorted(seen) == list(range(N))


def test_a_seed_gives_the_same_sites_again_and_another_seed_others(save):
    folder = save()
    one, again, other = (multiview(options(), seed, folder).site("hospital-1") for seed in (1, 1, 2))
    assert torch.equal(one.labels, again.labels)
    assert len(one.labels) != len(other.labels) or not torch.equal(one.views[0], other.views[0])


def test_any_number_of_views_under_any_names_in_the_order_of_the_options(save):
    folder = save(a=X1 + 0.0, b=X2, c=X1[:, :1], X1=None, X2=None)
    data = multiview(options(views=["c", "b", "a"], single_view_sites=0), 1, folder)
    site = data.site("hospital-1")
    assert data.view_sizes == (1, 2, 3)
    assert torch.equal(site.views[0][:, 0], site.views[2][:, 0])
    assert multiview(options(views=["b"], single_view_sites=0), 1, folder).view_sizes == (2,)


def test_labels_may_be_a_row_a_column_or_floats_and_start_at_one(save):
    expected = multiview(options(), 1, save()).site("hospital-2").labels
    for labels in ((Y + 1)[None, :], (Y + 1)[:, None], (Y + 1).astype(np.float64)):
        found = multiview(options(first_label=1), 1, save(Y=labels)).site("hospital-2").labels
        assert torch.equal(found, expected)


def test_scales_are_public_constants_or_the_range_of_each_feature(save):
    data = multiview(
        options(single_view_sites=0, scale={"X1": [0, 269], "X2": "min-max"}), 1, save(X2=X2 * [1, 0])
    )
    sites = [data.site(site_id) for site_id in data.sites]
    ones, twos = (torch.cat([site.views[view] for site in sites]) for view in (0, 1))
    assert (float(ones.min()), float(ones.max())) == (0.0, 1.0)
    assert float(ones[:, 0].max()) == pytest.approx(267 / 269)
    assert (float(twos[:, 0].min()), float(twos[:, 0].max())) == (0.0, 1.0)
    assert float(twos[:, 1].abs().max()) == 0.0  # a constant feature


def test_per_class_limits_the_pool_before_it_is_divided(save):
    data = multiview(options(per_class=20), 1, save())
    labels = torch.cat([data.site(site_id).labels for site_id in data.sites])
    assert torch.bincount(labels).tolist() == [20, 20, 20]


def test_with_view_sizes_the_public_facts_need_no_file_and_without_them_only_its_headers(save, tmp_path):
    data = multiview(options(path="not-here.npz", view_sizes=[3, 2]), 1, tmp_path)
    assert (data.view_sizes, data.classes) == ((3, 2), 3)
    assert set(data.view_of) == set(data.sites)
    with pytest.raises(DataError, match=r"not-here\.npz does not exist"):
        data.site("hospital-1")
    with pytest.raises(DataError, match=r"not-here\.npz.*data\.view_sizes"):
        multiview(options(path="not-here.npz"), 1, tmp_path)


def test_a_file_of_another_width_than_the_study_says_is_refused(save):
    with pytest.raises(DataError, match=r"site 'hospital-1': view 2 .* 4 float32 features"):
        multiview(options(view_sizes=[3, 4]), 1, save()).site("hospital-1")


def test_explicit_single_view_sites(save):
    folder = save()
    table = {"hospital-1": "X2", "hospital-4": "X1"}
    view_of = multiview(options(single_view_sites=table), 1, folder).view_of
    assert [view_of[f"hospital-{number}"] for number in range(1, 7)] == [1, None, None, 0, None, None]
    count = multiview(options(single_view_sites=5), 1, folder).view_of
    assert [view is None for view in count.values()] == [True] + [False] * 5


class TestSitesOfTheFile:
    """``site_key``: records that already belong to hospitals."""

    WHERE = np.where(np.arange(N) < 40, "north", "south")

    def test_a_record_stays_where_the_file_says_in_its_order(self, save):
        data = multiview(separate(), 1, save(where=self.WHERE))
        assert isinstance(data, MultiviewData)
        assert data.view_of == {"north": None, "south": None}
        assert first_columns(data.site("north"))[1].tolist() == list(range(40))
        assert first_columns(data.site("south"))[0].tolist() == list(range(40, N))

    def test_a_mat_file_pads_texts_and_numbers_name_sites_too(self, save):
        folder = save("views.mat", where=np.where(np.arange(N) < 40, "north", "far south"))
        found = separate(path="views.mat", sites=["north", "far south"])
        assert len(multiview(found, 1, folder).site("north").labels) == 40
        folder = save("views.mat", where=(np.arange(N) >= 40).astype(np.int64)[None, :])
        assert len(multiview(separate(path="views.mat", sites=["0", "1"]), 1, folder).site("1").labels) == 50

    def test_names_of_sites_stored_as_bytes_are_utf_8(self, save):
        where = np.where(np.arange(N) < 40, "Zürich", "Bern")
        given = separate(sites=["Zürich", "Bern"])
        folder = save(where=np.char.encode(where, "utf-8"))
        assert len(multiview(given, 1, folder).site("Zürich").labels) == 40
        folder = save(where=np.char.encode(where, "latin-1"))
        with pytest.raises(DataError, match=r"'where' does not name sites.*UTF-8"):
            multiview(given, 1, folder).site("Bern")

    def test_a_hospital_with_one_view_needs_only_that_one_in_its_file(self, save):
        given = separate(single_view_sites={"south": "X2"}, view_sizes=[3, 2])
        data = multiview(given, 1, save(where=np.full(N, "south"), X1=None))
        assert data.view_of == {"north": None, "south": 1}
        assert data.site("south").held == (1,)
        with pytest.raises(DataError, match="has no array 'X1'"):
            data.site("north")

    def test_an_array_says_whose_each_record_is(self, save):
        whose = np.array([f"p{number // 3}" for number in range(N)])
        where = np.where(np.arange(N) < 40, "north", "south")
        given = separate(patient_key="whose")
        assert given.names_patients
        assert not separate().names_patients
        folder = save(where=where, whose=whose)
        site = multiview(given, 1, folder).site("south")
        assert site.patients is not None
        assert len(site.patients) == len(site.labels) == N - 40
        assert [number for number in range(1, 50) if site.patients[number] != site.patients[number - 1]] == [
            number for number in range(1, 50) if whose[40 + number] != whose[39 + number]
        ]
        assert site.first(50, "south").patients == site.patients
        assert multiview(separate(), 1, folder).site("south").patients is None
        with pytest.raises(DataError, match=r"'whose'.*name every record's patient"):
            multiview(given, 1, save(where=where, whose=whose[1:])).site("south")
        with pytest.raises(DataError, match="'whose' does not name patients"):
            multiview(given, 1, save(where=where, whose=np.linspace(0, 1, N))).site("south")

    def test_a_site_without_records_is_an_error_that_names_it(self, save):
        data = multiview(separate(), 1, save(where=np.full(N, "south")))
        with pytest.raises(DataError, match="site 'north' has no records"):
            data.site("north")

    @pytest.mark.parametrize("where", [np.full(N - 1, "south"), np.linspace(0, 1, N)])
    def test_an_array_that_does_not_name_the_site_of_each_record(self, save, where):
        with pytest.raises(DataError, match="'where'"):
            multiview(separate(), 1, save(where=where)).site("south")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X2": None}, "has no array 'X2'.*known: X1, Y"),
        ({"Y": None}, "has no array 'Y'"),
        ({"X2": X2[:-1]}, "'X2' does not have one row for each label.*transpose"),
        ({"Y": Y + 0.5}, "'Y' are not integers"),
        ({"Y": Y + 1}, r"label outside the study's 3 classes.*data\.first_label"),
        ({"Y": Y - 1}, "label outside the study's 3 classes"),
        ({"X1": np.full((N, 3), np.nan)}, "view 'X1' has NaN"),
        ({"X1": np.full((N, 3), 1e300)}, "view 'X1' has NaN or infinite"),
        ({"X1": np.zeros((N, 3, 2))}, "'X1' is not a table"),
        ({"X1": np.full((N, 3), "a")}, "'X1' is not a table of numbers"),
        ({"X1": np.full((N, 3), None)}, "arrays of Python objects are refused"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_file_or_site(save, arrays, message):
    with pytest.raises(DataError, match=message):
        multiview(options(single_view_sites=0), 1, save(**arrays)).site("hospital-1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("views.npz", b"PK\x03\x04 and no more", r"views\.npz is damaged"),
        ("views.npz", b"", r"views\.npz is damaged"),
        ("views.mat", b"no matrix here" * 20, r"views\.mat is damaged"),
        ("views.mat", b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", r"MATLAB's 7\.3 format.*-v7"),
        ("views.pkl", b"", r"views\.pkl is neither \.npz nor \.mat"),
    ],
)
@pytest.mark.parametrize("view_sizes", [None, [3, 2]])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name, content, message, view_sizes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        multiview(options(path=name, view_sizes=view_sizes), 1, tmp_path).site("hospital-1")


@pytest.mark.parametrize("name", ["views.npz", "views.mat"])
@pytest.mark.parametrize("view_sizes", [None, [3, 2]])
def test_a_file_with_a_wrong_byte_anywhere_is_used_or_an_error_that_names_it(tmp_path, name, view_sizes):
    arrays, path = {"X1": X1, "X2": X2, "Y": Y}, tmp_path / name
    if name.endswith(".mat"):
        scipy.io.savemat(path, arrays, do_compression=True)
    else:
        np.savez_compressed(path, **arrays)
    content = path.read_bytes()
    given, refused = options(path=name, view_sizes=view_sizes, single_view_sites=0), 0
    for at in range(0, len(content), 23):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            multiview(given, 1, tmp_path).site("hospital-1")
        except DataError as error:
            refused += name in error.message
        except ConfigError:  # other records than the study divides
            continue
    assert refused > len(content) / 23 / 2
    path.write_bytes(content[:100])
    with pytest.raises(DataError, match=f"{name} is damaged"):
        multiview(given, 1, tmp_path).site("hospital-1")


def test_no_error_says_how_many_records_a_hospital_has(save):
    with pytest.raises(DataError) as of_file:
        multiview(options(), 1, save(X2=X2[:-1])).site("hospital-1")
    site = MultiviewSite((torch.zeros(47, 3), torch.zeros(46, 2)), torch.zeros(47).long())
    with pytest.raises(DataError) as of_site:
        check_multiview("a", site, FACTS)
    for caught in (of_file, of_site):
        assert not any(count in str(caught.value) for count in ("90", "89", "47", "46"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"test_fraction": 0.2}, r"data\.test_fraction: should be less"),
        ({"ratio": "3:1"}, r'data\.ratio.*"2:1", "1:1" or "1:2"'),
        ({"ratio": "1:1", "single_view_sites": 2}, r"data\.ratio: has no effect"),
        ({"single_view_sites": 7}, r"data\.single_view_sites: 7 of 6 sites"),
        ({"single_view_sites": -1}, r"data\.single_view_sites: -1"),
        ({"single_view_sites": {"hospital-7": "X1"}}, "there is no site 'hospital-7'.*hospital-"),
        ({"single_view_sites": {"hospital-1": "X3"}}, "there is no view 'X3'"),
        ({"sites": 1}, r"data\.sites: there cannot be 1"),
        ({"sites": ["a", "b"]}, r"data\.sites.*set data\.sites to a number"),
        ({"views": []}, r"data\.views"),
        ({"views": ["X1", "X1"]}, r"data\.views: names a view twice"),
        ({"view_sizes": [3]}, r"data\.view_sizes: needs one number"),
        ({"view_sizes": [3, 0]}, r"data\.view_sizes"),
        ({"view_sizes": []}, r"data\.view_sizes"),
        ({"classes": 1}, r"data\.classes"),
        ({"classes": None}, r"data\.classes: is missing.*number of classes"),
        ({"per_class": 0}, r"data\.per_class"),
        ({"alpha": 0.0}, r"data\.alpha"),
        ({"scale": {"X3": "min-max"}}, "there is no view 'X3'"),
        ({"scale": {"X1": [1, 1]}}, r"data\.scale\.X1: the low end"),
        ({"scale": {"X1": "max"}}, r"data\.scale"),
        ({"label": "Y"}, r"data\.label: unknown key.*label_key"),
        ({"patient_key": "whose"}, r"data\.patient_key: .*divided among.*set data\.site_key"),
    ],
)
def test_options_that_mean_nothing_are_errors_that_name_the_key(keys, message):
    with pytest.raises(ConfigError, match=message):
        options(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sites": 4}, r"data\.sites: data\.site_key needs the list"),
        ({"sites": ["a", "a"]}, r"data\.sites: data\.site_key needs the list"),
        ({"alpha": 1.0}, r"data\.alpha: has no effect"),
        ({"ratio": "1:1"}, r"data\.ratio: has no effect"),
        ({"per_class": 5}, r"data\.per_class: has no effect"),
        ({"min_records": 5}, r"data\.min_records: has no effect"),
        ({"single_view_sites": 1}, r"data\.single_view_sites.*table of sites"),
        ({"scale": {"X1": "min-max"}}, r"data\.scale: .*\[low, high\]"),
    ],
)
def test_options_that_separate_records_would_ignore_or_break(keys, message):
    with pytest.raises(ConfigError, match=message):
        separate(**keys)


def test_a_study_without_patients_keeps_its_digest():
    from secfed.study.study import Study

    study = Study.parse(
        """
        study = { name = "views", rounds = 1 }
        algorithm = { name = "canonical" }
        model = { name = "none" }
        data = { name = "multiview", path = "v.npz", classes = 3, sites = ["a", "b", "c"], site_key = "s" }
        """
    )
    assert "patient_key" not in study.tables()["data"]
    assert study.replace("data.patient_key", "whose").digest() != study.digest()
