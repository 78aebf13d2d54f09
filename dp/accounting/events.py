"""Privacy events: frozen values that say what was released, completely enough to compute epsilon.

The meaning of an event never changes. A new mechanism, or a new parameter, is a new class with a new
name; names and fields below stay as they are, so a ledger written today is recomputed to the same
number in ten years. ``noise_multiplier`` is always the standard deviation of the noise divided by the
clipping norm C of one unit; the relation (``adjacency``) says whether the sensitivity is C or 2C.

Source: the discipline of dp_accounting's ``dp_event`` (events as values); Abadi et al. 2016 (Poisson
sampled Gaussian); Agarwal, Kairouz, Liu 2021 (Skellam); Kairouz, Liu, Steinke 2021 (distributed
discrete Gaussian).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from secfed.dp.accounting.unit import Adjacency
from secfed.errors import ConfigError


@dataclass(frozen=True)
class Event:
    """Base of all events; ``name`` identifies the meaning, for ever."""

    name: ClassVar[str] = ""
    counted: ClassVar[str] = "count"  # the field that says how often the mechanism ran

    adjacency: Adjacency

    @property
    def times(self) -> int:
        """How often the mechanism ran."""
        return int(getattr(self, self.counted))

    def repeated(self, times: int) -> Event:
        """The same mechanism run ``times`` times in all."""
        return replace(self, **{self.counted: times})  # type: ignore[arg-type]  # counted names an int field

    def restated(self, adjacency: Adjacency) -> Event:
        """The same mechanism, its guarantee stated under another relation.

        Only widening is sound: add-or-remove to replace (the unit's norm bound gives 2C), the replacement
        of a patient to that of one record (which is a part of it), and a site relation to the replacement
        of one record of that site (which changes one site's contribution). ConfigError for any other.
        """
        if adjacency is self.adjacency:
            return self
        if adjacency not in _WIDER[self.adjacency]:
            raise ConfigError(f"a guarantee under {self.adjacency} cannot be restated under {adjacency}")
        return replace(self, adjacency=adjacency)

    def __post_init__(self) -> None:
        _check(self.times >= 1, f"{self.counted} of a privacy event must be at least 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                _check(math.isfinite(value) and value >= 0, f"{field.name} of a privacy event is {value}")


# From each relation, the relations under which the same mechanism can be stated as well.
_WIDER = {
    Adjacency.ADD_OR_REMOVE_RECORD: (Adjacency.REPLACE_RECORD,),
    Adjacency.REPLACE_RECORD: (),
    Adjacency.REPLACE_PATIENT: (Adjacency.REPLACE_RECORD,),
    Adjacency.ZERO_OUT_SITE: (Adjacency.REPLACE_SITE, Adjacency.REPLACE_RECORD),
    Adjacency.REPLACE_SITE: (Adjacency.REPLACE_RECORD,),
}


@dataclass(frozen=True)
class PoissonSampledGaussian(Event):
    """DP-SGD: each unit is taken independently, clipped to C, summed; N(0, (multiplier * C)^2) is added."""

    name: ClassVar[str] = "poisson-sampled-gaussian/1"
    counted: ClassVar[str] = "steps"

    sampling_rate: float  # probability that a unit takes part in a step, (0, 1]
    noise_multiplier: float  # standard deviation / C; 0 means no protection
    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(0 < self.sampling_rate <= 1, f"sampling_rate = {self.sampling_rate} is not in (0, 1]")


@dataclass(frozen=True)
class Gaussian(Event):
    """Every unit takes part: the sum of units clipped to C, plus N(0, (multiplier * C)^2)."""

    name: ClassVar[str] = "gaussian/1"

    noise_multiplier: float
    count: int


@dataclass(frozen=True)
class Skellam(Event):
    """An integer vector plus symmetric Skellam noise, independent per coordinate, in units of the grid."""

    name: ClassVar[str] = "skellam/1"

    l2: float  # norm of one site's integer vector, at most, after rounding
    l1: float
    variance: float  # of the honest noise in the sum
    count: int


@dataclass(frozen=True)
class DistributedDiscreteGaussian(Event):
    """An integer vector plus a sum of discrete Gaussians per coordinate, in units of the grid."""

    name: ClassVar[str] = "distributed-discrete-gaussian/1"

    l2: float  # norm of one site's integer vector, at most, after rounding
    l1: float
    sigma: float  # scale of one site's noise
    shares: int  # honest surviving sites only
    dimension: int  # coordinates of the vector
    count: int


@dataclass(frozen=True)
class UnitSkellam(Skellam):
    """A sum over units, made at every site, plus Skellam noise; ``l2`` and ``l1`` are of what one unit adds.

    The noise is that of the sites' sum: it holds against whoever sees no more than that.
    """

    name: ClassVar[str] = "unit-skellam/1"


@dataclass(frozen=True)
class UnitDiscreteGaussian(DistributedDiscreteGaussian):
    """The same with discrete Gaussians; see :class:`UnitSkellam`."""

    name: ClassVar[str] = "unit-discrete-gaussian/1"


# Noise in the secure sum, for sites and for units: it relies on the sum being secure.
IN_SUM = (Skellam, DistributedDiscreteGaussian)
_NOISY = (PoissonSampledGaussian, Gaussian, Skellam, DistributedDiscreteGaussian)
_KINDS: dict[str, type[Event]] = {kind.name: kind for kind in (*_NOISY, UnitSkellam, UnitDiscreteGaussian)}


def bounded_mean(
    noise_over_sensitivity: float, count: int, adjacency: Adjacency = Adjacency.REPLACE_RECORD
) -> Gaussian:
    """The event of releasing a mean of values in [0, V] with Gaussian noise (specification L1).

    A value in [0, V] is V/2 plus a centred value of magnitude at most C = V/2, so a replacement that changes
    one value, of a record or of a patient, moves the sum by at most V = 2C. ``noise_over_sensitivity`` is the
    noise's standard deviation divided by what such a replacement can change in the released mean.
    """
    _check(adjacency.keeps_slots, f"a mean of bounded values says nothing about {adjacency}")
    return Gaussian(adjacency, 2.0 * noise_over_sensitivity, count)


def compose(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events as one composition, in canonical form: equal mechanisms merged, sorted.

    Order does not matter to any accountant, so two halves of a run compose to exactly the whole.
    """
    totals: dict[Event, int] = {}
    for event, copies in Counter(events).items():  # first: a ledger has hundreds of equal ones
        mechanism = event.repeated(1)
        totals[mechanism] = totals.get(mechanism, 0) + copies * event.times
    merged = [mechanism.repeated(times) for mechanism, times in totals.items()]
    return tuple(sorted(merged, key=to_json))


def to_value(event: Event) -> dict[str, Any]:
    """The event as plain JSON values: its name and its fields."""
    return {"event": event.name, **{field.name: getattr(event, field.name) for field in fields(event)}}


def to_json(event: Event) -> str:
    """Canonical JSON: sorted keys, no spaces, shortest floats that read back to the same number."""
    return json.dumps(to_value(event), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_value(value: object) -> Event:
    """Read what :func:`to_value` wrote; ConfigError for an unknown event or wrong fields."""
    kind = _KINDS.get(str(value.get("event"))) if isinstance(value, dict) else None
    if kind is None or not isinstance(value, dict):
        raise ConfigError("unknown privacy event", remedy="read this ledger with a newer secfed")
    given = {name: entry for name, entry in value.items() if name != "event"}
    wanted = {field.name: field.type for field in fields(kind)}
    if set(given) != set(wanted):
        raise ConfigError(f"privacy event {kind.name} has the wrong fields")
    for name, type_name in wanted.items():
        entry = given[name]
        if type_name == "Adjacency":
            if entry not in list(Adjacency):
                raise ConfigError(f"privacy event {kind.name} has an unknown adjacency")
            given[name] = Adjacency(entry)
        elif type_name == "int":
            if type(entry) is not int:
                raise ConfigError(f"{name} of privacy event {kind.name} is not an integer")
        elif isinstance(entry, bool) or not isinstance(entry, int | float):
            raise ConfigError(f"{name} of privacy event {kind.name} is not a number")
        else:
            given[name] = float(entry)
    return kind(**given)


def common_adjacency(events: Sequence[Event]) -> tuple[Adjacency, tuple[Event, ...]]:
    """Bring events under one relation: theirs if they agree, otherwise the narrowest that covers all."""
    if not events:
        raise ConfigError("there is no privacy event to account for")
    given = {event.adjacency for event in events}
    # A relation they already agree on comes first; then the narrowest that covers all.
    for candidate in (*given, Adjacency.REPLACE_SITE, Adjacency.REPLACE_RECORD):
        if all(known is candidate or candidate in _WIDER[known] for known in given):
            return candidate, tuple(event.restated(candidate) for event in events)
    raise ConfigError("these privacy events share no neighbouring relation")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
