"""What can be known before training is refused before training, and before anything is paid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.admission.offered import check_limits, check_plan, check_roster, plan_digest
from secfed.deploy.agent import training
from secfed.deploy.agent.status import STATUS_FILE
from secfed.deploy.agent.study_handler import StudyHandler
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import LinkRequest
from secfed.deploy.transport.messages import HelloReply
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import LEDGER, SPENT, Ledger
from secfed.errors import (
    BudgetExceeded,
    InconsistentView,
    PolicyRefused,
    RosterError,
    SecfedError,
    TranscriptError,
)
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import Entry
from secfed.runs.run_folder import ledger_file
from secfed.site.terms import Terms
from secfed.study.build import build
from secfed.wire.frames import Task
from tests.deploy.agent_case import BUDGETED, NAMES, PRIVATE, TOML, Centre, status
from tests.deploy.central_case import Hospitals
from tests.deploy.link_case import wait_until
from tests.forks import Fork

DAY_S = 86_400


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.subprocess, "Popen", Fork)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, PRIVATE, policy=BUDGETED)
    yield made
    made.close()


def grown(roster: Roster) -> Roster:
    """The roster after one more hospital was admitted."""
    newcomer = Identity.generate("hospital-9")
    return Roster(roster.aggregator, (*roster.members, ("hospital-9", newcomer.public_bytes)))


def said(folder: SiteFolder) -> str:
    return str(status(folder)["why"])


def test_a_hospital_with_another_roster_serves_nothing_until_it_has_pinned_the_right_one(
    centre: Centre,
) -> None:
    folder = centre.folders[NAMES[0]]
    folder.trust(grown(centre.roster), utc_now())
    centre.start(NAMES[0])
    wait_until(centre.declined)
    assert centre.link.present(60.0) == (), "it is not counted as there, so no round is begun with it"
    assert centre.roster.digest.hex()[:16] in said(folder)
    assert "secfed site trust ROSTER" in said(folder)
    assert not ledger_file(folder.state, "wards").exists()
    folder.trust(centre.roster, utc_now())
    wait_until(lambda: '"serving"' in (folder.state / STATUS_FILE).read_text())
    assert not centre.errors


def test_a_ledger_from_the_future_is_refused_before_anybody_pays(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    path = ledger_file(folder.state, "wards")
    now_s = utc_now().timestamp()
    ahead = Ledger(
        path, folder.identity(None), "wards", [Budget(20.0, 1e-4)], clock=lambda: now_s + 30 * DAY_S
    )
    spend(ahead)
    centre.start(NAMES[0])
    wait_until(centre.declined)
    assert "set that clock" in said(folder)
    assert [entry.body["study"] for entry in ledger_entries(folder) if entry.kind == SPENT] == ["earlier"]


def test_a_delta_too_large_for_the_records_here_is_refused_before_any_task(tmp_path: Path) -> None:
    made = Centre(
        tmp_path,
        PRIVATE.replace("delta = 1e-4", "delta = 0.1"),
        policy=BUDGETED.replace("1e-4", "0.1"),
    )
    try:
        folder = made.folders[NAMES[0]]
        made.start(NAMES[0])
        wait_until(made.declined)
        assert made.link.present(60.0) == ()
        assert "max_delta_times_records" in said(folder)
        assert made.declined() == "SecfedError: this site cannot do this now"
        assert not status(folder)["totals"]["bytes_down"], "no task has come"
        assert SPENT not in [entry.kind for entry in ledger_entries(folder)]
        assert not made.errors
    finally:
        made.close()


def ledger_entries(folder: SiteFolder) -> Sequence[Entry]:
    path = ledger_file(folder.state, "wards")
    return verify_file(path, folder.identity(None).public_bytes, LEDGER) if path.exists() else ()


def spend(ledger: Ledger) -> None:
    ledger.spend(
        Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 20.0, 1), study="earlier", round_number=1, exchange="update"
    )


def test_an_offer_that_names_no_roster_is_refused(centre: Centre) -> None:
    offer = HelloReply("tiny", b"", 1)
    with pytest.raises(RosterError, match="does not say which roster"):
        check_roster(offer, centre.roster)
    check_roster(replace(offer, roster=centre.roster.digest), centre.roster)


@pytest.mark.parametrize(
    "other",
    [
        lambda terms: replace(terms, study=terms.study.replace("protection.threshold", 5)),
        lambda terms: replace(terms, study=terms.study.replace("protection.name", "plain")),
        lambda terms: replace(terms, sites=terms.sites[:2]),
        # The same settings, read by software that encodes a model in fewer bits.
        lambda terms: replace(terms, algorithm=build(terms.study.replace("protection.bits", 24))),
    ],
)
def test_an_aggregator_that_derives_another_plan_is_refused(tmp_path: Path, other: Callable) -> None:
    centre = Centre(
        tmp_path, TOML.replace("sites = 3", "sites = 5"), names=tuple(f"hospital-{i}" for i in range(1, 6))
    )
    terms, roster = centre.terms, centre.roster
    centre.close()
    digest = plan_digest(terms.study, terms.algorithm, terms.sites, roster)
    check_plan(HelloReply("tiny", b"", 1, plan=digest), terms, roster)
    changed = other(terms)
    offered = plan_digest(changed.study, changed.algorithm, changed.sites, roster)
    with pytest.raises(InconsistentView, match="other layouts or thresholds"):
        check_plan(HelloReply("tiny", b"", 1, plan=offered), terms, roster)


@pytest.mark.parametrize(
    ("limits", "number"),
    [
        (SiteLimits(min_cohort=4), 8),
        (SiteLimits(min_threshold=4), 9),
        (SiteLimits(colluders=2), 9),
        (SiteLimits(max_elements=10), 14),
    ],
)
def test_a_study_whose_every_attempt_would_be_refused_is_refused_before(
    centre: Centre, limits: SiteLimits, number: int
) -> None:
    check_limits(centre.terms, centre.roster, SiteLimits(), NAMES[0])
    with pytest.raises(PolicyRefused, match=f"refusal {number}:"):
        check_limits(centre.terms, centre.roster, limits, NAMES[0])
    check_limits(centre.terms, centre.roster, limits, "hospital-9")  # it is in none of these sums


def test_as_many_sites_as_the_study_says_may_be_missing(tmp_path: Path) -> None:
    """Its own number raises the answers that it asks for; an aggregator that leaves it aside is refused."""
    hospitals = Hospitals(tmp_path)
    own, roster = hospitals.names[0], hospitals.roster
    loose = Terms.of(hospitals.study, roster, own)
    strict = Terms.of(hospitals.study.replace("protection.max_dropouts", 0), roster, own)
    check_limits(loose, roster, loose.limits(SiteLimits()), own)
    check_limits(strict, roster, strict.limits(SiteLimits()), own)
    with pytest.raises(PolicyRefused, match=r"refusal 9: .*3 of 4"):
        check_limits(loose, roster, strict.limits(SiteLimits()), own)
    plans = {plan_digest(one.study, one.algorithm, one.sites, roster) for one in (loose, strict)}
    assert len(plans) == 2


def test_a_study_in_which_a_site_s_values_would_meet_zeros_only_is_refused_before(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[tuple[tuple[str, ...], int]] = [(NAMES, 2)]
    monkeypatch.setattr(centre.terms.algorithm, "contributors", lambda *_: parts, raising=False)
    check_limits(centre.terms, centre.roster, SiteLimits(), NAMES[0])
    parts.append((NAMES[:1], 2))
    with pytest.raises(PolicyRefused, match="refusal 39:"):
        check_limits(centre.terms, centre.roster, SiteLimits(), NAMES[0])


@pytest.mark.parametrize(
    ("error", "leaves"),
    [
        (BudgetExceeded("spent"), True),
        (TranscriptError("the clock"), True),
        (PolicyRefused("hours"), True),
        (InconsistentView("another exchange"), False),
    ],
)
def test_a_refusal_that_will_come_again_takes_the_site_out_of_the_study(
    monkeypatch: pytest.MonkeyPatch, error: SecfedError, leaves: bool
) -> None:
    def refuse(_frame: object) -> bytes:
        raise error

    opened, nobody = SimpleNamespace(site=SimpleNamespace(handle=refuse)), MagicMock()
    handler = StudyHandler(nobody, nobody, nobody, opened, nobody, nobody, nobody, utc_now, nobody)  # type: ignore[arg-type]
    monkeypatch.setattr(handler, "_check_permitted", lambda: None)
    frame = memoryview(Task("s", 1, 0, "update", b"").encode())
    with pytest.raises(type(error)):
        handler.handle(LinkRequest("s", b"", frame))
    assert (handler.withdrawn is error) is leaves
