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
from secfed.attack.wards import names, study
from secfed.attack.watched import Hospitals
from secfed.crypto.refusals import Refusal
from secfed.errors import RoundAborted
from secfed.server.round import sum_securely, train
from secfed.study.study import Study
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, State, Totals, state_digest

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
        self.names, self._algorithm = hospitals.names, hospitals.algorithm
        self._federation = hospitals.federation
        self.server = self._algorithm.server()
        self.refusals = self._federation.refused

    def broadcast(self, number: int, name: str) -> State:
        """The honest one of an exchange; it names nothing that it builds on."""
        return dict(self.server.broadcast(number, self._at(number, name)[1]))

    def ask(self, number: int, name: str, sites: Sequence[str], state: State) -> list[str]:
        """Those of the sites that took this task."""
        (at, exchange), federation = self._at(number, name), self._federation
        return train(number, at, exchange, encode_state(state), sites, federation.rules, federation.ask)

    def sum(self, number: int, name: str, state: State, sites: Sequence[str]) -> Totals | None:
        """What these sites add up to; None if they are too few."""
        (at, exchange), federation = self._at(number, name), self._federation
        ready, encoded = self.ask(number, name, sites, state), encode_state(state)
        try:
            summed = sum_securely(number, at, exchange, encoded, ready, federation.rules, federation.ask)
        except RoundAborted:
            return None
        self.server.absorb(number, exchange, summed.totals)
        return summed.totals

    def _at(self, number: int, name: str) -> tuple[int, Exchange]:
        plan = self._algorithm.exchanges(number)
        return next((at, one) for at, one in enumerate(plan) if one.name == name)


def _naming(state: State, built_on: str, sent: State) -> State:
    """A broadcast that says it builds on another."""
    digest = torch.frombuffer(bytearray(state_digest(encode_state(sent))), dtype=torch.uint8)
    return {**state, LINK + built_on: digest}


def _zeros(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}


def _play(setting: AttackSetting, earlier: Callable[[_Aggregator, State], None]) -> Count:
    count = min(setting.hospitals, MOST_HOSPITALS)
    with Hospitals(Study.parse(_STUDY.format(hospitals=count))) as hospitals:
        aggregator = _Aggregator(hospitals)
        victim, sent = hospitals.names[0], aggregator.broadcast(1, _EARLIER)
        aggregator.ask(1, _EARLIER, [victim], sent)
        earlier(aggregator, sent)
        later = _naming(aggregator.broadcast(1, _LATER), _EARLIER, sent)
        alone = aggregator.sum(1, _LATER, later, hospitals.names) is not None
        return Count(float(alone), 1, "sums of one hospital's work", numbers(aggregator.refusals))


@attack(
    "lone-work",
    "asks one hospital alone for the work that a later sum of all builds on",
    refusals=(Refusal.BUILDS_ON,),
)
def _lone(setting: AttackSetting) -> Count:
    return _play(setting, lambda _aggregator, _sent: None)


@attack(
    "split-work",
    "sends all others a model of zeros for the work that a later sum of all builds on",
    refusals=(Refusal.BUILDS_ON,),
)
def _split(setting: AttackSetting) -> Count:
    def zeros(aggregator: _Aggregator, sent: State) -> None:
        aggregator.ask(1, _EARLIER, aggregator.names[1:], _zeros(sent))

    return _play(setting, zeros)


@attack(
    "kept-state",
    "says that one hospital alone was in a sum, and sends all a model on which nothing but its state trains",
    limit="State that hospitals keep between rounds",
)
def _kept(setting: AttackSetting) -> Count:
    """SCAFFOLD: the control variates of one hospital, which are the mean of its gradients."""
    target = study(min(setting.hospitals, MOST_HOSPITALS), rounds=2).replace("algorithm.name", "scaffold")
    with Hospitals(target) as hospitals:
        aggregator, victim, name = _Aggregator(hospitals), hospitals.names[0], "update"
        first = aggregator.broadcast(1, name)
        aggregator.sum(1, name, first, hospitals.names)
        honest = aggregator.broadcast(2, name)
        counted = -torch.ones_like(honest["state/counted"])
        counted[0] = honest["state/steps"]
        kept = {one: honest[one] for one in honest if one == "state/steps" or one.startswith("study/")}
        found = aggregator.sum(2, name, {**_zeros(honest), **kept, "state/counted": counted}, hospitals.names)
        own = hospitals.algorithm.site(victim).contribute(1, hospitals.algorithm.exchanges(1)[0], first)
        controls = [one for one in own if one.startswith("control/")]
        read = found is not None and any(_is(-found[one], own[one]) for one in controls)
        return Count(float(read), 1, "gradients", numbers(aggregator.refusals))


def _is(guess: torch.Tensor, truth: torch.Tensor | float) -> bool:
    there = torch.as_tensor(truth, dtype=torch.float64)
    return bool(there.any()) and bool(torch.allclose(guess.double(), there, atol=1e-3, rtol=1e-2))


LONE_WORK: Final = attacks_of(vars())
