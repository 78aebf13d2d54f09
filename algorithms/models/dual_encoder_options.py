"""The ``[model]`` table of vision-language pre-training, and the sizes of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from secfed.algorithms.models.alignment import Pool
from secfed.algorithms.options import Options

SizeName = Literal["tiny", "small", "paper"]


class VisionLanguageOptions(Options):
    """Options of ``vision-language``."""

    size: SizeName = Field(
        default="tiny",
        description='"tiny" (0.3 million parameters), "small" (3 million) or "paper" (ViT-B/16 and six '
        "layers of BERT, 169 million)",
    )
    objective: Literal["convirt", "gloria", "mgca"] = Field(
        default="convirt", description='"convirt", "gloria" or "mgca"'
    )
    temperature: float = Field(
        default=0.07, gt=0, description="what similarities are divided by, above 0; usual are 0.05 to 0.2"
    )
    pool: Pool | None = Field(
        default=None,
        description='"mean" or "cls": what becomes the embedding, the mean of the tokens or the first; '
        'without it "cls" for size "paper" and "mean" for the others',
    )
    prototypes: int = Field(
        default=500,
        ge=2,
        description='how many prototypes "mgca" has, at least 2; fewer than a batch is usual on a CPU',
    )
    image_weights: str | None = Field(
        default=None,
        description="a local file with a state dict of timm's ViT (.safetensors or PyTorch), or a folder "
        "with one; nothing is downloaded",
    )
    text_weights: str | None = Field(
        default=None,
        description="a local Hugging Face folder of a BERT, or its weight file; nothing is downloaded",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="true or false: compute activations again instead of keeping them, for less memory",
    )


@dataclass(frozen=True)
class Size:
    """Dimensions of one size of the model.

    Attributes:
        patch: pixels of a patch's side.
        image_width: d_v.
        image_depth: blocks of the image encoder.
        image_heads: attention heads of each, and of the image's alignment block.
        text_width: d_t.
        text_depth: layers of the text encoder.
        text_heads: attention heads of each, and of the text's alignment block.
        text_hidden: feed-forward width of the text encoder.
        head_hidden: hidden width of the projection heads; 0 for linear heads.
        embedding: d_e.
        pool: how tokens are pooled unless the study says otherwise.
    """

    patch: int
    image_width: int
    image_depth: int
    image_heads: int
    text_width: int
    text_depth: int
    text_heads: int
    text_hidden: int
    head_hidden: int
    embedding: int
    pool: Pool


SIZES: Final[Mapping[SizeName, Size]] = {
    "tiny": Size(8, 64, 2, 4, 64, 2, 4, 128, 0, 64, "mean"),
    "small": Size(8, 192, 4, 3, 128, 2, 4, 512, 512, 128, "mean"),
    "paper": Size(16, 768, 12, 12, 768, 6, 12, 3072, 2048, 128, "cls"),
}
