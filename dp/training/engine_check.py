"""An engine against the plain loop, on made-up records and made-up weights.

Hooks and book-keeping are fast because they never compute one record's gradient alone. Whatever goes wrong
there (a layer that mixes records, a loss whose declaration is false, a hook that pairs the wrong tensors)
shows as a difference from the loop, before the first release.

The comparison sees neither a record nor a received number: inputs have the shape and type of the site's
records, and all parameters are replaced while it lasts; the values of both come from a fixed public seed. So
its outcome follows from the study's model and loss alone, is the same at every site and in every round, and
may refuse. Real records would make the refusal tell about them, and received weights would let whoever
made them choose what is compared: an overflow, or a path through the model that hides a mistake. (A loss that
holds numbers of its own, such as a teacher's, brings those in: what was received, the same at every site.)

Made-up values: floating-point numbers uniform in [0, 1), which images, masks and probabilities may be;
integers 0 and 1, which are tokens, classes and masks wherever there are two of them; the first of every row
is 1, so that no mask hides a whole record. A loss that cannot be computed on such a batch cannot be
compared. The records are then clipped one by one, which is slower and needs no comparison.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Literal

import torch
from torch import nn

from secfed.dp.training.engines import ClippedSum, Engine, EngineName, LoopEngine
from secfed.dp.training.losses import Batch, DeclaredLoss, check_decomposes
from secfed.errors import ConfigError

_RECORDS: Final = 3
_SEED: Final = 18
_TOLERANCE: Final = 0.01  # mixed precision is within it, a wrong gradient is not
_WEIGHTS: Final = (1.0, 30.0, 1000.0)  # of the records, once they are clipped
_FAR: Final = 10.0  # times the others; a hundred times, the exponential of an honest model would be infinite

CANNOT_BE_COMPUTED: Final = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)

_log = logging.getLogger(__name__)


def checked_engine(
    name: EngineName | Literal["exact"], engine: Engine, model: nn.Module, loss: DeclaredLoss, like: Batch
) -> Engine:
    """Compare sums of gradients of made-up records, unclipped and clipped; ConfigError where they differ.

    Clipped, the records weigh differently; and at last one of them lies far from the others, which must leave
    the others' losses and gradients alone. Nothing is compared for ``loop``, which only has to pass its
    guards. Of ``like``, a batch whose rows are records, only shapes, types and devices are looked at. The
    model is in training mode; meanwhile its dropout is switched off and its parameters are replaced. Returns
    the engine; or one that clips record by record, if the loss cannot be computed on made-up records.
    """
    rows = made_up(like)
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    if name == "loop":
        with _made_up_parameters(model), suppress(*CANNOT_BE_COMPUTED):
            _sum(engine, [rows], parameters, math.inf)
        return engine
    clip_norm = math.inf
    with _without_dropout(model), _made_up_parameters(model):
        for weights in (None, torch.tensor(_WEIGHTS)):
            batch, compared, runner = rows, loss, engine
            if weights is not None and (other := engine.with_loss(_weighted(loss))) is not engine:
                batch, compared, runner = (*rows, weights.to(rows[0].device)), _weighted(loss), other
            singles = one_by_one(batch)
            why = "its gradients are not finite"
            try:
                with engine.paused():
                    wanted, size = _sum(LoopEngine(model, compared), singles, parameters, clip_norm)
            except torch.OutOfMemoryError:
                raise
            except CANNOT_BE_COMPUTED as problem:
                if "inplace" in str(problem):  # so would every record fail, one by one and paid for
                    raise ConfigError(
                        f"engine {name!r} cannot run this model: {problem}",
                        remedy='write it without functions that work in place, or use engine = "loop"',
                    ) from problem
                why, size = f"{type(problem).__name__}: {problem}", math.nan
            if not math.isfinite(size):
                _log.warning(
                    "loss %r cannot be computed on made-up records (%s), so engine %r is not used: records "
                    "are clipped one by one, which is slower",
                    *(loss.name, why, name),
                )
                return _RecordByRecord(engine, LoopEngine(model, loss))
            try:
                found, _ = _sum(runner, [batch], parameters, clip_norm)
            except torch.OutOfMemoryError:
                raise
            except (*CANNOT_BE_COMPUTED, AttributeError) as problem:  # so Opacus and vmap report a layer
                raise ConfigError(
                    f"engine {name!r} cannot run this model: {problem}",
                    remedy="pass every input with a record dimension and contiguous (BERT: explicit "
                    'position and token type ids), or use engine = "loop"',
                ) from problem
            # NaN does not agree.
            if not float(torch.linalg.vector_norm(found - wanted)) <= _TOLERANCE * size + 1e-6:
                raise _disagree(name, loss)
            # Then clipped at half of the mean norm, so that the factors of the records differ.
            clip_norm = max(size / (2 * len(singles)), 1e-6)
        with engine.paused():
            far = _outliers(loss, model, rows)
            if not check_decomposes(loss, model, rows, replacement=far, tolerance=_TOLERANCE):
                raise _disagree(name, loss)
    return engine


def _disagree(name: str, loss: DeclaredLoss) -> ConfigError:
    return ConfigError(
        f"engine {name!r} and the plain loop disagree on per-record gradients with loss "
        f"{loss.name!r}: a layer mixes records, or the loss does not decompose",
        remedy='use engine = "loop", and check the loss with check_decomposes',
    )


def _weighted(loss: DeclaredLoss) -> DeclaredLoss:
    """The loss of records of which the last part of a batch says how much they weigh.

    Records that weigh alike hide a layer that gives each of them the gradient of the mean.
    """
    return DeclaredLoss(loss.name, loss.decomposes, lambda model, batch: loss(model, batch[:-1]) * batch[-1])


def _outliers(loss: DeclaredLoss, model: nn.Module, rows: Batch) -> Batch:
    """For every record the one before it, far from the others: whatever is taken over a batch moves."""
    larger = tuple(part * _FAR if part.is_floating_point() else part for part in rows)
    with torch.no_grad():
        usable = bool(torch.isfinite(loss(model, larger)).all())
    return tuple(torch.roll(part, 1, dims=0) for part in (larger if usable else rows))


def made_up(like: Batch) -> Batch:
    """Three records of the same shapes and types, from a public seed; no value of ``like`` is read."""
    generator = torch.Generator().manual_seed(_SEED)
    parts = []
    for part in like:
        shape = (_RECORDS, *part.shape[1:])
        if part.is_floating_point():
            values = torch.rand(shape, generator=generator)
        else:
            values = torch.randint(0, 2, shape, generator=generator)
            values[..., :1] = 1
        parts.append(values.to(part.device, part.dtype))
    return tuple(parts)


class _RecordByRecord(Engine):
    """The loop, on batches, while another engine is attached to the model."""

    def __init__(self, attached: Engine, loop: LoopEngine) -> None:
        self._attached, self._loop = attached, loop

    def paused(self) -> AbstractContextManager[None]:
        return self._attached.paused()

    def abandon(self) -> None:
        self._attached.abandon()

    def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
        with self.paused():
            for batch in units:
                self._loop.add(one_by_one(batch), into)


def one_by_one(batch: Batch) -> list[Batch]:
    """The rows of a batch, each a batch of its own."""
    return [tuple(part[at : at + 1] for part in batch) for at in range(len(batch[0]))]


def _sum(
    engine: Engine, units: list[Batch], parameters: dict[str, nn.Parameter], clip_norm: float
) -> tuple[torch.Tensor, float]:
    total = ClippedSum(parameters, clip_norm=clip_norm, grid=0.0)
    engine.add(units, total)
    flat = torch.cat([part.reshape(-1).cpu() for part in total.sums.values()])
    return flat, float(torch.linalg.vector_norm(flat))


@contextmanager
def _made_up_parameters(model: nn.Module) -> Iterator[None]:
    """Replace all parameters, frozen ones too, by public values of the usual size.

    Matrices keep the variance of what passes through them; everything else (weights of normalisation, biases,
    scales) is about 1, because zeros, which many models begin with, would hide mistakes.
    """
    generator = torch.Generator().manual_seed(_SEED)
    kept = [(value, value.data) for value in model.parameters() if value.is_floating_point()]
    try:
        for value, data in kept:
            noise = torch.rand(data.shape, generator=generator) - 0.5
            if data.dim() < 2:
                fresh = 1.0 + noise
            else:
                fresh = noise * math.sqrt(12.0 / (data.numel() / data.shape[0]))
            value.data = fresh.to(data.device, data.dtype)
        yield
    finally:
        for value, data in kept:
            value.data = data


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    layers = [part for part in model.modules() if isinstance(part, nn.modules.dropout._DropoutNd)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate
