"""The roster as a JSON file that people can read and compare.

Its content: ``{"aggregator": hex, "digest": hex, "sites": {"hospital-1": hex, ...}}``.

Records outlive the roster under which they were made. So whoever pins or issues a roster keeps it beside the
current one, as ``pinned-rosters/DIGEST.json``, and who checks records against the current one has them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from secfed.crypto.identity import Roster
from secfed.errors import RosterError
from secfed.storage.atomic import unwritable_errors, write_atomic

ROSTER_FILE = "roster.json"
PINNED_FILE: Final = "pinned-roster.json"  # at a hospital; deploy/enrolment/rosters.py
AGGREGATOR: Final = "aggregator"  # in whose name the aggregator signs its records
PINNED_FOLDER: Final = "pinned-rosters"
_MAX_BYTES = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def roster_content(roster: Roster) -> dict[str, object]:
    """What a roster file holds.

    ``RosterError``: a site has the name under which the aggregator's own records stand.
    """
    if AGGREGATOR in roster.sites:
        raise RosterError(
            f"no site may be called {AGGREGATOR!r}: the aggregator's own records are kept under that name",
            remedy="give the site another name",
        )
    return {
        "aggregator": roster.aggregator.hex(),
        "sites": {site: public.hex() for site, public in roster.members},
        "digest": roster.digest.hex(),
    }


def roster_of(aggregator: str, sites: Mapping[str, str]) -> Roster:
    """The roster of hexadecimal keys.

    Raises:
        RosterError: not a roster.
        ValueError: a key that is not hexadecimal.
    """
    members = tuple((str(site), bytes.fromhex(key)) for site, key in sorted(sites.items()))
    return Roster(bytes.fromhex(aggregator), members)


def write_roster(path: Path, roster: Roster) -> None:
    """Write a roster file, whole or not at all."""
    write_atomic(path, f"{json.dumps(roster_content(roster), indent=2)}\n".encode())


def read_roster(path: Path) -> Roster:
    """Read a roster file and check it against the digest it states.

    ``ConfigError``: no such file, or unreadable; ``RosterError``: not a roster, or of another digest.
    Security: that it is the *right* roster is what comparing the digest with the pinned one shows.
    """
    with unwritable_errors(path), path.open("rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    try:
        content = json.loads(data if len(data) <= _MAX_BYTES else b"")
        roster = roster_of(content["aggregator"], content["sites"])
        stated = bytes.fromhex(content["digest"])
    except RosterError as error:
        raise RosterError(f"{path}: {error.message}", remedy=error.remedy) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RosterError(f"{path}: not a roster file.", remedy="get it from the consortium") from None
    if stated != roster.digest:
        raise RosterError(
            f"{path}: the digest it states is not that of its members.",
            remedy="get the roster from the consortium and compare its digest",
        )
    return roster


def is_roster_file(path: Path) -> bool:
    """Whether a file of this name and place holds a roster."""
    kept = path.parent.name == PINNED_FOLDER and path.suffix == ".json"
    return path.name in (ROSTER_FILE, PINNED_FILE) or kept


def kept_roster(path: Path, roster: Roster) -> Path:
    """Where a roster is kept beside the current one, whose file is ``path``."""
    return path.parent / PINNED_FOLDER / f"{roster.digest.hex()}.json"


def read_rosters(path: Path) -> list[Roster]:
    """A roster file and the earlier rosters that are kept beside it, the current one first.

    Security: who may write the folder decides what is believed, as with the file itself.
    """
    current = read_roster(path)
    earlier = [read_roster(kept) for kept in sorted((path.parent / PINNED_FOLDER).glob("*.json"))]
    return list(dict.fromkeys([current, *earlier]))


def begun_with(transcript: Path, current: Roster, path: Path) -> Roster:
    """The roster that a study goes on with, if it has begun: that of its transcript, else the current one.

    An earlier roster counts if it was kept beside the current one, whose file is ``path``, and if every
    member of it is a member still, with the same key: so a site that was admitted meanwhile stops no study.
    In every other case it is the current one, which a transcript that was begun with another one refuses.

    Security: what the first line says only chooses among rosters that a person here agreed to; the
    transcript itself is verified when it is opened.
    """
    digest = claimed_digest(transcript)
    kept = path.parent / PINNED_FOLDER / f"{digest}.json"
    if not digest or digest == current.digest.hex() or not kept.is_file():
        return current
    earlier = read_roster(kept)
    return earlier if earlier.digest.hex() == digest and is_within(earlier, current) else current


def is_within(earlier: Roster, current: Roster) -> bool:
    """Whether the aggregator and every member of a roster are in another one, with the same keys."""
    return earlier.aggregator == current.aggregator and set(earlier.members) <= set(current.members)


def claimed_digest(transcript: Path) -> str:
    """Digest of the roster that a transcript claims in its first line; empty if it claims none."""
    if not transcript.is_file():
        return ""
    with unwritable_errors(transcript), transcript.open("rb") as stream:
        line = stream.readline(_MAX_BYTES)
    try:
        claimed = json.loads(line)["body"]["roster_digest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""  # half a line, which is dropped when it is opened, or none of ours, which is refused then
    return claimed if isinstance(claimed, str) and _DIGEST.fullmatch(claimed) else ""
