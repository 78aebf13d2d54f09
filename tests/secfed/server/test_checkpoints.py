"""Checkpoints, and what the transcript says about them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from secfed.crypto.identity import Identity
from secfed.errors import ConfigError, TranscriptError
from secfed.records.transcript import ABORTED, SUMMED, Transcript
from secfed.server.checkpoints import CHECKPOINT, Checkpoint, KeptRun, ReplayedLog
from secfed.server.coordinator import Position
from secfed.storage import failpoints
from tests.secfed.chain_case import verify
from tests.secfed.checkpoint_case import Crash, answers


def test_what_was_said_is_not_said_again_and_must_be_the_same(tmp_path):
    identity = Identity.generate("aggregator")
    with Transcript(identity, study="s", roster_digest=bytes(32), sink=tmp_path / "t.jsonl") as log:
        said = [
            log.append(SUMMED, {"round": 1, "exchange": "u", "survivors": ["a"]}),
            log.append(ABORTED, {"round": 2, "reason": "few"}),
        ]
        once, length = ReplayedLog(log, said), len(log)
        once.append(SUMMED, {"round": 1, "exchange": "u", "survivors": ["a"]})
        once.append(ABORTED, {"round": 2, "reason": "few"})
        assert len(log) == length
        with pytest.raises(TranscriptError, match="differs"):
            once.append(SUMMED, {"round": 1, "exchange": "u", "survivors": ["a", "b"]})
        once.append(SUMMED, {"round": 1, "exchange": "v", "survivors": ["a"]})
        once.append("refused", {"round": 1})
        once.append("refused", {"round": 1})
        assert len(log) == length + 3


def test_a_checkpoint_comes_back_bit_by_bit():
    shared = torch.arange(6, dtype=torch.float64)
    state = {
        "x": shared,
        "same": shared,
        "view": shared[::2],
        "n": torch.tensor(float("nan")),
        "": torch.zeros(()),
    }
    made = Checkpoint(
        "study", Position(3, 1), state, {"sums": 2}, {"rounds": [{"metrics": {"auc": float("nan")}}]}
    )
    back = Checkpoint.decode(made.encode())
    assert (back.study, back.position, back.facts) == ("study", Position(3, 1), {"sums": 2})
    assert list(back.state) != []
    for name, tensor in state.items():
        assert back.state[name].dtype == tensor.dtype
        assert back.state[name].contiguous().numpy().tobytes() == tensor.contiguous().numpy().tobytes()
    assert str(back.notes) == str(made.notes)
    assert Checkpoint.decode(Checkpoint("s", Position(), {}, {}, {}).encode()).state == {}


def kept(folder: Path, log: Transcript, entries: Sequence[Any]) -> KeptRun:
    return KeptRun(folder, "study", log, entries, answers({}))


@pytest.mark.parametrize(
    ("point", "goes_on_at"),
    [
        ("aggregate: before a checkpoint is written", 1),
        ("aggregate: after a checkpoint is written", 1),
        ("aggregate: after a checkpoint is in the transcript", 2),
        ("aggregate: after a checkpoint is in place", 2),
    ],
)
def test_the_transcript_says_which_checkpoint_counts(tmp_path, monkeypatch, point, goes_on_at):
    identity = Identity.generate("aggregator")
    lines: list[bytes] = []
    log = Transcript(identity, study="study", roster_digest=bytes(32), sink=lines.append)

    def entries() -> Any:
        return verify(lines, identity.public_bytes)

    run = kept(tmp_path, log, entries())
    assert not run.resumed
    run.keep(Position(1), {"x": torch.tensor(1.0)}, {})
    run.asks.close()

    def reached(name: str) -> None:
        if name == point:
            raise Crash

    monkeypatch.setattr(failpoints, "failpoint", reached)
    with pytest.raises(Crash):
        run.keep(Position(2), {"x": torch.tensor(2.0)}, {})
    monkeypatch.undo()
    again = kept(tmp_path, log, entries())
    assert again.resumed
    assert again.start == Position(goes_on_at)
    assert again.state is not None
    assert float(again.state["x"]) == goes_on_at
    length = len(lines)
    again.keep(Position(goes_on_at), {"x": torch.tensor(float(goes_on_at))}, {})
    assert len(lines) == length  # it is there already
    again.asks.close()
    digests = [entry.body["sha256"] for entry in entries() if entry.kind == CHECKPOINT]
    assert hashlib.sha256((tmp_path / "resume" / "checkpoint").read_bytes()).hexdigest() == digests[-1]
    assert (tmp_path / "resume").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "resume").iterdir())


def test_a_missing_checkpoint_is_an_error_not_a_new_beginning(tmp_path):
    identity = Identity.generate("aggregator")
    with Transcript(identity, study="study", roster_digest=bytes(32)) as log:
        run = kept(tmp_path, log, ())
        entry = log.append(CHECKPOINT, {"round": 1, "exchange_index": 0, "sha256": "00" * 32})
        run.keep(Position(1), {}, {})
        run.asks.close()
        with pytest.raises(TranscriptError, match="not the checkpoint that the transcript names"):
            kept(tmp_path, log, [entry])


def test_a_checkpoint_that_cannot_be_looked_at_is_an_error_of_the_disk(tmp_path, monkeypatch):
    stat = Path.stat

    def forbidden(path: Path, **how: Any) -> Any:
        if path.stem == "checkpoint":
            raise PermissionError(13, "Permission denied")
        return stat(path, **how)

    with Transcript(Identity.generate("aggregator"), study="study", roster_digest=bytes(32)) as log:
        entry = log.append(CHECKPOINT, {"round": 1, "exchange_index": 0, "sha256": "00" * 32})
        monkeypatch.setattr(Path, "stat", forbidden)
        with pytest.raises(ConfigError, match="Permission denied"):
            kept(tmp_path, log, [entry])
