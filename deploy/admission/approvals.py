"""What a person at the site has decided about studies.

An approval is for one digest: any change of a study needs a new one. A refusal is for one digest or for a
name; that of a name holds for every digest, except those that were approved after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from secfed.config.schema import Strict, checked
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files

_LEAST_PREFIX: Final = 8  # hexadecimal digits that stand for a digest
_DIGEST_DIGITS: Final = 64
_MOST_HELD: Final = 1000  # a server must not fill the disk
_MOST_PERMITTED: Final = 1000  # the oldest are forgotten: nothing is decided by them
_NAME: Final = re.compile(
    r"[a-z0-9][a-z0-9-]{0,62}"
)  # as secfed/study/study.py, which is too heavy to import here


class ApprovalState(StrEnum):
    """What was decided about a study."""

    HELD = "held"
    PERMITTED = "permitted"  # by the policy; no person has decided
    APPROVED = "approved"
    WITHDRAWN = "withdrawn"


class _Entry(Strict):
    name: str = Field(max_length=100, description="the study's name; empty if it has not asked yet")
    state: Literal["held", "permitted", "approved", "withdrawn"] = Field(
        description='"held", "permitted", "approved" or "withdrawn"'
    )
    since_s: int = Field(ge=0, lt=private_files.LATEST_S, description="seconds since 1970")
    near_twins: str = Field(
        default="", pattern=r"^([0-9a-f]{64})?$", description="which near twins a person was shown; or empty"
    )

    def approves(self, near_twins: str) -> bool:
        """Whether a person approved the study, and was shown these near twins."""
        return self.is_(ApprovalState.APPROVED) and near_twins in ("", self.near_twins)

    def is_(self, state: ApprovalState) -> bool:
        return self.state == state.value


class _File(Strict):
    version: Literal[1] = Field(description="1")
    studies: dict[str, _Entry] = Field(default_factory=dict, description="a table of study digests")
    refused_names: dict[str, Annotated[int, Field(ge=0, lt=private_files.LATEST_S)]] = Field(
        default_factory=dict, description="a table of study names, and since when they are refused"
    )


@dataclass(frozen=True)
class Decision:
    """What was decided about one study, and when.

    Attributes:
        digest: of the study, hexadecimal; empty for every study of the name.
        name: of the study; empty for a digest that was refused before it asked.
        state: the decision.
        since: its time.
    """

    digest: str
    name: str
    state: ApprovalState
    since: datetime


class Approvals:
    """The decisions of one site, in a file that the agent and the command line share.

    Args:
        path: the file; created with the first decision.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Decision, ...]:
        """Every decision about one digest, oldest first; a refused name counts as in :meth:`require`.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        kept = self._read()
        found = (_decision(digest, entry, kept) for digest, entry in kept.studies.items())
        return tuple(sorted(found, key=lambda item: (item.since, item.digest)))

    def refused_names(self) -> tuple[Decision, ...]:
        """Names that are refused whatever the digest.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        names = sorted(self._read().names.items())
        return tuple(Decision("", name, ApprovalState.WITHDRAWN, _time(since)) for name, since in names)

    def decided(self) -> tuple[Decision, ...]:
        """What persons decided, oldest first: about each digest by itself, and about names.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        kept = self._read()
        found = [
            Decision(digest, entry.name, ApprovalState(entry.state), _time(entry.since_s))
            for digest, entry in kept.studies.items()
            if entry.is_(ApprovalState.APPROVED) or entry.is_(ApprovalState.WITHDRAWN)
        ]
        found += [
            Decision("", name, ApprovalState.WITHDRAWN, _time(since)) for name, since in kept.names.items()
        ]
        return tuple(sorted(found, key=lambda item: (item.since, item.digest, item.name)))

    def state(self, digest: bytes) -> ApprovalState | None:
        """What was decided about a study; None if it was never seen.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        entry = self._read().studies.get(digest.hex())
        return None if entry is None else ApprovalState(entry.state)

    def hold(self, name: str, digest: bytes, now: datetime, *, near_twins: str = "") -> None:
        """Note that a study waits for a decision; an earlier decision stays, if it was made knowing as much.

        Args:
            name: of the study.
            digest: of the study.
            now: with a time zone.
            near_twins: which ones it has, as :func:`secfed.deploy.admission.near_twins.fingerprint` says.

        Raises:
            ConfigError: the file cannot be read or written, or too many studies wait.
        """
        with private_files.locked(self._path.parent):
            kept = self._read()
            known = kept.studies.get(digest.hex())
            if known is not None and (known.is_(ApprovalState.HELD) or known.is_(ApprovalState.WITHDRAWN)):
                return
            if known is not None and known.approves(near_twins):
                return
            if sum(entry.is_(ApprovalState.HELD) for entry in kept.studies.values()) >= _MOST_HELD:
                raise ConfigError(
                    f"{self._path}: {_MOST_HELD} studies wait for a decision",
                    remedy="decide about them first",
                )
            kept.set(digest.hex(), name, ApprovalState.HELD, now)
            self._write(kept)

    def record(self, name: str, digest: bytes, now: datetime) -> None:
        """Note that the policy alone let a study in, so that a person can find it; a decision stays.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with private_files.locked(self._path.parent):
            kept = self._read()
            known = kept.studies.get(digest.hex())
            if known is not None and not known.is_(ApprovalState.HELD):
                return
            kept.set(digest.hex(), name, ApprovalState.PERMITTED, now)
            permitted = [key for key, entry in kept.studies.items() if entry.is_(ApprovalState.PERMITTED)]
            oldest = sorted(permitted, key=lambda key: kept.studies[key].since_s)
            for key in oldest[: max(0, len(permitted) - _MOST_PERMITTED)]:
                del kept.studies[key]
            self._write(kept)

    def approve(self, name: str, digest: bytes, now: datetime) -> None:
        """Approve a study.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with private_files.locked(self._path.parent):
            kept = self._read()
            kept.set(digest.hex(), name, ApprovalState.APPROVED, now)
            self._write(kept)

    def withdraw(self, name: str, digest: bytes, now: datetime) -> None:
        """Refuse a study from now on, whatever the policy says.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with private_files.locked(self._path.parent):
            kept = self._read()
            kept.set(digest.hex(), name, ApprovalState.WITHDRAWN, now)
            self._write(kept)

    def approve_what(
        self, text: str, now: datetime, shown: Callable[[str], str] = lambda _digest: ""
    ) -> Decision:
        """Approve the study that a person means by its name or digest; also lifts the refusal of a name.

        A digest that is approved under a refused name is an exception: other settings stay refused.

        Args:
            text: name or digest.
            now: with a time zone.
            shown: shows the near twins of a digest, and says which they are; raises if the person does not
                approve the study in spite of them.

        Returns:
            The approval; "permitted", where only a refusal was lifted: of a name that stands for no study or
            for several, or of a digest that has not asked.

        Raises:
            ConfigError: no study, or more than one, or the file cannot be read or written.
        """
        with private_files.locked(self._path.parent):
            kept = self._read()
            named, others = kept.matching(text)
            lifted = not others and kept.names.pop(text, None) is not None
            if lifted and len(named) != 1:
                self._write(kept)
                return Decision("", text, ApprovalState.PERMITTED, now)
            found = self._only(text, named + others, kept)
            name = kept.studies[found].name
            if name:
                kept.set(found, name, ApprovalState.APPROVED, now, near_twins=shown(found))
            else:  # it has not asked yet: what nobody has seen is not approved
                del kept.studies[found]
            self._write(kept)
            return Decision(found, name, ApprovalState.APPROVED if name else ApprovalState.PERMITTED, now)

    def refuse_what(self, text: str, now: datetime) -> Decision:
        """Refuse what a person means by a name, a digest or at least 8 digits of one that has asked.

        A name is refused whatever the digest, and a name or digest need not have asked yet.

        Returns:
            The refusal; without a digest if it is for a name.

        Raises:
            ConfigError: neither, or more than one study, or the file cannot be read or written.
        """
        with private_files.locked(self._path.parent):
            kept = self._read()
            named, others = kept.matching(text)
            if not named and not others and _is_hexadecimal(text) and len(text) == _DIGEST_DIGITS:
                others = [text.lower()]
                kept.set(others[0], "", ApprovalState.WITHDRAWN, now)
            if others:
                found = self._only(text, named + others, kept)
                kept.set(found, kept.studies[found].name, ApprovalState.WITHDRAWN, now)
                self._write(kept)
                return _decision(found, kept.studies[found], kept)
            if not named and text not in kept.names:
                _check_name(text)
            kept.names[text] = int(now.timestamp())
            for digest in named:  # from now on, an approval under this name is one that was made after it
                if kept.studies[digest].is_(ApprovalState.APPROVED):
                    kept.set(digest, text, ApprovalState.PERMITTED, now)
            self._write(kept)
            return Decision("", text, ApprovalState.WITHDRAWN, now)

    def find(self, text: str) -> Decision:
        """The study that a person means by its name, its digest or at least 8 digits of it.

        Raises:
            ConfigError: no study, or more than one.
        """
        kept = self._read()
        named, others = kept.matching(text)
        found = self._only(text, named + others, kept)
        return _decision(found, kept.studies[found], kept)

    def require(self, name: str, digest: bytes, now: datetime, *, manual: bool, near_twins: str = "") -> None:
        """Let a study through, or hold it.

        Args:
            name: of the study.
            digest: of the study.
            now: with a time zone.
            manual: whether the policy wants a person to decide.
            near_twins: those that the person must have been shown, as for :meth:`hold`.

        Raises:
            PolicyRefused: it was withdrawn, or waits for a decision.
            ConfigError: the file cannot be read or written.
        """
        entry = self._named(name, digest)
        state = None if entry is None else ApprovalState(entry.state)
        # The name first: it is refused for settings that nobody here has seen yet, too.
        if (
            name in self._read().names and state is not ApprovalState.APPROVED
        ) or state is ApprovalState.WITHDRAWN:
            raise PolicyRefused(
                f"study {name!r} was withdrawn at this site", remedy="ask this site", keys=("approval",)
            )
        if manual and (entry is None or not entry.approves(near_twins)):
            self.hold(name, digest, now, near_twins=near_twins)
            raise PolicyRefused(
                f"study {name!r} waits for the approval of this site",
                remedy=f"at the site: secfed agent approve {digest.hex()[:16]}",
            )

    def _named(self, name: str, digest: bytes) -> _Entry | None:
        """The entry of a study that asks; one that was refused before it asked gets its name."""
        entry = self._read().studies.get(digest.hex())
        if entry is None or entry.name:
            return entry
        with private_files.locked(self._path.parent):
            kept = self._read()
            entry = kept.studies.get(digest.hex())
            if entry is not None and not entry.name:
                entry = entry.model_copy(update={"name": name})
                kept.studies[digest.hex()] = entry
                self._write(kept)
            return entry

    def _only(self, text: str, found: list[str], kept: _Kept) -> str:
        """The one digest that was meant.

        Raises:
            ConfigError: none, or several.
        """
        if len(found) == 1 and (text not in kept.names or kept.studies[found[0]].name == text):
            return found[0]
        if found:
            listed = ", ".join(digest[:16] for digest in found)
            raise ConfigError(f"several studies match {text!r}", remedy=f"name one by its digest: {listed}")
        names = ", ".join(sorted({entry.name for entry in kept.studies.values()} - {""})) or "none yet"
        raise ConfigError(f"no study {text!r} has asked", remedy=f"known studies: {names}")

    def _read(self) -> _Kept:
        if not self._path.exists():
            return _Kept()
        file = checked(_File, private_files.read_json(self._path, "a list of approvals"), str(self._path))
        return _Kept(dict(file.studies), dict(file.refused_names))

    def _write(self, kept: _Kept) -> None:
        studies = {digest: entry.model_dump() for digest, entry in kept.studies.items()}
        content: dict[str, Any] = {"version": 1, "studies": studies}
        if kept.names:
            content["refused_names"] = kept.names
        private_files.replace(self._path, private_files.to_json(content))


@dataclass
class _Kept:
    """What the file holds: entries by digest, and refused names with their time."""

    studies: dict[str, _Entry] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def set(self, digest: str, name: str, state: ApprovalState, now: datetime, near_twins: str = "") -> None:
        since_s = int(now.timestamp())
        self.studies[digest] = _Entry(name=name, state=state.value, since_s=since_s, near_twins=near_twins)

    def matching(self, text: str) -> tuple[list[str], list[str]]:
        """Digests of the studies of this name, and other digests that begin so."""
        named = [digest for digest, entry in self.studies.items() if text and entry.name == text]
        digits = text.lower()
        if len(digits) < _LEAST_PREFIX:
            return named, []
        return named, [key for key in self.studies if key.startswith(digits) and key not in named]


def _decision(digest: str, entry: _Entry, kept: _Kept) -> Decision:
    state, since = ApprovalState(entry.state), entry.since_s
    if entry.name in kept.names and state is not ApprovalState.APPROVED:
        state, since = ApprovalState.WITHDRAWN, kept.names[entry.name]
    return Decision(digest, entry.name, state, _time(since))


def _is_hexadecimal(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]+", text.lower()) is not None


def _time(since_s: int) -> datetime:
    return datetime.fromtimestamp(since_s, UTC)


def _check_name(text: str) -> None:
    """Refuse what cannot be the name of a study: it would be noted, and refuse nothing.

    Raises:
        ConfigError: not a name, or meant as a digest.
    """
    if len(text) >= _LEAST_PREFIX and _is_hexadecimal(text):
        raise ConfigError(
            f"no study with the digest {text!r} has asked",
            remedy=f"give all {_DIGEST_DIGITS} digits of a digest that has not asked yet",
        )
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{text!r} is neither the name of a study nor a digest",
            remedy="names have 1 to 63 of a-z, 0-9 and -; patterns belong into policy.toml",
        )
