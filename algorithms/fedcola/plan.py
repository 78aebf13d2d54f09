"""Which sums a FedCola study consists of, and who takes part in each: computed from public facts alone.

    rounds 1 .. R    own-image, own-text, own-pairs      what each group sums by itself
                     attention-image, attention-text     attention layers, with the pairs sites
    round R+1        score-image, score-text, score-pairs

``shared_over = "all"`` has one sum, attention-all, instead of two. Without sharing, attention layers are in
the groups' own sums; ``evaluate = "every"`` scores every round. Who trains when follows from the study's
seed, so no aggregator can choose whom an honest site is summed with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import torch

from secfed.algorithms.data.transfer.base import Kind
from secfed.algorithms.fedcola.options import FedColaOptions
from secfed.algorithms.framework.base import LOSS_BOUND, SiteId
from secfed.algorithms.framework.kinds import Parts, parts_by_kind
from secfed.algorithms.framework.parameters import write_parameters
from secfed.algorithms.framework.randomness import numpy_generator
from secfed.algorithms.framework.server_state import MODEL, part_of
from secfed.algorithms.framework.staged import RoundPlan
from secfed.algorithms.metrics import transfer_scores
from secfed.algorithms.models import transfer_transformer
from secfed.algorithms.models.transfer_options import (
    Modality,
    TransferFacts,
    TransferTransformerOptions,
    gated_weights,
    is_shared,
)
from secfed.algorithms.models.transfer_transformer import Classifier, PairEncoder
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field, State

OTHER: Final = "other/"  # blocks of the other modality, for co-layers
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MODALITIES: Final[tuple[Modality, ...]] = get_args(Modality)
_TOKENS: Final = "text.embed.token."


@dataclass(frozen=True)
class FedColaStage:
    """One exchange; "own" trains for the group, "shared" sums what more groups share, "score" measures."""

    step: Literal["own", "shared", "score"]
    exchange: Exchange
    of: Kind  # the group, or the modality of a "shared" step; "pairs" there is both


@dataclass(frozen=True, kw_only=True)
class FedColaPlan(RoundPlan[FedColaStage]):
    """The plan of one study."""

    options: FedColaOptions
    kind_of: Mapping[SiteId, Kind]
    model: TransferTransformerOptions
    facts: TransferFacts
    starts: bool = False  # with a model from a file

    def __post_init__(self) -> None:
        if "pairs" not in self.kinds:
            message = f"data.name: {self.options.name} needs sites with pairs, for which the others learn"
            raise ConfigError(message, remedy="name some, or train a classifier with fedavg")
        if len(self.kinds) < len(KINDS) and self.options.co_layers != "none":
            raise ConfigError(
                "algorithm.co_layers: there are no sites of the other modality to learn from",
                remedy='set algorithm.co_layers = "none", or add sites with images and with texts',
            )
        for kind in self.kinds:
            if self.sampled_count(kind) < self.least:
                raise ConfigError(
                    f"algorithm.participation: {self.sampled_count(kind)} of {len(self.group(kind))} "
                    f"{kind} sites train in a round, but a sum needs {self.least}",
                    remedy="raise it, add sites, or lower protection.colluders, protection.min_cohort or "
                    "protection.threshold",
                )

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """All sites."""
        return tuple(self.kind_of)

    @cached_property
    def shapes(self) -> Mapping[Kind, Mapping[str, tuple[int, ...]]]:
        """Of the parameters of each group's model."""
        return {kind: transfer_transformer.shapes(kind, self.facts, self.model) for kind in KINDS}

    def network(self, kind: Kind, parameters: State, device: torch.device) -> Classifier | PairEncoder:
        """A group's network with these parameters."""
        with torch.device("meta"):  # draws nothing that is about to be overwritten
            made = transfer_transformer.build(kind, self.facts, self.model)
        made.to_empty(device=device)
        write_parameters(made, parameters)
        return made

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The groups that have sites."""
        return tuple(kind for kind in KINDS if self.group(kind))

    def group(self, kind: Kind) -> tuple[SiteId, ...]:
        """All sites of a group."""
        return tuple(site for site, held in self.kind_of.items() if held == kind)

    @cached_property
    def least(self) -> int:
        """The smallest cohort that a sum is planned for."""
        return self.least_sites(self.options.min_group)

    def sampled_count(self, kind: Kind) -> int:
        """How many sites of a group train in a round."""
        return math.floor(self.options.share_of(kind) * len(self.group(kind)) + 1e-9)

    def sampled(self, kind: Kind, round_number: int) -> tuple[SiteId, ...]:
        """Which sites of a group train in a round, drawn without replacement."""
        group, count = self.group(kind), self.sampled_count(kind)
        if count == len(group):
            return group
        order = numpy_generator(self.seed, "fedcola sites", kind, round_number).permutation(len(group))
        return tuple(group[pick] for pick in sorted(order[:count]))

    def members(self, stage: FedColaStage, round_number: int) -> tuple[SiteId, ...]:
        """The sites that are asked for one exchange."""
        if stage.step == "score":
            return self.group(stage.of)
        if stage.step == "shared" and stage.of == "pairs":
            return tuple(site for kind in self.kinds for site in self.sampled(kind, round_number))
        own = self.sampled(stage.of, round_number)  # of an absent group nobody
        return own if stage.step == "own" else (*own, *self.sampled("pairs", round_number))

    def contributors(self, stage: FedColaStage, round_number: int) -> Parts:
        """Each group that shares layers, or representations: they come from broadcasts of its own."""
        members = self.members(stage, round_number)
        return parts_by_kind(self.kind_of, members, self.fewest_sites(self.options.min_group))

    def builds_on(self, stage: FedColaStage, round_number: int) -> tuple[str, ...]:
        """Shared layers, or representations, are those of the models that a site trained before."""
        if stage.step != "shared":
            return ()
        stages = self.round_stages(round_number)
        return tuple(one.exchange.name for one in stages if one.step == "own")

    def learning_rate(self, round_number: int) -> float:
        """The step size of one round."""
        return self.options.learning_rate * self.options.learning_rate_decay ** (round_number - 1)

    def sends_all(self, stage: FedColaStage, round_number: int) -> bool:
        """Whether sites get the models of all groups, to compare them with what the study begins with."""
        return self.starts and round_number == 1 and stage.step == "own"

    def received(self, stage: FedColaStage, round_number: int, broadcast: State) -> tuple[State, State]:
        """The model of a group in a broadcast for its training, and the other modality's layers."""
        if not self.sends_all(stage, round_number):
            return part_of(broadcast, MODEL), part_of(broadcast, OTHER)
        other: Modality = "text" if stage.of == "image" else "image"
        layers = () if stage.of == "pairs" else self.co_layers
        return part_of(broadcast, f"{MODEL}{stage.of}/"), {
            name: broadcast[f"{MODEL}{other}/{other}.{name}"] for name in layers
        }

    @property
    def weighted(self) -> bool:
        """Whether sites count by their records, so that a weight is part of every sum."""
        return self.options.weighting == "records"

    def trained(self, kind: Kind) -> tuple[str, ...]:
        """Names of the parameters of a group's model that training changes."""
        frozen = () if self.options.train_tokens else (_TOKENS,)
        return tuple(name for name in self.shapes[kind] if not name.startswith(frozen))

    def own(self, kind: Kind) -> tuple[str, ...]:
        """Names of the parameters that a group sums by itself."""
        return tuple(name for name in self.trained(kind) if not self.shares(name))

    def shares(self, name: str) -> bool:
        """Whether a parameter is summed over all sites with its modality."""
        return self.options.shares_attention and is_shared(name, self.options.shared_layers)

    def attention(self, modality: Modality) -> tuple[str, ...]:
        """Names of a modality's attention layers (or others), in the models of both groups that hold it."""
        names = self.shapes["pairs"]
        return tuple(name for name in names if self.shares(name) and name.startswith(f"{modality}."))

    def shared_sum(self, name: str) -> tuple[str, str] | None:
        """In which exchange a parameter is summed over all sites with its modality, and as which; or None."""
        if not self.shares(name):
            return None
        modality, inner = name.split(".", 1)
        return ("attention-all", inner) if self.options.shares_all else (f"attention-{modality}", name)

    @property
    def co_layers(self) -> tuple[str, ...]:
        """Names, without the tower, of the weights that sites of the other modality learn from."""
        layers = self.options.co_layers
        return () if layers == "none" else gated_weights(self.model.depth, layers)

    @cached_property
    def training(self) -> tuple[FedColaStage, ...]:
        """The sums of one round of training."""
        stages = []
        for kind in self.kinds:
            fields = self._updates(self.shapes[kind], self.own(kind))
            if self.sums_losses(drawn=self.sampled_count(kind) < len(self.group(kind))):
                fields.append(Field("loss", (), LOSS_BOUND, 64))
            stages.append(FedColaStage("own", self.exchange(f"own-{kind}", kind, fields), kind))
        if self.options.shares_all:
            shapes = {
                name.removeprefix("image."): self.shapes["pairs"][name] for name in self.attention("image")
            }
            exchange = self.exchange("attention-all", "image+text+pairs", self._updates(shapes, shapes))
            stages.append(FedColaStage("shared", exchange, "pairs"))
        elif self.options.shares_attention:
            for modality in MODALITIES:
                fields = self._updates(self.shapes["pairs"], self.attention(modality))
                exchange = self.exchange(f"attention-{modality}", f"{modality}+pairs", fields)
                stages.append(FedColaStage("shared", exchange, modality))
        return tuple(stages)

    @cached_property
    def scoring(self) -> tuple[FedColaStage, ...]:
        """The sums that measure the models of all groups."""
        return tuple(
            FedColaStage(
                "score", self.exchange(f"score-{kind}", f"all-{kind}", transfer_scores.fields(kind)), kind
            )
            for kind in self.kinds
        )

    def round_stages(self, round_number: int) -> Sequence[FedColaStage]:
        """Training, and scoring where the study measures."""
        if round_number > self.rounds:
            return self.scoring if self.scores else ()
        every = self.scores and self.options.evaluate == "every" and round_number < self.rounds
        if self.starts and round_number == 1:
            every = False  # a site's first broadcast is compared with the file, so it must be before training
        return (*self.training, *(self.scoring if every else ()))

    def _updates(self, shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]) -> list[Field]:
        fields = self.updates(shapes, tuple(names))
        if self.weighted:
            fields.append(Field("weight", (), 1.0, 64))
        return fields
