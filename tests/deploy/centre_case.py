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

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.deploy.aggregator.study import CentralStudy
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import CallFailed
from secfed.deploy.transport.client import LinkRequest as Asked
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits
from secfed.records.roster_file import read_roster
from secfed.records.transcript import Transcript
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.storage import private_files
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.frames import Notice, decode
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


class Hospital:
    """A site in a thread: dials out, works, and answers a repeated frame from its record."""

    def __init__(self, folder: SiteFolder, central: CentralStudy, address: str) -> None:
        study, name = central.study, folder.name
        identity = folder.identity(None)
        self.log = Transcript(
            identity,
            study=study_id(study),
            roster_digest=central.roster.digest,
            sink=folder.folder / "transcript.jsonl",
        )
        self.site = build_site(
            Terms(study, central.algorithm, central.names),
            Member(identity, folder.roster()),
            central.algorithm.site(name),
            limits=SiteLimits(),
            draws=Draws.seeded(study.seed, name),
            store=NullStore(Journal(), study_id(study)),
            services=Services(self.log),
        )
        tls = folder.tls_material(None)
        caps = FrameCaps.of(central.algorithm, study.rounds, len(central.roster.sites), central.protection)
        self.link = GrpcSiteConnection(
            address,
            tls,
            study=study_id(study),
            max_frame_bytes=caps.request_bytes,
            software="secfed test",
            limits=QUICK,
        )
        self.answered: dict[bytes, bytes] = {}
        self.failures: list[CallFailed] = []
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.link.serve(self._handle, failed=self.failures.append)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def _handle(self, asked: Asked) -> Buffer:
        frame = bytes(asked.frame)
        if isinstance(decode(frame), Notice):
            return self.site.handle(frame)
        if frame not in self.answered:
            self.answered[frame] = bytes(self.site.handle(frame))
        return self.answered[frame]

    def close(self) -> None:
        self.link.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.log.close()


class Centre:
    """A consortium, its study, and the command that serves it."""

    def __init__(self, folder: Path, toml: str) -> None:
        self.folder = folder
        self.study_file = folder / "study.toml"
        self.study_file.write_text(toml, encoding="utf-8")
        self.study = Study.parse(toml)
        names = self.study.data.site_ids()
        self.consortium, self.folders = found_consortium(folder, names)
        roster = self.consortium.roster()
        assert roster is not None
        self.roster = roster
        self.central = CentralStudy(self.study, roster)
        self.out = folder / "run"
        self.hospitals: list[Hospital] = []

    def join(self, *names: str) -> None:
        address = f"localhost:{self.consortium.facts.port}"
        for name in names or tuple(self.folders):
            self.hospitals.append(Hospital(self.folders[name], self.central, address))

    def aggregate(self, *more: str, crash_at: str = "") -> subprocess.Popen[str]:
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
            stderr=subprocess.PIPE,
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
