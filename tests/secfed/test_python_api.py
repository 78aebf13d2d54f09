"""A study made and run from Python, as in a notebook."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from secfed import Study, simulate
from secfed.errors import ConfigError
from secfed.runs.run_report import RoundReport

TABLES: dict[str, Any] = {
    "study": {"name": "from-python", "rounds": 2},
    "algorithm": {"name": "fedavg", "learning_rate": 0.1},
    "model": {"name": "logistic-regression"},
    "data": {"name": "breast-cancer", "sites": 3},
}
FILE = """
[study]
name = "from-python"
rounds = 2
[algorithm]
name = "fedavg"
learning_rate = 0.1
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 3
"""


def net(input_shape: tuple[int, ...], classes: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, classes))


def test_tables_are_what_a_file_would_have_said() -> None:
    assert Study.of(**TABLES).digest() == Study.parse(FILE).digest()


def test_a_function_of_ones_own_stands_for_its_name_and_another_hears_of_rounds() -> None:
    heard = list[RoundReport]()
    study = Study.of(**{**TABLES, "model": {"name": net, "width": 3}})
    assert study.model.name == f"{__name__}:net"
    report = simulate(study, observer=heard.append)
    assert [one.round for one in heard if one.metrics and "accuracy" in one.metrics][-1] == 2
    assert report.rounds == tuple({one.round: one for one in heard}.values())


def test_what_has_no_name_or_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="define it at the top"):
        Study.of(**{**TABLES, "model": {"name": lambda: None}})
    with pytest.raises(ConfigError, match="model: is a value, not a section"):
        Study.of(**{**TABLES, "model": "mlp"})
    with pytest.raises(ConfigError, match="modle: unknown section"):
        Study.of(**TABLES, modle={})
