"""A finished run as the engine reports it, with a dropout and an aborted round; and a way to call the CLI."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from secfed.cli.app import app
from secfed.runs.aggregator_saw import what_the_aggregator_saw
from secfed.runs.run_report import PerSite, RoundReport, RunReport
from secfed.wire.layout import Field, Layout

SITES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
LAYOUT = Layout((Field("update/a", (31,), 1.0, 32),), sites=4)


def a_round(number: int, **changes: Any) -> RoundReport:
    report = RoundReport(
        round=number,
        survivors=SITES,
        asked=SITES,
        metrics={"roc_auc": 1 - 0.4 / (number + 1), "accuracy": 0.9, "loss": 0.5 / number},
        bytes_up_per_site=PerSite(1234.0, 1300),
        bytes_down_per_site=PerSite(2345.0, 2345),
        seconds={"train": 0.21, "protect": 0.034, "carry": 0.002, "server": 0.012},
    )
    return replace(report, **changes)


def a_run(*, rounds: int = 5, protection: str = "masked", **changes: Any) -> RunReport:
    reports = [a_round(number) for number in range(1, rounds + 1)]
    if rounds >= 5:
        reports[1] = replace(reports[1], survivors=SITES[:1] + SITES[2:], drops=(("hospital-2", "mask"),))
        reports[2] = replace(reports[2], drops=(("hospital-3", "unmask"),))
        reports[3] = replace(
            reports[3],
            survivors=(),
            aborted="round 4, exchange 'fit': too few sites.",
            drops=(("hospital-1", "share"),),
        )
    saw = what_the_aggregator_saw(
        protection, sums=6, survivors=[3, 4], layouts=[LAYOUT], words={"update": "parameters"}
    )
    report = RunReport(
        "breast-cancer",
        "fedavg",
        protection,
        SITES,
        tuple(reports),
        {"roc_auc": 0.98},
        saw,
        initial={"roc_auc": 0.5},
    )
    return replace(report, **changes)


def secfed(*arguments: object, columns: int = 120) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(item) for item in arguments])


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Every scalar of every event file below the folder; each must be there once."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra track")
    found: dict[tuple[str, int], float] = {}
    for file in folder.rglob("*tfevents*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    assert (value.tag, event.step) not in found
                    found[value.tag, event.step] = value.simple_value
    return found
