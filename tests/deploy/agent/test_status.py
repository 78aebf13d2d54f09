"""Logs and metrics of the agent."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.agent.status import STATUS_FILE, StatusBoard, read_status
from secfed.deploy.transport import metrics_server
from secfed.deploy.transport.json_log import JsonFormatter
from secfed.deploy.transport.metrics_server import MetricsServer
from secfed.errors import ConfigError
from secfed.storage import private_files


@pytest.fixture
def board(tmp_path: Path) -> StatusBoard:
    return StatusBoard(tmp_path / STATUS_FILE, "ukhd", clock=lambda: 7.0)


@pytest.fixture
def metrics(board: StatusBoard) -> Iterator[MetricsServer]:
    server = MetricsServer(0, board)
    yield server
    server.close()


def test_what_left_is_listed_with_its_bytes(board: StatusBoard) -> None:
    board.count(bytes_up=100)
    board.count(bytes_up=20)
    board.left({"round": 1, "fields": ["update/w"], "survivors": ["a", "b", "c"]})
    board.left({"round": 2, "fields": ["update/w"], "survivors": ["a", "b", "c"]})
    content = read_status(board.path)
    assert [item["bytes_up"] for item in content["left"]] == [120, 0]
    assert content["totals"]["sums"] == 2
    for number in range(200):
        board.left({"round": number})
    content = read_status(board.path)
    assert len(content["left"]) == 50


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_status_that_cannot_be_written_ends_nothing_and_is_logged_once(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refused(*_names: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(private_files.os, "replace", refused)
        for _ in range(3):
            board.set(connection="failing")
            board.error("connection refused")
            board.left({"round": 1})
        StatusBoard(board.path, "ukhd")  # an agent that starts meanwhile
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2  # one each
    assert f"{board.path}: {os.strerror(number)}" in told[0]
    assert "goes on" in told[0]
    assert [path.name for path in board.path.parent.iterdir()] == [STATUS_FILE]
    board.set(connection="connected")
    content = read_status(board.path)
    assert content["totals"]["sums"] == 3
    with monkeypatch.context() as patch:
        patch.setattr(private_files.os, "replace", refused)
        board.set(connection="failing")
    assert len(caplog.records) == 3  # it was well in between: this is another fault


def test_metrics_are_served_on_this_machine_only(board: StatusBoard, metrics: MetricsServer) -> None:
    board.count(failures=3)
    board.set(connection="connected", state="serving", round=4)
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as reply:
        text = reply.read().decode()
    values = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert float(values["secfed_agent_connection_failures_total"]) == 3
    assert float(values["secfed_agent_connected"]) == 1
    assert float(values["secfed_agent_round"]) == 4
    assert metrics._server.server_address[0] == "127.0.0.1"
    with pytest.raises(ConfigError, match="metrics_port"):
        MetricsServer(metrics.port, board)


def test_half_a_request_is_let_go(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Any account of the machine can open connections; what they hold must come back."""
    monkeypatch.setattr(metrics_server, "_REQUEST_S", 0.2)
    server = MetricsServer(0, board)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"GET /metrics HTT")
            assert connection.recv(1) == b""  # closed by the server
    finally:
        server.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_log_line_is_one_json_object_without_a_traceback() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("secfed.test")
    log.propagate = False
    log.addHandler(handler)
    try:
        raise ValueError("patient 17")
    except ValueError:
        log.exception("it\nfailed", extra={"facts": {"study": "heart", "message": "no"}})
    log.removeHandler(handler)
    (line,) = stream.getvalue().splitlines()
    content = json.loads(line)
    assert content["message"] == "it\nfailed"
    assert content["study"] == "heart"
    assert content["exception"] == "ValueError"
    assert "patient" not in line


def test_an_alarm_is_shown_and_counted_at_the_hospital(board: StatusBoard) -> None:
    board.alarm("round 3, exchange 'update': update added nothing (NaN or Inf)")
    content = read_status(board.path)
    assert content["last_alarm"] == {
        "text": "round 3, exchange 'update': update added nothing (NaN or Inf)",
        "time_s": 7,
    }
    assert content["totals"]["alarms"] == 1
    samples = {sample.name: sample.value for family in board.collect() for sample in family.samples}
    assert samples["secfed_agent_alarms_total"] == 1
