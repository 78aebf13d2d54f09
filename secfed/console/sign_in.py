"""Who has signed in to the console, and the way there.

1. A form of the console begins a sign-in: state, nonce and verifier are drawn, and the browser leaves.
2. The provider leads it back to a path that everybody knows, without the console's cookie: browsers do not
   send it along from another site. Who knows the state gets a ticket and the way to the pages.
3. There, with cookie and ticket, the code is exchanged: so no page from elsewhere, and no code that somebody
   else was given, signs anybody in (RFC 9700, sections 2.1 and 4.7).

State and ticket work once. A console has one browser session, and so at most one person.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from secfed.deploy.admission.person import Person
from secfed.errors import PolicyRefused

_LONGEST_S: Final = 600.0  # that a person may take at the provider
_MOST_FIELDS: Final = 20
_ERROR: Final = re.compile(r"[a-z_]{1,40}")  # of RFC 6749; descriptions are the provider's own words
_BEGIN_AGAIN: Final = "sign in again, from a page of the console"


@dataclass(frozen=True)
class Asked:
    """One sign-in that was begun."""

    redirect_uri: str
    then: str  # the page that the person comes back to
    begun_s: float  # seconds since 1970
    metadata: Mapping[str, Any] = field(repr=False)  # of the provider
    state: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)  # of PKCE


class Provides(Protocol):
    """A :class:`~secfed.console.provider.Provider`."""

    @property
    def name(self) -> str:
        """Its address."""

    def metadata(self) -> dict[str, Any]:
        """What it says of itself."""

    def address(self, asked: Asked) -> str:
        """Where the browser goes."""

    def person(self, asked: Asked, code: str) -> Person:
        """Who signed in."""


@dataclass(frozen=True)
class _Landed:
    """What the provider answered, until the browser asks for it with the cookie."""

    asked: Asked
    answer: Mapping[str, str] = field(repr=False)
    ticket: str = field(repr=False)


class SignIn:
    """The sign-in of one console.

    Args:
        provider: where.
        max_age_s: how long a sign-in lasts; seconds.
        clock: seconds since 1970.
    """

    def __init__(self, provider: Provides, max_age_s: float, clock: Callable[[], float] = time.time) -> None:
        self._provider, self._max_age_s, self._clock = provider, max_age_s, clock
        self._lock = Lock()
        self._asked: Asked | None = None
        self._landed: _Landed | None = None
        self._person: tuple[Person, float] | None = None

    @property
    def provider(self) -> str:
        """The provider's address."""
        return self._provider.name

    @property
    def person(self) -> Person | None:
        """Who is signed in; None once that is too long ago, or the clock was set back behind it."""
        known = self._person
        if known is None or not 0 <= self._clock() - known[1] < self._max_age_s:
            return None
        return known[0]

    def begin(self, redirect_uri: str, then: str) -> str:
        """Begin a sign-in, which ends the one before; gives the address that the browser goes to."""
        self.end()
        asked = Asked(redirect_uri, then, self._clock(), self._provider.metadata())
        address = self._provider.address(asked)
        with self._lock:
            self._asked = asked
        return address

    def landed(self, query: str) -> str | None:
        """The browser is back, with this query: a ticket; None where this sign-in was not begun here."""
        try:
            fields = parse_qs(query, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return None
        answer = {name: values[0] for name, values in fields.items() if len(values) == 1}
        with self._lock:
            asked = self._asked
            if asked is None or not 0 <= self._clock() - asked.begun_s < _LONGEST_S:
                return None
            if not secrets.compare_digest(answer.get("state", "").encode(), asked.state.encode()):
                return None
            self._asked = None
            self._landed = _Landed(asked, answer, secrets.token_urlsafe(32))
            return self._landed.ticket

    def finish(self, ticket: str) -> str:
        """Take the provider's answer; gives the page that the person comes back to.

        Raises:
            PolicyRefused: this sign-in was not begun here, came to nothing, or this person may not decide.
            LinkError: the provider does not answer.
        """
        with self._lock:
            landed = self._landed
            if landed is None or not secrets.compare_digest(ticket.encode(), landed.ticket.encode()):
                raise PolicyRefused(
                    "not signed in: this sign-in was not begun here, or is over", remedy=_BEGIN_AGAIN
                )
            self._landed = None
        asked, answer = landed.asked, landed.answer
        if answer.get("iss", self.provider) != self.provider:  # RFC 9207
            raise PolicyRefused(
                "not signed in: the answer is from another identity provider", remedy=_BEGIN_AGAIN
            )
        if "error" in answer or not answer.get("code"):
            told = error_code(answer.get("error"))
            raise PolicyRefused(
                f"not signed in: the identity provider signs nobody in{told}", remedy=_BEGIN_AGAIN
            )
        person = self._provider.person(asked, answer["code"])
        with self._lock:
            self._person = person, self._clock()
        return asked.then

    def end(self) -> None:
        """Nobody is signed in, and no sign-in is under way."""
        with self._lock:
            self._asked = self._landed = self._person = None


def error_code(given: object) -> str:
    """A code of the provider's, in brackets; empty for anything that is none."""
    return f" ({given})" if isinstance(given, str) and _ERROR.fullmatch(given) else ""
