"""The cases of ``functions.json`` about what is carried and kept: frames, chains, final models."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

import torch

from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import FinalModel
from secfed.records.hash_chain import Chain, Entry
from secfed.records.transcript import TRANSCRIPT
from secfed.wire.frames import Notice, Step, Task, encode_state
from tests.vectors.functions import outcome
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.world import STUDY, World

Cases = dict[str, Json]  # name -> input


def frames() -> Cases:
    task = Task("study", 3, 1, "update", b"the broadcast").encode()
    step = Step(3, 1, 2, b"the message").encode()
    return {
        "task": {"encoding": task.hex()},
        "task beyond ASCII": {"encoding": Task("süd", 2**32 - 1, 2**16 - 1, "", b"").encode().hex()},
        "step": {"encoding": step.hex()},
        "step without a message": {"encoding": Step(1, 0, 0, b"").encode().hex()},
        "notice": {"encoding": Notice(b"the message").encode().hex()},
        "!nothing": {"encoding": ""},
        "!kind 0": {"encoding": "00" + step.hex()[2:]},
        "!kind 4": {"encoding": "04" + step.hex()[2:]},
        "!a task that is cut off": {"encoding": task[:12].hex()},
        "!a step that is cut off": {"encoding": step[:10].hex()},
        "!a name that is too long": {"encoding": Task("x" * 201, 1, 0, "update", b"").encode().hex()},
        "!a name that is not UTF-8": {"encoding": task.replace(b"study", b"\xffudio"[:5]).hex()},
    }


_ENTRIES: Final = [
    ["opened", {"owner": "klinikum-süd", "study": "study", "roster_digest": "00" * 32}],
    [
        "settings",
        {
            "a float": 1.0,
            "another": 0.1,
            "small": 1e-05,
            "large": 1e16,
            "whole": 1,
            "null": None,
            "true": True,
        },
    ],
    [
        "summed",
        {"text": 'quote " backslash \\ newline \n tab \t \x7f \U0001f3e5', "nested": [{"b": [], "a": {}}]},
    ],
]


def appended() -> Cases:
    seed = pattern("chain").hex()
    cases: Cases = {
        kind: {"kind": kind, "identity_seed": seed, "owner": "klinikum-süd", "entries": _ENTRIES}
        for kind in ("transcript", "ledger", "decision log")
    }
    bodies = {
        "the largest integer": 2**53,
        "!an integer beyond 2^53": 2**53 + 1,
        "nested sixteen deep": _nested(13),
        "!nested seventeen deep": _nested(14),
    }
    good = cases["transcript"]
    return cases | {
        name: {**good, "entries": [_ENTRIES[0], ["x", {"x": body}]]} for name, body in bodies.items()
    }


def _nested(lists: int) -> Any:
    deep: Any = 1
    for _ in range(lists):
        deep = [deep]
    return deep


def _renumbered(given: Json) -> list[str]:
    """A chain whose owner counts from 0 to 2 without 1."""
    lines: list[bytes] = []
    identity = Identity.from_seed(given["owner"], bytes.fromhex(given["identity_seed"]))
    chain = Chain(identity, TRANSCRIPT, sink=lines.append)
    chain.append("opened", given["entries"][0][1])
    first = Entry(1, bytes(32), "x", {}, chain.head, bytes(64))
    Chain(identity, TRANSCRIPT, sink=lines.append, entries=(first, first)).append("x", {})
    return [line.decode() for line in lines]


def chains() -> Cases:
    given = appended()["transcript"]
    lines: list[str] = outcome("append", given)["output"]["lines"]
    public = Identity.from_seed("", bytes.fromhex(given["identity_seed"])).public_bytes.hex()

    def case(*changed: str, **more: str) -> Json:
        return {
            "kind": "transcript",
            "public": public,
            "owner": "klinikum-süd",
            "lines": list(changed),
            **more,
        }

    def line(at: int, **changes: Any) -> str:
        return json.dumps(json.loads(lines[at]) | changes, sort_keys=True, separators=(",", ":")) + "\n"

    first, second, third = lines
    other: list[str] = outcome("append", {**given, "entries": [_ENTRIES[0], *_ENTRIES[:0:-1]]})["output"][
        "lines"
    ]
    again: list[str] = outcome("append", {**given, "entries": [_ENTRIES[0], _ENTRIES[0]]})["output"]["lines"]
    unopened: list[str] = outcome("append", {**given, "entries": _ENTRIES[1:]})["output"]["lines"]
    return {
        "good": case(*lines),
        "good, a part of it": case(*lines[:2]),
        "!nothing": case(),
        "!a line left out": case(first, third),
        "!a line repeated": case(first, second, second),
        "!a line of another chain": case(first, second, other[2]),
        "!not opened": case(*unopened),
        "!opened twice": case(*again),
        "!of another owner": case(*lines, owner="hospital-1"),
        "!under another key": case(*lines, public=Identity.from_seed("", pattern("x")).public_bytes.hex()),
        "!of another kind": case(*lines, kind="ledger"),
        "!a changed body": case(first, line(1, body={}), third),
        "!a changed link": case(first, line(1, prev="00" * 32), third),
        "!a number left out, signed": case(*_renumbered(given)),
        "!a changed kind": case(first, line(1, kind="summed"), third),
        "!a changed signature": case(first, second, line(2, signature="00" * 64)),
        "!a changed hash": case(first, second, line(2, hash="00" * 32)),
        "!a space": case(first, second.replace(":", ": ", 1), third),
        "!a float without its point": case(first, second.replace("1.0", "1"), third),
        "!a float of another spelling": case(first, second.replace("0.1", "0.10"), third),
        "!the sequence number as a float": case(first, second.replace('"seq":1', '"seq":1.0'), third),
        "!the sequence number as true": case(first, second.replace('"seq":1', '"seq":true'), third),
        "!upper-case hexadecimal": case(first, second, third.replace(_hash(third), _hash(third).upper())),
        "!a character that is not escaped": case(
            first, second, third.replace("\\ud83c\\udfe5", "\U0001f3e5")
        ),
        "!a key twice": case(first, second.replace('"seq":1', '"seq":1,"seq":1'), third),
        "!a key more": case(first, line(1, zero=0), third),
        "!a key less": case(first, second.replace('"seq":1,', ""), third),
        "!no newline": case(first, second, third[:-1]),
        "!a carriage return": case(first, second[:-1] + "\r\n", third),
        "!not JSON": case(first, second, "{\n"),
    }


def _hash(line: str) -> str:
    return str(json.loads(line)["hash"])


def models(world: World) -> Cases:
    model, other = (encode_state({"weight": torch.full((3,), value)}) for value in (1.0, 2.0))
    unsigned = FinalModel(STUDY, world.roster.digest, 2, 5, hashlib.sha256(model).digest(), model=model)
    small = Roster.of(world.aggregator, [world.people["hospital-1"]])

    def case(signer: Identity = world.aggregator, label: bytes = labels.SIGN_MODEL, **changes: Any) -> Json:
        made = replace(unsigned, **changes)
        signed = replace(made, signature=signer.sign(label, made.body()))
        return {"roster": world.roster.encode().hex(), "study": STUDY, "encoding": signed.encode().hex()}

    good = case()
    data = bytes.fromhex(good["encoding"])
    return {
        "good": good,
        "before any sum": case(round=0, sums=0),
        "!signed by a site": case(world.people["hospital-1"]),
        "!signed as a result": case(label=labels.SIGN_RESULT),
        "!of another study": case(study="another"),
        "!of another roster": {**good, "roster": small.encode().hex()},
        "!another model": case(model=other),
        "!no model": case(model=b"none", model_digest=hashlib.sha256(b"none").digest()),
        "!a byte more": {**good, "encoding": (data + b"\0").hex()},
        "!a byte less": {**good, "encoding": data[:-1].hex()},
        "!unsigned": {**good, "encoding": data.replace(_signature(data), bytes(64)).hex()},
    }


def _signature(data: bytes) -> bytes:
    return bytes(FinalModel.decode(data).signature)
