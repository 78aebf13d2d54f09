"""Roster files at the study centre and at a site, and what a site's administrator has agreed to.

The agent takes the pinned roster and no other. A roster that arrives in any other way, and differs by one
member or one key, is refused until the administrator pins it with `secfed site trust`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from secfed.config.schema import Strict, checked
from secfed.crypto.identity import Roster
from secfed.errors import ConfigError, RosterError
from secfed.records.roster_file import PINNED_FILE as PINNED_FILE
from secfed.records.roster_file import kept_roster, roster_content, roster_of
from secfed.storage import private_files


def save_roster(path: Path, roster: Roster | None) -> None:
    """Replace a roster file, whole or not at all; None removes it."""
    if roster is None:
        path.unlink(missing_ok=True)
        return
    private_files.replace(path, private_files.to_json(roster_content(roster)), mode=0o644)


def keep_roster(path: Path, roster: Roster, content: bytes | None = None, *, mode: int = 0o644) -> None:
    """Keep a roster beside the current one, whose file is ``path``, for audits of what was done under it."""
    kept = kept_roster(path, roster)
    private_files.make_folder(kept.parent)
    if not kept.exists():
        private_files.replace(kept, content or private_files.to_json(roster_content(roster)), mode=mode)


class _PinnedFile(Strict):
    version: Literal[1] = Field(description="1")
    pinned_s: int = Field(ge=0, lt=private_files.LATEST_S, description="seconds since 1970")
    aggregator: str = Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits")
    sites: dict[str, str] = Field(min_length=1, description="a table of sites and keys")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits")


@dataclass(frozen=True)
class Pinned:
    """The pinned roster and the time of the decision."""

    roster: Roster
    since: datetime

    def to_json(self) -> bytes:
        """The content of its file."""
        content = {"version": 1, "pinned_s": int(self.since.timestamp()), **roster_content(self.roster)}
        return private_files.to_json(content)


def read_pinned(path: Path) -> Pinned | None:
    """The pinned roster; None if none was ever pinned."""
    if not path.exists():
        return None
    remedy = "pin the roster again: secfed site trust ROSTER"
    try:
        file = checked(_PinnedFile, private_files.read_json(path, "a pinned roster"), str(path))
        roster = roster_of(file.aggregator, file.sites)
    except (ConfigError, RosterError, ValueError):
        raise RosterError(f"{path}: the pinned roster is damaged", remedy=remedy) from None
    if roster.digest.hex() != file.digest:
        raise RosterError(f"{path}: the pinned roster was changed", remedy=remedy)
    return Pinned(roster, datetime.fromtimestamp(file.pinned_s, UTC))


def pin(path: Path, roster: Roster, now: datetime) -> None:
    """Replace the pinned roster; this one and the one before stay in ``pinned-rosters`` for audits.

    Security: the administrator has compared the digest before.
    """
    before = None
    with suppress(RosterError):  # a damaged file is not worth keeping
        before = read_pinned(path)
    new = Pinned(roster, now)
    for pinned in (before, new):  # the one before may have been pinned by a version that kept none
        if pinned is not None:
            keep_roster(path, pinned.roster, pinned.to_json(), mode=0o600)
    private_files.replace(path, new.to_json())


def check_own(roster: Roster, site: str, identity_key: bytes) -> None:
    """Refuse a roster in which this site is missing or speaks with another key."""
    if site not in roster.sites:
        raise RosterError(
            f"this site, {site!r}, is not in the roster", remedy="ask the study centre to admit it"
        )
    if roster.public(site) != identity_key:
        raise RosterError(
            f"the roster gives this site, {site!r}, another identity key than it has",
            remedy="do not pin it; somebody else was admitted under this name",
        )


def check_digest(roster: Roster, expected: str) -> None:
    """Compare the roster with a digest that came by another way; spaces and case do not count."""
    digits = "".join(expected.split()).lower()
    if len(digits) != 64 or any(digit not in "0123456789abcdef" for digit in digits):
        raise ConfigError("--fingerprint: not a roster digest", remedy="give all 64 hexadecimal digits")
    if digits != roster.digest.hex():
        raise RosterError(
            "the roster's digest is not the one given",
            remedy="do not pin it; ask the study centre which roster is right",
        )
