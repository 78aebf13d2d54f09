"""What a study's rounds need of a server, whatever carries its messages: gRPC or Flower."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Protocol

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.link import Presence, Refused, SiteReply
from secfed.deploy.transport.progress import Waits


class StudyServer(Protocol):
    """Serves one study to the sites of one roster.

    Attributes:
        arrivals: replies and refusals, for the round's thread. Each reply must be released.
    """

    arrivals: SimpleQueue[SiteReply | Refused]

    def start(self) -> object:
        """Begin to serve."""
        ...

    def stop(self) -> None:
        """Serve no more."""
        ...

    def post(self, requests: Mapping[str, Buffer]) -> bytes:
        """Ask sites; the id that the replies bear."""
        ...

    def withdraw(self) -> None:
        """Wait for no reply any more."""
        ...

    def finish(self, last: Mapping[str, Buffer] | None = None) -> None:
        """The study is over, but for a last request per site."""
        ...

    def sending(self) -> frozenset[str]:
        """Sites that should not be cut off at this moment."""
        ...

    def waits_for(self, waits: Waits) -> None:
        """What sites are told about what the aggregator waits for."""
        ...

    def told(self) -> frozenset[str]:
        """Sites that were told that the study is over."""
        ...

    def presence(self) -> dict[str, Presence]:
        """Every site of the roster, as the link sees it now."""
        ...

    def take_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Frame bytes up and down per site since this was last called."""
        ...
