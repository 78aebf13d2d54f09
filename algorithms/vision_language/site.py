"""A site's half of vision-language pre-training. See :mod:`secfed.algorithms.vision_language.base`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.site import SiteWeight
from secfed.algorithms.framework.base import SiteId, SiteProgram
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.framework.server_state import MODEL, part_of
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.metrics.score_grid import on_grid
from secfed.algorithms.vision_language.options import RobustOptions
from secfed.algorithms.vision_language.privacy_plan import plan
from secfed.algorithms.vision_language.stage import (
    Batch,
    StageLoss,
    at_rest,
    contrastive_batches,
    make_optimiser,
    reduced_precision,
    rising_rate,
    run_stage,
    train_only,
)
from secfed.errors import MalformedMessage, WrongState
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import otherwise

if TYPE_CHECKING:
    from secfed.algorithms.dro.rule import DroRule
    from secfed.algorithms.models.dual_encoder import DualEncoder
    from secfed.algorithms.vision_language.plan import Stage
    from secfed.algorithms.vision_language.setup import VlpSetup
    from secfed.dp.training.local_privacy import LocalPrivacy


class VlpSite(SiteProgram):
    """Runs inside one hospital. Keeps between exchanges what :meth:`save` names, and nothing else.

    Subclasses override :meth:`loss` (what a stage minimises), :meth:`train` (how it trains),
    :meth:`dro_loss` (what robust weights are made from), and :meth:`save` with :meth:`load` where they
    keep more.

    Attributes:
        network: on the study's device; after :meth:`contribute` its contents are left over.
        weight: this site's robust weight, or None for an algorithm without.

    Security: ``weight`` and everything in :meth:`save` are single-site values; they stay at the site.
    """

    def __init__(self, algorithm: VlpSetup, site_id: SiteId) -> None:
        self.algorithm, self.site_id = algorithm, site_id
        self.data = algorithm.site_data(site_id)
        self.device = algorithm.device
        self.network: DualEncoder = algorithm.network()
        self.weight: SiteWeight | None = None
        if algorithm.rule is not None:
            self.weight = SiteWeight.start(algorithm.rule)
        self._privacy: LocalPrivacy | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Train under privacy from now on.

        Raises:
            ConfigError: no noise reaches the study's epsilon, or a relation that hides patients without any.
        """
        plan(self.algorithm, privacy, len(self.data.train), self.data.train_patients)
        self._privacy = privacy

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """Whether this site has held-out pairs; updates are not weighted, and robust weights are values."""
        stage = self.algorithm.stage(round_number, exchange)
        return retrieval.counts(self.data.test) if stage.evaluates else {}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Evaluate the received model, measure its loss, train: whatever the stage asks for.

        A part that fails is left out, and leaves what this site keeps as it was.

        Raises:
            WrongState: the study has no such exchange in this round.
            MalformedMessage: the broadcast is not this study's.
            BudgetExceeded: the site's budget does not cover the work; no record was touched.
        """
        stage = self.algorithm.stage(round_number, exchange)
        received = part_of(broadcast, MODEL)
        write_parameters(self.network, received)
        if self.weight is not None and self.algorithm.rule is not None:
            answer = DroAnswer.from_state(broadcast)
            self.weight = self.weight.apply(self.algorithm.rule, self.site_id, answer)
        parts: list[Callable[[int, Stage, State], Summands]] = []
        if stage.measures == "received":
            parts.append(self._measure)
        if stage.summed:
            parts.append(self._train)
        if stage.measures == "trained":
            parts.append(self._measure)
        if stage.evaluates:
            # Under privacy it comes last: the rest pays, or refuses, before any record is touched.
            parts.insert(0 if self._privacy is None else len(parts), self._evaluate)
        found: dict[str, torch.Tensor | float] = {}
        for part in parts:
            found.update(otherwise({}, part, round_number, stage, received))
        found.update(self.settled(round_number, exchange))
        return {field.name: found[field.name] for field in exchange.layout.fields if field.name in found}

    # --- what subclasses change ---

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """What a training stage minimises: the model's objective, unless a subclass says more.

        Args:
            round_number: counted from 1.
            stage: which.
            received: the model at the start of the stage; :attr:`network` holds it, too.

        Returns:
            A function of the model being trained and a batch on its device.
        """
        del round_number, stage, received
        network = self.network

        def objective(model: nn.Module, batch: Batch) -> torch.Tensor:
            total: torch.Tensor = network.objective(model(*batch)).total
            return total

        return objective

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """One training stage.

        Args:
            round_number: counted from 1.
            stage: which.
            received: the model at its start; :attr:`network` holds it, too.

        Returns:
            Update (local minus received) by name of every summed parameter, and the mean training loss;
            NaN under privacy. What a site keeps of its own must be finite, see
            :func:`secfed.wire.parts.is_finite`.
        """
        loss = self.fit(self.network, round_number, stage, self.loss(round_number, stage, received))
        local = read_parameters(self.network)
        return {name: local[name] - received[name] for name in stage.summed}, loss

    def prepare_optimiser(self, stage: Stage, optimiser: torch.optim.Optimizer) -> None:
        """Given every fresh optimiser before its first step; for step hooks that depend on no record."""

    def dro_loss(self, round_number: int, received: State) -> Callable[[Batch], torch.Tensor]:
        """What the robust weight is made from: the InfoNCE of :attr:`network`, as it is at that moment.

        Args:
            round_number: counted from 1.
            received: the model at the start of the stage.

        Returns:
            A batch's loss, from a batch on the study's device; called without gradient. Under privacy it may
            depend on that batch, the received model and what noisy steps made of it, and on nothing else.
        """
        del round_number, received
        network = self.network
        return lambda batch: network.objective(network(*batch)).infonce

    # --- what they use ---

    def fit(
        self,
        model: nn.Module,
        round_number: int,
        stage: Stage,
        loss: StageLoss,
        *,
        trained: tuple[str, ...] | None = None,
    ) -> float:
        """Train in place: the only place where pairs meet an optimiser.

        Args:
            model: on the study's device.
            round_number: counted from 1.
            stage: decides order of batches, steps, scale of the steps and, under privacy, the phase.
            loss: from ``model`` and a batch.
            trained: names of the parameters of ``model`` that move; by default the stage's.

        Returns:
            Mean loss over the steps; NaN under privacy, which does not pay for it.
        """
        algorithm, options = self.algorithm, self.algorithm.options
        seed, names = algorithm.setting.local_seed, stage.trained if trained is None else trained
        scale = self.step_scale(stage)
        with seeded(seed, "train", self.site_id, round_number, stage.name):
            if self._privacy is not None:
                return self._fit_privately(model, stage, loss, names, scale)
            rows = contrastive_batches(
                len(self.data.train),
                batch_size=options.batch_size,
                steps=stage.steps,
                generator=torch_generator(seed, "batches", self.site_id, round_number, stage.name),
            )
            return run_stage(
                model,
                trained=names,
                loss=loss,
                batches=(options.augmentation(self.batch(part)) for part in rows),
                learning_rate=options.learning_rate,
                step_scale=scale,
                optimizer=options.optimizer,
                weight_decay=options.weight_decay,
                device=self.device,
                precision=options.precision,
                warmup=options.learning_rate_warmup,
                prepare=lambda optimiser: self.prepare_optimiser(stage, optimiser),
            )

    def _fit_privately(
        self, model: nn.Module, stage: Stage, loss: StageLoss, trained: tuple[str, ...], scale: float
    ) -> float:
        from secfed.dp.training.losses import DeclaredLoss

        options, privacy = self.algorithm.options, self._privacy
        if privacy is None:
            raise WrongState("private training without a site's privacy")

        def in_precision(trained_model: nn.Module, batch: Batch) -> torch.Tensor:
            changed = options.augmentation(batch)  # by amounts that depend on no record
            with reduced_precision(self.device, options.precision):
                return loss(trained_model, changed)

        train_only(model, trained)
        optimiser = make_optimiser(
            model,
            options.optimizer,
            learning_rate=options.learning_rate * scale,
            weight_decay=options.weight_decay,
        )
        rising_rate(optimiser, options.learning_rate_warmup)
        self.prepare_optimiser(stage, optimiser)
        pairs = (self.data.train.images.to(self.device), self.data.train.tokens.to(self.device))
        declared = DeclaredLoss("contrastive pre-training", False, in_precision)
        privacy.run(model, optimiser, declared, pairs, steps=stage.steps, phase=stage.name)
        at_rest(model)
        return math.nan

    def step_scale(self, stage: Stage) -> float:
        """What multiplies the learning rate of this stage: 1 unless it is weighted."""
        rule = self.algorithm.rule
        if rule is None or self.weight is None or not stage.weighted:
            return 1.0
        return self.weight.scale(rule)

    def batch(self, rows: torch.Tensor) -> Batch:
        """These training pairs: images and tokens, on the CPU."""
        return self.data.train.images[rows], self.data.train.tokens[rows]

    def _measured(self, rule: DroRule, loss: Callable[[Batch], torch.Tensor]) -> float:
        """The number that the robust weight is made from: with noise under privacy, otherwise nearly a mean.

        The batches are the same in every round, and drawn from a generator of their own: training does
        not notice whether a loss was measured.
        """
        options, seed = self.algorithm.options, self.algorithm.setting.local_seed

        def of(rows: torch.Tensor) -> torch.Tensor:
            batch = tuple(part.to(self.device) for part in self.batch(rows))
            with torch.no_grad(), reduced_precision(self.device, options.precision):
                return loss(batch).to("cpu", torch.float64)

        if self._privacy is not None:
            return self._privacy.release_loss(lambda rows: float(of(torch.from_numpy(rows))))
        if not isinstance(options, RobustOptions):
            raise WrongState("this algorithm has no robust weights")
        rows = contrastive_batches(
            len(self.data.train),
            batch_size=options.loss_batch_size,
            steps=options.loss_batches,
            generator=torch_generator(seed, "loss batches", self.site_id),
        )
        none = torch.tensor(math.nan, dtype=torch.float64)  # counts as the cap
        return rule.loss(torch.stack([otherwise(none, of, part) for part in rows]))

    # --- parts of a contribution ---

    def _evaluate(self, round_number: int, stage: Stage, received: State) -> Summands:
        del round_number, stage
        write_parameters(self.network, received)  # training may have moved them
        sums = retrieval.evaluate_site(
            self.network, self.data.test, self.algorithm.options.evaluation_batch, self.device
        )
        return on_grid(sums, retrieval.SHARES)

    def _measure(self, round_number: int, stage: Stage, received: State) -> Summands:
        del stage
        rule = self.algorithm.rule
        if self.weight is None or rule is None:
            raise WrongState("this algorithm has no robust weights")
        none = torch.tensor(math.nan)
        loss = self._measured(rule, otherwise(lambda _: none, self.dro_loss, round_number, received))
        self.weight, summand = self.weight.offer(rule, round_number, loss)
        return summand

    def _train(self, round_number: int, stage: Stage, received: State) -> Summands:
        update, loss = self.train(round_number, stage, received)
        return {**{f"update/{name}": value for name, value in update.items()}, "loss": loss}

    # --- what is kept ---

    def save(self) -> State:
        """What this site keeps between exchanges; empty for an algorithm that keeps nothing."""
        return {} if self.weight is None else self.weight.save()

    def load(self, state: State) -> None:
        """Continue from :meth:`save`.

        Raises:
            MalformedMessage: kept by another study.
        """
        if self.weight is not None:
            try:
                self.weight = SiteWeight.load(state)
            except KeyError:
                raise MalformedMessage(
                    f"what site {self.site_id!r} kept holds no robust weight",
                    remedy="it belongs to another study; start this one with an empty state folder",
                ) from None
