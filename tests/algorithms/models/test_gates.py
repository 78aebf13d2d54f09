"""Gated layers: a closed gate changes nothing, fusing keeps the function, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from secfed.algorithms.framework.parameters import read_parameters, trainable
from secfed.algorithms.models.gated_linear import GatedLinear, fuse, gate, gates
from secfed.algorithms.models.transfer_options import Layers, Modality, gated_weights
from secfed.algorithms.models.transfer_transformer import shapes
from secfed.errors import MalformedMessage, WrongState
from tests.algorithms.transfer_transformer_case import FACTS, MODALITIES, classifier, images, inputs, options

LAYERS: list[Layers] = ["all", "attention", "mlp"]
PER_BLOCK = {"all": 4, "attention": 2, "mlp": 2}


def random_other(seed: int = 3) -> dict[str, torch.Tensor]:
    """Blocks of another modality's tower, large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name.removeprefix("text."): 0.2 * torch.randn(shape, generator=generator)
        for name, shape in shapes("text", FACTS, options()).items()
        if name.startswith("text.blocks.")
    }


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("kind", MODALITIES)
def test_a_closed_gate_changes_neither_the_outputs_nor_the_gradients(kind: Modality, layers: Layers) -> None:
    plain, gated, other = classifier(kind), classifier(kind), random_other()
    gate(gated, other, layers=layers, trainable=True)
    labels = torch.arange(6) % 4
    for made in (plain, gated):
        cross_entropy(made(inputs(kind)), labels).backward()
    assert torch.equal(plain(inputs(kind)), gated(inputs(kind)))
    own = dict(gated.named_parameters())
    for name, value in plain.named_parameters():
        assert torch.allclose(own[name].grad, value.grad, atol=1e-6), name
    found = [part for part in gated.modules() if isinstance(part, GatedLinear)]
    assert len(found) == len(gates(gated)) == 2 * PER_BLOCK[layers]
    for part in found:
        assert not part.aux.grad.any()
        expected = float((part.aux.detach() * part.weight.grad).sum())
        assert float(part.gate.grad) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("kind", MODALITIES)
def test_fusing_keeps_the_function_and_gives_the_plain_keys(
    kind: Modality, layers: Layers, frozen: bool
) -> None:
    made, names = classifier(kind), list(classifier(kind).state_dict())
    before = made(inputs(kind))
    gate(made, random_other(), layers=layers, trainable=not frozen)
    with torch.no_grad():
        for g in gates(made):
            g.normal_()
    expected = made(inputs(kind))
    assert not torch.allclose(expected, before, atol=1e-3)
    fuse(made)
    assert torch.allclose(made(inputs(kind)), expected, atol=1e-5)
    assert list(made.state_dict()) == names == list(trainable(made))
    assert list(read_parameters(made)) == names
    assert gates(made) == []
    assert all(type(part) is not GatedLinear for part in made.modules())


def test_fusing_closed_gates_or_a_plain_model_changes_no_bit() -> None:
    made = classifier("text")
    before = read_parameters(made)
    fuse(made)
    gate(made, random_other(), layers="all", trainable=True)
    fuse(made)
    after = read_parameters(made)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_other_modality_trains_only_if_asked_to_and_is_a_copy(frozen: bool) -> None:
    made, other = classifier("image"), random_other()
    kept = {name: value.clone() for name, value in other.items()}
    gate(made, other, layers="all", trainable=not frozen)
    assert any(name.endswith(".aux") for name in trainable(made)) != frozen
    assert all(name in trainable(made) for name, _ in made.named_parameters() if name.endswith(".gate"))
    optimiser = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=0.01, weight_decay=0)
    for _ in range(3):
        optimiser.zero_grad()
        cross_entropy(made(images()), torch.arange(6) % 5).backward()
        optimiser.step()
    assert all(0 < abs(float(g.detach())) <= 1.5 * 3 * 0.01 for g in gates(made))
    assert all(torch.equal(kept[name], other[name]) for name in kept)
    for name in gated_weights(2, "all"):
        aux = made.get_parameter(f"image.{name.removesuffix('weight')}aux")
        assert torch.equal(aux, other[name]) == frozen


def test_gates_start_closed_again_after_a_round() -> None:
    made = classifier("image")
    for _ in range(2):
        gate(made, random_other(), layers="attention", trainable=True)
        assert [float(g.detach()) for g in gates(made)] == [0.0] * 4
        with torch.no_grad():
            gates(made)[0].fill_(0.3)
        fuse(made)


def test_gates_draw_no_random_numbers_and_keep_the_parameters_themselves() -> None:
    made = classifier("image")
    before = dict(made.named_parameters())
    torch.manual_seed(5)
    gate(made.eval(), random_other(), layers="all", trainable=True)
    assert not any(part.training for part in made.modules())
    fuse(made)
    assert not any(part.training for part in made.modules())
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    after = dict(made.named_parameters())
    assert all(after[name] is value for name, value in before.items())


def test_gates_read_the_weights_that_are_announced_and_no_others() -> None:
    everything = random_other()
    for layers in LAYERS:
        names = gated_weights(2, layers)
        assert len(names) == 2 * PER_BLOCK[layers]
        assert set(names) <= set(everything)
        gate(classifier("text"), {name: everything[name] for name in names}, layers=layers, trainable=False)


def test_an_unsuitable_model_of_the_other_modality_is_refused_before_anything_changes() -> None:
    made, name = classifier("image"), "blocks.1.mlp.fc2.weight"
    missing, turned, infinite = random_other(), random_other(), random_other()
    del missing[name]
    turned[name] = turned[name].T
    infinite[name][0, 0] = math.inf
    for other, what in ((missing, "has no weight"), (turned, "has no weight"), (infinite, "NaN or Inf")):
        with pytest.raises(MalformedMessage, match=what) as caught:
            gate(made, other, layers="all", trainable=True)
        assert name in str(caught.value)
        assert gates(made) == []


def test_a_gated_model_is_not_gated_again() -> None:
    made = classifier("image")
    gate(made, random_other(), layers="mlp", trainable=True)
    with pytest.raises(WrongState, match="gated already"):
        gate(made, random_other(), layers="attention", trainable=True)
    assert len(gates(made)) == 4


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", MODALITIES)
def test_functional_calls_and_sums_over_records_agree_with_the_batch(kind: Modality, gated: bool) -> None:
    made, records, labels = classifier(kind), inputs(kind), torch.arange(6) % 4
    if gated:
        gate(made, random_other(), layers="all", trainable=True)
        with torch.no_grad():
            for g in gates(made):
                g.normal_(std=0.3)
    parameters = {name: value.detach().clone() for name, value in made.named_parameters()}
    assert torch.equal(functional_call(made, parameters, (records,)), made(records))
    cross_entropy(made(records), labels, reduction="sum").backward()
    whole = {name: value.grad.clone() for name, value in made.named_parameters()}
    made.zero_grad(set_to_none=False)
    for row in range(6):
        cross_entropy(made(records[row : row + 1]), labels[row : row + 1]).backward()
    for name, value in made.named_parameters():
        assert torch.allclose(value.grad, whole[name], atol=1e-4), name
