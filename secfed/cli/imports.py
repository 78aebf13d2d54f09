"""Imports that do not keep a person waiting."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import without looking for garbage meanwhile: what modules make stays, and the search takes a sixth.

    It is not looked through later either, which keeps the memory of forks shared.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
