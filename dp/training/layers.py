"""Secret random numbers for random layers (dropout and the like) during private steps.

A clipped sum is bounded for the masks that were drawn. Masks from a generator whose state is public are
the worst case: they are dealt out in the order of the drawn records, so one record more shifts the masks of
all later ones, and the sum moves by far more than the one record that is paid for. Masks that nobody knows
and that are drawn independently for every record are part of the mechanism: the two data sets of a
comparison then have the same distribution of masks for the records that they share, and the divergence of a
mixture is at most the largest divergence of its parts, at equal masks.

So torch's generators get a new state from the site's secret stream for every step. The whole state of the
CPU's generator is set, since ``manual_seed`` takes 32 bits of a seed, few enough to try them all.

Security: random numbers that several records of a batch share are outside this argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.errors import ConfigError

# The state of torch's CPU generator: a header of 24 bytes, then 624 words of 32 bits in 64 each.
_HEADER_BYTES: Final = 24
_STATE_WORDS: Final = 624
_STATE: Final = slice(_HEADER_BYTES, _HEADER_BYTES + 8 * _STATE_WORDS)


class LayerRandom:
    """Gives torch's generators, on the devices of the model, a fresh secret state.

    Raises:
        ConfigError: a device whose generator cannot be set.
    """

    def __init__(self, model: nn.Module, random: SecureRandom) -> None:
        self._random = random
        found = {value.device for value in model.parameters() if value.device.type != "cpu"}
        self.kind = next((device.type for device in found), "cuda")
        self.devices = sorted(device.index or 0 for device in found)
        self._module = torch.get_device_module(self.kind)
        if found and not all(hasattr(self._module, name) for name in ("device", "manual_seed")):
            raise ConfigError(
                f"random layers cannot be kept secret on a device of the kind {self.kind!r}",
                remedy='set algorithm.device = "cpu" or "cuda"',
            )
        self._fresh = _fresh_state()

    def renew(self) -> None:
        """A state that follows from nothing but the secret stream."""
        words = self._random.layer_words(_STATE_WORDS // 2 + len(self.devices))
        state = self._fresh.clone()
        state.numpy()[_STATE] = words[: _STATE_WORDS // 2].view(np.uint32).astype(np.uint64).view(np.uint8)
        torch.set_rng_state(state)
        for device, word in zip(self.devices, words[_STATE_WORDS // 2 :], strict=True):
            with self._module.device(device):
                self._module.manual_seed(int(word) >> 1)  # a GPU's generator takes 64 bits


@contextmanager
def secret_layers(model: nn.Module, random: SecureRandom) -> Iterator[LayerRandom]:
    """Let random layers draw from a secret stream; afterwards torch's generators are as they were."""
    layers = LayerRandom(model, random)
    with torch.random.fork_rng(devices=layers.devices, device_type=layers.kind):
        layers.renew()
        yield layers


def _fresh_state() -> torch.Tensor:
    """The state just after seeding, when the next number makes new ones from all words."""
    state = torch.Generator().manual_seed(0).get_state()
    expected: Any = np.random.RandomState(0).get_state(legacy=False)  # the same generator, elsewhere
    found = state.numpy()[_STATE]
    if found.size != 8 * _STATE_WORDS or not np.array_equal(found.view(np.uint64), expected["state"]["key"]):
        raise ConfigError(
            f"torch {torch.__version__} has another random generator, so random layers cannot be kept secret",
            remedy="install a version of torch that secfed supports",
        )
    return state
