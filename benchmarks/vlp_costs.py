"""What each vision-language method trains and sends, counted from its plan at the papers' size.

    python benchmarks/vlp_costs.py [--size paper]

Millions of numbers: the model with what a method adds to it, and what a site adds to the sums of one round.
No network is built and nothing is trained. ViT-B/16 at 224 pixels and six layers of BERT with the few words
of the synthetic reports: FedRGB's Table 9 has BERT's vocabulary, 22 million, and cross-attention besides.
"""

from __future__ import annotations

import argparse
import sys

import sections
import vlp_oracle

from secfed.study.study import Study

METHODS = {
    "FedAvg, FedProx, FedMOON, FedEMA, FedLDAWA": "vlp-fedavg",
    "FedMAE, as sums allow": "vlp-fedmae",
    "FedX and FedU, as sums allow": "vlp-fedx",
    "FedDRA": "feddra",
    "FedRGB": "fedrgb",
}
_STUDY = """
study = {{ name = "costs", rounds = 3 }}
algorithm = {{ name = "{name}" }}
model = {{ name = "vision-language", size = "{size}" }}
data = {{ name = "chest-synthetic", sites = 5, train = 2, test = 2, size = {pixels} }}
protection = {{ name = "masked", threshold = 4 }}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "small", "paper"), default="paper")
    print(costs(parser.parse_args().size))
    return 0


def costs(size: str) -> str:
    """The table."""
    lines = []
    for title, name in METHODS.items():
        text = _STUDY.format(name=name, size=size, pixels=224 if size == "paper" else 16)
        algorithm = vlp_oracle.algorithm_of(Study.parse(text))
        model = sum(value.numel() for value in algorithm.shapes.parameters())
        sums = {
            stage.exchange.name: sum(field.elements for field in stage.exchange.layout.fields)
            for stage in algorithm.round_stages(3)
        }
        parts = " + ".join(f"{count / 1e6:.1f}" for count in sums.values() if count > 100)
        lines.append([title, f"{model / 1e6:.1f}", parts, f"{sum(sums.values()) / 1e6:.1f}"])
    return sections.table(["method", "model", "up per round, by sum", "in all"], lines)


if __name__ == "__main__":
    sys.exit(main())
