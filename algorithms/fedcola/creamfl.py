"""CreamFL as sums allow: each group's models averaged, and its view of public pairs averaged with weights.

After its training a site represents public images, texts or both, which all parties make from the study
file. The representation x_k of pair k counts by its contrast to common representations T of the other
modality, exp(x_k . T_k) / sum_j exp(x_k . T_j). Numerator and denominator of the weighted mean over sites are
sums, so the method's softmax over sites comes out exactly, and nobody sees a site's representations. In the
next round sites with pairs are pulled to the means: ``distillation`` times the mean squared error of a batch.

As in FedCola's paper, models are averaged instead of trained on records of the server. Three things differ:
sites distil instead of the server, because hospitals replay the server under encrypted sums and could not if
it trained; T are the means of the round before (all sites count the same in round 1), not what the server's
model makes of the pairs; and the contrast of local training is left out, which that paper multiplies by 1e-7.

Security: how a site's representations differ from the received model's is a function of its update. Over
changing samples of sites (``participation``) both tell, in the long run, what of them stays the same.

Source: Yu et al., "Multimodal Federated Learning via Contrastive Representation Ensemble", ICLR 2023, arXiv
2302.08888; settings: Sun et al., ECCV 2024, arXiv 2404.12467, appendix B.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import torch
from pydantic import Field as OptionField

from secfed.algorithms.data.transfer.base import Kind, PublicPairs, Samples, TransferSite
from secfed.algorithms.fedcola.algorithm import FedCola
from secfed.algorithms.fedcola.options import FedColaOptions
from secfed.algorithms.fedcola.plan import MODALITIES, OTHER, FedColaPlan, FedColaStage
from secfed.algorithms.fedcola.server import FedColaServer
from secfed.algorithms.fedcola.site import FedColaSite
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.server_state import copies, model_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.metrics.transfer_scores import outputs, required
from secfed.algorithms.models.transfer_options import Modality
from secfed.algorithms.models.transfer_transformer import Classifier, PairEncoder
from secfed.dp.training.losses import Batch, DeclaredLoss
from secfed.dp.training.step import onto
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, Field, State
from secfed.wire.parts import all_finite

_PUBLIC: Final = "public/"
_MEAN: Final = "public/representation"  # each times its weight
_WEIGHT: Final = "public/contrast"
_LARGEST: Final = 8.0  # above e^2: a product of two vectors no longer than 1 lies between -1 and 1
_ROWS: Final = 256  # whose products are in memory at a time
_ANOTHER: Final[Mapping[Modality, Modality]] = {"image": "text", "text": "image"}


class CreamFLOptions(FedColaOptions):
    """Options of ``creamfl``."""

    aggregation: Literal["fedavg"] = OptionField(default="fedavg", description='"fedavg", and nothing else')
    co_layers: Literal["none"] = OptionField(default="none", description='"none", and nothing else')
    weighting: Literal["equal"] = OptionField(default="equal", description='"equal", and nothing else')
    public_pairs: int = OptionField(
        default=200, ge=2, le=10_000, description="pairs that everybody makes, 2 to 10,000"
    )
    distillation: float = OptionField(
        default=1.0, ge=0, description="what multiplies the mean squared error on public pairs, at least 0"
    )


@dataclass(frozen=True, kw_only=True)
class CreamFLPlan(FedColaPlan):
    """FedCola's plan without shared layers, and a sum of representations for each modality."""

    options: CreamFLOptions

    @cached_property
    def training(self) -> tuple[FedColaStage, ...]:
        """The groups' own sums, and those over public pairs."""
        pairs, width, bits = self.options.public_pairs, self.model.width, self.protection.bits
        fields = [Field(_MEAN, (pairs, width), _LARGEST, bits), Field(_WEIGHT, (pairs,), _LARGEST, bits)]
        return (
            *super().training,
            *(
                FedColaStage("shared", self.exchange(f"public-{one}", f"{one}+pairs", fields), one)
                for one in MODALITIES
            ),
        )


@register("creamfl", options=CreamFLOptions)
class CreamFL(FedCola):
    """CreamFL as sums allow, bound to one study."""

    private_units = ()
    plan_type = CreamFLPlan
    plan: CreamFLPlan

    def __init__(self, setting: Setting, options: CreamFLOptions) -> None:
        super().__init__(setting, options)
        if not isinstance(self.data, PublicPairs):
            message = "data.name: creamfl needs pairs that every party may have, which "
            raise ConfigError(f"{message}{setting.study.data.name} does not give", remedy="use scenes")
        self.public = self.data.public_pairs(options.public_pairs)

    def broadcast_shapes(self, round_number: int, stage: FedColaStage) -> dict[str, tuple[int, ...]]:
        """FedCola's, and the common representations that a stage needs."""
        shape = (self.plan.options.public_pairs, self.plan.model.width)
        common = {OTHER + one: shape for one in needed(stage)}
        return {**super().broadcast_shapes(round_number, stage), **common}

    def field_words(self) -> Mapping[str, str]:
        """Beside FedCola's, what models make of public pairs."""
        return {**super().field_words(), "public": "representations of public pairs"}

    def server(self) -> CreamFLServer:
        """A fresh server program."""
        return CreamFLServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> CreamFLSite:
        """One site's program, bound to that site's records."""
        return CreamFLSite(self.setting, self.plan, site_id, self.site_data(site_id), self.public)


def needed(stage: FedColaStage) -> tuple[Modality, ...]:
    """Of which modalities a stage needs common representations."""
    if stage.step == "shared" and stage.of != "pairs":
        return (_ANOTHER[stage.of],)
    return MODALITIES if stage.step == "own" and stage.of == "pairs" else ()


def contrast(own: torch.Tensor, common: torch.Tensor) -> torch.Tensor:
    """[n] exp(x_k . t_k) over the mean of exp(x_k . t_j), below ``_LARGEST`` whatever ``common`` holds."""
    common = common / common.norm(dim=1, keepdim=True).clamp_min(1.0)  # an honest mean is never longer
    products = ((rows @ common.T).logsumexp(dim=1) for rows in torch.split(own, _ROWS))
    return ((own * common).sum(dim=1) - torch.cat(list(products))).exp() * len(own)


class CreamFLServer(FedColaServer):
    """Averages models, and representations of public pairs."""

    def __init__(self, plan: CreamFLPlan, initial: Mapping[Kind, State]) -> None:
        super().__init__(plan, initial)
        # Zeros tell nothing apart: in round 1 all sites count the same.
        self._common: dict[str, torch.Tensor] = {
            one: torch.zeros(plan.options.public_pairs, plan.model.width) for one in MODALITIES
        }

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """FedCola's, and the common representations that an exchange needs."""
        stage = self._plan.stage(round_number, exchange)
        common = {OTHER + one: self._common[one] for one in needed(stage)}
        return {**super().broadcast(round_number, exchange), **common}

    def move(self) -> None:
        """Move the models, and the common representations to the weighted means over sites."""
        super().move()
        for one in MODALITIES:
            totals = self._pending.get(f"public-{one}")
            if totals is not None:
                weight = totals[_WEIGHT][:, None]
                mean = (totals[_MEAN] / weight).to(torch.float32)
                self._common[one] = torch.where(weight > 0, mean, self._common[one])

    def save(self) -> State:
        """FedCola's state and the common representations."""
        return {**super().save(), **{_PUBLIC + one: value for one, value in copies(self._common).items()}}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._common = model_of(state, self._common, _PUBLIC)


class CreamFLSite(FedColaSite):
    """Represents public pairs after its training; with pairs of its own it is pulled to the means."""

    def __init__(
        self, setting: Setting, plan: CreamFLPlan, site_id: SiteId, data: TransferSite, public: Samples
    ) -> None:
        super().__init__(setting, plan, site_id, data)
        self._public, self._distillation = public, plan.options.distillation
        self._width = plan.model.width
        self._common: State = {}  # what training is pulled to

    def _left_shapes(self) -> Mapping[str, tuple[int, ...]]:
        shape = (len(self._public), self._width)
        return {one: shape for one in MODALITIES if self._kind in (one, "pairs")}

    def _kept(self, network: Classifier | PairEncoder, update: State) -> State:
        del update
        network.eval()
        records = {"image": self._public.images, "text": self._public.tokens}
        encoders = (
            {"image": network.encode_images, "text": network.encode_texts}
            if isinstance(network, PairEncoder)
            else {network.kind: network.encode}
        )
        found = {one: outputs(encode, records[one], self._device) for one, encode in encoders.items()}
        finite = torch.stack([torch.isfinite(value).all() for value in found.values()])
        if all_finite(finite, "representations of public pairs"):
            return found
        return {one: torch.zeros_like(value) for one, value in found.items()}

    def _shared(self, stage: FedColaStage, left: State, broadcast: State) -> State:
        del self
        (other,) = needed(stage)
        # Zeros, of a training that failed, weigh 1: in round 1 all do, and a smaller total would tell of it.
        weight = contrast(left[stage.of], broadcast[OTHER + other])
        return {_MEAN: weight[:, None] * left[stage.of], _WEIGHT: weight}

    def _train(self, round_number: int, received: State, other: State) -> tuple[State, State, float]:
        self._common = other if round_number > 1 else {}
        return super()._train(round_number, received, other)

    def _rows(self, rows: torch.Tensor) -> Batch:
        own = super()._rows(rows)
        if not self._common:
            return own
        drawn = torch.randperm(len(self._public))[: len(rows)]  # from the seed of this training
        images, tokens = required(self._public.images), required(self._public.tokens)
        parts = (images, tokens, *(self._common[one] for one in MODALITIES))
        return (*own, *onto(self._device, tuple(part[drawn] for part in parts)))

    def _loss(self) -> DeclaredLoss:
        of_own, distillation = super()._loss(), self._distillation
        if not self._common:
            return of_own

        def of(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
            images, texts, *public = batch
            represented = network(*public[:2])
            pairs = zip(represented, public[2:], strict=True)
            apart = sum(torch.nn.functional.mse_loss(one, mean) for one, mean in pairs)
            return of_own(network, (images, texts)) + distillation * apart

        return DeclaredLoss("contrast of images and captions, and distillation", False, of)
