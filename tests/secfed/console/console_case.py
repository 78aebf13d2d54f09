"""A hospital with a past: a study that ended yesterday, its ledger, and a study that waits for a person."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from secfed.console.guard import Guard
from secfed.console.hospital import Hospital
from secfed.console.pages import Console, make_app
from secfed.console.sign_in import SignIn
from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import Result, Specification
from secfed.deploy.admission.admission import admit
from secfed.deploy.admission.decision_recorder import record_now
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.policy.policy import Policy
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import PolicyRefused
from secfed.records.transcript import SETTINGS, SUMMED, SumRecord, Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file
from secfed.site.runtime import study_folder
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.deploy.agent_case import BUDGETED, NAMES, PRIVATE, permit
from tests.deploy.centre_case import found_consortium

PORT = 18_000
BASE = f"http://127.0.0.1:{PORT}"
DAY_S = 86_400
PAST = Study.parse(PRIVATE.replace('"tiny"', '"earlier"'))
WAITING = Study.parse(PRIVATE)
DIGEST = WAITING.digest().hex()
FIELDS = ["update/0.weight", "weight", "eval/records"]


def enrolled(folder: Path) -> tuple[Consortium, SiteFolder]:
    """A consortium, and one of its hospitals."""
    centre, sites = found_consortium(folder, NAMES)
    site = sites[NAMES[0]]
    permit(site, "manual", BUDGETED)
    return centre, site


def work(site: SiteFolder, centre: Consortium, roster: Roster) -> Path:
    """Two rounds of a study yesterday, in the hospital's records and the aggregator's."""
    run, identity = centre.folder.parent / "run", site.identity(None)
    aggregator = centre.aggregator_identity(None)
    ledger = Ledger(
        ledger_file(site.state, "wards"),
        identity,
        "wards",
        Policy.load(site.policy_path).budgets("wards"),
        accountant=Rdp(),
        clock=lambda: time.time() - DAY_S,
    )
    run.mkdir()
    own, central = (
        log_of(party, folder, roster) for party, folder in parties(site, identity, aggregator, run)
    )
    for number in (1, 2):
        where = {"study": study_id(PAST), "round_number": number, "exchange": "update"}
        ledger.spend(Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 4.0, 1), **where)
        ledger.note_unprotected(["eval/records"], values=2054, **where)
        spec = Specification(
            study_id(PAST), number, 0, "update", 0, NAMES, 3, roster.digest, bytes(32), bytes([number]) * 32
        )
        result = Result(spec.digest, NAMES, bytes([number]) * 32)
        signature = aggregator.sign(labels.SIGN_RESULT, result.body())
        body = SumRecord.of(spec, Result(spec.digest, NAMES, bytes([number]) * 32, signature)).to_body()
        central.append(SUMMED, {**body, "cohort": list(NAMES)})
        heads = {"wards": ledger.head.hex()}
        own.append(SUMMED, {**body, "layout": "00" * 32, "fields": FIELDS, "ledgers": heads})
    own.close()
    central.close()
    return run


def parties(
    site: SiteFolder, identity: Identity, aggregator: Identity, run: Path
) -> tuple[tuple[Identity, Path], ...]:
    folder = study_folder(site.state, study_id(PAST))
    folder.mkdir(parents=True)
    return (identity, folder), (aggregator, run)


def log_of(identity: Identity, folder: Path, roster: Roster) -> Transcript:
    log = Transcript(
        identity, study=study_id(PAST), roster_digest=roster.digest, sink=folder / TRANSCRIPT_FILE
    )
    log.append(SETTINGS, PAST.settings(len(NAMES)))
    return log


def ask(site: SiteFolder, roster: Roster, text: str = PRIVATE) -> None:
    """A study asks, and waits for a person."""
    try:
        admit(site, roster, study_id(Study.parse(text)), text.encode(), utc_now())
    except PolicyRefused:
        return
    raise AssertionError("it was let in")


@dataclass
class Opened:
    """A console with its guard."""

    site: SiteFolder
    roster: Roster
    console: Console
    guard: Guard
    centre: Consortium
    run: Path

    def client(self, base: str = BASE) -> TestClient:
        return TestClient(self.guard, base_url=base, follow_redirects=False)

    def entered(self) -> TestClient:
        client = self.client()
        assert client.get(f"/enter?token={self.guard.token}").status_code == 200
        client.base_url = self.below(BASE)
        return client

    def below(self, base: str) -> str:
        """The address that all pages are below."""
        return f"{base}{self.guard.base}/"

    def post(self, client: TestClient, address: str, origin: str | None = BASE, **form: str) -> int:
        return int(self.answer(client, address, origin, **form).status_code)

    def answer(self, client: TestClient, address: str, origin: str | None = BASE, **form: str) -> Any:
        headers = {} if origin is None else {"Origin": origin}
        if address.endswith("/decide") and self.console.person is not None:
            form = {"as": self.console.person.digest, **form}
        return client.post(address, data={"csrf": self.guard.csrf, **form}, headers=headers)


def write_hospital(folder: Path) -> None:
    """A hospital where a study waits, its consortium and the run of an earlier study."""
    centre, site = enrolled(folder)
    roster = site.roster()
    work(site, centre, roster)
    ask(site, roster)
    record_now(site)


def hospital_console(folder: Path, account: str = "dr.weiss", sign_in: SignIn | None = None) -> Opened:
    """The console of the hospital that :func:`write_hospital` wrote."""
    hospital = Hospital(folder / NAMES[0])
    console = Console(hospital, None, hospital.records, account, sign_in)
    guard = Guard(make_app(console), PORT, sign_in)
    centre = Consortium(folder / "centre")
    return Opened(hospital.site, hospital.site.roster(), console, guard, centre, folder / "run")
