"""The report that people read: complete, honest, safe against hostile names, and it looks right."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pypdf
import pytest

from secfed.audit.party import Problem
from secfed.audit.privacy import make_report
from secfed.audit.privacy.budgets import alike
from secfed.audit.privacy.data_protection import build
from secfed.audit.privacy.document import Card, Cards, ReportTable
from secfed.audit.privacy.evidence import Amount, Report
from secfed.audit.privacy.first_page import meaning
from secfed.audit.render import figures
from secfed.audit.render.html import to_html
from secfed.audit.render.pdf import to_pdf
from secfed.crypto.identity import Identity, Roster
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.ledger.ledger import Ledger
from secfed.records.roster_file import ROSTER_FILE, write_roster
from tests.dp.report_case import ADD, DATASET, DAY_S, LEDGER, SECRET, START_S, keep


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
        assert str(SECRET) not in page

    def test_ids_are_unique_and_every_link_leads_somewhere(self, page: str) -> None:
        parsed = _Parsed(page)
        ids = [value for name, value in parsed.attributes if name == "id"]
        assert len(ids) == len(set(ids))
        targets = {(value or "")[1:] for name, value in parsed.attributes if name == "href"}
        assert targets <= set(ids)
        assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)

    def test_it_has_a_figure_per_ledger_and_every_section(self, made: Report, page: str) -> None:
        parsed = _Parsed(page)
        assert alike(made.ledgers) == [[0, 1], [2]]  # two hospitals that spent the same have one figure
        assert parsed.tags.count("svg") == 2
        titles = [section.title for section in build(made).sections]
        assert len(titles) == 14
        assert all(title in parsed.words for title in titles)

    def test_no_epsilon_stands_without_delta_relation_and_accountant(self, made: Report, page: str) -> None:
        stated = re.compile(r"epsilon \d")
        for block in (block for section in build(made).sections for block in section.blocks):
            if isinstance(block, Cards):
                for card in block.cards:
                    assert {"delta", "protects", "accountant", "left"} <= {name for name, _ in card.facts}
                    assert all(value for _, value in card.facts)
            if isinstance(block, ReportTable) and "Spent" in block.headers:
                assert {"Delta", "Neighbours", "Accountant"} <= set(block.headers)
        texts = [item for item in _Parsed(page).text if stated.search(item) and "limit" not in item]
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
        assert "Left without noise" in first
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
        assert "4 fields of “update”" in before
        assert "update/1.weight" not in before
        assert "update/1.weight, update/1.bias, update/3.weight, update/3.bias" in after

    def test_only_the_controller_fills_in_what_only_the_controller_knows(self, page: str) -> None:
        text = _Parsed(page).words
        assert text.count("to be filled in by the controller") == 13
        for label in ("Data-protection officer (1a)", "Necessity and proportionality (7b)"):
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
        for card, ledger in zip(cards.cards, made.ledgers[1:], strict=True):
            spent = ledger.amounts[0].spent
            assert 0 <= float(card.value) - spent < 0.001
            left = float(dict(card.facts)["left"])
            assert 0 <= (ledger.amounts[0].left or 0) - left < 0.001

    def test_problems_head_the_report(self, made: Report) -> None:
        problem = Problem("ledger-x.jsonl", 7, "its content does not match its hash")
        check = replace(made.verification, verified=False, problems=(problem,))
        bad = replace(made, ledgers=(), verification=check)
        text = to_html(bad)
        header = text[: text.index("<main>")]
        assert "DOES NOT VERIFY" in header
        assert "verdict bad" in header
        assert "ledger-x.jsonl, line 7: its content does not match its hash" in _Parsed(text).words

    @pytest.mark.parametrize(
        ("pinned", "tone", "verdict"),
        [
            (False, "warn", "Records are consistent (keys not checked: no pinned roster)"),
            (True, "good", "Everything verifies"),
        ],
    )
    def test_the_first_line_says_whether_a_roster_was_pinned(
        self, made: Report, pinned: bool, tone: str, verdict: str
    ) -> None:
        assert made.verification.verified
        check = replace(made.verification, pinned=pinned)
        header, rest = to_html(replace(made, ledgers=(), verification=check)).split("<main>")
        assert f'class="verdict {tone}"' in header
        assert f"{verdict}: 21 files, 58 epsilons" in header
        assert ('class="alert good"' in rest) == pinned

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
        assert parsed.tags.count("svg") == 2
        for drawn in re.findall("<svg .*?</svg>", text, re.DOTALL):
            assert "onload" not in drawn
            assert "<!--" not in drawn

    def test_equal_records_give_equal_pages(self, made: Report) -> None:
        one = replace(made, ledgers=made.ledgers[:1])
        assert to_html(one) == to_html(one)


class TestFirstPage:
    @staticmethod
    def amount(**changes: object) -> Amount:
        stated = Amount(
            "record", 3.0, 2.0, 1.0, 1e-5, None, "add-or-remove-record", "pld", "1", "local-noise"
        )
        return replace(stated, found=0.1201, guessed=0.7301, **changes)

    def test_an_epsilon_is_said_in_numbers_that_a_person_can_hold_rounded_up(self) -> None:
        assert "right at most 74 times in 100" in meaning(self.amount())
        assert "they find at most 13, if they wrongly accuse 1 in 100 others" in meaning(self.amount())
        patient = meaning(self.amount(adjacency="replace-patient"))
        assert "which of two contents the records of one patient have" in patient
        assert "recognise at most 13 in 100" in patient

    def test_a_bound_that_excludes_nothing_is_no_number(self, made: Report) -> None:
        told = meaning(replace(self.amount(), found=1.0, guessed=0.9999))
        assert "hardly any protection is left" in told
        assert "100" not in told
        only_found = meaning(replace(self.amount(), found=1.0))
        assert "right at most 74 times" in only_found
        assert "they find" not in only_found
        ledger = replace(made.ledgers[0], amounts=(replace(self.amount(), found=1.0, guessed=1.0),))
        text = to_html(replace(made, ledgers=(ledger,)))
        assert "no protection left" in text
        assert "100.0 %" not in text

    def test_nothing_spent_says_so(self) -> None:
        assert "Nothing was spent" in meaning(self.amount(adjacency=None))

    def test_what_left_without_noise_is_counted_over_exchanges(self, made: Report) -> None:
        counted = tuple(replace(item, fields=("eval/loss",), values=2054) for item in made.bare)
        told = to_html(replace(made, bare=counted))
        assert "2,054 exact numbers, 7 times, about held-out patients" in told
        assert "exact numbers, 6 times, about records" in to_html(made)  # an older ledger has no count

    def test_simulated_stands_above_everything(self, made: Report) -> None:
        studies = (replace(made.studies[0], simulated=True), *made.studies[1:])
        text = to_html(replace(made, studies=studies))
        assert text.index('class="banner"') < text.index("<h1>")
        assert "SIMULATED: study heart" in text
        assert 'class="banner"' not in to_html(made)

    def test_columns_and_holders_of_the_model_fill_the_record_of_processing(self, made: Report) -> None:
        study = replace(made.studies[0], source="csv", columns=("age", "sex", "num"))
        text = _Parsed(to_html(replace(made, studies=(study, *made.studies[1:])))).words
        assert "Study heart: age, sex, num." in text
        assert text.count("to be filled in by the controller") == 12

    def test_who_trusts_whom(self, page: str) -> None:
        text = _Parsed(page).words
        assert "Every patient Only the own hospital" in text
        assert "Every hospital (masked) A single site's values stay hidden as long as" in text
        assert "You The keys in these folders" in text


class TestPdf:
    @staticmethod
    def opened(data: bytes) -> tuple[pypdf.PdfReader, str]:
        reader = pypdf.PdfReader(io.BytesIO(data))
        return reader, " ".join(one.extract_text() for one in reader.pages)

    def test_it_opens_and_holds_the_text_and_the_figures(self, made: Report) -> None:
        data = to_pdf(made)
        reader, text = self.opened(data)
        assert 4 <= len(reader.pages) <= 12
        text = re.sub(r"\s+", " ", text)
        assert "Privacy audit report" in text
        assert "1.469" in text
        assert "Left without noise" in text
        assert str(SECRET) not in text
        assert sum(len(one.images) for one in reader.pages) == len(alike(made.ledgers))
        keep(data, "audit-report.pdf")

    def test_hostile_names_stay_text(self, hostile: Report) -> None:
        reader, text = self.opened(to_pdf(replace(hostile, ledgers=hostile.ledgers[:1])))
        assert "<script>" in text
        assert not [link for one in reader.pages for link in one.get("/Annots") or ()]


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


def test_a_card_without_a_limit_has_no_bar(made: Report) -> None:
    ledger = made.ledgers[0]
    free = replace(ledger, amounts=(replace(ledger.amounts[0], limit=None, left=None),))
    blocks = build(replace(made, ledgers=(free,))).sections[0].blocks
    (cards,) = [block for block in blocks if isinstance(block, Cards)]
    (card,) = cards.cards
    assert isinstance(card, Card)
    assert (card.fraction, card.of) == (None, "epsilon, no limit")
    assert 'class="bar"' not in to_html(replace(made, ledgers=(free,)))


ANNA = Identity.from_seed("st-anna", bytes([3]) * 32)


def card_of(folder: Path, budgets: tuple[Budget, ...], later_days: int) -> Card:
    """Of a ledger with three payments, ten days apart."""
    folder.mkdir()
    write_roster(folder / ROSTER_FILE, Roster.of(Identity.generate("aggregator"), [ANNA]))
    days = [0]

    def clock() -> float:
        return START_S + days[0] * DAY_S

    ledger = Ledger(folder / LEDGER, ANNA, DATASET, budgets, accountant=Rdp(), clock=clock)
    for number in (1, 2, 3):
        days[0] += 10
        ledger.spend(Gaussian(ADD, 3.0, 1), study="s", round_number=number, exchange="update")
    days[0] += later_days
    page = build(make_report([folder], clock=clock))
    blocks = [block for section in page.sections for block in section.blocks]
    (card,) = next(block for block in blocks if isinstance(block, Cards)).cards
    return card


@pytest.mark.parametrize("later_days", [0, 60])
@pytest.mark.parametrize("more", [(), (Budget(100.0, 1e-5),)])
def test_what_was_spent_before_the_period_still_counts_for_what_it_means(
    tmp_path: Path, later_days: int, more: tuple[Budget, ...]
) -> None:
    period = card_of(tmp_path / "period", (Budget(5.0, 1e-5, period_days=15), *more), later_days)
    ever = card_of(tmp_path / "ever", (Budget(5.0, 1e-5),), later_days)
    assert period.meaning == ever.meaning
    assert "Nothing was spent" not in period.meaning
    assert more or period.value != ever.value  # its bar is of the period
