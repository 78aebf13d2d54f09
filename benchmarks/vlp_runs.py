"""One run of the vision-language comparison: a data set, a method, a seed; everything it is measured by."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import linear_probe
import segmentation
import torch
import vlp_figures
import vlp_oracle
from comparison import mean_of, write_result
from safetensors.torch import load_file, save_file

from secfed.algorithms.data.folders import data_folder
from secfed.algorithms.data.image_text import chest_synthetic
from secfed.algorithms.metrics import retrieval
from secfed.algorithms.vision_language.base import VlpAlgorithm
from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from secfed.wire.layout import State

ROUNDS, STEPS = 6, 40  # of every method: 240 local steps per site
PNEUMONIA = "pneumoniamnist.npz"
_PROBED = {"": linear_probe.pooled_features, "_path": linear_probe.path_features}


@dataclass(frozen=True)
class DataSet:
    title: str
    table: str  # its ``[data]`` table
    toy: Mapping[str, str]  # replacements that make it small
    # its public preprocessing, from [n, 1, size, size] in [0, 1]
    prepare: Callable[[torch.Tensor], torch.Tensor]
    batch: int = 64  # pairs per retrieval batch; a site's held-out pairs should fill at least one
    # ``[algorithm]`` keys that all methods have on this set
    keys: Mapping[str, object] = field(default_factory=dict)
    needs: str = ""  # a file of the shared data folder, or nothing


@dataclass(frozen=True)
class Method:
    """One row of the table; ``kind`` is how it is trained: "federated", or outside any protocol."""

    title: str
    algorithm: str = "vlp-fedavg"
    keys: Mapping[str, object] = field(default_factory=dict)
    rounds: int = ROUNDS
    kind: str = "federated"
    privacy: str = ""
    pretrained: bool = False


def _own_scale(images: torch.Tensor) -> torch.Tensor:
    centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
    return centred / centred.std(dim=(1, 2, 3), keepdim=True, correction=0).clamp_min(1e-6)


def _chest(images: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(chest_synthetic.prepared(images[:, 0].numpy()))


SETS = {
    "chest-synthetic": DataSet(
        "SYNTHETIC chest images with synthetic reports, five sites",
        'name = "chest-synthetic"\nsites = 5\ntrain = 1500\ntest = 256\nalpha = 0.3\nstyle = 0.7',
        {"train = 1500": "train = 80", "test = 256": "test = 64"},
        _chest,
    ),
    "medpix": DataSet(
        "MedPix: real CT and MR slices with the captions of their cases, five sites",
        'name = "medpix"\nsites = 5\nshift = "type"\nsize = 32',
        {},
        _own_scale,
        batch=16,
        # Three hundred pairs per site would be learnt by heart: they are changed at random.
        keys={"batch_size": 32, "augment_images": 1.0, "drop_words": 0.3},
        needs="medpix2_160.zip",
    ),
}

_MEAN = {"anchor_reduction": "mean"}
_DRA = {"align_steps": 10, "joint_steps": STEPS - 10, "rho": 0.01, "mu": 5.0, **_MEAN}
_HEADS_EACH = {**_DRA, "rho": 0.0, "mu": 0.0}  # FedDRA's stages without its weights and anchor
_RGB = {"warmup_steps": 30, "guided_steps": 20, "teacher_steps": 15, "rho": 0.01, "guidance": 5.0, **_MEAN}
METHODS = {
    "untrained": Method("untrained", kind="untrained"),
    "decentralised": Method("decentralised", keys={"local_steps": STEPS}, kind="decentralised"),
    "fedavg": Method("FedAvg", keys={"local_steps": STEPS}),
    "fedprox": Method("FedProx", "vlp-fedprox", {"local_steps": STEPS, "mu": 0.01}),
    "fedrgb": Method("FedRGB", "fedrgb", _RGB, ROUNDS + 1),
    "feddra": Method("FedDRA", "feddra", _DRA),
    "centralised": Method("centralised", keys={"local_steps": STEPS}, kind="centralised"),
}
# Every stage begins with a fresh AdamW, whose first steps have full size in the direction of a gradient's
# signs. At this learning rate they undo what sites had in common: FedDRA's recall falls by half in round 2. A
# rate that rises over some steps prevents it.
_RISING = {"learning_rate_warmup": 10}
WARM = {
    f"{name}-warm": replace(method, keys={**method.keys, **_RISING})
    for name, method in METHODS.items()
    if name != "untrained"
}
# What the methods train beside the encoders comes on top of federated averaging's steps: 20 of alignment to
# FedDRA's 50 (the authors' code), FedRGB's second stage of 50. The same proportions, to 40.
ON_TOP = {
    "feddra-on-top": Method("FedDRA, on top", "feddra", {**_DRA, "align_steps": 16, "joint_steps": STEPS}),
    "fedrgb-on-top": Method(
        "FedRGB, on top",
        "fedrgb",
        {**_RGB, "warmup_steps": STEPS, "guided_steps": STEPS, "teacher_steps": STEPS},
        ROUNDS + 1,
    ),
    "fedavg-56": Method("FedAvg, 56 steps per round", keys={"local_steps": STEPS + 16}),
}
# As the papers: encoders that were trained before on public data, new alignment modules, smaller steps.
_TUNED = {"learning_rate": 5e-4}


def _pretrained(methods: Mapping[str, Method]) -> dict[str, Method]:
    return {
        f"{name}-pretrained": replace(method, keys={**method.keys, **_TUNED}, pretrained=True)
        for name, method in methods.items()
    }


PRETRAINED = _pretrained(METHODS)
# What the papers compare with besides, where secure sums allow it; their own parameters at the defaults.
OTHERS = _pretrained(
    {
        "fedmoon": Method("FedMOON", "vlp-fedmoon", {"local_steps": STEPS}),
        "fedema": Method("FedEMA", "vlp-fedema", {"local_steps": STEPS}),
        "fedldawa": Method("FedLDAWA", "vlp-fedldawa", {"local_steps": STEPS}),
        "fedmae": Method("FedMAE, as sums allow", "vlp-fedmae", {"local_steps": STEPS}),
        "fedx": Method("FedX, as sums allow", "vlp-fedx", {"local_steps": STEPS}),
        "fedu": Method("FedU, as sums allow", "vlp-fedu", {"local_steps": STEPS}),
    }
)
ABLATION = _pretrained(
    {
        "feddra-no-align": Method(
            "without the align stage", "feddra", {**_DRA, "align_steps": 0, "joint_steps": STEPS}
        ),
        "feddra-no-weights": Method("without robust weights", "feddra", {**_DRA, "rho": 0.0}),
        "feddra-no-anchor": Method("without the anchor", "feddra", {**_DRA, "mu": 0.0}),
        "feddra-rho-01": Method("rho = 0.1, the paper's", "feddra", {**_DRA, "rho": 0.1}),
        "fedavg-heads-each": Method("FedAvg, heads first in every round", "feddra", _HEADS_EACH),
    }
)
# The papers' formulas have squared norms, summed over an embedding's dimensions; their authors' code, and the
# tables above, have the mean over 64 of them. The probe of distortion then trains with the method's own loss.
_SUM = {"anchor_reduction": "sumdim"}
UNITS = _pretrained(
    {
        "feddra-sum-1": Method("FedDRA, squared norm, mu = 1", "feddra", {**_DRA, **_SUM, "mu": 1.0}),
        "feddra-sum-5": Method("FedDRA, squared norm, mu = 5", "feddra", {**_DRA, **_SUM}),
        "feddra-sum-10": Method("FedDRA, squared norm, mu = 10", "feddra", {**_DRA, **_SUM, "mu": 10.0}),
        "fedrgb-sum-1": Method(
            "FedRGB, squared norm, guidance 1", "fedrgb", {**_RGB, **_SUM, "guidance": 1.0}, ROUNDS + 1
        ),
        "fedrgb-sum-5": Method("FedRGB, squared norm, guidance 5", "fedrgb", {**_RGB, **_SUM}, ROUNDS + 1),
    }
)
# FedRGB without one of its parts: the mean of the sites' own aligners as the teacher, for as many steps; and
# a contrast instead of the squared distance.
GUIDES = _pretrained(
    {
        "fedrgb-averaged": Method(
            "FedRGB, the mean of local aligners",
            "fedrgb",
            {**_SUM, "warmup_steps": 30, "guided_steps": 35, "guidance": 1.0, "teacher": "averaged"},
            ROUNDS + 1,
        ),
        "fedrgb-contrast": Method(
            "FedRGB, guided by a contrast",
            "fedrgb",
            {**_RGB, **_SUM, "guidance": 1.0, "guidance_loss": "contrastive"},
            ROUNDS + 1,
        ),
    }
)
# Robust weights made from how far a site's loss exceeds that of a model of its own, trained for as many
# steps as the study has.
EXCESS = _pretrained(
    {
        "feddra-excess": Method(
            "FedDRA, weights from the excess, rho = 0.1",
            "feddra",
            {**_DRA, "rho": 0.1, "reference_steps": 6 * STEPS},
        ),
    }
)
# The papers' counting, FedAvg with as many steps, or heads first; a tenth of each stage rising, or none.
_SHARE = {"learning_rate_warmup_share": 0.1}
_COUNTED = {
    **ON_TOP,
    "fedavg-80": Method("FedAvg, 80 steps per round", keys={"local_steps": 2 * STEPS}),
    "fedavg-heads": Method(
        "FedAvg, heads first", keys={"local_steps": STEPS, "head_rounds": 1}, rounds=ROUNDS + 1
    ),
}
COUNTING = _pretrained(
    {
        f"{name}-share": replace(method, keys={**method.keys, **_SHARE})
        for name, method in {
            **_COUNTED,
            "fedavg-heads-each": Method("FedAvg, heads first in every round", "feddra", _HEADS_EACH),
        }.items()
    }
)
AT_ONCE = _pretrained(_COUNTED)
TRACES = {f"{name}-trace": replace(WARM[f"{name}-warm"], kind="trace") for name in ("feddra", "fedrgb")}
_EPSILON = 'epsilon = 8.0\ndelta = 1e-4\nclip_norm = 1.0\nmetrics = "unprotected"'
# Noise grows with the number of parameters and falls with the pairs per step, and every step is a release: so
# with privacy only the new alignment modules are trained, in few steps of many pairs each.
_FEW = {**_DRA, "joint_steps": 0, "batch_size": 480, "learning_rate": 8e-3, "loss_batch_size": 16}
PRIVATE = {
    "feddra-align-pretrained": Method("no privacy", "feddra", _FEW, pretrained=True),
    "feddra-group-8-pretrained": Method(
        "epsilon 8, one pair (groups of 16 clipped as one)",
        "feddra",
        _FEW,
        privacy=f'unit = "group"\ngroup_size = 16\n{_EPSILON}',
        pretrained=True,
    ),
    "feddra-site-8-pretrained": Method(
        "epsilon 8, one hospital",
        "feddra",
        {**_FEW, "rho": 0.0},
        privacy=f'unit = "site"\n{_EPSILON}',
        pretrained=True,
    ),
}
ALL = {
    **METHODS,
    **WARM,
    **ON_TOP,
    **PRETRAINED,
    **OTHERS,
    **ABLATION,
    **UNITS,
    **GUIDES,
    **EXCESS,
    **COUNTING,
    **AT_ONCE,
    **PRIVATE,
    **TRACES,
}


def study_text(dataset: str, method: str, seed: int, folder: Path, *, toy: bool) -> str:
    """The study file of one run, which a stored result is compared with; ``toy`` only tries the code."""
    chosen, data = ALL[method], SETS[dataset].table
    keys = {"learning_rate": 1.5e-3, "batch_size": 64, "weight_decay": 0.01, "device": "cpu"}
    keys |= {**chosen.keys, **SETS[dataset].keys, "evaluation_batch": SETS[dataset].batch}
    if chosen.algorithm in ("feddra", "fedrgb") and keys.get("rho") and not chosen.privacy:
        keys["loss_batches"] = 4
    if toy:
        keys.update({key: 2 for key, value in keys.items() if key.endswith("_steps") and value})
        for old, new in SETS[dataset].toy.items():
            data = data.replace(old, new)
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    rounds = min(chosen.rounds, 2) if toy else chosen.rounds
    files = [f"{key} = {json.dumps(str(path))}" for key, path in _weight_files(folder).items()]
    return "\n".join(
        [
            f'[study]\nname = "vlp-{dataset}-{method}"\nrounds = {rounds}\nseed = {seed}',
            f'[algorithm]\nname = "{chosen.algorithm}"',
            *lines,
            '[model]\nname = "vision-language"\nsize = "tiny"\ntemperature = 0.1',
            *(files if chosen.pretrained else []),
            f"[data]\n{data}",
            '[protection]\nname = "masked"\nthreshold = 4',
            *([f"[privacy]\n{chosen.privacy}"] if chosen.privacy else []),
            "",
        ]
    )


def run_one(dataset: str, method: str, seed: int, out: Path, *, toy: bool) -> None:
    torch.set_num_threads(1)
    if ALL[method].pretrained:
        pretrained_encoders(out.parent, toy=toy)
    text = study_text(dataset, method, seed, out.parent, toy=toy)
    algorithm, kind = vlp_oracle.algorithm_of(Study.parse(text)), ALL[method].kind
    result: dict[str, object] = {"study": text, "dataset": dataset, "method": method, "seed": seed}
    began, cpu = time.perf_counter(), time.process_time()
    if kind == "trace":
        found = vlp_oracle.run_in_clear(algorithm)
        vlp_figures.write_figures(found, out.parent / f"{method}-seed-{seed}")
        result |= {"sites": found.sites, "weights": found.weights, "losses": found.losses}
    else:
        models, history = _trained(algorithm, kind)
        result["training_cpu_s"] = time.process_time() - cpu
        result["history"] = history
        result["scores"] = mean_of([_scores(algorithm, dataset, model, toy=toy) for model in models])
        if kind == "decentralised":
            own = dict(zip(algorithm.setting.sites, models, strict=True))
            result["at_home"] = dict(vlp_oracle.recall_at_home(algorithm, own))
        else:
            result["per_site"] = algorithm.per_site(models[0])
        if kind == "federated":
            matrix = vlp_oracle.distortion(algorithm, models[0], 2 if toy else STEPS)
            result |= {"distortion": float(matrix.mean()), "distortion_matrix": matrix.tolist()}
            matrix = vlp_oracle.distortion(algorithm, models[0], 2 if toy else STEPS, own_loss=True)
            result |= {"distortion_own": float(matrix.mean()), "distortion_own_matrix": matrix.tolist()}
    result |= {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - began}
    write_result(out, result)


def _weight_files(folder: Path) -> dict[str, Path]:
    return {f"{kind}_weights": folder / f"pretrained-{kind}.safetensors" for kind in ("image", "text")}


def pretrained_encoders(folder: Path, *, toy: bool) -> None:
    """Train both encoders once, on public pairs: synthetic ones of another seed, in milder styles."""
    files = _weight_files(folder)
    if all(path.exists() for path in files.values()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = study_text("chest-synthetic", "centralised", 1000, folder, toy=toy)
    before, after = text.split("[data]\n", 1)
    pairs = 80 if toy else 800
    data = f'name = "chest-synthetic"\nsites = 5\ntrain = {pairs}\ntest = 64\npartition = "iid"\nstyle = 0.3'
    text = f"{before}[data]\n{data}\n[protection]{after.split('[protection]', 1)[1]}"
    algorithm = vlp_oracle.algorithm_of(Study.parse(text))
    model = algorithm.network(vlp_oracle.train_centralised(algorithm, 2 if toy else 600))
    for path, encoder in zip(files.values(), (model.image_encoder, model.text_encoder), strict=True):
        unfinished = path.with_suffix(f".{os.getpid()}")
        save_file({name: value.contiguous() for name, value in encoder.state_dict().items()}, unfinished)
        os.replace(unfinished, path)


def _trained(algorithm: VlpAlgorithm, kind: str) -> tuple[list[State], list[Mapping[str, float]]]:
    if kind == "untrained":
        return [algorithm.initial], []
    if kind == "centralised":
        return [vlp_oracle.train_centralised(algorithm)], []
    if kind == "decentralised":
        return [vlp_oracle.train_alone(algorithm, site) for site in algorithm.setting.sites], []
    with tempfile.TemporaryDirectory() as folder:
        report = simulate(algorithm.setting.study, out=Path(folder), drops=(), observer=SilentObserver())
        published = (report.initial, *(item.metrics for item in report.rounds))
        return [load_file(Path(folder) / MODEL_FILE)], [dict(found or {}) for found in published]


def _scores(algorithm: VlpAlgorithm, dataset: str, model: State, *, toy: bool) -> dict[str, float]:
    """Everything one model is measured by; the study's seed decides the draws."""
    scores = vlp_oracle.summary(algorithm.per_site(model)) | vlp_oracle.relative_summary(algorithm, model)
    scores |= vlp_oracle.fair_summary(algorithm, model)
    network, device, seed = algorithm.network(model), algorithm.device, algorithm.setting.study.seed
    sites = [algorithm.site_data(site) for site in algorithm.setting.sites]
    train, test = (
        vlp_oracle.pooled(parts) for parts in zip(*((s.train, s.test) for s in sites), strict=True)
    )
    shares = {"1": 0.01, "10": 0.1}
    if (data_folder() / PNEUMONIA).is_file():
        data = linear_probe.pneumonia(data_folder(), SETS[dataset].prepare, algorithm.data.image_shape)
        for kind, features in _PROBED.items():
            of = [features(network, images, device) for images in (data.train, data.test)]
            for name, share in shares.items():
                found = linear_probe.probe_features(of[0], data.train_y, of[1], data.test_y, 2, share, seed)
                scores[f"pneumonia{kind}_{name}"] = found["accuracy"]
    if isinstance(algorithm.data, chest_synthetic.ChestSynthetic):
        for kind, features in _PROBED.items():
            of = [features(network, pairs.images, device) for pairs in (train, test)]
            for name, share in shares.items():
                found = linear_probe.probe_findings(of[0], train.findings, of[1], test.findings, share, seed)
                scores[f"findings{kind}_{name}"] = found["balanced_accuracy"]
        for name, share in shares.items():
            scores[f"dice_{name}"] = segmentation.segment(network, train, test, share, seed, device)
        unseen = retrieval.evaluate_site(network, algorithm.data.unseen(64 if toy else 512), 64, device)
        scores["unseen_at_1"] = unseen["eval/recall_at_1"]
    return scores
