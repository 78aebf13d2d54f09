"""Studies that a person at the site has approved, by digest: any change of a study needs a new approval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from secfed.algorithms.options import Strict, checked
from secfed.deploy import safe_files
from secfed.errors import ConfigError, PolicyRefused

_LEAST_PREFIX: Final = 8  # hexadecimal digits that stand for a digest
_MOST_HELD: Final = 1000  # a server must not fill the disk


class State(StrEnum):
    """What was decided about a study."""

    HELD = "held"
    APPROVED = "approved"
    WITHDRAWN = "withdrawn"


class _Entry(Strict):
    name: str = Field(max_length=100, description="the study's name")
    state: Literal["held", "approved", "withdrawn"] = Field(description='"held", "approved" or "withdrawn"')
    since_s: int = Field(ge=0, description="seconds since 1970")


class _File(Strict):
    version: Literal[1] = Field(description="1")
    studies: dict[str, _Entry] = Field(description="a table of study digests")


@dataclass(frozen=True)
class Decision:
    """What was decided about one study, and when.

    Attributes:
        digest: of the study, hexadecimal.
        name: of the study.
        state: the decision.
        since: its time.
    """

    digest: str
    name: str
    state: State
    since: datetime


class Approvals:
    """The decisions of one site, in a file that the agent and the command line share.

    Args:
        path: the file; created with the first decision.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Decision, ...]:
        """Every decision, oldest first.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        found = (
            Decision(digest, entry.name, State(entry.state), datetime.fromtimestamp(entry.since_s, UTC))
            for digest, entry in self._read().items()
        )
        return tuple(sorted(found, key=lambda item: (item.since, item.digest)))

    def state(self, digest: bytes) -> State | None:
        """What was decided about a study; None if it was never seen.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        entry = self._read().get(digest.hex())
        return None if entry is None else State(entry.state)

    def approved(self, digest: bytes) -> bool:
        """Whether a person approved exactly this study.

        Raises:
            ConfigError: the file is unreadable or damaged.
        """
        return self.state(digest) is State.APPROVED

    def hold(self, name: str, digest: bytes, now: datetime) -> None:
        """Note that a study waits for a decision; an earlier decision stays.

        Raises:
            ConfigError: the file cannot be read or written, or too many studies wait.
        """
        with safe_files.locked(self._path.parent):
            entries = self._read()
            if digest.hex() in entries:
                return
            if sum(State(entry.state) is State.HELD for entry in entries.values()) >= _MOST_HELD:
                raise ConfigError(
                    f"{self._path}: {_MOST_HELD} studies wait for a decision",
                    remedy="decide about them first",
                )
            self._write(entries, digest.hex(), name, State.HELD, now)

    def approve(self, name: str, digest: bytes, now: datetime) -> None:
        """Approve a study.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with safe_files.locked(self._path.parent):
            self._write(self._read(), digest.hex(), name, State.APPROVED, now)

    def withdraw(self, name: str, digest: bytes, now: datetime) -> None:
        """Refuse a study from now on, whatever the policy says.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with safe_files.locked(self._path.parent):
            self._write(self._read(), digest.hex(), name, State.WITHDRAWN, now)

    def find(self, text: str) -> Decision:
        """The study that a person means by its name, its digest or at least 8 digits of it.

        Raises:
            ConfigError: no study, or more than one.
        """
        known = self.all()
        digits = text.lower()
        found = [
            item
            for item in known
            if item.name == text or (len(digits) >= _LEAST_PREFIX and item.digest.startswith(digits))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(item.digest[:16] for item in found)
            raise ConfigError(f"several studies match {text!r}", remedy=f"name one by its digest: {listed}")
        names = ", ".join(sorted({item.name for item in known})) or "none yet"
        raise ConfigError(f"no study {text!r} has asked", remedy=f"known studies: {names}")

    def require(self, name: str, digest: bytes, now: datetime, *, manual: bool) -> None:
        """Let a study through, or hold it.

        Args:
            name: of the study.
            digest: of the study.
            now: with a time zone.
            manual: whether the policy wants a person to decide.

        Raises:
            PolicyRefused: it was withdrawn, or waits for a decision.
            ConfigError: the file cannot be read or written.
        """
        state = self.state(digest)
        if state is State.WITHDRAWN:
            raise PolicyRefused(f"study {name!r} was withdrawn at this site", remedy="ask this site")
        if manual and state is not State.APPROVED:
            self.hold(name, digest, now)
            raise PolicyRefused(
                f"study {name!r} waits for the approval of this site",
                remedy=f"at the site: secfed agent approve {digest.hex()[:16]}",
            )

    def _read(self) -> dict[str, _Entry]:
        if not self._path.exists():
            return {}
        file = checked(_File, safe_files.read_json(self._path, "a list of approvals"), str(self._path))
        return dict(file.studies)

    def _write(
        self, entries: Mapping[str, _Entry], digest: str, name: str, state: State, now: datetime
    ) -> None:
        new = _Entry(name=name, state=state.value, since_s=int(now.timestamp()))
        studies = {key: entry.model_dump() for key, entry in {**entries, digest: new}.items()}
        content: dict[str, Any] = {"version": 1, "studies": studies}
        safe_files.replace(self._path, safe_files.to_json(content))
