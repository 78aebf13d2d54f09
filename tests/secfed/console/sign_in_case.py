"""A console whose people sign in, and the way of a browser through it."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from secfed.console.provider import Provider
from secfed.console.sign_in import SignIn
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from tests.secfed.console import provider_case
from tests.secfed.console.console_case import BASE, DIGEST, PORT, WAITING, Opened, hospital_console
from tests.secfed.console.provider_case import CLIENT, WEISS

REGISTERED = PORT + 1  # the port that the provider leads back to
BACK = f"http://127.0.0.1:{REGISTERED}/signed-in"
STUDY = f"/studies/{DIGEST}"
DECIDE = f"{STUDY}/decide"
READ = ("/", "/studies", STUDY, "/budgets", "/left", "/decisions", "/setup", "/records")


class Clock:
    """Seconds since 1970, as a test wants them."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Case:
    """A console whose people sign in at a provider."""

    def __init__(self, folder: Path, provider: provider_case.Provider, **settings: Any) -> None:
        self.provider, self.clock = provider, Clock()
        self.section = section = OidcSection(
            **{"port": REGISTERED, "issuer": provider.issuer, "client_id": CLIENT, **settings}
        )
        self.sign_in = SignIn(Provider(section, folder), section.max_age_s, section.port, self.clock)
        self.opened: Opened = hospital_console(folder, sign_in=self.sign_in)
        self.client: TestClient = self.opened.entered()

    def leave(self, then: str = STUDY) -> str:
        """Press "Sign in"; where the link of the page that waits goes."""
        answer = self.opened.answer(self.client, "/sign-in", then=then)
        assert answer.status_code == 303, answer.text
        page = self.client.get(BASE + answer.headers["location"])
        assert waits(page), page.text
        (address,) = re.findall('href="([^"]*)" target="_blank" rel="noopener noreferrer"', page.text)
        return unescape(address)

    def back(self, address: str) -> Any:
        """The browser comes back, without the cookie."""
        return self.opened.client().get(address)

    def finish(self) -> Any:
        """The page that waits loads anew, with the cookie."""
        return self.client.get("/sign-in/wait")

    def answered(self, address: str) -> Any:
        """The browser comes back, and the page that waits loads anew."""
        assert self.back(address).status_code == 200
        return self.finish()

    def enter(self, who: dict[str, Any] = WEISS) -> Any:
        """The whole way."""
        self.provider.who = dict(who)
        return self.answered(self.provider.leads_to(self.leave()))

    def decide(self, decision: str = "approve", **form: str) -> int:
        return self.opened.post(self.client, DECIDE, decision=decision, **form)

    @property
    def state(self) -> ApprovalState | None:
        return Approvals(self.opened.site.approvals_path).state(WAITING.digest())

    @property
    def newest(self) -> dict[str, Any]:
        lines = (self.opened.site.state / "decisions.jsonl").read_text().splitlines()
        entry = json.loads(lines[-1])
        return {"kind": entry["kind"], **entry["body"]}


def waits(page: Any) -> bool:
    """Whether a page loads anew by itself."""
    return page.status_code == 200 and 'http-equiv="refresh" content="3"' in page.text


def said(answer: Any, status: int = 409) -> str:
    assert answer.status_code == status, answer.text
    return " ".join(unescape(re.sub("<[^>]+>", " ", answer.text)).split())
