from __future__ import annotations

import numpy as np
import pytest
import torch

from secfed.algorithms.data.tokens import CLS, PAD, RESERVED, WordTokenizer
from secfed.algorithms.data.transfer import scenes as module
from secfed.algorithms.data.transfer.base import TransferData
from secfed.algorithms.data.transfer.options import ScenesOptions
from secfed.algorithms.data.transfer.scenes import (
    CLASSES,
    COLOURS,
    FILLERS,
    PLACES,
    SHAPES,
    WORDS,
    Scenes,
    SceneSites,
    describe,
    draw,
    lists,
    render,
    stripes,
)
from secfed.config.schema import checked


def data(seed: int = 0, **keys):
    little = {"name": "scenes", "records": 40, "pairs": 20, "test_records": 10, "test_pairs": 12}
    return SceneSites(checked(ScenesOptions, {**little, **keys}, "data"), seed)


def same(one, other) -> bool:
    return all(
        torch.equal(a, b) if a is not None else b is None
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


def sentence(row) -> list[str]:
    """The words of a caption; the first token and padding are left out."""
    assert int(row[0]) == CLS
    return [WORDS[int(token) - RESERVED] for token in row[1:] if int(token) != PAD]


def objects(row) -> dict[int, tuple[str, str]]:
    """What a caption says: cell to colour and shape."""
    words = [word for word in sentence(row) if word not in FILLERS]
    found = {}
    for start in (0, 4, 8):
        four = words[start : start + 4]
        colour, shape, *place = four if four[0] in COLOURS else (*four[2:], *four[:2])
        found[PLACES.index(tuple(place))] = (colour, shape)
    return found


def shown_objects(shown: Scenes, row: int) -> dict[int, tuple[str, str]]:
    return {
        cell: (COLOURS[shown.colours[row, cell]], SHAPES[shown.shapes[row, cell]])
        for cell in range(4)
        if cell != shown.empty[row]
    }


def test_it_is_a_data_set_with_the_documented_sizes():
    made = SceneSites(checked(ScenesOptions, {"name": "scenes"}, "data"), 1)
    assert isinstance(made, TransferData)
    assert (made.image_shape, made.text_length, made.vocabulary) == ((3, 24, 24), 14, 20)
    assert made.image_classes == made.text_classes == CLASSES == 20
    sizes = {}
    for site_id in made.sites:
        site = made.site(site_id)
        assert site.kind == site_id.rsplit("-", 1)[0]
        usual, test = (200, 250) if site.kind == "pairs" else (400, 100)
        assert 0.6 * usual <= len(site.train) <= 1.4 * usual
        assert len(site.test) == test
        sizes.setdefault(site.kind, set()).add(len(site.train))
    assert [len(sizes[kind]) for kind in ("image", "text", "pairs")] == [6, 6, 4]  # all different here
    even = data(uneven=0.0)
    assert {len(even.site(site).train) for site in even.sites} == {40, 20}


def test_records_are_the_same_for_the_same_seed_and_others_for_another():
    for site_id in ("image-1", "text-2", "pairs-3"):
        for part in ("train", "test"):
            one, again, other = (getattr(data(seed).site(site_id), part) for seed in (0, 0, 1))
            assert same(one, again)
            assert not same(one, other)
    assert not same(data().site("image-1").test, data().site("image-2").test)


def test_a_site_has_the_same_records_whoever_else_takes_part():
    fewer = data(image_sites=1, text_sites=1, pair_sites=1, test_records=3, test_pairs=3)
    for site_id in fewer.sites:
        assert same(data().site(site_id).train, fewer.site(site_id).train)


def test_an_image_without_noise_is_its_objects(monkeypatch):
    monkeypatch.setattr(module, "_NOISE", 0.0)
    shown = Scenes(np.array([1]), np.array([[0, 1, 3, 4]]), np.array([[0, 0, 3, 1]]))
    image = render(shown, np.random.default_rng(0))[0] * 0.5 + 0.5
    assert image.dtype == np.float32
    cells = image.reshape(3, 2, 12, 2, 12).transpose(1, 3, 0, 2, 4).reshape(4, 3, 144)
    assert cells[0].sum(axis=1).tolist() == [100, 0, 0]  # a red square
    assert not cells[1].any()  # the empty cell
    red, green, blue = cells[2]
    assert red.sum() == green.sum() == 64
    assert not blue.any()
    assert np.array_equal(cells[3][0], cells[3][2])
    assert not cells[3][1].any()
    assert 0 < cells[3][0].sum() < 100


def test_objects_stay_in_their_cells_and_move_by_up_to_two_pixels(monkeypatch):
    monkeypatch.setattr(module, "_NOISE", 0.0)
    many = Scenes(np.full(300, 3), np.zeros((300, 4), dtype=np.int64), np.zeros((300, 4), dtype=np.int64))
    images = render(many, np.random.default_rng(0))[:, 0] > 0
    first = images[:, :12, :12]
    assert (first.sum(axis=(1, 2)) == 100).all()
    corners = {tuple(np.argwhere(image)[0]) for image in first}
    assert corners == {(down, right) for down in range(3) for right in range(3)}
    assert not images[:, 12:, 12:].any()


def test_the_noise_has_the_documented_spread():
    shown = Scenes(np.zeros(50, dtype=np.int64), *np.zeros((2, 50, 4), dtype=np.int64))
    corner = render(shown, np.random.default_rng(0))[:, :, :12, :12] * 0.5 + 0.5
    assert abs(corner.mean()) < 0.005
    assert 0.098 < corner.std() < 0.102


def test_a_caption_says_what_the_scene_shows_in_any_order_and_both_ways_round():
    shown = draw(400, np.random.default_rng(3))
    rows = describe(shown, np.random.default_rng(4))
    assert rows.shape == (400, 14)
    assert rows.dtype == np.int64
    sentences = [sentence(row) for row in rows]
    for at, row in enumerate(rows):
        assert objects(row) == shown_objects(shown, at)
    fillers = [[word for word in words if word in FILLERS] for words in sentences]
    assert {len(found) for found in fillers} == {0, 1}
    assert 150 < sum(map(len, fillers)) < 250
    assert {found[0] for found in fillers if found} == set(FILLERS)
    places = {words.index(found[0]) for words, found in zip(sentences, fillers, strict=True) if found}
    assert places == {0, 4, 8, 12}
    starts = {words[0] in COLOURS for words, found in zip(sentences, fillers, strict=True) if not found}
    assert starts == {True, False}
    orders = {tuple(objects(row)) for row in rows[shown.empty == 3]}
    assert len(orders) == 6


def test_tokens_are_those_of_the_public_word_list():
    rows = describe(draw(50, np.random.default_rng(5)), np.random.default_rng(6))
    texts = [" ".join(sentence(row)) for row in rows]
    assert torch.equal(WordTokenizer(WORDS, 14).encode(texts), torch.from_numpy(rows))


def test_the_class_is_the_first_object_in_reading_order():
    shown = Scenes(
        np.array([0, 2]), np.array([[0, 1, 2, 3], [4, 1, 2, 3]]), np.array([[0, 3, 1, 1], [2, 0, 0, 0]])
    )
    assert shown.labels.tolist() == [1 * 4 + 3, 4 * 4 + 2]
    text = data().site("text-1").train
    for row, label in zip(text.tokens, text.labels.tolist(), strict=True):
        found = objects(row)
        colour, shape = found[min(found)]
        assert label == COLOURS.index(colour) * 4 + SHAPES.index(shape)
    assert set(data(records=800).site("image-1").train.labels.tolist()) == set(range(20))


def test_image_and_caption_of_a_pair_show_the_same(monkeypatch):
    monkeypatch.setattr(module, "_NOISE", 0.0)
    pairs = data().site("pairs-1").train
    assert torch.equal(pairs.sources, torch.arange(len(pairs)))
    colours = {"red": 0, "green": 1, "blue": 2}
    for image, row in zip(pairs.images, pairs.tokens, strict=True):
        lit = (image > 0).reshape(3, 2, 12, 2, 12).any(dim=4).any(dim=2).reshape(3, 4)
        found = objects(row)
        assert set(lit.any(dim=0).nonzero().flatten().tolist()) == set(found)
        for cell, (colour, _) in found.items():
            if colour in colours:
                assert lit[:, cell].nonzero().flatten().tolist() == [colours[colour]]


def test_no_held_out_image_is_a_training_image():
    for site_id in ("image-1", "pairs-1"):
        site = data().site(site_id)
        train, test = ({image.numpy().tobytes() for image in part.images} for part in (site.train, site.test))
        assert not train & test


def test_the_first_numbers_of_a_seed_do_not_change():
    made = data(seed=7)
    caption = "top left yellow cross the blue triangle top right purple square bottom right"
    assert sentence(made.site("text-1").train.tokens[0]) == caption.split()
    assert made.site("image-1").train.labels[:5].tolist() == [1, 9, 5, 10, 8]
    assert [len(made.site(site).train) for site in ("image-1", "text-1", "pairs-1")] == [51, 42, 28]
    assert made.site("pairs-1").test.images[0, 0, 0, :2].tolist() == pytest.approx(
        [-1.1802049, -1.0481721], rel=1e-6
    )


def test_stripes_tell_their_class_by_colour_and_direction():
    labels = np.arange(CLASSES)
    images = stripes(labels, np.random.default_rng(0)) * 0.5 + 0.5  # back to colours between 0 and 1
    for label, image in zip(labels, images, strict=True):
        colour = module._RGB[label // 4]
        lit = image[colour > 0].mean(axis=0) > 0.5
        assert 0.4 < lit.mean() < 0.6
        assert np.abs(image[colour == 0]).mean() < 0.2
        along = [bool((lit == lit[:, :1]).all()), bool((lit == lit[:1]).all())]
        assert along == [label % 4 == 0, label % 4 == 1]
        assert bool((lit[1:, :-1] == lit[:-1, 1:]).all()) == (label % 4 == 2)


def test_lists_name_their_class_three_times_and_nothing_else_twice():
    labels = np.arange(CLASSES).repeat(3)
    for label, row in zip(labels, lists(labels, np.random.default_rng(0)), strict=True):
        words = sentence(row)
        assert len(words) == 13
        repeated = {word for word in words if words.count(word) > 1}
        assert repeated == {COLOURS[label // 4], SHAPES[label % 4]}
        assert {words.count(word) for word in repeated} == {3}


def test_another_domain_is_at_sites_of_one_modality_only():
    near, far = data(), data(images="stripes", texts="lists")
    assert same(near.site("pairs-1").train, far.site("pairs-1").train)
    for site in ("image-1", "text-1"):
        assert len(far.site(site).train) == len(near.site(site).train)
        assert not same(near.site(site).train, far.site(site).train)
