"""A site's half of vision-language pre-training. See :mod:`secfed.algorithms.vision_language.base`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.site import SiteWeight
from secfed.algorithms.framework.base import SiteId, SiteProgram, fitting
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.framework.server_state import MODEL, copies, model_of, part_of
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.metrics.score_grid import on_grid
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.algorithms.vision_language.options import RobustOptions, VlpOptions
from secfed.algorithms.vision_language.plan import Stage
from secfed.algorithms.vision_language.reference import REFERENCE, Reference
from secfed.algorithms.vision_language.stage import (
    Batch,
    StageLoss,
    at_rest,
    begin_stage,
    contrastive_batches,
    run_stage,
)
from secfed.dp.training.losses import DeclaredLoss
from secfed.dp.training.patient_records import TensorRecords
from secfed.dp.training.step import StepSettings, onto, reduced_precision
from secfed.errors import MalformedMessage, WrongState
from secfed.wire.layout import Exchange, State, Summands
from secfed.wire.parts import is_finite, otherwise

if TYPE_CHECKING:
    from secfed.dp.training.local_privacy import LocalPrivacy


class VlpSite(SiteProgram):
    """Runs inside one hospital.

    Subclasses override :meth:`loss` (what a stage minimises), :meth:`train` (how it trains),
    :meth:`dro_loss` (what robust weights are made from) and :meth:`prepare_optimiser`. Parameters that a site
    keeps of its own are in ``own``, and saved under names that start with ``keeps``.

    Security: ``weight`` and ``own`` are single-site values; they stay at the site.
    """

    keeps: ClassVar[str] = ""
    contrasts: ClassVar[int] = 1  # how many contrastive losses :meth:`dro_loss` adds
    options: VlpOptions

    def __init__(self, algorithm: VlpAlgorithm, site_id: SiteId) -> None:
        self.algorithm, self.options, self.site_id = algorithm, algorithm.options, site_id
        self.data = algorithm.site_data(site_id)
        self.device = algorithm.device
        self.network: DualEncoder = algorithm.network()
        self.own: State = {}
        rule = algorithm.rule
        self.weight: SiteWeight | None = None if rule is None else SiteWeight.start(rule)
        self._reference = Reference(getattr(self.options, "reference_steps", 0))
        self._privacy: LocalPrivacy | None = None

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """Plan all stages and losses of the study, which follow from public facts, and pay for them.

        How many pairs the site, and each of its patients, has is treated as public.
        """
        from secfed.dp.training.local_privacy import LossRelease, Phase  # the accountants are slow to import

        algorithm, options, rule = self.algorithm, self.options, self.algorithm.rule
        pairs, patients = len(self.data.train), self.data.train_patients
        steps: Counter[str] = Counter()
        releases = 0
        for round_number in range(1, algorithm.setting.study.rounds + 1):
            for stage in algorithm.stages(round_number):
                steps[stage.name] += stage.steps
                releases += stage.measures is not None
        phases = [
            Phase(name, pairs, options.batch_size, steps=count, patients=patients)
            for name, count in steps.items()
            if count
        ]
        losses = None
        if rule is not None and isinstance(options, RobustOptions):
            chosen = options.loss_batches if "loss_batches" in options.model_fields_set else None
            losses = LossRelease(
                records=pairs,
                size=options.loss_batch_size,
                releases=releases,
                cap=rule.cap,
                groups=chosen,  # without a wish, all: the more, the less noise
                share=options.loss_share,
                patients=patients,
            )
        privacy.plan(*phases, losses=losses)
        self._privacy = privacy

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """Whether this site has held-out pairs; updates are not weighted, and robust weights are values."""
        stage = self.algorithm.stage(round_number, exchange)
        return retrieval.counts(self.data.test) if stage.evaluates else {}

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Evaluate, measure a loss, train, as the stage asks; a part that fails leaves all as it was."""
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
        summands: dict[str, torch.Tensor | float] = {}
        for part in parts:
            summands.update(otherwise({}, part, round_number, stage, received))
        summands.update(self.settled(round_number, exchange))
        return fitting(exchange, summands)

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """What a stage minimises, from the model and a batch on its device; it starts at ``received``."""
        del round_number, stage, received
        return self.objective()

    def objective(self) -> StageLoss:
        """The study's objective alone."""
        network = self.network

        def objective(model: nn.Module, batch: Batch) -> torch.Tensor:
            total: torch.Tensor = network.objective(model(*batch)).total
            return total

        return objective

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """One stage from the received model: update of every summed parameter, and mean loss or NaN."""
        loss = self.fit(round_number, stage, self.loss(round_number, stage, received))
        local = read_parameters(self.network)
        return {name: local[name] - received[name] for name in stage.summed}, loss

    def prepare_optimiser(self, optimiser: torch.optim.Optimizer) -> None:
        """Given every fresh optimiser before its first step; for step hooks that depend on no record."""

    def dro_loss(self, round_number: int, received: State) -> Callable[[Batch], torch.Tensor]:
        """What the robust weight is made from: the InfoNCE of :attr:`network`, as it is at that moment.

        Gives the loss of a batch on the study's device; called without gradient. Under privacy it may depend
        on that batch, the received model and what noisy steps made of it, and on nothing else.
        """
        del round_number, received
        return self._contrast

    def keep(self) -> None:
        """Make what :attr:`network` holds this site's own; a failed update leaves that as it was."""
        trained = read_parameters(self.network)
        if is_finite(trained):
            self.own = trained

    def fit(self, round_number: int, stage: Stage, loss: StageLoss) -> float:
        """The only place where pairs meet an optimiser; the mean loss over the steps, NaN under privacy."""
        options, model, seed = self.options, self.network, self.algorithm.setting.local_seed
        with seeded(seed, "train", self.site_id, round_number, stage.name):
            optimiser = begin_stage(
                model,
                stage.trained,
                optimizer=options.optimizer,
                learning_rate=options.learning_rate * self.step_scale(stage),
                weight_decay=options.weight_decay,
                warmup=options.warmup(stage.steps),
            )
            self.prepare_optimiser(optimiser)
            if self._privacy is not None:
                return self._fit_privately(self._privacy, optimiser, stage, loss)
            rows = contrastive_batches(
                len(self.data.train),
                batch_size=options.batch_size,
                steps=stage.steps,
                generator=torch_generator(seed, "batches", self.site_id, round_number, stage.name),
            )
            batches = (options.augmentation(self.batch(part)) for part in rows)
            settings = StepSettings.of(options)
            # Changes at random draw from the generator that steps draw from, so they keep their turns.
            early = not (options.augment_images or options.drop_words)
            return run_stage(
                model, optimiser, loss, batches, device=self.device, settings=settings, early=early
            )

    def _fit_privately(
        self, privacy: LocalPrivacy, optimiser: torch.optim.Optimizer, stage: Stage, loss: StageLoss
    ) -> float:
        options = self.options

        def in_precision(model: nn.Module, batch: Batch) -> torch.Tensor:
            changed = options.augmentation(batch)  # by amounts that depend on no record
            with reduced_precision(self.device, options.precision):
                return loss(model, changed)

        train = self.data.train
        pairs = TensorRecords((train.images, train.tokens), self.device)
        declared = DeclaredLoss("contrastive pre-training", False, in_precision)
        privacy.run(self.network, optimiser, declared, pairs, steps=stage.steps, phase=stage.name)
        at_rest(self.network)
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

    def _evaluate(self, round_number: int, stage: Stage, received: State) -> Summands:
        del round_number, stage
        write_parameters(self.network, received)  # training may have moved them
        sums = self.algorithm.evaluate(self.network, self.data.test)
        return on_grid(sums, retrieval.SHARES)

    def _measure(self, round_number: int, stage: Stage, received: State) -> Summands:
        """With noise under privacy, otherwise nearly a mean over batches that are the same in every round."""
        options, rule, privacy = self.options, self.algorithm.rule, self._privacy
        if self.weight is None or rule is None or not isinstance(options, RobustOptions):
            raise WrongState("this algorithm has no robust weights")
        none = torch.tensor(math.nan, dtype=torch.float64)  # counts as the cap
        loss_of = otherwise(lambda _: none, self.dro_loss, round_number, received)

        def of(rows: torch.Tensor, measure: Callable[[Batch], torch.Tensor] = loss_of) -> torch.Tensor:
            batch = onto(self.device, self.batch(rows))
            with torch.no_grad(), reduced_precision(self.device, options.precision):
                return measure(batch).to("cpu", torch.float64)

        if privacy is not None:
            loss = privacy.release_loss(lambda rows: float(of(torch.from_numpy(rows))))
        else:
            parts = self._loss_batches(options)
            losses = torch.stack([otherwise(none, of, part) for part in parts])

            def alone() -> torch.Tensor:
                contrasts = self._trained_alone(stage, received, lambda part: of(part, self._contrast), parts)
                return self.contrasts * contrasts

            loss = rule.loss(otherwise(losses, self._reference.excess, losses, alone))
        self.weight, summand = self.weight.offer(rule, round_number, loss)
        return summand

    def _contrast(self, batch: Batch) -> torch.Tensor:
        value: torch.Tensor = self.network.objective(self.network(*batch)).infonce
        return value

    def _trained_alone(
        self,
        stage: Stage,
        received: State,
        measure: Callable[[torch.Tensor], torch.Tensor],
        parts: list[torch.Tensor],
    ) -> torch.Tensor:
        """Losses under a model that this site trains for itself from the received one; it is thrown away."""
        before, steps = read_parameters(self.network), getattr(self.options, "reference_steps", 0)
        own = Stage(REFERENCE, stage.exchange, trained=self.algorithm.names, steps=steps)
        try:
            write_parameters(self.network, received)
            self.fit(0, own, self.objective())
            return torch.stack([measure(part) for part in parts])
        finally:
            write_parameters(self.network, before)

    def _loss_batches(self, options: RobustOptions) -> list[torch.Tensor]:
        """Rows of the batches that robust weights are made from, the same in every round."""
        batches = contrastive_batches(
            len(self.data.train),
            batch_size=options.loss_batch_size,
            steps=options.loss_batches,
            generator=torch_generator(self.algorithm.setting.local_seed, "loss batches", self.site_id),
        )
        return list(batches)

    def _train(self, round_number: int, stage: Stage, received: State) -> Summands:
        update, loss = self.train(round_number, stage, received)
        return {**{f"update/{name}": value for name, value in update.items()}, "loss": loss}

    def save(self) -> State:
        """The robust weight, and what this site keeps of its own."""
        weight = {} if self.weight is None else {**self.weight.save(), **self._reference.save()}
        return {**weight, **{self.keeps + name: value for name, value in copies(self.own).items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        if self.weight is not None:
            if isinstance(self.options, RobustOptions):
                self._reference.load(state, self.options.loss_batches)
            try:
                self.weight = SiteWeight.load(state)
            except KeyError:
                raise MalformedMessage(
                    f"what site {self.site_id!r} kept holds no robust weight",
                    remedy="it belongs to another study; start this one with an empty state folder",
                ) from None
        shapes = dict(self.algorithm.shapes.named_parameters())
        own = {name: shapes[name] for name in self.kept_names}
        has_own = self.keeps and part_of(state, self.keeps)
        self.own = model_of(state, own, self.keeps) if has_own else {}

    @property
    def kept_names(self) -> tuple[str, ...]:
        """Names of the parameters in ``own``."""
        return tuple(name for name, _ in self.algorithm.shapes.named_parameters())
