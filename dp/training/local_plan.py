"""What a site plans to do with its records in one study, and the noise that keeps it within epsilon.

All of it is one composition: private steps of every phase, noisy losses, and the noisy sums of metrics.
Losses and metrics each get noise for a share of epsilon first; the one noise multiplier of the steps is then
the smallest for which *everything together* stays within the study's (epsilon, delta). No epsilons are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.interface import accountant, calibrate
from secfed.dp.accounting.unit import GroupPartition
from secfed.dp.mechanisms.adaptive_clipping import AdaptiveClip
from secfed.dp.mechanisms.loss_release import LossRelease, PlannedLosses
from secfed.dp.settings import PrivacySection
from secfed.dp.training.mechanism import Mechanism, steps_per_pass
from secfed.errors import ConfigError

MAX_DELTA_TIMES_RECORDS: Final = 10.0  # unless the site's policy says otherwise


@dataclass(frozen=True)
class Phase:
    """One kind of private training in a study; its work is counted in passes or in steps, not both."""

    name: str  # how the algorithm refers to it
    records: int  # that the site trains on
    batch_size: int  # expected number of records in a step
    passes: int = 0  # in the whole study; one is ceil(1 / sampling rate) steps
    steps: int | None = None  # in the whole study, instead of passes
    # Whose each record is; needed where the relation hides patients, else unused.
    patients: tuple[int, ...] | None = field(default=None, repr=False)
    blank: bool = field(default=False, repr=False)  # whether the one record stands for none

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
    blank: bool = field(default=False, repr=False)
    steps: int = 0  # in the whole study


def delta_is_weak(settings: PrivacySection, records: int, most: float) -> bool:
    """Whether delta is 1 / n or more, for n training records; ConfigError if delta * n is ``most`` or more.

    A mechanism that publishes each record with probability delta has epsilon 0, and publishes delta * n of n
    records on average.

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
    """The one release of metrics, if the study has one."""
    if settings.metrics != "private":
        return None
    return _releases(settings, settings.metrics_share, 1)


def plan_losses(settings: PrivacySection, wanted: LossRelease | None, seed: int) -> PlannedLosses | None:
    """The releases of losses, if the study has any."""
    if wanted is None or not wanted.releases:
        return None

    def multiplier(releases: int) -> float:
        return _releases(settings, wanted.share, releases).noise_multiplier

    return PlannedLosses(wanted, settings.privacy_unit, seed=seed, multiplier=multiplier)


def plan_phases(
    settings: PrivacySection, phases: Sequence[Phase], already: Sequence[Event], seed: int
) -> dict[str, PlannedPhase]:
    """Sampling rates, and one noise multiplier for the steps of all phases; none if there is no step to take.

    ``already`` is what else the study is going to release; ``seed`` decides groups only.
    """
    if len({phase.name for phase in phases}) != len(phases):
        raise ConfigError("two phases of private training have the same name")
    unit = settings.privacy_unit
    draws = [_draw(settings, phase, seed) for phase in phases]
    work = tuple(
        PoissonSampledGaussian(unit.adjacency, rate, 1.0, steps)
        for phase, (_, _, rate) in zip(phases, draws, strict=True)
        if (steps := phase.total_steps(rate))
    )
    if not work:
        return {}
    noise = _noise_multiplier(settings.epsilon, settings.delta, work, tuple(already), settings.accountant)
    planned = {}
    for phase, (partition, units, rate) in zip(phases, draws, strict=True):
        adaptive = None
        if settings.clip_quantile is not None:
            adaptive = AdaptiveClip(
                settings.clip_quantile, count_deviation=max(rate * units / 20.0, 2.0 * noise)
            )
        mechanism = Mechanism(unit, settings.clip_norm, noise, rate, adaptive)
        planned[phase.name] = PlannedPhase(mechanism, partition, phase.blank, phase.total_steps(rate))
    return planned


def _draw(settings: PrivacySection, phase: Phase, seed: int) -> tuple[GroupPartition | None, int, float]:
    """The groups, the number of units, and the probability that one takes part in a step."""
    partition, units, size = None, phase.records, 1.0
    if settings.group_size is not None:
        partition = GroupPartition.under(
            settings.privacy_unit, phase.records, settings.group_size, seed=seed, patients=phase.patients
        )
        # Groups of whole patients are seldom full; the batch counts records, so the mean size decides.
        units = len(partition)
        size = (partition.records - partition.dropped) / units
    return partition, units, min(1.0, max(1.0, phase.batch_size / size) / units)


def _releases(settings: PrivacySection, share: float, releases: int) -> Gaussian:
    """So many releases, with the noise that would keep them alone within a share of epsilon."""
    event = Gaussian(settings.privacy_unit.adjacency, 1.0, releases)
    noise = _noise_multiplier(settings.epsilon * share, settings.delta, (event,), (), settings.accountant)
    return replace(event, noise_multiplier=noise)


# Sites of a simulation often have equally many records; a search takes about a second.
@lru_cache(maxsize=256)
def _noise_multiplier(
    epsilon: float,
    delta: float,
    work: tuple[Gaussian | PoissonSampledGaussian, ...],
    already: tuple[Event, ...],
    name: str,
) -> float:
    def events(multiplier: float) -> Sequence[Event]:
        return [replace(event, noise_multiplier=multiplier) for event in work]

    return calibrate(epsilon, delta, events, already=already, preferred=accountant(name))
