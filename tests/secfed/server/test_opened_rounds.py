"""Sites that lag behind take the sums that they missed; one that does not take them costs one deadline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import StateView
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.message_base import signed
from secfed.server.opened_rounds import OpenedRounds, SumStore

IDENTITIES = [Identity.from_seed(f"h{at}", bytes([at]) * 32) for at in range(4)]
STATE = b"d" * 32
SUMS = 5
TASK = b"\x01"  # how a request for work begins


def view(site: Identity, sums: int) -> bytes:
    return signed(StateView(site.name, sums, STATE), site, labels.SIGN_STATE, b"study").encode()


class Sites:
    """Three that are up to date, and one that is not."""

    def __init__(self, takes: int, says: int | None) -> None:
        self.takes, self.says = takes, says  # sums that the last one takes; what it says it has meanwhile
        self.asked: list[list[str]] = []
        self.unanswered = self.has = 0

    def __call__(
        self, _stage: str, requests: dict[str, bytes], on_reply: Callable[[str, Buffer], None]
    ) -> None:
        self.asked.append(list(requests))
        for identity in IDENTITIES:
            if identity.name not in requests:
                continue
            if identity is not IDENTITIES[-1]:
                on_reply(identity.name, view(identity, SUMS))
            elif bytes(requests[identity.name][:1]) == TASK:
                on_reply(identity.name, view(identity, self.has))
            elif self.has < self.takes:
                self.has += 1
                on_reply(identity.name, view(identity, self.has))
            elif self.says is not None:
                on_reply(identity.name, view(identity, self.says))
            else:
                self.unanswered += 1


@pytest.mark.parametrize(
    ("takes", "says", "asks", "ready"),
    [
        (SUMS, None, 2 + SUMS, 4),  # all of them, and the task once more
        (2, None, 3 + 1 + 1, 3),
        (0, None, 1 + 1 + 1, 3),
        (0, 0, 1 + 1 + 1, 3),  # answers, and takes nothing
    ],
)
def test_a_site_that_takes_no_sum_is_asked_once_more_at_most(
    tmp_path: Path, takes: int, says: int | None, asks: int, ready: int
) -> None:
    rounds: Any = OpenedRounds.__new__(OpenedRounds)
    rounds.store, rounds.state, rounds.ask = SumStore(tmp_path), STATE, Sites(takes, says)
    for number in range(SUMS):
        rounds.store.append(b"sum%d" % number)
    roster = Roster.of(Identity.from_seed("centre", b"a" * 32), IDENTITIES)
    rounds.rules = SimpleNamespace(study="study", roster=roster)
    found = rounds.train(SUMS + 1, 0, SimpleNamespace(name="update"), [one.name for one in IDENTITIES])
    assert len(found) == ready
    assert len(rounds.ask.asked) == asks
    assert rounds.ask.unanswered <= 1
