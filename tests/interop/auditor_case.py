"""Records of a finished run, ways to tamper with them, and the auditor's own verifier."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

from secfed.audit.privacy.check import check
from secfed.crypto import labels
from secfed.crypto.identity import Identity
from secfed.crypto.messages import Result
from secfed.dp.ledger.ledger import LEDGER as LEDGER_CHAIN
from secfed.records.hash_chain import Chain, ChainType
from secfed.records.transcript import TRANSCRIPT
from tests.dp.report_case import LEDGER

HERE = Path(__file__).parents[2] / "examples" / "auditor"
SITE, OTHER = "hospital-b", "hospital-c"
Body = dict[str, Any]


def load_verifier() -> ModuleType:
    """examples/auditor/verify.py, with what it imports from beside it."""
    sys.path.insert(0, str(HERE))
    try:
        spec = util.spec_from_file_location("auditor_verify", HERE / "verify.py")
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(HERE))


class Run:
    """A copy of the run, and ways to tamper with it."""

    def __init__(self, case: Any, folder: Path, site: str = SITE, other: str = OTHER) -> None:
        self.case, self.path = case, Path(shutil.copytree(case.root / "run", folder))
        self.names = site, other
        self.central = self.path / "transcript.jsonl"
        self.site = self.path / "sites" / site / "transcript.jsonl"
        self.other = self.path / "sites" / other / "transcript.jsonl"
        self.ledger = self.path / "sites" / site / LEDGER

    def lines(self, path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    def replaced(self, path: Path, old: str, new: str) -> None:
        data = path.read_text()
        assert old in data
        path.write_text(data.replace(old, new, 1))

    def resigned(self, path: Path, change: Callable[[list[tuple[str, Body]]], object]) -> None:
        """The chain as its owner would write it anew, with a valid signature on every line."""
        kind = LEDGER_CHAIN if path.name == LEDGER else TRANSCRIPT
        site = self.names[path == self.other]
        owner = self.case.aggregator if path == self.central else self.case.identities[site]
        entries = [
            (entry["kind"], entry["body"]) for entry in map(json.loads, path.read_bytes().splitlines())
        ]
        before = [entry["hash"] for entry in map(json.loads, path.read_bytes().splitlines())]
        change(entries)
        write(path, owner, kind, entries)
        if path == self.ledger:  # and the heads that the site's own transcript recorded, too
            after = [entry["hash"] for entry in map(json.loads, path.read_bytes().splitlines())]
            heads = dict(zip(before[-len(after) :], after, strict=False))
            self.resigned(self.site, lambda found: [follow(body, heads) for _, body in found])

    def bodies(self, path: Path, kind: str, change: Callable[[Body], object]) -> None:
        """Re-sign with every body of one kind changed."""
        self.resigned(path, lambda entries: [change(body) for one, body in entries if one == kind])

    def problems(self) -> list[str]:
        """What ``secfed audit`` finds."""
        return [str(problem) for problem in check([self.path], [], None, []).problems]

    def signed(self, body: Body) -> Body:
        """A sum's body with a result that the aggregator signed."""
        spec, totals = bytes.fromhex(body["spec_digest"]), bytes.fromhex(body["totals_digest"])
        result = Result(spec, tuple(body["survivors"]), totals)
        signature = self.case.aggregator.sign(labels.SIGN_RESULT, result.body())
        return {**body, "result_signature": signature.hex()}


def follow(body: Body, heads: dict[str, str]) -> None:
    if "ledgers" in body:
        body["ledgers"] = {name: heads.get(head, head) for name, head in body["ledgers"].items()}


def write(path: Path, owner: Identity, kind: ChainType, entries: list[tuple[str, Body]]) -> None:
    made: list[bytes] = []
    chain = Chain(owner, kind, sink=made.append)
    for name, body in entries:
        chain.append(name, body)
    path.write_bytes(b"".join(made))


def flip(run: Run, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def dropped(kind: str, index: int) -> Callable[[list[tuple[str, Body]]], object]:
    return lambda entries: entries.remove([entry for entry in entries if entry[0] == kind][index])


def entries_of(path: Path) -> list[tuple[str, Body]]:
    return [(entry["kind"], entry["body"]) for entry in map(json.loads, path.read_bytes().splitlines())]
