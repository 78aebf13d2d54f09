"""Roster files, written durably; and what changed from one roster to the next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from secfed.crypto.identity import Roster
from secfed.records.roster_file import kept_roster, roster_content
from secfed.storage import private_files


def save_roster(path: Path, roster: Roster | None) -> None:
    """Replace a roster file, whole or not at all; None removes it."""
    if roster is None:
        path.unlink(missing_ok=True)
        return
    private_files.replace(path, private_files.to_json(roster_content(roster)), mode=0o644)


def keep_roster(path: Path, roster: Roster | None) -> None:
    """Keep a roster beside the current one, whose file is ``path``, for audits of what was done under it."""
    if roster is None:
        return
    kept = kept_roster(path, roster)
    private_files.make_folder(kept.parent)
    if not kept.exists():
        private_files.replace(kept, private_files.to_json(roster_content(roster)), mode=0o644)


@dataclass(frozen=True)
class Changes:
    """What a new roster changes."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    rekeyed: tuple[str, ...] = ()
    aggregator: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.rekeyed or self.aggregator)

    @classmethod
    def between(cls, old: Roster, new: Roster) -> Changes:
        """From the pinned roster to another one."""
        before, after = dict(old.members), dict(new.members)
        return cls(
            added=tuple(site for site in after if site not in before),
            removed=tuple(site for site in before if site not in after),
            rekeyed=tuple(site for site in after if site in before and after[site] != before[site]),
            aggregator=old.aggregator != new.aggregator,
        )
