"""What any carrier hands to the aggregator: replies, refusals, offers, and who is connected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from secfed.deploy.transport.messages import HelloReply, RefusalMessage
from secfed.deploy.transport.progress import Waits


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
    serving: bool = True  # it has opened the study; before, it can still find out that it must refuse it


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
