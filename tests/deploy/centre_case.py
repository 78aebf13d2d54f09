"""An enrolled consortium on the disk, `secfed aggregate` as a process, and hospitals as threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secfed.deploy.aggregator.study import CentralStudy
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import CallFailed
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits
from secfed.records.roster_file import read_roster
from secfed.storage import private_files
from secfed.study.study import Study
from tests.deploy import central_case
from tests.deploy.link_case import wait_until
from tests.forks import Fork
from tests.ports import free_port, without_metrics

ROOT = Path(__file__).resolve().parents[2]
QUICK = ClientLimits(backoff_s=0.1, backoff_cap_s=0.3)
COMMAND = """
from secfed.cli.app import app
from secfed.cli.aggregate import aggregate
app.command("aggregate")(aggregate)
app()
"""


def admit(centre: Consortium, site: SiteFolder) -> None:
    centre.admit(site.request(), now=utc_now(), passphrase=None)


def found_consortium(folder: Path, names: tuple[str, ...]) -> tuple[Consortium, dict[str, SiteFolder]]:
    """Everyone admitted, joined, and with the roster pinned, as of now."""
    now = utc_now()
    centre = Consortium.create(folder / "centre", "Heart study", ("localhost",), now=now, port=free_port())
    sites = {name: SiteFolder.create(folder / name, name, now=now) for name in names}
    for site in sites.values():
        without_metrics(site.folder)
        admit(centre, site)
    for name, site in sites.items():
        reply = private_files.read_json(centre.folder / "replies" / f"{name}.json", "a reply")
        site.join(site.check_reply(reply, "reply", now), passphrase=None)
        site.trust(read_roster(centre.roster_path), now)
    return centre, sites


class Hospital(central_case.Hospital):
    """A site in a thread, which dials out."""

    def __init__(self, folder: SiteFolder, central: CentralStudy, address: str) -> None:
        super().__init__(central, folder.identity(None), folder.folder / "transcript.jsonl")
        study = central.study
        tls = folder.tls_material(None)
        caps = FrameCaps.of(central.algorithm, study.rounds, len(central.roster.sites), central.protection)
        self.link = GrpcSiteConnection(
            address,
            tls,
            study=central.id,
            max_frame_bytes=caps.request_bytes,
            software="secfed test",
            limits=QUICK,
        )
        self.failures: list[CallFailed] = []
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.link.serve(lambda asked: self.handle(asked.frame), failed=self.failures.append)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def close(self) -> None:
        self.link.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
        super().close()


class Centre:
    """A consortium, its study, and the command that serves it."""

    def __init__(self, folder: Path, toml: str) -> None:
        self.folder = folder
        self.study_file = folder / "study.toml"
        self.study_file.write_text(toml, encoding="utf-8")
        self.study = Study.parse(toml)
        names = self.study.data.site_ids()
        self.consortium, self.folders = found_consortium(folder, names)
        self.roster = self.consortium.roster()
        self.central = CentralStudy(self.study, self.roster)
        self.out = folder / "run"
        self.hospitals: list[Hospital] = []

    def join(self, *names: str) -> None:
        address = f"localhost:{self.consortium.facts.port}"
        for name in names or tuple(self.folders):
            self.hospitals.append(Hospital(self.folders[name], self.central, address))

    def aggregate(
        self, *more: str, crash_at: str = "", stderr: Any = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        options = ("--consortium", str(self.consortium.folder), "--out", str(self.out), "--log-json", *more)
        environment: Mapping[str, str] = {
            **os.environ,
            "SECFED_CRASH_AT": crash_at,
            "OMP_NUM_THREADS": "1",
        }
        return Fork(
            [sys.executable, "-c", COMMAND, "aggregate", str(self.study_file), *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def close(self) -> None:
        for hospital in self.hospitals:
            hospital.close()


def interrupted(process: subprocess.Popen[str], until: str) -> str:
    """Ctrl-C as soon as its log says ``until``; all of its log."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True)
    reader.start()
    wait_until(lambda: any(until in line for line in lines) or process.poll() is not None, 300.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, "".join(lines)
    reader.join(60)
    process.stderr.close()
    process.stdout.close()
    return "".join(lines)


def events(log: str) -> list[dict[str, Any]]:
    """The JSON lines of a log."""
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]
