"""The engine "ghost": no record, however it is made, moves a clipped sum by more than is paid."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from secfed.dp.training import book_keeping
from secfed.dp.training.book_keeping import Totals, linear_book
from secfed.dp.training.engines import EngineName, check_engine_fits
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.errors import ConfigError
from tests.dp.toys import ENGINES, clipped, mlp

# "same" with an even kernel pads more on one side, which torch does with a copy and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

CLIP = 1.0
PROVEN = 2.0**-11  # the half of the noise's slack that pays for arithmetic


def _weighted(model: nn.Module, batch: Batch) -> torch.Tensor:
    """sum of output * batch[1] per record: the output's gradient is batch[1], whatever the model is."""
    return (model(batch[0]) * batch[1]).flatten(1).sum(dim=1)


WEIGHTED = DeclaredLoss("weighted", True, _weighted)


def clipped_sum(engine: EngineName, model: nn.Module, batch: Batch) -> torch.Tensor:
    return clipped(engine, model, WEIGHTED, batch, clip=CLIP)


def cancelling(seed: int, positions: int, width: int, height: int, size: float, rest: float) -> Batch:
    """One record whose terms cancel in pairs: b a^T - b (a + something small)^T, each ``size`` long."""
    generator = torch.Generator().manual_seed(seed)
    half = positions // 2
    inputs = torch.randn(1, half, width, generator=generator) * size
    weights = torch.randn(1, half, height, generator=generator)
    nearly = inputs + rest * torch.randn(1, half, width, generator=generator)
    return torch.cat([inputs, nearly], dim=1), torch.cat([weights, -weights], dim=1)


def moved_by(engine: EngineName, model: nn.Module, record: Batch) -> float:
    """How far the clipped sum moves when this record joins four ordinary ones."""
    generator = torch.Generator().manual_seed(0)
    others = [
        torch.randn(4, *part.shape[1:], generator=generator)
        if part.is_floating_point()
        else torch.randint(0, 5, (4, *part.shape[1:]), generator=generator)
        for part in record
    ]
    joined = tuple(torch.cat([rest, part]) for rest, part in zip(others, record, strict=True))
    return float((clipped_sum(engine, model, joined) - clipped_sum(engine, model, tuple(others))).norm())


@pytest.mark.parametrize("engine", [*ENGINES, "ghost, nothing kept"])
@pytest.mark.parametrize(
    ("positions", "width", "height"), [(8, 16, 12), (64, 6, 5)], ids=["norm from Gram matrices", "from rows"]
)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_a_record_whose_terms_cancel_moves_the_sum_by_no_more_than_is_paid(
    engine: EngineName, positions: int, width: int, height: int, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms from float32 Gram matrices lost all digits here, and such a record moved the sum by 3.67 C."""
    if engine not in ENGINES:
        monkeypatch.setattr(book_keeping, "_KEPT_ELEMENTS", 0)
        engine = "ghost"
    model = nn.Linear(width, height)
    for seed in range(8):
        record = cancelling(seed, positions, width, height, size, rest=size * 1e-6)
        assert moved_by(engine, model, record) <= CLIP * (1 + PROVEN)


@pytest.mark.parametrize("engine", ["hooks", "ghost"])
@given(
    exponent=st.integers(-30, 15),
    closeness=st.integers(-24, 2),
    positions=st.sampled_from([2, 6, 40]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_record_moves_the_sum_of_a_linear_layer_by_more_than_is_paid(
    engine: EngineName, exponent: int, closeness: int, positions: int, seed: int
) -> None:
    record = cancelling(seed, positions, 7, 5, 10.0**exponent, rest=10.0**exponent * 2.0**closeness)
    assert moved_by(engine, nn.Linear(7, 5), record) <= CLIP * (1 + PROVEN)


@pytest.mark.usefixtures("_nothing_kept")
def test_a_record_whose_terms_cancel_further_than_float64_can_tell_is_clipped() -> None:
    """(1 + e)(1 - e) - 1 = -e^2, of which the Gram matrices keep nothing: only the bound S is left."""
    small, scale = 2.0**-20, 2.0**30
    inputs = torch.tensor([[[1 + small, 0.0], [1.0, 0.0]]]) * scale
    outputs = torch.tensor([[[1 - small, 0.0], [-1.0, 0.0]]]) * scale
    assert moved_by("ghost", nn.Linear(2, 2, bias=False), (inputs, outputs)) <= CLIP * (1 + PROVEN)


@pytest.fixture
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a large model: no gradient of a single record is kept from the norms to the sums."""
    monkeypatch.setattr(book_keeping, "_KEPT_ELEMENTS", 0)


@pytest.mark.usefixtures("_nothing_kept")
@pytest.mark.parametrize(
    ("positions", "width", "height"), [(1, 5, 4), (3, 50, 40), (40, 3, 2)], ids=["one", "Gram", "rows"]
)
def test_norms_and_sums_of_a_linear_layer_are_those_of_float64(
    positions: int, width: int, height: int
) -> None:
    generator = torch.Generator().manual_seed(4)
    inputs, outputs = (torch.randn(3, positions, size, generator=generator) for size in (width, height))
    layer, factors = nn.Linear(width, height, bias=False), torch.tensor([0.5, 0.0, 1 / 3]).double()
    book = linear_book(layer, inputs, outputs)
    terms = torch.einsum("btp,btd->btpd", outputs.double(), inputs.double())
    lengths = terms.flatten(2).norm(dim=2).sum(dim=1)
    ((_, squares),) = book.squares()
    wanted = terms.sum(dim=1).square().sum(dim=(1, 2)) + (lengths * 2.0**-10) ** 2
    torch.testing.assert_close(squares, wanted, rtol=1e-12, atol=0.0)
    total = torch.zeros(height, width, dtype=torch.float64)
    kept = factors > 0
    book.add(factors[kept], kept, Totals({id(layer.weight): total}))
    torch.testing.assert_close(total, torch.einsum("b,btpd->pd", factors, terms), rtol=1e-12, atol=1e-12)


class Flat(nn.Module):
    """A layer between one that is frozen and a flattening, so that outputs have any shape."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs).flatten(1)


LAYERS = {
    "conv1d": (lambda: nn.Conv1d(8, 4, 1), (8, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 2, stride=2, groups=2), (2, 4, 4)),
    "conv1d, depthwise, dilated": (lambda: nn.Conv1d(4, 8, 3, padding=2, dilation=2, groups=4), (4, 9)),
    "conv1d, mirrored": (lambda: nn.Conv1d(3, 4, 4, padding=2, stride=3, padding_mode="reflect"), (3, 11)),
    "conv2d, same": (lambda: nn.Conv2d(2, 4, (2, 3), padding="same", dilation=(1, 2)), (2, 6, 7)),
    "conv2d, circular": (
        lambda: nn.Conv2d(2, 4, 3, padding=(1, 2), stride=(2, 1), padding_mode="circular"),
        (2, 6, 7),
    ),
    "conv2d, one position": (lambda: nn.Conv2d(4, 4, 3, groups=2), (4, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(2, 4, (2, 3, 1), padding=(0, 1, 0), stride=(1, 2, 1)), (2, 3, 4, 2)),
    "layer norm": (lambda: nn.LayerNorm(6), (8, 6)),
    "layer norm of two dimensions": (lambda: nn.LayerNorm((2, 6)), (4, 2, 6)),
    "layer norm without a bias": (lambda: nn.LayerNorm(6, bias=False), (8, 6)),
    "root mean square norm without a bias": (lambda: nn.RMSNorm(6), (8, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 8), (8, 6)),
    "group norm of vectors": (lambda: nn.GroupNorm(2, 8), (8,)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 3, 4)),
    "linear of two sequences": (lambda: nn.Linear(6, 4), (2, 4, 6)),
    "linear without a sequence": (lambda: nn.Linear(6, 4), (6,)),
    "linear without a bias": (lambda: nn.Linear(6, 4, bias=False), (8, 6)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", LAYERS)
def test_no_record_moves_the_sum_of_any_layer_by_more_than_is_paid(engine: EngineName, kind: str) -> None:
    if engine == "hooks" and kind == "layer norm without a bias":
        return  # Opacus does not know it
    make, shape = LAYERS[kind]
    model = Flat(make())
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        inputs = 1e4 * (1 + 1e-4 * torch.randn(1, *shape, generator=generator))
        outputs = model(inputs).shape[1]
        weights = torch.randn(1, outputs // 2, generator=generator).repeat_interleave(2, dim=1)
        weights[:, 1::2] *= -1  # neighbours nearly cancel
        assert moved_by(engine, model, (inputs, weights)) <= CLIP * (1 + PROVEN)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("padding", [None, 1])
def test_no_record_that_repeats_tokens_moves_the_sum_by_more_than_is_paid(
    engine: EngineName, padding: int | None
) -> None:
    model = Flat(nn.Embedding(5, 3, padding_idx=padding))
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        weights = 1e5 * torch.randn(1, 8, 3, generator=generator)
        nearly = -weights + 0.05 * torch.randn(1, 8, 3, generator=generator)
        tokens = torch.randint(0, 5, (1, 8), generator=generator).repeat(1, 2)
        record = (tokens, torch.cat([weights, nearly], dim=1).flatten(1))
        assert moved_by(engine, model, record) <= CLIP * (1 + PROVEN)


def exact_rows(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The micro-batch oracle: the gradient of one record at a time, in float64: [B, d]."""
    double = copy.deepcopy(model).double()
    values = [value for value in double.parameters() if value.requires_grad]
    rows = []
    for at in range(len(batch[0])):
        parts = [part[at : at + 1] for part in batch]
        single = tuple(part.double() if part.is_floating_point() else part for part in parts)
        found = torch.autograd.grad(_weighted(double, single).sum(), values)
        rows.append(torch.cat([part.reshape(-1) for part in found]))
    return torch.stack(rows)


def off_by(model: nn.Module, batch: Batch) -> float:
    """How far the engine's sum is from the oracle's, over its length."""
    rows = exact_rows(model, batch)
    wanted = (rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0)
    return float((clipped_sum("ghost", model, batch) - wanted).norm()) / float(wanted.norm())


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
@pytest.mark.parametrize("kind", LAYERS)
def test_ghost_sums_equal_the_micro_batch_oracle(
    kind: str, frozen: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if frozen is not None and "without a bias" in kind:
        return
    if not kept:
        monkeypatch.setattr(book_keeping, "_KEPT_ELEMENTS", 0)
    make, shape = LAYERS[kind]
    torch.manual_seed(4)
    model = Flat(make())
    if frozen is not None:
        getattr(model.layer, frozen).requires_grad_(False)
    inputs = torch.randn(5, *shape)
    assert off_by(model, (inputs, torch.randn(model(inputs).shape))) < 1e-4


@pytest.mark.parametrize("padding", [None, 1])
def test_ghost_sums_of_an_embedding_equal_the_micro_batch_oracle(padding: int | None) -> None:
    torch.manual_seed(4)
    model = Flat(nn.Embedding(4, 3, padding_idx=padding))
    assert off_by(model, (torch.randint(0, 4, (5, 2, 6)), torch.randn(5, 36))) < 1e-6


@pytest.mark.usefixtures("_nothing_kept")
def test_a_long_batch_is_added_up_in_blocks() -> None:
    """Several matrix products for one sum, and several pieces for the norms."""
    assert off_by(nn.Linear(3, 2), (torch.randn(70, 130, 3), torch.randn(70, 130, 2))) < 1e-4


@pytest.mark.parametrize("trouble", [float("nan"), float("inf"), 3e38])
def test_a_record_without_a_finite_gradient_counts_as_zero_and_spares_the_others(trouble: float) -> None:
    model = nn.Linear(6, 4)
    torch.manual_seed(4)
    batch = (torch.randn(5, 8, 6), torch.randn(5, 8, 4))
    alone = clipped_sum("ghost", model, tuple(part[1:] for part in batch))
    batch[0][0, 3, 2] = trouble
    batch[1][0] *= trouble
    moved = clipped_sum("ghost", model, batch) - alone
    assert float(moved.norm()) <= CLIP * (1 + PROVEN) if trouble == 3e38 else float(moved.norm()) == 0.0


@pytest.mark.parametrize("kind", LAYERS)
def test_a_record_without_a_finite_gradient_spares_the_others_in_every_layer(kind: str) -> None:
    make, shape = LAYERS[kind]
    torch.manual_seed(4)
    model = Flat(make())
    inputs = torch.randn(5, *shape)
    weights = torch.randn(model(inputs).shape)
    alone = clipped_sum("ghost", model, (inputs[1:], weights[1:]))
    weights[0] = torch.nan
    torch.testing.assert_close(clipped_sum("ghost", model, (inputs, weights)), alone, rtol=1e-6, atol=1e-9)


def test_a_record_without_a_finite_gradient_spares_the_others_of_an_embedding() -> None:
    torch.manual_seed(4)
    model = Flat(nn.Embedding(4, 3))
    tokens, weights = torch.randint(0, 4, (5, 6)), torch.randn(5, 18)
    alone = clipped_sum("ghost", model, (tokens[[0, 2, 3, 4]], weights[[0, 2, 3, 4]]))
    weights[1] = torch.inf
    torch.testing.assert_close(clipped_sum("ghost", model, (tokens, weights)), alone, rtol=1e-6, atol=1e-9)


def test_more_records_than_the_proof_covers_are_refused() -> None:
    check_engine_fits("ghost", mlp(), 2**16)
    check_engine_fits("hooks", mlp(), 2**17)
    with pytest.raises(ConfigError, match="at most 65536 expected records in a step") as caught:
        check_engine_fits("ghost", mlp(), 2**17)
    assert caught.value.remedy


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(5, 3), (4, 5)),
        (nn.Linear(5, 3), (4, 6, 5)),
        (nn.Conv2d(2, 3, 3), (4, 2, 5, 5)),
        (nn.LayerNorm(5), (4, 6, 5)),
        (nn.GroupNorm(2, 4), (4, 4, 3, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_batch_without_a_usable_gradient_adds_zeros(
    engine: EngineName, model: nn.Module, shape: tuple[int, ...]
) -> None:
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    outputs = torch.full_like(model(inputs).detach(), float("nan"))
    assert not clipped_sum(engine, model, (inputs, outputs)).any()
