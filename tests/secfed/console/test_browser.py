"""The console in Chromium: four walks by the keyboard alone, and every page at three widths.

Pictures for the documents:
SECFED_CONSOLE_PICTURES=docs/figures pytest tests/secfed/console/test_browser.py -m slow
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from PIL import Image

from secfed.console import serve
from secfed.console.pages import Console
from secfed.console.serve import opened as opened_folders
from secfed.deploy.admission.approvals import Approvals, ApprovalState
from tests.browser import CHECKS, CHROMIUM, Browser, browser
from tests.secfed.console.console_case import DIGEST, PAST, WAITING, Opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine")

WIDTHS = (400, 1000, 1600)
HOSPITAL = {
    "now": "/",
    "studies": "/studies",
    "study": f"/studies/{DIGEST}",
    "budgets": "/budgets",
    "left": "/left",
    "decisions": "/decisions",
    "setup": "/setup",
    "records": "/records",
    "problem": "/nothing",
    "report": "/records/report.html",
}
CENTRE = {"centre": "/", "hospitals": "/hospitals", "run": f"/runs/{PAST.digest().hex()}"}
# Enough for the documents, and small.
KEPT = ("now-1000", "study-400", "study-1000", "study-1600", "left-400", "run-1000", "report-400")


@contextmanager
def served(console: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The real server in a thread; gives the address that works once."""
    told: list[str] = []
    servers: list[uvicorn.Server] = []

    class Kept(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(serve.uvicorn, "Server", Kept)
    thread = threading.Thread(target=serve.serve, args=(console, 0, told.append), daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not told or not servers or not servers[0].started:
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    yield told[0]
    servers[0].should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def person(opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Somebody who has never seen the system, at the first page."""
    with served(opened.console, monkeypatch) as address:
        tab.size(1000)
        tab.open(address)
        yield tab


class TestWalks:
    """What a person finds in the console alone, by the Tab and Enter keys."""

    def test_what_a_pending_study_would_do_with_the_data_and_the_decision(
        self, person: Browser, opened: Opened
    ) -> None:
        assert "A study waits for your decision" in person.text
        person.follow("Look at tiny")
        assert "What it would do with the data" in person.text
        assert "on this hospital’s data set “wards”" in person.text
        person.follow("Approve")
        assert "written into the signed decision log" in person.text
        assert Approvals(opened.site.approvals_path).state(WAITING.digest()) is ApprovalState.APPROVED
        person.follow("Decisions")
        assert "approved by dr.weiss" in person.text

    def test_what_is_left_of_a_budget(self, person: Browser) -> None:
        person.follow("Budgets")
        assert "of epsilon 20 left" in person.text
        assert "more payments like the last ones" in person.text

    def test_what_left_the_hospital_yesterday(self, person: Browser) -> None:
        assert "Yesterday 2 sums with numbers of this hospital" in person.text
        person.follow("2 sums")
        assert "2,054 exact: eval/records" in person.text
        assert "Hospitals in the sum" in person.text

    def test_whether_the_records_verify(self, person: Browser) -> None:
        assert "everything verifies" in person.text
        person.follow("Records")
        person.follow("Verify again now")
        assert "everything verifies" in person.text
        person.follow("Open the report")
        assert "What this means" in person.text


def check(tab: Browser, pages: dict[str, str], address: str) -> None:
    base = address[: address.index("/enter")]
    tab.size(1000)
    tab.open(address)
    tab.requests.clear()
    folder = os.environ.get("SECFED_CONSOLE_PICTURES")
    for name, path in pages.items():
        for width in WIDTHS:
            tab.size(width)
            tab.open(base + path)
            assert tab.run(CHECKS) == [], (name, width)
            if folder and f"{name}-{width}" in KEPT:
                with Image.open(io.BytesIO(tab.picture())) as picture:
                    small = picture.convert("RGB").crop((0, 0, width, min(picture.height, 2 * width + 800)))
                    small.quantize(64).save(Path(folder) / f"console-{name}-{width}.png", optimize=True)
    assert {one for one in tab.requests if not one.startswith(base)} == set()  # nothing from elsewhere


@pytest.mark.slow
def test_every_page_of_a_hospital_at_three_widths(
    opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(opened.console, monkeypatch) as address:
        check(tab, HOSPITAL, address)


@pytest.mark.slow
def test_every_page_of_a_centre_at_three_widths(
    opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(opened_folders([opened.centre.folder, opened.run]), monkeypatch) as address:
        check(tab, CENTRE, address)


@pytest.mark.slow
def test_the_page_of_another_origin_cannot_decide(person: Browser, opened: Opened, tmp_path: Path) -> None:
    """In the browser that holds the cookie, a page from elsewhere sends the form of the console."""
    base = str(person.run("location.origin"))
    person.open(f"{base}/studies/{DIGEST}")
    csrf = str(person.run("document.querySelector('[name=csrf]')?.value || ''"))
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<form method="post" action="{base}/studies/{DIGEST}/decide"><input name="csrf" value="{csrf}">'
        '<input name="decision" value="approve"><button>Win a prize</button></form>'
    )
    person.open(evil.as_uri())
    person.follow("Win a prize")
    assert "Approved" not in person.text
    assert Approvals(opened.site.approvals_path).state(WAITING.digest()) is ApprovalState.HELD
