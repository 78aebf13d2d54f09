from __future__ import annotations

import pytest
import torch
from vlp_oracle import train_centralised

from secfed.algorithms.vision_language.stage import Augmentation, shortened, turned
from secfed.study.build import build
from tests.algorithms.loop import same
from tests.algorithms.vision_language.test_privacy import private
from tests.algorithms.vlp_case import AVERAGING, Rounds, study, updates
from tests.algorithms.whole import run

AVERAGED = {"algorithm": AVERAGING}

TOKENS = torch.tensor([[1, 7, 8, 9, 0, 0], [1, 5, 0, 0, 0, 0]])


def pictures(count: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(count, 2, size, size, generator=torch.Generator().manual_seed(3))


def test_nothing_to_do_gives_the_same_pairs():
    batch = (pictures(), TOKENS)
    changed = Augmentation(0.0, 0.0)(batch)
    assert all(torch.equal(new, old) for new, old in zip(changed, batch, strict=True))


def test_the_same_seed_gives_the_same_changes_and_another_seed_others():
    augmentation, batch = Augmentation(1.0, 0.4), (pictures(), TOKENS.repeat(9, 1))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(augmentation(batch))
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True))


def test_every_image_is_changed_in_its_own_way_and_all_its_channels_alike():
    torch.manual_seed(0)
    one = pictures(1)[:, :1]
    changed = turned(one.repeat(4, 2, 1, 1), 1.0)
    assert torch.allclose(changed[:, 0], changed[:, 1])
    assert len({image.numpy().tobytes() for image in changed}) == 4


def test_a_weaker_strength_changes_images_less():
    gaps = []
    for strength in (0.1, 1.0):
        torch.manual_seed(0)
        smooth = torch.linspace(-1, 1, 32).repeat(8, 1, 32, 1)
        gaps.append(float((turned(smooth, strength) - smooth).abs().mean()))
    assert 0 < 3 * gaps[0] < gaps[1]


def test_images_are_never_mirrored():
    torch.manual_seed(0)
    ramp = torch.linspace(-1, 1, 32).repeat(200, 1, 32, 1)  # bright on the right
    changed = turned(ramp, 1.0)
    assert bool((changed[..., 20:28].mean((1, 2, 3)) > changed[..., 4:12].mean((1, 2, 3))).all())


def test_words_keep_their_order_and_padding_stays_at_the_end():
    torch.manual_seed(0)
    full = torch.arange(1, 41).repeat(50, 1)
    padded = torch.cat([full, torch.zeros(50, 8, dtype=torch.int64)], dim=1)
    shorter = shortened(padded, 0.5)
    assert shorter.dtype == torch.int64
    for row in shorter.tolist():
        words = [word for word in row if word]
        assert words == sorted(words)
        assert row == words + [0] * (len(row) - len(words))
        assert row[0] == 1
    kept = float((shorter[:, 1:] != 0).sum()) / (50 * 39)
    assert kept == pytest.approx(0.5, abs=0.05)


def test_a_report_never_becomes_empty():
    torch.manual_seed(0)
    assert bool((shortened(TOKENS.repeat(100, 1), 0.99)[:, 0] == 1).all())


def trained(**changes: object):
    """What the first site adds in the first stage that trains everything."""
    rounds = Rounds(study(**AVERAGED, **changes))
    return updates(rounds.take(1, 0)["hospital-1"])


@pytest.mark.parametrize("key", ["algorithm__augment_images", "algorithm__drop_words"])
def test_both_keys_reach_local_training_reproducibly(key):
    changed = trained(**{key: 0.5})
    assert same(changed, trained(**{key: 0.5}))
    assert not same(changed, trained())


def test_they_reach_training_on_pooled_pairs():
    plain, changed = (
        train_centralised(build(study(**AVERAGED, algorithm__augment_images=strength)), 2)
        for strength in (0.0, 0.5)
    )
    assert not same(plain, changed)


def test_losses_for_robust_weights_are_measured_on_the_pairs_as_they_are():
    measured = []
    for strength in (0.0, 0.5):
        rounds = Rounds(study(algorithm__augment_images=strength))
        rounds.take(1, 0)
        measured.append({site: program.weight.loss for site, program in rounds.programs.items()})
    assert measured[0] == measured[1]
    assert all(loss > 0 for loss in measured[0].values())


def test_they_reach_private_training(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(Augmentation, "__call__", lambda self, batch: seen.append(self) or batch)
    run(private(algorithm__augment_images=0.5, study__rounds=1), tmp_path / "run")
    assert seen
    assert set(seen) == {Augmentation(0.5, 0.0)}
