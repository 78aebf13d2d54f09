import pytest
import segmentation
import torch
from linear_probe import image_tokens

from secfed.algorithms.data.image_text.base import Pairs
from secfed.errors import ConfigError, DataError
from tests.algorithms.toy_pairs import ToyDual, toy_pairs

CPU = torch.device("cpu")


def test_dice_of_known_masks():
    mask = torch.zeros(4, 4, 4, dtype=torch.bool)
    mask[:3, :2] = True
    other = torch.zeros_like(mask)
    other[0, :2] = True  # the same
    other[1, 1:3] = True  # half of it
    assert segmentation.dice(other, mask).tolist() == [1.0, 0.5, 0.0, 1.0]


def test_the_loss_is_smallest_for_the_mask_itself():
    masks = toy_pairs(8).masks
    right = segmentation.mask_loss(20.0 * masks - 10.0, masks)
    assert float(right) < 2e-2
    assert segmentation.mask_loss(10.0 - 20.0 * masks, masks) > 1
    assert segmentation.mask_loss(torch.zeros(8, 32, 32), masks) > right


def test_the_decoder_gives_one_score_per_pixel_and_uses_tokens_and_image():
    decoder = segmentation.Decoder(width=24, channels=1, grid=4, size=32)
    tokens, images = torch.randn(2, 16, 24), torch.randn(2, 1, 32, 32)
    scores = decoder(tokens, images)
    assert tuple(scores.shape) == (2, 32, 32)
    assert not torch.equal(scores, decoder(torch.zeros_like(tokens), images))
    assert not torch.equal(scores, decoder(tokens, torch.zeros_like(images)))


def test_patches_stand_row_by_row():
    decoder = segmentation.Decoder(width=24, channels=1, grid=4, size=32)
    tokens = torch.zeros(2, 16, 24)
    tokens[1, 3] = 5.0  # first row, last column
    moved = decoder(tokens, torch.zeros(2, 1, 32, 32)).detach().diff(dim=0)[0].abs()
    assert moved[:8, 24:].mean() > 0
    assert float(moved[24:].sum()) == 0.0
    assert float(moved[:, :8].sum()) == 0.0


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="power of two"):
        segmentation.Decoder(width=4, channels=1, grid=3, size=32)
    decoder = segmentation.Decoder(width=4, channels=1, grid=4, size=32)
    with pytest.raises(ConfigError, match="square"):
        decoder(torch.zeros(1, 15, 4), torch.zeros(1, 1, 32, 32))


def test_it_learns_masks_and_more_masks_help(monkeypatch):
    monkeypatch.setattr(segmentation, "STEPS", 25)
    model, train, test = ToyDual(), toy_pairs(100), toy_pairs(40, 1)
    few = segmentation.segment(model, train, test, 0.02, 0, CPU)
    many = segmentation.segment(model, train, test, 0.5, 0, CPU)
    assert few == segmentation.segment(model, train, test, 0.02, 0, CPU)
    assert many > 0.6
    assert many > few - 0.05


def test_the_encoder_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(segmentation, "STEPS", 3)
    model, pairs = ToyDual(), toy_pairs(20)
    before = image_tokens(model, pairs.images, CPU)
    segmentation.segment(model, pairs, pairs, 1.0, 0, CPU)
    assert torch.equal(before, image_tokens(model, pairs.images, CPU))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sets_without_masks_are_refused(monkeypatch):
    monkeypatch.setattr(segmentation, "STEPS", 1)
    pairs = toy_pairs(4)
    bare = Pairs(pairs.images, pairs.tokens, pairs.findings)
    with pytest.raises(DataError, match="masks"):
        segmentation.segment(ToyDual(), bare, pairs, 1.0, 0, CPU)
    empty = Pairs(pairs.images, pairs.tokens, pairs.findings, torch.zeros_like(pairs.masks))
    with pytest.raises(DataError, match="finding"):
        segmentation.segment(ToyDual(), pairs, empty, 1.0, 0, CPU)
