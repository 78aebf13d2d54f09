"""The papers' drift probes: what one site does to a federated model, and all pairs to a local one.

    python benchmarks/vlp_drift.py [--seed 1] [--layers 1] [--steps 100] [--toy]

Synthetic chest images, five sites, from scratch. Prints R@1 in percent at every site (Tables 10 to 13 of
FedDRA; 12, 13, 17 and 18 of FedRGB): of the FedAvg model; of it after one more round at a site, and after
only its first layers were trained there, each the mean over the five models; of the mean of local models;
and of local models whose first layers were trained on the pairs of all sites. ORACLE: no party of a study
could print it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sections
import torch
import vlp_oracle
import vlp_runs

from secfed.algorithms.data.image_text.base import Pairs
from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.study.study import Study
from secfed.wire.layout import State


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=1, help="of both encoders; the papers: 4 of 12")
    parser.add_argument("--steps", type=int, default=100, help="steps of training them; the papers: 500")
    parser.add_argument("--toy", action="store_true", help="a size that only tries the code")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        text = vlp_runs.study_text("chest-synthetic", "fedavg-warm", asked.seed, Path(folder), toy=asked.toy)
    print(drift(vlp_oracle.algorithm_of(Study.parse(text)), asked.layers, asked.steps))
    return 0


def drift(algorithm: VlpAlgorithm, layers: int, steps: int) -> str:
    """The table."""
    sites = algorithm.setting.sites
    pairs = {site: algorithm.site_data(site).train for site in sites}
    everything = vlp_oracle.pooled(pairs.values())
    federated = vlp_oracle.run_in_clear(algorithm).model
    alone = [vlp_oracle.train_alone(algorithm, site) for site in sites]
    rows = {
        "FedAvg": [federated],
        "FedAvg, one more round at a site": [
            vlp_oracle.retrain(algorithm, federated, site) for site in sites
        ],
        "FedAvg, first layers trained at a site": [
            shallow(algorithm, federated, pairs[site], site, layers, steps) for site in sites
        ],
        "decentralised": alone,
        "decentralised, first layers trained on all pairs": [
            shallow(algorithm, model, everything, "all sites", layers, steps) for model in alone
        ],
    }
    lines = [[title, *_recalls(algorithm, models)] for title, models in rows.items()]
    return sections.table(["model", *sites, "mean"], lines)


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


def _recalls(algorithm: VlpAlgorithm, models: Sequence[State]) -> list[str]:
    """Per site, the mean over models; and the mean of those."""
    found = [algorithm.per_site(model) for model in models]
    each = [
        statistics.fmean(100 * one[site]["recall_at_1"] for one in found) for site in algorithm.setting.sites
    ]
    return [f"{value:.1f}" for value in (*each, statistics.fmean(each))]


if __name__ == "__main__":
    sys.exit(main())
