"""Any tolerated liars: the right sum over the honest sites that are left, or none and nothing spent."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from secfed.attack.scene import STAGES
from secfed.crypto import thresholds
from secfed.errors import RoundAborted
from tests.liars import Liar, LyingExchange


@st.composite
def exchanges(draw: st.DrawFn) -> LyingExchange:
    """A consortium with at most c liars, each with a habit or two."""
    sites = draw(st.sampled_from([4, 4, 5, 5, 6, 7, 7, 8, 9, 10, 12]))
    names = draw(st.permutations([f"hospital-{index:0{len(str(sites - 1))}d}" for index in range(sites)]))
    count = draw(st.integers(1, thresholds.default_colluders(sites)))
    chosen, honest = names[:count], names[count:]
    victims = st.lists(st.sampled_from(honest), min_size=1, unique=True).map(tuple)
    habits = {
        "silent": st.sampled_from(STAGES),
        "twin_keys": st.just(True),
        "copies": st.sampled_from(chosen),
        "bad_seeds": victims,
        "bad_shares": victims,
        "accuses": victims,
        "false_shares": victims,
    }
    liars = {}
    for name in chosen:
        has = draw(st.lists(st.sampled_from(sorted(habits)), min_size=1, max_size=2, unique=True))
        liars[name] = Liar(since=draw(st.integers(0, 2)), **{habit: draw(habits[habit]) for habit in has})
    return LyingExchange(sites, liars, order=tuple(draw(st.permutations(names))))


@settings(max_examples=6)
@given(exchange=exchanges())
def test_liars_stop_no_sum_that_could_be_had_and_nobody_honest_is_blamed(exchange: LyingExchange) -> None:
    faults: tuple[str, ...]
    try:
        summed = exchange.run()
    except RoundAborted as error:
        event("given up")
        # Every liar costs itself and one more. Only where that leaves too few for any sum there is none.
        least = max(3, exchange.colluders + 2)
        assert len(exchange.names) - 2 * len(exchange.liars) < least
        assert not any(exchange.journal(name).left for name in exchange.honest)  # no update is spent
        _, _, named = error.message.partition("nothing was revealed.")
        faults = tuple(named.split(". ")) if named else ()
    else:
        event(f"summed in attempt {summed.spec.attempt}")
        exchange.assert_right(summed)
        lost = set(exchange.honest) - set(summed.result.survivors)
        assert len(lost) <= len(exchange.liars)
        assert all(len(exchange.journal(name).left) == (name not in lost) for name in exchange.honest)
        faults = summed.faults
    for fault in faults:
        named_sites = {name for name in exchange.names if name in fault}
        together = fault.startswith(("one of ", " one of ")) or "advertised before" in fault
        assert named_sites & set(exchange.liars) if together else named_sites <= set(exchange.liars), fault
