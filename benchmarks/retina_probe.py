"""Probes what retinal pre-training taught on mBRSET, with few labels: FedDRA's Table 4.

    python benchmarks/retina_probe.py STUDY.toml runs/STUDY/model.safetensors FOLDER [--share 0.1]

Prints the accuracy, and the balanced accuracy, of a linear layer on the frozen image encoder that tells
whether there is any diabetic retinopathy, and whether there is macular edema, from 10, 20 and 100 percent of
the training labels (``--share``). A fifth of the patients is held out; photographs without grades are left
out. mBRSET needs an agreement (docs/data.md). ORACLE where the model saw the study's records: a simulation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import linear_probe
import sections
import torch
import vlp_oracle
from safetensors.torch import load_file

from secfed.algorithms.data.image_text.base import ImageTextSite
from secfed.algorithms.data.image_text.ophthalmology import (
    FINDINGS,
    MBRSET,
    OphthalmologyOptions,
    ophthalmology,
)
from secfed.algorithms.data.images_and_texts import PairsOptions
from secfed.algorithms.models.dual_encoder import DualEncoder
from secfed.config.schema import checked
from secfed.errors import ConfigError
from secfed.study.study import Study

SHARES: Final = (0.1, 0.2, 1.0)
_HELD_OUT: Final = 0.2
_IMAGES: Final = ("size", "channels", "resize", "normalise", "mean", "std", "max_image_mib", "max_megapixels")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", type=Path, help="the study that trained the model")
    parser.add_argument("model", type=Path, help="its model.safetensors")
    parser.add_argument(
        "mbrset", type=Path, help=f"the folder with {MBRSET['table']} and {MBRSET['images']}/"
    )
    parser.add_argument("--share", type=float, action="append", help="of the labels; may be repeated")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    study = Study.load(asked.study)
    algorithm = vlp_oracle.algorithm_of(study)
    network = algorithm.network(load_file(asked.model))
    photographs = mbrset(study, asked.mbrset)
    print(f"{len(photographs.train)} photographs to train on, {len(photographs.test)} held out")
    print(probe(network, photographs, asked.share or SHARES, study.seed, algorithm.device))
    return 0


def mbrset(study: Study, folder: Path) -> ImageTextSite:
    """The graded photographs, prepared as the study's images are, a fifth of the patients held out."""
    data = study.data
    if not isinstance(data, PairsOptions):
        message = f"data.name: {data.name} does not read image files, so photographs cannot be prepared alike"
        raise ConfigError(message, remedy="name a study of ophthalmology, image-text, medpix or mimic-cxr")
    keys = {key: value for key in _IMAGES if (value := getattr(data, key)) is not None}
    if data.normalise == "image":
        keys = {key: value for key, value in keys.items() if key not in ("mean", "std")}
    given = {"name": "ophthalmology", "test_fraction": _HELD_OUT, "clinics": {"mbrset": dict(MBRSET)}, **keys}
    return ophthalmology(checked(OphthalmologyOptions, given, "data"), study.seed, folder).site("mbrset")


def probe(
    network: DualEncoder, data: ImageTextSite, shares: Sequence[float], seed: int, device: torch.device
) -> str:
    """The table, in percent: a row per finding and share of the labels."""
    train, test = (
        linear_probe.pooled_features(network, part.images, device) for part in (data.train, data.test)
    )
    lines = []
    for at, finding in enumerate(FINDINGS):
        of, true = data.train.findings[:, at], data.test.findings[:, at]
        for share in shares:
            found = linear_probe.probe_features(train, of, test, true, 2, share, seed)
            scores = [f"{100 * found[name]:.1f}" for name in ("accuracy", "balanced_accuracy")]
            lines.append([f"{finding}, {100 * share:g} % of the labels", *scores])
    return sections.table(["probe", "accuracy", "balanced"], lines)


if __name__ == "__main__":
    sys.exit(main())
