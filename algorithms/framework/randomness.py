"""Seeds for everything random in training: a stable hash of a seed and what it is for.

What all parties agree on takes the study's seed; what only a site's own work uses takes
:attr:`secfed.algorithms.framework.setting.Setting.local_seed`, which outside simulation only that site knows.

No global generator is used or changed, so a run does not depend on the order in which sites work, on
other code in the process, or on Python's hash randomisation. No guarantee rests on this randomness, and the
generators are not cryptographic; masks, rounding and noise have their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch

from secfed.crypto.codec import Writer, digest

_SEED: Final = b"secfed/v1 training seed"


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, for example ``("train", site, round)``; 0 <= seed < 2^63."""
    writer = Writer().uint(seed, 8)
    writer.many([str(part) for part in purpose], lambda w, part: w.text(part))
    return int.from_bytes(digest(_SEED, writer.done())[:8], "big") >> 1


def torch_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(derive_seed(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Run code that draws from torch's global generator, and leave that generator as it was.

    PyTorch's layer initialisation and dropout take no generator of their own. A CUDA device that is
    first used inside keeps its generator as the code left it.
    """
    initialised = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if initialised else []
    # torch.manual_seed keeps the call's stack until a device is used, for ever where there is none; it tells
    # all devices that there could be, which costs more than a small batch.
    tell = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    with torch.random.fork_rng(devices=devices):
        tell(derive_seed(seed, *purpose))
        yield
