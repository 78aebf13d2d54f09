"""Finding what an audit reads: rosters and signed chains under some folders, each file read once.

Folders are searched recursively. A simulation's folder holds every party's files; a hospital's or the
aggregator's folder holds its own. What a first line says about its owner only decides which key to try:
:mod:`secfed.audit.privacy.check` believes nothing before it verifies.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from secfed.dp.ledger.ledger import LEDGER
from secfed.errors import ConfigError, TranscriptError
from secfed.records.chain_file import read_lines
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import ChainType
from secfed.records.roster_file import is_roster_file
from secfed.records.transcript import TRANSCRIPT
from secfed.runs.run_folder import DECISIONS_FILE, TRANSCRIPT_FILE, site_of

_MAX_BYTES: Final = 1 << 28
_SITES: Final = "sites"  # secfed.runs.run_folder.sites_folder


@dataclass(frozen=True)
class Source:
    """One file as it was when it was read."""

    path: Path  # below a folder that was named
    kind: ChainType | None  # None for a roster
    data: bytes = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the file."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def claims(self) -> dict[str, Any]:
        """Body of the first line, unverified; empty if it cannot be read."""
        try:
            body = json.loads(self.data.split(b"\n", 1)[0])["body"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def lines(self) -> list[bytes]:
        """The lines of a chain, each with its newline."""
        return list(read_lines(io.BytesIO(self.data)))

    @property
    def run_folder(self) -> Path:
        """The folder of the run this transcript belongs to."""
        parent = self.path.parent
        return parent.parent.parent if parent.parent.name == _SITES else parent

    @property
    def named_site(self) -> str | None:
        """The site whose folder this file is in, in a simulation's folder."""
        parent = self.path.parent
        return site_of(parent) if parent.parent.name == _SITES else None


@dataclass(frozen=True)
class Found:
    """Everything found, in the order of the folders and sorted within each."""

    folders: tuple[Path, ...]
    sources: tuple[Source, ...]

    def of(self, kind: ChainType | None) -> list[Source]:
        """Chains of one kind; without one, rosters, also those that a site or study centre has kept."""
        return [source for source in self.sources if source.kind == kind]


def find(folders: Sequence[Path], owner: str | None = None) -> Found:
    """Search folders; a file that is reached twice is read once. With an owner: chains of that party alone.

    ``ConfigError``: a folder that does not exist; ``TranscriptError``: an unreadable file, or no chain
    anywhere.
    """
    sources: dict[Path, Source] = {}
    for folder in folders:
        if not folder.is_dir():
            message = f"{folder}: no such folder."
            raise ConfigError(message, remedy="name folders with transcripts and ledgers")
        for path in files_below(folder):
            kind = _chain_kind(path)
            is_wanted = (kind is not None or is_roster_file(path)) and path.is_file()
            if is_wanted and path.resolve() not in sources:
                source = Source(path, kind, _read(path))
                if (
                    owner is None
                    or kind is None
                    or (source.named_site or source.claims.get("owner")) == owner
                ):
                    sources[path.resolve()] = source
    if all(source.kind is None for source in sources.values()):
        raise TranscriptError(
            f"{', '.join(map(str, folders))}: neither a transcript nor a ledger nor a decision log here.",
            remedy="name the folder that secfed simulate --out wrote, or a site's folder",
        )
    return Found(tuple(folders), tuple(sources.values()))


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted; folders that go away meanwhile, as an agent's do, are left out."""
    return sorted(Path(where, name) for where, _, names in os.walk(folder) for name in names)


def _chain_kind(path: Path) -> ChainType | None:
    if path.name.startswith("ledger-") and path.suffix == ".jsonl":
        return LEDGER
    return {TRANSCRIPT_FILE: TRANSCRIPT, DECISIONS_FILE: DECISIONS}.get(path.name)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        message = f"{path}: {os.strerror(error.errno or 0)}."
        raise TranscriptError(message, remedy="check that the file may be read") from None
    if len(data) > _MAX_BYTES:
        message = f"{path}: larger than {_MAX_BYTES} bytes."
        raise TranscriptError(message, remedy="remove it: secfed does not write such a file")
    return data
