"""Records of a user's own data set against its public facts, and the published sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from secfed.algorithms.data.multiview.base import MultiviewSite, check_multiview
from secfed.algorithms.data.multiview.options import (
    BdgpOptions,
    MnistUspsOptions,
    NuswideOptions,
)
from secfed.algorithms.data.multiview.sets import bdgp, mnist_usps, nuswide
from secfed.errors import DataError
from tests.algorithms.data.multiview.test_base import FACTS


@pytest.mark.parametrize(
    ("views", "labels", "message"),
    [
        ((torch.zeros(4, 3), None), torch.zeros(4).long(), "does not hold the views"),
        ((torch.zeros(4, 3),), torch.zeros(4).long(), "does not hold the views"),
        ((torch.zeros(4, 3), torch.zeros(3, 2)), torch.zeros(4).long(), r"\(2,\), and not one row per"),
        ((torch.zeros(4, 3), torch.zeros(4, 5)), torch.zeros(4).long(), r"view 2 is .*\(5,\), but"),
        ((torch.zeros(4, 3), torch.zeros(4, 2).double()), torch.zeros(4).long(), "view 2 is torch.float64"),
        ((torch.zeros(4, 3), torch.zeros(4, 2)), torch.zeros(4), "int64"),
        ((torch.zeros(4, 3), torch.zeros(4, 2)), torch.full((4,), 2), "outside the study's 2 classes"),
        ((torch.zeros(0, 3), torch.zeros(0, 2)), torch.zeros(0).long(), "has no records"),
        ((torch.full((4, 3), torch.inf), torch.zeros(4, 2)), torch.zeros(4).long(), "view 1 contains NaN"),
    ],
)
def test_a_users_own_records_are_checked_against_the_public_facts(views, labels, message):
    with pytest.raises(DataError, match=f"site 'a'.*{message}"):
        check_multiview("a", MultiviewSite(views, labels), FACTS)


@pytest.mark.parametrize(
    ("build", "options_of", "file"),
    [
        (mnist_usps, MnistUspsOptions, "MNIST_USPS.mat"),
        (bdgp, BdgpOptions, "BDGP.mat"),
        (nuswide, NuswideOptions, "NUSWIDE.mat"),
    ],
)
def test_a_published_set_that_is_absent_is_an_error_with_file_and_remedy(
    monkeypatch, tmp_path, build, options_of, file
):
    monkeypatch.setenv("SECFED_DATA", str(tmp_path / "empty"))
    data = build(options_of(name="x"), 1, tmp_path)  # public facts need no file
    with pytest.raises(DataError, match=rf"{file} does not exist.*data\.path.*SECFED_DATA"):
        data.site("hospital-1")
    with pytest.raises(DataError, match=r"mine\.mat does not exist"):
        build(options_of(name="x", path="mine.mat"), 1, tmp_path).site("hospital-1")


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("build", "options_of", "file", "records", "classes", "single"),
    [
        (mnist_usps, MnistUspsOptions, "MNIST_USPS.mat", 5000, 10, 12),
        (bdgp, BdgpOptions, "BDGP.mat", 2500, 5, 6),
    ],
)
def test_the_published_sets(shared_data, build, options_of, file, records, classes, single):
    data = build(options_of(name="x", path=str(shared_data.resolve() / file)), 1, Path())
    sites = [data.site(site_id) for site_id in data.sites]
    labels = torch.cat([site.labels for site in sites])
    assert torch.bincount(labels).tolist() == [records // classes] * classes
    assert sum(len(site.held) == 1 for site in sites) == single
    for view, size in enumerate(data.view_sizes):
        held = torch.cat([site.views[view] for site in sites if site.views[view] is not None])
        assert held.shape[1] == size
        assert float(held.min()) == 0.0
        assert 0.99 < float(held.max()) <= 1.0
    assert all(190 <= len(site.labels) <= 230 for site in sites)


def test_a_patient_is_named_for_every_record_or_for_none():
    views, labels = (torch.zeros(4, 3), torch.zeros(4, 2)), torch.zeros(4).long()
    assert check_multiview("a", MultiviewSite(views, labels, (0, 0, 1, 2)), FACTS).patients == (0, 0, 1, 2)
    with pytest.raises(DataError, match="site 'a' has not one patient per record"):
        check_multiview("a", MultiviewSite(views, labels, (0, 0, 1)), FACTS)


SIZES = (65, 226, 145, 74, 129)


def cells(views) -> np.ndarray:
    """MATLAB's cell array of these."""
    made = np.empty((1, len(views)), dtype=object)
    for place, view in enumerate(views):
        made[0, place] = view
    return made


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("celled", [False, True])
def test_nuswide_has_five_views_as_arrays_or_in_a_cell(tmp_path, first, celled):
    rng, labels = np.random.default_rng(1), np.arange(60) % 5
    views = [rng.normal(size=(60, size)) for size in SIZES]
    stored = {"X": cells(views)} if celled else {f"X{n}": view for n, view in enumerate(views, start=1)}
    scipy.io.savemat(tmp_path / "n.mat", {**stored, "Y": (labels + first)[:, None]})
    options = NuswideOptions(name="nuswide", path="n.mat", sites=4, single_view_sites=1, min_records=1)
    data = nuswide(options, 1, tmp_path)
    assert data.view_sizes == SIZES
    sites = [data.site(site) for site in data.sites]
    assert torch.bincount(torch.cat([site.labels for site in sites])).tolist() == [12] * 5
    held = torch.cat([site.views[3] for site in sites if site.views[3] is not None])
    assert (float(held.min()), float(held.max())) == (0.0, 1.0) or len(held) < 60
    ranges = dict.fromkeys(options.view_names, (-5.0, 5.0))
    public = nuswide(options.model_copy(update={"scale": ranges}), 1, tmp_path)
    assert public.for_record_privacy() is public
