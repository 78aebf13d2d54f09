"""What travels when all of a transformer trains, its head, or low-rank adapters: bytes and seconds.

    python benchmarks/adapters.py [--model bert]

Prints a table of docs/studies.md. The transformer has the given width and depth: a vision transformer of
timm for the images of the data set ``digits``, or a BERT of Hugging Face that reads their 64 pixels as words.
It is not pretrained, so what it learns says nothing and is not shown. Where peft is installed (extra
``adapters``), its LoRA is beside secfed's own, over the same layers with the same rank.

Bytes are of one hospital in one round; processor seconds of all four and of the aggregator, the closing
evaluation included.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import nn

from secfed import Study, simulate
from secfed.errors import RoundAborted
from secfed.runs.run_report import RoundReport

RANK: Final = 4
PRIVACY = {"unit": "record", "epsilon": 8.0, "delta": 1e-4, "clip_norm": 1.0, "metrics": "unprotected"}


class Reader(nn.Module):
    """A BERT of Hugging Face over the pixels of an image, of which there are seventeen kinds."""

    def __init__(self, pixels: int, classes: int, width: int, depth: int) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        self.net = BertForSequenceClassification(
            BertConfig(
                vocab_size=17,
                max_position_embeddings=pixels,
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=width // 64,
                intermediate_size=4 * width,
                num_labels=classes,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores [n, classes] of images [n, 1, 8, 8] with values from 0 to 1."""
        words = (images.flatten(1) * 16).round().long().clamp(0, 16)
        # One row of positions for each record: one for the batch has no gradient of each record.
        places, kinds = torch.arange(words.shape[1]).expand_as(words), torch.zeros_like(words)
        scores: torch.Tensor = self.net(input_ids=words, position_ids=places, token_type_ids=kinds).logits
        return scores


def transformer(
    input_shape: tuple[int, ...], classes: int, *, width: int, depth: int, peft: bool = False
) -> nn.Module:
    """A vision transformer over patches of two by two pixels."""
    from timm.models.vision_transformer import VisionTransformer

    side = {"img_size": input_shape[1], "patch_size": 2, "in_chans": input_shape[0]}
    made: nn.Module = VisionTransformer(
        **side, num_classes=classes, embed_dim=width, depth=depth, num_heads=width // 64
    )
    return with_lora(made, r".*blocks\..*\.(qkv|proj|fc1|fc2)") if peft else made


def bert(
    input_shape: tuple[int, ...], classes: int, *, width: int, depth: int, peft: bool = False
) -> nn.Module:
    """A BERT that reads an image pixel by pixel."""
    made = Reader(input_shape[1] * input_shape[2], classes, width, depth)
    return with_lora(made, r".*encoder\..*\.(query|key|value|dense)") if peft else made


def with_lora(model: nn.Module, layers: str) -> nn.Module:
    """A model with peft's adapters beside the linear layers that a regular expression matches."""
    from peft import LoraConfig, get_peft_model

    made: nn.Module = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=layers))
    return made


MODELS: Final[Mapping[str, tuple[Callable[..., nn.Module], str, str]]] = {
    "timm": (transformer, "head.*", "blocks.*"),  # factory, names of the head, and of what is adapted
    "bert": (bert, "net.classifier.*", "net.bert.encoder.*"),
}


def ways(model: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What a study says about the parts that train: in ``[algorithm]``, and to the factory."""
    _, head, layers = MODELS[model]
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "everything": ({}, {}),
        f'head (`travels = ["{head}"]`)': ({"travels": [head]}, {}),
        f'adapters and head (`adapters = ["{layers}"]`)': (
            {"adapters": [layers], "adapter_rank": RANK, "travels": [head]},
            {},
        ),
    }
    if find_spec("peft") is not None:
        travels = ["*lora_*", f"*.{head}"]
        found[f"adapters of peft and head (`travels = {travels}`)".replace("'", '"')] = (
            {"travels": travels},
            {"peft": True},
        )
    return found


def study(way: tuple[dict[str, Any], dict[str, Any]], private: bool, options: argparse.Namespace) -> Study:
    """Rounds of FedAvg at four hospitals."""
    algorithm, given = way
    return Study.of(
        study={"name": "adapters", "rounds": options.rounds},
        algorithm={"name": "fedavg", "weighting": "equal", "learning_rate": 0.01, **algorithm},
        model={"name": MODELS[options.model][0], "width": options.width, "depth": options.depth, **given},
        data={"name": "digits", "sites": 4},
        **({"privacy": PRIVACY} if private else {}),
    )


def measured(asked: Study) -> tuple[RoundReport, float]:
    """The last round, and processor seconds of a round."""
    began_s = time.process_time()  # whatever else the machine is doing
    report = simulate(asked)
    return report.rounds[-1], (time.process_time() - began_s) / asked.rounds


def main() -> None:
    """Print one row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=tuple(MODELS), default="timm")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| trains and travels | bytes up | bytes down | CPU seconds a round | with `[privacy]` |")
    print("|---|---|---|---|---|")
    for name, way in ways(options.model).items():
        last, seconds = measured(study(way, False, options))
        up, down = (one.mean for one in (last.bytes_up_per_site, last.bytes_down_per_site))
        try:
            private = f"{measured(study(way, True, options))[1]:.1f}"
        except RoundAborted as error:
            print(error, file=sys.stderr)
            private = "refused"  # where a parameter has no gradient for each record
        print(f"| {name} | {up:,.0f} | {down:,.0f} | {seconds:.1f} | {private} |", flush=True)


if __name__ == "__main__":
    main()
