"""The pages in the language that a person chose, or that the browser asks for."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from tests.secfed.audit.test_languages import SURELY_ENGLISH, catalogue, placeholders
from tests.secfed.console.console_case import DIGEST, Opened

HOSPITAL = ("/", "/studies", f"/studies/{DIGEST}", "/budgets", "/left", "/decisions", "/setup", "/records")


def language(client: Any, address: str = "/", **headers: str) -> str:
    found = re.search('<html lang="(.*?)">', client.get(address, headers=headers).text)
    assert found
    return found[1]


def test_a_choice_is_kept_and_comes_before_what_the_browser_asks_for(opened: Opened) -> None:
    client = opened.entered()
    german = {"Accept-Language": "xx, de-CH;q=0.9, fr;q=0.8"}
    assert language(client) == "en"
    assert language(client, **german) == "de"
    answer = client.get("/studies?language=fr", headers=german)
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch("language=fr; Path=/[0-9a-f]{32}/; HttpOnly; SameSite=Strict", cookie)
    assert "Études" in answer.text
    assert language(client, **german) == "fr"
    assert language(client, "/records/report.html") == "fr"
    assert "set-cookie" not in client.get("/?language=xx", headers=german).headers
    assert language(client, "/?language=xx") == "fr"
    assert language(client, "/?language=en") == "en"


def test_nobody_chooses_without_the_cookie_of_the_console(opened: Opened) -> None:
    assert "set-cookie" not in opened.client().get("/?language=de").headers


@pytest.mark.parametrize("code", ["de", "fr"])
def test_no_english_text_of_the_pages_is_left(opened: Opened, code: str) -> None:
    client = opened.entered()
    known = catalogue(code)
    plain = [one for (one, *_), forms in known.items() if not placeholders(one) and one != forms[0]]
    for address in (*HOSPITAL, "/nothing"):
        page = client.get(f"{address}?language={code}").text
        text = " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())
        assert [one for one in plain if len(one) >= SURELY_ENGLISH and one in text] == [], address
        for label in re.findall('(?:data-label|aria-label)="(.*?)"', page):
            assert (unescape(label),) not in known or known[(unescape(label),)][0] == unescape(label)
    decided = client.get(f"/studies/{DIGEST}?done=approved").text
    assert known[("Approved, and written into the signed decision log.",)][0] in unescape(decided)
