"""One attempt, one use: what may be tried again, what may not, and the thresholds that make it hold."""

from __future__ import annotations

import math

import pytest

from secfed.attack.harvest import Harvest
from secfed.crypto import thresholds
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.messages import UnmaskRequest, Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import RoundAborted
from tests.journals import NoMemory
from tests.ring import as_integers
from tests.simulator import Consortium


@pytest.mark.parametrize("stage", ["advertise", "share"])
def test_an_attempt_from_which_no_update_left_may_be_repeated(stage: str) -> None:
    """Two sites are away for a while: the first attempt fails, the second one has all five."""
    consortium = Consortium()
    first = consortium.attempt(silent={"hospital-1": stage, "hospital-3": stage})
    with pytest.raises(RoundAborted, match="nothing was revealed"):
        first.run()
    assert not first.server.spent
    assert not Harvest.of(first).self_mask
    second = consortium.attempt(consortium.specification(attempt=1)).run()
    assert as_integers(second.server.sums) == consortium.expected(consortium.names)


@pytest.mark.parametrize("stage", ["mask", "consistency", "unmask"])
def test_an_attempt_in_which_updates_left_may_not(stage: str) -> None:
    consortium = Consortium()
    first = consortium.attempt(silent={"hospital-1": stage, "hospital-3": stage})
    with pytest.raises(RoundAborted):
        first.run()
    assert first.server.spent
    spec = consortium.specification(attempt=1)
    second = consortium.attempt(spec)
    for site in ("hospital-0", "hospital-2", "hospital-4"):
        second.refused(site, spec.encode(), Refusal.ALREADY_SPENT)


def test_the_next_exchange_and_the_next_round_go_on() -> None:
    consortium = Consortium()
    for change in (
        {},
        {"exchange_index": 1, "exchange": "losses"},
        {"round": 2},
        {"round": 2, "exchange_index": 1},
    ):
        attempt = consortium.attempt(consortium.specification(**change)).run()
        assert as_integers(attempt.server.sums) == consortium.expected(consortium.names)


def test_two_rounds_with_equal_updates_show_nothing_of_that() -> None:
    """Same integers, fresh masks: the difference of two uploads is as random as each of them."""
    consortium = Consortium(3)
    first = consortium.attempt().run(until="consistency")
    second = consortium.attempt(consortium.specification(round=2)).run(until="consistency")
    for site in consortium.names:
        uploads = [bytes(Upload.decode(bytes(a.uploaded(site).encode())).vector) for a in (first, second)]
        assert uploads[0] != uploads[1]


def _first_unmasking(answering: int) -> Consortium:
    """Ten sites are summed; the server asks only as many for shares as it needs."""
    consortium = Consortium(10)
    attempt = consortium.attempt().run(until="unmask")
    for site in consortium.names[:answering]:
        request = attempt.requests[site]
        assert UnmaskRequest.decode(request).dropped == ()
        attempt.server.receive(site, attempt.deliver(site, request))
    attempt.server.advance()
    assert as_integers(attempt.server.sums) == consortium.expected(consortium.names)
    return consortium


def test_survivors_that_were_not_asked_for_shares_are_too_few_for_a_second_sum() -> None:
    """The server holds back three unmask requests, to sum those three updates once more by themselves."""
    consortium = _first_unmasking(7)
    assert consortium.specification().threshold == 7
    rest = consortium.names[7:]
    spec = consortium.specification(attempt=1, cohort=rest, threshold=3)
    second = consortium.attempt(spec)
    for site in rest:
        second.refused(site, spec.encode(), Refusal.THRESHOLD_TOO_LOW)


def test_with_default_limits_that_holds_for_every_consortium() -> None:
    """Whoever did not answer an unmasking: too few to be a cohort that anybody accepts."""
    for sites in range(3, 101):
        colluders, threshold = thresholds.default_colluders(sites), thresholds.default_threshold(sites)
        left = sites - threshold
        assert not any(thresholds.is_safe(t, n, colluders) for n in range(left + 1) for t in range(n + 1))


def test_survivors_that_were_not_asked_for_shares_cannot_be_summed_again_with_colluders() -> None:
    """Colluders forget that they uploaded; the honest sites that were held back have not."""
    consortium = _first_unmasking(7)  # three colluders and four honest sites answered
    colluders, rest = consortium.names[:3], consortium.names[7:]
    for site in colluders:
        consortium.journals[site].journal = NoMemory()
    spec = consortium.specification(attempt=1, cohort=(*colluders, *rest), threshold=5)
    second = consortium.attempt(spec)
    for site in rest:
        second.refused(site, spec.encode(), Refusal.ALREADY_SPENT)


# Thresholds.


def test_default_thresholds_are_those_of_the_paper_and_safe() -> None:
    for sites in range(3, 101):
        threshold, colluders = thresholds.default_threshold(sites), thresholds.default_colluders(sites)
        assert colluders == math.ceil(sites / 3) - 1
        assert threshold == max(3, math.floor(2 * sites / 3) + 1)
        assert thresholds.is_safe(threshold, sites, colluders)
        assert thresholds.default_threshold(sites, colluders) == threshold


@pytest.mark.parametrize("sites", range(3, 31))
def test_a_threshold_for_given_colluders_is_safe_whenever_one_is(sites: int) -> None:
    for colluders in range(sites):
        some = [t for t in range(sites + 1) if thresholds.is_safe(t, sites, colluders)]
        chosen = thresholds.default_threshold(sites, colluders)
        assert (chosen in some) == bool(some)
        assert bool(some) == (colluders <= sites - 2)


@pytest.mark.parametrize("sites", range(3, 13))
def test_a_safe_threshold_never_lets_both_secrets_of_a_site_be_rebuilt(sites: int) -> None:
    """Honest sites give one share per peer, colluders both: count what the server can have at most."""
    for colluders in range(sites + 1):
        for threshold in range(sites + 2):
            honest = sites - colluders
            both = any(
                of_self + colluders >= threshold and honest - of_self + colluders >= threshold
                for of_self in range(honest + 1)
            )
            alone = threshold - colluders < 2  # a sum that the colluders can reduce to one honest site
            safe = thresholds.is_safe(threshold, sites, colluders)
            assert safe == (not both and not alone and 3 <= threshold <= sites)


def test_a_site_may_tolerate_more_than_the_default() -> None:
    consortium = Consortium(6, limits=SiteLimits(colluders=3), threshold=5)
    assert not consortium.attempt().run().refusals
    spec = consortium.specification(threshold=4, round=2)
    consortium.attempt(spec).refused("hospital-0", spec.encode(), Refusal.THRESHOLD_TOO_LOW)
