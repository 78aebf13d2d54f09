"""Tiny studies of every algorithm under every unit of privacy: their texts."""

from __future__ import annotations

import torch
from torch import nn

from secfed.algorithms.losses.features import Features
from secfed.study.study import Study
from tests.algorithms.vlp_case import Toy


class OpenToy(Toy):
    """Without tanh, which makes 1 of infinity; if large products add up to that or to NaN, kernels decide."""

    def encode(self, images: torch.Tensor, tokens: torch.Tensor) -> Features:
        image = nn.functional.softsign(self.image_encoder(images.flatten(1)))[:, None]
        return Features(image, self.text_encoder(tokens), tokens != 0)


def open_toy(image_shape: tuple[int, int, int], text_shape: tuple[int, int]) -> OpenToy:
    """The factory of ``[model]``."""
    return OpenToy(image_shape, text_shape[1])


PRIVACY = """
[privacy]
unit = "{unit}"
epsilon = 8.0
delta = 1e-4
accountant = "rdp"
{more}
"""
UNITS = {"none": "", "record": "", "group": "group_size = 4", "site": ""}

CLASSIFIER = """
[study]
name = "readiness"
rounds = 2
seed = 5
[algorithm]
name = "{algorithm}"
batch_size = 9
local_epochs = 1
weighting = "{weighting}"
{more}
[model]
name = "mlp"
hidden = [4]
[data]
name = "tests.properties.readiness_case:tables"
[protection]
name = "plain"
min_cohort = 3
"""

CANONICAL = """
[study]
name = "readiness"
rounds = 1
seed = 5
[algorithm]
name = "canonical"
maps = ["standard", "l2"]
starts = "divisive"
restarts = 2
kmeans_iterations = 1
refinements = 2
[model]
name = "none"
[data]
name = "tests.algorithms.fmcsc_case:blobs"
views = [-1, -1, -1, 0, 0, 0]
per_site = 12
[protection]
name = "plain"
colluders = 1
"""

MULTIVIEW = """
[study]
name = "readiness"
rounds = 3
seed = 5
[algorithm]
name = "fmcsc"
pretrain_rounds = 1
pretrain_epochs = 1
pretrain_share = 1.0
local_epochs = 1
distillation_epochs = 1
batch_size = 12
restarts = 2
kmeans_iterations = 1
group_iterations = 1
weights = "{weights}"
[model]
name = "multiview"
hidden = [6]
features = 3
head_hidden = 4
[data]
name = "tests.algorithms.fmcsc_case:blobs"
views = {views}
per_site = 12
[protection]
name = "plain"
colluders = 1
"""

FEDDMVC = MULTIVIEW.format(views=[-1, -1, -1, 0, 0, 0], weights="").replace(
    MULTIVIEW.split("[algorithm]")[1].split("[model]")[0].format(weights=""),
    '\nname = "feddmvc"\npretrain_rounds = 1\npretrain_epochs = 1\nlocal_epochs = 1\nbatch_size = 12\n'
    "restarts = 2\nkmeans_iterations = 1\n",
)

TRANSFER = """
[study]
name = "readiness"
rounds = 1
seed = 5
[algorithm]
name = "fedcola"
local_epochs = 1
batch_size = 6
learning_rate = 1e-3
gallery = 4
[model]
name = "transfer-transformer"
width = 4
depth = 1
heads = 1
[data]
name = "scenes"
image_sites = 3
text_sites = 3
pair_sites = 3
records = 8
pairs = 8
test_records = 4
test_pairs = 4
[protection]
name = "plain"
colluders = 1
"""

PAIRS = """
[study]
name = "readiness"
rounds = 2
seed = 5
[algorithm]
name = "{algorithm}"
batch_size = 8
evaluation_batch = 8
evaluate = "every"
{more}
[model]
name = "tests.properties.readiness_studies:open_toy"
[data]
name = "tests.algorithms.vlp_case:pairs"
train = 8
test = 8
[protection]
name = "plain"
threshold = 4
colluders = 1
"""
ALIGNMENT = """
[study]
name = "readiness"
rounds = 1
seed = 5
[algorithm]
name = "canonical-alignment"
evaluation_batch = 8
[model]
name = "tests.properties.readiness_studies:open_toy"
[data]
name = "tests.algorithms.vlp_case:pairs"
train = 8
test = 8
[protection]
name = "plain"
colluders = 1
"""
STATISTICS = """
[study]
name = "readiness"
rounds = 1
seed = 5
[algorithm]
name = "statistics"
max_records = 1000
[algorithm.analyses.table]
kind = "describe"
columns = ["age", "bmi"]
by = "sex"
[algorithm.analyses.rates]
kind = "glm"
family = "poisson"
formula = "progression ~ age + bmi"
max_steps = 2
[algorithm.analyses.hazard]
kind = "cox"
time = "progression"
event = "sex"
interval = 20
formula = "age"
max_steps = 2
[model]
name = "none"
[data]
name = "diabetes-table"
sites = 5
[protection]
name = "plain"
"""
STEPS = "local_steps = 1"
ROBUST = "loss_batches = 1\nloss_batch_size = 4\n{rho}"
OF_PAIRS = {
    "feddra": f"align_steps = 1\njoint_steps = 1\n{ROBUST}",
    "fedrgb": f"warmup_rounds = 1\nwarmup_steps = 1\nguided_steps = 1\nteacher_steps = 1\n{ROBUST}",
    "vlp-fedavg": STEPS,
    "vlp-fedprox": STEPS,
    "vlp-fedmoon": STEPS,
    "vlp-fedema": STEPS,
    "vlp-fedldawa": f"{STEPS}\nwarmup_rounds = 0",
    "vlp-fedmae": STEPS,
    "vlp-fedx": STEPS,
    "vlp-fedu": STEPS,
}
BUILT_IN = ("vlp-fedmae", "vlp-fedx", "vlp-fedu")  # written for the built-in dual encoder


# Algorithms of weighted means: more keys, and the units that are played.
OF_MEANS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedavg": ("", ("none", "record", "group", "site")),
    "fedprox": ("", ("none", "record", "group", "site")),
    "fedadam": ("", ("none", "site")),
    "fedyogi": ("", ("none",)),
    "fedadagrad": ("", ("none",)),
    "fedavgm": ("", ("none",)),
    "fednova": ("", ("none",)),
    "scaffold": ("", ("none", "record")),
    "fedbn": ('local_layers = ["1"]', ("none", "record")),
    "ditto": ("", ("none", "record")),
    "fedsgd": ("", ("none", "record-sum", "group-sum", "site")),
}


def tiny(algorithm: str, unit: str = "none", *, variant: str = "") -> Study:
    """A study of that algorithm under that unit of privacy; variants are of the algorithm."""
    more = ""
    if algorithm in OF_MEANS:
        weighting = "records" if unit == "none" and algorithm != "scaffold" else "equal"
        text = CLASSIFIER.format(algorithm=algorithm, weighting=weighting, more=OF_MEANS[algorithm][0])
        if algorithm == "fedsgd":
            own = "records = 60" if unit.endswith("-sum") else ""
            text = text.replace("batch_size = 9\nlocal_epochs = 1", own)
        engine = f'engine = "{variant}"' if variant in ("loop", "ghost") else ""
        more = 'metrics = "private"' if variant == "private-metrics" else engine
    elif algorithm == "fmcsc":
        views = {"": [-1, -1, -1, 0, 0, 0], "one-view": [0, 0, 0, -1, -1, -1]}[variant]
        text = MULTIVIEW.format(views=views, weights="mi" if unit == "none" else "equal")
    elif algorithm == "feddmvc":
        text = FEDDMVC
    elif algorithm == "canonical":
        text = CANONICAL if unit == "none" else CANONICAL.replace('"standard"', '"sqrt-l2"')
    elif algorithm == "view-kmeans":
        before, after = CANONICAL.split("[algorithm]\n")
        keys = 'name = "view-kmeans"\nrestarts = 2\nkmeans_iterations = 1\n'
        text = f"{before}[algorithm]\n{keys}[model]{after.split('[model]')[1]}"
    elif algorithm == "canonical-alignment":
        text = ALIGNMENT
    elif algorithm == "statistics":
        text = STATISTICS
    elif algorithm == "fedcola":
        text = TRANSFER
    elif algorithm == "creamfl":
        text = TRANSFER.replace('name = "fedcola"', 'name = "creamfl"\npublic_pairs = 4')
    else:
        rho = "rho = 0.0" if unit == "site" else ""
        text = PAIRS.format(algorithm=algorithm, more=OF_PAIRS[algorithm].format(rho=rho))
        if algorithm in BUILT_IN:
            text = text.replace("tests.properties.readiness_studies:open_toy", "vision-language")
            text = text.replace(
                '"tests.algorithms.vlp_case:pairs"', '"chest-synthetic"\nsize = 16\nsites = 5'
            )
    if unit.endswith("-sum"):
        unit, more = unit.removesuffix("-sum"), f'{more}\nnoise = "sum"'
        text = text.replace('name = "plain"', 'name = "masked"')
    if unit != "none":
        text += PRIVACY.format(unit=unit, more=f"{UNITS[unit]}\n{more}")
    return Study.parse(text)
