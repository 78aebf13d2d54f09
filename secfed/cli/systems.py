"""Where which command runs: what serves hospitals wants Linux, the rest does not."""

from __future__ import annotations

import platform

from secfed.errors import ConfigError


def linux_only(what: str) -> None:
    """Refuse another system: there nobody tried what an agent relies on after a crash, or to lock others out.

    Raises:
        ConfigError: this is not Linux.
    """
    if (system := platform.system()) != "Linux":
        raise ConfigError(
            f"{what} runs on Linux only; this is {system or 'an unknown system'}.",
            remedy="run it on Linux; simulations, statistics, audits and reports work here",
        )
