"""A signed hash chain: one canonical JSON object per line, each bound to the one before it.

    {"body": {...}, "hash": hex, "kind": text, "prev": hex, "seq": n, "signature": hex}

    hash      = digest(chain label, prev, canonical JSON of {body, kind, owner, seq})
    signature = Ed25519 by the owner over (sign label, hash)

The first entry has ``prev`` = 32 zero bytes, kind ``opened`` and a body that names the owner; that name is in
every hash. A line has exactly one spelling (sorted keys, no spaces, ASCII), so any changed byte shows.
Transcripts, privacy ledgers and decision logs differ in their labels only.

Security: a chain shows that nothing inside it was changed, reordered or removed. It cannot show that
its *end* was cut off; for that, compare its head with a second witness (another party's chain, a
printed head).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secfed.crypto.codec import digest
from secfed.crypto.identity import Identity, verify
from secfed.errors import BadSignature, TranscriptError

OPENED = "opened"
START = bytes(32)
MAX_LINE_BYTES = 1 << 20

_COPY = "entries before this line stand; get an untampered copy from its owner"
_MAX_DEPTH = 16
_MAX_INT = 1 << 53  # above it, readers in other languages round
_KEYS = {"seq", "prev", "kind", "body", "hash", "signature"}

Sink = Callable[[bytes], None]


@dataclass(frozen=True)
class ChainType:
    """What one kind of chain is called and which labels separate it from the others."""

    name: str  # for messages to people, for example ``transcript``
    chain_label: bytes  # label of the hashes, from :mod:`secfed.crypto.labels`
    sign_label: bytes  # label of the signatures


class BrokenChain(TranscriptError):
    """A chain that does not verify.

    Attributes:
        line: number of the first bad line, counted from 1.
        why: what is wrong with it.
    """

    def __init__(self, name: str, line: int, why: str, *, remedy: str = "") -> None:
        super().__init__(f"{name}, line {line}: {why}.", remedy=remedy or _COPY)
        self.line = line
        self.why = why

    def at(self, path: Path, remedy: str) -> BrokenChain:
        """The same for the file's owner: with its path, and this remedy where it has none of its own."""
        own = remedy if self.remedy == _COPY else self.remedy
        return type(self)(str(path), self.line, self.why, remedy=own)


class BadlySigned(BrokenChain):
    """A line whose content is whole, and whose signature does not verify under the key that was tried."""


@dataclass(frozen=True)
class Entry:
    """One verified or newly made entry."""

    seq: int  # position, from 0
    prev: bytes  # hash of the entry before, 32 bytes
    kind: str  # what the body is about
    body: Mapping[str, Any]  # JSON object
    hash: bytes  # 32 bytes
    signature: bytes  # 64 bytes

    def line(self) -> bytes:
        """The entry as it stands in the file, newline included."""
        return canonical_json(plain(self)) + b"\n"


def plain(record: object) -> dict[str, Any]:
    """The fields of a record as JSON has them: bytes in hexadecimal, tuples as lists."""
    return {
        name: value.hex() if isinstance(value, bytes) else list(value) if isinstance(value, tuple) else value
        for name, value in vars(record).items()
    }


def canonical_json(value: object) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, ASCII escapes, shortest floats.

    ``TranscriptError``: NaN, infinity, an integer beyond 2^53, a key that is not text, another type, or
    nesting deeper than 16.
    """
    _check(value, _MAX_DEPTH)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def _check(value: object, depth: int) -> None:
    """Refuse what has no canonical spelling."""
    if depth == 0:
        raise TranscriptError("an entry is nested too deeply")
    if value is None or isinstance(value, bool | str):
        return
    if isinstance(value, int):
        if abs(value) > _MAX_INT:
            raise TranscriptError("an entry holds an integer beyond 2^53.", remedy="write it as text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TranscriptError("an entry holds NaN or infinity.", remedy="write null instead")
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, depth - 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TranscriptError("an entry has a key that is not text")
            _check(item, depth - 1)
    else:
        raise TranscriptError(f"an entry holds a {type(value).__name__}, which JSON cannot express")


class Chain:
    """The writing half, without I/O: hands each line, newline included, to ``sink`` (None keeps nothing).

    ``sink`` returns once the line is safe; ``entries`` is what the chain holds, verified. For one thread.
    """

    def __init__(
        self,
        identity: Identity,
        chain_type: ChainType,
        *,
        sink: Sink | None = None,
        entries: tuple[Entry, ...] = (),
    ) -> None:
        self._identity = identity
        self._type = chain_type
        self._sink = sink
        self._next = len(entries)
        self._head = entries[-1].hash if entries else START

    @property
    def head(self) -> bytes:
        """Hash of the last entry (32 zero bytes before the first): commits to the whole chain."""
        return self._head

    def __len__(self) -> int:
        return self._next

    def append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Add one entry; it counts only once the sink has taken it.

        ``TranscriptError``: a body that JSON cannot express canonically, or that is too long.
        """
        plain = json.loads(canonical_json(dict(body)))  # a copy nobody else can change
        hashed = _hash(self._type, self._head, self._next, kind, plain, self._identity.name)
        signature = self._identity.sign(self._type.sign_label, hashed)
        entry = Entry(self._next, self._head, kind, plain, hashed, signature)
        line = entry.line()
        if len(line) > MAX_LINE_BYTES:
            raise TranscriptError(f"a {self._type.name} entry is longer than {MAX_LINE_BYTES} bytes")
        if self._sink is not None:
            self._sink(line)
        self._head, self._next = hashed, self._next + 1
        return entry


def _hash(
    chain_type: ChainType, prev: bytes, seq: int, kind: str, body: Mapping[str, Any], owner: str
) -> bytes:
    content = canonical_json({"seq": seq, "kind": kind, "body": body, "owner": owner})
    return digest(chain_type.chain_label, prev, content)


def verify_chain(
    lines: Iterable[bytes],
    public_bytes: bytes,
    chain_type: ChainType,
    *,
    owner: str | None = None,
    after: Sequence[Entry] = (),
) -> tuple[Entry, ...]:
    """Check every line of a chain, in order; gives all entries, those of ``after`` included.

    ``owner`` is whose chain it must be; None takes the name that the first entry gives. ``after`` are the
    entries before these lines, of the same owner and key. ``BrokenChain`` names the first bad line.
    """
    entries = list(after)
    name = chain_type.name
    head = START
    if after:
        owner, head = _owner_of(after[0], owner, name), after[-1].hash
    for number, line in enumerate(lines, start=len(entries) + 1):
        entry = _parse(line, name, number)
        if number == 1:
            owner = _owner_of(entry, owner, name)
        if entry.seq != number - 1:
            raise BrokenChain(name, number, f"entry number {entry.seq} stands where {number - 1} belongs")
        if entry.prev != head:
            raise BrokenChain(name, number, "it does not follow from the line before")
        if (entry.kind == OPENED) != (number == 1):
            raise BrokenChain(name, number, "the opening entry is missing or repeated")
        head = _hash(chain_type, head, entry.seq, entry.kind, entry.body, owner or "")
        if entry.hash != head:
            raise BrokenChain(name, number, "its content does not match its hash")
        try:
            verify(public_bytes, entry.signature, chain_type.sign_label, head, who=owner or "")
        except BadSignature as error:
            raise BadlySigned(name, number, error.message) from None
        entries.append(entry)
    if not entries:
        raise BrokenChain(name, 1, "there is no opening entry")
    return tuple(entries)


def _owner_of(opening: Entry, expected: str | None, name: str) -> str:
    owner = opening.body.get("owner")
    if not isinstance(owner, str):
        raise BrokenChain(name, 1, "the opening entry names no owner")
    if expected is not None and owner != expected:
        raise BrokenChain(name, 1, f"it belongs to {owner!r}, not to {expected!r}")
    return owner


def _parse(line: bytes, name: str, number: int) -> Entry:
    """Read one line, insisting on its canonical spelling."""
    if len(line) > MAX_LINE_BYTES:
        raise BrokenChain(name, number, f"longer than {MAX_LINE_BYTES} bytes")
    if not line.endswith(b"\n"):
        raise BrokenChain(
            name,
            number,
            "incomplete: the writer was interrupted or the file was cut",
            remedy="the owner drops and records an unfinished last line when it next opens the file",
        )
    try:
        content = json.loads(line)
        canonical = canonical_json(content) == line[:-1]
    except (ValueError, RecursionError, TranscriptError):
        raise BrokenChain(name, number, "not a JSON entry") from None
    if not isinstance(content, dict) or set(content) != _KEYS or not canonical:
        raise BrokenChain(name, number, "not an entry in its canonical form")
    seq, kind, body = content["seq"], content["kind"], content["body"]
    if isinstance(seq, bool) or not isinstance(seq, int):
        raise BrokenChain(name, number, "its sequence number is not a number")
    if not isinstance(kind, str) or not isinstance(body, dict):
        raise BrokenChain(name, number, "its kind or body has the wrong type")
    prev, hashed = _hex(content["prev"]), _hex(content["hash"])
    signature = _hex(content["signature"])
    if prev is None or hashed is None or signature is None:
        raise BrokenChain(name, number, "a digest or signature is not lower-case hexadecimal")
    return Entry(seq, prev, kind, body, hashed, signature)


def _hex(text: object) -> bytes | None:
    """Bytes of lower-case hex text; None for anything else (``fromhex`` alone takes more spellings)."""
    if not isinstance(text, str):
        return None
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    return data if data.hex() == text else None
