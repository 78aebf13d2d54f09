"""What a simulation imports before its first round is over: every module more is time that a person waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.secfed.engine.test_engines import PLAIN

BANNED = ("torch._dynamo", "torch._inductor", "sympy", "scipy", "sklearn", "pandas", "matplotlib", "opacus")
BANNED += ("transformers", "timm", "torchvision", "tenseal", "grpc", "flwr", "ray", "dp_accounting")
CODE = """
import sys
from secfed.cli.simulate import simulate as _  # the command's own imports
from secfed.runs.run_report import Observer
from secfed.simulation.simulate import simulate
from secfed.study.study import Study
class First(Observer):
    def round_finished(self, report):
        print(*(name for name in sys.argv[2:] if name in sys.modules))
        sys.exit(report.round != 1)
simulate(Study.parse(sys.argv[1]), observer=First())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "data"), [("fedavg", "digits"), ("fedprox", "breast-cancer")])
def test_the_first_round_waits_for_nothing_that_it_does_not_use(algorithm: str, data: str) -> None:
    study = PLAIN.format(algorithm=algorithm, options="").replace('"digits"', f'"{data}"')
    done = subprocess.run([sys.executable, "-c", CODE, study, *BANNED], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
