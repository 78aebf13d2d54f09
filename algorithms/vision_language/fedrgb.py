"""FedRGB, written against sums: a teacher guides local training, and is itself trained to be robust.

The teacher is an alignment module, of the same kind as the one that every site trains for itself.

    warm-up   everything trains, plain federated averaging; gives the first teacher       (first rounds only)
    encoder   encoders and a local aligner train, drawn to the teacher      updates of the encoders
    weights   every site sums what its robust weight is made from           (with rho > 0)
    teacher   the teacher trains against a locally distorted encoder        updates of the teacher

The model is the averaged encoders with the teacher. The local aligner never leaves its site (see
:mod:`secfed.algorithms.vision_language.fedrgb_site`). Parameters of the aligner that the teacher's losses do
not reach (prototypes, heads for patches and words) are averaged with the encoders, or, without
``average_parts``, trained locally from where the warm-up left them.

Source: FedRGB (earlier form of FedDRA). What is different from it: the paper's server sees every site's
encoder, aligner and teacher, its loss and its weight, and sends all weights to all sites. Equation (2) has
alpha before the objective; here it is ``guidance`` before the distance, as the text reads. Distances are
means over pairs, where the paper's are sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import torch

from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.vision_language.base import NOISED, VlpAlgorithm
from secfed.algorithms.vision_language.fedrgb_site import ENCODER, TEACHER, FedRgbOptions, FedRgbSite
from secfed.algorithms.vision_language.plan import JOINT, Stage
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange

WARM_UP: Final = "warm-up"


@register("fedrgb", options=FedRgbOptions)
class FedRgb(VlpAlgorithm):
    """FedRGB, bound to one study."""

    site_program = FedRgbSite
    noised_fields = NOISED
    options: FedRgbOptions

    def __init__(self, setting: Setting, options: FedRgbOptions) -> None:
        super().__init__(setting, options)
        if options.warmup_rounds >= setting.study.rounds:
            raise ConfigError(
                f"algorithm.warmup_rounds: {options.warmup_rounds} of {setting.study.rounds} rounds leave "
                "none with a teacher",
                remedy="raise study.rounds, which counts them, or lower algorithm.warmup_rounds",
            )
        if not hasattr(self.shapes.objective, "temperature"):
            raise ConfigError(
                "model.name: fedrgb contrasts embeddings at the temperature of the model's objective, and "
                "yours has none",
                remedy="give the objective an attribute temperature",
            )

    @cached_property
    def teacher_names(self) -> tuple[str, ...]:
        """Parameters of the aligner that whole-image and whole-report embeddings depend on."""
        network, names = self.shapes, self.align_names
        device = next(network.parameters()).device
        images = torch.zeros(2, *self.data.image_shape, device=device)
        tokens = torch.ones(2, self.data.text_length, dtype=torch.int64, device=device)
        with torch.enable_grad():
            whole = network(images, tokens).pair
            parameters = dict(network.named_parameters())
            gradients = torch.autograd.grad(
                whole[0].sum() + whole[1].sum(), [parameters[name] for name in names], allow_unused=True
            )
        return tuple(name for name, one in zip(names, gradients, strict=True) if one is not None)

    @property
    def part_names(self) -> tuple[str, ...]:
        """All other parameters of the aligner, and of the objective, that train."""
        rest = set(self.align_names) - set(self.teacher_names)
        return tuple(name for name in self.names if name in rest)

    def round_stages(self, round_number: int) -> Sequence[Stage]:
        """Warm-up, or encoders, weights and teacher; see the module."""
        options = self.options
        if round_number <= options.warmup_rounds:
            return (self._everything(round_number, WARM_UP, options.warmup_steps),)
        if options.teacher == "averaged":
            return (self._everything(round_number, ENCODER, options.guided_steps),)
        encoder = self.training_stage(
            round_number,
            ENCODER,
            summed=(*self.encoder_names, *(self.part_names if options.average_parts else ())),
            trained=self.names,
            steps=options.guided_steps,
            reports_loss=True,
        )
        teacher = self.training_stage(
            round_number,
            TEACHER,
            summed=self.teacher_names,
            trained=(*self.encoder_names, *self.teacher_names),
            steps=options.teacher_steps,
            weighted=True,
        )
        return (encoder, teacher) if self.rule is None else (encoder, self.weights_stage(), teacher)

    def builds_on(self, round_number: int, exchange: Exchange) -> tuple[str, ...]:
        """Weights and teacher use the aligner that a site trained with its encoders."""
        _, *later = (stage.exchange.name for stage in self.round_stages(round_number))
        return (ENCODER,) if exchange.name in later else ()

    def _everything(self, round_number: int, exchange: str, steps: int) -> Stage:
        """Federated averaging's stage, under its name, so that it trains on the same batches."""
        return self.training_stage(
            round_number, JOINT, summed=self.names, steps=steps, exchange=exchange, reports_loss=True
        )
