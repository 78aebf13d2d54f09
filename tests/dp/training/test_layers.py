"""Random layers under privacy: their numbers are the site's secret, and fresh in every step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training import layers
from secfed.dp.training.engines import EngineName
from secfed.dp.training.private_loop import PrivateTraining
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, ENGINES, mechanism, parameters, sgd, table

ONE, OTHER = b"1" * 32, b"2" * 32


class Noted(nn.Dropout):
    """Dropout that notes which elements it keeps."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.seen: list[torch.Tensor] = []

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch
        out = super().forward(input)
        if self.training and self.p:
            self.seen.append((out.detach() != 0).reshape(len(input), -1).clone())
        return out


def trained(
    engine: EngineName, key: bytes, seed: int = 0, records: int = 40, steps: int = 3, skip: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The masks in the order of the drawn records, [n, units], and the parameters afterwards."""
    torch.manual_seed(5)
    noted = Noted()
    model = nn.Sequential(nn.Linear(6, 64), nn.Sigmoid(), noted, nn.Linear(64, 3))
    inputs, labels = table(records)
    torch.manual_seed(seed)  # what a study file would say
    PrivateTraining(mechanism(rate=0.999), engine=engine, random=SecureRandom(key)).run(
        model, sgd(model, 0.1), CROSS_ENTROPY, (inputs[skip:], labels[skip:]), steps=steps
    )
    return torch.cat(noted.seen), parameters(model)


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_follow_the_secret_stream_and_not_the_seed_of_torch(engine: EngineName) -> None:
    masks, model = trained(engine, ONE, seed=0)
    again, repeated = trained(engine, ONE, seed=1)
    assert torch.equal(masks, again)  # repeated work is the same release
    assert torch.equal(model, repeated)
    other, _ = trained(engine, OTHER, seed=0)
    rows = min(len(masks), len(other))
    agreement = (masks[:rows] == other[:rows]).double().mean()
    assert float(agreement) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_step_and_every_record_has_masks_of_its_own(engine: EngineName) -> None:
    masks, _ = trained(engine, ONE)
    assert len(masks) > 100
    assert len(np.unique(masks.numpy(), axis=0)) == len(masks)
    assert float(masks.double().mean()) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_does_not_show_how_many_records_an_earlier_one_drew(engine: EngineName) -> None:
    """The state is renewed between steps, so the masks of a step follow from the step alone."""
    many, _ = trained(engine, ONE, records=40, steps=2)
    fewer, _ = trained(engine, ONE, records=40, steps=2, skip=1)
    firsts = {tuple(row) for row in many.tolist()} & {tuple(row) for row in fewer.tolist()}
    assert len(firsts) > 60  # both steps begin with the same masks, whoever they fall to


def test_the_generator_of_torch_is_left_as_it_was() -> None:
    model, data = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), table()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    PrivateTraining(mechanism(), engine="loop").run(model, sgd(model), CROSS_ENTROPY, data, steps=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_whole_state_is_secret_and_not_32_bits_of_it() -> None:
    with layers.secret_layers(nn.Linear(1, 1), SecureRandom(ONE)) as drawn:
        first = torch.get_rng_state().numpy()[24:5016].view(np.uint64)
        words = SecureRandom(ONE).layer_words(312).view(np.uint32)
        assert np.array_equal(first, words.astype(np.uint64))
        drawn.renew()
        assert not np.array_equal(first, torch.get_rng_state().numpy()[24:5016].view(np.uint64))


def test_noise_does_not_depend_on_whether_a_model_has_random_layers() -> None:
    plain, beside = SecureRandom(ONE), SecureRandom(ONE)
    beside.layer_words(1000)
    assert np.array_equal(plain.words(64), beside.words(64))
    assert not np.array_equal(SecureRandom(ONE).words(64), SecureRandom(ONE).layer_words(64))


def test_another_generator_than_the_known_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_STATE", slice(32, 32 + 8 * 624))
    with pytest.raises(ConfigError, match="another random generator"):
        layers.LayerRandom(nn.Linear(1, 1), SecureRandom(ONE))
