"""Engines: clipped sums of unit gradients, by hooks, by ghost clipping, or by a plain loop.

All three add to the same accumulator, and all are checked against the loop. What each is for:

* ``loop``: one forward and backward per unit. The reference, and the only engine for groups of records.
* ``hooks``: per-record gradients of a whole batch from Opacus's hooks; for GPUs and small models.
* ``ghost``: the fastest, and what ``auto`` begins with. The usual layers need no per-record gradients in
  memory: see :mod:`secfed.dp.training.ghost` for which, and :mod:`secfed.dp.training.book_keeping` for why
  it is sound.

What is measured is what is added: every engine computes norms in float64, from the same numbers that it then
scales and adds. A norm from one computation and a gradient from another would be two roundings of one sum,
and where its terms cancel they can differ by more than the sum.

Source: Abadi et al. 2016 (clipping); Bu, Wang, Zha, Karypis 2023 (book-keeping); Opacus.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from secfed.dp.training.book_keeping import Totals, row_squares
from secfed.dp.training.guards import ForwardCounter, check_hooked, unchanged_buffers
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from secfed.dp.training.ghost import BookHooks

EngineName = Literal["hooks", "ghost", "loop"]
EngineChoice = EngineName | Literal["auto"]

_CHUNK_ELEMENTS: Final = 1 << 17  # a chunk in double precision stays in the L2 cache
_MOST_EXPECTED: Final = 1 << 16  # drawn records that the proof in book_keeping covers, twice over


class ClippedSum:
    """The sum over units of gradient * min(1, C / norm), on an integer grid.

    Every unit's clipped gradient is rounded to the grid *before* it is added. Integers below 2^53 add
    exactly in float64, so the sum does not depend on order or device, and one unit moves it by at most
    C + grid * sqrt(d) / 2: floating-point addition has no such bound
    (Casacuberta, Shoemate, Vadhan, Wagaman 2022). C may be infinite; a grid of 0 does not round, which is
    only for sums without noise. ``units`` were added, ``within`` of them had a norm of at most C. A sum that
    nobody needs any more gives its memory to one made ``instead_of`` it: fresh pages cost more than zeros.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        clip_norm: float,
        grid: float,
        instead_of: ClippedSum | None = None,
    ) -> None:
        self.parameters, self.clip_norm, self.grid = parameters, clip_norm, grid
        self.units = 0
        self._within: torch.Tensor | int = 0  # stays on the device until somebody asks
        devices = {value.device for value in parameters.values()}
        if len(devices) != 1:
            raise ConfigError("private training needs all trainable parameters on one device")
        sizes = [value.numel() for value in parameters.values()]
        if instead_of is not None:
            self._flat: torch.Tensor = instead_of._flat.zero_()
        else:
            self._flat = torch.zeros(sum(sizes), dtype=torch.float64, device=devices.pop())
        views = torch.split(self._flat, sizes)
        self.sums = {
            name: view.view(value.shape)
            for (name, value), view in zip(parameters.items(), views, strict=True)
        }

    @property
    def within(self) -> int:
        """How many of the units had a norm of at most C."""
        return int(self._within)

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        """min(1, C / norm) per unit: [B] float64; 0 for a norm that is not finite."""
        # A NaN or infinite gradient cannot be scaled into the ball; nothing is inside every ball.
        usable = torch.isfinite(norms)
        self.units += len(norms)
        self._within = self._within + (norms <= self.clip_norm).sum()
        scaled = torch.clamp(self.clip_norm / norms.clamp_min(1e-300), max=1.0)
        return torch.where(usable, scaled, torch.zeros_like(norms))

    def add_rows(self, name: str, rows: torch.Tensor, factors: torch.Tensor) -> None:
        """Add per-unit gradients of one parameter, scaled: [B, ...] and [B] above 0."""
        step = max(1, _CHUNK_ELEMENTS // max(1, self.sums[name].numel()))
        for start in range(0, len(rows), step):
            part = rows[start : start + step].to(torch.float64)
            part *= self.scale(factors[start : start + step]).reshape(-1, *[1] * (part.dim() - 1))
            self.sums[name] += (part.round_() if self.grid else part).sum(dim=0)

    def add_unit(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Add one unit's gradients, one per parameter, None where the unit does not reach it."""
        parts = [
            torch.zeros_like(value).reshape(-1) if part is None else part.reshape(-1)
            for part, value in zip(gradients, self.parameters.values(), strict=True)
        ]
        flat = torch.cat(parts).to(torch.float64)
        factor = self.factors(torch.linalg.vector_norm(flat)[None])
        flat *= self.scale(factor)
        flat.masked_fill_(factor <= 0, 0.0)  # a factor of zero does not silence NaN
        self._flat += flat.round_() if self.grid else flat

    def round(self) -> None:
        """Round the sum to the grid, where terms were added that were not; once in a release.

        Rounding the sum instead of its terms moves two neighbouring sums apart by up to grid * sqrt(d).
        """
        if self.grid:
            self._flat.round_()

    def is_finite(self) -> bool:
        """Whether every number of the sum is finite."""
        return bool(torch.isfinite(self._flat.sum()))  # none is so large that only their sum is infinite

    def scale(self, factors: torch.Tensor) -> torch.Tensor:
        """What gradients are multiplied by before they are added, in units of the grid."""
        return factors / self.grid if self.grid else factors


class Engine:
    """Adds the clipped gradients of units to a :class:`ClippedSum`."""

    def paused(self) -> AbstractContextManager[None]:
        """Let the model run as if the engine were not attached."""
        return nullcontext()

    def abandon(self) -> None:
        """Drop what a pass that failed has left behind, so that the next one starts clean."""

    def with_loss(self, loss: DeclaredLoss) -> Engine:  # noqa: ARG002
        """The same engine, with the same hooks, for another loss; itself if it takes none."""
        return self

    def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
        """Add every unit: the loop takes one batch per unit, the others batches whose rows are the units."""
        raise NotImplementedError


class LoopEngine(Engine):
    """One backward pass per unit."""

    def __init__(self, model: nn.Module, loss: DeclaredLoss) -> None:
        self._model, self._loss = model, loss

    def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
        """Each unit by itself."""
        values = list(into.parameters.values())
        for unit in units:
            with unchanged_buffers(self._model):
                loss = self._loss(self._model, unit).mean()
            into.add_unit(torch.autograd.grad(loss, values, allow_unused=True))


class HookedEngine(Engine):
    """Clips the records of a batch after one forward and one backward pass; use inside :func:`attached`."""

    def __init__(self, model: nn.Module, loss: DeclaredLoss, counter: ForwardCounter, hooks: Any) -> None:
        self._model, self._loss, self._counter, self._hooks = model, loss, counter, hooks
        # Opacus fills the row of an embedding's padding index, which autograd leaves at zero.
        self._padding = {
            id(module.weight): module.padding_idx
            for module in model.modules()
            if isinstance(module, nn.Embedding) and module.padding_idx is not None
        }

    def with_loss(self, loss: DeclaredLoss) -> HookedEngine:
        """The hooks are those of this one."""
        other = copy.copy(self)
        other._loss = loss
        return other

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The model runs without any hook."""
        self._hooks.disable_hooks()
        self._counter.enabled = False
        try:
            yield
        finally:
            self._counter.enabled = True
            self._hooks.enable_hooks()

    def abandon(self) -> None:
        """Opacus pairs activations with gradients by the order of passes, so none may be left over."""
        self._counter.restart()
        _remove(self._model.modules(), "activations", "max_batch_len")
        _remove(self._model.parameters(), "_current_grad_sample")
        for value in self._model.parameters():
            value.grad = None
            for attribute, empty in (("_forward_counter", 0), ("grad_sample", None)):
                if hasattr(value, attribute):
                    setattr(value, attribute, empty)

    def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
        """The rows of each batch at once."""
        for batch in units:
            losses = self._losses(batch)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            rows = {
                name: _leading(name, getattr(value, "grad_sample", None), len(losses))
                for name, value in into.parameters.items()
            }
            for name in rows:
                if (padding := self._padding.get(id(into.parameters[name]))) is not None:
                    rows[name][:, padding] = 0.0
            factors = into.factors(joint_norms(list(rows.values()), len(losses)))
            # A factor of zero does not silence NaN: such rows are left out.
            kept = factors > 0
            whole = bool(kept.all())  # read once for all parameters
            for name, part in rows.items():
                into.add_rows(name, part if whole else part[kept], factors if whole else factors[kept])
            for value in into.parameters.values():
                value.grad_sample = None  # type: ignore[attr-defined]
                value.grad = None

    def _losses(self, batch: Batch) -> torch.Tensor:
        """One loss per record, after a forward pass that ran every layer exactly once: [B]."""
        with unchanged_buffers(self._model):
            losses = self._loss(self._model, batch)
        self._counter.check()
        if losses.shape != (len(batch[0]),):
            raise ConfigError(
                f"loss {self._loss.name!r} gave shape {tuple(losses.shape)} for {len(batch[0])} records",
                remedy="a loss that decomposes returns one number per record",
            )
        return losses


class GhostEngine(HookedEngine):
    """Clips the records of a batch by books; use inside :func:`attached`."""

    def __init__(
        self, model: nn.Module, loss: DeclaredLoss, counter: ForwardCounter, hooks: BookHooks
    ) -> None:
        super().__init__(model, loss, counter, hooks)
        self._book_hooks = hooks

    def abandon(self) -> None:
        """Forget what was kept of the pass."""
        self._counter.restart()
        self._book_hooks.clear()

    def add(self, units: Sequence[Batch], into: ClippedSum) -> None:
        """The rows of each batch at once; once in a release, because the sum is rounded to the grid here."""
        totals = Totals({id(value): into.sums[name] for name, value in into.parameters.items()})
        for batch in units:
            losses = self._losses(batch)
            self._counter.enabled = False  # the backward pass may run layers again, to save memory
            try:
                books = self._book_hooks.books(losses)
            finally:
                self._counter.enabled = True
            with torch.no_grad():
                squares = {id(value): found for book in books for value, found in book.squares()}
                measured = [
                    _leading(name, squares.get(id(value)), len(losses))
                    for name, value in into.parameters.items()
                ]
                factors = into.factors(torch.stack(measured).sum(dim=0).sqrt())
                # A factor of zero does not silence NaN: such records are left out.
                kept = factors > 0
                some = None if bool(kept.all()) else kept
                scaled = into.scale(factors if some is None else factors[some])
                for book in books:
                    book.add(scaled, some, totals)
        into.round()


def joint_norms(rows: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """L2 norm of every unit over all parameters, in float64: [count]."""
    squares = torch.zeros(count, dtype=torch.float64)
    for part in rows:
        found = row_squares(part)
        squares = squares.to(found.device) + found
    return squares.sqrt()


def _leading(name: str, rows: object, count: int) -> torch.Tensor:
    """What a parameter has for each of ``count`` records; ConfigError if it has not."""
    if not isinstance(rows, torch.Tensor) or rows.shape[:1] != (count,):
        raise ConfigError(
            f"parameter {name!r} has no gradient for each of the {count} records",
            remedy="freeze it, pass every input with a record dimension (BERT: explicit contiguous "
            'position and token type ids), or use engine = "loop"',
        )
    return rows


def check_engine_fits(name: EngineName, model: nn.Module, expected_units: float = 1.0) -> None:
    """Look at the model without running it; ConfigError for a layer or number of units beyond the engine."""
    if name == "ghost" and expected_units > _MOST_EXPECTED:
        raise ConfigError(
            f'engine "ghost" adds up at most {_MOST_EXPECTED} expected records in a step, '
            f"not {expected_units:.0f}",
            remedy='use smaller batches, or engine = "hooks"',
        )
    if name != "loop":
        check_hooked(model, expand=name == "ghost")


def first_choice(choice: EngineChoice, model: nn.Module, expected_units: float = 1.0) -> EngineName:
    """The engine to begin with, as :func:`check_engine_fits` for it; ``auto`` is "ghost" if that passes.

    What follows depends on the model and the number of records, which are public, and on nothing else.
    """
    if choice == "auto":
        with suppress(ConfigError):
            check_engine_fits("ghost", model, expected_units)
            return "ghost"
        choice = "hooks"
    check_engine_fits(choice, model, expected_units)
    return choice


@contextmanager
def attached(name: EngineName, model: nn.Module, loss: DeclaredLoss) -> Iterator[Engine]:
    """The engine of that name on this model; every hook and attribute is gone afterwards."""
    if name == "loop":
        yield LoopEngine(model, loss)
        return
    from opacus.grad_sample import GradSampleHooks

    from secfed.dp.training.ghost import BookHooks

    check_engine_fits(name, model)
    with warnings.catch_warnings():
        # The first layer's inputs need no gradient, so torch says what its hook does then: what we want.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        hooks: Any
        try:
            hooks = BookHooks(model) if name == "ghost" else GradSampleHooks(model, loss_reduction="sum")
        except NotImplementedError as problem:
            raise ConfigError(
                f"Opacus cannot hook this model: {problem}", remedy='use engine = "loop"'
            ) from None
        counter = ForwardCounter(model, expand=name == "ghost")
        engine = GhostEngine if name == "ghost" else HookedEngine
        try:
            yield engine(model, loss, counter, hooks)
        finally:
            counter.close()
            hooks.remove_hooks()
            # Per-record gradients must not outlive the step.
            _remove(model.parameters(), "grad_sample", "_forward_counter", "_current_grad_sample")
            _remove(model.modules(), "activations", "max_batch_len", "ft_compute_sample_grad")


def _remove(owners: Iterable[object], *attributes: str) -> None:
    for owner in owners:
        for attribute in attributes:
            if hasattr(owner, attribute):
                delattr(owner, attribute)
