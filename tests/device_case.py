"""Small studies that between them run every path of local training, on whatever device."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import nn

from secfed.algorithms.data.image_text.base import ImageTextSite
from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.federated_averaging.local_context import LocalContext
from secfed.algorithms.framework.datasets import SiteData
from secfed.dp.training.engines import ClippedSum, HookedEngine
from secfed.dp.training.step import Steps
from secfed.engine.options import EngineOptions
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from secfed.wire.layout import Summands
from tests import emulated_device
from tests.algorithms import canonical_case, fedcola_case, feddmvc_case, fmcsc_case, vlp_case
from tests.algorithms.loop import changed
from tests.algorithms.tasks import test_studies

_WARDS: Final = """
[study]
name = "wards"
rounds = 2
seed = 5
[algorithm]
name = "fedavg"
batch_size = 64
weighting = "equal"
[model]
name = "mlp"
hidden = [6]
[data]
name = "breast-cancer"
sites = 3
standardize = "public"
[protection]
name = "masked"
colluders = 0
"""
_DUAL: Final = """
[study]
name = "dual"
rounds = 1
seed = 5
[algorithm]
name = "feddra"
align_steps = 1
joint_steps = 2
batch_size = 6
loss_batches = 1
loss_batch_size = 6
evaluation_batch = 4
evaluate = "last"
[model]
name = "vision-language"
[data]
name = "chest-synthetic"
sites = 5
train = 12
test = 4
size = 32
[protection]
name = "masked"
colluders = 1
threshold = 4
"""
_PAIRS: Final = _DUAL.replace('"feddra"\nalign_steps = 1\njoint_steps = 2', '"{name}"').replace(
    "loss_batches = 1\nloss_batch_size = 6\n", ""
)
_RECORDS: Final = {"unit": "record", "epsilon": 8.0, "delta": 1e-4}
_GROUPS: Final = {**_RECORDS, "unit": "group", "group_size": 4}
_PATIENTS: Final = {**_GROUPS, "adjacency": "replace-patient"}
_SITES: Final = {"unit": "site", "epsilon": 50.0, "delta": 1e-4}
_SHARED: Final = {**_RECORDS, "noise": "sum"}
_BY_HOOKS: Final = {**_RECORDS, "engine": "hooks"}
_BY_BOOKS: Final = {**_RECORDS, "engine": "ghost"}
_BY_LOOP: Final = {**_RECORDS, "engine": "loop"}
_DROPS: Final = {"model": {"name": "tests.device_case:dropping"}}


def dropping(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with a random layer."""
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Dropout(0.2), nn.Linear(8, classes))


class Staying(FedAvg):
    """Own code whose updates stay where it trained: the site takes them from there."""

    def local_update(self, model: nn.Module, data: SiteData, context: LocalContext) -> Summands:
        begun = {name: value.detach().clone() for name, value in model.named_parameters()}
        loss = context.train(self.training(model, data, context.generator()), 1)
        moved = {f"update/{n}": value.detach() - begun[n] for n, value in model.named_parameters()}
        return {**moved, "train_loss": loss}


class _Patients(vlp_case.ToyPairs):
    """Every patient has two pairs."""

    def site(self, site_id: str) -> ImageTextSite:
        found = super().site(site_id)
        return replace(found, train_patients=tuple(row // 2 for row in range(len(found.train))))


def patients() -> _Patients:
    """The factory of ``[data]``."""
    return _Patients(5, 24, 16, 4.0)


def _wards(**changes: Any) -> Study:
    return changed(_WARDS, changes)


def _one(name: str, **options: Any) -> Study:
    return _wards(algorithm={"name": name, "batch_size": 64, "weighting": "equal", **options})


def _task(task: str) -> Study:
    return test_studies.study(task).replace("study.rounds", 1).replace("algorithm.local_epochs", 1)


def _fmcsc(**changes: Any) -> Study:
    fewer = {"pretrain_rounds": 1, "pretrain_epochs": 1, "local_epochs": 1, "distillation_epochs": 1}
    keys = {f"algorithm__{key}": value for key, value in fewer.items()}
    return fmcsc_case.study(**{"study__rounds": 2, **keys, **changes})


def _dual(**changes: Any) -> Study:
    return changed(_DUAL, changes)


def _vlp(name: str, *, toy: bool = True, **changes: Any) -> Study:
    steps = {"local_steps": 2}
    if toy:
        return vlp_case.study(algorithm={**vlp_case.AVERAGING, "name": name, **steps}, **changes)
    keys = {f"algorithm__{key}": value for key, value in steps.items()}
    return changed(_PAIRS.format(name=name), keys | changes)


def _rgb(**options: Any) -> Study:
    keys = {"warmup_rounds": 1, "warmup_steps": 1, "guided_steps": 2, "teacher_steps": 2}
    given = {"batch_size": 6, "loss_batches": 1, "loss_batch_size": 6, "evaluation_batch": 4, **keys}
    return _dual(study__rounds=2, algorithm={"name": "fedrgb", **given, **options})


_SMALL_RGB: Final = {
    "name": "fedrgb",
    **dict.fromkeys(("warmup_steps", "guided_steps", "teacher_steps"), 2),
    **dict.fromkeys(("batch_size", "loss_batch_size", "evaluation_batch"), 8),
    "loss_batches": 1,
}
_GUIDED: Final = {"warmup_steps": 1, "guided_steps": 2, "batch_size": 6, "evaluation_batch": 4}
_FMCSC_GROUPS: Final = {"algorithm__weights": "equal", "protection__name": "masked"}
_SHARED_MASKED: Final = {"protection__name": "masked", "privacy": _SHARED}

CASES: Final[dict[str, Callable[[], Study]]] = {
    "fedavg, mlp": lambda: _wards(),
    "fedavg, random layer": lambda: _wards(**_DROPS),
    "own code, updates stay": lambda: _wards(algorithm__name="tests.device_case:Staying"),
    "fedprox, cnn": lambda: (
        _one("fedprox")
        .replace("data", {"name": "digits", "sites": 3})
        .replace("model", {"name": "small-cnn"})
    ),
    "fedavg, linear head": lambda: _wards(model={"name": "linear-head"}),
    "scaffold": lambda: _one("scaffold"),
    "fednova": lambda: _one("fednova"),
    "fedadam": lambda: _one("fedadam"),
    "fedbn": lambda: _one("fedbn", local_layers=["3"]),
    "ditto": lambda: _one("ditto"),
    "fedsgd": lambda: _wards(algorithm={"name": "fedsgd", "weighting": "equal"}),
    "fedsgd, noise in the sum": lambda: _wards(
        algorithm={"name": "fedsgd", "weighting": "equal", "records": 400}, privacy=_SHARED
    ),
    "fedsgd, groups, noise in the sum": lambda: _wards(
        algorithm={"name": "fedsgd", "weighting": "equal", "records": 400},
        privacy={**_GROUPS, "noise": "sum"},
    ),
    "fedavg, adapters": lambda: _wards(algorithm__adapters=["1"], algorithm__adapter_rank=2),
    **{f"fedavg, {task}": partial(_task, task) for task in test_studies.EXPECTED},
    "fedavg, records by hooks": lambda: _wards(privacy=_BY_HOOKS),
    "fedavg, records by books": lambda: _wards(privacy=_BY_BOOKS),
    "fedavg, records one by one": lambda: _wards(privacy=_BY_LOOP, algorithm__batch_size=16),
    "fedavg, records, random layer": lambda: _wards(privacy=_BY_BOOKS, **_DROPS),
    "fedavg, groups": lambda: _wards(privacy=_GROUPS),
    "fedavg, noise for sites": lambda: _wards(privacy=_SITES),
    "fedavg, metrics with noise": lambda: _wards(privacy={**_BY_BOOKS, "metrics": "private"}),
    "ditto, records": lambda: _one("ditto").replace("privacy", _BY_BOOKS),
    "fmcsc": _fmcsc,
    "fmcsc, ntxent and hidden views": lambda: _fmcsc(
        algorithm__contrast="ntxent", algorithm__view_types="hidden", algorithm__pretrain_share=None
    ),
    "fmcsc, the paper's noise": lambda: _fmcsc(algorithm__paper_laplace_epsilon=10.0),
    "fmcsc, noise for sites": lambda: _fmcsc(**_FMCSC_GROUPS, privacy=_SITES),
    "fmcsc, groups": lambda: _fmcsc(**_FMCSC_GROUPS, privacy=_GROUPS),
    "canonical": lambda: canonical_case.study(),
    "canonical, noise in the sum": lambda: canonical_case.study(**_SHARED_MASKED),
    "view-kmeans": lambda: canonical_case.study().replace(
        "algorithm", {"name": "view-kmeans", "restarts": 2, "kmeans_iterations": 2}
    ),
    "feddmvc": lambda: feddmvc_case.study(),
    "canonical-alignment, encoders": lambda: changed(
        vlp_case.TINY,
        {"study__rounds": 1, "algorithm": {"name": "canonical-alignment", "evaluation_batch": 8}},
    ),
    "fedcola": lambda: fedcola_case.study(study__rounds=1),
    "fedcola, drop path and frozen tokens": lambda: fedcola_case.study(
        study__rounds=1, model__drop_path=0.2, algorithm__train_tokens=False
    ),
    "creamfl": lambda: fedcola_case.study(fedcola_case.CREAM),
    "fedcola, pulled": lambda: fedcola_case.study(study__rounds=1, algorithm__mu=0.1),
    "fedcola, fediot": lambda: fedcola_case.study(study__rounds=1, algorithm__aggregation="fediot"),
    "fedcola, noise for sites": lambda: fedcola_case.study(study__rounds=1, privacy=_SITES),
    "fedcola, groups": lambda: fedcola_case.study(study__rounds=1, privacy=_GROUPS),
    "vlp-fedavg": lambda: _vlp("vlp-fedavg"),
    "vlp-fedavg, other images, warm-up": lambda: _vlp(
        "vlp-fedavg",
        toy=False,
        algorithm__augment_images=0.5,
        algorithm__drop_words=0.1,
        algorithm__learning_rate_warmup=2,
    ),
    "vlp-fedprox": lambda: _vlp("vlp-fedprox"),
    "vlp-fedmoon": lambda: _vlp("vlp-fedmoon"),
    "vlp-fedema": lambda: _vlp("vlp-fedema"),
    "vlp-fedldawa": lambda: _vlp("vlp-fedldawa"),
    "vlp-fedavg, heads first": lambda: _vlp("vlp-fedavg", study__rounds=2, algorithm__head_rounds=1),
    "vlp-fedmae": lambda: _vlp("vlp-fedmae", toy=False),
    "vlp-fedx": lambda: _vlp("vlp-fedx", toy=False),
    "vlp-fedu": lambda: _vlp("vlp-fedu", toy=False, study__rounds=2),
    "vlp-fedavg, noise for sites": lambda: _vlp("vlp-fedavg", protection__name="masked", privacy=_SITES),
    "feddra": lambda: vlp_case.study(study__rounds=1),
    "feddra, weights from the excess": lambda: vlp_case.study(algorithm__reference_steps=2),
    "feddra, patients": lambda: vlp_case.study(
        study__rounds=1, data__name="tests.device_case:patients", privacy=_PATIENTS
    ),
    "feddra, noise for sites": lambda: vlp_case.study(study__rounds=1, algorithm__rho=0.0, privacy=_SITES),
    "feddra, groups": lambda: vlp_case.study(study__rounds=1, privacy=_GROUPS),
    "feddra, transformers": _dual,
    "feddra, gloria": lambda: _dual(model__objective="gloria"),
    "feddra, mgca": lambda: _dual(model__objective="mgca", model__prototypes=4, model__mgca_frozen_rounds=0),
    "feddra, recomputing": lambda: _dual(model__gradient_checkpointing=True),
    "feddra, kl": lambda: changed(
        _DUAL.replace("sites = 5", "sites = 10").replace("threshold = 4", "threshold = 10"),
        {"algorithm__divergence": "kl"},
    ),
    "feddra, half precision": lambda: _dual(algorithm__precision="bfloat16"),
    "fedrgb": _rgb,
    "fedrgb, a small network": lambda: vlp_case.study(study__rounds=2, algorithm=_SMALL_RGB),
    "fedrgb, averaged aligner as teacher": lambda: _dual(
        study__rounds=2,
        algorithm={"name": "fedrgb", "teacher": "averaged", **_GUIDED},
    ),
    "fedrgb, contrast through features": lambda: _rgb(
        guidance_loss="contrastive", guide_grad_through_features=True
    ),
    "fedrgb, mgca, averaged parts": lambda: (
        _rgb()
        .replace("model.objective", "mgca")
        .replace("model.prototypes", 4)
        .replace("model.mgca_frozen_rounds", 0)
    ),
    "fedrgb, noise for sites": lambda: _rgb(rho=0.0).replace("privacy", _SITES),
    "fedrgb, groups": lambda: _rgb().replace("privacy", _GROUPS),
}


class Run(NamedTuple):
    """What a run gave."""

    model: dict[str, Any]  # NumPy, by parameter
    zeroed: list[str]
    reads: dict[str, int]
    operators: int
    seeds: int  # different ones
    payments: int
    calls: Counter[str]  # of what _COUNTED names


def run(name: str, engine: EngineOptions | None = None) -> Run:
    """Simulate one of the cases on the device of this process."""
    emulated_device.reads.clear()
    emulated_device.operators.clear()
    emulated_device.seeds.clear()
    with tempfile.TemporaryDirectory() as folder, _counting() as calls:
        out = Path(folder) / "run"
        report = simulate(CASES[name](), out=out, engine=engine)
        model = {key: value.numpy() for key, value in load_file(out / "model.safetensors").items()}
        ledgers = [path.read_text().count("\n") for path in out.rglob("*ledger*.jsonl")]
    assert not any(one.aborted for one in report.rounds), report.rounds
    return Run(
        model,
        [f"{one.site}: {one.first}" for one in report.zeroed],
        dict(emulated_device.reads),
        emulated_device.operators.total(),
        len(set(emulated_device.seeds)),
        sum(ledgers),
        calls,
    )


_COUNTED: Final = ((Steps, "take"), (Steps, "mean"), (HookedEngine, "_losses"), (ClippedSum, "add_unit"))


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    """How often these are called; in this process only."""
    calls: Counter[str] = Counter()

    def counted(name: str, real: Any) -> Any:
        def call(self: Any, *given: Any, **named: Any) -> Any:
            calls[name] += 1
            return real(self, *given, **named)

        return call

    with ExitStack() as stack:
        for owner, name in _COUNTED:
            stack.enter_context(patch.object(owner, name, counted(name, getattr(owner, name))))
        yield calls


def largest_difference(one: Run, other: Run) -> float:
    """Of any two numbers of two models."""
    assert one.model.keys() == other.model.keys()
    return max(float(abs(one.model[key] - other.model[key]).max(initial=0.0)) for key in one.model)


torch.set_num_threads(1)
