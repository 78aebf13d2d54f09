"""Attacks that ask a hospital about its records by what it answers: models on which work fails.

A chain of ReLUs overflows where one feature of a record exceeds a threshold. A hospital with such a record
must answer, write and pay as one without: the aggregator's view of a whole study is compared bit for bit.

Source: Boenisch et al., "When the Curious Abandon Honesty", EuroS&P 2023 (trap weights).
"""

from __future__ import annotations

import random
from typing import Final

import torch

from secfed.attack.attack import AttackSetting, attack, attacks_of
from secfed.attack.evidence import Count
from secfed.attack.wards import FIRST, USUAL, study
from secfed.attack.watched import Craft, Hospitals
from secfed.config.sections import BROADCAST_BOUND
from secfed.study.study import Study
from secfed.wire.layout import Exchange, State

MOST_HOSPITALS: Final = 5
"""Of the real sites that train: what one of them answers does not depend on how many others there are."""

_ROUNDS: Final = 24
_RARE: Final = 0.9  # the value that one record has
_BETWEEN: Final = 0.75
_LOCAL: Final = 'unit = "record", epsilon = 8.0, delta = 1e-4, accountant = "rdp"'
_AT_SITE: Final = 'unit = "site", epsilon = 20.0, delta = 1e-4, accountant = "rdp"'


def trap(threshold: float) -> Craft:
    """Broadcasts that overflow for records whose first feature is above a threshold, and do nothing else."""

    def craft(_number: int, _exchange: Exchange, honest: State) -> State:
        crafted = {name: torch.zeros_like(value) for name, value in honest.items()}
        weights = [name for name in crafted if name.endswith(".weight")]
        for name in weights:
            crafted[name][0, 0] = BROADCAST_BOUND
        first = min(weights, key=lambda name: int(name.split(".")[0]))
        crafted[first.replace(".weight", ".bias")][0] = -threshold * BROADCAST_BOUND
        return crafted

    return craft


def _study(setting: AttackSetting, privacy: str = "", rounds: int = 1) -> Study:
    return study(min(setting.hospitals, MOST_HOSPITALS), privacy=privacy, rounds=rounds)


def _oracle(target: Study, share: float = 0.0) -> Count:
    """One bit: whether a whole study looks otherwise where the first hospital has records with a rare value.

    ``share`` is of that hospital's records; one record if it is 0.
    """
    worlds = []
    for value in (None, _RARE):
        planted = {} if value is None else {FIRST: value}
        with Hospitals(target, planted, share) as hospitals:
            hospitals.federation.run(trap(_BETWEEN))
            worlds.append(hospitals.everything_seen())
    return Count(float(worlds[0] != worlds[1]), 1, "bit")


@attack(
    "overflow-oracle",
    "sends a model that overflows for one record, and looks who answers otherwise",
    defence="silence",
)
def _overflow(setting: AttackSetting) -> Count:
    return _oracle(_study(setting))


@attack("bisection", "does so for 24 rounds, to find the largest value of a feature", defence="silence")
def _bisection(setting: AttackSetting) -> Count:
    """The largest value of a feature at one hospital, one bit of it a round."""
    secret = USUAL + USUAL * random.Random(setting.seed).uniform(0.2, 0.8)  # noqa: S311 - made-up records
    low, high, right = USUAL, 2 * USUAL, 0
    answers: list[bool] = []
    with Hospitals(_study(setting, rounds=_ROUNDS), {FIRST: secret}) as hospitals:
        victim, other, *_ = hospitals.names
        view = hospitals.federation.view

        def conclude(number: int) -> None:
            nonlocal low, high, right
            middle = (low + high) / 2
            above = view(victim, number) != view(other, number)
            low, high = (middle, high) if above else (low, middle)
            right += right == len(answers) and low <= secret <= high
            answers.append(above)

        def craft(number: int, exchange: Exchange, honest: State) -> State:
            if number > len(answers) + 1:
                conclude(number - 1)
            return trap((low + high) / 2)(number, exchange, honest)

        hospitals.federation.run(craft)  # the closing evaluation is asked too, and concludes the last round
    # Answers that are all alike say nothing, wherever they happen to lead.
    return Count(right if len(set(answers)) > 1 else 0, _ROUNDS, "bits")


@attack(
    "private-metrics-oracle", "does so in the evaluation that pays for private metrics", defence="silence"
)
def _private_metrics(setting: AttackSetting) -> Count:
    return _oracle(_study(setting, f'{_LOCAL}, metrics = "private"'))


@attack("site-level-oracle", "does so where noise hides the whole hospital", defence="silence")
def _site_level(setting: AttackSetting) -> Count:
    return _oracle(_study(setting, _AT_SITE))


@attack("engine-disagreement", "does so where two ways of clipping a record are compared", defence="silence")
def _engines(setting: AttackSetting) -> Count:
    """With half of the records, so that any batch has some that are compared."""
    studies = [_study(setting, f'{_LOCAL}, engine = "{engine}"') for engine in ("hooks", "ghost")]
    return Count(max(_oracle(target, share=0.5).found for target in studies), 1, "bit")


SILENCE: Final = attacks_of(vars())
