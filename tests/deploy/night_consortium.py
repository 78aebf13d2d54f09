"""The consortium of a night on the disk: five hospitals, a study centre, and what they are asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secfed.records.transcript import CLOSED
from tests.deploy.deployment_case import POLICY, STUDY, secfed
from tests.deploy.night_parties import Party, restart_prevented
from tests.ports import free_port, without_metrics

BUDGET_EPSILON: Final = 6.0
DATA: Final = "breast-cancer"


@dataclass(frozen=True)
class NightStudy:
    """A study of the night."""

    name: str
    sites: int
    rounds: int
    reveal: str = "aggregator"
    epsilon: float = 1.5
    refused: bool = False

    def text(self) -> str:
        """Its file."""
        text = STUDY.format(rounds=self.rounds, sites=self.sites)
        text = text.replace('name = "plugs"', f'name = "{self.name}"')
        text = text.replace("epsilon = 8.0", f"epsilon = {self.epsilon}")
        metrics = "unprotected" if self.reveal == "aggregator" else "withheld"
        text = text.replace('metrics = "unprotected"', f'metrics = "{metrics}"')
        return text.replace("deadline_s = 3600", f'deadline_s = 3600\nreveal = "{self.reveal}"')


PAUSED, FIRST, WITH_LATE, CLOSED_SUMS, TOO_MUCH = STUDIES = (
    NightStudy("put-aside", 3, 8),
    NightStudy("four-sites", 4, 10),
    NightStudy("with-the-new", 5, 8),
    NightStudy("closed-sums", 5, 8, reveal="sites"),
    NightStudy("too-much", 4, 1, epsilon=BUDGET_EPSILON, refused=True),
)


class Consortium:
    """Everything is below ``folder``, the disks of the parties included."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "logs"
        centre = folder / "centre"
        self.centre_folder, self.studies, self.runs = (
            centre / "consortium",
            centre / "studies",
            centre / "runs",
        )
        self.logs.mkdir(parents=True)
        port = free_port()
        command = ["aggregate", str(self.studies), "--consortium", str(self.centre_folder)]
        command += [
            "--out",
            str(self.runs),
            "--listen",
            f"127.0.0.1:{port}",
            "--log-json",
            "--farewell",
            "120",
        ]
        self.centre = self._party("centre", "secfed-aggregator@.service", command)
        self.hospitals: dict[str, Party] = {}
        self.site_folders: list[tuple[str, Path]] = []  # a hospital that begins anew has another one
        self.studies.mkdir()
        where = ["--aggregator-host", "localhost", "--port", port]
        secfed("consortium", "init", self.centre_folder, "--name", "Night", *where)
        for number in range(1, 5):
            self.enrol(f"hospital-{number}", "site")
        self.everyone_trusts()

    def _party(self, name: str, unit: str, command: list[str]) -> Party:
        log, prevented = self.logs / f"{name}.log", restart_prevented(unit)
        party = Party(name, self.folder / name, command, log, prevented)
        party.mount()
        return party

    @property
    def parties(self) -> tuple[Party, ...]:
        """The study centre and every hospital that ever was there."""
        return self.centre, *self.hospitals.values()

    def enrol(self, name: str, folder_name: str) -> None:
        """Make keys, be admitted, and join."""
        if name not in self.hospitals:
            self.hospitals[name] = self._party(name, "secfed-agent.service", [])
        site = self.hospitals[name].folder / folder_name
        self.hospitals[name].command = ["agent", "run", str(site), "--poll-s", "2"]
        self.site_folders.append((name, site))
        secfed("site", "init", site, "--name", name)
        (site / "policy.toml").write_text(_policy(), encoding="utf-8")
        without_metrics(site)
        secfed("consortium", "admit", site / "request.json", "--dir", self.centre_folder, "--yes")
        reply, roster = self.centre_folder / "replies" / f"{name}.json", self.centre_folder / "roster.json"
        secfed("site", "join", reply, "--dir", site, "--roster", roster, "--yes")

    def site(self, name: str) -> Path:
        """The folder in which this hospital works now."""
        return dict(self.site_folders)[name]

    def members(self) -> list[Party]:
        """The hospitals of the roster."""
        roster = json.loads((self.centre_folder / "roster.json").read_bytes())["sites"]
        return [party for name, party in self.hospitals.items() if name in roster]

    def everyone_trusts(self) -> None:
        """Every member pins the present roster."""
        for party in self.members():
            roster = self.centre_folder / "roster.json"
            secfed("site", "trust", roster, "--dir", self.site(party.name), "--yes")

    def put(self, study: NightStudy) -> None:
        """Give the study its place in the order of turns; its file is there whole, or not at all."""
        path = self.studies / f"{STUDIES.index(study)}-{study.name}.toml"
        new = path.with_suffix(".new")
        new.write_text(study.text(), encoding="utf-8")
        new.replace(path)

    def out(self, study: NightStudy) -> Path:
        """The folder of its run."""
        return self.runs / f"{STUDIES.index(study)}-{study.name}"

    def sums(self, *studies: NightStudy) -> int:
        """How many sums the runs of these, or of all, have."""
        return sum(self._transcript(study).count(b'"kind":"summed"') for study in studies or STUDIES)

    def is_over(self, study: NightStudy) -> bool:
        """Whether its run is closed."""
        return f'"kind":"{CLOSED}"'.encode() in self._transcript(study)

    def refusing(self) -> list[str]:
        """Hospitals whose log says that a budget does not cover a study."""
        return [party.name for party in self.hospitals.values() if "would exceed" in party.said_since(0)]

    def is_refused(self) -> bool:
        """Whether so many refuse the study that is too much that it can come to no sum."""
        return len(self.refusing()) > TOO_MUCH.sites - 3

    def _transcript(self, study: NightStudy) -> bytes:
        try:
            return (self.out(study) / "transcript.jsonl").read_bytes()
        except FileNotFoundError:
            return b""


def _policy() -> str:
    text = POLICY.replace("epsilon = 20.0", f"epsilon = {BUDGET_EPSILON}")
    text = text.replace("max_epsilon = 8.0", f"max_epsilon = {BUDGET_EPSILON}")
    text = text.replace('metrics = ["unprotected"]', 'metrics = ["unprotected", "withheld"]')
    return text.replace('names = ["*"]', 'names = ["*"]\nnear_twins = "permit"')
