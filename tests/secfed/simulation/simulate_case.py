"""A small study of one process, and a run of it."""

from __future__ import annotations

from pathlib import Path

from secfed.runs.run_folder import prepare
from secfed.runs.run_report import RunReport, SilentObserver
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

STUDY = """
[study]
name = "small"
rounds = 3
seed = 11
[algorithm]
name = "fedavg"
learning_rate = 0.05
batch_size = 32
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = {sites}
partition = "iid"
[protection]
name = "{protection}"
bits = {bits}
min_cohort = 3
"""


def study(protection: str = "masked", *, sites: int = 4, bits: int = 32) -> Study:
    return Study.parse(STUDY.format(protection=protection, sites=sites, bits=bits))


def run(plan: Study, out: Path | None = None, *drops: str) -> RunReport:
    if out is not None:
        prepare(out, overwrite=False)
    parsed = [Dropout.parse(text) for text in drops]
    return simulate(plan, out=out, drops=parsed, observer=SilentObserver())
