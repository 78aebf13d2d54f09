"""Bytes that scripts share, and messages written as parts of them; envelopes that are sealed once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from secfed.crypto import labels, sealing
from secfed.crypto.encrypted.messages import KeyDelivery
from secfed.crypto.masked.graph_messages import NeighbourDeliveries, NeighbourSharing, SeedEnvelope
from secfed.crypto.messages import Deliveries, Envelope, Sharing, peek_type
from secfed.errors import MalformedMessage
from tests.vectors.attempt import Envelopes

Parts = list[Any]
_WINDOW: Final = 16  # a copy is at least that long
_STORES: Final = "*_scripts.json"  # every envelope stands in one of them
_DELIVERY: Final = b"\3secfed/v1" + bytes([KeyDelivery.TYPE])
_STEP: Final = b"\2"
_STEP_BYTES: Final = 11  # before the message


@dataclass
class Book:
    """Named byte strings, and messages as parts of them."""

    entries: dict[str, bytes] = field(default_factory=dict)
    _index: dict[bytes, tuple[str, int]] = field(default_factory=dict)

    def add(self, name: str, data: bytes) -> None:
        """Later messages copy from it."""
        self.entries[name] = data
        for at in range(0, len(data) - _WINDOW + 1, _WINDOW):
            self._index.setdefault(data[at : at + _WINDOW], (name, at))

    def parts(self, message: bytes) -> Parts:
        """The message as copied parts and bytes of its own."""
        for name, data in self.entries.items():
            if data == message and message:
                return [[name]]
        parts: Parts = []
        own, at = b"", 0
        while at < len(message):
            found = self._index.get(message[at : at + _WINDOW])
            if found is None:
                own, at = own + message[at : at + 1], at + 1
                continue
            name, start = found
            data, end = self.entries[name], start
            while end < len(data) and at < len(message) and data[end] == message[at]:
                end, at = end + 1, at + 1
            while own and start and data[start - 1] == own[-1]:
                own, start = own[:-1], start - 1
            parts += [own.hex()] if own else []
            parts.append([name] if (start, end) == (0, len(data)) else [name, start, end])
            own = b""
        return parts + ([own.hex()] if own else [])

    def content(self) -> dict[str, str]:
        """As it stands in the file."""
        return {name: data.hex() for name, data in self.entries.items()}


def put_together(parts: Parts, entries: dict[str, str]) -> bytes:
    """The bytes of such parts."""
    whole = b""
    for part in parts:
        if isinstance(part, str):
            whole += bytes.fromhex(part)
        else:
            name, *bounds = part
            start, end = bounds or (0, None)
            whole += bytes.fromhex(entries[name])[start:end]
    return whole


def shortened(scripts: list[Any]) -> list[Any]:
    """Scripts with what they have in common with the first one left out: ``after`` says how many steps."""
    first, *others = scripts
    short = [first]
    for script in others:
        same = 0
        for one, other in zip(first["steps"], script["steps"], strict=False):
            if one != other:
                break
            same += 1
        steps = {"steps": script["steps"][same:]}
        after = {"after": [first["name"], same]} if same else {}
        other = {name: value for name, value in script.items() if name != "steps"}
        short.append({**other, **after, **steps})
    return short


def steps_of(script: Any, content: Any) -> list[Any]:
    """All steps of a script."""
    if "after" not in script:
        return list(script["steps"])
    name, count = script["after"]
    before = next(one for one in content["scripts"] if one["name"] == name)
    return [*before["steps"][:count], *script["steps"]]


def file_text(content: Any, depth: int = 0) -> str:
    """JSON that can be read and compared: what is deeper than a step stands on one line."""
    if depth > 3 or not isinstance(content, dict | list) or not content:
        return json.dumps(content, ensure_ascii=False)
    named = isinstance(content, dict)
    lines = (
        f"{json.dumps(name, ensure_ascii=False)}: {file_text(value, depth + 1)}"
        if named
        else file_text(value, depth + 1)
        for name, value in (content.items() if isinstance(content, dict) else enumerate(content))
    )
    space, (left, right) = " " * (depth + 1), "{}" if named else "[]"
    return f"{left}\n{space}" + f",\n{space}".join(lines) + f"\n{space[:-1]}{right}"


def _envelopes(data: bytes) -> tuple[Envelope | SeedEnvelope, ...]:
    """Those in a message, or in the message of a step."""
    message = data[_STEP_BYTES:] if data[:1] == _STEP else data
    if message[:9] != b"secfed/v1":
        return ()
    for kind in (Sharing, Deliveries, NeighbourSharing, NeighbourDeliveries):
        if peek_type(message) == kind.TYPE:
            found = kind.decode(message)
            return (*found.envelopes, *getattr(found, "seeds", ()))
    return ()


@dataclass
class SealedOnce(Envelopes):
    """Sealing is random inside the library: what an earlier run sealed is taken from the file if it fits."""

    packages: list[bytes] = field(default_factory=list)  # sealed study keys
    known: dict[tuple[str, str], list[Envelope | SeedEnvelope]] = field(default_factory=dict)
    made: dict[tuple[bytes, ...], bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> SealedOnce:
        """From the file, if there is one."""
        envelopes = cls()
        for path in sorted(folder.glob(_STORES)):
            for text in json.loads(path.read_text())["bytes"].values():
                data = bytes.fromhex(text)
                for one in _envelopes(data):
                    envelopes.known.setdefault((one.sender, one.recipient), []).append(one)
                if data[:11] == _DELIVERY:
                    envelopes.packages.append(KeyDelivery.decode(data[1:]).package.sealed_key)
        return envelopes

    def seal(self, public: bytes, plaintext: bytes, label: bytes, *context: bytes) -> bytes:
        """One envelope for one content."""
        what = public, plaintext, label, *context
        if what not in self.made:
            self.made[what] = self._recorded(what) or sealing.seal(*what)
        return self.made[what]

    def _recorded(self, what: tuple[bytes, ...]) -> bytes | None:
        _, _, label, *context = what
        if label == labels.SEAL_STUDY_KEY:
            return self._opening(self.packages, *what)
        sealed = []
        for one in self.known.get((context[2].decode(), context[3].decode()), ()):
            if label == labels.SEAL_PAIR_SEED or isinstance(one, SeedEnvelope):
                sealed.append(one.sealed_seed)
            else:
                sealed.append(one.sealed_shares)
        return self._opening(sealed, *what)

    def _opening(
        self, sealed: Iterable[bytes], public: bytes, plaintext: bytes, label: bytes, *context: bytes
    ) -> bytes | None:
        """The first of these that opens to a plaintext."""
        for one in sealed:
            try:
                if self.keys[public].open(one, label, *context) == plaintext:
                    return one
            except MalformedMessage:
                pass
        return None
