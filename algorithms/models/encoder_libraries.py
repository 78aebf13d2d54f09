"""timm and Hugging Face transformers, imported when a model asks for them and not before.

Neither is asked to download anything: only their layers are used, and weights come from local files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from secfed.config.torchvision_repair import mend_torchvision
from secfed.errors import ConfigError, installing


def timm_layers() -> tuple[Any, Any]:
    """``PatchEmbed`` and ``Block`` of timm; a ConfigError if it is not installed."""
    with _importing("timm"):
        from timm.layers.patch_embed import PatchEmbed
        from timm.models.vision_transformer import Block

        return PatchEmbed, Block


def bert_classes() -> tuple[Any, Any]:
    """``BertConfig`` and ``BertModel`` of Hugging Face transformers; a ConfigError without them."""
    with _importing("transformers"):
        from transformers.models.bert.configuration_bert import BertConfig
        from transformers.models.bert.modeling_bert import BertModel

        return BertConfig, BertModel


@contextmanager
def _importing(package: str) -> Iterator[None]:
    """Both packages import torchvision, if there is one, and warn about things that are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mend_torchvision()
        try:
            yield
        except ImportError as problem:
            raise ConfigError(
                f'model.name: "vision-language" needs {package}, which cannot be imported: {problem}',
                remedy=installing("vision-language"),
            ) from None
