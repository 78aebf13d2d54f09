"""Every dropout set at every stage: the sum is exact over the survivors, or the attempt aborts cleanly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import combinations

import pytest

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Roster
from secfed.crypto.lanes import Run
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.masked.states import ClientState
from secfed.crypto.messages import Envelope, Message
from secfed.errors import RoundAborted
from tests.journals import NoMemory
from tests.ring import Rereadable, as_integers
from tests.simulator import STAGES, Consortium

RUNS = (Run(11, 3), Run(32, 1), Run(64, 1))


class _Tree:
    """All that can happen to one attempt, as a tree: at each stage, any subset of the asked sites answers.

    A site's states are values, so a branch keeps the states of its root and handles each message once,
    however many branches contain it. The leaves stand for all ways the story could have gone on.
    """

    def __init__(self, consortium: Consortium) -> None:
        self.consortium = consortium
        self._known: dict[tuple[str, int, bytes], tuple[ClientState, ClientState, bytes]] = {}
        self.leaves = {"summed": 0, "aborted": 0}
        self.stories = 0

    def grow(self) -> None:
        consortium = self.consortium
        server = MaskedServer(consortium.specification(), consortium.roster, consortium.shape)
        states = {
            name: MaskedSite(
                consortium.contribution(name, journal=NoMemory(), source=Rereadable(consortium.updates[name]))
            ).state
            for name in consortium.names
        }
        self._branch(0, server, server.begin(), states, ())

    def _answer(self, site: str, state: ClientState, message: Buffer) -> tuple[ClientState, bytes]:
        key = (site, id(state), bytes(message))
        if key not in self._known:
            session = MaskedSite.__new__(MaskedSite)
            session.state = state
            reply = bytes(session.handle(message))
            self._known[key] = (state, session.state, reply)  # the old state is kept so that its id is
        return self._known[key][1:]

    def _branch(
        self,
        depth: int,
        server: MaskedServer,
        requests: Mapping[str, Buffer],
        states: Mapping[str, ClientState],
        uploaded: tuple[str, ...],
    ) -> None:
        assert server.stage == STAGES[depth]
        assert set(requests) == set(states)
        answers = {site: self._answer(site, states[site], message) for site, message in requests.items()}
        threshold = self.consortium.specification().threshold
        for here, responders in _forks(server, {site: reply for site, (_, reply) in answers.items()}):
            after = {site: answers[site][0] for site in responders}
            if STAGES[depth] == "mask":
                uploaded = responders
            if len(responders) < threshold:
                with pytest.raises(RoundAborted):
                    here.advance()
                # Updates may be out from the moment on when they were asked for.
                assert here.spent == (depth >= STAGES.index("mask"))
                self._leaf("aborted", depth, len(responders))
                continue
            further = here.advance()
            if STAGES[depth] == "unmask":
                assert here.survivors == uploaded
                assert as_integers(here.sums) == self.consortium.expected(uploaded)
                self._leaf("summed", depth, len(responders))
            else:
                self._branch(depth + 1, here, further, after, uploaded)

    def _leaf(self, end: str, depth: int, alive: int) -> None:
        """Each site that is left falls silent at a later stage, or never: it makes no difference any more."""
        self.leaves[end] += 1
        self.stories += (len(STAGES) - depth) ** alive


def _forks(server: MaskedServer, replies: Mapping[str, bytes]) -> list[tuple[MaskedServer, tuple[str, ...]]]:
    """A copy of the server for every subset of replies, and that subset."""
    forks: list[tuple[MaskedServer, tuple[str, ...]]] = [(copy.deepcopy(server), ())]
    for site, reply in replies.items():
        for before, responders in list(forks):
            here = copy.deepcopy(before)
            here.receive(site, reply)
            forks.append((here, (*responders, site)))
    return forks


@pytest.mark.parametrize(
    ("sites", "threshold"),
    [(3, 3), (4, 3), (4, 4), pytest.param(5, 3, marks=pytest.mark.slow), (5, 5)],
    ids=str,
)
def test_every_dropout_set_at_every_stage(
    sites: int, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for frozen in (Message, Envelope, Roster):  # values need no copies; this is what makes the tree cheap
        monkeypatch.setattr(frozen, "__deepcopy__", lambda value, _memo: value, raising=False)
    consortium = Consortium(sites, runs=RUNS, threshold=threshold, limits=SiteLimits(colluders=0))
    tree = _Tree(consortium)
    tree.grow()
    assert tree.stories == (len(STAGES) + 1) ** sites  # each site: silent from one of the stages on, or never
    assert tree.leaves["summed"] >= 1
    # A sum needs `threshold` answers at each stage; who uploaded and vanished later is still in it.
    tolerated = sites - threshold
    ways = sum(
        (len(STAGES) - 1) ** gone * len(list(combinations(range(sites), gone)))
        for gone in range(tolerated + 1)
    )
    assert tree.leaves["summed"] == ways
