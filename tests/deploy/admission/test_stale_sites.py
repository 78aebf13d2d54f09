"""A study whose hospitals cannot take part, from end to end: nobody pays, and each is told what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from secfed.deploy.agent.status import STATUS_FILE, read_status
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import LEDGER, SPENT, Ledger
from secfed.records.chain_file import verify_file
from secfed.records.roster_file import read_roster
from secfed.records.transcript import ABORTED, REFUSED, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file
from tests.deploy.admission.test_known_before import DAY_S, spend
from tests.deploy.agent_case import BUDGETED, PRIVATE, Agents, permit
from tests.deploy.centre_case import Centre, admit, events, interrupted
from tests.deploy.link_case import wait_until


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, PRIVATE)
    yield made
    made.close()


def replace_a_member(centre: Centre) -> None:
    """One hospital outside the study leaves and another one comes: as many as before, and nobody pins it."""
    admit(centre.consortium, SiteFolder.create(centre.folder / "hospital-8", "hospital-8", now=utc_now()))
    for site in centre.folders.values():
        site.trust(read_roster(centre.consortium.roster_path), utc_now())
    centre.consortium.remove("hospital-8", now=utc_now())
    admit(centre.consortium, SiteFolder.create(centre.folder / "hospital-9", "hospital-9", now=utc_now()))


def date_ledgers_in_the_future(centre: Centre) -> None:
    now_s = utc_now().timestamp()
    for site in centre.folders.values():
        path = ledger_file(site.state, "wards")
        budget = Budget(20.0, 1e-4)
        spend(Ledger(path, site.identity(None), "wards", [budget], clock=lambda: now_s + 30 * DAY_S))


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
        (date_ledgers_in_the_future, "set that clock", ["earlier"]),
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
        with closing(Agents()) as agents:
            for site in centre.folders.values():
                agents.serve(site)
            wait_until(lambda: all(why(site) for site in centre.folders.values()), 120.0)
            assert all(remedy in why(site) for site in centre.folders.values())
            time.sleep(1.0)  # in which a round would begin
            assert process.poll() is None, "it waits for hospitals, and can go on once they can take part"
            log = interrupted(process, until="failed: ")
    finally:
        process.kill()
    told = events(log)
    assert [event["message"] for event in told if event["message"] in ("quorum", "round")] == []
    assert any("failed: " in str(event.get("why")) for event in told)
    entries = verify_file(
        centre.out / TRANSCRIPT_FILE, centre.consortium.aggregator_identity(None).public_bytes, TRANSCRIPT
    )
    assert not {entry.kind for entry in entries} & {SUMMED, ABORTED, REFUSED}
    assert [paid(site) for site in centre.folders.values()] == [before] * 3
