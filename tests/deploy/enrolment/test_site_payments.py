"""Money spent on rounds without a sum is shown to the hospital that spent it."""

from __future__ import annotations

from pathlib import Path

from secfed.audit.privacy import make_report
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.enrolment.site_payments import wasted
from secfed.deploy.enrolment.site_status import Level, site_status
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.records.transcript import SUMMED, Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file, study_folder
from tests.deploy.centre_case import found_consortium

STUDY = "heart-" + 64 * "a"
EVENT = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 20.0, 1)


def paid(site: SiteFolder, rounds: int, summed: set[int], roster_digest: bytes) -> None:
    """A study that paid for some rounds, of which some came to a sum."""
    make_state_folder(site.state)
    identity = site.identity(None)
    ledger = Ledger(ledger_file(site.state, "wards"), identity, "wards", [Budget(20.0, 1e-4)])
    sink = study_folder(site.state, STUDY) / TRANSCRIPT_FILE
    with Transcript(identity, study=STUDY, roster_digest=roster_digest, sink=sink) as transcript:
        for number in range(1, rounds + 1):
            ledger.spend(EVENT, study=STUDY, round_number=number, exchange="update")
            if number in summed:
                transcript.append(SUMMED, {"round": number, "exchange": "update"})


def test_a_site_sees_what_it_paid_for_rounds_without_a_sum(tmp_path: Path) -> None:
    consortium, folders = found_consortium(tmp_path, ("a", "b", "c"))
    roster, site = consortium.roster(), folders["a"]
    paid(site, 5, {2}, roster.digest)
    # The newest payment may be of the exchange that is running.
    assert list(wasted(site)) == [(STUDY, "3 exchanges (rounds 1, 3, 4) paid for, and in no sum")]
    assert list(wasted(site, STUDY)) == [(STUDY, "4 exchanges (rounds 1, 3, 4, 5) paid for, and in no sum")]
    (line,) = [line for line in site_status(site, utc_now()) if line.subject == "payments"]
    assert line.level is Level.SOON
    assert "rounds 1, 3, 4" in line.text
    notes = make_report([site.folder], [consortium.roster_path]).verification.notes
    assert any("4 exchanges (rounds 1, 3, 4, 5) paid for, and in no sum" in note for note in notes)


def test_nothing_is_said_where_every_payment_came_to_a_sum(tmp_path: Path) -> None:
    consortium, folders = found_consortium(tmp_path, ("a", "b", "c"))
    roster, site = consortium.roster(), folders["a"]
    paid(site, 3, {1, 2, 3}, roster.digest)
    assert list(wasted(site, STUDY)) == []
    assert [line.subject for line in site_status(site, utc_now())].count("payments") == 0
