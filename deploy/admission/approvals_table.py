"""What the file of approvals holds: entries by digest, names that are refused, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from secfed.config.schema import Strict
from secfed.deploy.admission.meant_study import LEAST_PREFIX, name_and_digits
from secfed.deploy.admission.person import BETWEEN, NOBODY, Person
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files

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


class Entry(Strict):
    """What is known of one digest."""

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


class ApprovalsTable(Strict):
    """The file: entries by digest, and refused names with their time. Its tables change."""

    version: Literal[1] = Field(description="1")
    studies: dict[str, Entry] = Field(default_factory=dict, description="a table of study digests")
    refused_names: dict[str, Annotated[int, Field(ge=0, lt=private_files.LATEST_S)]] = Field(
        default_factory=dict, description="a table of study names, and since when they are refused"
    )
    refused_by: dict[str, str] = Field(default_factory=dict, description="a table of study names, and who")

    def to_json(self) -> dict[str, Any]:
        """For the file."""
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
        """Note what was decided; it takes the place of what was before."""
        subjects = tuple(person.subject for person in by)
        self.studies[digest] = Entry(
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
        """Their digests."""
        return [digest for digest, entry in self.studies.items() if entry.state is state]

    def decided_names(self) -> tuple[Decision, ...]:
        """Names that are refused whatever the digest."""
        names = sorted(self.refused_names.items())
        return tuple(
            Decision("", name, ApprovalState.WITHDRAWN, time_of(since), self.refused_by.get(name, ""))
            for name, since in names
        )

    def decision(self, digest: str) -> Decision:
        """What holds for a digest: the refusal of its name, unless it was approved since."""
        entry = self.studies[digest]
        state, since = entry.state, entry.since_s
        if entry.name in self.refused_names and state is not ApprovalState.APPROVED:
            state, since = ApprovalState.WITHDRAWN, self.refused_names[entry.name]
        return Decision(digest, entry.name, state, time_of(since), entry.by, entry.subjects)

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


def time_of(since_s: int) -> datetime:
    """Seconds since 1970, in UTC."""
    return datetime.fromtimestamp(since_s, UTC)
