"""What one record, or a group of them, adds to a hospital's sums, beside what the algorithm says of it.

Noise in the sum is chosen from :meth:`~secfed.algorithms.framework.base.Algorithm.unit_bound`, and no running
study can tell whether that is true. So it is measured: a hospital's part of every sum, with a unit and
without it (or with another in its place, where the relation says so), for records as they are, random and
extreme ones, and for honest and made-up broadcasts. What is not found may be there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import torch

from secfed.algorithms.data.image_text.base import ImageTextSite, Pairs
from secfed.algorithms.data.multiview.base import MultiviewSite
from secfed.algorithms.framework.base import Algorithm, UnitBound
from secfed.algorithms.framework.datasets import SiteData
from secfed.algorithms.framework.randomness import torch_generator
from secfed.config.schema import checked
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.settings import PrivacySection
from secfed.dp.training.unit_sums import UnitSums
from secfed.errors import ConfigError, SecfedError
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.site.containment import contained
from secfed.testing.case import MORE, PRIVACY, AlgorithmFault, Case, add
from secfed.wire.layout import Exchange, State

_UNITS: Final = ("record", "group")
_ROWS: Final = 5  # of the hospital that is measured
_SCALES: Final = (0.0, 1.0, 1e3, 0.0)  # of what is added to an honest broadcast, turn by turn
_EXTREMES: Final = (0.0, 1.0, -1.0, 3e38, -3e38, 1e-45)  # finite in float32
_ONE_TURN: Final = (2,)  # extreme records, and a broadcast that is mostly noise
_ROUNDING: Final = 1e-9
_Change = Callable[[torch.Tensor], torch.Tensor]


def check_unit_sums(case: Case, unit: str) -> None:
    """Shares, bounds and norms of all sums with noise, under one unit.

    Raises:
        AlgorithmFault: as of :func:`secfed.testing.check_algorithm`.
    """
    if unit not in _UNITS:
        raise _fault(case, unit, "there is no such unit", f"summed_units are of {', '.join(_UNITS)}")
    table = {"unit": unit, "noise": "sum", **PRIVACY, **MORE[unit]}
    for metrics in ("private", "withheld"):  # not every algorithm can noise its metrics
        private = replace(case, privacy=checked(PrivacySection, {**table, "metrics": metrics}, "privacy"))
        try:
            algorithm = private.algorithm()
            break
        except ConfigError:
            if metrics == "withheld" and case.own is None:
                raise
    else:
        return  # the study has options that noise in the sum does not go with
    try:
        bounds = _bounds(private, algorithm)
        with_privacy(private.study, algorithm, tuple(private.records))
        _check_norms(private, bounds)
    except SecfedError as error:
        what = f"refused: {error}"
        raise _fault(case, unit, what, "support the unit, or leave it out of summed_units") from error


def _fault(case: Case, unit: str, what: str, remedy: str) -> AlgorithmFault:
    return case.fault(f"unit sums ({unit})", what, remedy)


def _settings(case: Case) -> PrivacySection:
    return cast("PrivacySection", case.privacy)


def _bounds(case: Case, algorithm: Algorithm) -> dict[Exchange, UnitBound | None]:
    """Of every exchange that leaves with noise, what the algorithm says; shares must be parts of a whole."""
    planned = [one for number in range(1, case.study.rounds + 2) for one in algorithm.exchanges(number)]
    bounds = {one: algorithm.unit_bound(one) for one in planned if not algorithm.unprotected(one)}
    shares = [bound.share for bound in bounds.values() if bound is not None]
    if min(shares, default=1.0) <= 0 or sum(shares) > 1 + _ROUNDING:
        what = f"the shares of its sums are {', '.join(f'{share:.3g}' for share in shares)}"
        remedy = "let unit_bound give every exchange a share above 0, and 1 in all"
        raise _fault(case, _settings(case).unit, what, remedy)
    return bounds


def _check_norms(case: Case, bounds: Mapping[Exchange, UnitBound | None]) -> None:
    """Play the study, and measure at every sum once: at its first member by turns, at the others once."""
    left = dict(bounds)
    algorithm, sites = case.algorithm(), tuple(case.records)
    server, programs = algorithm.server(), {site: algorithm.site(site) for site in sites}
    for program in programs.values():
        program.use_unit_sums(_sums(case))
    for number in range(1, case.study.rounds + 2):
        for exchange in algorithm.exchanges(number):
            broadcast, members = (
                server.broadcast(number, exchange),
                algorithm.members(number, exchange, sites),
            )
            bound = left.pop(exchange, None)
            if bound is not None:
                for site in members:
                    for turn in range(len(_SCALES)) if site == members[0] else _ONE_TURN:
                        _check_norm(case, site, turn, number, exchange, broadcast, bound)
            given = {site: programs[site].contribute(number, exchange, broadcast) for site in members}
            server.absorb(number, exchange, add(exchange, given))


def _check_norm(
    case: Case, site: str, turn: int, number: int, exchange: Exchange, broadcast: State, bound: UnitBound
) -> None:
    settings, sent = _settings(case), _made_up(broadcast, turn)
    for one, other in _neighbours(case, case.data.site(site), turn):
        cases = (replace(case, records={**case.records, site: data}) for data in (one, other))
        with_it, without = (_added(each, site, number, exchange, sent, bound) for each in cases)
        apart = with_it - without
        norm = float(apart.norm()) / settings.privacy_unit.adjacency.factor
        if not norm <= bound.norm * (1 + _ROUNDING):
            what = f"one {settings.unit} adds {norm:.3g} to {exchange.name!r}, above {bound.norm:.3g}"
            remedy = "clip what a unit adds, or let unit_bound say the larger norm"
            raise _fault(case, settings.unit, what, remedy)


def _neighbours(case: Case, few: Any, turn: int) -> Iterator[tuple[Any, Any]]:
    """Records that differ in one unit: of those that are trained on, and of those held out."""
    for part in _parts(few):
        few = _changed(few, part, lambda values: values[:_ROWS])
    for part in _parts(few):
        count = _count(few, part)
        if not count:
            continue
        rows: Collection[int] = [0]
        if part != "test" and _settings(case).group_size is not None:
            rows = _sums(case).plan(count)[0].tolist()
        with_it = _changed(few, part, partial(_other_values, rows=rows, turn=turn))
        if _settings(case).privacy_unit.adjacency.keeps_slots:
            yield with_it, _changed(few, part, partial(_other_values, rows=rows, turn=turn + 1))
        else:
            yield with_it, _changed(with_it, part, lambda values: values[1:])


def _parts(data: Any) -> tuple[str, ...]:
    return ("all",) if isinstance(data, MultiviewSite) else ("train", "test")


def _count(data: Any, part: str) -> int:
    if isinstance(data, SiteData):
        return len(data.test_y if part == "test" else data.train_y)
    return len(data.labels if part == "all" else getattr(data, part))


def _changed(data: Any, part: str, change: _Change) -> Any:
    """The same site with its tensors of one part changed; nobody's patients."""
    if isinstance(data, SiteData):
        changed: dict[str, Any] = {name: change(getattr(data, name)) for name in (f"{part}_x", f"{part}_y")}
        return replace(data, train_patients=None, **changed)
    if isinstance(data, MultiviewSite):
        views = tuple(None if view is None else change(view) for view in data.views)
        return MultiviewSite(views, change(data.labels))
    if isinstance(data, ImageTextSite):
        pairs: Pairs = getattr(data, part)
        other = Pairs(change(pairs.images), change(pairs.tokens), change(pairs.findings))
        return replace(data, train_patients=None, **{part: other})
    raise TypeError(f"records of type {type(data).__name__} cannot be changed one by one")


def _other_values(values: torch.Tensor, rows: Collection[int], turn: int) -> torch.Tensor:
    """Other numbers in these rows: by the turn as they are, of any size, or extreme; labels stay."""
    if not values.is_floating_point() or turn == 0:
        return values
    generator, changed, rows = torch_generator(turn, "records of a unit"), values.clone(), list(rows)
    shape = changed[rows].shape
    if turn == 1:
        changed[rows] = torch.randn(shape, generator=generator) * 100
    else:
        extremes = torch.tensor(_EXTREMES, dtype=values.dtype)
        changed[rows] = extremes[torch.randint(len(_EXTREMES), shape, generator=generator)]
    return changed


def _made_up(broadcast: State, turn: int) -> State:
    generator, scale = torch_generator(turn, "broadcast of a unit"), _SCALES[turn]
    return {
        name: value + scale * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if value.is_floating_point()
        else value
        for name, value in broadcast.items()
    }


def _added(
    case: Case, site: str, number: int, exchange: Exchange, broadcast: State, bound: UnitBound
) -> torch.Tensor:
    """What a site adds, before rounding and noise: every field by its scale."""
    sums, program = _sums(case), case.algorithm().site(site)
    program.use_unit_sums(sums)
    sums.enter(number, exchange.name)
    given = contained(
        number,
        exchange,
        lambda: program.contribute(number, exchange, broadcast),
        lambda: program.settled(number, exchange),
        lambda _: None,
        only_values=True,
    )
    parts = []
    for one in exchange.layout.fields:
        value = given[one.name].to(torch.float64).clamp(-one.bound, one.bound)
        parts.append(value.reshape(-1) / bound.scales.get(one.name, 1.0))
    return torch.cat(parts)


def _sums(case: Case) -> UnitSums:
    return UnitSums(
        _settings(case), seed=1, random=lambda *where: SecureRandom.for_simulation(1, *map(str, where))
    )
