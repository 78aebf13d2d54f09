"""The dual encoder of a study: the built-in one, or what a user's ``[model]`` makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from secfed.algorithms.data.image_text.base import ImageTextData
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.setting import StudySettings
from secfed.algorithms.models import dual_encoder
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.config.plugins import make
from secfed.config.schema import OwnOptions
from secfed.errors import ConfigError
from secfed.wire.layout import State


class StudyEncoders:
    """Networks of one study, whose model is ``vision-language`` or a user's own."""

    def __init__(
        self,
        study: StudySettings,
        data: ImageTextData,
        branch: Callable[[DualEncoder], nn.Module | None] = lambda _: None,
    ) -> None:
        self._study, self._data, self._branch = study, data, branch

    @cached_property
    def shapes(self) -> DualEncoder:
        """A model for names and shapes; the built-in one is without storage."""
        model = self._study.model
        if isinstance(model, VisionLanguageOptions):
            with torch.device("meta"):
                return self._branched(dual_encoder.shapes_only(self._data, model))
        return self._branched(self._own())

    @cached_property
    def initial(self) -> State:
        """The initial model: the study's seed, or local weights."""
        study = self._study
        with seeded(study.seed, "initial model"):
            if isinstance(study.model, VisionLanguageOptions):
                built = dual_encoder.build(self._data, study.model, study.folder)
                return read_parameters(self._branched(built))
            return read_parameters(self._branched(self._own()))

    def network(self, device: torch.device, parameters: State | None = None) -> DualEncoder:
        """A network in evaluation mode; without parameters, to write them into."""
        model = self._study.model
        with seeded(0):
            if isinstance(model, VisionLanguageOptions):
                without = model.model_copy(update={"image_weights": None, "text_weights": None})
                made = dual_encoder.build(self._data, without)
            else:
                made = self._own()
            made = self._branched(made)
        if parameters is not None:
            write_parameters(made, parameters)
        made.eval()
        return made.to(device)

    def _branched(self, made: DualEncoder) -> DualEncoder:
        """With what the algorithm adds to it, drawn after everything else."""
        branch = self._branch(made)
        if branch is not None:
            made.branch = branch
        return made

    def _own(self) -> DualEncoder:
        """A user's own: ``factory(image_shape, (text_length, vocabulary), **options)``."""
        model, text = cast("OwnOptions", self._study.model), (self._data.text_length, self._data.vocabulary)
        made: Any = make(model.name, "model.name", self._data.image_shape, text, **model.arguments)
        needed = ("encode", "align", "objective", "encoder_names", "align_names")
        if not isinstance(made, nn.Module) or any(not hasattr(made, name) for name in needed):
            raise ConfigError(
                f"model.name: {model.name!r} does not give a dual encoder",
                remedy="return a torch.nn.Module with " + ", ".join(needed) + "; see "
                "secfed.algorithms.models.dual_encoder",
            )
        return cast("DualEncoder", made)
