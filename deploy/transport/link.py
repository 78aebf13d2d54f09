"""What any carrier hands to the aggregator: replies, refusals, offers, and who is connected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from secfed.deploy.transport.messages import HelloReply
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


@dataclass(frozen=True)
class Offer:
    """What a server serves: a study, its declarative settings, and the cap on replies to it.

    ``roster`` and ``plan`` are digests that a hospital compares with its own:
    :mod:`secfed.deploy.admission.offered`.
    """

    study: str
    settings: bytes
    max_answer_bytes: int
    roster: bytes = b""
    plan: bytes = b""

    def said(self, *, finished: bool, waits: Waits, short: bool = False) -> HelloReply:
        """The offer as a hospital gets it; ``short`` where it knows the study already."""
        settings, roster, plan = (b"", b"", b"") if short else (self.settings, self.roster, self.plan)
        numbers = (waits.kind, waits.done, waits.of)
        return HelloReply(self.study, settings, self.max_answer_bytes, finished, *numbers, roster, plan)


@dataclass(frozen=True)
class Presence:
    """What the operator may see of one site.

    Attributes:
        silent_s: seconds since its last call began; None: it never called. Looks do not count.
        calling: whether one of its calls is open, a long poll for example.
        software: what it says it runs.
        declined: why it refuses the study, if it does.
    """

    silent_s: float | None
    calling: bool
    software: str
    declined: str | None
