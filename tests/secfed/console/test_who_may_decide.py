"""Who may decide in a console where people sign in, and which two persons count as two."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from secfed.deploy.admission import persons
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.person import Person
from tests.deploy.agent_case import BUDGETED, permit
from tests.secfed.console.console_case import DIGEST
from tests.secfed.console.provider_case import BRAUN, CLIENT, WEISS, Provider
from tests.secfed.console.sign_in_case import DECIDE, Case, said


def test_somebody_who_is_not_among_them(folder: Path, provider: Provider) -> None:
    case = Case(folder, provider, allowed=("it.braun@uk.example",))
    assert "dr.weiss@uk.example is not among oidc.allowed" in said(case.enter())
    assert case.decide() == 409
    assert case.enter(BRAUN).status_code == 303
    assert case.decide() == 303


def test_the_provider_says_no(case: Case) -> None:
    case.provider.error = "access_denied"
    assert "signs nobody in (access_denied)" in said(case.enter())
    case.provider.error = "<script>"
    assert "<script" not in (answer := case.enter()).text
    assert "signs nobody in." in said(answer).replace("signs nobody in Remedy", "signs nobody in. Remedy")


def test_two_persons_by_what_the_provider_calls_them(case: Case) -> None:
    permit(case.opened.site, "manual", "four_eyes = true\n" + BUDGETED)
    case.enter()
    assert case.decide() == 303
    assert case.state is ApprovalState.HELD
    case.enter({**WEISS, "email": "weiss.neu@uk.example"})  # who married meanwhile
    assert "has approved this study" in said(case.opened.answer(case.client, DECIDE, decision="approve"))
    case.enter({**BRAUN, "email": WEISS["email"]})  # of equal names
    assert case.decide() == 303
    assert case.state is ApprovalState.APPROVED
    assert case.newest["subjects"] == [
        f"{case.provider.issuer} {CLIENT} {who['sub']}" for who in (WEISS, BRAUN)
    ]
    assert case.newest["by"].count("dr.weiss@uk.example") == 2
    for page in ("/decisions", "/records/report.html"):
        text = said(case.client.get(page), 200)
        assert all(
            f"(OpenID Connect: {case.provider.issuer}) [{sub}]" in text for sub in ("5f0c-77", "81aa-02")
        )
    assert f"{CLIENT} 81aa-02" in case.client.get("/records/report.json").text


def test_one_person_at_two_clients_is_not_two(case: Case, folder: Path) -> None:
    """What a provider calls a person may be another name at each client (pairwise)."""
    permit(case.opened.site, "manual", "four_eyes = true\n" + BUDGETED)
    case.enter()
    assert case.decide() == 303
    case.provider.client = "secfed-two"
    second = Case(folder, case.provider, client_id="secfed-two")
    second.enter({**WEISS, "sub": "of-the-second-client"})
    assert second.decide() == 303
    assert case.state is ApprovalState.HELD


def test_an_account_and_who_signed_in_may_be_one_person(case: Case) -> None:
    permit(case.opened.site, "manual", "four_eyes = true\n" + BUDGETED)
    persons.approve(case.opened.site, DIGEST, Person("root"), despite_twins=False)
    case.enter()
    answer = case.opened.answer(case.client, DECIDE, decision="approve")
    assert answer.headers["location"].endswith("?done=first-signed-in")
    assert case.state is ApprovalState.HELD
    persons.approve(case.opened.site, DIGEST, Person("root"), despite_twins=False)
    assert case.state is ApprovalState.HELD
    case.enter()
    assert case.decide() == 303
    case.enter(BRAUN)
    assert case.decide() == 303
    assert case.state is ApprovalState.APPROVED
    assert "root" not in case.newest["by"]
