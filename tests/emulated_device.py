"""A device that is not there: tensors on it claim to be elsewhere, and their operators run on the CPU.

What is wrong here is wrong on a GPU, too: mixing tensors of two devices, NumPy on a tensor of the device, a
generator of the other device. Values that are read back are counted by source line, for a GPU's queue is
waited for there. What is right here may still be wrong on a GPU: kernels, precision, memory, speed.

torch's Python backend for PrivateUse1 gives the device (guards, queue of gradients), a wrapper subclass the
tensors. It is there for a whole process, changes what torch takes for its accelerator, and must come before
the first gradient: everything on it runs in a process of its own (:func:`elsewhere`).
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.forks import Fork

CPU: Final = torch.device("cpu")
NAME: Final = "emulated"
ROOT: Final = Path(__file__).resolve().parents[1]
THERE: Final = hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend")

# What CUDA, too, lets mix devices: copies, and an index on the CPU into a tensor of the device. Tensors of no
# dimension always may.
_COPIES: Final = ("aten._copy_from", "aten.copy_")
_INDEXING: Final = ("aten.index.", "aten.index_put", "aten._index_put")
_TO_HOST: Final = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "bincount")
# Composite factories that fill a tensor which they resize: made whole here instead.
_FACTORIES: Final = ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "randperm")

reads: Counter[str] = Counter()  # where a value came back from the device
operators: Counter[str] = Counter()  # what ran there
seeds: list[int] = []  # what the generator of the device was set to
_libraries: list[Any] = []  # as long as these live, the device has its operators
_Given = TypeVar("_Given")


class Elsewhere(torch.Tensor):
    """A tensor of the device; its numbers are in ``raw``, on the CPU."""

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Elsewhere:
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.raw = raw
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.raw})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Elsewhere:
        if id(self) not in memo:
            made: Any = Elsewhere(self.raw.clone())
            if isinstance(self, torch.nn.Parameter):
                made = torch.nn.Parameter(made, self.requires_grad)
            memo[id(self)] = made.requires_grad_(self.requires_grad)
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, *args, **(kwargs or {}))


def _here() -> str:
    """The innermost line of the repository that is not in this file."""
    frame: Any = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.name != "emulated_device.py" and ".venv" not in path.parts:
            return f"{path.resolve().relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def _may_mix(op: str, args: Any) -> bool:
    if not op.startswith(_INDEXING):
        return op.startswith(_COPIES)
    into, values = args[0], args[2] if len(args) > 2 else None
    return isinstance(into, Elsewhere) and (
        not isinstance(values, torch.Tensor) or isinstance(values, Elsewhere) or values.dim() == 0
    )


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """One operator, on what its tensors hold."""
    name = str(op).removeprefix("aten.")
    leaves = tree_leaves((args, kwargs))
    there = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    strange = [
        leaf
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Elsewhere) and leaf.dim() > 0
    ]
    asked = kwargs.get("device")
    to_cpu = asked is not None and torch.device(asked).type != NAME
    if there and strange and not _may_mix(str(op), args):
        raise RuntimeError(f"Expected all tensors to be on the same device: {op} at {_here()}")
    if not to_cpu and any(isinstance(leaf, torch.Generator) and leaf.device == CPU for leaf in leaves):
        raise RuntimeError(f"Expected a generator of the device, found one of the CPU: {op} at {_here()}")
    into_cpu = name.startswith("copy_") and not isinstance(args[0], Elsewhere)
    from_device = name.startswith("_copy_from") and not isinstance(args[1], Elsewhere)
    if name.startswith(_TO_HOST) or (there and (to_cpu or into_cpu or from_device)):
        reads[_here()] += 1
    operators[name] += 1

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return CPU if leaf.type == NAME else leaf
        return leaf.raw if isinstance(leaf, Elsewhere) else leaf

    a, k = tree_map(plain, args), tree_map(plain, kwargs)
    if "pin_memory" in k:
        k["pin_memory"] = False
    with torch.no_grad():
        out = op(*a, **k)
    returned, written = op._schema.returns, []
    for at, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[at] if at < len(args) else kwargs.get(argument.name))
    if written and all(one.alias_info is not None for one in returned):
        return None if not returned else written[0] if len(returned) == 1 else tuple(written)
    if to_cpu:
        return out.clone() if any(out is leaf for leaf in tree_leaves(a)) else out
    return tree_map(lambda leaf: Elsewhere(leaf) if isinstance(leaf, torch.Tensor) else leaf, out)


class _Module(torch.utils.backend_registration._DummyBackendModule if THERE else object):  # type: ignore[misc]
    """What ``torch.emulated`` can do."""

    def manual_seed_all(self, seed: int) -> None:
        """Of torch.manual_seed."""

    def device(self, _number: int) -> nullcontext[None]:
        """It is the only one."""
        return nullcontext()

    def manual_seed(self, seed: int) -> None:
        """Set its generator; what it draws comes from the CPU's all the same."""
        seeds.append(seed)

    def get_rng_state(self, _device: Any = None) -> torch.Tensor:
        """Nothing of its own."""
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, _state: torch.Tensor, _device: Any = None) -> None:
        """Nothing of its own."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Of torch.autocast."""
        return [torch.bfloat16, torch.float16]


def install() -> torch.device:
    """The device, for the rest of this process, and every algorithm of secfed on it."""
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    every = torch.library.Library("_", "IMPL")
    every.fallback(_run, "PrivateUse1")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # casts nothing
    own = torch.library.Library("aten", "IMPL")
    for name in (*_FACTORIES, "randperm.generator"):
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        own.impl(name, functools.partial(_run, operator), "PrivateUse1")
    _libraries.extend((every, own))
    device = torch.device(NAME, 0)
    for name, module in list(sys.modules.items()):
        if name.startswith("secfed") and hasattr(module, "choose_device"):
            module.choose_device = lambda _name: device  # type: ignore[attr-defined]
    return device


def elsewhere(work: Callable[..., _Given], *given: Any) -> _Given:
    """What ``work(device, *given)`` gives in another process that has the device; its errors are raised here.

    ``work`` is a function of a module; that, and what it is given and gives, is pickled.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work"
        path.write_bytes(pickle.dumps((work, given)))
        code = f"from tests.emulated_device import main; main({str(path)!r})"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = Fork([sys.executable, "-c", code], cwd=ROOT, env=environment).wait()
        worked, found = pickle.loads(path.read_bytes()) if ended == 0 else (False, f"it ended with {ended}")
    if not worked:
        raise AssertionError(found)
    result: _Given = found
    return result


def main(path: str) -> None:
    """The other process."""
    torch.set_num_threads(1)
    work, given = pickle.loads(Path(path).read_bytes())
    try:
        found: Any = True, work(install(), *given)
    except Exception:  # noqa: BLE001  # it is raised where the work was asked for
        found = False, traceback.format_exc()
    Path(path).write_bytes(pickle.dumps(found))
