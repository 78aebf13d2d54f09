"""What travels when all of a vision transformer trains, its head, or low-rank adapters: bytes and seconds.

    python benchmarks/adapters.py

Prints the table of docs/studies.md. The transformer is timm's with the given width and depth, for the images
of the data set ``digits``; it is not pretrained, so what it learns says nothing and is not shown.

Bytes are of one hospital in one round; processor seconds of all four and of the aggregator, the closing
evaluation included.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from torch import nn

from secfed import Study, simulate

WAYS: dict[str, dict[str, Any]] = {
    "everything": {},
    'head (`travels = ["head.*"]`)': {"travels": ["head.*"]},
    'adapters and head (`adapters = ["blocks.*"]`)': {"adapters": ["blocks.*"], "travels": ["head.*"]},
}
PRIVACY = {"unit": "record", "epsilon": 8.0, "delta": 1e-4, "clip_norm": 1.0, "metrics": "unprotected"}


def transformer(input_shape: tuple[int, ...], classes: int, *, width: int, depth: int) -> nn.Module:
    """A vision transformer over patches of two by two pixels."""
    from timm.models.vision_transformer import VisionTransformer

    side = {"img_size": input_shape[1], "patch_size": 2, "in_chans": input_shape[0]}
    made: nn.Module = VisionTransformer(
        **side, num_classes=classes, embed_dim=width, depth=depth, num_heads=width // 64
    )
    return made


def study(way: dict[str, Any], private: bool, options: argparse.Namespace) -> Study:
    """Two rounds of FedAvg at four hospitals."""
    return Study.of(
        study={"name": "adapters", "rounds": options.rounds},
        algorithm={"name": "fedavg", "weighting": "equal", "learning_rate": 0.01, **way},
        model={"name": transformer, "width": options.width, "depth": options.depth},
        data={"name": "digits", "sites": 4},
        **({"privacy": PRIVACY} if private else {}),
    )


def main() -> None:
    """Print one row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| trains and travels | bytes up | bytes down | CPU seconds a round | with `[privacy]` |")
    print("|---|---|---|---|---|")
    for name, way in WAYS.items():
        seconds = []
        for private in (False, True):
            began = time.process_time()  # whatever else the machine is doing
            report = simulate(study(way, private, options))
            seconds.append((time.process_time() - began) / options.rounds)
            last = report.rounds[-1]
        up, down = (one.mean for one in (last.bytes_up_per_site, last.bytes_down_per_site))
        print(f"| {name} | {up:,.0f} | {down:,.0f} | {seconds[0]:.1f} | {seconds[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
