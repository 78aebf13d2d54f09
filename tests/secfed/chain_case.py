"""A small transcript to damage, for the tests of chain and transcript."""

from __future__ import annotations

from functools import partial
from typing import Any

from secfed.crypto.identity import Identity
from secfed.records.hash_chain import verify_chain
from secfed.records.transcript import TRANSCRIPT, Transcript

OWNER = Identity.from_seed("hospital-1", bytes([1]) * 32)
OTHER = Identity.from_seed("hospital-2", bytes([2]) * 32)
ROSTER_DIGEST = bytes([7]) * 32
verify = partial(verify_chain, chain_type=TRANSCRIPT)  # a transcript's lines, each with its newline


def transcript(sink: Any = None, identity: Identity = OWNER, study: str = "a-study") -> Transcript:
    return Transcript(identity, study=study, roster_digest=ROSTER_DIGEST, sink=sink)


def made(entries: int = 5, **opening: str) -> list[bytes]:
    lines: list[bytes] = []
    written = transcript(lines.append, **opening)
    for number in range(1, entries):
        written.append(
            "note", {"n": number, "text": 'tab\t"quote" \\ \u00e9', "x": 0.1, "none": None, "of": [1]}
        )
    return lines


LINES = made()
DATA = b"".join(LINES)


def split_lines(data: bytes | bytearray) -> list[bytes]:
    """Lines as a binary file yields them: only a line feed ends one."""
    parts = bytes(data).split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
