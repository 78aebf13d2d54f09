"""The ``[model]`` table of vision-language pre-training, and the sizes of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from secfed.algorithms.losses.objective import MIN_TEMPERATURE
from secfed.algorithms.models.towers import IMAGE_TOWERS, TEXT_TOWERS
from secfed.config.plugins import is_user_code
from secfed.config.schema import LATER, OPERATIONAL, ModelOptions
from secfed.errors import ConfigError

Pool = Literal["mean", "cls"]
Weight = Annotated[float, Field(ge=0)]
Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE)]
Scale = Annotated[float, Field(gt=0, lt=1e6)]
SizeName = Literal["tiny", "small", "paper"]


class VisionLanguageOptions(ModelOptions):
    """Options of ``vision-language``."""

    code_keys = ("image_tower", "text_tower")

    size: SizeName = Field(
        default="tiny",
        description='"tiny" (0.3 million parameters), "small" (3 million) or "paper" (ViT-B/16 and six '
        "layers of BERT, 169 million)",
    )
    objective: Literal["convirt", "gloria", "mgca"] = Field(
        default="convirt", description='"convirt", "gloria" or "mgca"'
    )
    temperature: float = Field(default=0.07, gt=0, description="a divisor of similarities, often 0.05 to 0.2")
    pool: Pool | None = Field(
        default=None,
        description='"mean" or "cls": what becomes the embedding, the mean of the tokens or the first; '
        'without it "cls" for size "paper" and "mean" for the others',
    )
    prototypes: int = Field(
        default=500, ge=2, description='prototypes of "mgca", at least 2; usually fewer than a batch'
    )
    gloria_weights: tuple[Weight, Weight] = Field(
        default=(1.0, 1.0),
        description="an array of two numbers of at least 0: what GLoRIA's global and local loss count",
    )
    gloria_scale: Scale = Field(default=10.0, description="above 0: what multiplies cosines of whole pairs")
    gloria_t1: Scale = Field(default=4.0, description="GLoRIA's temp1, above 0: how sharply a word attends")
    gloria_t2: Scale = Field(default=5.0, description="GLoRIA's temp2, above 0: what the best words count")
    gloria_t3: Scale = Field(default=10.0, description="GLoRIA's temp3, above 0: what multiplies matches")
    mgca_weights: tuple[Weight, Weight, Weight] = Field(
        default=(1.0, 1.0, 1.0),
        description="an array of three numbers of at least 0: what MGCA's losses of pairs (w1), tokens (w2) "
        "and prototypes (w3) count",
    )
    mgca_local_temperature: Temperature = Field(default=0.1, description="at least 1e-6: MGCA's, of tokens")
    mgca_prototype_temperature: Temperature = Field(default=0.2, description="at least 1e-6: of prototypes")
    mgca_epsilon: Temperature = Field(default=0.05, description="Sinkhorn's epsilon in MGCA, at least 1e-6")
    mgca_sinkhorn_rounds: int = Field(default=3, ge=1, description="rounds of MGCA's balancing, at least 1")
    mgca_frozen_rounds: int = Field(
        default=1, ge=0, description="first rounds that leave MGCA's prototypes alone"
    )
    image_weights: str | None = Field(
        default=None,
        description="a local file with a state dict of timm's ViT (.safetensors or PyTorch), or a folder "
        "with one; nothing is downloaded",
    )
    text_weights: str | None = Field(
        default=None, description="a local folder or file of a Hugging Face BERT"
    )
    image_tower: str | None = Field(
        default=None,
        json_schema_extra=LATER,
        description='"efficientnet-lite0" of a package: a public encoder that stays as it is, with one '
        "trained block on top; images should be [0, 1] less 0.5, by 0.5, of at least 64 pixels a side. Or "
        "package.module:factory of your own, which returns a Tower of any width",
    )
    text_tower: str | None = Field(
        default=None,
        json_schema_extra=LATER,
        description='"minilm-l6-v2" of a package, the same for reports; with data.tokenizer = "folder" and '
        'data.tokenizer_folder = "package:minilm-l6-v2". Or one of your own, as image_tower',
    )
    adapters: Literal["lora"] | None = Field(
        default=None,
        description='"lora": the encoders stay as they are, and low-rank adapters beside their linear layers '
        "train, which are all that is uploaded of them",
    )
    adapter_rank: int = Field(default=4, ge=1, description='the rank of the adapters of "lora", at least 1')
    gradient_checkpointing: bool = Field(
        default=False,
        json_schema_extra=OPERATIONAL,
        description="true or false: compute activations again instead of keeping them, for less memory",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in type(self).model_fields:
            owner = "mgca" if key == "prototypes" else key.partition("_")[0]
            if key in self.model_fields_set and owner in ("gloria", "mgca") and owner != self.objective:
                message = f'model.{key}: has no effect with objective = "{self.objective}"'
                raise ConfigError(message, remedy=f'remove it, or set model.objective = "{owner}"')
        if "adapter_rank" in self.model_fields_set and self.adapters is None:
            message = "model.adapter_rank: has no effect without model.adapters"
            raise ConfigError(message, remedy='remove it, or set model.adapters = "lora"')
        for key in ("image_weights", "text_weights"):
            if self.start is not None and getattr(self, key) is not None:
                message = f"model.{key}: has no effect beside model.start, a whole model"
                raise ConfigError(message, remedy="remove one")
        for kind, known in (("image", IMAGE_TOWERS), ("text", TEXT_TOWERS)):
            tower = getattr(self, f"{kind}_tower")
            if tower is not None and tower not in known and not is_user_code(tower):
                raise ConfigError(
                    f"model.{kind}_tower: there is no {tower!r}",
                    remedy=f'use "{known[0]}", or name code of your own as package.module:factory',
                )
            if tower is not None and getattr(self, f"{kind}_weights") is not None:
                message = f"model.{kind}_weights: has no effect beside model.{kind}_tower"
                raise ConfigError(message, remedy="remove one")
        if self.adapters is not None and (self.image_tower or self.text_tower) is not None:
            message = "model.adapters: a tower stays as it is, and what is on top of it trains as a whole"
            raise ConfigError(message, remedy="remove it, or model.image_tower and model.text_tower")
        for key, weights in (("gloria_weights", self.gloria_weights), ("mgca_weights", self.mgca_weights)):
            if not any(weights):
                message = f"model.{key}: all are 0, which leaves nothing to train"
                raise ConfigError(message, remedy="set one above 0")
        return self

    @property
    def objective_arguments(self) -> dict[str, Any]:
        """What the class of the chosen objective takes beyond the arguments of all of them."""
        match self.objective:
            case "gloria":
                return {
                    "weights": self.gloria_weights,
                    "global_scale": self.gloria_scale,
                    "attention_scale": self.gloria_t1,
                    "match_scale": self.gloria_t2,
                    "local_scale": self.gloria_t3,
                }
            case "mgca":
                return {
                    "weights": self.mgca_weights,
                    "local_temperature": self.mgca_local_temperature,
                    "prototype_temperature": self.mgca_prototype_temperature,
                    "smoothing": self.mgca_epsilon,
                    "sinkhorn_rounds": self.mgca_sinkhorn_rounds,
                }
            case _:
                return {}


@dataclass(frozen=True)
class Size:
    """Dimensions of one size of the model; ``text_hidden`` is the feed-forward width of the text encoder."""

    patch: int  # pixels of a side
    image_width: int
    image_depth: int
    image_heads: int
    text_width: int
    text_depth: int
    text_heads: int
    text_hidden: int
    head_hidden: int  # of the projection heads; 0 for linear heads
    embedding: int
    pool: Pool


SIZES: Final[Mapping[SizeName, Size]] = {
    "tiny": Size(8, 64, 2, 4, 64, 2, 4, 128, 0, 64, "mean"),
    "small": Size(8, 192, 4, 3, 128, 2, 4, 512, 512, 128, "mean"),
    "paper": Size(16, 768, 12, 12, 768, 6, 12, 3072, 2048, 128, "cls"),
}
