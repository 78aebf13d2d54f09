"""What a study's rounds need of a server, and get from it, whatever carries its messages: gRPC or Flower."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from secfed.crypto.codec import Buffer
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport.chunking import ChunkedFrame, wrap_all
from secfed.deploy.transport.messages import REQUEST_ID_BYTES, HelloReply, RefusalMessage
from secfed.deploy.transport.progress import Waits
from secfed.errors import RosterError, SecfedError


@dataclass(frozen=True)
class SiteReply:
    """One reply, complete and with the right hash. ``release`` must be called when it has been used."""

    site: str
    request_id: bytes
    frame: memoryview = field(repr=False)
    release: Callable[[], None] = field(repr=False)


@dataclass(frozen=True)
class Refused:
    """A site will not answer a request. Security: kind and reason are the site's words, made printable."""

    site: str
    request_id: bytes
    kind: str
    reason: str

    @classmethod
    def of(cls, site: str, refusal: RefusalMessage) -> Refused:
        """What a site sent."""
        return cls(site, refusal.request_id, printable(refusal.kind), printable(refusal.reason))


@dataclass(frozen=True)
class Offer:
    """What a server serves: a study, its declarative settings, and the cap on replies to it.

    ``roster`` and ``plan`` are digests to compare: :mod:`secfed.deploy.admission.offered`.
    """

    study: str
    settings: bytes
    max_answer_bytes: int
    roster: bytes = b""
    plan: bytes = b""

    def said(self, *, finished: bool, waits: Waits, short: bool = False) -> HelloReply:
        """The offer as a hospital gets it; ``short`` where it knows the study already."""
        settings, roster, plan = (b"", b"", b"") if short else (self.settings, self.roster, self.plan)
        shown = waits.shareable()
        numbers = (shown.kind, shown.done, shown.of)
        return HelloReply(self.study, settings, self.max_answer_bytes, finished, *numbers, roster, plan)


@dataclass(frozen=True)
class Presence:
    """What the operator may see of one site."""

    silent_s: float | None  # since its last call began; None: it never called. Looks do not count.
    calling: bool  # one of its calls is open, a long poll for example
    software: str  # what it says it runs
    declined: str | None  # why it refuses the study, if it does
    absence: Absence | None = None  # the same in one word
    serving: bool = True  # it has opened the study; before, it can still find out that it must refuse it


@dataclass(eq=False)
class SiteState:
    """One site, as a carrier keeps it."""

    request: ChunkedFrame | None = None  # what it is asked
    seen_s: float | None = None  # monotonic time of its last sign of life
    serving: bool = False  # it opened the study: it asked for work since it last asked what is offered
    software: str = ""  # what it says it runs
    declined: Refused | None = None  # why it does not serve the study
    bytes_up: int = 0  # frame bytes carried since they were last cleared
    bytes_down: int = 0

    @property
    def calling(self) -> bool:
        """Whether it is there at this moment."""
        return False

    @property
    def gives_up(self) -> bool:
        """Whether it would not take the finished model: it declined, and has not only failed."""
        return self.declined is not None and self.declined.kind != SecfedError.__name__

    def presence(self) -> Presence:
        """What the operator may see of it."""
        silent = None if self.seen_s is None else max(0.0, time.monotonic() - self.seen_s)
        said = self.declined
        why = None if said is None else f"{said.kind}: {said.reason}"
        absence = None if said is None else Absence.of(said.kind, said.reason)
        return Presence(silent, self.calling, self.software, why, absence, self.serving)


class _Requests(Protocol):
    """What the sites of one study are asked. Not safe for several threads: see ``StudyServer.run``."""

    informed: set[str]  # sites that were told that the study is over
    waits: Waits  # what sites are told about what the aggregator waits for; replaced, never changed

    @property
    def sites(self) -> Mapping[str, SiteState]: ...  # every site of the roster
    def ask(self, frames: Mapping[str, ChunkedFrame]) -> None: ...  # until answered, refused or withdrawn
    def withdraw(self) -> None: ...
    def finish(self, last: Mapping[str, ChunkedFrame]) -> None: ...


class StudyServer(ABC):
    """Serves one study to the sites of one roster; ``guard`` is held while the state of the sites is read.

    Attributes:
        requests: set by the carrier.
        address: where it is reached, for the operator; set by the carrier.
        arrivals: replies and refusals, for the round's thread. Each reply must be released.
    """

    requests: _Requests
    address: str

    def __init__(self, study: str, guard: AbstractContextManager[object] | None = None) -> None:
        self._study, self._guard = study, guard or nullcontext()
        self.arrivals: SimpleQueue[SiteReply | Refused] = SimpleQueue()

    @abstractmethod
    def start(self) -> object:
        """Begin to serve."""

    @abstractmethod
    def stop(self) -> None:
        """Serve no more; what was not delivered is lost."""

    @abstractmethod
    def run(self, change: Callable[[], None]) -> None:
        """Change what sites are asked, where nothing else changes it at the same time."""

    def sending(self) -> frozenset[str]:
        """Sites that are fetching a request at this moment, and should not be cut off."""
        return frozenset()

    def post(self, requests: Mapping[str, Buffer]) -> bytes:
        """Ask sites; the id that the replies bear. ``RosterError`` where a site is not in the roster."""
        for site in requests:
            if site not in self.requests.sites:
                raise RosterError(f"site {site!r} is not in the roster of this link")
        request_id = secrets.token_bytes(REQUEST_ID_BYTES)
        frames = wrap_all(self._study, request_id, requests)
        self.run(lambda: self.requests.ask(frames))
        return request_id

    def withdraw(self) -> None:
        """Wait for no reply any more; uploads under way end, and their memory is free."""
        self.run(self.requests.withdraw)

    def finish(self, last: Mapping[str, Buffer] | None = None) -> bytes:
        """The study is over: sites that call are told so, after they answered their ``last`` request.

        Gives the id that the answers bear.
        """
        request_id = secrets.token_bytes(REQUEST_ID_BYTES)
        frames = wrap_all(self._study, request_id, last or {})
        self.run(lambda: self.requests.finish(frames))
        return request_id

    def waits_for(self, waits: Waits) -> None:
        """What sites are told about what the aggregator waits for."""
        with self._guard:
            self.requests.waits = waits

    def informed(self) -> frozenset[str]:
        """Sites that were told that the study is over."""
        with self._guard:
            return frozenset(self.requests.informed)

    def presence(self) -> dict[str, Presence]:
        """Every site of the roster, as the link sees it now."""
        with self._guard:
            return {name: site.presence() for name, site in self.requests.sites.items()}

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Frame bytes up and down per site since this was last called; between two asks."""
        with self._guard:
            sites = self.requests.sites
            up = {name: site.bytes_up for name, site in sites.items()}
            down = {name: site.bytes_down for name, site in sites.items()}
            for site in sites.values():
                site.bytes_up = site.bytes_down = 0
        return up, down


def printable(text: str) -> str:
    """A peer's text on one line, without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def once(act: Callable[[], None]) -> Callable[[], None]:
    """Something that acts the first time it is called; for one thread at a time."""
    pending = [act]

    def call() -> None:
        if pending:
            pending.pop()()

    return call
