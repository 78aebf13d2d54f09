"""The engine "ghost": what its hooks keep of a pass, and what they leave behind."""

from __future__ import annotations

import pytest
import torch
from opacus.layers import DPMultiheadAttention
from torch import nn
from torch.utils.checkpoint import checkpoint

from secfed.dp.training.engines import ClippedSum, EngineName, attached
from secfed.dp.training.losses import Batch
from secfed.errors import ConfigError
from tests.dp.toys import CROSS_ENTROPY, clipped, run, table

HELD_AGAINST: tuple[EngineName, EngineName] = ("loop", "ghost")


class Tokens(nn.Module):
    """Owns a class token and positions, and mixes what stands at the positions of one record."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 3)), nn.Parameter(torch.randn(1, 3, 3))
        self.mix, self.drop, self.head = nn.Linear(3, 3), nn.Dropout(dropout), nn.Linear(3, 3)
        self.fails = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        cells = torch.cat([self.token.expand(len(inputs), -1, -1), inputs.reshape(-1, 2, 3)], dim=1)
        cells = torch.tanh(self.mix(cells + self.place[:, : cells.shape[1]]))
        if self.fails:
            raise ValueError("in the middle of a pass")
        return self.head(self.drop(torch.softmax(cells @ cells.mT, dim=-1) @ cells)[:, 0])


class Misused(nn.Module):
    """Owns a tensor that looks like a table of positions and is averaged over its first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(1, 1, 6)), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs * self.table.mean(dim=0))


class ChangedInPlace(nn.Module):
    """What entered the first layer is overwritten before the backward pass needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs * 1.0
        hidden = self.first(inputs)
        inputs.add_(1.0)
        return self.second(hidden + inputs)


class Attention(nn.Module):
    """Opacus's attention over two positions."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = DPMultiheadAttention(3, 1, batch_first=batch_first)
        self.head = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        cells = inputs.reshape(-1, 2, 3)
        return self.head(self.mix(cells, cells, cells)[0].mean(dim=1))


class Again(nn.Module):
    """Computes its middle a second time in the backward pass, to save memory."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.again = nn.Linear(6, 6), nn.Linear(6, 6), again
        self.last = nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        middle = checkpoint(self.middle, hidden, use_reentrant=False) if self.again else self.middle(hidden)
        return self.last(torch.tanh(middle))


def check_equals_the_loop(model: nn.Module, batch: Batch) -> None:
    wanted, found = (clipped(engine, model, CROSS_ENTROPY, batch) for engine in HELD_AGAINST)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def test_tokens_and_tables_get_a_gradient_per_record() -> None:
    check_equals_the_loop(Tokens(), table(6))
    check_equals_the_loop(Tokens(), table(1))
    run(Tokens(dropout=0.5), table(6), "ghost")  # nothing is recomputed, so dropout is welcome


def test_a_table_that_is_used_otherwise_is_found_by_the_comparison() -> None:
    with pytest.raises(ConfigError, match="and the plain loop disagree"):
        run(Misused(), table(6), "ghost")


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_has_its_own_tokens_again_after_every_pass(fails: bool) -> None:
    model = Tokens()
    model.fails = fails
    before = dict(model.named_parameters())
    with attached("ghost", model.train(), CROSS_ENTROPY) as engine:
        total = ClippedSum(before, clip_norm=1.0, grid=0.0)
        try:
            engine.add([table(6)], total)
        except ValueError:
            engine.abandon()
        assert [id(value) for value in model.parameters()] == [id(value) for value in before.values()]
    assert not any(
        hook for part in model.modules() for hook in (part._forward_hooks, part._forward_pre_hooks)
    )


def test_attention_of_linear_layers_is_exact_where_records_come_first_and_refused_elsewhere() -> None:
    check_equals_the_loop(Attention(batch_first=True), table(6))
    with pytest.raises(ConfigError, match="disagree"):
        run(Attention(batch_first=False), table(6), "ghost")


def test_no_gradient_of_a_weight_is_computed() -> None:
    model = Tokens()
    with attached("ghost", model.train(), CROSS_ENTROPY) as engine:
        engine.add([table(6)], ClippedSum(dict(model.named_parameters()), clip_norm=1.0, grid=0.0))
        assert all(value.grad is None for value in model.parameters())


def test_inputs_that_were_overwritten_are_refused_as_autograd_does() -> None:
    model = ChangedInPlace()
    for engine in HELD_AGAINST:
        with pytest.raises(RuntimeError, match=r"in place|an inplace operation"):
            clipped(engine, model, CROSS_ENTROPY, table(6))


def test_layers_that_run_again_in_the_backward_pass_are_kept_once() -> None:
    check_equals_the_loop(Again(again=True), table(6))
    found = clipped("ghost", Again(again=True), CROSS_ENTROPY, table(6))
    assert torch.equal(found, clipped("ghost", Again(again=False), CROSS_ENTROPY, table(6)))


def test_the_sum_is_rounded_to_the_grid() -> None:
    model = Tokens()
    parameters = dict(model.named_parameters())
    with attached("ghost", model.train(), CROSS_ENTROPY) as engine:
        sums = [ClippedSum(parameters, clip_norm=0.3, grid=grid) for grid in (0.0, 2.0**-12)]
        for total in sums:
            engine.add([table(6), table(5)], total)
    exact, rounded = (torch.cat([part.reshape(-1) for part in total.sums.values()]) for total in sums)
    assert torch.equal(rounded, (exact * 2.0**12).round())
