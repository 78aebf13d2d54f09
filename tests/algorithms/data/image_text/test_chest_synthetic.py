from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from secfed.algorithms.data.image_text import chest_images, chest_reports
from secfed.algorithms.data.image_text.base import ImageTextData
from secfed.algorithms.data.image_text.chest_synthetic import (
    COMBINATIONS,
    ChestSynthetic,
    ChestSyntheticOptions,
    prepared,
    prior,
    template,
)
from secfed.algorithms.data.image_text.partition import combination
from secfed.algorithms.data.tokens import PAD
from secfed.config.schema import checked
from secfed.errors import ConfigError
from tests.algorithms.image_text_case import mean_total_variation


def options(**keys):
    return checked(ChestSyntheticOptions, {"name": "chest-synthetic", "train": 40, "test": 8, **keys}, "data")


def data(seed: int = 0, **keys):
    return ChestSynthetic(options(**keys), seed)


def distance(found) -> float:
    """The mean total variation between the mixtures of two sites."""
    return np.mean([np.abs(a - b).sum() / 2 for a, b in itertools.combinations(found.mixtures, 2)])


def same(one, other) -> bool:
    return all(map(torch.equal, vars(one).values(), vars(other).values()))


def latents(**keys):
    """One record; by default without any finding."""
    zeros = np.zeros((1, 5), dtype=np.int64)
    one = np.zeros(1, dtype=np.int64)
    base = {"present": zeros > 0, "side": zeros, "zone": zeros, "severity": zeros}
    base |= {"heart": one, "device": one}
    return chest_reports.Latents(**{**base, **keys})


def drawn(record, size: int = 32, seed: int = 0):
    style, first = (chest_images.site_style(0, 0.0),), np.zeros(1, dtype=np.int64)
    image, mask = chest_images.render(record, size, style, first, np.random.default_rng(seed))
    return image[0], mask[0]


def with_finding(finding: int, side: int = 0, zone: int = 1, severity: int = 2):
    drawn_as = {"side": side, "zone": zone, "severity": severity}
    values = {name: np.full((1, 5), value) for name, value in drawn_as.items()}
    return latents(present=(np.arange(5) == finding)[np.newaxis], **values)


def test_it_is_a_data_set_of_image_report_pairs_with_the_documented_sizes():
    found = ChestSynthetic(checked(ChestSyntheticOptions, {"name": "chest-synthetic"}, "data"), 0)
    assert isinstance(found, ImageTextData)
    assert (len(found.sites), found.image_shape, found.text_length) == (5, (1, 32, 32), 40)
    assert found.findings == ("edema", "effusion", "consolidation", "pneumothorax", "pneumonia")
    site = found.site("hospital-2")
    assert (len(site.train), len(site.test)) == (1500, 256)


def test_a_site_is_the_same_whichever_other_sites_were_asked_for():
    one, other = data(), data()
    for site in one.sites:
        one.site(site)
    again = other.site("hospital-4")
    assert same(one.site("hospital-4").train, again.train)
    assert same(one.site("hospital-4").test, again.test)


@pytest.mark.parametrize("partition", ["dirichlet", "iid"])
def test_sites_parts_and_seeds_have_different_records(partition):
    found = data(partition=partition)
    parts = [part for site in found.sites for part in (found.site(site).train, found.site(site).test)]
    parts += [data(seed=1, partition=partition).site("hospital-1").train]
    images = [image.numpy().tobytes() for part in parts for image in part.images]
    assert len(set(images)) == len(images)


def test_counts_can_differ_between_sites():
    found = data(sites=2, train=(3, 7), test=(0, 2))
    sizes = [(len(found.site(site).train), len(found.site(site).test)) for site in found.sites]
    assert sizes == [(3, 0), (7, 2)]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sites": 2, "train": (3,)}, "data.train: has 1 numbers for 2 sites"),
        ({"train": 0}, "data.train: a site cannot have"),
        ({"partition": "iid", "alpha": 1.0}, "data.alpha: has no effect"),
        ({"style": 1.5}, "data.style"),
        ({"test_fraction": 0.2}, "data.test_fraction"),
    ],
)
def test_a_table_that_cannot_be_carried_out_names_the_key(keys, says):
    with pytest.raises(ConfigError, match=says):
        data(**keys)


def test_images_have_unit_spread_and_the_template_is_public():
    found = data()
    images = found.site("hospital-1").train.images
    assert torch.allclose(images.std(dim=(1, 2, 3), correction=0), torch.ones(len(images)), atol=1e-4)
    assert not prepared(template(32)[np.newaxis]).any()
    assert np.array_equal(template(32), template.__wrapped__(32))  # no study's seed in it
    assert not template(32).flags.writeable


def test_small_alpha_drives_the_sites_apart():
    apart = [np.mean([distance(data(seed, alpha=alpha)) for seed in range(10)]) for alpha in (0.2, 1.0, 5.0)]
    assert apart[0] > 0.65 > apart[1] > 0.4 > apart[2] > 0.1
    assert distance(data(partition="iid")) == 0


def test_records_follow_the_mixtures():
    found = data(train=1500, sites=3)
    findings = [found.site(site).train.findings for site in found.sites]
    drawn = mean_total_variation([combination(part.numpy()) for part in findings])
    assert drawn == pytest.approx(distance(found), abs=0.06)
    bits = (np.arange(COMBINATIONS)[:, np.newaxis] >> np.arange(5)) % 2
    assert np.allclose(findings[0].double().mean(dim=0), found.mixtures[0] @ bits, atol=0.05)


def test_the_prior_is_long_tailed_with_no_finding_first():
    chances = prior()
    assert chances.sum() == pytest.approx(1)
    assert chances.argmax() == 0
    assert chances[0] / chances[1] == pytest.approx(1.5 * 0.72 / 0.28)
    assert chances.argmin() == COMBINATIONS - 1


@pytest.mark.parametrize("finding", range(5))
def test_every_finding_is_drawn_on_its_side_and_changes_the_image(finding):
    plain, _ = drawn(latents())
    for side in (0, 1):
        image, mask = drawn(with_finding(finding, side=side))
        change = np.abs(image - plain).sum(axis=0)
        right, left = change[:16].sum(), change[16:].sum()
        assert change.sum() > 5
        if chest_reports.HAS_SIDE[finding]:
            assert (right > 1.5 * left) if side == 0 else (left > 1.5 * right)
        assert mask.any() == (finding != chest_images.PNEUMOTHORAX)


@pytest.mark.parametrize("finding", [chest_images.CONSOLIDATION, chest_images.PNEUMONIA])
def test_zones_run_from_top_to_bottom(finding):
    rows = [
        np.flatnonzero(drawn(with_finding(finding, zone=zone))[1].any(axis=1)).mean() for zone in range(3)
    ]
    assert rows[0] + 4 < rows[1] < rows[2] - 4


@pytest.mark.parametrize("finding", range(5))
def test_severity_shows(finding):
    plain, _ = drawn(latents())
    change = [np.abs(drawn(with_finding(finding, severity=s))[0] - plain).sum() for s in range(3)]
    assert change[0] < change[1] < change[2]


def test_masks_show_where_the_opacity_is():
    image, mask = drawn(with_finding(chest_images.CONSOLIDATION))
    plain, nothing = drawn(latents())
    change = image - plain
    assert not nothing.any()
    assert change[mask].min() > 0.1
    assert abs(change[~mask]).mean() < 0.03


def test_heart_and_devices_are_drawn():
    plain, _ = drawn(latents())
    for keys in ({"heart": np.array([1])}, {"device": np.array([1])}, {"device": np.array([2])}):
        assert np.abs(drawn(latents(**keys))[0] - plain).sum() > 2


@pytest.mark.parametrize("dialect", range(15))
def test_no_report_is_cut_and_all_its_words_are_known(dialect):
    every = latents(present=np.ones((1, 5), dtype=bool), heart=np.array([1]), device=np.array([1]))
    rng = np.random.default_rng(0)
    known = set(chest_reports.words())
    for record in (every, latents()):
        (text,) = chest_reports.reports(record, np.array([dialect]), rng)
        assert len(text.split()) < chest_reports.LONGEST
        assert set(text.split()) <= known


def test_every_word_of_the_list_occurs():
    seen = set()
    for dialect in range(15):
        rng = np.random.default_rng(dialect)
        records = chest_reports.draw_latents(np.arange(COMBINATIONS).repeat(20), rng)
        for text in chest_reports.reports(records, np.full(len(records), dialect), rng):
            seen |= set(text.split())
    assert seen == set(chest_reports.words())


def test_a_report_says_what_the_image_shows():
    record = with_finding(chest_images.CONSOLIDATION, side=1, zone=0, severity=2)
    (text,) = chest_reports.reports(record, np.array([0]), np.random.default_rng(0))
    assert "severe left upper consolidation" in text
    (text,) = chest_reports.reports(latents(), np.array([0]), np.random.default_rng(0))
    assert "lungs are clear" in text


def test_sites_differ_in_style_and_words_but_not_at_strength_zero():
    assert len({chest_images.site_style(site, 0.0) for site in range(6)}) == 1
    styles = [chest_images.site_style(site, 1.0) for site in range(6)]
    table = np.array([[s.gamma, s.contrast, 10 * s.noise, s.vignette] for s in styles])
    apart = np.abs(table[:, np.newaxis] - table).max(axis=2)
    assert apart[~np.eye(6, dtype=bool)].min() > 0.15
    for partition in ("dirichlet", "iid"):  # which mixes all styles
        found = data(partition=partition, train=200)
        tokens = {frozenset(found.site(site).train.tokens.unique().tolist()) for site in found.sites}
        assert len(tokens) == (len(found.sites) if partition == "dirichlet" else 1)


def test_common_held_out_pairs_have_the_same_findings_everywhere_and_leave_training_pairs_alone():
    found = data(sites=3, test=600, train=5, alpha=0.1, test_mixture="common")
    own = data(sites=3, test=600, train=5, alpha=0.1)
    shares = torch.stack([found.site(site).test.findings.double().mean(dim=0) for site in found.sites])
    theirs = torch.stack([own.site(site).test.findings.double().mean(dim=0) for site in own.sites])
    assert float(shares.std(dim=0).max()) < 0.05 < 0.1 < float(theirs.std(dim=0).max())
    for site in found.sites:
        assert same(found.site(site).train, own.site(site).train)
        assert same(found.site(site).test, own.common(site))


def test_an_unseen_hospital_is_none_of_the_study():
    found = data(sites=3)
    outside = found.unseen(20)
    assert len(outside) == 20
    assert same(outside, data(sites=3).unseen(20))
    assert same(outside, found.unseen(20, site=3))  # sites 0, 1 and 2 are in the study
    assert not same(outside, found.unseen(20, site=1))
    assert bool((outside.tokens[:, 0] != PAD).all())
