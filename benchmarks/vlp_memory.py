"""How much memory a site needs to train a dual encoder, in the papers' size: 224 pixels, texts of 112 tokens.

python benchmarks/vlp_memory.py --batch 288 [--checkpointing] [--vocabulary 28996]
"""

from __future__ import annotations

import argparse

from secfed.algorithms.models.dual_encoder_memory import memory_estimate
from secfed.algorithms.models.dual_encoder_options import VisionLanguageOptions
from secfed.config.schema import checked


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=72, help="pairs per step")
    parser.add_argument("--vocabulary", type=int, default=4100, help="token ids are below this")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    asked = parser.parse_args()
    table = {"name": "vision-language", "size": "paper", "gradient_checkpointing": asked.checkpointing}
    options = checked(VisionLanguageOptions, table, "model")
    found = memory_estimate(options, (3, 224, 224), 112, asked.vocabulary, batch=asked.batch)
    for name, size in (*found.items(), ("in all", sum(found.values()))):
        print(f"{name:11} {size / 1e9:6.2f} GB")


if __name__ == "__main__":
    main()
