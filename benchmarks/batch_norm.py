"""Batch normalisation in federated averaging beside group normalisation: networks as hospitals have them.

    python benchmarks/batch_norm.py [--networks resnet18 ...] [--seeds 1] [--jobs 1]

PneumoniaMNIST (chest X-rays of children, 28 by 28 pixels, padded to 32) at four hospitals, 300 records each,
of which 120 are held out; three rounds of one pass. The networks are not pretrained. Every run is a process
of one thread and leaves one JSON file in ``runs/batch-norm``; what is there is not repeated. The table of
docs/studies.md is printed from the files, also after an interruption, and says what is missing.

Sums are plain: secure ones give the same model, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import comparison
import numpy as np
from torch import nn

from secfed import Study, simulate
from secfed.algorithms.data.folders import data_folder
from secfed.algorithms.data.memory import SiteTables

NETWORKS: Final = ("resnet18", "efficientnet_lite0", "densenet121")
WAYS: Final[dict[str, dict[str, Any]]] = {
    "group normalisation": {"name": "fedavg"},
    '`"pooled"`': {"name": "fedavg", "batch_norm": "pooled", "statistics_every": 0},
    '`"local"`': {"name": "fedbn", "batch_norm": "local"},
    '`"frozen"`': {"name": "fedavg", "batch_norm": "frozen"},
}
HOSPITALS: Final = 4
RECORDS: Final = 300  # of a hospital
MEAN, SPREAD = np.float32(128), np.float32(64)  # of a grey value, about
HELD_OUT: Final = 0.4
ROUNDS: Final = 3


def pneumonia(seed: int) -> SiteTables:
    """Records drawn from the training part, in the order of a shuffle."""
    with np.load(data_folder() / "pneumoniamnist.npz") as file:
        images, labels = file["train_images"], file["train_labels"][:, 0]
    chosen = np.random.default_rng(seed).permutation(len(images))[: HOSPITALS * RECORDS]
    records = (np.pad(images[chosen], ((0, 0), (2, 2), (2, 2)))[:, None] - MEAN) / SPREAD
    sites = np.split(np.arange(len(chosen)), HOSPITALS)
    tables = {f"hospital-{n}": (records[at], labels[chosen][at]) for n, at in enumerate(sites, 1)}
    return SiteTables(tables, classes=2, test_fraction=HELD_OUT, standardize=False)


def network(input_shape: tuple[int, ...], classes: int, *, kind: str, grouped: bool) -> nn.Module:
    """densenet121 is torchvision's, the others are timm's."""
    if kind == "densenet121":
        from torchvision.models import densenet121

        made: nn.Module = densenet121(num_classes=classes)
        first: Any = made.features  # type: ignore[union-attr]
        first.conv0 = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
    else:
        import timm

        made = timm.create_model(kind, in_chans=input_shape[0], num_classes=classes, drop_rate=0.0)
    return with_group_norm(made) if grouped else made


def with_group_norm(model: nn.Module) -> nn.Module:
    """In place of every layer of batch normalisation one of at most eight groups; activations stay."""
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.BatchNorm2d):
            owner, _, last = name.rpartition(".")
            norm = nn.GroupNorm(math.gcd(part.num_features, 8), part.num_features)
            after = [getattr(part, other) for other in ("drop", "act") if hasattr(part, other)]
            setattr(model.get_submodule(owner), last, nn.Sequential(norm, *after) if after else norm)
    return model


def study(kind: str, way: str, seed: int) -> Study:
    """One run."""
    options = {"optimizer": "adam", "learning_rate": 3e-4, "batch_size": 16, "weighting": "equal"}
    return Study.of(
        study={"name": "batch-norm", "rounds": ROUNDS, "seed": seed},
        algorithm={**options, **WAYS[way]},
        model={"name": network, "kind": kind, "grouped": "batch_norm" not in WAYS[way]},
        data={"name": pneumonia, "seed": seed},
        protection={"name": "plain"},
    )


def run_one(kind: str, way: str, seed: int, out: Path) -> None:
    """One run into its file."""
    asked = study(kind, way, seed)
    began_s = time.process_time()
    final = simulate(asked).final
    found = {"study": asked.digest().hex(), "cpu_s": time.process_time() - began_s, "final": dict(final)}
    comparison.write_result(out, found)


def page(runs: Path, seeds: list[int], networks: Sequence[str]) -> Iterator[str]:
    """The rows of the table."""
    yield f"| AUC | {' | '.join(networks)} |"
    yield f"|---|{'---|' * len(networks)}"
    for way in WAYS:
        cells = []
        for kind in networks:
            files = [_file(runs, kind, way, seed) for seed in seeds]
            found = [json.loads(file.read_text()) for file in files if file.is_file()]
            shown = comparison.mean_and_spread((one["final"]["roc_auc"] for one in found), 3, 1.0)
            seconds = f" ({found[0]['cpu_s']:.0f} s)" if found else " (not run)"
            cells.append(shown + seconds)
        yield f"| {way} | {' | '.join(cells)} |"


def _file(runs: Path, kind: str, way: str, seed: int) -> Path:
    return runs / f"{kind}-{way.strip('`').strip(chr(34)).replace(' ', '-')}-{seed}.json"


def main() -> int:
    """Run what is missing, and print the table."""
    parser = comparison.arguments(__doc__, "runs/batch-norm")
    parser.set_defaults(seeds=[1])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    runs = Path(asked.runs).resolve()
    if asked.one:
        kind, way, seed = asked.one
        run_one(kind, way, int(seed), _file(runs, kind, way, int(seed)))
        return 0

    def jobs() -> Iterator[Any]:
        runs.mkdir(parents=True, exist_ok=True)
        for seed in asked.seeds:
            for kind in asked.networks:
                for way in WAYS:
                    out = _file(runs, kind, way, seed)
                    if not comparison.is_done(out, study(kind, way, seed).digest().hex()):
                        yield comparison.one_run(__file__, runs, (kind, way, str(seed)), out)

    def table() -> Path:
        print("\n".join(page(runs, asked.seeds, asked.networks)))
        return runs

    return comparison.run_missing(asked, jobs(), table)


if __name__ == "__main__":
    raise SystemExit(main())
