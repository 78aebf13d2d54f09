"""The journal as one attempt of a durable site sees it. See :mod:`secfed.site.attempt_store`."""

from __future__ import annotations

from collections.abc import Callable

from secfed.crypto.attempt import AttemptId
from secfed.site.journal import Journal
from secfed.storage.failpoints import failpoint


class BoundJournal:
    """An :class:`~secfed.crypto.attempt.AttemptJournal` whose every entry carries the attempt's binding.

    Args:
        journal: the site's.
        binding: what the attempt has come to; a repeated entry must bring the same.
    """

    def __init__(self, journal: Journal, binding: Callable[[], bytes]) -> None:
        self._journal, self._binding = journal, binding

    def begin(self, study: str, attempt: AttemptId) -> None:
        """As :class:`secfed.crypto.attempt.AttemptJournal` has it."""
        failpoint("site: before begin journalled")
        self._journal.begin(study, attempt, self._binding())
        failpoint("site: after begin journalled")

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        """As :class:`secfed.crypto.attempt.AttemptJournal` has it."""
        failpoint("site: before upload journalled")
        self._journal.uploaded(study, attempt, self._binding())
        failpoint("site: after upload journalled")

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """As :class:`secfed.crypto.attempt.AttemptJournal` has it."""
        failpoint("site: before unmask journalled")
        self._journal.unmasked(study, attempt, self._binding())
        failpoint("site: after unmask journalled")
