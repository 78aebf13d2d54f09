"""A hospital that lies to stop an exchange, or to have another one blamed for it.

Every lie is told in an exchange of its own. It brings something if there is no sum, or a wrong one, if it
costs more than the liar and one other hospital, or if somebody honest is named as at fault by itself. (Who
says that another sealed garbage leaves two that may have lied; such a pair is named as a pair.)
"""

from __future__ import annotations

from typing import Final

from secfed.attack.attack import Attack, AttackSetting, Impossible
from secfed.attack.evidence import Count
from secfed.attack.liars import Liar, LyingExchange
from secfed.errors import SecfedError

_LEAST: Final = 5  # a dispute leaves out two; three are needed for a sum
_MOST: Final = 8  # a lie is told to single hospitals, however many there are


def _framing(setting: AttackSetting) -> Count:
    if setting.hospitals < _LEAST:
        raise Impossible
    hospitals = min(setting.hospitals, _MOST)
    first, second, *_, last = LyingExchange(hospitals, {}).names
    lies = {
        "unreadable envelopes": Liar(bad_seeds=(first, second)),
        "an envelope that does not hold what it states": Liar(bad_shares=(first,)),
        "garbage, and then silence": Liar(bad_seeds=(first,), silent="confirm"),
        "false complaints": Liar(accuses=(first,)),
        "one key for two purposes": Liar(twin_keys=True),
        "another hospital's key": Liar(copies=first),
        "false shares": Liar(false_shares=(first, second)),
    }
    exchanges = [LyingExchange(hospitals, {last: lie}, seed=setting.seed) for lie in lies.values()]
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


FRAMING: Final = Attack(
    "framing",
    "masked",
    "one hospital",
    "lies about keys, envelopes and shares, so that there is no sum or another hospital is blamed",
    _framing,
    defence="left out",
)
