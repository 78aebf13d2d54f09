from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from secfed.algorithms.data.multiview.base import MultiviewData
from secfed.algorithms.data.multiview.digits import digits_views, edges, fourier, image_of_record, pixels
from secfed.algorithms.data.multiview.options import DigitsViewsOptions
from secfed.config.schema import checked
from secfed.errors import ConfigError


def build(seed: int = 1, **keys) -> MultiviewData:
    return digits_views(checked(DigitsViewsOptions, {"name": "digits-views"} | keys, "data"), seed, Path())


@pytest.mark.parametrize("views", [["pixels", "fourier"], ["edges", "pixels", "fourier"]])
def test_public_facts_and_records_agree_and_every_feature_is_in_the_unit_interval(views):
    data = build(views=views, single_view_sites=0)
    assert isinstance(data, MultiviewData)
    sites = [data.site(site_id) for site_id in data.sites]
    for view in range(len(views)):
        held = torch.cat([site.views[view] for site in sites])
        assert held.shape[1] == data.view_sizes[view]
        assert 0 <= float(held.min()) < float(held.max()) <= 1
        assert float(held.std()) > 0.05
    labels = torch.cat([site.labels for site in sites])
    assert 1797 - 10 * (len(views) - 1) <= len(labels) * len(views) <= 1797
    assert set(labels.tolist()) == set(range(10))


@pytest.mark.parametrize("views", [2, 3])
def test_a_record_is_different_images_of_one_digit_and_no_image_occurs_twice(views):
    digits = load_digits().target.astype(np.int64)
    members = image_of_record(digits, views)
    assert members.shape[0] == views
    assert len(np.unique(members)) == members.size
    assert bool((digits[members] == digits[members[0]]).all())
    assert np.array_equal(members, image_of_record(digits, views))


def test_the_records_are_the_same_in_every_study_and_only_their_sites_differ():
    def rows(seed: int) -> set[bytes]:
        data = build(seed, single_view_sites=0)
        sites = [data.site(site_id) for site_id in data.sites]
        return {row.numpy().tobytes() for site in sites for row in torch.cat(site.views, dim=1)}

    assert rows(1) == rows(2)
    assert not torch.equal(build(1).site("hospital-1").labels[:30], build(2).site("hospital-1").labels[:30])


def test_pixels_are_the_image():
    image = np.arange(64).reshape(1, 8, 8) / 64
    assert np.array_equal(pixels(image)[0], np.arange(64) / 64)


def test_fourier_does_not_notice_where_the_digit_stands():
    image = np.zeros((1, 8, 8))
    image[0, 1:5, 1:4] = np.random.default_rng(1).uniform(size=(4, 3))
    moved = np.roll(image, (2, 3), axis=(1, 2))
    assert np.allclose(fourier(image), fourier(moved))
    assert not np.allclose(pixels(image), pixels(moved))
    assert fourier(np.ones((1, 8, 8))).max() == 1.0  # the constant of its scale: the sum of 64 white pixels


def test_fourier_tells_the_two_diagonals_apart():
    image = np.eye(8)[None]
    found, mirrored = (fourier(each).reshape(11, 6) for each in (image, image[:, ::-1]))
    assert not np.allclose(found, mirrored)
    assert np.allclose(found, mirrored[::-1])  # frequencies -5 .. 5 from top to bottom


def test_edges_are_counted_by_direction_and_cell():
    image = np.zeros((1, 8, 8))
    image[0, :, 4:] = 1.0  # bright on the right: brightness grows to the right, in the two middle columns
    found = edges(image).reshape(8, 4, 4)
    inside = found[:, 1:3, 1:3]
    right = 4  # direction of angle 0
    assert np.allclose(inside[right], 0.5 / np.sqrt(0.5) / 2)
    assert np.allclose(np.delete(inside, right, axis=0), 0)
    left = edges(image[:, :, ::-1]).reshape(8, 4, 4)
    assert np.allclose(left[0, 1:3, 1:3], inside[right])  # angle pi, which is also -pi
    down = edges(image.transpose(0, 2, 1)).reshape(8, 4, 4)
    assert np.allclose(down[6, 1:3, 1:3], inside[right])
    even = edges(np.full((1, 8, 8), 0.5)).reshape(8, 4, 4)
    assert np.allclose(even[:, 1:3, 1:3], 0)  # nothing changes inside an even image


@pytest.mark.parametrize("views", [["pixels"], ["pixels", "pixels"], ["pixels", "sound"]])
def test_fewer_than_two_known_views_are_refused(views):
    with pytest.raises(ConfigError, match=r"data\.views"):
        build(views=views)
