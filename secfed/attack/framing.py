"""A hospital that lies to stop an exchange, or to have another one blamed for it.

Every lie is told in an exchange of its own. It brings something if there is no sum, or a wrong one, if it
costs more than the liar and one other hospital, or if somebody honest is named as at fault by itself. (A
complaint about garbage leaves two that may have lied; such a pair is named as a pair.)
"""

from __future__ import annotations

from typing import Final

from secfed.attack.attack import Attack, AttackSetting, attack
from secfed.attack.evidence import Count
from secfed.attack.liars import Liar, LyingExchange
from secfed.errors import SecfedError

_LEAST: Final = 5  # a dispute leaves out two; three are needed for a sum
_MOST: Final = 8  # a lie is told to single hospitals, however many there are


@attack(
    "framing",
    "lies about keys, envelopes and shares, so that there is no sum or another hospital is blamed",
    who="one hospital",
    defence="left out",
)
def _framing(setting: AttackSetting) -> Count:
    hospitals = setting.between(_LEAST, _MOST)
    first, second, *_, last = LyingExchange(hospitals, {}).names
    lies = (
        Liar(bad_seeds=(first, second)),
        Liar(bad_shares=(first,)),
        Liar(bad_seeds=(first,), silent="confirm"),
        Liar(accuses=(first,)),
        Liar(twin_keys=True),
        Liar(copies=first),
        Liar(false_shares=(first, second)),
    )
    exchanges = [LyingExchange(hospitals, {last: lie}, seed=setting.seed) for lie in lies]
    return Count(sum(map(_brings_something, exchanges)), len(lies), "lies")


def _brings_something(exchange: LyingExchange) -> bool:
    try:
        summed = exchange.run()
    except SecfedError:  # given up, or an honest hospital refuses
        return True
    lost = set(exchange.honest) - set(summed.result.survivors)
    framed = any(_names_honest_only(exchange, fault) for fault in summed.faults)
    return framed or len(lost) > len(exchange.liars) or not exchange.is_right(summed)


def _names_honest_only(exchange: LyingExchange, fault: str) -> bool:
    """Whether a sentence of the transcript is about hospitals that did not lie."""
    named = {name for name in exchange.names if name in fault}
    return bool(named) and not named & set(exchange.liars)


FRAMING: Final[Attack] = _framing
