"""What a run ran on: models have equal bytes where processors, libraries and threads are equal."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from secfed import __version__
from secfed.storage.code_digest import code_digest

# Those whose arithmetic is in a model, and in the protocol around it.
_PACKAGES: Final = (
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "opacus",
    "dp-accounting",
    "cryptography",
    "tenseal",
    "timm",
    "transformers",
)


def machine(threads: int) -> dict[str, Any]:
    """JSON-ready: threads of one process, processor, system, code, and versions of what is installed."""
    return {
        "threads": threads,
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "build": code_digest(),
        "packages": {"secfed": __version__, **dict(_installed())},
    }


def _installed() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def processor() -> str:
    """The processor's name, as the operating system tells it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
