"""What a site plans to do with its records in one study, and the noise that keeps it within epsilon.

All of it is one composition: private steps of every phase, noisy losses, and the noisy sums of metrics.
Losses and metrics each get noise for a share of epsilon first; the one noise multiplier of the steps is then
the smallest for which *everything together* stays within the study's (epsilon, delta). No epsilons are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import accountant, calibrate
from secfed.dp.accounting.unit import GroupPartition, PrivacyUnit, Unit
from secfed.dp.mechanisms.adaptive_clipping import AdaptiveClip
from secfed.dp.mechanisms.loss_release import LossRelease, PlannedLosses
from secfed.dp.training.mechanism import Mechanism
from secfed.errors import ConfigError

if TYPE_CHECKING:
    from secfed.dp.settings import PrivacySection


MAX_DELTA_TIMES_RECORDS: Final = 10.0  # unless the site's policy says otherwise


@dataclass(frozen=True)
class Phase:
    """One kind of private training in a study; its work is counted in passes or in steps.

    Attributes:
        name: how the algorithm refers to it.
        records: how many records the site trains on.
        batch_size: expected number of records in a step.
        passes: passes over the records in the whole study; one is ceil(1 / sampling rate) steps.
        steps: steps in the whole study, instead of passes.
        patients: whose each record is, as numbers; needed where the relation hides patients, else unused.

    Raises:
        ConfigError: a negative number, or both passes and steps.
    """

    name: str
    records: int
    batch_size: int
    passes: int = 0
    steps: int | None = None
    patients: tuple[int, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.passes < 0 or (self.steps is not None and (self.steps < 0 or self.passes)):
            raise ConfigError(
                f"private training {self.name!r}: plan passes or steps, not both, and none below 0"
            )

    def total_steps(self, rate: float) -> int:
        """Steps in the whole study at this sampling rate."""
        return self.passes * steps_per_pass(rate) if self.steps is None else self.steps


@dataclass(frozen=True)
class PlannedPhase:
    """A phase with what it takes: how units are drawn, clipped and hidden."""

    mechanism: Mechanism
    partition: GroupPartition | None


@dataclass(frozen=True)
class _Rate:
    phase: Phase
    sampling_rate: float
    units: int
    partition: GroupPartition | None

    @property
    def steps(self) -> int:
        return self.phase.total_steps(self.sampling_rate)


def delta_is_weak(settings: PrivacySection, records: int, most: float) -> bool:
    """Compare delta with 1 / n: a mechanism that publishes each record with probability delta has epsilon 0.

    Of n records such a mechanism publishes delta * n on average. It follows from public numbers, and before
    any record is used.

    Args:
        settings: the study's.
        records: n, the site's training records.
        most: the largest delta * n that the site permits.

    Returns:
        Whether delta is 1 / n or more, which deserves a warning.

    Raises:
        ConfigError: delta * n is ``most`` or more.

    Source: Dwork and Roth 2014, "The algorithmic foundations of differential privacy", section 2.3.
    """
    expected = settings.delta * records
    if expected >= most:
        raise ConfigError(
            f"privacy.delta: {settings.delta:g} is {most:g} / (training records of this site) or more, so "
            f"(epsilon, delta) would permit to publish {most:g} of them outright",
            remedy="set privacy.delta well below 1 / (training records of the largest site); a hospital that "
            "means it raises max_delta_times_records in [privacy] of its policy",
        )
    return expected >= 1.0


def plan_sums(settings: PrivacySection) -> Gaussian | None:
    """The one release of metrics, if the study has one.

    Raises:
        ConfigError: no noise reaches its share of epsilon.
    """
    if settings.metrics != "private":
        return None
    multiplier = _releases_multiplier(*_share(settings, settings.metrics_share), 1)
    return Gaussian(settings.privacy_unit.adjacency, multiplier, 1)


def plan_losses(settings: PrivacySection, wanted: LossRelease | None, seed: int) -> PlannedLosses | None:
    """The releases of losses, if the study has any.

    Raises:
        ConfigError: see :class:`secfed.dp.mechanisms.loss_release.PlannedLosses`.
    """
    if wanted is None or not wanted.releases:
        return None
    multiplier = partial(_releases_multiplier, *_share(settings, wanted.share))
    return PlannedLosses(wanted, settings.privacy_unit, seed=seed, multiplier=multiplier)


def plan_phases(
    settings: PrivacySection, phases: Sequence[Phase], already: Sequence[Event], seed: int
) -> dict[str, PlannedPhase]:
    """Sampling rates, and one noise multiplier for the steps of all phases.

    Args:
        settings: the study's.
        phases: all of the study.
        already: what else the study is going to release.
        seed: decides groups only.

    Returns:
        Phase by name; none at all if there is no step to take.

    Raises:
        ConfigError: no noise reaches the study's epsilon, two phases of one name, or a relation that hides
            patients without any.
    """
    if len({phase.name for phase in phases}) != len(phases):
        raise ConfigError("two phases of private training have the same name")
    rates = [_rate(settings, phase, seed) for phase in phases]
    work = tuple((rate.sampling_rate, rate.steps) for rate in rates if rate.steps)
    if not work:
        return {}
    unit = settings.privacy_unit
    noise = _noise_multiplier(
        settings.epsilon, settings.delta, unit, work, tuple(already), settings.accountant
    )
    planned = {}
    for rate in rates:
        adaptive = None
        if settings.clip_quantile is not None:
            expected_units = rate.sampling_rate * rate.units
            adaptive = AdaptiveClip(
                settings.clip_quantile, count_deviation=max(expected_units / 20.0, 2.0 * noise)
            )
        mechanism = Mechanism(unit, settings.clip_norm, noise, rate.sampling_rate, adaptive)
        planned[rate.phase.name] = PlannedPhase(mechanism, rate.partition)
    return planned


def _rate(settings: PrivacySection, phase: Phase, seed: int) -> _Rate:
    partition, units, size = None, phase.records, 1.0
    if settings.group_size is not None:
        partition = GroupPartition.under(
            settings.privacy_unit, phase.records, settings.group_size, seed=seed, patients=phase.patients
        )
        # Groups of whole patients are seldom full; the batch counts records, so the mean size decides.
        units = len(partition)
        size = (partition.records - partition.dropped) / units
    return _Rate(phase, min(1.0, max(1.0, phase.batch_size / size) / units), units, partition)


def steps_per_pass(rate: float) -> int:
    """Steps in which every unit is expected to take part once, rounded up."""
    return Mechanism(PrivacyUnit.default(Unit.RECORD), 1.0, 1.0, rate).steps_per_pass


def _share(settings: PrivacySection, share: float) -> tuple[float, float, PrivacyUnit, str]:
    return settings.epsilon * share, settings.delta, settings.privacy_unit, settings.accountant


# Sites of a simulation often have equally many records; a search takes about a second.
@lru_cache(maxsize=256)
def _noise_multiplier(
    epsilon: float,
    delta: float,
    unit: PrivacyUnit,
    work: tuple[tuple[float, int], ...],
    already: tuple[Event, ...],
    name: str,
) -> float:
    def events(multiplier: float) -> Sequence[Event]:
        return [PoissonSampledGaussian(unit.adjacency, rate, multiplier, steps) for rate, steps in work]

    return calibrate(epsilon, delta, events, already=already, preferred=accountant(name))


@lru_cache(maxsize=64)
def _releases_multiplier(epsilon: float, delta: float, unit: PrivacyUnit, name: str, releases: int) -> float:
    return calibrate(
        epsilon, delta, lambda noise: Gaussian(unit.adjacency, noise, releases), preferred=accountant(name)
    )
