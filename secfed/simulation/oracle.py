"""Metrics of single sites: simulation only.

In a real study nobody can compute these, because nobody has the records of two hospitals. A simulation
can, outside the protocol, and every report labels the result ``oracle``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.framework.base import Algorithm
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.metrics import classification
from secfed.algorithms.metrics.classification import Metrics
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from secfed.study.warm_start import load_initial_model
from secfed.wire.layout import State

Sums = Mapping[str, torch.Tensor]
_LOSSES = ("loss", "infonce")


@dataclass(frozen=True)
class OracleComparison:
    """One model for all against one model per hospital, on the same held-out records.

    Attributes:
        federated: the federated model at each site.
        alone: each site's own model at that site.
        federated_everywhere: the federated model on the held-out records of all sites together.
        alone_everywhere: each site's own model on the held-out records of all sites together.
    """

    federated: Mapping[SiteId, Metrics]
    alone: Mapping[SiteId, Metrics]
    federated_everywhere: Metrics
    alone_everywhere: Mapping[SiteId, Metrics]


def per_site_metrics(algorithm: Algorithm, model: State) -> dict[SiteId, Metrics]:
    """Metrics of one model on each site's held-out records; none for an algorithm that has no such metrics.

    A metric that a site's records cannot give (ROC-AUC with one class) is left out for that site. An
    algorithm that trains no classifier may have a method ``per_site(model)`` of its own.
    """
    return {site: dict(metrics) for site, metrics in algorithm.per_site(model).items()}


def compare_alone(study: Study, model: State) -> OracleComparison:
    """The federated model against every hospital's own (``--compare alone``).

    A hospital that trains by itself starts from the same model, with the same options and the same number of
    rounds times local epochs; only the averaging is missing (and with it FedProx's pull to the average).

    Raises:
        ConfigError: the algorithm trains no classifier.
        DataError: a hospital's records cannot be used.
    """
    classifier = _classifier(build(study))
    federated, start = _sums(classifier, model), load_initial_model(study, classifier)
    alone = {site: _sums(classifier, _lonely_model(classifier, site, start)) for site in federated}
    return OracleComparison(
        federated={site: _finish(classifier, [sums]) for site, sums in federated.items()},
        alone={site: _finish(classifier, [sums[site]]) for site, sums in alone.items()},
        federated_everywhere=_finish(classifier, federated.values()),
        alone_everywhere={site: _finish(classifier, sums.values()) for site, sums in alone.items()},
    )


def mean_over_sites(metrics: Mapping[SiteId, Metrics]) -> Metrics:
    """Unweighted mean of each metric over the sites that have it."""
    names = dict.fromkeys(name for found in metrics.values() for name in found)
    return {name: math.fsum(v) / len(v) for name in names if (v := _column(metrics, name))}


def worst_site(metrics: Mapping[SiteId, Metrics], name: str) -> tuple[SiteId, float]:
    """The site with the lowest value of one metric (the highest, for a loss).

    Raises:
        ConfigError: no site has this metric.
    """
    having = {site: found[name] for site, found in metrics.items() if name in found}
    if not having:
        raise ConfigError(f"no site has the metric {name!r}", remedy="choose a metric of this study")
    site = (max if name in _LOSSES else min)(having, key=lambda each: having[each])
    return site, having[site]


def _classifier(algorithm: Algorithm) -> FedAvg:
    if not isinstance(algorithm, FedAvg) or algorithm.personal:
        raise ConfigError(
            "algorithm.name: metrics per site need a classifier trained by fedavg or fedprox",
            remedy="leave the comparison out",
        )
    return algorithm


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


def _sums(classifier: FedAvg, model: State) -> dict[SiteId, Sums]:
    device, classes = choose_device(classifier.options.device), classifier.data.classes
    network = classifier.setting.model().to(device)
    write_parameters(network, model)
    found: dict[SiteId, Sums] = {}
    for site in classifier.setting.sites:
        data = classifier.site_data(site)
        found[site] = classification.evaluate(
            network, data.test_x, data.test_y, classes=classes, device=device
        )
    return found


def _finish(classifier: FedAvg, sums: Iterable[Sums]) -> Metrics:
    several = list(sums)
    total = {name: torch.stack([one[name] for one in several]).sum(dim=0) for name in several[0]}
    return classification.finish(total, classifier.data.classes)


def _column(metrics: Mapping[SiteId, Metrics], name: str) -> list[float]:
    return [found[name] for found in metrics.values() if name in found]
