"""What a person at the site has decided about studies.

An approval is for one digest: any change of a study needs a new one. A refusal is for one digest or for a
name; that of a name holds for every digest, except those that were approved after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from secfed.config.schema import checked
from secfed.deploy.admission.approvals_table import ApprovalsTable, ApprovalState, Decision, time_of
from secfed.deploy.admission.meant_study import DIGEST_DIGITS, check_name, name_and_digits
from secfed.deploy.admission.person import NOBODY, Person
from secfed.deploy.policy.absence import HELD_TEXT
from secfed.errors import ConfigError, PolicyRefused
from secfed.storage import private_files

_MOST_HELD: Final = 1000  # a server must not fill the disk
_MOST_PERMITTED: Final = 1000  # the oldest are forgotten: nothing is decided by them


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
            Decision(digest, entry.name, entry.state, time_of(entry.since_s), entry.by, entry.subjects)
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

    def _read(self) -> ApprovalsTable:
        if not self._path.exists():
            return ApprovalsTable(version=1)
        return checked(
            ApprovalsTable, private_files.read_json(self._path, "a list of approvals"), str(self._path)
        )

    @contextmanager
    def _changing(self) -> Iterator[ApprovalsTable]:
        """Change the content alone; what changed is written at the end, unless an error comes first."""
        with private_files.locked(self._path.parent):
            content = self._read()
            before = content.to_json()
            yield content
            if (after := content.to_json()) != before:
                private_files.replace(self._path, private_files.to_json(after))
