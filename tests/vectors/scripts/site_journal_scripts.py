"""What a site remembers between attempts, and what it makes of a journal that was put back."""

from __future__ import annotations

from typing import Any

from secfed.crypto.messages import Specification
from secfed.crypto.refusals import Refusal as R
from tests.vectors.scripts.site_builder import Scripts
from tests.vectors.scripts.world import ME


def journal_scripts(scripts: Scripts) -> None:
    """Sequences of attempts over one journal."""
    make, first = scripts.world.specification, scripts.honest.spec
    second = make(attempt=1)
    sharing, unmask = (scripts.honest.requests[stage][ME] for stage in ("mask", "unmask"))
    after: dict[str, Any] = {"round": 3, "exchange_index": 2}
    later: dict[str, Any] = {"round": 4, "exchange_index": 0}

    def again(name: str, spec: Specification, refusal: R, then: Specification, **party: Any) -> None:
        script = scripts.begin(name).send(spec).open("b", "second", **party)
        script.refuses(then, refusal).end()

    again("attempt_begun_twice", first, R.OLD_ATTEMPT, first)
    again("attempt_lower_than_begun", second, R.OLD_ATTEMPT, first)
    earlier = {"round": 2, "exchange_index": 7}
    again("round_lower_than_begun", first, R.OLD_ATTEMPT, make(attempt=9, **earlier), **earlier)
    before = {"round": 3, "exchange_index": 0}
    again("exchange_lower_than_begun", first, R.OLD_ATTEMPT, make(attempt=9, **before), **before)
    # A larger position is served, whatever the smaller parts of it are.
    script = (
        scripts.begin("positions_in_order").send(make(attempt=5)).open("b", "second").send(make(attempt=6))
    )
    script.open("c", "second", **after).send(make(**after)).open("d", "second", **later).send(
        make(**later)
    ).end()
    other = {"study": "another-study"}
    script = scripts.begin("another_study_has_its_own_positions").send(second)
    script.open("b", "second", **other).send(make(**other)).end()
    # What was only begun may be begun anew; what has left may not.
    script = scripts.begin("attempt_after_one_that_failed").until("mask").open("b", "second").send(second)
    script.to("a").refuses(sharing, R.OLD_ATTEMPT).end()
    script = scripts.begin("attempt_after_the_upload").until("consistency").open("b", "second")
    script.refuses(second, R.ALREADY_SPENT).end()
    script = scripts.begin("attempt_after_the_result").until("result").honest("result").open("b", "second")
    script.refuses(second, R.ALREADY_SPENT).open("c", "second").refuses(first, R.ALREADY_SPENT).end()
    script = (
        scripts.begin("spent_before_old")
        .until("consistency")
        .open("b", "second", **after)
        .send(make(**after))
    )
    script.open("c", "second").refuses(second, R.ALREADY_SPENT).end()
    script = (
        scripts.begin("shares_of_an_older_attempt")
        .until("unmask")
        .open("b", "second", **after)
        .send(make(**after))
    )
    script.to("a").refuses(unmask, R.OLD_ATTEMPT).end()
    # Two sessions of one attempt cannot both be: the second does not begin, so that nothing leaves twice.
    script = scripts.begin("a_refusal_leaves_the_other_session").until("mask").open("b", "second")
    script.refuses(first, R.OLD_ATTEMPT).to("a").honest("mask").end()
    for put_back in ("replace", "restore"):
        for stage, message in (("mask", sharing), ("unmask", unmask)):
            script = (
                scripts.begin(f"journal_{put_back}d_before_{stage}", file=True).journal("keep").until(stage)
            )
            script.journal(put_back).refuses(message, R.JOURNAL_ROLLED_BACK).end()
        script = (
            scripts.begin(f"journal_{put_back}d_before_an_attempt", file=True)
            .journal("keep")
            .until("consistency")
        )
        script.journal(put_back).open("b", "second").refuses(second, R.JOURNAL_ROLLED_BACK).end()
