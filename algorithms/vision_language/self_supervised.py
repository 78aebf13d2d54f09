"""FedMAE, FedX and FedU beside the contrast of pairs, as FedDRA's and FedRGB's papers compare with them.

All were made for images alone; here each adds its loss of images to the objective of pairs, with strength
``image_loss``, and everything is averaged by sums. They are the nearest forms that sums allow, not copies:

* ``vlp-fedmae`` hides patches and rebuilds them (masked autoencoder); nothing had to change.
* ``vlp-fedx`` pulls two changed views of an image together, and how they relate to other images, in the local
  model and towards the received one. Its relations are to the batch's other records, not to a second batch.
* ``vlp-fedu`` predicts one view's embedding from another's; a site keeps its own predictor where its encoder
  moved farther than ``divergence`` from the received one. The slow target begins anew with every round.

Source: Yan et al., IEEE TMI 2023 (Fed-MAE); Han et al., "FedX", ECCV 2022; Zhuang et al., "Collaborative
Unsupervised Visual Representation Learning from Decentralized Data" (FedU), ICCV 2021.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from pydantic import Field
from torch import nn

from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.registry import register
from secfed.algorithms.losses.contrastive import ntxent
from secfed.algorithms.losses.self_supervised import bootstrap_loss, relation_loss
from secfed.algorithms.losses.vlp import distance
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.encoders import VisionEncoder
from secfed.algorithms.models.image_branches import (
    MaskedDecoder,
    Predictor,
    image_embedding,
    rebuilding_error,
)
from secfed.algorithms.vision_language.averaging import VlpFedAvg, VlpFedAvgOptions
from secfed.algorithms.vision_language.plan import Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, StageLoss, frozen_copy, turned
from secfed.errors import ConfigError
from secfed.wire.layout import State

_BRANCH: Final = "branch."
_IMAGES: Final = ("image_encoder.", "image_align.")


class ImageLossOptions(VlpFedAvgOptions):
    """What options of these methods have in common."""

    image_loss: float = Field(default=1.0, ge=0, description="strength of the loss of images, at least 0")


class ImageLossSite(VlpSite):
    """A site whose objective has a loss of images beside that of pairs; subclasses say which."""

    options: ImageLossOptions

    def loss(self, round_number: int, stage: Stage, received: State) -> StageLoss:
        """The objective plus the loss of images."""
        if not self.options.image_loss:
            return super().loss(round_number, stage, received)
        of_images = self.image_loss()

        def total(model: Any, batch: Batch) -> torch.Tensor:
            pairs: torch.Tensor = model.objective(model(*batch)).total
            return pairs + self.options.image_loss * of_images(model, batch)

        return total

    def image_loss(self) -> StageLoss:
        """The loss of images, of a stage that begins with what :attr:`network` holds."""
        raise NotImplementedError


class VlpMaeOptions(ImageLossOptions):
    """Options of ``vlp-fedmae``."""

    mask_share: float = Field(
        default=0.75, gt=0, lt=1, description="share of patches that are hidden, 0 to 1"
    )


class VlpMaeSite(ImageLossSite):
    """A site that also rebuilds hidden patches."""

    options: VlpMaeOptions

    def image_loss(self) -> StageLoss:
        """The error of hidden patches."""
        share = self.options.mask_share
        return lambda model, batch: rebuilding_error(model, batch[0], share)  # type: ignore[arg-type]


@register("vlp-fedmae", options=VlpMaeOptions)
class VlpMae(VlpFedAvg):
    """FedMAE, bound to one study."""

    site_program = VlpMaeSite

    def branch(self, network: DualEncoder) -> nn.Module:
        """The decoder."""
        encoder = _built_in(network).image_encoder
        if not isinstance(encoder, VisionEncoder):
            message = "model.image_tower: vlp-fedmae hides patches from an encoder that trains"
            raise ConfigError(message, remedy="remove it, or use another algorithm")
        return MaskedDecoder(encoder)


class ViewsOptions(ImageLossOptions):
    """Keys of methods that compare two views of an image."""

    view_strength: float = Field(
        default=1.0, gt=0, le=1, description="how far the two views of an image are changed, above 0 to 1"
    )


class VlpXOptions(ViewsOptions):
    """Options of ``vlp-fedx``."""

    image_temperature: float = Field(default=0.1, gt=0, description="of its similarities of images, above 0")


class VlpXSite(ImageLossSite):
    """A site that distils from its own model and from the received one."""

    options: VlpXOptions

    def image_loss(self) -> StageLoss:
        """Contrast and relations of two views, among themselves and towards the received model."""
        strength, temperature = self.options.view_strength, self.options.image_temperature
        received = frozen_copy(self.network, _image_names(self.network))

        def distilled(model: Any, batch: Batch) -> torch.Tensor:
            images = batch[0]
            views = [turned(images, strength) for _ in range(2)]
            one, other = (image_embedding(model, view) for view in views)
            guesses = [nn.functional.normalize(model.branch(z), dim=1) for z in (one, other)]
            with torch.no_grad():
                own, theirs = (image_embedding(network, images) for network in (model, received))
                seen = image_embedding(received, views[1])
            local = ntxent(one, other, temperature=temperature)
            far = ntxent(guesses[0], seen, temperature=temperature)
            near = relation_loss(one, other, own, temperature=temperature)
            towards = relation_loss(guesses[0], guesses[1], theirs, temperature=temperature)
            return local + far + near + towards

        return distilled


class _Predicting(VlpFedAvg):
    """Methods with a predictor of embeddings."""

    def branch(self, network: DualEncoder) -> nn.Module:
        """The predictor."""
        return Predictor(_built_in(network).image_align.embedding)


@register("vlp-fedx", options=VlpXOptions)
class VlpX(_Predicting):
    """FedX, bound to one study."""

    site_program = VlpXSite


class VlpUOptions(ViewsOptions):
    """Options of ``vlp-fedu``."""

    momentum: float = Field(default=0.99, ge=0, lt=1, description="how slowly the target follows, 0 to 1")
    divergence: float = Field(
        default=0.4, ge=0, description="the distance of image encoders from which a site keeps its predictor"
    )

    @property
    def keeps_state(self) -> bool:
        """Always: its own model."""
        return True


class VlpUSite(ImageLossSite):
    """Runs inside one hospital; keeps its own model at the end of its last round."""

    keeps = "own/"
    options: VlpUOptions

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """Begin with the received model, but perhaps its own predictor; keep the result."""
        start = self._start(received)
        write_parameters(self.network, start)
        loss = self.fit(round_number, stage, self.loss(round_number, stage, start))
        trained = read_parameters(self.network)
        self.keep()
        return {name: trained[name] - received[name] for name in stage.summed}, loss

    def _start(self, received: State) -> State:
        ours, theirs = (
            {name: value for name, value in model.items() if name.startswith(_IMAGES[0])}
            for model in (self.own, received)
        )
        if not ours or distance(ours, theirs) < self.options.divergence:
            return received
        return {name: self.own[name] if name.startswith(_BRANCH) else received[name] for name in received}

    def image_loss(self) -> StageLoss:
        """Each view's embedding in the slow target, predicted from the other's."""
        strength = self.options.view_strength
        target = self._target = frozen_copy(self.network, _image_names(self.network))

        def bootstrapped(model: Any, batch: Batch) -> torch.Tensor:
            views = [turned(batch[0], strength) for _ in range(2)]
            guesses = [model.branch(image_embedding(model, view)) for view in views]
            with torch.no_grad():
                wanted = [image_embedding(target, view) for view in reversed(views)]
            parts = [bootstrap_loss(guess, one) for guess, one in zip(guesses, wanted, strict=True)]
            return torch.stack(parts).mean()

        return bootstrapped

    def prepare_optimiser(self, optimiser: torch.optim.Optimizer) -> None:
        """The target follows after every step; that depends on no record but through the step."""
        if not self.options.image_loss:
            return
        slow, quick = (dict(network.named_parameters()) for network in (self._target, self.network))
        names, share = _image_names(self.network), 1.0 - self.options.momentum

        def follow(*_: Any) -> None:
            with torch.no_grad():
                for name in names:
                    slow[name].lerp_(quick[name].detach(), share)

        optimiser.register_step_post_hook(follow)


@register("vlp-fedu", options=VlpUOptions)
class VlpU(_Predicting):
    """FedU, bound to one study."""

    site_program = VlpUSite


def _built_in(network: nn.Module) -> DualEncoder:
    if not isinstance(network, DualEncoder):
        message = "model.name: losses of images alone are written for the built-in dual encoder"
        raise ConfigError(message, remedy='set model.name = "vision-language"')
    return network


def _image_names(network: nn.Module) -> tuple[str, ...]:
    """Parameters that an image's embedding depends on."""
    return tuple(name for name, _ in network.named_parameters() if name.startswith(_IMAGES))
