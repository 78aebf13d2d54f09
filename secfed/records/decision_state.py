"""What a decision log says so far, and which entries follow from what happens now. No I/O.

Only what differs from what the log says becomes an entry. What an aggregator can cause is limited besides:

    once                a refused study: one entry, until something else is decided about it
    1, 2, 3, 4, 8, ...  refusals of one study with one number: these become entries, with the count so far
    100 a day           entries of one kind and number; the last is followed by ``limited``, and new
                        studies begin no more that day: what runs here is recorded

Security: an entry holds names, digests, numbers and fixed texts. Of what comes over the network only a
study's name and digest are copied, checked against its settings. An ``alarm`` depends on records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from secfed.crypto.refusals import Refusal
from secfed.errors import PolicyRefused

# Kinds of entries. "opened" comes from the chain itself.
APPROVED = "approved"  # a person let exactly this study run
REJECTED = "rejected"  # a person refused a study, or a name whatever its settings
WITHDRAWN = "withdrawn"  # an approval does not hold any more
LIFTED = "lifted"  # a person's refusal does not hold any more
ACCEPTED = "accepted"  # a study was begun: the policy of this digest permits it, and no person is against it
REFUSED = "refused"  # a study was not begun, or not continued: what refused it
BUDGET = "budget"  # a data set's budget did not cover an exchange
REFUSAL = "refusal"  # a message that the protocol does not permit, with the refusal's number
ALARM = "alarm"  # local work of an exchange failed, and what failed added nothing to the sum
FINISHED = "finished"  # a study that was begun is over
ROSTER = "roster"  # the pinned roster, when it is another than before
POLICY = "policy"  # policy.toml, when it is another than before
LIMITED = "limited"  # the last entry of that kind and number on this day; later ones are left out
MISSED = "missed"  # so many entries could not be written
RECOVERED = "recovered"  # an unfinished last line was dropped after a crash

PER_DAY: Final = 100
_DAY_S: Final = 86_400
_IN_FULL: Final = 3
_KEY: Final = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_KEY_CHARACTERS: Final = 80
_MOST_KEYS: Final = 32
_ALARM_CHARACTERS: Final = 200
_OTHER: Final = "other"

Made = tuple[str, dict[str, Any]]
Place = tuple[int, str, int]  # round, exchange, attempt


@dataclass(frozen=True)
class ByPerson:
    """What a person decided about one digest, or about a name whatever its digest."""

    digest: str  # of the study, hexadecimal; empty for a name
    name: str  # of the study; empty for a digest that was refused before it asked
    approved: bool  # or else refused
    decided_s: int  # when; seconds since 1970
    by: str = ""  # who: the account on the hospital's machine, or who signed in there; empty if not known
    subjects: tuple[str, ...] = ()  # of each who signed in: as the identity provider knows them

    @property
    def about(self) -> str:
        """What the decision is about; a newer one about the same takes its place."""
        return self.digest or self.name


class DecisionState:
    """What the entries say, in order. Feed it every entry with :meth:`take`."""

    def __init__(self) -> None:
        self._roster = self._policy = ""
        self._persons: dict[str, ByPerson] = {}
        self._studies: dict[str, tuple[str, tuple[str, ...]]] = {}  # digest -> kind, what refused it
        self._days: Counter[tuple[int, str, int]] = Counter()  # day, kind, number -> entries
        self._counts: dict[tuple[str, str, int], int] = {}  # digest, kind, number -> refusals so far

    def take(self, kind: str, body: Mapping[str, Any]) -> None:
        """One more entry."""
        digest, name = str(body.get("digest", "")), str(body.get("name", ""))
        number = int(body.get("number", 0))
        self._days[_day(body), kind, number] += 1
        if kind in (APPROVED, REJECTED, WITHDRAWN, LIFTED):
            said = ByPerson(digest, name, kind == APPROVED, int(body.get("decided_s", 0)))
            self._persons.pop(said.about, None)
            if "decided_s" in body:
                self._persons[said.about] = said
        elif kind in (ACCEPTED, REFUSED, FINISHED):
            self._studies[digest] = (kind, tuple(body.get("keys", ())))
        elif kind in (BUDGET, REFUSAL, ALARM):
            self._counts[digest, kind, number] = int(body.get("count", 1))
        elif kind == ROSTER:
            self._roster = str(body.get("roster", ""))
        elif kind == POLICY:
            self._policy = str(body.get("policy", ""))

    def count(self, digest: str, kind: str, number: int) -> int:
        """How many refusals the newest entry about this study and number counts."""
        return self._counts.get((digest, kind, number), 0)

    # --- what follows from what happens now; ``now_s`` is the time in seconds since 1970 ---------------

    def site(self, roster: str, policy: str, persons: Sequence[ByPerson]) -> list[Made]:
        """Roster, policy and persons' decisions, as far as the log does not say them yet.

        Args:
            roster: digest of the pinned one, hexadecimal; empty if that was not looked at.
            policy: SHA-256 of policy.toml, hexadecimal; empty if that was not looked at.
            persons: every decision that holds.
        """
        made: list[Made] = []
        if roster and roster != self._roster:
            made.append((ROSTER, {"roster": roster, "before": self._roster}))
        if policy and policy != self._policy:
            made.append((POLICY, {"policy": policy, "before": self._policy}))
        holding = {one.about: one for one in persons}
        for about, known in self._persons.items():
            if about not in holding:  # no time: only that it does not hold any more is known
                kind = WITHDRAWN if known.approved else LIFTED
                made.append((kind, {"digest": known.digest, "name": known.name}))
        for about, one in holding.items():
            before = self._persons.get(about)
            if before is None or (before.approved, before.decided_s) != (one.approved, one.decided_s):
                was_approved = before is not None and before.approved
                kind = APPROVED if one.approved else WITHDRAWN if was_approved else REJECTED
                body = {"digest": one.digest, "name": one.name, "decided_s": one.decided_s}
                if one.by:
                    body["by"] = one.by
                if one.subjects:
                    body["subjects"] = list(one.subjects)
                made.append((kind, body))
        return made

    def accepts(self, digest: str, name: str, now_s: int) -> list[Made]:
        """A study may run: an entry, unless it ran before and nothing else was decided since.

        ``PolicyRefused``: a person refused it, as the log says, or as many new studies as a day has room for
        were begun today.
        """
        # About this very digest counts more than about its name.
        said = self._persons.get(digest) or self._persons.get(name)
        if said is not None and not said.approved:
            # It came after the site's files were read, and the log must not say that a study began after it.
            raise PolicyRefused(f"study {name!r} was refused at this site", keys=("approval",))
        if self._studies.get(digest, ("",))[0] == ACCEPTED:
            return []
        body = {"digest": digest, "name": name, "policy": self._policy, "roster": self._roster}
        made = self._within_the_day((ACCEPTED, body), now_s)
        if not made:
            raise PolicyRefused(
                f"this site begins no more than {PER_DAY} new studies a day, and records each", remedy="wait"
            )
        return made

    def refuses(self, digest: str, name: str, keys: Iterable[str], now_s: int) -> list[Made]:
        """A study may not run: what refused it, once."""
        known = sorted({key if _is_key(key) else _OTHER for key in keys})[:_MOST_KEYS]
        if self._studies.get(digest) == (REFUSED, tuple(known)):
            return []
        body = {"digest": digest, "name": name, "keys": known, "policy": self._policy}
        return self._within_the_day((REFUSED, body), now_s)

    def stops(
        self, kind: str, digest: str, name: str, refusal: Mapping[str, Any], count: int, now_s: int
    ) -> list[Made]:
        """A message or an exchange was refused for the ``count``-th time."""
        return self._within_the_day(
            (kind, {"digest": digest, "name": name, **refusal, "count": count}), now_s
        )

    def ends(self, digest: str, name: str, *, with_model: bool) -> list[Made]:
        """A study is over: an entry, if the log says that it was begun."""
        if self._studies.get(digest, ("",))[0] != ACCEPTED:
            return []
        return [(FINISHED, {"digest": digest, "name": name, "with_model": with_model})]

    def _within_the_day(self, made: Made, now_s: int) -> list[Made]:
        """The entry; with a note behind the last one of the day, and nothing after that."""
        kind, number = made[0], int(made[1].get("number", 0))
        left = PER_DAY - self._days[now_s // _DAY_S, kind, number]
        if left <= 0:
            return []
        return [made] if left > 1 else [made, (LIMITED, {"of": kind, "number": number, "entries": PER_DAY})]


class Repeats:
    """How often each study's messages were refused with each number, in this process."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], tuple[int, bytes]] = {}

    def again(self, digest: str, kind: str, number: int, frame: bytes, before: int) -> int:
        """How often so far, this time included; 0 if this very frame was the last to be counted.

        Args:
            frame: its digest. A frame that is asked again after a lost answer is refused again, and is
                not a second try.
            before: what the log counts.
        """
        count, last = self._seen.get((digest, kind, number), (before, b""))
        if last == frame:
            return 0
        self._seen[digest, kind, number] = (count + 1, frame)
        return count + 1


def is_told(count: int) -> bool:
    """Whether the count-th refusal of its kind becomes an entry: the first ones, then at every doubling."""
    return 0 < count <= _IN_FULL or (count > 0 and count & (count - 1) == 0)


def refusal_facts(refusal: Refusal | None, error: Exception, place: Place) -> dict[str, Any]:
    """Number (0 for a message that does not fit what went before), fixed text and place of a refusal."""
    number = refusal.number if refusal is not None else 0
    text = refusal.text if refusal is not None else f"the message does not fit there ({type(error).__name__})"
    return {"number": number, "text": text, **where(place)}


def alarm_facts(fields: Iterable[str], kind: str, place: Place) -> dict[str, Any]:
    """What failed, and where; ``kind`` is the error's class, which a user's own code may have named."""
    named = ", ".join(list(fields)[:_MOST_KEYS])[:_ALARM_CHARACTERS]
    return {"number": 0, "text": f"{named}: {kind[:_KEY_CHARACTERS]}", **where(place)}


def where(place: Place) -> dict[str, Any]:
    """A place as entries say it."""
    return dict(zip(("round", "exchange", "attempt"), place, strict=True))


def _is_key(text: str) -> bool:
    return len(text) <= _KEY_CHARACTERS and _KEY.fullmatch(text) is not None


def _day(body: Mapping[str, Any]) -> int:
    return int(body.get("time_s", 0)) // _DAY_S
