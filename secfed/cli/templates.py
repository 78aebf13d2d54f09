"""What ``secfed new`` writes: a module, a study that trains with it, and a test; by kind and file name."""

from __future__ import annotations

from typing import Final

_ALGORITHM: Final = '''"""An algorithm of one's own: federated averaging with a step size at the server.

Change local_update for what hospitals do, server_step for what the server makes of their mean.
"""

from __future__ import annotations

import torch
from pydantic import Field
from secfed.algorithms.federated_averaging.options import FedAvgOptions
from secfed.algorithms.federated_averaging.weighted_mean import WeightedMean
from secfed.dp.training.plain_loop import Training, make_loader, make_optimiser


class {Class}Options(FedAvgOptions):
    """Keys of [algorithm], beside those of fedavg."""

    server_learning_rate: float = Field(default=1.0, gt=0, description="the server's step size, above 0")


class {Class}(WeightedMean):
    """Made once per study by every hospital and by the aggregator."""

    options_type = {Class}Options
    # Under [privacy]: what one unit may be, and which fields only private steps (context.train) made.
    private_units = ("record", "group", "site")
    noised_fields = ("update", "eval", "weight")

    def local_update(self, model, data, context):
        """One hospital's training of one round; what it returns is weighted and summed."""
        options = self.options
        optimiser = make_optimiser(
            model,
            options.optimizer,
            learning_rate=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        loader = make_loader(
            data.train_x, data.train_y, batch_size=options.batch_size, generator=context.generator()
        )
        training = Training(model, optimiser, torch.nn.functional.cross_entropy, loader)
        loss = context.train(training, options.local_epochs)
        return {{**self.difference(model, context.received), "train_loss": loss}}

    def server_step(self, model, mean, state):
        """The next model, from the weighted means over the hospitals that are in the sum."""
        rate = self.options.server_learning_rate
        return {{name: model[name] + rate * mean[f"update/{{name}}"] for name in self.trained}}
'''

_ALGORITHM_TEST: Final = """from {name} import {Class}

from secfed.testing import check_algorithm


def test_{name}_is_sound():
    check_algorithm({Class}, server_learning_rate=0.5)
"""

_MODEL: Final = '''"""A model of one's own: any torch.nn.Module that gives one score per class."""

from __future__ import annotations

from torch import nn


def {name}(input_shape, classes, channels=16):
    """Keys of [model] beside name are arguments here; input_shape is that of one record.

    GroupNorm normalises every record by itself. For layers of BatchNorm set algorithm.batch_norm.
    """
    return nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 3, padding=1),
        nn.GroupNorm(4, channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * channels, classes),
    )
'''

_MODEL_TEST: Final = """import torch
from {name} import {name}


def test_{name}_gives_a_score_per_class():
    assert {name}((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
"""

_DATA: Final = '''"""A data set of one's own: arrays of every hospital; between machines, only of this one."""

from __future__ import annotations

import numpy as np
from secfed.algorithms.data.memory import SiteTables


def {name}(records=200, seed=0):
    """Keys of [data] beside name are arguments here. Replace the made-up arrays by your files'."""
    tables = {{}}
    for number, hospital in enumerate(("north", "south", "west")):
        rng = np.random.default_rng((seed, number))
        x = rng.normal(size=(records, 8))  # one row per record; NaN marks a missing value
        y = (x[:, 0] + x[:, 1] > 0).astype(int)  # 0 .. classes - 1
        tables[hospital] = (x, y)
    return SiteTables(tables, classes=2)
'''

_DATA_TEST: Final = """from {name} import {name}


def test_every_hospital_of_{name}_has_records():
    data = {name}()
    for hospital in data.sites:
        site = data.site(hospital)
        assert len(site.train_y) and len(site.test_y)
        assert site.train_x.shape[1:] == data.input_shape
"""

_STUDY: Final = """# secfed simulate {name}/study.toml
[study]
name = "{study}"
rounds = 5

[algorithm]
name = "{algorithm}"
learning_rate = 0.1

[model]
name = "{model}"

[data]
name = "{data}"

[protection]
name = "masked"
"""

# Kind to module and test, and what the study names beside its own.
FILES: Final = {
    "algorithm": (_ALGORITHM, _ALGORITHM_TEST),
    "model": (_MODEL, _MODEL_TEST),
    "data": (_DATA, _DATA_TEST),
}
_NAMES: Final = {
    "algorithm": {"algorithm": "{name}:{Class}", "model": "logistic-regression", "data": "breast-cancer"},
    "model": {"algorithm": "fedavg", "model": "{name}:{name}", "data": "digits"},
    "data": {"algorithm": "fedavg", "model": "logistic-regression", "data": "{name}:{name}"},
}


def rendered(kind: str, name: str) -> dict[str, str]:
    """File name to text."""
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_"))}
    module, test = FILES[kind]
    named = {key: value.format(**words) for key, value in _NAMES[kind].items()}
    return {
        f"{name}.py": module.format(**words),
        f"test_{name}.py": test.format(**words),
        "study.toml": _STUDY.format(**words, **named, study=name.replace("_", "-")),
    }
