"""Every message in every state, with its expected outcome in one table."""

from __future__ import annotations

import copy
from functools import cache

import pytest

from secfed.crypto.masked import client, states
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.masked.states import ClientState, Closed, Complained
from secfed.crypto.messages import ALL, FinalModel
from secfed.errors import MalformedMessage, ProtocolError, SecfedError, WrongState
from tests.journals import NoMemory
from tests.ring import Rereadable
from tests.simulator import STAGES, Consortium

SITE = "hospital-0"
MESSAGES = (*(message.__name__ for message in ALL), "garbage", "nothing")

# What a site does with a well-formed message that belongs to its attempt: the next state, or the number
# of the refusal that closes the session.
SITE_TABLE = """
                    Specification  Advert  Adverts          Sharing  Deliveries       Confirmation  SharingSet      Upload  Survivors    View  UnmaskRequest  Shares  Result    FinalModel  garbage  nothing
AwaitSpecification  AwaitAdverts   2       2                2        2                2             2               2       2            2     2              2       2         2           1        1
AwaitAdverts        2              2       AwaitDeliveries  2        2                2             2               2       2            2     2              2       2         2           1        1
AwaitDeliveries     2              2       2                2        AwaitSharingSet  2             2               2       2            2     2              2       2         2           1        1
Complained          2              2       2                2        2                2             25              2       2            2     2              2       2         2           1        1
AwaitSharingSet     2              2       2                2        2                2             AwaitSurvivors  2       2            2     2              2       2         2           1        1
AwaitSurvivors      2              2       2                2        2                2             2               2       AwaitUnmask  2     2              2       2         2           1        1
AwaitUnmask         2              2       2                2        2                2             2               2       2            2     AwaitResult    2       2         2           1        1
AwaitResult         2              2       2                2        2                2             2               2       2            2     34             2       Finished  2           1        1
Finished            2              2       2                2        2                2             2               2       2            2     2              2       2         2           1        1
Closed              2              2       2                2        2                2             2               2       2            2     2              2       2         2           1        1
"""  # noqa: E501

# What the server does with a reply of its attempt: takes it, or counts the site as dropped.
SERVER_TABLE = """
             Specification  Advert  Adverts  Sharing  Deliveries  Confirmation  SharingSet  Upload  Survivors  View   UnmaskRequest  Shares  Result  FinalModel  garbage  nothing
advertise    bad            taken   bad      bad      bad         bad           bad         bad     bad        bad    bad            bad     bad     bad         bad      bad
share        bad            bad     bad      taken    bad         bad           bad         bad     bad        bad    bad            bad     bad     bad         bad      bad
confirm      bad            bad     bad      bad      bad         taken         bad         bad     bad        bad    bad            bad     bad     bad         bad      bad
mask         bad            bad     bad      bad      bad         bad           bad         taken   bad        bad    bad            bad     bad     bad         bad      bad
consistency  bad            bad     bad      bad      bad         bad           bad         bad     bad        taken  bad            bad     bad     bad         bad      bad
unmask       bad            bad     bad      bad      bad         bad           bad         bad     bad        bad    bad            taken   bad     bad         bad      bad
done         over           over    over     over     over        over          over        over    over       over   over           over    over    over        over     over
"""  # noqa: E501


def _cells(table: str) -> list[tuple[str, str, str]]:
    header, *rows = [line.split() for line in table.strip().splitlines()]
    assert tuple(header) == MESSAGES
    assert all(len(row) == 1 + len(MESSAGES) for row in rows)
    return [(row[0], message, cell) for row in rows for message, cell in zip(header, row[1:], strict=True)]


@cache
def _attempt() -> tuple[dict[str, ClientState], dict[str, MaskedServer], dict[str, bytes]]:
    """One honest attempt with one drop: a site's and the server's states, and a message of each type."""
    consortium = Consortium()
    again = {"journal": NoMemory(), "source": Rereadable(consortium.updates[SITE])}
    attempt = consortium.attempt(silent={"hospital-4": "mask"}, contributions={SITE: again})
    servers, messages = {}, {"garbage": b"\xff" * 200, "nothing": b""}
    final = FinalModel("study", bytes(32), 1, 1, bytes(32), bytes(64), b"a model")  # belongs to no attempt
    messages["FinalModel"] = final.encode()
    for stage in STAGES:
        servers["done" if stage == "result" else stage] = copy.deepcopy(attempt.server)
        messages[_type(attempt.requests[SITE])] = bytes(attempt.requests[SITE])
        attempt.step()
    for _, site, reply in attempt.replies:
        if site == SITE and reply:
            messages[_type(reply)] = reply
    states = {
        type(state).__name__: state
        for state in [*attempt.states[SITE], Complained(("hospital-1",)), Closed()]
    }
    return states, servers, messages


def _type(message: object) -> str:
    number = bytes(message)[9]  # type: ignore[call-overload]
    return next(kind.__name__ for kind in ALL if number == kind.TYPE)


@pytest.mark.parametrize(("state", "message", "outcome"), _cells(SITE_TABLE))
def test_a_site(state: str, message: str, outcome: str) -> None:
    states, _, messages = _attempt()
    session = MaskedSite.__new__(MaskedSite)
    session.state = states[state]
    if not outcome.isdigit():
        session.handle(messages[message])
        assert type(session.state).__name__ == outcome
        return
    with pytest.raises(SecfedError, match=rf"^refusal {outcome}: "):
        session.handle(messages[message])
    assert type(session.state) is Closed
    assert session.result is None


@pytest.mark.parametrize(("state", "message", "outcome"), _cells(SERVER_TABLE))
def test_the_server(state: str, message: str, outcome: str) -> None:
    _, servers, messages = _attempt()
    server = copy.deepcopy(servers[state])
    if outcome == "taken":
        server.receive(SITE, messages[message])
        with pytest.raises(WrongState, match="answered twice"):
            server.receive(SITE, messages[message])
        return
    with pytest.raises(WrongState if outcome == "over" else MalformedMessage):
        server.receive(SITE, messages[message])
    assert server.stage == state
    if state == "done":
        return
    with pytest.raises(ProtocolError):  # it had its chance; it does not get a second one
        server.receive(SITE, messages[message])


def test_the_tables_are_complete() -> None:
    states, servers, messages = _attempt()
    assert sorted(message.TYPE for message in ALL) == [*range(11), 17, 18, 19]
    assert set(messages) == set(MESSAGES)
    assert set(states) == {state for state, _, _ in _cells(SITE_TABLE)} == set(_site_states())
    assert set(servers) == {state for state, _, _ in _cells(SERVER_TABLE)}


def _site_states() -> list[str]:
    """Every class of a site's modules that has the shape of a state, but those of a sparse graph."""
    kinds = [kind for module in (client, states) for kind in vars(module).values()]
    shaped = [kind.__name__ for kind in kinds if "accepts" in getattr(kind, "__dataclass_fields__", {})]
    sparse = {"AwaitAdvertDigests", "AwaitNeighbourDeliveries", "AwaitProvenUnmask"}  # test_sparse_states.py
    return [name for name in shaped if name not in sparse]
