"""A study whose hospitals cannot take part, from end to end: nobody pays, and each is told what to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from secfed.deploy.agent.agent import Agent
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard, read_status
from secfed.deploy.enrolment.messages import Request, utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import LEDGER, SPENT, Ledger
from secfed.records.chain_file import verify_file
from secfed.records.roster_file import read_roster
from secfed.records.transcript import ABORTED, REFUSED, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file
from secfed.storage import private_files
from tests.deploy.admission.test_known_before import BUDGETED, DAY_S, spend
from tests.deploy.agent.test_training import PRIVATE
from tests.deploy.agent_case import QUICK, permit
from tests.deploy.centre_case import Centre, events, interrupted
from tests.deploy.link_case import wait_until


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, PRIVATE)
    yield made
    made.close()


def admit(centre: Centre, name: str) -> None:
    site = SiteFolder.create(centre.folder / name, name, now=utc_now())
    request = Request.verified(private_files.read_json(site.request_path, "a request"), "request")
    centre.consortium.admit(request, now=utc_now(), passphrase=None)


def replace_a_member(centre: Centre) -> None:
    """One hospital outside the study leaves and another one comes: as many as before, and nobody pins it."""
    admit(centre, "hospital-8")
    for site in centre.folders.values():
        site.trust(read_roster(centre.consortium.roster_path), utc_now())
    centre.consortium.remove("hospital-8", now=utc_now())
    admit(centre, "hospital-9")


def date_ledgers_in_the_future(centre: Centre) -> None:
    now_s = utc_now().timestamp()
    for site in centre.folders.values():
        path = ledger_file(site.state, "wards")
        budget = Budget(20.0, 1e-4)
        spend(Ledger(path, site.identity(None), "wards", [budget], clock=lambda: now_s + 30 * DAY_S))


@contextmanager
def agents(centre: Centre) -> Iterator[None]:
    """Every hospital's agent, in a thread of this process."""
    made = [
        Agent(site, passphrase=None, board=StatusBoard(site.state / STATUS_FILE, name), limits=QUICK)
        for name, site in centre.folders.items()
    ]
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in made]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for agent in made:
            agent.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def why(site: SiteFolder) -> str:
    status = read_status(site.state / STATUS_FILE)
    return "" if status is None else str(status["why"] or "")


def paid(site: SiteFolder) -> list[str]:
    """The studies that this hospital's ledger names a payment for."""
    path = ledger_file(site.state, "wards")
    if not path.exists():
        return []
    entries = verify_file(path, site.identity(None).public_bytes, LEDGER)
    return [str(entry.body["study"]) for entry in entries if entry.kind == SPENT]


@pytest.mark.parametrize(
    ("happens", "remedy", "before"),
    [
        (replace_a_member, "secfed site trust ROSTER", []),
        (date_ledgers_in_the_future, "set the clock", ["earlier"]),
    ],
)
def test_no_round_is_begun_nobody_pays_and_the_remedy_is_named(
    centre: Centre, happens: object, remedy: str, before: list[str]
) -> None:
    for site in centre.folders.values():
        permit(site, policy=BUDGETED)
    happens(centre)  # type: ignore[operator]
    process = centre.aggregate()
    try:
        with agents(centre):
            wait_until(lambda: all(why(site) for site in centre.folders.values()), 120.0)
            assert all(remedy in why(site) for site in centre.folders.values())
            time.sleep(1.0)  # in which a round would begin
            assert process.poll() is None, "it waits for hospitals, and can go on once they can take part"
            log = interrupted(process, until="refuses the study")
    finally:
        process.kill()
    told = events(log)
    assert [event["message"] for event in told if event["message"] in ("quorum", "round")] == []
    assert any("refuses the study" in str(event.get("why")) for event in told)
    entries = verify_file(
        centre.out / TRANSCRIPT_FILE, centre.consortium.aggregator_identity(None).public_bytes, TRANSCRIPT
    )
    assert not {entry.kind for entry in entries} & {SUMMED, ABORTED, REFUSED}
    assert [paid(site) for site in centre.folders.values()] == [before] * 3
