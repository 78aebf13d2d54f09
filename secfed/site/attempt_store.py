"""What a site remembers of one study: the interface, and the memory of a site that dies with its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from secfed.crypto.attempt import AttemptId, AttemptJournal, Entropy
from secfed.crypto.codec import Buffer
from secfed.errors import InconsistentView, Replay
from secfed.site.attempt_work import Work
from secfed.site.journal import Journal
from secfed.storage.signed_files import SignedFiles
from secfed.wire.layout import State, Summands

Place = tuple[int, int]  # round and exchange index


class AttemptStore:
    """A site's memory of one study, told of everything before it happens.

    Without an override a method remembers nothing, which is right where nothing outlives the process;
    :class:`secfed.site.durable_store.DurableStore` overrides them all.

    Attributes:
        files: where protections keep secrets of the whole study; None without a disk.
        is_behind: whether a message was handled whose answer could not be kept: :meth:`rebuild` comes first.
    """

    files: SignedFiles | None = None
    is_behind = False

    def __init__(self, journal: Journal, study: str) -> None:
        self._journal, self._study = journal, study

    def is_spent(self, here: Place) -> bool:
        """Whether the update of an exchange has left."""
        return self._journal.spent(self._study, *here)

    def begin(self, here: Place, broadcast_digest: bytes) -> None:
        """Before the work of an exchange is paid for.

        Raises:
            Replay: the exchange, or a later one, is over or was begun.
            InconsistentView: its work was begun from another broadcast.
        """
        raise NotImplementedError

    def take(self, round_number: int, taken: Mapping[str, bytes]) -> None:
        """Digests of a round's broadcasts that later ones build on, by exchange; once its work is kept."""

    def taken(self) -> tuple[int, Mapping[str, bytes]]:
        """The round and the digests that :meth:`take` was told of last."""
        return 0, {}

    def journal(self, attempt: int) -> AttemptJournal:
        """The journal, for one attempt."""
        raise NotImplementedError

    def keep(self, summands: Summands, save: Callable[[], State] = dict) -> None:
        """What the program contributed, and how it saves its state; it is never asked again."""

    def contribution(self) -> tuple[Work, dict[str, torch.Tensor]] | None:
        """What was kept for the exchange that was running when the site went down, if anything was."""
        return None

    def stop(self) -> None:
        """This site works on nothing of the study any more, whatever restarts."""

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called, in this process or an earlier one."""
        return False

    def open(self, attempt: int) -> Entropy:  # noqa: ARG002
        """Randomness of an attempt: fresh, or the same again while it is being rebuilt."""
        return Entropy()

    def note(self, attempt: int, frame: Buffer) -> None:
        """One message of an attempt, before it is handled.

        Raises:
            Replay: more messages than any protocol has, or the attempt is over.
        """

    def drop(self, attempts: Callable[[int], bool]) -> None:
        """Destroy attempts that were refused or are over."""

    def answer(self, frame: Buffer, handle: Callable[[Buffer], Buffer]) -> Buffer:
        """Answer a frame.

        Raises:
            SecfedError: the frame is, or was, refused.
        """
        return handle(frame)

    def rebuild(self, handle: Callable[[Buffer], Buffer], current: Callable[[], int]) -> None:
        """Read the messages of the running exchange again, with the code that read them first."""

    def finish(self, here: Place) -> None:
        """An exchange is over: its secrets go as soon as the answer to the last message is kept."""

    def forget(self) -> None:
        """The study is over: destroy everything but its position, so that nothing of it is served again."""


class NullStore(AttemptStore):
    """The memory of a simulated site: which exchange it works on, and nothing on a disk.

    Args:
        site: named where several sites share a journal, for each of which it is then one of its own.
    """

    _here: Place = (-1, -1)
    _broadcast_digest = b""

    def __init__(self, journal: Journal, study: str, site: str = "") -> None:
        super().__init__(journal, f"{site}{study}")
        self._site = site

    def begin(self, here: Place, broadcast_digest: bytes) -> None:
        """See :class:`AttemptStore`."""
        if here < self._here:
            raise Replay(f"round {here[0]}, exchange {here[1]} was already worked on")
        if here == self._here and broadcast_digest != self._broadcast_digest:
            raise InconsistentView(f"round {here[0]} was begun from another broadcast")
        self._here, self._broadcast_digest = here, broadcast_digest

    def journal(self, attempt: int) -> AttemptJournal:  # noqa: ARG002
        """The site's journal as it is."""
        return _JournalOf(self._journal, self._site) if self._site else self._journal


@dataclass(frozen=True)
class _JournalOf:
    """One site's part of a journal that a simulation keeps for all."""

    journal: Journal
    site: str

    def begin(self, study: str, attempt: AttemptId) -> None:
        self.journal.begin(f"{self.site}{study}", attempt)

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        self.journal.uploaded(f"{self.site}{study}", attempt)

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        self.journal.unmasked(f"{self.site}{study}", attempt)
