"""Journals for tests: one that forgets, and one that tells what was asked of it."""

from __future__ import annotations

from secfed.crypto.attempt import AttemptId, AttemptJournal


class NoMemory:
    """A journal that forgets, for sites whose states a test handles repeatedly."""

    def begin(self, study: str, attempt: AttemptId) -> None:
        """Nothing."""

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        """Nothing."""

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """Nothing."""


class WatchedJournal:
    """A journal that also remembers what was asked of it.

    Attributes:
        begun, left, spent: attempts noted without an error: begun, uploaded, unmasked.
    """

    def __init__(self, journal: AttemptJournal) -> None:
        self.journal = journal
        self.begun: list[AttemptId] = []
        self.left: list[AttemptId] = []
        self.spent: list[AttemptId] = []

    def begin(self, study: str, attempt: AttemptId) -> None:
        """See :class:`AttemptJournal`."""
        self.journal.begin(study, attempt)
        self.begun.append(attempt)

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        """See :class:`AttemptJournal`."""
        self.journal.uploaded(study, attempt)
        self.left.append(attempt)

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """See :class:`AttemptJournal`."""
        self.journal.unmasked(study, attempt)
        self.spent.append(attempt)
