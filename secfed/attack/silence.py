"""Attacks that ask a hospital about its records by what it answers: models on which work fails.

A chain of ReLUs is off unless one feature of a record exceeds a threshold, and overflows where it does. The
broadcast is finite and within the study's bound. A hospital with such a record must answer, write and pay as
one without: the aggregator's view of a whole study is compared, bit for bit of what does not differ by
chance.

Source: Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov, Papernot, "When the Curious Abandon Honesty",
EuroS&P 2023 (trap weights).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from secfed.attack.attack import Attack, AttackSetting
from secfed.attack.evidence import Count
from secfed.attack.wards import USUAL, names, study
from secfed.attack.watched import Craft, Hospitals, played
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

    def craft(number: int, exchange: Exchange, honest: State) -> State:
        del number, exchange
        made = {name: torch.zeros_like(value) for name, value in honest.items()}
        first = min((name for name in made if name.endswith(".weight")), key=_layer)
        for name, value in made.items():
            if name.endswith(".weight"):
                value[0, 0] = BROADCAST_BOUND
        made[first.replace(".weight", ".bias")][0] = -threshold * BROADCAST_BOUND
        return made

    return craft


def _layer(name: str) -> int:
    return int(name.split(".")[0])


def oracle(setting: AttackSetting, asked: Study, share: float = 0.0) -> Count:
    """One bit: whether the first hospital has records with a rare value.

    Args:
        setting: how many hospitals there are.
        asked: the study.
        share: of that hospital's records; one if it is 0.

    Returns:
        1 if a whole study looks otherwise with such records than without.
    """
    sites = _sites(setting)
    worlds: tuple[dict[str, float], ...] = ({}, {sites[0]: _RARE})
    without, with_it = (played(asked, sites, planted, trap(_BETWEEN), share) for planted in worlds)
    return Count(float(with_it != without), 1, "bit")


def _sites(setting: AttackSetting) -> tuple[str, ...]:
    return names(min(setting.hospitals, MOST_HOSPITALS))


def _overflow(setting: AttackSetting) -> Count:
    return oracle(setting, study(len(_sites(setting))))


def _private_metrics(setting: AttackSetting) -> Count:
    return oracle(setting, study(len(_sites(setting)), privacy=f'{_LOCAL}, metrics = "private"'))


def _site_level(setting: AttackSetting) -> Count:
    return oracle(setting, study(len(_sites(setting)), privacy=_AT_SITE))


def _engines(setting: AttackSetting) -> Count:
    """With half of the records, so that any batch has some that are compared."""
    asked = (
        study(len(_sites(setting)), privacy=f'{_LOCAL}, engine = "{engine}"') for engine in ("hooks", "ghost")
    )
    return Count(max(oracle(setting, one, share=0.5).found for one in asked), 1, "bit")


def _bisection(setting: AttackSetting) -> Count:
    """The largest value of a feature at one hospital, one bit of it a round."""
    sites = _sites(setting)
    victim, other = sites[0], sites[1]
    secret = USUAL + USUAL * random.Random(setting.seed).uniform(0.2, 0.8)  # noqa: S311 - made-up records
    low, high, kept = USUAL, 2 * USUAL, 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="secfed-attack-")))
        hospitals = Hospitals(study(len(sites), rounds=_ROUNDS), sites, folder, {victim: secret})
        stack.callback(hospitals.close)
        federation, answers = hospitals.federation, list[bool]()

        def conclude(number: int) -> None:
            nonlocal low, high, kept
            middle = (low + high) / 2
            above = federation.view(victim, number) != federation.view(other, number)
            low, high = (middle, high) if above else (low, middle)
            kept += kept == len(answers) and low <= secret <= high
            answers.append(above)

        def craft(number: int, exchange: Exchange, honest: State) -> State:
            if number > len(answers) + 1:
                conclude(number - 1)
            return trap((low + high) / 2)(number, exchange, honest)

        federation.run(craft)  # the closing evaluation is asked as well, and concludes the last round
    # Answers that are all alike say nothing, wherever they happen to lead.
    return Count(kept if len(set(answers)) > 1 else 0, _ROUNDS, "bits")


def _attack(name: str, what: str, run: Callable[[AttackSetting], Count]) -> Attack:
    return Attack(name, "masked", "the aggregator", what, run, defence="silence")


SILENCE: Final = (
    _attack(
        "overflow-oracle",
        "sends a model that overflows for one record, and looks who answers otherwise",
        _overflow,
    ),
    _attack("bisection", "does so for 24 rounds, to find the largest value of a feature", _bisection),
    _attack(
        "private-metrics-oracle",
        "does so in the evaluation that pays for private metrics",
        _private_metrics,
    ),
    _attack("site-level-oracle", "does so where noise hides the whole hospital", _site_level),
    _attack(
        "engine-disagreement",
        "does so where two ways of clipping a record are compared",
        _engines,
    ),
)
