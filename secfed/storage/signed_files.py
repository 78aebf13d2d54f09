"""Small files of a site's running work: whole or not at all, on the disk, for nobody else, tamper-evident.

Each file is its content and the site's own signature over study, name and content. A file that somebody
changed, or that belongs to another study or site, is refused, never repaired.

Security: secrets are overwritten before they are removed. Where the file system or the disk keeps old
blocks (copy-on-write, flash, backups, snapshots), that is not enough; put the folder on an encrypted disk
and leave it out of backups.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import SIGNATURE_BYTES, Identity, verify
from secfed.errors import BadSignature, TranscriptError
from secfed.storage.atomic import sync_folder, unwritable_errors, write_shared


class SignedFiles:
    """The files of one study at one site; the folder is created (mode 0700) if it is not there."""

    def __init__(self, folder: Path, identity: Identity, study: str) -> None:
        self.folder, self._identity, self._study = folder, identity, study
        with unwritable_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in folder.glob(".*.part"):  # of a write or an erasure that was cut off
                _overwrite(left)
                left.unlink()
            sync_folder(folder)  # a name that is seen here may be one that nobody waited for

    def write(self, name: str, *parts: Buffer) -> None:
        """Write a file, or replace it; it is on the disk, and its name too, when this returns."""
        self.put(name, *parts, self.signature(name, *parts))

    def put(self, name: str, *parts: Buffer) -> None:
        """As :meth:`write`, of parts that hold their own signature."""
        write_shared(self.folder / name, *parts)

    def signature(self, name: str, *parts: Buffer) -> bytes:
        """This site's signature over a file of that name: 64 bytes."""
        return self._identity.sign(labels.SIGN_SITE_FILE, *self._context(name), *parts)

    def check(self, name: str, signature: bytes, *parts: Buffer) -> None:
        """Refuse what :meth:`signature` did not sign.

        Raises:
            TranscriptError: this site did not write it, or somebody changed it.
        """
        try:
            public, context = self._identity.public_bytes, self._context(name)
            verify(public, signature, labels.SIGN_SITE_FILE, *context, *parts, who="site")
        except BadSignature:
            raise self.changed(name) from None

    def changed(self, name: str) -> TranscriptError:
        """The error for a file that is not what this site wrote."""
        return TranscriptError(
            f"{self.folder / name}: was changed, or belongs to another study or site",
            remedy="find out who did it; then remove the study's folder: its running exchange is lost",
        )

    def read(self, name: str, *sizes_bytes: int) -> tuple[memoryview, ...] | None:
        """The parts of a file; None if there is no such file.

        Args:
            sizes_bytes: sizes of all parts but the last, which is what is left.

        Raises:
            ConfigError: it cannot be read.
            TranscriptError: this site did not write it, or somebody changed it.
        """
        path = self.folder / name
        with unwritable_errors(path):
            try:
                data = memoryview(path.read_bytes())
            except FileNotFoundError:
                return None
        content, signature = data[:-SIGNATURE_BYTES], bytes(data[-SIGNATURE_BYTES:])
        parts, at = [], 0
        for size in sizes_bytes:
            parts.append(content[at : at + size])
            at += size
        parts.append(content[at:])
        self.check(name, signature, *parts)
        return tuple(parts)

    def names(self) -> tuple[str, ...]:
        """Names of the files that are there, sorted."""
        with unwritable_errors(self.folder):
            return tuple(sorted(path.name for path in self.folder.iterdir() if path.name[0] != "."))

    def erase(self, *names: str) -> None:
        """Overwrite and remove files, in this order; those that are not there are left out."""
        gone = []
        for name in names:
            path, nameless = self.folder / name, self.folder / f".{name}.{secrets.token_hex(8)}.part"
            with unwritable_errors(path):
                if path.exists():
                    os.replace(path, nameless)
                    gone.append(nameless)
        if not gone:
            return
        with unwritable_errors(self.folder):
            # Durable before a byte changes: half overwritten under its own name, a file is not readable.
            sync_folder(self.folder)
            for nameless in gone:
                _overwrite(nameless)
                nameless.unlink()  # one that a crash brings back holds zeros, and goes at the next start

    def _context(self, name: str) -> tuple[bytes, ...]:
        return self._study.encode(), self._identity.name.encode(), name.encode()


def _overwrite(path: Path) -> None:
    with path.open("r+b", buffering=0) as stream:
        left = os.fstat(stream.fileno()).st_size
        while left > 0:
            left -= stream.write(bytes(min(left, 1 << 20)))
        os.fsync(stream.fileno())
