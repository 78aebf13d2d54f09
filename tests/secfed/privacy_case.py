"""A small private study, and a way to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from secfed.runs.run_report import RunReport, SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

SITES = tuple(f"hospital-{number}" for number in range(1, 5))
# By this seed and share all sites have equally many training records: their noise is sought once.
STUDY = """
[study]
name = "wards"
rounds = 2
seed = 468

[algorithm]
name = "fedavg"
batch_size = 32
weighting = "equal"
{algorithm}

[model]
name = "logistic-regression"

[data]
name = "breast-cancer"
sites = 4
standardize = "public"
test_fraction = 0.15
{data}

[protection]
name = "{protection}"

[privacy]
unit = "{unit}"
epsilon = {epsilon}
delta = 1e-4
accountant = "{accountant}"
{privacy}
"""


def study(
    unit: str = "record",
    *,
    protection: str = "plain",
    epsilon: float = 8.0,
    privacy: str = "",
    algorithm: str = "",
    data: str = "",
    accountant: str = "rdp",
) -> Study:
    """A small private study; everything that a test varies is an argument."""
    return Study.parse(
        STUDY.format(
            unit=unit,
            protection=protection,
            epsilon=epsilon,
            privacy=privacy,
            algorithm=algorithm,
            data=data,
            accountant=accountant,
        )
    )


def run(chosen: Study, out: Path | None = None, **more: Any) -> RunReport:
    """Simulate it."""
    return simulate(chosen, out=out, drops=more.pop("drops", ()), observer=SilentObserver(), **more)
