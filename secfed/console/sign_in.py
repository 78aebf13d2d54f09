"""Who has signed in to the console, and the way there.

1. A form of the console begins a sign-in: state, nonce and verifier are drawn. Its page waits, and a link on
   it opens the identity provider beside it.
2. The provider leads back to a port and path that everybody knows. Who brings the state leaves the answer
   there, and is told nothing: whoever held that port earlier may have left a program in the browser.
3. The page that waits, with the console's cookie, takes the answer, and the code is exchanged with a verifier
   that nobody else has: a code that somebody brought signs nobody in (RFC 9700, sections 2.1 and 4.5).

A state works once. A console has one browser session, and so at most one person.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from secfed.deploy.admission.person import Person
from secfed.errors import PolicyRefused

LOOPBACK: Final = "127.0.0.1"  # `localhost` may be [::1], and there somebody else's (RFC 8252, section 8.3)
SIGNED_IN: Final = "/signed-in"  # where the provider leads back to
_LONGEST_S: Final = 600.0  # that a sign-in may take
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
class _Underway:
    """A sign-in that somebody began, and what the provider answered; None before it did."""

    asked: Asked
    address: str = field(repr=False)  # at the provider
    answer: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Step:
    """Where the person goes next: to the provider, or, signed in, back to a page of the console."""

    address: str = field(repr=False)
    signed_in: bool


class SignIn:
    """The sign-in of one console.

    Args:
        provider: where.
        max_age_s: how long a sign-in lasts; seconds.
        port: of this machine's loopback, that the provider leads back to.
        clock: seconds since 1970.
    """

    def __init__(
        self, provider: Provides, max_age_s: float, port: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.port = port
        self._provider, self._max_age_s, self._clock = provider, max_age_s, clock
        self._lock, self._asking = Lock(), Lock()
        self._ended = 0  # how often: what was begun before does not count after
        self._underway: _Underway | None = None
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

    def begin(self, then: str) -> None:
        """Begin a sign-in, which ends the one before.

        Raises:
            PolicyRefused: another one is just being begun or completed, or this one was ended meanwhile.
            LinkError: the provider does not answer.
        """
        with self._alone():
            ended = self.end()
            here = f"http://{LOOPBACK}:{self.port}{SIGNED_IN}"
            asked = Asked(here, then, self._clock(), self._provider.metadata())
            address = self._provider.address(asked)
            with self._lock:
                self._check_not_ended(ended)
                self._underway = _Underway(asked, address)

    def landed(self, query: str) -> bool:
        """The browser is back, with this query; False where this is no answer to what was asked."""
        try:
            fields = parse_qs(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return False
        if any(len(values) > 1 for values in fields.values()):  # RFC 6749, section 3.1
            return False
        answer = {name: value for name, (value,) in fields.items()}
        if not all(answer.get(name, "x") for name in ("state", "code", "iss", "error")):
            return False
        with self._lock:
            underway = self._underway
            if underway is None or underway.answer is not None or not self._is_recent(underway):
                return False
            if not secrets.compare_digest(answer.get("state", "").encode(), underway.asked.state.encode()):
                return False
            self._underway = _Underway(underway.asked, underway.address, answer)
            return True

    def go_on(self) -> Step:
        """Take the provider's answer, if it has landed.

        Raises:
            PolicyRefused: no sign-in is under way, it came to nothing, or this person may not decide.
            LinkError: the provider does not answer.
        """
        with self._alone():
            with self._lock:
                underway, ended = self._underway, self._ended
                if underway is None or not self._is_recent(underway):
                    self._underway = None
                    raise PolicyRefused(
                        "not signed in: this sign-in was not begun here, or is over", remedy=_BEGIN_AGAIN
                    )
                if underway.answer is None:
                    return Step(underway.address, signed_in=False)
                self._underway = None
            person = self._provider.person(underway.asked, self._code(underway.asked, underway.answer))
            with self._lock:
                self._check_not_ended(ended)
                self._person = person, self._clock()
            return Step(underway.asked.then, signed_in=True)

    def end(self) -> int:
        """Nobody is signed in, and no sign-in is under way; how often that was said."""
        with self._lock:
            self._underway = self._person = None
            self._ended += 1
            return self._ended

    def _code(self, asked: Asked, answer: Mapping[str, str]) -> str:
        """The code in the provider's answer. ``PolicyRefused``: there is none."""
        promised = asked.metadata.get("authorization_response_iss_parameter_supported") is True
        if answer.get("iss", None if promised else self.provider) != self.provider:  # RFC 9207, section 2.4
            raise PolicyRefused(
                "not signed in: the answer is from another identity provider", remedy=_BEGIN_AGAIN
            )
        if "error" in answer or not answer.get("code"):
            told = error_code(answer.get("error"))
            raise PolicyRefused(
                f"not signed in: the identity provider signs nobody in{told}", remedy=_BEGIN_AGAIN
            )
        return answer["code"]

    def _is_recent(self, underway: _Underway) -> bool:
        return 0 <= self._clock() - underway.asked.begun_s < _LONGEST_S

    def _check_not_ended(self, ended: int) -> None:
        if ended != self._ended:
            raise PolicyRefused("not signed in: somebody signed out meanwhile", remedy=_BEGIN_AGAIN)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time asks the provider: a slow one must not hold every thread of the console."""
        if not self._asking.acquire(blocking=False):
            raise PolicyRefused(
                "a sign-in is just being begun or completed", remedy="wait a moment, and load the page again"
            )
        try:
            yield
        finally:
            self._asking.release()


def error_code(given: object) -> str:
    """A code of the provider's, in brackets; empty for anything that is none."""
    return f" ({given})" if isinstance(given, str) and _ERROR.fullmatch(given) else ""
