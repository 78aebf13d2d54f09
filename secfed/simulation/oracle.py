"""Metrics of single sites: simulation only.

In a real study nobody can compute these, because nobody has the records of two hospitals. A simulation
can, outside the protocol, and every report labels the result ``oracle``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.framework.base import Metrics
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError
from secfed.runs.run_report import Comparison, ComparisonRow
from secfed.study.build import build
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model
from secfed.wire.layout import State

_LOSSES = ("loss", "infonce")


def compare_alone(study: Study, model: State) -> Comparison:
    """The federated model against every hospital's own (``--compare alone``), each on its held-out records.

    A hospital that trains by itself starts from the same model, with the same options and the same number of
    rounds times local epochs; only the averaging is missing (and with it FedProx's pull to the average).

    Raises:
        ConfigError: the algorithm trains no classifier.
        DataError: a hospital's records cannot be used.
    """
    classifier = build(study)
    if not isinstance(classifier, FedAvg) or classifier.personal:
        raise ConfigError(
            "algorithm.name: metrics per site need a classifier trained by fedavg or fedprox",
            remedy="leave the comparison out",
        )
    start, federated = load_initial_model(study, classifier), classifier.per_site(model)
    alone = {site: classifier.per_site(_lonely_model(classifier, site, start))[site] for site in federated}
    rows = [ComparisonRow(site, federated[site], alone[site]) for site in federated]
    mean = ComparisonRow("mean", _mean_over_sites(federated), _mean_over_sites(alone))
    return Comparison("alone", (*rows, mean))


def worst_site_metrics(metrics: Mapping[SiteId, Metrics]) -> Metrics:
    """Each metric at the site where it is lowest (highest, for a loss), of the sites that have it."""
    return {name: (max if name in _LOSSES else min)(found) for name, found in _columns(metrics).items()}


def _mean_over_sites(metrics: Mapping[SiteId, Metrics]) -> Metrics:
    return {name: math.fsum(found) / len(found) for name, found in _columns(metrics).items()}


def _columns(metrics: Mapping[SiteId, Metrics]) -> dict[str, list[float]]:
    """Every metric's values, at the sites that have it."""
    columns: dict[str, list[float]] = {}
    for found in metrics.values():
        for name, value in found.items():
            columns.setdefault(name, []).append(value)
    return columns


def _lonely_model(classifier: FedAvg, site: SiteId, start: State | None) -> State:
    alone = FedAvg(classifier.setting, classifier.options)
    data = alone.site_data(site)
    device = choose_device(alone.options.device)
    network = alone.setting.model().to(device)
    if start is not None:
        write_parameters(network, start)
    for round_number in range(1, alone.setting.study.rounds + 1):
        received, seed = read_parameters(network), alone.setting.local_seed
        alone.local_update(network, data, LocalContext(site, round_number, received, {}, {}, device, seed))
    return read_parameters(network)
