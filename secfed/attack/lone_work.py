"""Sums that build on earlier work of their round: the aggregator chooses who did that work, and from what.

A hospital that has nothing to build on would add zeros, and one that built on another broadcast would add
what the aggregator chose. Either way one hospital's summand would stand alone in an honest sum of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from secfed.algorithms.data.multiview.base import ViewRecords, ViewSites
from secfed.algorithms.framework.links import LINK
from secfed.attack.attack import AttackSetting, attack, attacks_of, numbers
from secfed.attack.evidence import Count
from secfed.attack.silence import MOST_HOSPITALS
from secfed.attack.wards import names
from secfed.attack.watched import Hospitals
from secfed.crypto.refusals import Refusal
from secfed.errors import RoundAborted
from secfed.server.round import sum_securely, train
from secfed.study.study import Study
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, State, state_digest

_EARLIER, _LATER = "train-full", "train-view-1"  # the second teaches a view what the first learned
_RECORDS: Final = 12
_SIZES: Final = (3, 2)
_STUDY: Final = """
study = {{ name = "attacked", rounds = 1, seed = 3 }}
algorithm = {{ name = "fmcsc", pretrain_rounds = 0, local_epochs = 1, learning_rate = 1e-3 }}
model = {{ name = "multiview", hidden = [4], features = 3, head_hidden = 4 }}
data = {{ name = "secfed.attack.lone_work:two_views", hospitals = {hospitals} }}
protection = {{ name = "masked" }}
"""


def two_views(hospitals: int) -> ViewSites:
    """A few random records of each hospital, and all of them have both views."""
    generator = np.random.default_rng(5)
    shape = hospitals * _RECORDS
    views = tuple(generator.normal(size=(shape, size)).astype(np.float32) for size in _SIZES)
    records = ViewRecords(views, np.arange(shape) % 2)
    at = {name: number * _RECORDS + np.arange(_RECORDS) for number, name in enumerate(names(hospitals))}
    return ViewSites(
        lambda site, _: records.take(at[site]), view_of=dict.fromkeys(at), view_sizes=_SIZES, classes=2
    )


class _Aggregator:
    """It asks whom it likes, and names what it likes."""

    def __init__(self, hospitals: Hospitals) -> None:
        self.hospitals, self._federation = hospitals, hospitals.federation
        self._server, self._plan = hospitals.algorithm.server(), list(hospitals.algorithm.exchanges(1))
        self.refusals = self._federation.refused

    def broadcast(self, name: str) -> State:
        """The honest one of an exchange; it names nothing that it builds on."""
        return dict(self._server.broadcast(1, self._exchange(name)))

    def ask(self, name: str, sites: Sequence[str], state: State) -> list[str]:
        """Those of the sites that took this task."""
        exchange, rules = self._exchange(name), self._federation.rules
        at = self._plan.index(exchange)
        return train(1, at, exchange, encode_state(state), sites, rules, self._federation.ask)

    def gets_the_sum(self, ready: Sequence[str], state: State) -> bool:
        """Whether these sites add up the later exchange."""
        exchange, rules = self._exchange(_LATER), self._federation.rules
        try:
            at = self._plan.index(exchange)
            sum_securely(1, at, exchange, encode_state(state), ready, rules, self._federation.ask)
        except RoundAborted:
            return False
        return True

    def _exchange(self, name: str) -> Exchange:
        return next(one for one in self._plan if one.name == name)


def _naming(state: State, built_on: str, sent: State) -> State:
    """A broadcast that says it builds on another."""
    digest = torch.frombuffer(bytearray(state_digest(encode_state(sent))), dtype=torch.uint8)
    return {**state, LINK + built_on: digest}


def _play(setting: AttackSetting, earlier: Callable[[_Aggregator, str, State], None]) -> Count:
    count = min(setting.hospitals, MOST_HOSPITALS)
    with Hospitals(Study.parse(_STUDY.format(hospitals=count))) as hospitals:
        aggregator = _Aggregator(hospitals)
        victim, sent = hospitals.names[0], aggregator.broadcast(_EARLIER)
        aggregator.ask(_EARLIER, [victim], sent)
        earlier(aggregator, victim, sent)
        later = _naming(aggregator.broadcast(_LATER), _EARLIER, sent)
        ready = aggregator.ask(_LATER, hospitals.names, later)
        alone = victim in ready and aggregator.gets_the_sum(ready, later)
        return Count(float(alone), 1, "sums of one hospital's work", numbers(aggregator.refusals))


@attack(
    "lone-work",
    "asks one hospital alone for the work that a later sum of all builds on",
    refusals=(Refusal.BUILDS_ON,),
)
def _lone(setting: AttackSetting) -> Count:
    return _play(setting, lambda _aggregator, _victim, _sent: None)


@attack(
    "split-work",
    "sends all others a model of zeros for the work that a later sum of all builds on",
    refusals=(Refusal.BUILDS_ON,),
)
def _split(setting: AttackSetting) -> Count:
    def zeros(aggregator: _Aggregator, victim: str, sent: State) -> None:
        others = [name for name in aggregator.hospitals.names if name != victim]
        aggregator.ask(_EARLIER, others, {name: torch.zeros_like(value) for name, value in sent.items()})

    return _play(setting, zeros)


LONE_WORK: Final = attacks_of(vars())
