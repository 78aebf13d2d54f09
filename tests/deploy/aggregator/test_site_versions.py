"""The versions that hospitals say they run: beside their names, and a warning where one differs."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from secfed.cli.aggregate_log import tell_person
from secfed.deploy.aggregator.measured_transport import SiteVersions
from secfed.deploy.transport.study_server import Presence

OWN = "secfed 0.2.0"


class Watched:
    def __init__(self, **software: str) -> None:
        self.software = software
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.versions = SiteVersions(self.presence, self.tell, OWN)

    def presence(self) -> dict[str, Presence]:
        return {site: Presence(0.0, True, says, None) for site, says in self.software.items()}

    def tell(self, event: str, **facts: Any) -> None:
        self.told.append((event, facts))


def test_events_that_list_sites_say_what_they_run() -> None:
    watched = Watched(charite=OWN, hcuge="")
    watched.versions.tell("waiting", needed=3, sites=["charite", "hcuge"])
    watched.versions.tell("finished", out="run")
    assert watched.told == [
        ("waiting", {"needed": 3, "sites": ["charite", "hcuge"], "software": {"charite": OWN}}),
        ("finished", {"out": "run"}),
    ]


def test_another_version_is_told_once() -> None:
    watched = Watched(charite=OWN, hcuge="secfed 0.1.0", ukhd="")
    for _ in range(3):
        watched.versions.look()
    warning = ("version", {"site": "hcuge", "software": "secfed 0.1.0", "own": OWN})
    assert watched.told == [warning]
    watched.software["ukhd"] = "secfed 0.1.0"
    watched.versions.tell("told", sites=["ukhd"])
    assert [event for event, _ in watched.told] == ["version", "told", "version"]


def test_a_person_reads_it_and_control_characters_stay_out() -> None:
    out = io.StringIO()
    watched = Watched(charite=OWN, hcuge="secfed \x1b[2J")
    versions = SiteVersions(watched.presence, tell_person(Console(file=out, width=300)), OWN)
    versions.tell("waiting", needed=3, sites=["charite", "hcuge"])
    first, second = out.getvalue().splitlines()
    assert first.startswith("waiting for 3 hospitals; there now: charite (secfed 0.2.0), hcuge (secfed ")
    assert second.startswith("warning: hcuge runs secfed ")
    assert "this is secfed 0.2.0" in second
    assert "\x1b" not in out.getvalue()
