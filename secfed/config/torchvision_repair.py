"""A torchvision that does not fit the installed torch, mended for libraries that import it without need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

_KEPT: Final[list[Any]] = []  # a torch library that is collected takes its operators along
_T = TypeVar("_T")


def mending_torchvision(work: Callable[[], _T]) -> _T:
    """Do it; if it fails for want of torchvision's operators, mend them and do it once more."""
    try:
        return work()
    except Exception as error:
        found: BaseException | None = error
        while found is not None and "torchvision::" not in str(found):
            found = found.__cause__ or found.__context__
        if found is None:
            raise
    mend_torchvision()
    return work()


def mend_torchvision() -> None:
    """Let torchvision be imported although it does not fit the installed torch.

    A torchvision whose compiled operators do not load (for example one built for CUDA beside a CPU
    torch) fails on import, because it describes operators that then do not exist. Neither encoder uses
    any of them, so empty declarations of the two are enough. A torchvision that imports is left alone:
    declaring its operators before it does would break it.
    """
    if "torchvision" in sys.modules:
        return
    import torch  # slow

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
