"""Metrics of single sites: simulation only.

In a real study nobody can compute these, because nobody has the records of two hospitals. A simulation
can, outside the protocol, and every report labels the result ``oracle``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from secfed.algorithms.base import Algorithm
from secfed.algorithms.data.base import SiteData, SiteId
from secfed.algorithms.fedavg import FedAvg
from secfed.algorithms.metrics import classification
from secfed.algorithms.metrics.classification import Metrics
from secfed.algorithms.parameters import write_parameters
from secfed.algorithms.registry import build
from secfed.algorithms.training import choose_device
from secfed.errors import ConfigError
from secfed.study import Study
from secfed.vector import State


@dataclass(frozen=True)
class Comparison:
    """One model for all against one model per hospital, on the same held-out records.

    Attributes:
        federated: metrics of the federated model at each site.
        alone: metrics of each site's own model at that site.
    """

    federated: Mapping[SiteId, Metrics]
    alone: Mapping[SiteId, Metrics]


def per_site_metrics(algorithm: Algorithm, model: State) -> dict[SiteId, Metrics]:
    """Metrics of one model on each site's held-out records.

    A metric that a site's records cannot give (ROC-AUC with one class) is left out for that site.

    Raises:
        ConfigError: the algorithm trains no classifier.
    """
    classifier = _classifier(algorithm)
    network = classifier.setting.model()
    write_parameters(network, model)
    sites = classifier.setting.sites
    return {site: _metrics(classifier, network, classifier.site_data(site)) for site in sites}


def train_alone(study: Study, site: SiteId) -> Metrics:
    """Metrics of a model that one hospital trains by itself.

    Same initial model, same options and the same number of rounds times local epochs as in the study;
    only the averaging is missing (and with it FedProx's pull to the average). Evaluated on the
    hospital's own held-out records.

    Raises:
        ConfigError: the algorithm trains no classifier.
        DataError: the hospital's records cannot be used.
    """
    federated = _classifier(build(study))
    alone = FedAvg(federated.setting, federated.options)
    data = alone.site_data(site)
    network = alone.setting.model().to(choose_device(alone.options.device))
    for round_number in range(1, study.rounds + 1):
        alone.train(network, data, site, round_number)
    return _metrics(alone, network, data)


def compare_alone(study: Study, model: State) -> Comparison:
    """The federated model against every hospital's own (``--compare alone``)."""
    federated = per_site_metrics(build(study), model)
    return Comparison(federated, {site: train_alone(study, site) for site in federated})


def mean_over_sites(metrics: Mapping[SiteId, Metrics]) -> Metrics:
    """Unweighted mean of each metric over the sites that have it."""
    names = dict.fromkeys(name for found in metrics.values() for name in found)
    return {name: math.fsum(v) / len(v) for name in names if (v := _column(metrics, name))}


def worst_site(metrics: Mapping[SiteId, Metrics], name: str) -> tuple[SiteId, float]:
    """The site with the lowest value of one metric (the highest, for ``loss``).

    Raises:
        ConfigError: no site has this metric.
    """
    having = {site: found[name] for site, found in metrics.items() if name in found}
    if not having:
        raise ConfigError(f"no site has the metric {name!r}", remedy="choose a metric of this study")
    site = (max if name == "loss" else min)(having, key=lambda each: having[each])
    return site, having[site]


def _classifier(algorithm: Algorithm) -> FedAvg:
    if not isinstance(algorithm, FedAvg):
        raise ConfigError(
            "algorithm.name: metrics per site need a classifier trained by fedavg or fedprox",
            remedy="leave the comparison out",
        )
    return algorithm


def _metrics(classifier: FedAvg, network: nn.Module, data: SiteData) -> Metrics:
    device, classes = next(network.parameters()).device, classifier.data.classes
    sums = classification.evaluate(network, data.test_x, data.test_y, classes=classes, device=device)
    return classification.finish(sums, classes)


def _column(metrics: Mapping[SiteId, Metrics], name: str) -> list[float]:
    return [found[name] for found in metrics.values() if name in found]
