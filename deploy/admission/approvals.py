"""What a person at the site has decided about studies.

An approval is for one digest: any change of a study needs a new one. A refusal is for one digest or for a
name; that of a name holds for every digest, except those that were approved after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from secfed.config.schema import Strict, checked
from secfed.deploy.admission.meant_study import DIGEST_DIGITS, LEAST_PREFIX, check_name, name_and_digits
from secfed.deploy.admission.person import BETWEEN, NOBODY, Person
from secfed.deploy.policy.absence import HELD_TEXT
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files

_MOST_HELD: Final = 1000  # a server must not fill the disk
_MOST_PERMITTED: Final = 1000  # the oldest are forgotten: nothing is decided by them
_SECOND: Final = {
    False: "have it approved from another account of this machine",
    True: "have somebody else sign in here and approve it",
}
_MOST_TOLD: Final = 20


class ApprovalState(StrEnum):
    """What was decided about a study."""

    HELD = "held"
    PERMITTED = "permitted"  # by the policy; no person has decided
    APPROVED = "approved"
    WITHDRAWN = "withdrawn"


class _Entry(Strict):
    name: str = Field(max_length=100, description="the study's name; empty if it has not asked yet")
    state: ApprovalState = Field(strict=False, description='"held", "permitted", "approved" or "withdrawn"')
    since_s: int = Field(ge=0, lt=private_files.LATEST_S, description="seconds since 1970")
    near_twins: str = Field(
        default="", pattern=r"^([0-9a-f]{64})?$", description="which near twins a person was shown; or empty"
    )
    by: str = Field(default="", max_length=1000, description="who decided; of a held study, the first")
    subjects: tuple[str, ...] = Field(default=(), description="Person.subject of each in by; or empty")

    @model_validator(mode="after")
    def _check_subjects(self) -> Self:
        if self.subjects and len(self.subjects) != self.persons:
            raise ValueError("subjects are not as many as the names in by")
        return self

    def approves(self, near_twins: str) -> bool:
        """Whether a person approved the study, and was shown these near twins."""
        return self.state is ApprovalState.APPROVED and near_twins in ("", self.near_twins)

    @property
    def persons(self) -> int:
        """How many persons approved it."""
        return len(self.by.split(BETWEEN))

    @property
    def first(self) -> Person:
        """Who approved it, or approved it first."""
        return Person(self.by.split(BETWEEN)[0], self.subjects[0] if self.subjects else "")


@dataclass(frozen=True)
class Decision:
    """What was decided about one study, and when."""

    digest: str  # hexadecimal; empty for every study of the name
    name: str  # empty for a digest that was refused before it asked
    state: ApprovalState
    since: datetime
    by: str = ""  # who; of a held study, the first of two who have to approve it; empty if not known
    subjects: tuple[str, ...] = ()  # of each who signed in: Person.subject; empty if none did


class Approvals:
    """The decisions of one site, in a file that the agent and the command line share.

    Every method reads the file, and raises ``ConfigError`` where it is damaged or cannot be written. The
    first decision creates it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Decision, ...]:
        """Every decision about one digest, oldest first; a refused name counts as in :meth:`require`."""
        content = self._read()
        found = (content.decision(digest) for digest in content.studies)
        return tuple(sorted(found, key=lambda item: (item.since, item.digest)))

    def find(self, text: str) -> Decision:
        """The study that a person means by its name or at least 8 digits of its digest."""
        content = self._read()
        named, others = content.matching(text)
        return content.decision(content.only(text, named + others))

    def refused_names(self) -> tuple[Decision, ...]:
        """Names that are refused whatever the digest."""
        return self._read().decided_names()

    def decided(self) -> tuple[Decision, ...]:
        """What persons decided, oldest first: about each digest by itself, and about names."""
        content = self._read()
        found = [
            Decision(digest, entry.name, entry.state, _time(entry.since_s), entry.by, entry.subjects)
            for digest, entry in content.studies.items()
            if entry.state in (ApprovalState.APPROVED, ApprovalState.WITHDRAWN)
        ]
        found += content.decided_names()
        return tuple(sorted(found, key=lambda item: (item.since, item.digest, item.name)))

    def state(self, digest: bytes) -> ApprovalState | None:
        """What was decided about a study; None if it was never seen."""
        entry = self._read().studies.get(digest.hex())
        return None if entry is None else entry.state

    def persons(self, digest: bytes) -> int:
        """How many persons approved a study."""
        entry = self._read().studies.get(digest.hex())
        return 0 if entry is None else entry.persons

    def hold(
        self,
        name: str,
        digest: bytes,
        now: datetime,
        *,
        near_twins: str = "",
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """Note that a study waits; an earlier decision stays, if it was made knowing these near twins.

        ``keep`` is called first, and keeps what a person is shown: of no study that waits it is missing.
        """
        with self._changing() as content:
            known = content.studies.get(digest.hex())
            waits = known is not None and known.state is ApprovalState.HELD
            if known is not None and (known.state is ApprovalState.WITHDRAWN or known.approves(near_twins)):
                return
            if not waits and len(content.in_state(ApprovalState.HELD)) >= _MOST_HELD:
                raise ConfigError(
                    f"{self._path}: {_MOST_HELD} studies wait for a decision",
                    remedy="decide about them first",
                )
            keep()
            if not waits:
                content.set(digest.hex(), name, ApprovalState.HELD, now)

    def record(self, name: str, digest: bytes, now: datetime) -> None:
        """Note that the policy alone let a study in, so that a person can find it; a decision stays."""
        with self._changing() as content:
            known = content.studies.get(digest.hex())
            if known is not None and known.state is not ApprovalState.HELD:
                return
            content.set(digest.hex(), name, ApprovalState.PERMITTED, now)
            permitted = content.in_state(ApprovalState.PERMITTED)
            oldest = sorted(permitted, key=lambda key: content.studies[key].since_s)
            for key in oldest[: max(0, len(permitted) - _MOST_PERMITTED)]:
                del content.studies[key]

    def ask_again(self, now: datetime) -> None:
        """Let every study that somebody approved, alone or first of two, wait once more; refusals stay."""
        with self._changing() as content:
            for state in (ApprovalState.APPROVED, ApprovalState.HELD):
                for digest in content.in_state(state):
                    content.set(digest, content.studies[digest].name, ApprovalState.HELD, now)

    def approve_what(
        self,
        text: str,
        now: datetime,
        shown: Callable[[str], str] = lambda _digest: "",
        *,
        by: Person = NOBODY,
        persons: Literal[1, 2] = 1,
    ) -> Decision:
        """Approve the study that a person means by its name or digest; also lifts the refusal of a name.

        A digest that is approved under a refused name is an exception: other settings stay refused. ``shown``
        shows the near twins of a digest, and says which they are; it raises if the person declines. The
        result is "permitted" where only a refusal was lifted: of a name that stands for no study or several,
        or of a digest that has not asked. Of two ``persons`` the first leaves the study held.
        """
        with self._changing() as content:
            named, others = content.matching(text)
            lifted = not others and content.refused_names.pop(text, None) is not None
            if lifted:
                content.refused_by.pop(text, None)
            if lifted and len(named) != 1:
                return Decision("", text, ApprovalState.PERMITTED, now)
            digest = content.only(text, named + others)
            name = content.studies[digest].name
            if name:
                return content.approve(digest, now, shown(digest), by, persons)
            # it has not asked yet: what nobody has seen is not approved
            del content.studies[digest]
            return Decision(digest, name, ApprovalState.PERMITTED, now)

    def refuse_what(self, text: str, now: datetime, *, by: Person = NOBODY, unasked: bool = True) -> Decision:
        """Refuse what a person means by a name, a digest or at least 8 digits of one that has asked.

        A name is refused whatever the digest. With ``unasked`` a name or digest need not have asked yet.
        """
        with self._changing() as content:
            named, others = content.matching(text)
            if not unasked and not named and not others and text not in content.refused_names:
                content.only(text, [], "; what has not asked yet is refused with --unasked")
            digits = name_and_digits(text)[1]
            if not named and not others and len(digits) == DIGEST_DIGITS:
                others = [digits]
                content.set(others[0], "", ApprovalState.WITHDRAWN, now, by=(by,))
            if others:
                digest = content.only(text, named + others)
                content.set(digest, content.studies[digest].name, ApprovalState.WITHDRAWN, now, by=(by,))
                return content.decision(digest)
            if not named and text not in content.refused_names:
                check_name(text)
            content.refused_names[text] = int(now.timestamp())
            content.refused_by[text] = by.name
            for digest in named:  # from now on, an approval under this name is one that was made after it
                entry = content.studies[digest]
                if entry.state is ApprovalState.APPROVED:
                    content.set(digest, text, ApprovalState.PERMITTED, now)
                elif entry.state is ApprovalState.HELD:  # also that of the first of two
                    content.studies[digest] = entry.model_copy(update={"by": "", "subjects": ()})
            return Decision("", text, ApprovalState.WITHDRAWN, now, by.name)

    def require(
        self,
        name: str,
        digest: bytes,
        now: datetime,
        *,
        manual: bool,
        near_twins: str = "",
        persons: Literal[1, 2] = 1,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """Let a study through, or :meth:`hold` it. ``PolicyRefused``: it was refused, or is held."""
        content = self._read()
        entry = content.studies.get(digest.hex())
        if entry is not None and not entry.name:  # it was refused before it asked
            with self._changing() as content:
                entry = content.studies.get(digest.hex())  # a person may have decided meanwhile
                if entry is not None and not entry.name:
                    entry = content.studies[digest.hex()] = entry.model_copy(update={"name": name})
        state = None if entry is None else entry.state
        # The name first: it is refused for settings that nobody here has seen yet, too.
        by_name = name in content.refused_names and state is not ApprovalState.APPROVED
        if by_name or state is ApprovalState.WITHDRAWN:
            raise PolicyRefused(
                f"study {name!r} was refused at this site", remedy="ask this site", keys=("approval",)
            )
        is_approved = entry is not None and entry.approves(near_twins)
        if manual and not (is_approved and entry is not None and entry.persons >= persons):
            if is_approved:  # by one person, before two were wanted
                self._hold_for_second(digest.hex(), now)
            self.hold(name, digest, now, near_twins=near_twins, keep=keep)
            raise PolicyRefused(
                f"study {name!r} {HELD_TEXT}",
                remedy=f"at the site: secfed agent approve {digest.hex()[:16]}",
            )

    def _hold_for_second(self, digest: str, now: datetime) -> None:
        with self._changing() as content:
            entry = content.studies[digest]
            if entry.state is ApprovalState.APPROVED and entry.persons == 1:
                content.set(digest, entry.name, ApprovalState.HELD, now, entry.near_twins, (entry.first,))

    def _read(self) -> _File:
        if not self._path.exists():
            return _File(version=1)
        return checked(_File, private_files.read_json(self._path, "a list of approvals"), str(self._path))

    @contextmanager
    def _changing(self) -> Iterator[_File]:
        """Change the content alone; what changed is written at the end, unless an error comes first."""
        with private_files.locked(self._path.parent):
            content = self._read()
            before = content.to_json()
            yield content
            if (after := content.to_json()) != before:
                private_files.replace(self._path, private_files.to_json(after))


class _File(Strict):
    """What the file holds: entries by digest, and refused names with their time. Its tables change."""

    version: Literal[1] = Field(description="1")
    studies: dict[str, _Entry] = Field(default_factory=dict, description="a table of study digests")
    refused_names: dict[str, Annotated[int, Field(ge=0, lt=private_files.LATEST_S)]] = Field(
        default_factory=dict, description="a table of study names, and since when they are refused"
    )
    refused_by: dict[str, str] = Field(default_factory=dict, description="a table of study names, and who")

    def to_json(self) -> dict[str, Any]:
        content = self.model_dump(mode="json")
        for entry in content["studies"].values():
            for key in ("by", "subjects"):  # as earlier versions wrote it
                if not entry[key]:
                    del entry[key]
        for key in ("refused_names", "refused_by"):
            if not any(content[key].values()):
                del content[key]
        return content

    def set(
        self,
        digest: str,
        name: str,
        state: ApprovalState,
        now: datetime,
        near_twins: str = "",
        by: tuple[Person, ...] = (),
    ) -> None:
        subjects = tuple(person.subject for person in by)
        self.studies[digest] = _Entry(
            name=name,
            state=state,
            since_s=int(now.timestamp()),
            near_twins=near_twins,
            by=BETWEEN.join(person.name for person in by),
            subjects=subjects if any(subjects) else (),
        )

    def approve(self, digest: str, now: datetime, near_twins: str, by: Person, persons: int) -> Decision:
        """One person approves; where two have to, the first is noted, and the second must be another.

        Who may be the first under another name (:meth:`Person.is_second_to`) takes the first's place.
        """
        entry = self.studies[digest]
        is_approved = entry.state is ApprovalState.APPROVED and entry.near_twins == near_twins
        if is_approved and entry.persons >= persons:  # a repeat takes nobody's name away
            return self.decision(digest)
        state: ApprovalState = ApprovalState.APPROVED
        who: tuple[Person, ...] = (by,)
        if persons == 2:
            holds = entry.state in (state, ApprovalState.HELD) and entry.near_twins == near_twins
            first = entry.first if holds else NOBODY
            if by.is_same(first):
                who_has = f"{by.name or 'the same person'} has approved this study"
                raise PolicyRefused(
                    f"{who_has}; policy.toml wants a second person", remedy=_SECOND[bool(by.subject)]
                )
            if by.is_second_to(first):
                who = (first, by)
            else:
                state = ApprovalState.HELD
        self.set(digest, entry.name, state, now, near_twins, who)
        return replace(self.decision(digest), state=state, since=now)

    def in_state(self, state: ApprovalState) -> list[str]:
        return [digest for digest, entry in self.studies.items() if entry.state is state]

    def decided_names(self) -> tuple[Decision, ...]:
        names = sorted(self.refused_names.items())
        return tuple(
            Decision("", name, ApprovalState.WITHDRAWN, _time(since), self.refused_by.get(name, ""))
            for name, since in names
        )

    def decision(self, digest: str) -> Decision:
        entry = self.studies[digest]
        state, since = entry.state, entry.since_s
        if entry.name in self.refused_names and state is not ApprovalState.APPROVED:
            state, since = ApprovalState.WITHDRAWN, self.refused_names[entry.name]
        return Decision(digest, entry.name, state, _time(since), entry.by, entry.subjects)

    def matching(self, text: str) -> tuple[list[str], list[str]]:
        """Digests of the studies of this name, and other digests that begin so."""
        named = [digest for digest, entry in self.studies.items() if text and entry.name == text]
        name, digits = name_and_digits(text)
        if len(digits) < LEAST_PREFIX:
            return named, []
        others = [key for key in self.studies if key.startswith(digits) and key not in named]
        return named, [key for key in others if not name or self.studies[key].name in ("", name)]

    def only(self, text: str, found: list[str], otherwise: str = "") -> str:
        """The one digest that was meant."""
        if len(found) == 1 and (text not in self.refused_names or self.studies[found[0]].name == text):
            return found[0]
        if found:
            listed = ", ".join(digest[:16] for digest in found)
            raise ConfigError(f"several studies match {text!r}", remedy=f"name one by its digest: {listed}")
        known = sorted(f"{entry.name} {digest[:16]}".strip() for digest, entry in self.studies.items())
        told = ", ".join(known[:_MOST_TOLD]) or "none yet"
        more = f", and {len(known) - _MOST_TOLD} more" if len(known) > _MOST_TOLD else ""
        raise ConfigError(f"no study {text!r} has asked", remedy=f"known studies: {told}{more}{otherwise}")


def _time(since_s: int) -> datetime:
    return datetime.fromtimestamp(since_s, UTC)
