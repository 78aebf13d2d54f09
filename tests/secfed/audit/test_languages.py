"""The report in other languages: nothing is missing, placeholders agree, numbers are as they should be."""

from __future__ import annotations

import copy
import io
import json
import re
import string
from dataclasses import replace
from html import unescape
from pathlib import Path

import pypdf
import pytest

from secfed.audit.languages import (
    ENGLISH,
    LANGUAGES,
    again,
    entries_of,
    number,
    said,
    say,
    say_many,
    speaking,
    spoken,
)
from secfed.audit.privacy import phrases, to_json
from secfed.audit.privacy.evidence import Amount, Report
from secfed.audit.privacy.first_page import meaning
from secfed.audit.render.html import to_html
from secfed.audit.render.pdf import to_pdf
from tests.secfed.audit.messages import ROOT, messages
from tests.secfed.run_case import secfed

SPACE = "\N{NO-BREAK SPACE}"
OTHERS = sorted(set(LANGUAGES) - {ENGLISH})
# Whether an English text is left in a page shows only where it is not the same word in the other language.
SURELY_ENGLISH = 15


def catalogue(code: str) -> dict[tuple[str, ...], list[str]]:
    text = (ROOT / f"secfed/audit/locale/{code}.po").read_text("utf-8")
    listed = [(tuple(keys), forms) for keys, forms in entries_of(text) if keys[0]]
    assert len(listed) == len(dict(listed))
    return dict(listed)


def placeholders(text: str) -> set[tuple[str | None, str | None, str | None]]:
    return {part[1:] for part in string.Formatter().parse(text) if part[1] is not None}


def words(page: str) -> str:
    text = re.sub("<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub("<[^>]+>", " ", text)).split())


@pytest.mark.parametrize("code", OTHERS)
class TestCatalogue:
    def test_every_text_has_a_translation_and_none_is_left_over(self, code: str) -> None:
        assert set(catalogue(code)) == messages()
        assert len(messages()) > 400
        for english, forms in catalogue(code).items():
            assert len(forms) == len(english)
            assert all(form.strip() or not english[0].strip() for form in forms), english

    def test_placeholders_agree(self, code: str) -> None:
        for english, forms in catalogue(code).items():
            for form in forms:
                assert placeholders(form) == placeholders(english[0]), english

    def test_spaces_at_the_ends_agree(self, code: str) -> None:
        for english, forms in catalogue(code).items():
            for form in forms:
                assert form.startswith(" ") == english[0].startswith(" ") or english[0] == "; ", english
                assert form.endswith(" ") == english[0].endswith(" "), english


class TestLanguages:
    def test_numbers_are_written_as_the_language_does(self) -> None:
        for code, thousands, decimals in (
            ("en", "1,234,567", "2.500"),
            ("de", "1.234.567", "2,500"),
            ("fr", "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567", "2,500"),
        ):
            with speaking(code):
                assert number(1234567, ",") == thousands
                assert phrases.number_up(2.5) == decimals
                assert phrases.plural(1234567, "sum").startswith(thousands)
                assert phrases.percent_up(0.0123) == f"1{decimals[1]}3{' ' if code != 'fr' else chr(160)}%"
                assert phrases.delta(1.5e-5) == f"1{decimals[1]}5e-5"
                assert say("round {numbers}", numbers=2026)[-4:] == "2026"  # a name, not an amount

    def test_plurals_follow_the_language(self) -> None:
        for code, none, one in (
            ("en", "0 sums", "1 sum"),
            ("de", "0 Summen", "1 Summe"),
            ("fr", "0 somme", "1 somme"),
        ):
            with speaking(code):
                assert [phrases.plural(count, "sum") for count in (0, 1)] == [none, one]
        with speaking("de"):
            assert say_many("last {count} day", "last {count} days", 30) == "letzte 30 Tage"

    def test_french_punctuation_stays_on_its_line(self) -> None:
        with speaking("fr"):
            told = say("Everything verifies: {checked}", checked="x")
            assert told == "Vérification réussie\N{NO-BREAK SPACE}: x"
            assert phrases.printable(say("{share:.1f} %", share=1.0)) == "1,0\N{NO-BREAK SPACE}%"

    def test_names_are_quoted_as_the_language_does(self) -> None:
        told = "{exchange} on data set {data_set!r}"
        for code, quoted in (("en", "'x'"), ("de", "„x“"), ("fr", f"«{SPACE}x{SPACE}»")):
            with speaking(code):
                assert say(told, exchange="1", data_set="x").endswith(quoted)

    def test_a_language_holds_inside_only(self) -> None:
        with speaking("de"):
            with speaking("fr"):
                assert say("Sites") == "Sites"
            assert (spoken(), say("Sites")) == ("de", "Standorte")
        assert (spoken(), say("Sites")) == ("en", "Sites")

    def test_a_fact_is_english_and_can_be_said_again(self) -> None:
        with speaking("de"):
            fact = said("{one} and {other}", one=said("epsilon {limit:g}", limit=1.6), other="x")
            assert fact == "epsilon 1.6 and x"
            assert again(copy.deepcopy(fact)) == "Epsilon 1,6 und x"
            assert again("Sites") == "Sites"  # a name, for example
        assert json.dumps(fact) == '"epsilon 1.6 and x"'

    def test_braces_in_a_value_are_no_placeholders(self) -> None:
        with speaking("de"):
            assert say("Study {study}", study="{0.__class__}") == "Studie {0.__class__}"


@pytest.mark.parametrize("code", OTHERS)
class TestReport:
    def test_no_english_sentence_is_left(self, made: Report, code: str) -> None:
        with speaking(code):
            page = to_html(made)
            text = words(page)
        known = catalogue(code)
        plain = [one for (one, *_), forms in known.items() if placeholders(one) == set() and one != forms[0]]
        left = [one for one in plain if len(one) >= SURELY_ENGLISH and " ".join(one.split()) in text]
        assert left == []
        assert f'<html lang="{code}">' in page
        for english in ("rounds", "noise multiplier", " of ", "study ", "exact numbers", "payments"):
            assert english not in re.sub(r"docs?/|“[^”]*”", "", text), english

    def test_facts_for_programs_do_not_change_with_the_language(self, made: Report, code: str) -> None:
        with speaking(code):
            assert to_json(made) == to_json(copy.deepcopy(made))
            told = to_json(made)
        assert told == to_json(made)
        assert "it would have exceeded the record budget of epsilon 1.6 at delta 1e-05" in told

    def test_an_epsilon_is_said_in_numbers_that_a_person_can_hold(self, made: Report, code: str) -> None:
        spent = Amount(
            "record",
            3.0,
            2.0,
            1.0,
            1e-5,
            None,
            "add-or-remove-record",
            "pld",
            "1",
            "local-noise",
            0.1201,
            0.7301,
        )
        with speaking(code):
            told = meaning(spent)
        assert "74" in told
        assert "13" in told
        assert {"de": "ob ein Datensatz verwendet wurde", "fr": "si un enregistrement a été utilisé"}[
            code
        ] in told


def test_the_pdf_without_a_browser_has_the_language(made: Report) -> None:
    with speaking("fr"):
        reader = pypdf.PdfReader(io.BytesIO(to_pdf(replace(made, ledgers=(), studies=(), decisions=()))))
    text = " ".join(page.extract_text() for page in reader.pages)
    assert "Qui fait confiance à qui" in " ".join(text.split())
    assert reader.trailer["/Root"]["/Lang"] == "fr"


def test_the_command_takes_a_language(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    secfed("audit", "report", str(written), "--out", str(out), "--language", "de")
    assert "Wer wem vertraut" in out.read_text("utf-8")
    assert "Nachbarschaft" in out.read_text("utf-8")
    done = secfed("audit", "report", str(written), "--out", str(out), "--language", "xx")
    assert done.exit_code == 2
    assert "--language xx: is not known" in done.output
