"""Federated vision-language pre-training, written against sums: what its algorithms have in common.

A round is a list of *stages*, each one secure sum. In a training stage each site adds how far some parameters
moved, and the server moves the model by the plain mean over the survivors. A stage may also sum what robust
weights are made from (:mod:`secfed.algorithms.dro.rule`). Evaluation rides with the first stage of a round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch
from torch import nn

from secfed.algorithms.data.image_text.base import ImageTextData, ImageTextSite, Pairs, check_image_text
from secfed.algorithms.dro.answer import DroAnswer
from secfed.algorithms.dro.rule import DroRule
from secfed.algorithms.framework.base import LOSS_BOUND, Metrics, SiteId, SiteProgram, check_round
from secfed.algorithms.framework.datasets import check_pairs
from secfed.algorithms.framework.parameters import check_shapes, shapes_of, trainable
from secfed.algorithms.framework.server_state import MODEL, ModelServer, moved, part_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import Staged
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.dual_encoder_memory import memory_estimate
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.algorithms.models.study_encoders import StudyEncoders
from secfed.algorithms.vision_language.options import RobustOptions, VlpOptions, check_privacy
from secfed.algorithms.vision_language.plan import EVALUATE, EVERYONE, LOSS, Measures, Stage
from secfed.config.cohort_rules import min_survivors
from secfed.config.schema import OwnOptions
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError, WrongState
from secfed.wire.layout import Exchange, Field, Layout, State, Totals

_ANSWER: Final = "answer/"
NOISED: Final = ("update", "dro")  # by private local steps, and by the rule's own noise


class VlpAlgorithm(Staged[Stage]):
    """One algorithm of vision-language pre-training, bound to one study."""

    private_units = ("group", "site")
    warm_start = True
    site_program: ClassVar[type[Any]]  # made with (algorithm, site_id)

    def __init__(self, setting: Setting, options: VlpOptions) -> None:
        study = setting.study
        self.rule: DroRule | None = options.rule(setting) if isinstance(options, RobustOptions) else None
        if not isinstance(setting.data, ImageTextData):
            raise ConfigError(
                f"data.name: {study.algorithm.name} needs image-report pairs, which {study.data.name} does "
                "not give",
                remedy="use a set of pairs, for example chest-synthetic or image-text",
            )
        if not isinstance(study.model, VisionLanguageOptions | OwnOptions):
            message = f"model.name: {study.algorithm.name} trains a dual encoder"
            raise ConfigError(message, remedy='set model.name = "vision-language"')
        check_privacy(options, study.privacy)
        self.setting, self.options = setting, options
        self.data: ImageTextData = setting.data
        self._encoders = StudyEncoders(study, setting.data, self.branch)
        self.shapes = self._encoders.shapes
        self.names: tuple[str, ...] = trainable(self.shapes)
        self.encoder_names: tuple[str, ...] = tuple(
            name for name in self.shapes.encoder_names if name in self.names
        )  # that train
        self.align_names: tuple[str, ...] = tuple(self.shapes.align_names)  # and of the objective
        self._stages: dict[int, tuple[Stage, ...]] = {}
        self._scores = retrieval.fields(ceiling=options.evaluation_ceiling)
        self._site_level = study.privacy is not None and not study.privacy.in_local_steps
        self._metrics = "unprotected" if study.privacy is None else study.privacy.metrics
        if self.rule is not None:
            # Plain sums open everything to the server: no cohort would be large enough, and none is needed.
            opened, sites = study.protection.traits.hides_sites, len(setting.sites)
            self.rule.check_cohort(sites, min_survivors(study.protection, sites) if opened else None)

    def branch(self, network: DualEncoder) -> nn.Module | None:
        """What this algorithm adds to the study's dual encoder, to train with it; nothing by default."""
        del network
        return None

    @property
    def initial(self) -> State:
        """The initial model: the study's seed, or local weights."""
        return self._encoders.initial

    def network(self, parameters: State | None = None) -> DualEncoder:
        """A network on the study's device, in evaluation mode; without parameters, to write them into."""
        return self._encoders.network(self.device, parameters)

    @property
    def device(self) -> torch.device:
        """Where sites train."""
        return choose_device(self.options.device)

    def frozen_names(self, round_number: int) -> tuple[str, ...]:
        """Parameters that no stage of a round trains or sums; a user's own model need not say."""
        says = getattr(self.shapes, "frozen_names", None)
        return () if says is None else tuple(says(round_number))

    @abstractmethod
    def round_stages(self, round_number: int) -> Sequence[Stage]:
        """What one training round consists of, without evaluation; made with the two methods below."""

    def training_stage(
        self,
        round_number: int,
        name: str,
        *,
        summed: Sequence[str],
        steps: int,
        trained: Sequence[str] | None = None,
        exchange: str | None = None,
        weighted: bool = False,
        measures: Measures | None = None,
        reports_loss: bool = False,
    ) -> Stage:
        """A stage whose updates are summed; by default it trains what it sums, and nothing that is frozen."""
        protection, frozen = self.setting.study.protection, self.frozen_names(round_number)
        shapes = dict(self.shapes.named_parameters())
        summed, trained = (
            tuple(one for one in names if one not in frozen)
            for names in (summed, summed if trained is None else trained)
        )
        fields = [
            Field(f"update/{name}", tuple(shapes[name].shape), protection.bound, protection.bits)
            for name in summed
        ]
        if measures is not None and self.rule is not None:
            fields += self.rule.fields()
        if reports_loss and self._may_report_loss:
            fields.append(Field(LOSS, (), LOSS_BOUND, 64))
        return Stage(
            name,
            self._exchange(exchange or name, fields),
            summed=summed,
            trained=trained,
            steps=steps,
            weighted=weighted,
            measures=measures if self.rule is not None else None,
        )

    @property
    def _may_report_loss(self) -> bool:
        """Whether a training loss may be summed: beside robust weights it is one more equation in losses."""
        protection, rule = self.setting.study.protection, self.rule
        if self.setting.study.privacy is not None:
            return False
        if rule is None or not protection.traits.hides_sites:
            return True
        return min_survivors(protection, len(self.setting.sites)) > rule.minimum

    def weights_stage(self, name: str = "weights") -> Stage:
        """A stage that sums nothing but what the robust weights are made from."""
        if self.rule is None:
            raise WrongState("this algorithm has no robust weights")
        return Stage(name, self._exchange(name, self.rule.fields()), measures="received")

    def _exchange(self, name: str, fields: Sequence[Field]) -> Exchange:
        return Exchange(name, EVERYONE, Layout(tuple(fields), sites=len(self.setting.sites)))

    def stages(self, round_number: int) -> Sequence[Stage]:
        """The exchanges of one round, and what happens in each."""
        rounds = self.setting.study.rounds
        check_round(round_number, rounds)
        if round_number not in self._stages:
            self._stages[round_number] = self._round(round_number, closing=round_number > rounds)
        return self._stages[round_number]

    def _round(self, round_number: int, *, closing: bool) -> tuple[Stage, ...]:
        stages = () if closing else tuple(self.round_stages(round_number))
        if self._metrics == "withheld" or not (closing or self.options.evaluate == "every"):
            return stages
        # A site's noise covers a whole exchange, so what leaves without noise has one of its own.
        if closing or self._site_level:
            return (Stage(EVALUATE, self._exchange(EVALUATE, self._scores)), *stages)
        first, *others = stages
        fields = (*first.exchange.layout.fields, *self._scores)
        return (replace(first, exchange=self._exchange(first.exchange.name, fields)), *others)

    def unprotected(self, exchange: Exchange) -> Sequence[str]:
        """Fields of evaluation, where the study has ``[privacy]``."""
        if self.setting.study.privacy is None:
            return ()
        return [field.name for field in exchange.layout.fields if field.name.startswith("eval/")]

    def server(self) -> VlpServer:
        """A fresh server program."""
        return VlpServer(self.initial, self.stage, self.rule)

    def site(self, site_id: SiteId) -> SiteProgram:
        """One site's program, bound to that site's pairs."""
        program: SiteProgram = self.site_program(self, site_id)
        return program

    def device_bytes(self) -> int | None:
        """Parameters, gradients, moments, an anchor and the activations of one batch, all in float32."""
        model, data = self.setting.study.model, self.data
        if not isinstance(model, VisionLanguageOptions):
            return None
        texts, batch = (data.text_length, data.vocabulary), self.options.batch_size
        return sum(memory_estimate(model, data.image_shape, *texts, batch=batch).values())

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse other names or shapes than this study's, or an answer that no sum gives."""
        del round_number, exchange
        answer = None if self.rule is None else DroAnswer.from_state(broadcast)
        if answer is not None and self.rule is not None:
            self.rule.check(answer)
            broadcast = {name: value for name, value in broadcast.items() if name not in DroAnswer.NAMES}
        check_shapes(broadcast, shapes_of(dict(self.shapes.named_parameters()), MODEL))

    def model_in(self, broadcast: State) -> State:
        """The model in a broadcast, without what belongs to robust weights."""
        return part_of(broadcast, MODEL)

    def site_data(self, site_id: SiteId) -> ImageTextSite:
        """One site's checked pairs."""
        data = check_image_text(site_id, self.data.site(site_id), self.data)
        check_pairs(site_id, len(data.train))
        return data

    def per_site(self, model: State) -> Mapping[SiteId, Metrics]:
        """Metrics of one model at every site. Simulation only: in a study nobody has two sites' pairs."""
        network = self.network(model)
        sums = {site: self.evaluate(network, self.site_data(site).test) for site in self.setting.sites}
        return {site: retrieval.finish(one) for site, one in sums.items()}

    def evaluate(self, network: DualEncoder, pairs: Pairs) -> dict[str, float]:
        """What one site's held-out pairs add to the sums, as the study measures."""
        options = self.options
        return retrieval.evaluate_site(
            network,
            pairs,
            options.evaluation_batch,
            self.device,
            ceiling=options.evaluation_ceiling,
            distinct=options.evaluation_pairs == "distinct",
        )


class VlpServer(ModelServer):
    """Moves the model by the mean update over the survivors of each sum; reads totals only.

    The answer to a sum for robust weights travels with every broadcast until the next one replaces it, so a
    site that missed a broadcast catches up; a site uses an answer once.
    """

    def __init__(
        self, initial: State, stage_of: Callable[[int, Exchange], Stage], rule: DroRule | None
    ) -> None:
        super().__init__(initial)
        self._stage_of, self._rule = stage_of, rule
        self._answer: DroAnswer | None = None

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The current model as ``model/parameter``, and the latest answer to the sum for robust weights."""
        self._stage_of(round_number, exchange)
        state = {MODEL + name: value for name, value in self._model.items()}
        return state if self._answer is None else {**state, **self._answer.to_state()}

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange: metrics of the model that was broadcast, then the step to the next."""
        stage, sites = self._stage_of(round_number, exchange), len(totals.survivors)
        metrics = self._metrics.of(round_number - 1)
        metrics.update(retrieval.finish(totals))
        if "loss" in totals:
            metrics["loss"] = totals.scalar("loss") / sites
        if stage.measures is not None and self._rule is not None:
            self._answer = self._rule.answer(round_number, totals)  # None keeps all weights as they are
        for name in stage.summed:
            self._model[name] = moved(self._model[name], totals[f"update/{name}"], sites)

    def save(self) -> State:
        """Model, answer and metrics."""
        answer = {} if self._answer is None else self._answer.to_state()
        return {**super().save(), **{_ANSWER + name: value for name, value in answer.items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._answer = DroAnswer.from_state(part_of(state, _ANSWER))
