"""The model of vision-language pre-training: an image encoder, a text encoder and an alignment module each.

    image  -> image_encoder -> patch features -> image_align -> embedding, norm 1
    report -> text_encoder  -> token features -> text_align  -> embedding, norm 1      -> objective

``encode`` ends before the alignment modules, ``align`` starts there: federated methods train and send the
two parts separately. There is no dropout and no batch normalisation: a record's embedding does not depend
on the other records of its batch, nor on a random stream.

Source: "FedDRA" (federated vision-language pre-training with distributionally robust client weights),
backbones and alignment modules; Zhang et al., ConVIRT, 2022.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from secfed.algorithms.data.image_text.base import ImageTextData
from secfed.algorithms.losses.features import Aligned, Features
from secfed.algorithms.losses.image_text import make_objective
from secfed.algorithms.models.adapters import add_adapters
from secfed.algorithms.models.dual_encoder_options import SIZES, VisionLanguageOptions
from secfed.algorithms.models.encoders import Alignment, TextEncoder, VisionEncoder
from secfed.algorithms.models.towers import TowerEncoder, image_tower, text_tower

_ENCODER = ("image_encoder.", "text_encoder.")


class DualEncoder(nn.Module):
    """Two encoders, two alignment modules and the objective, which maps ``Aligned`` to ``ObjectiveValue``.

    ``text_length`` includes padding, token ids are below ``vocabulary``, and those in ``continuations``
    continue the word before them.
    """

    objective: nn.Module
    branch: Any  # what a self-supervised baseline adds; see secfed.algorithms.models.image_branches

    def __init__(
        self,
        options: VisionLanguageOptions,
        image_shape: tuple[int, int, int],
        text_length: int,
        vocabulary: int,
        *,
        continuations: Iterable[int] = (),
    ) -> None:
        super().__init__()
        size, again = SIZES[options.size], options.gradient_checkpointing
        pool, parts = options.pool or size.pool, options.objective != "convirt"
        self.image_encoder: nn.Module = (
            image_tower(options.image_tower, size.image_width, size.image_heads)
            if options.image_tower
            else VisionEncoder(image_shape, size, checkpointing=again)
        )
        self.text_encoder: nn.Module = (
            text_tower(options.text_tower, vocabulary, size.text_width, size.text_heads)
            if options.text_tower
            else TextEncoder(text_length, vocabulary, size, checkpointing=again)
        )
        self.image_align, self.text_align = (
            Alignment(width, heads, size, pool=pool, parts=parts)
            for width, heads in ((size.image_width, size.image_heads), (size.text_width, size.text_heads))
        )
        self.objective = make_objective(
            options.objective,
            temperature=options.temperature,
            embedding=size.embedding,
            prototypes=options.prototypes,
            continuations=continuations,
            **options.objective_arguments,
        )
        self._weigh_parts = options.objective == "mgca"
        self._frozen_rounds = options.mgca_frozen_rounds if options.objective == "mgca" else 0

    @property
    def encoder_names(self) -> tuple[str, ...]:
        """Parameters of both encoders."""
        return tuple(name for name, _ in self.named_parameters() if name.startswith(_ENCODER))

    @property
    def align_names(self) -> tuple[str, ...]:
        """Parameters of alignment modules and objective."""
        return tuple(name for name, _ in self.named_parameters() if not name.startswith(_ENCODER))

    def frozen_names(self, round_number: int) -> tuple[str, ...]:
        """Parameters that nobody trains or sums in a round: MGCA's prototypes in the first ones.

        The published training holds them for its first epoch, until the embeddings that they are to divide
        have some shape; with federated sites a round takes its place.
        """
        if round_number > self._frozen_rounds:
            return ()
        return tuple(name for name in self.align_names if name.startswith("objective."))

    def encode(self, images: torch.Tensor, tokens: torch.Tensor) -> Features:
        """Features before alignment, of [B, channels, size, size] images and [B, L] tokens; 0 is padding."""
        words = tokens != 0
        return Features(self.image_encoder(images), self.text_encoder(tokens, words), words)

    def describe(self, images: torch.Tensor, tokens: torch.Tensor) -> Features:
        """As :meth:`encode`, but of a tower the features that its package gives, before layers that train."""
        words = tokens != 0
        image, text = (
            one.untrained if isinstance(one, TowerEncoder) else one
            for one in (self.image_encoder, self.text_encoder)
        )
        return Features(image(images), text(tokens, words), words)

    def align(self, features: Features, tokens: torch.Tensor | None = None) -> Aligned:
        """Embeddings of features.

        ``tokens``, [B, L] int64, are for objectives that merge parts of a word. With "convirt" patches and
        words have no embeddings: P and L - 1 are then 0. Attention weights are there with "mgca".
        """
        image, patches = self.image_align(features.image)
        text, words = self.text_align(features.text, features.words)
        patch_weights = word_weights = None
        if self._weigh_parts:
            patch_weights = self.image_align.attention_of_first(features.image)
            word_weights = self.text_align.attention_of_first(features.text, features.words)
        is_word = features.words[:, 1 : 1 + words.shape[1]]
        return Aligned(image, text, patches, words, is_word, patch_weights, word_weights, tokens)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> Aligned:
        """Embeddings of pairs."""
        return self.align(self.encode(images, tokens), tokens)


def build(data: ImageTextData, options: VisionLanguageOptions, folder: Path | None = None) -> DualEncoder:
    """The initial model: random from torch's global generator, or local weights relative to ``folder``."""
    model = _of(data, options)
    if options.image_weights is not None or options.text_weights is not None:
        from secfed.algorithms.models.local_weights import load_image_weights, load_text_weights

        base = folder or Path()
        if options.image_weights is not None:
            load_image_weights(cast(VisionEncoder, model.image_encoder), base / options.image_weights)
        if options.text_weights is not None:
            load_text_weights(cast(TextEncoder, model.text_encoder), base / options.text_weights)
    return _adapted(model, options)


def shapes_only(data: ImageTextData, options: VisionLanguageOptions) -> DualEncoder:
    """A model without storage, for names and shapes; reads no weights."""
    with torch.device("meta"):
        return _adapted(_of(data, options), options)


def _adapted(model: DualEncoder, options: VisionLanguageOptions) -> DualEncoder:
    """With adapters in the encoders, once their weights are loaded, if the study has them."""
    if options.adapters is not None:
        for encoder in (model.image_encoder, model.text_encoder):
            add_adapters(encoder, ["*"], rank=options.adapter_rank)
    return model


def _of(data: ImageTextData, options: VisionLanguageOptions) -> DualEncoder:
    continuations = getattr(data, "continuations", ())
    texts = data.text_length, data.vocabulary
    return DualEncoder(options, data.image_shape, *texts, continuations=continuations)
