"""Every page in German and in French: no English sentence is left, wherever it comes from."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import escape
from html.parser import HTMLParser
from typing import Any, Final

import pytest

from secfed.console import centre as centre_module
from secfed.console import hospital as hospital_module
from secfed.console.guard import Guard
from secfed.console.pages import make_app
from secfed.console.serve import opened as opened_folders
from secfed.deploy.admission import near_twins
from secfed.deploy.admission.near_twins import NearTwin
from secfed.deploy.agent.status import STATUS_FILE
from secfed.deploy.enrolment.messages import utc_now
from secfed.records.roster_file import PINNED_FILE
from secfed.site.lost_memory import note_loss
from tests.secfed.console.console_case import BASE, DIGEST, PAST, PORT, Opened

STUDY = f"/studies/{DIGEST}"
HOSPITAL = ("/", "/studies", STUDY, "/budgets", "/left", "/decisions", "/setup", "/records", "/nothing")
CENTRE = ("/", "/hospitals", f"/runs/{PAST.digest().hex()}", "/records")
REPORT = "/records/report.html"

# Words that are the same in English and in these languages.
SAME: Final = {"de": "agent name status tag", "fr": "agent date page pages protection site sites"}
# Names: of a consortium, a study, its settings, fields and relations, and of accountants.
NAMES: Final = """
    secfed console json pdf utc epsilon delta budgets earlier tiny wards hospital weiss
    masked fedavg logistic regression update weight true false null add remove record dp accounting rdp
"""
# Words that no German or French sentence has.
ENGLISH: Final = re.compile(
    r"\b(the|of|and|this|has|have|not|with|which|from|its|been|by|than|there|that|who|every|until|days?|"
    r"expired|ended|begun|study|keys?|roster|pinned|site centre|of the|waits|round)\b"
)
# What is not a sentence: code, file names, digests, keys of a study, names of fields.
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
_NOT_TEXT: Final = re.compile(r"\S*[/._=@\[\]{}0-9]\S*|--\S+|\b[0-9a-f]{4}\b")


class Texts(HTMLParser):
    """Visible texts and labels, without what is marked as English, and without code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[bool] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        skipped = tag in ("pre", "style", "code", "svg") or (given.get("lang") is not None and tag != "html")
        skipped = skipped or "digest" in (given.get("class") or "").split()
        if tag not in ("meta", "link", "input", "br", "hr", "rect"):
            self._open.append(skipped or (bool(self._open) and self._open[-1]))
        if not skipped:
            labels = (given.get(name) for name in ("aria-label", "data-label", "title", "alt"))
            self.found += [text for text in labels if text]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "link", "input", "br", "hr", "rect"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and not (self._open and self._open[-1]):
            self.found.append(" ".join(data.split()))


def plain(text: str) -> str:
    """Without code, quotations and the name of the consortium."""
    return re.sub(r"[“„«'\"].*?[”“»'\"]", " ", _NOT_TEXT.sub(" ", text.replace("Heart study", " ")))


def words(text: str) -> set[str]:
    return {one.lower() for one in _WORD.findall(plain(text))}


def left(other: str, english: str, code: str) -> list[str]:
    """Texts of a page that are those of the English one, or in which English words stand."""
    same, known = words(NAMES + SAME[code]), set(Texts(english).found)
    return [
        text
        for text in Texts(other).found
        if (text in known and words(text) - same) or ENGLISH.search(plain(text))
    ]


def pages(client: Any, addresses: tuple[str, ...], code: str) -> dict[str, list[str]]:
    """English texts by page."""
    found = {}
    for address in addresses:
        english = client.get(f"{address}?language=en").text
        other = client.get(f"{address}?language={code}").text
        assert '<span lang="en">' not in other, address  # all of these are translated
        found[address] = left(other, english, code)
    return {address: texts for address, texts in found.items() if texts}


def client_of(opened: Opened, console: Any) -> Any:
    guard = Guard(make_app(console), PORT)
    return Opened(opened.site, opened.roster, console, guard, opened.centre, opened.run).entered()


def note_status(opened: Opened) -> None:
    """What an agent wrote whose study waits, after an error and an alarm."""
    error = "study 'tiny' waits for the approval of this site. Remedy: at the site: secfed agent approve 12ab"
    alarm = "round 3, exchange 'update': update, weight added nothing (NaN or Inf)"
    status = {
        "state": "held",
        "why": error,
        "connection": "connected",
        "last_error": {"text": error, "time_s": 0},
        "last_alarm": {"text": alarm, "time_s": 0},
    }
    none = dict.fromkeys(("study", "round", "rounds"))
    (opened.site.state / STATUS_FILE).write_text(json.dumps({**none, **status}))


def add_twin(opened: Opened) -> None:
    text = (
        "earlier (ended 2026-03-02): same data set wards, model logistic-regression, algorithm fedavg; "
        "differs in: sites (-hospital-4); study.rounds (2, was 1) and 3 more; results can be subtracted, and "
        "differ in: model"
    )
    near_twins.note(opened.site.state, DIGEST, (NearTwin(f"earlier-{'1' * 64}", text, True),))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day on which every certificate has expired."""
    for module in (hospital_module, centre_module):
        monkeypatch.setattr(module, "utc_now", lambda: utc_now() + timedelta(days=9000))


@pytest.mark.parametrize("code", ["de", "fr"])
class TestPages:
    def test_of_a_hospital(self, opened: Opened, code: str) -> None:
        assert pages(opened.entered(), (*HOSPITAL, REPORT), code) == {}

    def test_of_a_hospital_with_troubles(self, opened: Opened, code: str, later: None) -> None:
        note_status(opened)
        add_twin(opened)
        note_loss(opened.site.state, datetime(2026, 3, 2, tzinfo=UTC))
        ledger = next(opened.site.state.glob("ledger-*.jsonl"))
        ledger.write_bytes(ledger.read_bytes().replace(b'"round":2', b'"round":3', 1))
        client = opened.entered()
        assert pages(client, HOSPITAL, code) == {}
        opened.site.policy_path.write_text("four_eyes = 3\n")
        (opened.site.folder / PINNED_FILE).unlink()
        assert pages(client, HOSPITAL, code) == {}

    def test_of_what_does_not_work(self, opened: Opened, code: str) -> None:
        client = opened.entered()
        add_twin(opened)
        client.get(f"/?language={code}")
        for form in ({"decision": "approve"}, {"decision": "something"}):
            told = {}
            for language in ("en", code):
                client.get(f"/?language={language}")
                answer = client.post(
                    f"{STUDY}/decide", data={"csrf": opened.guard.csrf, **form}, headers={"Origin": BASE}
                )
                assert answer.status_code in (400, 409)
                told[language] = answer.text
            assert left(told[code], told["en"], code) == []

    def test_of_a_centre(self, opened: Opened, code: str, later: None) -> None:
        lines = [
            {"round": 1, "site": "hospital-1", "stage": "share", "reason": reason}
            for reason in (
                "refusal 8: the cohort is below this site's minimum (2 sites)",
                "this site does not take part (study.name)",
                "a privacy budget does not cover this",
            )
        ]
        with (opened.run / "transcript.jsonl").open("a") as file:
            file.writelines(json.dumps({"kind": "refused", "body": line}) + "\n" for line in lines)
        client = client_of(opened, opened_folders([opened.centre.folder, opened.run]))
        assert pages(client, CENTRE, code) == {}
        run = client.get(f"{CENTRE[2]}?language={code}").text
        assert run.count("<li>") >= len(lines)


def test_an_english_sentence_is_noticed() -> None:
    german = "<html><body><p>Alles gut</p><p>The agent sleeps</p><dt>Wann</dt></body></html>"
    english = german.replace("Alles gut", "All is well").replace("Wann", "When")
    assert left(german, english, "de") == ["The agent sleeps"]
    assert left(german.replace("agent sleeps", "weather has changed"), english, "de") != []
    assert left(german.replace("<p>The", '<p lang="en">The'), english, "de") == []


def test_what_no_catalogue_has_is_introduced_and_marked_as_english(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = "the disk of this machine <b>sings</b>"
    monkeypatch.setattr(hospital_module.StudyView, "twins", (NearTwin(f"a-{'1' * 64}", add),))
    client = opened.entered()
    german = client.get(f"{STUDY}?language=de").text
    assert f'Die Meldung, auf Englisch: <span lang="en">{escape(add)}</span>' in german
    assert 'lang="en">the' not in client.get(f"{STUDY}?language=en").text
