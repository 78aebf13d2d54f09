"""Signing in at the hospital's identity provider: the whole way, and every way in between."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from starlette.routing import Route
from starlette.testclient import TestClient

from secfed.console import serve
from secfed.console.guard import Guard
from secfed.console.pages import make_app
from secfed.console.provider import Provider
from secfed.console.sign_in import SignIn
from secfed.deploy.admission import persons
from secfed.deploy.admission.approvals import Approvals, ApprovalState
from secfed.deploy.admission.person import Person
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.errors import ConfigError, LinkError
from tests.deploy.agent_case import BUDGETED, NAMES, permit
from tests.secfed.console import provider_case
from tests.secfed.console.console_case import BASE, DIGEST, WAITING, Opened, hospital_console
from tests.secfed.console.provider_case import BRAUN, CLIENT, SECRET, WEISS
from tests.secfed.run_case import secfed

STUDY = f"/studies/{DIGEST}"
DECIDE = f"{STUDY}/decide"
METADATA = "/.well-known/openid-configuration"
READ = ("/", "/studies", STUDY, "/budgets", "/left", "/decisions", "/setup", "/records")


class Clock:
    """Seconds since 1970, as a test wants them."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        import time

        return time.time() + self.ahead_s


class Case:
    """A console whose people sign in at a provider."""

    def __init__(self, folder: Path, provider: provider_case.Provider, **settings: Any) -> None:
        self.provider, self.clock = provider, Clock()
        section = OidcSection(issuer=provider.issuer, client_id=CLIENT, **settings)
        self.sign_in = SignIn(Provider(section, folder), section.max_age_s, self.clock)
        self.opened: Opened = hospital_console(folder, sign_in=self.sign_in)
        self.client: TestClient = self.opened.entered()

    def leave(self, then: str = STUDY) -> str:
        """Press "Sign in"; where the browser goes."""
        answer = self.opened.answer(self.client, "/sign-in", then=then)
        assert answer.status_code == 200, answer.text
        return led_to(answer.text)

    def back(self, address: str) -> Any:
        """The browser comes back, without the cookie."""
        return self.opened.client().get(address)

    def finish(self, back: Any) -> Any:
        """The page leads on, now with the cookie."""
        assert back.status_code == 200
        return self.client.get(BASE + led_to(back.text))

    def enter(self, who: dict[str, Any] = WEISS) -> Any:
        """The whole way."""
        self.provider.who = dict(who)
        return self.finish(self.back(self.provider.leads_to(self.leave())))

    def decide(self, decision: str = "approve", **form: str) -> int:
        return self.opened.post(self.client, DECIDE, decision=decision, **form)

    @property
    def state(self) -> ApprovalState | None:
        return Approvals(self.opened.site.approvals_path).state(WAITING.digest())

    @property
    def newest(self) -> dict[str, Any]:
        lines = (self.opened.site.state / "decisions.jsonl").read_text().splitlines()
        entry = json.loads(lines[-1])
        return {"kind": entry["kind"], **entry["body"]}


def led_to(page: str) -> str:
    """Where a page leads by itself."""
    (address,) = re.findall('http-equiv="refresh" content="0; url=(.*?)"', page)
    return unescape(address)


def said(answer: Any, status: int = 409) -> str:
    assert answer.status_code == status, answer.text
    return " ".join(unescape(re.sub("<[^>]+>", " ", answer.text)).split())


@pytest.fixture(scope="module")
def running() -> Iterator[provider_case.Provider]:
    with provider_case.provider() as made:
        yield made


@pytest.fixture
def provider(running: provider_case.Provider) -> provider_case.Provider:
    fresh = provider_case.Provider(running.issuer)
    running.__dict__ = fresh.__dict__
    return running


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy", copy_function=shutil.copy2))


@pytest.fixture
def case(folder: Path, provider: provider_case.Provider) -> Case:
    return Case(folder, provider)


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
        assert case.newest["subjects"] == [f"{case.provider.issuer} 5f0c-77"]
        assert f"approved by {name}" in said(case.client.get("/decisions"), 200)
        assert secfed("audit", "verify", case.opened.site.folder).exit_code == 0
        assert case.decide("refuse") == 303
        assert (case.newest["kind"], case.newest["by"]) == ("withdrawn", name)

    def test_what_the_provider_is_asked(self, case: Case) -> None:
        case.enter()
        (asked,), (form,) = case.provider.asked, case.provider.forms
        assert asked["response_type"] == "code"
        assert asked["redirect_uri"] == f"{BASE}/signed-in"
        assert asked["scope"] == "openid email"
        assert asked["code_challenge_method"] == "S256"
        assert (asked["prompt"], asked["max_age"], asked["tenant"]) == ("login", "3600", "1")
        assert min(len(asked["state"]), len(asked["nonce"]), len(form["code_verifier"])) >= 43
        assert form["client_id"] == CLIENT
        assert "client_secret" not in form
        assert case.provider.paths.count("/token") == 1

    @pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post"]])
    def test_a_client_with_a_secret(
        self, folder: Path, provider: provider_case.Provider, methods: list[str] | None
    ) -> None:
        (folder / "secret").write_text(f"{SECRET}\n")
        (folder / "secret").chmod(0o600)
        provider.public, provider.extra = False, {"token_endpoint_auth_methods_supported": methods}
        for _ in range(2):
            assert Case(folder, provider, client_secret_file="secret").enter().status_code == 303
        without = Case(folder, provider).enter()
        assert "refuses the code (invalid_client)" in said(without)

    def test_a_provider_that_need_not_ask_for_the_password(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        case = Case(folder, provider, reauthenticate=False, claim="preferred_username")
        assert case.enter({**WEISS, "auth_time": 1}).status_code == 303
        assert not {"prompt", "max_age"} & set(provider.asked[0])
        assert provider.asked[0]["scope"] == "openid profile"
        assert "weiss (OpenID Connect" in said(case.client.get("/"), 200)

    def test_the_person_comes_back_to_a_page_of_the_console_and_nowhere_else(self, case: Case) -> None:
        base = case.opened.guard.base
        elsewhere = ("//evil.example", "https://evil.example", "/\\evil.example", "/sign-in/finish", DECIDE)
        for then in ("/budgets", *elsewhere):
            back = case.back(case.provider.leads_to(case.leave(then)))
            assert case.finish(back).headers["location"] == base + ("/" if then in elsewhere else then)


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
        assert client.get("/sign-in/finish?ticket=x").status_code == 404
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
        case.enter(BRAUN)
        answer = case.opened.answer(case.client, DECIDE, decision="approve", **{"as": unescape(shown)})
        assert "somebody else has signed in" in said(answer)
        assert case.state is ApprovalState.HELD

    def test_a_sign_in_that_takes_too_long(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        case.clock.ahead_s = 601
        assert case.back(address).status_code == 403


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
        answer = case.back(f"{BASE}{parts.path}?{urlencode(fields)}")
        assert answer.status_code == 403
        assert case.opened.guard.base not in answer.text  # the path that nobody can guess
        assert case.finish(case.back(address)).status_code == 303

    def test_a_state_that_was_not_asked_for(self, case: Case) -> None:
        assert case.back("/signed-in?code=x&state=").status_code == 403
        assert case.back("/signed-in").status_code == 403
        assert case.back(f"/signed-in?{'a=b&' * 30}").status_code == 403

    def test_a_callback_works_once(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        first = case.back(address)
        assert case.back(address).status_code == 403
        assert case.finish(first).status_code == 303
        assert "not begun here, or is over" in said(case.finish(first))
        assert len(case.provider.forms) == 1
        assert case.sign_in.person is not None  # who signed in once stays

    def test_a_state_that_was_given_twice_is_none(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        assert case.back(f"{address}&state=x").status_code == 403

    def test_without_the_cookie_the_ticket_is_worth_nothing(self, case: Case) -> None:
        back = case.back(case.provider.leads_to(case.leave()))
        assert case.back(led_to(back.text)).status_code == 403
        assert case.sign_in.person is None
        assert case.provider.forms == []

    def test_with_the_cookie_nothing_goes_without_the_ticket(self, case: Case) -> None:
        case.back(case.provider.leads_to(case.leave()))
        for ticket in ("", "?ticket=", "?ticket=x"):
            assert "not begun here, or is over" in said(case.client.get(f"/sign-in/finish{ticket}"))
        assert case.sign_in.person is None

    def test_a_code_of_another_sign_in_is_refused(self, case: Case) -> None:
        """Somebody's own code, in another's answer: login CSRF, code injection."""
        theirs = dict(parse_qsl(urlsplit(case.provider.leads_to(case.leave())).query))["code"]
        address = urlsplit(case.provider.leads_to(case.leave()))
        fields = {**dict(parse_qsl(address.query)), "code": theirs}
        back = case.back(f"{BASE}{address.path}?{urlencode(fields)}")
        assert "refuses the code (invalid_grant)" in said(case.finish(back))
        assert case.sign_in.person is None

    def test_a_token_of_another_sign_in_is_refused(self, case: Case) -> None:
        case.enter()
        nonce = case.provider.asked[0]["nonce"]
        case.provider.changed = lambda claims: {**claims, "nonce": nonce}
        assert "(nonce)" in said(case.enter())
        assert case.sign_in.person is None

    def test_an_answer_of_another_provider_is_refused(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave()).replace("iss=http", "iss=https")
        assert "from another identity provider" in said(case.finish(case.back(address)))
        assert case.provider.forms == []

    def test_a_method_that_browsers_are_not_led_by(self, case: Case) -> None:
        address = case.provider.leads_to(case.leave())
        assert case.opened.client().post(address).status_code == 403
        assert case.opened.client().get(address, headers={"Host": "evil.example"}).status_code == 403
        assert case.finish(case.back(address)).status_code == 303


class TestWhoMayDecide:
    def test_somebody_who_is_not_among_them(self, folder: Path, provider: provider_case.Provider) -> None:
        case = Case(folder, provider, allowed=("it.braun@uk.example",))
        assert "dr.weiss@uk.example is not among oidc.allowed" in said(case.enter())
        assert case.decide() == 409
        assert case.enter(BRAUN).status_code == 303
        assert case.decide() == 303

    def test_the_provider_says_no(self, case: Case) -> None:
        case.provider.error = "access_denied"
        assert "signs nobody in (access_denied)" in said(case.enter())
        case.provider.error = "<script>"
        assert "<script" not in (answer := case.enter()).text
        assert "signs nobody in." in said(answer).replace("signs nobody in Remedy", "signs nobody in. Remedy")

    def test_two_persons_by_what_the_provider_calls_them(self, case: Case) -> None:
        permit(case.opened.site, "manual", "four_eyes = true\n" + BUDGETED)
        case.enter()
        assert case.decide() == 303
        assert case.state is ApprovalState.HELD
        case.enter({**WEISS, "email": "weiss.neu@uk.example"})  # who married meanwhile
        assert "has approved this study" in said(case.opened.answer(case.client, DECIDE, decision="approve"))
        case.enter({**BRAUN, "email": WEISS["email"]})  # of equal names
        assert case.decide() == 303
        assert case.state is ApprovalState.APPROVED
        assert case.newest["subjects"] == [f"{case.provider.issuer} {who['sub']}" for who in (WEISS, BRAUN)]
        assert case.newest["by"].count("dr.weiss@uk.example") == 2

    def test_an_account_and_who_signed_in_may_be_one_person(self, case: Case) -> None:
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


class TestTheProvider:
    def test_one_that_is_down_is_one_sentence_and_reading_goes_on(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        with provider_case.provider() as gone:
            case = Case(folder, gone)
            address = gone.leads_to(case.leave())
        assert "Connection refused" in said(case.finish(case.back(address)))
        assert f"{gone.issuer}: Connection refused" in said(case.opened.answer(case.client, "/sign-in"))
        for page in READ:
            assert case.client.get(page).status_code == 200
        assert case.decide() == 409

    @pytest.mark.parametrize(
        ("path", "answer", "told"),
        [
            (METADATA, (302, {"Location": "/keys"}, b""), "redirects are not followed"),
            (METADATA, (500, {}, b""), "HTTP 500"),
            (METADATA, (200, {}, b"<html>"), "something else than JSON"),
            (METADATA, (200, {}, b"[]"), "something else than JSON"),
            (METADATA, (200, {}, b"{}"), "by another name"),
            (METADATA, (200, {}, b"[" * 100_000), "something else than JSON"),
            (METADATA, (200, {}, b" " * 1_100_000), "more than 1048576 bytes"),
            ("/token", (307, {"Location": "/keys"}, b""), "redirects are not followed"),
            ("/token", (503, {}, b"{}"), "HTTP 503"),
            ("/token", (200, {}, b"secret <html>"), "cannot be read"),
            ("/token", (200, {}, b'{"access_token": "a", "token_type": "Bearer"}'), "gave no ID token"),
            ("/token", (200, {}, b'{"id_token": "x", "expires_in": "soon"}'), "cannot be read"),
            ("/token", (400, {}, b'{"error": "<b>words</b>"}'), "refuses the code"),
            ("/keys", (302, {"Location": "/"}, b""), "redirects are not followed"),
            ("/keys", (200, {}, b"{}"), "no valid signature"),
        ],
    )  # fmt: skip
    def test_one_that_answers_with_something_else(
        self, case: Case, path: str, answer: tuple[int, dict[str, str], bytes], told: str
    ) -> None:
        case.provider.answers = {path: answer}
        if path == METADATA:
            page = case.opened.answer(case.client, "/sign-in")
        else:
            page = case.finish(case.back(case.provider.leads_to(case.leave())))
        text = said(page)
        assert told in text
        assert "words" not in text
        assert "secret" not in text
        assert case.sign_in.person is None

    @pytest.mark.parametrize(
        ("extra", "told"),
        [
            ({"issuer": "https://login.evil.example"}, "by another name"),
            (
                {"token_endpoint": "http://login.uk.example/token"},
                "token_endpoint: begins with neither https",
            ),
            ({"jwks_uri": None}, "jwks_uri: is"),
            ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint: is not an address"),
            ({"authorization_endpoint": 'https://x/"><script>'}, ""),
            ({"code_challenge_methods_supported": ["plain"]}, "does not offer PKCE"),
        ],
    )
    def test_metadata_that_cannot_be_used(self, case: Case, extra: dict[str, Any], told: str) -> None:
        case.provider.extra = extra
        page = case.opened.answer(case.client, "/sign-in")
        assert "<script" not in page.text
        if told:
            assert told in said(page)

    def test_addresses_end_with_or_without_a_slash(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        case = Case(folder, provider)
        case.sign_in._provider = Provider(OidcSection(issuer=f"{provider.issuer}/", client_id=CLIENT), folder)
        provider.extra = {"issuer": f"{provider.issuer}/"}
        case.leave()
        assert provider.paths == [METADATA]

    def test_no_code_token_or_secret_is_told(
        self, folder: Path, provider: provider_case.Provider, caplog: pytest.LogCaptureFixture
    ) -> None:
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o600)
        provider.public = False
        caplog.set_level(logging.DEBUG)
        case = Case(folder, provider, client_secret_file="secret")
        pages = [case.enter().text, case.client.get(STUDY).text]
        provider.changed = lambda claims: {**claims, "exp": 1}
        pages += [case.enter().text, case.client.get("/").text]
        own = [
            one for one in caplog.records if not one.name.startswith("http")
        ]  # not the client's of this test
        told = "".join([one.getMessage() for one in own] + pages) + repr(case.sign_in.__dict__)
        for form in provider.forms:
            for name in ("code", "code_verifier", "client_secret"):
                assert form.get(name, SECRET) not in told
        assert all(asked["state"] not in told and asked["nonce"] not in told for asked in provider.asked)


def test_a_link_error_says_where_and_what_to_do(folder: Path) -> None:
    section = OidcSection(issuer="http://127.0.0.1:9/realms/uk", client_id=CLIENT)
    with pytest.raises(LinkError, match=r"^http://127\.0\.0\.1:9: .*reading goes on without it"):
        Provider(section, folder).metadata()


@contextmanager
def monkeypatched_server() -> Iterator[list[Guard]]:
    """Nothing is served; gives the guards that would be."""
    guards: list[Guard] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve.uvicorn.Server, "run", lambda self, sockets: guards.append(self.config.app))
        yield guards


class TestSettings:
    """What ``secfed console`` makes of ``[oidc]`` in site.toml."""

    @staticmethod
    def write(folder: Path, text: str = "", issuer: str = "https://login.uk.example") -> Path:
        site = folder / NAMES[0]
        with (site / "site.toml").open("a") as file:
            file.write(f'\nissuer = "{issuer}"\nclient_id = "{CLIENT}"\n{text}')
        return site

    def test_a_hospital_that_names_a_provider_has_a_sign_in(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        site = self.write(folder, "max_age_s = 60", provider.issuer)
        console = serve.opened([site])
        assert console.sign_in is not None
        assert console.person is None
        with monkeypatched_server() as guards:
            serve.serve(console, 0, lambda _address: None)
        (guard,) = guards
        console.sign_in.begin("http://127.0.0.1:1/signed-in", "/")
        assert guard._landed is not None
        assert guard._landed(f"state={console.sign_in._asked.state}")  # type: ignore[union-attr]

    def test_a_secret_that_others_can_read_is_refused(self, folder: Path) -> None:
        site = self.write(folder, 'client_secret_file = "secret"')
        for mode, content, told in (
            (0o644, SECRET, "secret"),
            (0o600, "", "holds something else than one secret"),
            (0o600, f"{SECRET} {SECRET}", "holds something else than one secret"),
        ):
            (site / "secret").write_text(content)
            (site / "secret").chmod(mode)
            with pytest.raises(ConfigError, match=told) as caught:
                serve.opened([site])
            assert SECRET not in str(caught.value)
        (site / "secret").unlink()
        with pytest.raises(ConfigError, match="secret"):
            serve.opened([site])

    def test_certificates_that_are_none(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"^oidc\.ca_file: "):
            serve.opened([self.write(folder, 'ca_file = "policy.toml"')])

    def test_a_missing_extra_is_one_line(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        site = self.write(folder)
        for name in [one for one in sys.modules if one.startswith(("authlib", "secfed.console.provider"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "authlib", None)
        done = secfed("console", site)
        assert done.exit_code == 2
        assert "needs the package authlib" in done.output
        assert ".[oidc]" in done.output
