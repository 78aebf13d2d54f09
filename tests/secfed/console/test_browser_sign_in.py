"""Signing in, in Chromium: cookies, policies and redirects as a browser has them, between two sites."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from secfed.audit.languages import LANGUAGES
from secfed.deploy.admission.approvals import ApprovalState
from tests.browser import CHECKS, CHROMIUM, Browser, browser
from tests.secfed.console import provider_case
from tests.secfed.console.sign_in_case import STUDY, Case
from tests.secfed.console.test_browser import WIDTHS, entered, keep, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine"),
]


@pytest.fixture
def elsewhere() -> Iterator[provider_case.Provider]:
    """A provider at another site than the console: to browsers a name makes a site, and no port does."""
    with provider_case.provider() as made:
        made.issuer = made.issuer.replace("127.0.0.1", "localhost")
        made.asks_person = True
        yield made


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def wait_for(tab: Browser, words: str) -> None:
    """Pages lead on by themselves."""
    until = time.monotonic() + 60
    text = ""
    while words not in text:
        assert time.monotonic() < until, text
        time.sleep(0.02)
        with suppress(RuntimeError):  # between two pages
            text = tab.text


def test_a_person_signs_in_decides_and_signs_out(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(folder, elsewhere)
    with served(case.opened.console, monkeypatch) as address:
        tab.size(1000)
        base = entered(tab, address)
        tab.requests.clear()
        tab.follow("Look at tiny")
        tab.follow("Sign in")
        wait_for(tab, "Log in as Weiss")
        tab.follow("Log in")
        wait_for(tab, "You decide as dr.weiss@uk.example")
        assert tab.run("location.href") == base + STUDY
        tab.follow("Approve")
        assert "written into the signed decision log" in tab.text
        assert case.state is ApprovalState.APPROVED
        tab.follow("Decisions")
        assert f"approved by dr.weiss@uk.example (OpenID Connect: {elsewhere.issuer})" in tab.text
        tab.follow("Sign out")
        assert "nobody is signed in" in tab.text
        away = [one for one in tab.requests if not one.startswith(base)]
        assert away[0].startswith(f"{elsewhere.issuer}/authorize?")
        assert {one.split("?")[0] for one in away if not one.endswith("/favicon.ico")} == {
            f"{elsewhere.issuer}/authorize",
            address.split("/enter")[0] + "/signed-in",
        }
        assert not any(base.rpartition("/")[2] in one for one in elsewhere.referrers)


def test_a_page_from_elsewhere_signs_nobody_in(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's page sends the form of the console, or leads the browser to the end of a sign-in."""
    case = Case(folder, elsewhere)
    with served(case.opened.console, monkeypatch) as address:
        base = entered(tab, address)
        tab.open(base + STUDY)
        csrf = tab.run("document.querySelector('[name=csrf]').value")
        evil = folder / "evil.html"
        evil.write_text(
            f'<form method="post" action="{base}/sign-in"><input name="csrf" value="{csrf}">'
            "<button>Win</button></form>"
        )
        tab.open(evil.as_uri())
        tab.follow("Win")
        assert "does not come from the console" in tab.text or "for the person who started" in tab.text
        # Even with everything that only the console and the provider know:
        host = address.split("/enter")[0]
        back = elsewhere.leads_to(case.sign_in.begin(f"{host}/signed-in", "/"))
        ticket = case.sign_in.landed(back.partition("?")[2])
        evil.write_text(f'<a href="{base}/sign-in/finish?ticket={ticket}">Win</a>')
        tab.open(evil.as_uri())
        tab.follow("Win")
        assert "for the person who started" in tab.text
        assert case.sign_in.person is None


def test_every_page_is_as_wide_as_the_window_whoever_is_signed_in(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(folder, elsewhere)
    elsewhere.who["email"] = f"{'long' * 40}@uk.example"
    with served(case.opened.console, monkeypatch) as address:
        base = entered(tab, address)
        for signed_in in (False, True):
            if signed_in:
                elsewhere.asks_person = False
                tab.open(base + STUDY)
                tab.follow("Sign in")
                wait_for(tab, "longlong")
            for code in LANGUAGES:
                for page in ("/", STUDY):
                    tab.open(f"{base}{page}?language={code}")
                    for width in WIDTHS:
                        tab.size(width)
                        assert tab.run(CHECKS) == [], (page, width, code)
                    keep(tab.picture(), f"console-sign-in-{signed_in}-{code}-{page.count('/')}.png")
            tab.open(f"{base}/?language=en")
