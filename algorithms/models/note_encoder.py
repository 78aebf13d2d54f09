"""``note-encoder``: a small BERT of Hugging Face, and a linear layer on the mean over a text's words.

It starts at random, or from published weights that lie in a folder: :func:`write_start` makes of them the
file that ``model.start`` names, whose digest binds every hospital to it. Nothing is downloaded::

    sizes = {"width": 384, "depth": 6, "heads": 12, "hidden": 1536, "vocabulary": 30522}
    options = NoteEncoderOptions(name="note-encoder", **sizes)
    write_start(note_encoder((128,), 5, options), Path("minilm/model"), Path("start.safetensors"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from pydantic import Field, model_validator
from safetensors.torch import save_file
from torch import nn

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.models.dual_encoder_options import Size
from secfed.algorithms.models.encoders import TextEncoder
from secfed.algorithms.models.local_weights import load_text_weights
from secfed.config.schema import ModelOptions
from secfed.errors import ConfigError

_PADDING, _UNKNOWN = 0, 2  # as secfed.algorithms.data.tokens has them


class NoteEncoderOptions(ModelOptions):
    """Options of ``note-encoder``."""

    vocabulary: int = Field(default=8195, ge=3, description="ids are below this, as data.buckets + 3 is")
    width: int = Field(default=64, ge=1, description="the width of a word's vector")
    depth: int = Field(default=1, ge=1, description="layers, at least 1")
    heads: int = Field(default=4, ge=1, description="attention heads, which divide the width")
    hidden: int = Field(default=128, ge=1, description="the width inside a layer")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ConfigError("model.heads: does not divide model.width", remedy="choose a divisor of it")
        return self


class NoteEncoder(nn.Module):
    """Rows of token ids, [n, length] whole numbers in any type, to scores [n, classes]."""

    def __init__(self, length: int, classes: int, options: NoteEncoderOptions) -> None:
        super().__init__()
        sizes = (options.width, options.depth, options.heads, options.hidden)
        self.vocabulary = options.vocabulary
        self.text = TextEncoder(length, options.vocabulary, Size(1, 1, 1, 1, *sizes, 0, 1, "mean"))
        self.head = nn.Linear(options.width, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores; an id that the vocabulary does not have is the unknown word."""
        tokens = inputs.round().long()
        tokens = torch.where((tokens >= 0) & (tokens < self.vocabulary), tokens, _UNKNOWN)
        words = tokens != _PADDING
        words[:, 0] = True  # of an empty text, too: a mean of nothing is none
        vectors = self.text(tokens, words)
        share = (words / words.sum(dim=1, keepdim=True)).to(vectors.dtype)
        scores: torch.Tensor = self.head((vectors * share[..., None]).sum(dim=1))
        return scores


def note_encoder(input_shape: tuple[int, ...], classes: int, options: NoteEncoderOptions) -> nn.Module:
    """The model of a study whose records are rows of token ids."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"model.name: note-encoder needs rows of token ids, but the records have shape {input_shape}",
            remedy='use data.name = "notes", or another model',
        )
    return NoteEncoder(input_shape[0], classes, options)


def write_start(model: nn.Module, weights: Path, path: Path) -> None:
    """Write the file for ``model.start``: the model with its encoder from a Hugging Face BERT's weights."""
    if not isinstance(model, NoteEncoder):
        raise ConfigError("model.name: is no note-encoder", remedy="make it with note_encoder")
    load_text_weights(model.text, weights)
    save_file(read_parameters(model), path)
