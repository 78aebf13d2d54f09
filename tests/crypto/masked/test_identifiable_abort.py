"""A hospital that does not follow the protocol costs little, is found, and nobody else is blamed."""

from __future__ import annotations

import pytest

from secfed.errors import RoundAborted
from tests.liars import Liar, LyingExchange

BAD = "hospital-2"


def _unspent(exchange: LyingExchange) -> bool:
    return not any(exchange.journal(name).left for name in exchange.names)


class TestEnvelopes:
    def test_unreadable_ones_for_two_of_five_cost_one_attempt_and_their_sender(self) -> None:
        exchange = LyingExchange(5, {BAD: Liar(bad_seeds=("hospital-0", "hospital-4"))})
        summed = exchange.run()
        assert summed.result.survivors == exchange.honest
        assert summed.faults == (f"{BAD} does not follow the protocol",)
        exchange.assert_right(summed)
        assert exchange.attempts == 2
        assert all(len(exchange.journal(name).left) == 1 for name in exchange.honest)

    @pytest.mark.parametrize("victim", ["hospital-0", "hospital-4"])
    def test_one_that_does_not_hold_what_it_states_separates_two_sites(self, victim: str) -> None:
        """Which of the two is at fault nobody can tell, and nobody is said to be."""
        exchange = LyingExchange(5, {BAD: Liar(bad_shares=(victim,))})
        summed = exchange.run()
        assert set(summed.result.survivors) == set(exchange.honest) - {victim}
        assert summed.faults == (f"one of {victim} and {BAD} does not follow the protocol",)
        exchange.assert_right(summed)

    def test_whoever_seals_garbage_and_falls_silent_takes_nobody_along(self) -> None:
        exchange = LyingExchange(5, {BAD: Liar(bad_seeds=("hospital-0",), silent="confirm")})
        assert exchange.run(max_attempts=1).result.survivors == exchange.honest

    def test_nobody_uploads_in_an_attempt_with_a_complaint(self) -> None:
        exchange = LyingExchange(5, {BAD: Liar(bad_seeds=("hospital-0",))})
        exchange.run()
        assert [stage for stage, attempt, _ in exchange.asked if attempt == 0] == [
            "advertise",
            "share",
            "confirm",
        ]

    def test_three_sites_that_cannot_do_without_anybody_give_up_unspent(self) -> None:
        exchange = LyingExchange(3, {BAD: Liar(bad_seeds=("hospital-0",))})
        with pytest.raises(RoundAborted, match=f"one of hospital-0 and {BAD} does not follow") as caught:
            exchange.run()
        assert "hospital-1" not in caught.value.message
        assert _unspent(exchange)


class TestComplaints:
    def test_a_false_one_costs_the_liar_and_one_other(self) -> None:
        exchange = LyingExchange(6, {BAD: Liar(accuses=("hospital-5",))})
        summed = exchange.run()
        assert set(summed.result.survivors) == set(exchange.honest) - {"hospital-5"}
        exchange.assert_right(summed)

    def test_one_about_more_sites_than_can_lie_tells_who_lies(self) -> None:
        exchange = LyingExchange(5, {BAD: Liar(accuses=("hospital-0", "hospital-1", "hospital-3"))})
        summed = exchange.run()
        assert summed.result.survivors == exchange.honest
        assert summed.faults == (f"{BAD} does not follow the protocol",)

    def test_liars_that_take_turns_do_not_use_up_the_attempts(self) -> None:
        """Three of twelve, each of which keeps its complaint until the others are gone."""
        liars = {f"hospital-0{at}": Liar(since=at, accuses=(f"hospital-0{at + 5}",)) for at in range(3)}
        exchange = LyingExchange(12, liars)
        summed = exchange.run(max_attempts=1)
        exchange.assert_right(summed)
        assert exchange.attempts == 4
        assert summed.result.survivors == tuple(
            name for name in exchange.honest if name not in ("hospital-05", "hospital-06", "hospital-07")
        )


class TestKeys:
    @pytest.mark.parametrize("first", [BAD, "hospital-0"])
    def test_one_key_for_two_purposes_drops_its_site_only(self, first: str) -> None:
        order = (first, *(f"hospital-{index}" for index in range(5) if f"hospital-{index}" != first))
        exchange = LyingExchange(5, {BAD: Liar(twin_keys=True)}, order=order)
        summed = exchange.run()
        assert summed.result.survivors == exchange.honest
        assert summed.faults == (f"{BAD}: site '{BAD}' advertised one key for two purposes",)
        assert exchange.attempts == 1

    def test_a_copy_of_another_sites_key_drops_the_one_that_copied(self) -> None:
        exchange = LyingExchange(5, {BAD: Liar(copies="hospital-0")})
        summed = exchange.run()
        assert summed.result.survivors == exchange.honest
        (fault,) = summed.faults
        assert fault.startswith(f"{BAD}: site '{BAD}' advertised a key or commitment that site 'hospital-0'")


class TestUnmasking:
    @pytest.mark.parametrize("about", [("hospital-0",), ("hospital-0", "hospital-1", "hospital-4")])
    def test_a_false_share_is_its_senders_fault_and_changes_nothing(self, about: tuple[str, ...]) -> None:
        exchange = LyingExchange(5, {BAD: Liar(false_shares=about)})
        summed = exchange.run()
        assert summed.result.survivors == exchange.names  # what it uploaded counts
        exchange.assert_right(summed)
        (fault,) = summed.faults
        assert fault == f"{BAD}: site '{BAD}' returned another share than it was dealt and confirmed"

    def test_false_shares_that_leave_too_few_are_named(self) -> None:
        liars = {"hospital-1": Liar(false_shares=("hospital-0",)), BAD: Liar(silent="unmask")}
        exchange = LyingExchange(5, liars)
        with pytest.raises(RoundAborted, match="only 3 of 5 sites returned shares") as caught:
            exchange.run()
        assert "'hospital-1' returned another share" in caught.value.message
        assert "hospital-0" not in caught.value.message

    def test_a_secret_that_its_owner_shared_wrongly_is_its_owners_fault(self) -> None:
        exchange = LyingExchange(5, {BAD: Liar(false_commitment=True)})
        with pytest.raises(RoundAborted, match=f"site '{BAD}' dealt or returned shares") as caught:
            exchange.run()
        assert not any(name in caught.value.message for name in exchange.honest)

    def test_a_bad_seed_that_its_recipient_hid_is_its_senders_fault(self) -> None:
        """Two sites together: one seals nothing, the other says that all is well, and drops."""
        liars = {"hospital-1": Liar(bad_seeds=(BAD,)), BAD: Liar(hides=True, silent="mask")}
        exchange = LyingExchange(7, liars)
        with pytest.raises(RoundAborted, match=f"'hospital-1' sealed no pair seed .* '{BAD}'"):
            exchange.run()


class TestRange:
    """A masked vector shows nothing, its range included: what can be checked is the sum."""

    def test_a_total_beyond_what_its_survivors_can_contribute_is_discarded(self) -> None:
        """Not the roster's reach: whoever is not in the sum leaves no room for others."""
        exchange = LyingExchange(6, {"hospital-5": Liar(silent="mask")})
        exchange.adds(BAD, 5.5)  # five sites of bound 1 are in the sum
        with pytest.raises(RoundAborted, match="exceeds what its 5 sites can contribute"):
            exchange.run()

    def test_within_it_one_site_has_the_room_of_all(self) -> None:
        """The factor that docs/protocol.md states."""
        exchange = LyingExchange(5, {})
        exchange.adds(BAD, 4.5)
        total = exchange.run().totals["x"]
        assert float(total.min()) > 4.0
