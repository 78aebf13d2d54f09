"""The check that an algorithm says which exchanges build on the work of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.server_state import copies
from secfed.testing.case import Case, play, restored
from secfed.wire.layout import Exchange, State, Summands

_LEFT: Final = 1e-3  # of the largest number; less is nothing
_Sent = dict[tuple[int, str], State]  # broadcasts, by round and exchange


def check_links(case: Case) -> None:
    """Leave one task of a round out, or do it from a model of zeros: later work must still be there.

    Raises:
        AlgorithmFault: names both exchanges.
    """
    sent, shapes = _Sent(), set[object]()
    play(case, sent=lambda number, exchange, state: sent.update({(number, exchange.name): copies(state)}))
    algorithm = case.algorithm()
    rounds = sorted({number for number, _ in sent})
    for site in case.records:
        plans = {number: _asked(algorithm, number, site, tuple(case.records)) for number in rounds}
        shape = tuple(tuple(exchange.name for exchange in plan) for plan in plans.values())
        if shape not in shapes:  # one hospital of each kind
            shapes.add(shape)
            _check_site(case, site, plans, sent)


def _asked(algorithm: Algorithm, number: int, site: SiteId, sites: Sequence[SiteId]) -> list[Exchange]:
    return [one for one in algorithm.exchanges(number) if site in algorithm.members(number, one, sites)]


def _check_site(case: Case, site: SiteId, plans: dict[int, list[Exchange]], sent: _Sent) -> None:
    algorithm, kept = case.algorithm(), dict[str, torch.Tensor]()
    for number, plan in plans.items():
        honest = restored(algorithm, site, copies(kept))
        whole = {one.name: honest.contribute(number, one, sent[number, one.name]) for one in plan}
        for earlier in plan[:-1]:
            other = {name: torch.zeros_like(value) for name, value in sent[number, earlier.name].items()}
            for start in (None, other):
                program = restored(algorithm, site, copies(kept))
                for name, given in _without(algorithm, program, (number, plan, earlier), start, sent):
                    if (lost := _vanished(whole[name], given)) is not None:
                        what = f"{lost!r} of {name!r} vanishes at a hospital that did not do {earlier.name!r}"
                        raise case.fault("links", what, f"name {earlier.name!r} in builds_on")
        kept = copies(honest.save())


def _without(
    algorithm: Algorithm,
    program: SiteProgram,
    where: tuple[int, list[Exchange], Exchange],
    start: State | None,
    sent: _Sent,
) -> Iterator[tuple[str, Summands | None]]:
    """What later exchanges get, of those that a hospital does not refuse; None where work fails."""
    number, plan, changed = where
    refused: set[str] = set()
    for one in plan:
        builds_on = set(algorithm.builds_on(number, one))
        state = start if one is changed else sent[number, one.name]
        if builds_on & {*refused, changed.name}:
            refused.add(one.name)
            continue
        if state is None:
            continue
        try:
            given = program.contribute(number, one, state)
        except Exception:  # noqa: BLE001 - whatever a program of one's own raises, a hospital adds zeros
            given = None
        if one is not changed:
            yield one.name, given


def _vanished(whole: Summands, given: Summands | None) -> str | None:
    """The first field of which nothing, or next to nothing, is left."""
    for name, value in whole.items():
        before = float(torch.as_tensor(value, dtype=torch.float64).abs().max())
        after = 0.0 if given is None else float(torch.as_tensor(given[name], dtype=torch.float64).abs().max())
        if before > 0 and not after > _LEFT * before:
            return name
    return None
