"""The papers' drift probes: what one site does to a federated model, and all pairs to a local one.

    python benchmarks/vlp_drift.py [--seeds 1] [--layers 1] [--steps 100] [--keep] [--toy]
    python benchmarks/kept_runs.py show vlp-drift --score recall_at_1 --beside fedavg

Synthetic chest images, five sites, from scratch. Prints R@1 in percent at every site (Tables 10 to 13 of
FedDRA; 12, 13, 17 and 18 of FedRGB): of the FedAvg model; of it after one more round at a site, and after
only its first layers were trained there, each the mean over the five models; of the mean of local models;
of local models whose first layers were trained on the pairs of all sites; and of one model of all pairs.
With ``--keep`` also a line per model into docs/results/runs. ORACLE: no party of a study could print it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import kept_runs
import sections
import torch
import vlp_oracle
import vlp_runs

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.study.study import Study
from secfed.wire.layout import State

NAME: Final = "vlp-drift"  # under which runs are kept
TITLES: Final = {
    "fedavg": "FedAvg",
    "fedavg-one-more-round": "FedAvg, one more round at a site",
    "fedavg-shallow": "FedAvg, first layers trained at a site",
    "decentralised": "decentralised",
    "decentralised-shallow": "decentralised, first layers trained on all pairs",
    "centralised": "centralised",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--layers", type=int, default=1, help="of both encoders; the papers: 4 of 12")
    parser.add_argument("--steps", type=int, default=100, help="steps of training them; the papers: 500")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--toy", action="store_true", help="a size that only tries the code")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as folder:
            text = vlp_runs.study_text("chest-synthetic", "fedavg-warm", seed, Path(folder), toy=asked.toy)
        found = drift(vlp_oracle.algorithm_of(Study.parse(text)), asked.layers, asked.steps)
        print(f"Seed {seed}\n\n{table(found)}")
        if asked.keep:
            rows = kept_runs.merged(kept_runs.kept(NAME), as_rows(found, seed))
            kept_runs.write(kept_runs.FOLDER / f"{NAME}.csv", rows)
    return 0


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Of one seed, in percent."""
    *sites, _ = next(iter(found.values()))
    lines = [
        [TITLES[model], *(f"{100 * value:.1f}" for value in recalls.values())]
        for model, recalls in found.items()
    ]
    return sections.table(["model", *sites, "mean"], lines)


def as_rows(found: Mapping[str, Mapping[str, float]], seed: int) -> list[kept_runs.Row]:
    """Lines to keep: a model is a variant."""
    return [
        {"panel": "chest-synthetic", "variant": model, "seed": str(seed)}
        | {name: f"{value:.6g}" for name, value in recalls.items()}
        for model, recalls in found.items()
    ]


def drift(algorithm: VlpAlgorithm, layers: int, steps: int) -> dict[str, dict[str, float]]:
    """R@1 of each kind of model at every site, and its mean over them (``recall_at_1``)."""
    sites = algorithm.setting.sites
    pairs = {site: algorithm.site_data(site).train for site in sites}
    everything = vlp_oracle.pooled(pairs.values())
    federated = vlp_oracle.run_in_clear(algorithm).model
    alone = [vlp_oracle.train_alone(algorithm, site) for site in sites]
    models = {
        "fedavg": [federated],
        "fedavg-one-more-round": [vlp_oracle.retrain(algorithm, federated, site) for site in sites],
        "fedavg-shallow": [shallow(algorithm, federated, pairs[site], site, layers, steps) for site in sites],
        "decentralised": alone,
        "decentralised-shallow": [
            shallow(algorithm, model, everything, "all sites", layers, steps) for model in alone
        ],
        "centralised": [vlp_oracle.train_centralised(algorithm)],
    }
    return {name: _recalls(algorithm, several) for name, several in models.items()}


def shallow(
    algorithm: VlpAlgorithm, model: State, pairs: Pairs, whose: str, layers: int, steps: int
) -> State:
    """A model whose embeddings of patches and words, and first blocks, were trained further."""
    network = algorithm.network(model)
    first = tuple(f"{one}.{at}." for one in _BLOCKS for at in range(layers))
    moves = [name for name in algorithm.encoder_names if name.startswith((*_EMBEDDINGS, *first))]
    frozen = set(algorithm.names) - set(moves)
    vlp_oracle.fit_plainly(
        algorithm, network, pairs, whose, algorithm.setting.study.rounds + 1, steps, frozen
    )
    return read_parameters(network)


_BLOCKS = ("image_encoder.blocks", "text_encoder.encoder.layer")
_EMBEDDINGS = ("image_encoder.patch_embed.", "image_encoder.prefix.", "text_encoder.embeddings.")


def _recalls(algorithm: VlpAlgorithm, models: Sequence[State]) -> dict[str, float]:
    """Per site, the mean over models; and the mean of those."""
    found = [algorithm.per_site(model) for model in models]
    each = {
        site: statistics.fmean(one[site]["recall_at_1"] for one in found) for site in algorithm.setting.sites
    }
    return {**each, "recall_at_1": statistics.fmean(each.values())}


if __name__ == "__main__":
    sys.exit(main())
