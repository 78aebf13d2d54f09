"""Whole simulations of a study, and what they leave."""

from __future__ import annotations

from pathlib import Path

from secfed.dp.accounting.events import Event
from secfed.dp.ledger.ledger import spent_of, verify
from secfed.records.hash_chain import Entry
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.runs.run_folder import ledger_file, site_folder
from secfed.runs.run_report import RunReport, SilentObserver
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.study.study import Study


def run(made: Study, out: Path | None = None, *drops: str) -> RunReport:
    """Drops as on the command line."""
    return simulate(made, out=out, drops=[Dropout.parse(text) for text in drops], observer=SilentObserver())


def model_bytes(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def ledger(out: Path, site: str, dataset: str) -> tuple[Entry, ...]:
    """Of a site, verified."""
    with ledger_file(site_folder(out, site), dataset).open("rb") as lines:
        return verify(lines, read_roster(out / ROSTER_FILE).public(site), owner=site)


def paid(out: Path, site: str, dataset: str) -> list[Event]:
    return [entry.event for entry in spent_of(ledger(out, site, dataset))]
