"""The report that people read: complete, honest, safe against hostile names, and it looks right."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from secfed.dp.report import figures, make_report
from secfed.dp.report.document import Card, Cards, Table
from secfed.dp.report.dpo import build
from secfed.dp.report.facts import Report
from secfed.dp.report.figures import svg
from secfed.dp.report.html import to_html
from tests.dp.report_case import NOW_S, SECRET, Case, studies, write_case

HOSTILE = (
    "st\N{RIGHT-TO-LEFT OVERRIDE}<script>alert(1)</script>",
    "b\"'&<img src=http://evil.example/x>",
    "_$x^2$",
)
HOSTILE_STUDIES = ("</title><script>1</script>", "--><svg onload=x()>", "${7*7}{{7*7}}")
WINDOW = (1200, 900)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("case")
    write_case(root)
    return make_report(studies(root), clock=lambda: NOW_S)


@pytest.fixture(scope="module")
def page(made: Report) -> str:
    return to_html(made)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("hostile")
    write_case(root, Case(root, sites=sorted(HOSTILE)), names=HOSTILE_STUDIES)
    return make_report(studies(root), clock=lambda: NOW_S)


class _Parsed(HTMLParser):
    """Every tag, attribute and piece of text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


class TestPage:
    def test_it_needs_nothing_else_and_runs_nothing(self, page: str) -> None:
        parsed = _Parsed(page)
        assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(parsed.tags)
        assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
        assert "url(" not in page.replace("url(#f", "")
        assert not [name for name, _ in parsed.attributes if name.startswith("on")]
        for name, value in parsed.attributes:
            assert name not in ("src", "srcset", "action")
            assert "data:" not in (value or "")
            if name == "href":
                assert (value or "").startswith("#")
        assert "default-src 'none'" in unescape(page)

    def test_ids_are_unique_and_every_link_leads_somewhere(self, page: str) -> None:
        parsed = _Parsed(page)
        ids = [value for name, value in parsed.attributes if name == "id"]
        assert len(ids) == len(set(ids))
        targets = {(value or "")[1:] for name, value in parsed.attributes if name == "href"}
        assert targets <= set(ids)
        assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)

    def test_it_has_a_figure_per_ledger_and_every_section(self, made: Report, page: str) -> None:
        parsed = _Parsed(page)
        assert parsed.tags.count("svg") == len(made.ledgers) == 3
        for title in (
            "Summary",
            "In plain words",
            "Record of processing (GDPR Art. 30)",
            "Impact assessment (GDPR Art. 35)",
            "Privacy spent and left",
            "What left the sites",
            "Refusals",
            "On what each number relies",
            "Verification",
            "Appendix: every payment",
        ):
            assert title in parsed.words

    def test_no_epsilon_stands_without_delta_relation_and_accountant(self, made: Report) -> None:
        document = build(made)
        stated = re.compile(r"epsilon \d")
        for section in document.sections:
            for block in section.blocks:
                if isinstance(block, Cards):
                    for card in block.cards:
                        assert {"delta", "protects", "accountant", "left"} <= {name for name, _ in card.facts}
                        assert all(value for _, value in card.facts)
                if isinstance(block, Table) and "Spent" in block.headers:
                    assert {"Delta", "Neighbours", "Accountant"} <= set(block.headers)
        texts = [item for item in _Parsed(to_html(made)).text if stated.search(item) and "limit" not in item]
        for text in texts:
            if "With epsilon 0" in text or "of epsilon" in text:
                continue  # the explanation; the card's limit, whose facts are checked above
            assert "delta" in text, text
        guarantees = [text for text in texts if text.startswith("epsilon")]
        assert guarantees
        for text in guarantees:
            assert re.search("relation .*accountant .*dp-accounting", text), text

    def test_what_has_no_bound_is_said_on_the_first_page(self, page: str) -> None:
        first = _Parsed(page[: page.index('id="plain"')]).words
        assert "Left without noise, by the studies' explicit choice" in first
        assert "eval/records, eval/loss, eval/scores; weight" in first
        assert "No differential privacy in study pilot" in first
        assert "Nothing bounds what its sums reveal about a record" in first
        assert "Not protected from the aggregator: study pilot" in first
        assert "Not covered: study heart" in first

    def test_a_site_without_a_ledger_is_told_what_that_means(self, made: Report) -> None:
        text = _Parsed(to_html(replace(made, ledgers=(), bare=()))).words
        assert "no differential privacy: nothing bounds what the sums reveal about a record" in text.lower()
        assert "These files hold no epsilon" in text

    def test_parameter_fields_are_counted_and_named_in_the_appendix(self, page: str) -> None:
        before, after = page.split('id="fields"')
        assert "4 fields of the model update" in before
        assert "update/1.weight" not in before
        assert "update/1.weight, update/1.bias, update/3.weight, update/3.bias" in after

    def test_only_the_controller_fills_in_what_only_the_controller_knows(self, page: str) -> None:
        text = _Parsed(page).words
        for label in (
            "Data-protection officer (1a)",
            "Categories of data subjects (1c)",
            "Time limits for erasure (1f)",
            "Necessity and proportionality (7b)",
        ):
            assert f"{label} to be filled in by the controller" in text

    def test_refusals_and_digests_are_there(self, made: Report, page: str) -> None:
        text = _Parsed(page).words
        assert "it would have exceeded the record budget of epsilon 1.6 at delta 1e-05" in text
        for item in made.verification.files:
            assert item.sha256 in page
            assert item.head in page
        assert made.verification.rosters[0].digest in page

    def test_numbers_are_those_of_the_facts_never_rounded_down(self, made: Report) -> None:
        (cards,) = [block for block in build(made).sections[0].blocks if isinstance(block, Cards)]
        for card, ledger in zip(cards.cards, made.ledgers, strict=True):
            spent = ledger.amounts[0].spent
            assert 0 <= float(card.value) - spent < 0.001
            left = float(dict(card.facts)["left"])
            assert 0 <= (ledger.amounts[0].left or 0) - left < 0.001

    def test_problems_head_the_report(self, made: Report) -> None:
        from secfed.dp.report.facts import ProblemFact

        problem = ProblemFact("ledger-x.jsonl", 7, "its content does not match its hash")
        bad = replace(made, verification=replace(made.verification, verified=False, problems=(problem,)))
        text = to_html(bad)
        header = text[: text.index("<main>")]
        assert "DOES NOT VERIFY" in header
        assert "verdict bad" in header
        assert "ledger-x.jsonl, line 7: its content does not match its hash" in _Parsed(text).words

    def test_without_a_pinned_roster_the_first_line_says_what_was_not_checked(self, made: Report) -> None:
        assert made.verification.verified
        assert not made.verification.pinned
        header, rest = to_html(made).split("<main>")
        assert 'class="verdict warn"' in header
        assert "Records are consistent (keys not checked: no pinned roster): 21 files, 58 epsilons" in header
        assert "Everything verifies" not in header
        assert 'class="alert good"' not in rest
        header, rest = to_html(replace(made, verification=replace(made.verification, pinned=True))).split(
            "<main>"
        )
        assert 'class="verdict good"' in header
        assert "Everything verifies: 21 files, 58 epsilons" in header
        assert 'class="alert good"' in rest

    def test_no_value_of_a_site_is_in_it(self, page: str) -> None:
        assert str(SECRET) not in page

    def test_hostile_names_stay_text(self, hostile: Report) -> None:
        assert hostile.verification.verified
        text = to_html(hostile)
        parsed = _Parsed(text)
        assert not {"script", "img"} & set(parsed.tags)
        assert not [name for name, _ in parsed.attributes if name.startswith("on")]
        assert "<script" not in text
        assert "<img" not in text
        assert "alert(1)" in parsed.words  # shown, not run
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
        assert parsed.tags.count("svg") == 3
        for ledger in hostile.ledgers:
            drawn = svg(ledger, "f")
            assert "onload" not in drawn
            assert "<!--" not in drawn

    def test_equal_records_give_equal_pages(self, made: Report, page: str) -> None:
        assert to_html(made) == page


class TestPdf:
    def test_it_opens_and_holds_the_text_and_the_figures(self, made: Report) -> None:
        pytest.importorskip("fpdf", reason="fpdf2 is not installed")
        from secfed.dp.report.pdf import to_pdf

        data = to_pdf(made)
        assert data.startswith(b"%PDF-")
        assert b"%%EOF" in data[-1024:]
        pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
        opened = pypdf.PdfReader(io.BytesIO(data))
        assert len(opened.pages) >= 8
        text = re.sub(r"\s+", " ", " ".join(one.extract_text() for one in opened.pages))
        assert "Privacy audit report" in text
        assert "1.469" in text
        assert "Left without noise" in text
        assert str(SECRET) not in text
        images = sum(len(one.images) for one in opened.pages)
        assert images == len(made.ledgers)
        keep(data, "audit-report.pdf")

    def test_hostile_names_stay_text(self, hostile: Report) -> None:
        pytest.importorskip("fpdf", reason="fpdf2 is not installed")
        pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
        from secfed.dp.report.pdf import to_pdf

        opened = pypdf.PdfReader(io.BytesIO(to_pdf(hostile)))
        text = "".join(one.extract_text() for one in opened.pages)
        assert "<script>" in text
        assert not [link for one in opened.pages for link in one.get("/Annots") or ()]


def keep(data: bytes, name: str) -> None:
    """Leave a file for people to look at, if a folder is named."""
    folder = os.environ.get("SECFED_TEST_OUTPUT")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_bytes(data)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def chromium(folder: Path, path: Path, *options: str) -> str:
    """Run headless Chromium on a page, without any network chatter of its own."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        path.as_uri(),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def measured(folder: Path, page: str, width: int) -> dict[str, int]:
    """Sizes of the rendered page, by a script that only this copy of it has and may run."""
    script = (
        "<script>addEventListener('load', () => { const r = document.documentElement; const o = {};"
        "o.scroll = r.scrollWidth; o.client = r.clientWidth; o.height = r.scrollHeight;"
        "o.wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('svg') && "
        "!e.closest('.scroll') && e.getBoundingClientRect().right > r.clientWidth + 1).length;"
        "o.tables = [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).length;"
        "const p = document.createElement('p'); p.id = 'measured'; p.textContent = JSON.stringify(o);"
        "document.body.append(p); });</script></body>"
    )
    probe = folder / "probe.html"
    probe.write_text(
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace("</body>", script),
        encoding="utf-8",
    )
    dom = chromium(folder, probe, f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom")
    found = re.search(r'<p id="measured">(.*?)</p>', dom)
    assert found, dom[-500:]
    sizes: dict[str, int] = json.loads(unescape(found[1]))
    return sizes


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine")
class TestRendered:
    @pytest.mark.parametrize("width", [1200, 700])
    def test_nothing_is_wider_than_the_window(self, tmp_path: Path, page: str, width: int) -> None:
        sizes = measured(tmp_path, page, width)
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0
        assert sizes["height"] > 3000
        if width >= 1200:
            assert sizes["tables"] == 0  # no table needs to be scrolled on a usual screen

    def test_long_hostile_names_do_not_break_the_layout(self, tmp_path: Path, hostile: Report) -> None:
        sizes = measured(tmp_path, to_html(hostile), WINDOW[0])
        assert sizes["scroll"] <= sizes["client"]
        assert sizes["wide"] == 0

    def test_the_picture_shows_the_report(self, tmp_path: Path, page: str) -> None:
        from PIL import Image

        path = tmp_path / "report.html"
        path.write_text(page, encoding="utf-8")
        height = measured(tmp_path, page, WINDOW[0])["height"]
        picture = tmp_path / "report.png"
        chromium(tmp_path, path, f"--window-size={WINDOW[0]},{height}", f"--screenshot={picture}")
        keep(picture.read_bytes(), "audit-report.png")
        keep(page.encode(), "audit-report.html")
        with Image.open(picture) as opened:
            pixels = np.asarray(opened.convert("RGB")).astype(np.int16)
        assert pixels.shape[1] == WINDOW[0]
        # Every tenth of the page has something on it, and the limit lines and verdict have their colours.
        for part in np.array_split(pixels, 10):
            assert part.std() > 5
        for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x8A, 0x5A, 0x00), (0xA3, 0x20, 0x14)):
            assert (
                np.abs(pixels[::2, ::2] - np.array(colour, dtype=np.int16)).sum(axis=2) < 12
            ).sum() > 50, colour

    def test_it_prints(self, tmp_path: Path, page: str) -> None:
        pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
        path, out = tmp_path / "report.html", tmp_path / "printed.pdf"
        path.write_text(page, encoding="utf-8")
        chromium(tmp_path, path, f"--print-to-pdf={out}", "--no-pdf-header-footer")
        opened = pypdf.PdfReader(io.BytesIO(out.read_bytes()))
        assert 6 <= len(opened.pages) <= 30


class TestFigure:
    def test_the_label_of_a_limit_is_away_from_the_last_payments(self, made: Report) -> None:
        (axes,) = figures._draw(made.ledgers[0]).axes
        labels = [text for text in axes.texts if text.get_text().startswith("limit ")]
        assert labels
        for label in labels:
            assert (label.get_ha(), label.xy[0]) == ("left", 0.0)  # type: ignore[attr-defined]

    def test_studies_are_named_as_in_the_rest_of_the_report(self, made: Report) -> None:
        ledger = made.ledgers[0]
        names = [f"{name}-55f77d27{'0' * 56}" for name in ("breast-cancer", "a-study-with-a-very-long-name")]
        paid = [replace(payment, study=names[place % 2]) for place, payment in enumerate(ledger.payments)]
        legend = figures._draw(replace(ledger, payments=tuple(paid))).axes[0].get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [
            "breast-cancer (55f77d27)",
            "a-study-with-a-v\N{HORIZONTAL ELLIPSIS} (55f77d27)",
        ]

    def test_one_study_needs_no_legend(self, made: Report) -> None:
        ledger = made.ledgers[0]
        alone = replace(ledger, payments=tuple(replace(one, study="heart") for one in ledger.payments))
        assert figures._draw(alone).axes[0].get_legend() is None


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium program on this machine")
def test_four_cards_stand_two_by_two(tmp_path: Path, made: Report) -> None:
    for count, expected in ((3, [3]), (4, [2, 2])):
        ledgers = (*made.ledgers, made.ledgers[0])[:count]
        page = to_html(replace(made, ledgers=ledgers)).replace(
            "</body>",
            "<script>const c = [...document.querySelectorAll('.card')];"
            "const t = c.map(e => e.getBoundingClientRect().top);"
            "const p = document.createElement('p'); p.id = 'tops'; p.textContent = JSON.stringify(t);"
            "document.body.append(p);</script></body>",
        )
        page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        probe = tmp_path / f"{count}.html"
        probe.write_text(page, encoding="utf-8")
        dom = chromium(tmp_path, probe, f"--window-size={WINDOW[0]},900", "--dump-dom")
        found = re.search(r'<p id="tops">(.*?)</p>', dom)
        assert found, dom[-500:]
        tops = json.loads(found[1])
        assert [tops.count(top) for top in dict.fromkeys(tops)] == expected


def test_a_card_without_a_limit_has_no_bar(made: Report) -> None:
    ledger = made.ledgers[0]
    free = replace(ledger, amounts=(replace(ledger.amounts[0], limit=None, left=None),))
    (cards,) = [
        block
        for block in build(replace(made, ledgers=(free,))).sections[0].blocks
        if isinstance(block, Cards)
    ]
    (card,) = cards.cards
    assert isinstance(card, Card)
    assert (card.fraction, card.of) == (None, "epsilon, no limit")
    assert 'class="bar"' not in to_html(replace(made, ledgers=(free,)))
