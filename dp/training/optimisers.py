"""PyTorch's optimisers without its compiler: the same steps, minus seconds of imports before the first.

The first optimiser of a process makes PyTorch import ``torch._dynamo``, only to tell a compiler, which nobody
here uses, where it must stop. What is below that wrapping is taken as it is, so steps give the same bytes.
"""

from __future__ import annotations

import inspect
from typing import Any, Final, TypeVar

import torch
from torch.optim import Optimizer

_Kind = TypeVar("_Kind", bound=Optimizer)
_made: Final[dict[type[Optimizer], Any]] = {}


def eager(kind: type[_Kind]) -> type[_Kind]:
    """An optimiser of PyTorch for training that is not compiled, under its own name.

    Its ``step`` is without gradients, as usual: ``differentiable`` has no effect.
    """
    if kind not in _made:
        own = {name: inspect.unwrap(getattr(kind, name)) for name in ("zero_grad", "add_param_group", "step")}
        own["step"] = torch.no_grad()(own["step"])
        _made[kind] = type(kind.__name__, (kind,), own)
    made: type[_Kind] = _made[kind]
    return made
