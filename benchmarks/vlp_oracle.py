"""ORACLE metrics of vision-language pre-training: for simulations only.

Whatever is here reads the pairs, weights or losses of several sites at once. In a study between hospitals
nobody can do that; every table and figure made from it is labelled ``oracle``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from comparison import mean_of
from distortion import distortion_matrix, mean_cosine
from torch import nn

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.data.image_text.chest_synthetic import ChestSynthetic
from secfed.algorithms.framework.datasets import SiteId
from secfed.algorithms.framework.parameters import read_parameters, write_parameters
from secfed.algorithms.framework.randomness import seeded, torch_generator
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.algorithms.vision_language.plan import JOINT
from secfed.algorithms.vision_language.site import VlpSite
from secfed.algorithms.vision_language.stage import Batch, begin_stage, contrastive_batches, run_stage
from secfed.dp.training.step import StepSettings
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from secfed.study.warm_start import initial_server, load_initial_model
from secfed.wire.layout import Exchange, State, Summands, Totals

Metrics = Mapping[str, float]
PerSite = Mapping[SiteId, Metrics]

_POOLED: Final = "all sites"


def algorithm_of(study: Study) -> VlpAlgorithm:
    """The algorithm of a study, which must be of vision and language."""
    algorithm = build(study)
    if not isinstance(algorithm, VlpAlgorithm):
        raise TypeError(f"{study.algorithm.name} is not a vision-language algorithm")
    return algorithm


@dataclass(frozen=True, repr=False)
class Trajectory:
    """One run of an algorithm in the clear, seen from everywhere. Simulation only.

    ``weights`` and ``losses`` are each site's, per round, and empty for an algorithm without robust weights;
    ``per_site`` and ``metrics`` are by model version, 0 the initial model.
    """

    sites: tuple[SiteId, ...]
    weights: tuple[tuple[float, ...], ...]
    losses: tuple[tuple[float, ...], ...]
    per_site: tuple[PerSite, ...]
    metrics: Mapping[int, Metrics]
    model: State


def run_in_clear(algorithm: VlpAlgorithm) -> Trajectory:
    """All rounds of a study without ``[privacy]`` in this process, without protocol: exact float64 sums."""
    if algorithm.setting.study.privacy is not None:
        raise ConfigError("privacy: a run in the clear spends no budget", remedy="use secfed simulate")
    sites, rounds = tuple(sorted(algorithm.setting.sites)), algorithm.setting.study.rounds
    programs = {site: algorithm.site(site) for site in sites}
    tests = {site: program.data.test for site, program in programs.items()}
    server = initial_server(algorithm, load_initial_model(algorithm.setting.study, algorithm))
    weights, losses = [], []
    per_site = [_evaluate(algorithm, server.model(), tests)]
    for round_number in range(1, rounds + 2):
        measured: dict[SiteId, float] = {}
        for exchange in algorithm.exchanges(round_number):
            broadcast = server.broadcast(round_number, exchange)
            asked = algorithm.members(round_number, exchange, sites)
            summands = {site: programs[site].contribute(round_number, exchange, broadcast) for site in asked}
            server.absorb(round_number, exchange, _add(exchange, summands))
            measured.update(_measured(programs))
        if round_number <= rounds:
            if algorithm.rule is not None:
                held = (programs[site].weight for site in sites)
                weights.append(tuple(math.nan if one is None else one.weight for one in held))
                losses.append(tuple(measured.get(site, math.nan) for site in sites))
            per_site.append(_evaluate(algorithm, server.model(), tests))
    return Trajectory(sites, tuple(weights), tuple(losses), tuple(per_site), server.metrics(), server.model())


def steps_of(algorithm: VlpAlgorithm) -> int:
    """Local steps that one site takes in the whole study."""
    rounds = range(1, algorithm.setting.study.rounds + 1)
    return sum(_steps_in(algorithm, round_number) for round_number in rounds)


def train_alone(algorithm: VlpAlgorithm, site: SiteId) -> State:
    """The model that one site trains by itself, with the study's initial model and its own pairs only.

    For ``vlp-fedavg`` only the averaging is missing: equally many steps and a fresh optimiser each round.
    """
    model, pairs = algorithm.network(algorithm.initial), algorithm.site_data(site).train
    for round_number in range(1, algorithm.setting.study.rounds + 1):
        frozen = algorithm.frozen_names(round_number)
        fit_plainly(algorithm, model, pairs, site, round_number, _steps_in(algorithm, round_number), frozen)
    return read_parameters(model)


def train_centralised(algorithm: VlpAlgorithm, steps: int | None = None) -> State:
    """The upper bound: all pairs in one place, by default in as many steps as all sites take together."""
    everything = pooled(algorithm.site_data(site).train for site in algorithm.setting.sites)
    taken = len(algorithm.setting.sites) * steps_of(algorithm) if steps is None else steps
    model = algorithm.network(algorithm.initial)
    fit_plainly(algorithm, model, everything, _POOLED, 1, taken)
    return read_parameters(model)


def retrain(algorithm: VlpAlgorithm, model: State, site: SiteId, steps: int | None = None) -> State:
    """A model after one more round of plain training at one site, by default of the last round's steps."""
    network, rounds = algorithm.network(model), algorithm.setting.study.rounds
    taken = _steps_in(algorithm, max(rounds, 1)) if steps is None else steps
    fit_plainly(algorithm, network, algorithm.site_data(site).train, site, rounds + 1, taken)
    return read_parameters(network)


def retrain_with_own_loss(algorithm: VlpAlgorithm, model: State, site: SiteId, steps: int) -> State:
    """The same, but as the method trains its encoders: with its anchor or its teacher, which is ``model``."""
    rounds, encoders = algorithm.setting.study.rounds, set(algorithm.encoder_names)
    stages = [one for one in algorithm.round_stages(rounds) if one.steps]
    stage = next((one for one in stages if encoders & set(one.trained)), stages[0])
    stage = replace(stage, steps=steps, weighted=False)
    program: VlpSite = algorithm.site_program(algorithm, site)
    write_parameters(program.network, model)
    program.train(rounds + 1, stage, model)
    return read_parameters(program.network)


def distortion(
    algorithm: VlpAlgorithm, model: State, steps: int | None = None, *, own_loss: bool = False
) -> torch.Tensor:
    """[site retrained at, site tested on] in the study's order; see :mod:`distortion`."""
    sites = algorithm.setting.sites
    tests = {site: algorithm.site_data(site).test for site in sites}
    if own_loss:
        taken = _steps_in(algorithm, max(algorithm.setting.study.rounds, 1)) if steps is None else steps
        retrained = {site: retrain_with_own_loss(algorithm, model, site, taken) for site in sites}
    else:
        retrained = {site: retrain(algorithm, model, site, steps) for site in sites}
    return distortion_matrix(algorithm.network(model), model, retrained, tests, algorithm.device)


def recall_at_home(algorithm: VlpAlgorithm, models: Mapping[SiteId, State]) -> Metrics:
    """Recall of each site's own model on its own held-out pairs, averaged over the models."""
    tests = {site: algorithm.site_data(site).test for site in models}
    found = [_evaluate(algorithm, model, {site: tests[site]}).get(site) for site, model in models.items()]
    keys = ("recall_at_1", "recall_at_5")
    return mean_of([{key: metrics[key] for key in keys} for metrics in found if metrics])


def summary(per_site: PerSite) -> dict[str, float]:
    """One model over the sites: mean, lowest, population standard deviation and range of its recall."""
    at_1, at_5 = ([found[f"recall_at_{k}"] for found in per_site.values() if found] for k in (1, 5))
    if not at_1:
        raise ConfigError("no site has held-out pairs", remedy="let the study hold pairs out")
    return {
        "recall_at_1": math.fsum(at_1) / len(at_1),
        "recall_at_5": math.fsum(at_5) / len(at_5),
        "worst_at_1": min(at_1),
        "worst_at_5": min(at_5),
        "disparity": statistics.pstdev(at_1),
        "max_min": max(at_1) - min(at_1),
    }


def relative_summary(algorithm: VlpAlgorithm, model: State) -> dict[str, float]:
    """As :func:`summary`, of each site's recall at 1 divided by what its repeated reports leave possible."""
    tests = [algorithm.site_data(site).test for site in algorithm.setting.sites]
    found = _ceilings(algorithm, model, tests)
    return _spread(found, "relative_recall", "relative_")


def fair_summary(algorithm: VlpAlgorithm, model: State) -> dict[str, float]:
    """Two evaluations in which sites differ by the model and not by their held-out pairs.

    ``common_..``: pairs of each site's style with one mixture of findings for all (``chest-synthetic`` only),
    also divided by their ceiling. ``distinct_..``: each site's own pairs, one of every report.
    """
    data, sites = algorithm.data, algorithm.setting.sites
    tests = [algorithm.site_data(site).test for site in sites]
    found = _spread(_ceilings(algorithm, model, tests, distinct=True), "recall", "distinct_")
    if isinstance(data, ChestSynthetic):
        common = _ceilings(algorithm, model, [data.common(site) for site in sites])
        found |= _spread(common, "recall", "common_") | _spread(common, "relative_recall", "common_relative_")
    return found


def _ceilings(
    algorithm: VlpAlgorithm, model: State, tests: Iterable[Pairs], *, distinct: bool = False
) -> list[dict[str, float]]:
    network, batch = algorithm.network(model), algorithm.options.evaluation_batch
    return [
        retrieval.evaluate_site(network, pairs, batch, algorithm.device, ceiling=True, distinct=distinct)
        for pairs in tests
        if len(pairs)
    ]


def _spread(found: list[dict[str, float]], name: str, start: str = "") -> dict[str, float]:
    """Mean, lowest and population standard deviation over the sites of one recall at 1."""
    values = [one[f"eval/{name}_at_1"] for one in found]
    if not values:
        return {}
    return {
        f"{start}at_1": math.fsum(values) / len(values),
        f"worst_{start}at_1": min(values),
        f"{start}disparity": statistics.pstdev(values),
    }


def pooled(parts: Iterable[Pairs]) -> Pairs:
    """The pairs of several sites, one after another. Masks are kept if every site has them."""
    several = list(parts)
    if not several:
        raise ConfigError("there are no sites to pool", remedy="name at least one")
    masks = [part.masks for part in several if part.masks is not None]
    return Pairs(
        images=torch.cat([part.images for part in several]),
        tokens=torch.cat([part.tokens for part in several]),
        findings=torch.cat([part.findings for part in several]),
        masks=torch.cat(masks) if len(masks) == len(several) else None,
    )


def _evaluate(algorithm: VlpAlgorithm, model: State, tests: Mapping[SiteId, Pairs]) -> PerSite:
    network = algorithm.network(model)
    return {
        site: {
            **retrieval.finish(algorithm.evaluate(network, pairs)),
            "similarity": mean_cosine(network, pairs, algorithm.device),
        }
        for site, pairs in tests.items()
        if len(pairs)
    }


def fit_plainly(
    algorithm: VlpAlgorithm,
    model: DualEncoder,
    pairs: Pairs,
    whose: str,
    round_number: int,
    steps: int,
    frozen: Collection[str] = (),
) -> None:
    """Train all that is not frozen on the plain objective, in place, with a training stage's keys."""
    options, seed = algorithm.options, algorithm.setting.study.seed

    def objective(trained: nn.Module, batch: Batch) -> torch.Tensor:
        total: torch.Tensor = model.objective(trained(*batch)).total
        return total

    rows = contrastive_batches(
        len(pairs),
        batch_size=options.batch_size,
        steps=steps,
        generator=torch_generator(seed, "batches", whose, round_number, JOINT),
    )
    with seeded(seed, "train", whose, round_number, JOINT):
        optimiser = begin_stage(
            model,
            [name for name in algorithm.names if name not in frozen],
            learning_rate=options.learning_rate,
            optimizer=options.optimizer,
            weight_decay=options.weight_decay,
            warmup=options.warmup(steps),
        )
        batches = (options.augmentation((pairs.images[part], pairs.tokens[part])) for part in rows)
        run_stage(
            model, optimiser, objective, batches, device=algorithm.device, settings=StepSettings.of(options)
        )


def _steps_in(algorithm: VlpAlgorithm, round_number: int) -> int:
    return sum(stage.steps for stage in algorithm.round_stages(round_number))


def _measured(programs: Mapping[SiteId, VlpSite]) -> dict[SiteId, float]:
    """The losses in the summands that wait for their answer: an answer, once used, wipes the loss out."""
    weights = {site: program.weight for site, program in programs.items()}
    return {site: weight.loss for site, weight in weights.items() if weight is not None and weight.waiting}


def _add(exchange: Exchange, summands: Mapping[SiteId, Summands]) -> Totals:
    """Exact sums, as no party of a study ever adds them."""
    values = {}
    for field in exchange.layout.fields:
        parts = [torch.as_tensor(one[field.name], dtype=torch.float64) for one in summands.values()]
        values[field.name] = torch.stack(parts).sum(dim=0)
    return Totals(values, tuple(summands))
