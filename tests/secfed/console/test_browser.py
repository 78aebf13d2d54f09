"""The console in Chromium: four walks by the keyboard alone, and every page at three widths.

Pictures for the documents:
SECFED_CONSOLE_PICTURES=docs/figures pytest tests/secfed/console/test_browser.py -m slow
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

import pypdf
import pytest
import uvicorn
from PIL import Image

from secfed.audit.languages import LANGUAGES, speaking
from secfed.audit.render.chromium import print_to_pdf
from secfed.console import serve
from secfed.console.pages import Console
from secfed.console.serve import opened as opened_folders
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from tests.browser import AXE, CHECKS, CHROMIUM, Browser, browser
from tests.dp.report_case import keep
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
KEPT = ("now-1000", "study-400", "study-1000", "study-1600", "left-400", "run-1000")
KEPT += ("report-400", "report-1000", "report-1600")
# Longer words, and other spaces.
OTHER_LANGUAGES = ("de", "fr")


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
        entered(tab, address)
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


def entered(tab: Browser, address: str) -> str:
    """Enter; the address that all pages are below."""
    tab.open(address)
    until = time.monotonic() + 60
    while (
        "/enter" in (place := str(tab.run("location.href"))) or tab.run("document.readyState") != "complete"
    ):
        assert time.monotonic() < until
        time.sleep(0.01)
    return place.rstrip("/")


# In pictures, folders of a test are those of an operator.
_RENAMED = """(() => { const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replaceAll(%r, '/srv/secfed');
  })()"""


def check(tab: Browser, pages: dict[str, str], address: str, opened: Opened) -> None:
    tab.size(1000)
    base = entered(tab, address)
    tab.requests.clear()
    folder = os.environ.get("SECFED_CONSOLE_PICTURES")
    for name, path in pages.items():
        for width in WIDTHS:
            tab.size(width)
            tab.open(base + path)
            assert tab.run(CHECKS) == [], (name, width)
            tab.run(_RENAMED % str(opened.site.folder.parent))
            assert "/tmp/" not in tab.text
            picture = tab.picture()
            keep(picture, f"console-{name}-{width}.png")
            if folder and f"{name}-{width}" in KEPT:
                with Image.open(io.BytesIO(picture)) as whole:
                    small = whole.convert("RGB").crop((0, 0, width, min(whole.height, 2 * width + 800, 2400)))
                    small.quantize(64).save(Path(folder) / f"console-{name}-{width}.png", optimize=True)
    assert {one for one in tab.requests if not one.startswith(base)} == set()  # nothing from elsewhere


@pytest.mark.slow
def test_every_page_of_a_hospital_at_three_widths(
    opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(opened.console, monkeypatch) as address:
        check(tab, HOSPITAL, address, opened)


@pytest.mark.slow
def test_every_page_of_a_centre_at_three_widths(
    opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = replace(opened_folders([opened.centre.folder, opened.run]), account="m.keller")
    with served(console, monkeypatch) as address:
        check(tab, CENTRE, address, opened)


@pytest.mark.slow
@pytest.mark.parametrize("code", OTHER_LANGUAGES)
def test_every_page_in_another_language_is_as_wide_as_the_window(
    opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    with served(opened.console, monkeypatch) as address:
        base = entered(tab, address)
        tab.open(f"{base}/?language={code}")
        for name, path in HOSPITAL.items():
            for width in WIDTHS:
                tab.size(width)
                tab.open(base + path)
                assert tab.run(CHECKS) == [], (name, width)
                assert tab.run("document.documentElement.lang") == code
                keep(tab.picture(), f"console-{name}-{width}-{code}.png")


@pytest.mark.slow
@pytest.mark.parametrize("code", LANGUAGES)
def test_the_report_on_one_study_has_at_most_six_pages(opened: Opened, code: str) -> None:
    assert opened.console.records is not None
    with speaking(code):
        page = (opened.console.records.page() or "").replace(str(opened.site.folder.parent), "/srv/secfed")
        printed = print_to_pdf(page, str(CHROMIUM))
    assert printed is not None
    keep(printed, f"audit-report-{code}.pdf")
    sheets = [sheet.extract_text().splitlines() for sheet in pypdf.PdfReader(io.BytesIO(printed)).pages]
    assert len(sheets) <= 6
    headings = {unescape(re.sub("<.*?>", "", one)) for one in re.findall("<h[23].*?</h[23]>", page)}
    assert len(headings) > 10
    for lines in sheets:  # no heading is the last of a page
        assert headings.isdisjoint(" ".join(" ".join(lines[-count:]).split()) for count in (1, 2, 3))


@pytest.mark.slow
@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm ci in tests/accessibility")
class TestAccessibility:
    """Axe, an independent checker, finds nothing on any page, as wide as a telephone or a large screen."""

    @staticmethod
    def look(tab: Browser, addresses: dict[str, str]) -> None:
        found = {}
        for name, address in addresses.items():
            for width in (WIDTHS[0], WIDTHS[-1]):
                tab.size(width)
                tab.open(address)
                found[name, width] = tab.violations
        assert {place: what for place, what in found.items() if what} == {}

    def look_at(self, tab: Browser, pages: dict[str, str], address: str) -> None:
        base = entered(tab, address)
        self.look(tab, {name: base + path for name, path in pages.items() if name != "report"})

    def test_of_a_hospital(self, opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
        with served(opened.console, monkeypatch) as address:
            self.look_at(tab, HOSPITAL, address)

    def test_of_the_report_in_every_language(self, opened: Opened, tab: Browser, tmp_path: Path) -> None:
        """From a file: the console shows it in a sandbox, where not even a checker runs."""
        assert opened.console.records is not None
        pages = {}
        for code in LANGUAGES:
            path = tmp_path / f"{code}.html"
            with speaking(code):
                path.write_text(opened.console.records.page() or "", "utf-8")
            pages[code] = path.as_uri()
        self.look(tab, pages)

    def test_of_a_centre(self, opened: Opened, tab: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
        with served(opened_folders([opened.centre.folder, opened.run]), monkeypatch) as address:
            self.look_at(tab, CENTRE, address)

    def test_it_finds_what_is_wrong(self, tab: Browser, tmp_path: Path) -> None:
        page = tmp_path / "bad.html"
        page.write_text("<!DOCTYPE html><title>x</title><img src=x><p style='color:#bbb'>Faint</p>")
        tab.open(page.as_uri())
        found = {one.split(":")[0] for one in tab.violations}
        assert {"image-alt", "color-contrast", "html-has-lang"} <= found


@pytest.mark.slow
def test_the_page_of_another_origin_cannot_decide(person: Browser, opened: Opened, tmp_path: Path) -> None:
    """In the browser that holds the cookie, a page from elsewhere sends the form of the console."""
    base = str(person.run("location.href")).rstrip("/")
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
