"""Features that a frozen encoder gives: computed once, kept in memory, and on the disk where asked for.

Where the environment variable ``SECFED_IMAGE_CACHE`` names a folder, each record has one file there: float16
with a checksum behind it, so that the next process need not compute it.

Security: features are single-site values, and tell much of a record. Such a file is for this account alone.
Its name is a digest of encoder and record, so whoever reads names can look for a record that they have.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from secfed.algorithms.data.image_cache import CHECKSUM_BYTES, FOLDER, checksum
from secfed.errors import ConfigError
from secfed.storage.atomic import write_shared
from secfed.storage.private_files import make_folder

_MOST_BYTES: Final = 4 << 30  # in one process; more are read or computed again
_MOST_ON_DISK: Final = 16 << 30  # of the whole folder; images changed at random would fill any disk


class KeptFeatures:
    """Features by record, of all encoders of this process."""

    def __init__(self) -> None:
        self._found: dict[bytes, torch.Tensor] = {}
        self._bytes = 0
        self._on_disk: dict[Path, int] = {}

    def of(
        self,
        encoder: str,
        width: int,
        record: torch.Tensor,
        compute: Callable[[], torch.Tensor],
        *,
        on_disk: bool = True,
    ) -> torch.Tensor:
        """Features [T, width] float16 of one record.

        Args:
            encoder: its name and release: another release gives other features.
            record: what ``compute`` is given, in any shape.
            on_disk: False keeps them in memory only.
        """
        content = record.detach().cpu().contiguous()
        about = f"{encoder} {content.dtype} {tuple(content.shape)} ".encode()
        key = hashlib.blake2b(about + content.numpy().tobytes(), digest_size=16).digest()
        known = self._found.get(key)
        if known is None:
            path = _path(key) if on_disk else None
            known = _read(path, width)
            if known is None:
                known = compute().to("cpu", torch.float16)
                if path is not None:
                    self._write(path, known)
            if self._bytes + known.nbytes <= _MOST_BYTES:
                self._found[key], self._bytes = known, self._bytes + known.nbytes
        return known

    def _write(self, path: Path, features: torch.Tensor) -> None:
        """Keep them on the disk; a full one, or no right to write, only means computing again."""
        folder, content = path.parent, features.contiguous().numpy().tobytes()
        with suppress(ConfigError, OSError):
            make_folder(folder.parent)
            make_folder(folder)
            if folder not in self._on_disk:
                self._on_disk[folder] = sum(found.stat().st_size for found in os.scandir(folder))
            if self._on_disk[folder] + len(content) <= _MOST_ON_DISK:
                write_shared(path, content, checksum(content), synced=False)
                self._on_disk[folder] += len(content) + CHECKSUM_BYTES


def _path(key: bytes) -> Path | None:
    folder = os.environ.get(FOLDER)
    return Path(folder) / "features" / key.hex() if folder else None


def _read(path: Path | None, width: int) -> torch.Tensor | None:
    """What a file holds; None where it is missing or not whole."""
    if path is None:
        return None
    try:
        content = bytearray(path.read_bytes())
    except OSError:
        return None
    found = content[:-CHECKSUM_BYTES]
    if not found or len(found) % (2 * width) or content[-CHECKSUM_BYTES:] != checksum(found):
        return None
    return torch.frombuffer(found, dtype=torch.float16).view(-1, width)
