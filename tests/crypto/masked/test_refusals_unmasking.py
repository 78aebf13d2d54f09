"""Refusals 27-36: what a malicious server may not do to learn more than one sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secfed.attack.harvest import Harvest
from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.messages import Deliveries, Result, SharingSet, Survivors, UnmaskRequest, View, view_parts
from secfed.crypto.refusals import Refusal
from tests.simulator import Attempt, Consortium, provokes

VICTIM, PEER, COLLUDER, DROPPED = "hospital-0", "hospital-1", "hospital-2", "hospital-4"


def at_unmask(consortium: Consortium | None = None, **options: Any) -> Attempt:
    """An attempt of five sites of which the last dropped before it uploaded, up to the unmasking."""
    consortium = Consortium() if consortium is None else consortium
    return consortium.attempt(silent={DROPPED: "mask"}, **options).run(until="unmask")


def request(attempt: Attempt, edit: Callable[[UnmaskRequest], UnmaskRequest]) -> bytes:
    """The unmask request as a malicious server sends it to the victim."""
    return edit(UnmaskRequest.decode(attempt.requests[VICTIM])).encode()


def signed_view(attempt: Attempt, signer: str, sharing: tuple[str, ...], survivors: tuple[str, ...]) -> View:
    """A consistency signature by a colluder, for whatever view the server likes."""
    adverts_digest = attempt.states[VICTIM][-1].before.adverts_digest  # type: ignore[attr-defined]
    parts = view_parts(attempt.spec.digest, adverts_digest, sharing, survivors)
    return View(signer, attempt.consortium.identities[signer].sign(labels.SIGN_VIEW, *parts))


@provokes(Refusal.SURVIVORS_OUTSIDE)
@pytest.mark.parametrize("survivors", [(0, 1, 2, 3, 4), (1, 0, 2, 3), (0, 1, 2, 2), (0, 1, 2, 9)], ids=str)
def test_survivors_that_are_no_subset_of_the_sharing_set(survivors: tuple[int, ...]) -> None:
    """With one that shared nothing, out of order, with one counted twice, with a stranger."""
    attempt = Consortium().attempt(silent={DROPPED: "share"}).run(until="consistency")
    message = Survivors(tuple(f"hospital-{number}" for number in survivors)).encode()
    attempt.refused(VICTIM, message, Refusal.SURVIVORS_OUTSIDE)


@provokes(Refusal.SURVIVORS_WITHOUT_SELF)
def test_a_site_that_uploaded_is_told_that_it_dropped() -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="consistency")
    attempt.refused(VICTIM, Survivors(consortium.names[1:]).encode(), Refusal.SURVIVORS_WITHOUT_SELF)


def test_survivors_among_whom_too_few_add_more_than_zeros() -> None:
    """Dropouts, real or claimed, would leave the values of two hospitals among zeros."""
    consortium = Consortium(limits=SiteLimits(colluders=1))
    parts = ((frozenset(consortium.names[:3]), 3),)
    given = {name: {"contributors": parts} for name in consortium.names}
    attempt = consortium.attempt(contributions=given).run(until="consistency")
    message = Survivors(tuple(name for name in consortium.names if name != consortium.names[2])).encode()
    attempt.refused(VICTIM, message, Refusal.TOO_FEW_CONTRIBUTORS)


@provokes(Refusal.TOO_FEW_SURVIVORS)
@pytest.mark.parametrize("count", [1, 3])
def test_too_few_survivors(count: int) -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="consistency")
    message = Survivors(consortium.names[:count]).encode()
    attempt.refused(VICTIM, message, Refusal.TOO_FEW_SURVIVORS)


@provokes(Refusal.VIEW_SIGNATURE)
def test_different_survivor_sets_shown_to_different_sites() -> None:
    """Two groups that confirm different survivors cannot lend each other their signatures."""
    consortium = Consortium(6)
    names = consortium.names

    def down(stage: str, site: str, message: bytes) -> bytes:
        if stage == "consistency" and site in names[:3]:
            return Survivors(names[:5]).encode()  # they are told that the last site dropped
        return message

    attempt = consortium.attempt(down=down).run(until="consistency")
    views = {}
    for site in names:
        reply = attempt.deliver(site, down("consistency", site, attempt.requests[site]))  # type: ignore[arg-type]
        views[site] = View.decode(reply)
    everyone = tuple(views[site] for site in names)
    attempt.refused(names[0], UnmaskRequest((names[5],), everyone[:5]).encode(), Refusal.VIEW_SIGNATURE)
    attempt.refused(names[5], UnmaskRequest((), everyone).encode(), Refusal.VIEW_SIGNATURE)
    assert not Harvest.of(attempt).mask_secret


def test_different_sharing_sets_shown_to_different_sites() -> None:
    """One envelope is withheld from the victim, so its masks do not cover the peer it does not know of."""
    consortium = Consortium(6)
    names = consortium.names
    attempt = consortium.attempt().run(until="confirm")
    envelopes = Deliveries.decode(attempt.requests[VICTIM]).envelopes
    attempt.deliver(VICTIM, Deliveries(envelopes[:-1]).encode())
    attempt.deliver(VICTIM, SharingSet(names[:-1]).encode())
    for site in names[1:]:
        attempt.deliver(site, attempt.requests[site])
        attempt.deliver(site, SharingSet(names).encode())
    views = {}
    for site in names:
        survivors = names[:5] if site in (VICTIM, names[1], names[2]) else names
        views[site] = View.decode(attempt.deliver(site, Survivors(survivors).encode()))
    message = UnmaskRequest((), tuple(views[site] for site in names[:5]))
    attempt.refused(VICTIM, message.encode(), Refusal.VIEW_SIGNATURE)


@pytest.mark.parametrize("change", [{"exchange_index": 1}, {"round": 2}], ids=["exchange", "round"])
def test_views_replayed_from_an_earlier_exchange_or_round(change: dict[str, int]) -> None:
    consortium = Consortium()
    earlier = UnmaskRequest.decode(at_unmask(consortium).requests[VICTIM]).views
    attempt = at_unmask(consortium, spec=consortium.specification(**change))
    message = request(attempt, lambda honest: replace(honest, views=earlier))
    attempt.refused(VICTIM, message, Refusal.VIEW_SIGNATURE)


def test_a_view_forged_with_a_colluders_key() -> None:
    attempt = at_unmask()

    def edit(honest: UnmaskRequest) -> UnmaskRequest:
        stolen = replace(honest.views[2], site=PEER)
        return replace(honest, views=(honest.views[0], stolen, *honest.views[2:]))

    attempt.refused(VICTIM, request(attempt, edit), Refusal.VIEW_SIGNATURE)


@provokes(Refusal.VIEW_OUTSIDER)
@pytest.mark.parametrize("case", ["one signature four times", "a dropped colluder", "reordered"])
def test_signatures_that_are_not_those_of_distinct_survivors(case: str) -> None:
    attempt = at_unmask()
    survivors = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")

    def edit(honest: UnmaskRequest) -> UnmaskRequest:
        colluder = signed_view(attempt, DROPPED, attempt.consortium.names, survivors)
        views = {
            "one signature four times": (honest.views[2],) * 4,
            "a dropped colluder": (*honest.views[:3], colluder),
            "reordered": honest.views[::-1],
        }[case]
        return replace(honest, views=views)

    attempt.refused(VICTIM, request(attempt, edit), Refusal.VIEW_OUTSIDER)


@provokes(Refusal.TOO_FEW_VIEWS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_fewer_signatures_than_the_threshold(count: int) -> None:
    attempt = at_unmask()
    message = request(attempt, lambda honest: replace(honest, views=honest.views[:count]))
    attempt.refused(VICTIM, message, Refusal.TOO_FEW_VIEWS)


@provokes(Refusal.DROPPED_MISMATCH)
@pytest.mark.parametrize("dropped", [(3, 4), (0, 4), (1,), (), (4, 4), (4, 9), (0, 1, 2, 3, 4)], ids=str)
def test_a_peer_both_survivor_and_dropped(dropped: tuple[int, ...]) -> None:
    """Both kinds of shares of one site would unmask its update alone. Only the fourth has dropped."""
    attempt, names = at_unmask(), tuple(f"hospital-{number}" for number in dropped)
    message = request(attempt, lambda honest: replace(honest, dropped=names))
    attempt.refused(VICTIM, message, Refusal.DROPPED_MISMATCH)
    assert not Harvest.of(attempt).mask_secret


@provokes(Refusal.SECOND_UNMASK)
@pytest.mark.parametrize("dropped", [(DROPPED,), ("hospital-3", DROPPED)], ids=["the same", "another"])
def test_a_second_unmasking_of_one_attempt(dropped: tuple[str, ...]) -> None:
    attempt = at_unmask()
    message = request(attempt, lambda honest: replace(honest, dropped=dropped))
    attempt.deliver(VICTIM, attempt.requests[VICTIM])
    attempt.refused(VICTIM, message, Refusal.SECOND_UNMASK)
    harvest = Harvest.of(attempt)
    for shares in (harvest.self_mask, harvest.mask_secret):
        assert all(len(of_site) == 1 for of_site in shares.values())


@provokes(Refusal.RESULT_SIGNATURE)
@pytest.mark.parametrize("signer", ["hospital-1", "stranger"])
def test_a_result_signed_by_someone_else(signer: str) -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="result")
    result = attempt.result()
    forged = consortium.person(signer).sign(labels.SIGN_RESULT, result.body())
    attempt.refused(VICTIM, replace(result, signature=forged).encode(), Refusal.RESULT_SIGNATURE)


def test_a_result_changed_after_signing() -> None:
    attempt = Consortium().attempt().run(until="result")
    message = attempt.pending(VICTIM, Result, totals_digest=bytes(32))
    attempt.refused(VICTIM, message, Refusal.RESULT_SIGNATURE)


@provokes(Refusal.RESULT_MISMATCH)
@pytest.mark.parametrize(
    "change",
    [{"spec_digest": bytes(32)}, {"survivors": ("hospital-0", "hospital-1", "hospital-2", "hospital-3")}],
    ids=["another attempt", "other survivors"],
)
def test_a_result_for_something_else(change: dict[str, Any]) -> None:
    attempt = Consortium().attempt().run(until="result")
    attempt.refused(VICTIM, attempt.result(**change).encode(), Refusal.RESULT_MISMATCH)
