"""English messages of other modules are found again by their words, with whatever values are in them."""

from __future__ import annotations

import re

import pytest

from secfed.audit import recognised as module
from secfed.audit.languages import ENGLISH, LANGUAGES, entries_of, speaking
from secfed.audit.recognised import known_or_own, recognised
from tests.secfed.audit.core_messages import core_messages
from tests.secfed.audit.messages import ROOT
from tests.secfed.audit.test_languages import placeholders

OTHERS = sorted(set(LANGUAGES) - {ENGLISH})
SPACE = "\N{NO-BREAK SPACE}"


def patterns(code: str) -> dict[str, str]:
    text = (ROOT / f"secfed/audit/locale/messages-{code}.po").read_text("utf-8")
    listed = [(keys[0], forms[0]) for keys, forms in entries_of(text) if keys[0]]
    assert len(listed) == len(dict(listed))
    return dict(listed)


def filled(text: str) -> str:
    return re.sub(r"\{(\w+)\}", r"Wert\1", text)


@pytest.mark.parametrize("code", OTHERS)
class TestCatalogue:
    def test_every_sentence_has_a_translation_and_none_is_left_over(self, code: str) -> None:
        assert set(patterns(code)) == core_messages()
        assert len(core_messages()) > 350

    def test_values_and_spaces_at_the_ends_agree(self, code: str) -> None:
        for english, other in patterns(code).items():
            if "min = 1" not in english:  # the braces of TOML
                assert placeholders(other) == placeholders(english), english
            assert other.startswith(" ") == english.startswith(" "), english
            assert other.endswith(" ") == english.endswith(" "), english

    def test_a_sentence_with_any_words_in_it_is_found(self, code: str) -> None:
        with speaking(code):
            for english, other in patterns(code).items():
                if module._Pattern(english, other).letters >= module._SURE and "}{" not in english:
                    told = recognised(filled(english))
                    assert told is not None, english
                    assert told.replace(SPACE, " ") == filled(other), english


CASES = {
    "until 2027-05-01 (364 days), wards, centre.example:8443": "bis 2027-05-01 (364 Tage), wards, "
    "centre.example:8443",
    "3 sites, pinned since 2026-01-02, digest ab": "3 Standorte, hinterlegt seit 2026-01-02, Prüfsumme ab",
    "3 sites, pinned, digest ab": "3 Standorte, hinterlegt, Prüfsumme ab",
    "tiny (ended 2026-03-02): same data set wards, model mlp; differs in: sites (-b); study.rounds (2, was "
    "1) and 3 more; results can be subtracted, and differ in: x, y": "tiny (beendet am 2026-03-02): gleich "
    "sind Datenbestand wards, Modell mlp; verschieden sind Standorte (-b); study.rounds (2, früher 1) und 3 "
    "weitere; Ergebnisse lassen sich voneinander abziehen und unterscheiden sich in: x, y",
    "study 'x' is not permitted at this site: model.name: the study has 'a'; permitted here: mlp, cnn; "
    "hours: the study has work now; permitted here: at most 1": "Studie „x“ ist an diesem Standort nicht "
    "zugelassen: model.name: Die Studie hat „a“; hier zulässig: mlp, cnn; hours: Die Studie hat Arbeit zu "
    "dieser Zeit; hier zulässig: höchstens 1",
    "/p/policy.toml: privacy.max_epsilon: should be greater than 0, not -1": "/p/policy.toml: "
    "privacy.max_epsilon: muss größer als 0 sein, nicht -1",
    "round 3 of 20, waiting for 1 more hospital (2 of 3 answered)": "Runde 3 von 20, wartet auf 1 weiteres "
    "Krankenhaus (2 von 3 haben geantwortet)",
    "held: study 'x' waits for the approval of this site": "zurückgestellt: Studie „x“ wartet auf die "
    "Genehmigung dieses Standorts",
    "refusal 8: the cohort is below this site's minimum (2 sites).": "Verweigerung 8: die Kohorte ist "
    "kleiner, als dieser Standort verlangt (2 Standorte).",
    "round 3, exchange 'update': weight, loss added nothing (NaN or Inf)": "Runde 3, Austausch „update“: "
    "weight, loss trug nichts bei (NaN oder Inf)",
    "the certificate expired on 2026-01-01 00:00 UTC; the clock of this machine (h) says 2026-01-02 02:00 "
    "UTC, 1 day, 2 hours later": "das Zertifikat ist am 2026-01-01 00:00 UTC abgelaufen; die Uhr dieses "
    "Rechners (h) zeigt 2026-01-02 02:00 UTC, 1 Tag, 2 Stunden später",
    "it is not in the decision log: /a/b: No space left on device. Remedy: free space on that disk and start "
    "it again": "es steht nicht im Entscheidungsprotokoll: /a/b: Der Datenträger ist voll. Abhilfe: schaffen "
    "Sie Platz auf diesem Datenträger und starten Sie neu",
    "age: from 18 to 100 years (counts as missing: 63; anything else counts as missing)": "age: von 18 bis "
    "100 years (gilt als fehlend: 63; alles andere gilt als fehlend)",
    "x: neg, pos (neg is recorded as 0, 9; anything else counts as missing)": "x: neg, pos (neg ist kodiert "
    "als 0, 9; alles andere gilt als fehlend)",
}


@pytest.mark.parametrize(("english", "german"), CASES.items())
def test_a_message_with_messages_in_it(english: str, german: str) -> None:
    with speaking("de"):
        assert recognised(english) == german
    with speaking("fr"):
        assert recognised(english) not in (None, english)
    assert recognised(english) == english


def test_what_nobody_translated_stays_as_it_is_and_is_known_to_be() -> None:
    for text in ("failed to connect to all addresses", "policy", "x", "a, b; c: d (e)", "site charite"):
        with speaking("de"):
            assert recognised(text) is None
            assert known_or_own(text) == text
    with speaking("de"):
        assert recognised("") == ""


def test_a_name_that_is_a_word_of_the_catalogue_stays_a_name() -> None:
    with speaking("de"):
        assert recognised("data set CA: its file is not there") == (
            "Datenbestand CA: Die Datei ist nicht vorhanden"
        )


@pytest.mark.parametrize(
    "part", [", ", "a: ", "; ", "study x is ", "(a (b ", ". Remedy: ", "x (y, was z); ", "a, b; c: d (e). "]
)
def test_no_text_of_others_is_looked_at_again_and_again(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    look = module._look

    def counted(text: str, levels: int, known: dict[str, str | None]) -> str | None:
        asked.append(text)
        assert len(asked) < 2000
        return look(text, levels, known)

    monkeypatch.setattr(module, "_look", counted)
    with speaking("de"):
        recognised((part * 4000)[: module._MOST_CHARACTERS])
        assert recognised(part * 4000) is None
    assert len(asked) == len(set(asked))
