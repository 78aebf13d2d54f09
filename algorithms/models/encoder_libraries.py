"""timm and Hugging Face transformers, imported when a model asks for them and not before.

Neither is asked to download anything: only their layers are used, and weights come from local files.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from secfed.errors import ConfigError, installing

_KEPT: Final[list[torch.library.Library]] = []  # a library that is collected takes its operators along


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


def mend_torchvision() -> None:
    """Let torchvision be imported although it does not fit the installed torch.

    A torchvision whose compiled operators do not load (for example one built for CUDA beside a CPU
    torch) fails on import, because it describes operators that then do not exist. Neither encoder uses
    any of them, so empty declarations of the two are enough. A torchvision that imports is left alone:
    declaring its operators before it does would break it.
    """
    if "torchvision" in sys.modules:
        return
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return  # none installed: neither package insists on it
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # what was imported before the failure would not be tied together again
        if not _KEPT:
            library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for operator in ("nms", "qnms"):
                schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                library.define(schema)  # type: ignore[no-untyped-call]
            _KEPT.append(library)
