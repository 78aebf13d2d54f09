"""An agent whose local work fails: ready on the wire, an alarm at home; a failure of its own is a code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.audit.privacy.evidence import DecisionFact
from secfed.audit.privacy.record_sections import in_words
from secfed.cli.app import app
from secfed.records.chain_file import verify_file
from secfed.records.decision_log import DECISIONS
from secfed.records.decision_state import ACCEPTED, ALARM, PER_DAY, DecisionState
from secfed.runs.run_folder import DECISIONS_FILE
from secfed.site.session import Site
from secfed.wire.frames import READY, Task, encode_state
from tests.deploy.agent_case import NAMES, POLICY, TOML, Centre, status
from tests.deploy.link_case import wait_until

NAME = NAMES[0]
DIVERGING = TOML.replace("learning_rate = 0.1", "learning_rate = 1e38")
PERMITTING = POLICY.replace("learning_rate = {{ max = 1.0 }}", 'learning_rate = "any"')


@contextmanager
def serving(folder: Path, toml: str) -> Iterator[Centre]:
    centre = Centre(folder, toml, policy=PERMITTING)
    try:
        centre.start(NAME)
        wait_until(lambda: '"serving"' in centre.boards[NAME].path.read_text(), 60.0)
        yield centre
    finally:
        centre.close()


def train(centre: Centre) -> list[bytes]:
    """What the agent answers to the first task."""
    algorithm = centre.terms.algorithm
    exchange = algorithm.exchanges(1)[0]
    state = encode_state(algorithm.server().broadcast(1, exchange))
    frame = Task(centre.terms.study_id, 1, 0, exchange.name, state).encode()
    replies: list[bytes] = []
    centre.link.ask("train", {NAME: frame}, lambda _site, reply: replies.append(bytes(reply)))
    return replies


def test_work_that_fails_is_ready_on_the_wire_and_an_alarm_at_home(tmp_path: Path) -> None:
    with serving(tmp_path, DIVERGING) as centre:
        assert train(centre) == [READY]
        assert centre.watched.refusals == []
        site = centre.folders[NAME]
        told = status(site)
        assert "'update': " in told["last_alarm"]["text"]
        assert told["totals"]["alarms"] >= 1
        assert told["totals"]["refusals"] == 0
        metrics = {item.name: item.value for one in centre.boards[NAME].collect() for item in one.samples}
        assert metrics["secfed_agent_alarms_total"] == told["totals"]["alarms"]
        shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["agent", "status", "--dir", str(site.folder)])
        assert "Last alarm  round 1, exchange 'update'" in shown.output
        log = verify_file(site.state / DECISIONS_FILE, site.request().identity_key, DECISIONS)
        entries = [entry.body for entry in log if entry.kind == ALARM]
        assert entries[0]["round"] == 1
        assert entries[0]["exchange"] == "update"
        assert entries[0]["digest"] == centre.study.digest().hex()
        assert "update" in " ".join(str(entry["text"]) for entry in entries)


@pytest.mark.usefixtures("trains_here")
def test_a_failure_that_nobody_thought_of_leaves_as_the_one_code_for_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise KeyError("patient 4711")

    with serving(tmp_path, TOML) as centre:
        monkeypatch.setattr(Site, "handle", broken)
        assert train(centre) == []
        assert centre.watched.refusals == [("train", NAME, "SecfedError", "this site cannot do this now")]
        assert centre.threads[NAME].is_alive()
        assert not centre.errors


def test_alarms_cannot_fill_the_log_and_are_shown_in_a_report() -> None:
    state = DecisionState()
    made: list[tuple[str, Mapping[str, Any]]] = []
    for number in range(PER_DAY + 20):
        facts = {"number": 0, "text": "update: NaN or Inf", "round": number, "exchange": "update"}
        found = state.stops(ALARM, "ab", "tiny", facts, number + 1, 0)
        for kind, body in found:
            state.take(kind, {**body, "time_s": 0})
        made += found
    assert len(made) == PER_DAY + 1
    assert state.count("ab", ALARM, 0) == PER_DAY
    assert state.count("ab", ACCEPTED, 0) == 0
    words = in_words(DecisionFact(1, 0, ALARM, text="update: NaN or Inf", count=4))
    assert words == "local work failed, and what failed added nothing: update: NaN or Inf (4 times so far)"
