"""What the states of a site's masked session have in common, and the state after a refusal.

The states themselves are in ``client.py`` (until shares are dealt), ``upload.py`` (until the
masked vector leaves) and ``unmask.py`` (afterwards).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from secfed.crypto import sealing
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Message
from secfed.crypto.refusals import Refusal


class ClientState(Protocol):
    """One state: the type it accepts, and what it does with it."""

    @property
    def accepts(self) -> type[Message] | None:
        """The only message type this state takes."""
        ...

    def handle(self, message: Any, /) -> tuple[ClientState, Buffer]:
        """Check a message of that type; the next state and the reply."""
        ...


@dataclass(frozen=True)
class Secrets:
    """What a site draws for one attempt and never uses in another."""

    mask_secret: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)
    seal_key: sealing.SealKey = field(repr=False)


@dataclass(frozen=True)
class Closed:
    """A refusal ended the attempt; its secrets are no longer in memory."""

    accepts: ClassVar[type[Message] | None] = None

    def handle(self, message: Message, /) -> tuple[ClientState, Buffer]:  # noqa: ARG002
        """Nothing is accepted any more."""
        raise Refusal.OUT_OF_ORDER.refuse()
