"""Signing in at the hospital's identity provider: the whole way, and who else is on it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from starlette.routing import Route

from secfed.console.pages import make_app
from secfed.deploy.admission.approvals_table import ApprovalState
from tests.secfed.audit.test_languages import catalogue
from tests.secfed.console.console_case import BASE, DIGEST, Opened
from tests.secfed.console.provider_case import BRAUN, CLIENT, SECRET, WEISS, Provider
from tests.secfed.console.sign_in_case import BACK, DECIDE, READ, REGISTERED, STUDY, Case, said, waits
from tests.secfed.run_case import secfed


class TestTheWay:
    def test_a_person_signs_in_and_the_signed_log_says_who_and_where(self, case: Case) -> None:
        assert "nobody is signed in" in said(case.client.get(STUDY), 200)
        answer = case.enter()
        assert answer.status_code == 303
        assert answer.headers["location"] == f"{case.opened.guard.base}{STUDY}"
        name = f"dr.weiss@uk.example (OpenID Connect: {case.provider.issuer})"
        assert f"You decide as {name}." in said(case.client.get(STUDY), 200)
        assert case.decide() == 303
        assert case.state is ApprovalState.APPROVED
        assert (case.newest["kind"], case.newest["by"]) == ("approved", name)
        assert case.newest["subjects"] == [f"{case.provider.issuer} {CLIENT} 5f0c-77"]
        assert f"approved by {name}" in said(case.client.get("/decisions"), 200)
        assert secfed("audit", "verify", case.opened.site.folder).exit_code == 0
        assert case.decide("refuse") == 303
        assert (case.newest["kind"], case.newest["by"]) == ("withdrawn", name)

    def test_what_the_provider_is_asked(self, case: Case) -> None:
        case.enter()
        (asked,), (form,) = case.provider.asked, case.provider.forms
        assert asked["response_type"] == "code"
        assert asked["redirect_uri"] == BACK
        assert asked["scope"] == "openid email"
        assert asked["code_challenge_method"] == "S256"
        assert (asked["prompt"], asked["max_age"], asked["tenant"]) == ("login", "3600", "1")
        assert min(len(asked["state"]), len(asked["nonce"]), len(form["code_verifier"])) >= 43
        assert form["client_id"] == CLIENT
        assert "client_secret" not in form
        assert case.provider.paths.count("/token") == 1

    @pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post"]])
    def test_a_client_with_a_secret(
        self, folder: Path, provider: Provider, methods: list[str] | None
    ) -> None:
        (folder / "secret").write_text(f"{SECRET}\n")
        (folder / "secret").chmod(0o600)
        provider.public, provider.extra = False, {"token_endpoint_auth_methods_supported": methods}
        for _ in range(2):
            assert Case(folder, provider, client_secret_file="secret").enter().status_code == 303
        without = Case(folder, provider).enter()
        assert "refuses the code (invalid_client)" in said(without)

    def test_a_provider_that_need_not_ask_for_the_password(self, folder: Path, provider: Provider) -> None:
        case = Case(folder, provider, reauthenticate=False, claim="preferred_username")
        assert case.enter({**WEISS, "auth_time": 1}).status_code == 303
        assert not {"prompt", "max_age"} & set(provider.asked[0])
        assert provider.asked[0]["scope"] == "openid profile"
        assert "weiss (OpenID Connect" in said(case.client.get("/"), 200)

    def test_the_person_comes_back_to_a_page_of_the_console_and_nowhere_else(self, case: Case) -> None:
        base = case.opened.guard.base
        elsewhere = ("//evil.example", "https://evil.example", "/\\evil.example", "/sign-in/wait", DECIDE)
        for then in ("/budgets", *elsewhere):
            done = case.answered(case.provider.leads_to(case.leave(then)))
            assert done.headers["location"] == base + ("/" if then in elsewhere else then)


class TestBeforeSigningIn:
    def test_everything_can_be_read_and_nothing_be_decided(self, case: Case) -> None:
        for page in READ:
            assert case.client.get(page).status_code == 200
        for decision in ("approve", "refuse"):
            answer = case.opened.answer(case.client, DECIDE, decision=decision)
            assert "nobody is signed in" in said(answer)
        assert case.state is ApprovalState.HELD
        assert 'name="decision"' not in case.client.get(STUDY).text

    def test_no_form_changes_anything(self, case: Case) -> None:
        """Those that would are found in the routes, so that a new one is not forgotten."""
        harmless = {"/sign-in", "/sign-out", "/records/verify"}
        routes = [one for one in make_app(case.opened.console).routes if isinstance(one, Route)]
        forms = {one.path for one in routes if one.methods and "POST" in one.methods} - harmless
        assert forms == {"/studies/{digest:str}/decide"}
        for path in forms:
            assert (
                case.opened.post(case.client, path.replace("{digest:str}", DIGEST), decision="approve") == 409
            )

    def test_without_the_section_there_is_nothing_of_it(self, opened: Opened) -> None:
        client = opened.entered()
        assert "igned in" not in client.get(STUDY).text
        assert opened.post(client, "/sign-in") == 404
        assert opened.post(client, "/sign-out") == 404
        assert client.get("/sign-in/wait").status_code == 404
        assert opened.client().get("/signed-in?state=x&code=y").status_code == 403


class TestHowLong:
    def test_a_sign_in_lasts_as_long_as_the_settings_say(self, case: Case) -> None:
        case.enter()
        case.clock.ahead_s = 3590
        assert case.sign_in.person is not None
        case.clock.ahead_s = 3610
        assert case.decide() == 409
        assert case.state is ApprovalState.HELD
        case.clock.ahead_s = -3600  # set back
        assert case.decide() == 409
        case.clock.ahead_s = 0
        assert case.decide() == 303

    def test_signing_out(self, case: Case) -> None:
        case.enter()
        assert "Sign out" in case.client.get("/").text
        assert case.opened.post(case.client, "/sign-out", "http://evil.example") == 403
        assert case.sign_in.person is not None
        assert case.opened.post(case.client, "/sign-out") == 303
        assert case.decide() == 409
        assert case.state is ApprovalState.HELD

    def test_beginning_again_ends_the_sign_in_before(self, case: Case) -> None:
        case.enter()
        case.leave()
        assert case.decide() == 409

    def test_a_page_of_somebody_else_decides_nothing(self, case: Case) -> None:
        case.enter()
        (shown,) = re.findall('name="as" value="(.*?)"', case.client.get(STUDY).text)
        case.enter({**BRAUN, "email": WEISS["email"]})  # of equal names
        for named in (shown, "", "x"):
            answer = case.opened.answer(case.client, DECIDE, decision="approve", **{"as": named})
            assert "somebody else has signed in" in said(answer)
        bare = {"csrf": case.opened.guard.csrf, "decision": "approve"}
        assert case.client.post(DECIDE, data=bare, headers={"Origin": BASE}).status_code == 409
        assert case.state is ApprovalState.HELD

    @pytest.mark.parametrize("ahead_s", [601, -60])  # too long, or the clock was set back
    def test_a_sign_in_that_takes_too_long(self, case: Case, ahead_s: float) -> None:
        address = case.provider.leads_to(case.leave())
        case.clock.ahead_s = ahead_s
        assert case.back(address).status_code == 403
        case.clock.ahead_s = 0
        assert case.back(address).status_code == 200
        case.clock.ahead_s = ahead_s
        assert "not begun here, or is over" in said(case.finish())
        case.clock.ahead_s = 0
        assert "not begun here, or is over" in said(case.finish())
        assert case.sign_in.person is None

    def test_signing_out_ends_a_sign_in_under_way(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        assert case.opened.post(case.client, "/sign-out") == 303
        assert case.back(address).status_code == 403
        assert case.back(case.provider.leads_to(case.leave())).status_code == 200
        assert case.opened.post(case.client, "/sign-out") == 303
        assert "not begun here, or is over" in said(case.finish())
        assert case.provider.forms == []

    @pytest.mark.parametrize("path", ["metadata", "token"])
    def test_signing_out_while_the_provider_is_asked(
        self, case: Case, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        back, right = case.provider.leads_to(case.leave()), getattr(case.provider, path)
        assert case.back(back).status_code == 200

        def meanwhile(*asked: Any) -> Any:
            assert case.opened.post(case.client, "/sign-out") == 303
            busy = case.finish() if path == "metadata" else case.opened.answer(case.client, "/sign-in")
            assert "just being begun or completed" in said(busy)  # one at a time
            return right(*asked)

        monkeypatch.setattr(case.provider, path, meanwhile)
        answer = case.finish() if path == "token" else case.opened.answer(case.client, "/sign-in")
        assert "somebody signed out meanwhile" in said(answer)
        assert case.sign_in.person is None
        assert case.sign_in._underway is None


class TestOthersOnTheWay:
    """Nobody is signed in by a page from elsewhere, another state or code, or without the cookie."""

    def test_only_a_form_of_the_console_begins(self, case: Case) -> None:
        for origin in (None, "null", "http://evil.example"):
            assert case.opened.post(case.client, "/sign-in", origin) == 403
        assert case.opened.post(case.client, "/sign-in", csrf="0" * 64) == 403
        assert case.client.get("/sign-in").status_code == 405
        assert case.provider.asked == []

    @pytest.mark.parametrize("change", [{"state": "x"}, {"state": ""}, {"state": None}])
    def test_another_state_leads_nowhere_and_uses_nothing_up(
        self, case: Case, change: dict[str, Any]
    ) -> None:
        address = case.provider.leads_to(case.leave())
        parts = urlsplit(address)
        fields = {
            name: value
            for name, value in {**dict(parse_qsl(parts.query)), **change}.items()
            if value is not None
        }
        answer = case.back(f"{BACK}?{urlencode(fields)}")
        assert answer.status_code == 403
        assert case.opened.guard.base not in answer.text  # the path that nobody can guess
        assert case.answered(address).status_code == 303

    def test_a_state_that_was_not_asked_for(self, case: Case) -> None:
        for query in ("?code=x&state=", "?code=x", "", "?code=x&state=x"):
            assert case.back(BACK + query).status_code == 403

    def test_a_callback_works_once(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        assert case.back(address).status_code == 200
        assert case.back(address).status_code == 403
        assert case.finish().status_code == 303
        assert case.back(address).status_code == 403
        assert "not begun here, or is over" in said(case.finish())
        assert len(case.provider.forms) == 1
        assert case.sign_in.person is not None  # who signed in once stays

    @pytest.mark.parametrize(
        "more",
        [
            "&state=x",
            "&error=access_denied&error=x",
            "&iss=x",
            "&error=",
            "&a=b&a=c",
            "".join(f"&a{n}=b" for n in range(30)),
        ],
    )
    def test_an_answer_with_empty_or_repeated_fields_is_none(self, case: Case, more: str) -> None:
        address = case.provider.leads_to(case.leave())
        assert case.back(address + more).status_code == 403
        assert case.answered(address).status_code == 303

    def test_without_the_cookie_nothing_is_taken(self, case: Case) -> None:
        case.back(case.provider.leads_to(case.leave()))
        for base in ("", case.opened.guard.base):
            assert case.opened.client().get(f"{base}/sign-in/wait").status_code == 403
        assert case.sign_in.person is None
        assert case.provider.forms == []

    def test_the_page_waits_until_the_answer_has_landed(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        assert waits(case.finish())
        case.back(f"{BACK}?state=x&code=y")
        assert waits(case.finish())
        assert case.provider.forms == []
        assert case.answered(address).status_code == 303

    def test_the_registered_port_tells_nothing_and_opens_nothing(self, case: Case) -> None:
        """Whoever served it before may have left a service worker, which reads all of it."""
        guard, here = case.opened.guard, f"http://127.0.0.1:{REGISTERED}"
        landed = case.back(case.provider.leads_to(case.leave()))
        answers = [landed, case.back(f"{BACK}?code=x&state=x")]
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in case.client.cookies.items())}
        for path in (
            "/",
            "/enter",
            f"/enter?token={guard.token}",
            guard.base,
            f"{guard.base}/",
            "/signed-in/x",
        ):
            for method in ("GET", "POST"):
                answers.append(case.opened.client(here).request(method, path, headers=cookie))
                assert answers[-1].status_code == 403
        for answer in answers:
            secrets = (guard.base, guard.csrf, guard._session, case.sign_in._underway.asked.state)  # type: ignore[union-attr]
            assert not any(one.strip("/") in answer.text + str(answer.headers) for one in secrets)
            assert "set-cookie" not in answer.headers
            assert "refresh" not in answer.text
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        for words in ("Go back to the tab", "Gehen Sie zurück", "Revenez"):
            assert words in unescape(landed.text)
        assert case.opened.client().get("/signed-in?code=x&state=x").status_code == 403  # only there
        assert case.finish().status_code == 303

    def test_a_code_of_another_sign_in_is_refused(self, case: Case) -> None:
        """Somebody's own code, in another's answer: login CSRF, code injection."""
        theirs = dict(parse_qsl(urlsplit(case.provider.leads_to(case.leave())).query))["code"]
        address = urlsplit(case.provider.leads_to(case.leave()))
        fields = {**dict(parse_qsl(address.query)), "code": theirs}
        answer = case.answered(f"{BACK}?{urlencode(fields)}")
        assert "refuses the code (invalid_grant)" in said(answer)
        assert case.sign_in.person is None

    def test_a_token_of_another_sign_in_is_refused(self, case: Case) -> None:
        case.enter()
        nonce = case.provider.asked[0]["nonce"]
        case.provider.changed = lambda claims: {**claims, "nonce": nonce}
        assert "(nonce)" in said(case.enter())
        assert case.sign_in.person is None

    def test_an_answer_of_another_provider_is_refused(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave()).replace("iss=http", "iss=https")
        assert "from another identity provider" in said(case.answered(address))
        assert case.provider.forms == []

    def test_a_provider_that_says_who_it_is_always_has_to(self, case: Case) -> None:
        address = re.sub("&iss=[^&]*", "", case.provider.leads_to(case.leave()))
        assert case.answered(address).status_code == 303
        case.provider.extra = {"authorization_response_iss_parameter_supported": True}
        address = re.sub("&iss=[^&]*", "", case.provider.leads_to(case.leave()))
        assert "from another identity provider" in said(case.answered(address))

    def test_a_code_beside_an_error_is_none(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave()) + "&error=access_denied"
        assert "signs nobody in (access_denied)" in said(case.answered(address))
        assert case.provider.forms == []

    def test_a_method_that_browsers_are_not_led_by(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        assert case.opened.client().post(address).status_code == 403
        assert case.opened.client().get(address, headers={"Host": "evil.example"}).status_code == 403
        assert case.answered(address).status_code == 303


@pytest.mark.parametrize(("code", "words"), [("de", "Anmelden"), ("fr", "Se connecter")])
def test_in_other_languages(case: Case, code: str, words: str) -> None:
    page = said(case.client.get(f"{STUDY}?language={code}"), 200)
    assert page.count(words) == 2
    assert "igns in" not in page
    case.enter()
    assert catalogue(code)[("Sign out",)][0] in said(case.client.get("/decisions"), 200)
