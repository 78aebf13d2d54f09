"""Sweeps whose runs are jobs of Slurm or tasks of Ray: the same folders, and what is lost when one dies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from secfed.errors import ConfigError
from secfed.sweep.child import run_alone
from secfed.sweep.clusters import RayRunner, Runner, SlurmRunner, make_runner
from secfed.sweep.engine import run_sweep
from secfed.sweep.processes import ProcessRunner
from secfed.sweep.store import Store
from tests.secfed.sweep_case import RATES, plan

HERE = Path()
SOME = RATES.replace("[0.1, 0.2, 0.3]", "[0.1]")
RAY = """
import sys
from pathlib import Path
from secfed.sweep.clusters import RayRunner
from secfed.sweep.engine import run_sweep
from tests.secfed.sweep.test_clusters import SOME
from tests.secfed.sweep_case import plan
rows = run_sweep(plan(SOME), Path(sys.argv[1]), jobs=2, runner=RayRunner(Path(), 2))
sys.exit([row.status for row in rows] != ["done", "done"])
"""


def _files(out: Path) -> dict[str, list[str]]:
    return {
        run.name: sorted(str(path.relative_to(run)) for path in run.rglob("*"))
        for run in (out / "runs").iterdir()
    }


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
@pytest.mark.slow
def test_jobs_of_slurm_leave_what_processes_leave_and_a_killed_one_is_run_again(tmp_path: Path) -> None:
    here = run_sweep(plan(SOME), tmp_path / "here", jobs=2, runner=ProcessRunner(HERE))
    killed: list[str] = []

    class Killing(SlurmRunner):
        def start(self, run, part):  # type: ignore[no-untyped-def]
            running = super().start(run, part)
            if not killed:
                killed.append(run.folder)
                running.job._process.kill()
            return running

    first = run_sweep(plan(SOME), tmp_path / "there", jobs=2, runner=Killing(HERE, cluster="local"))
    assert sorted(row.status for row in first) == ["done", "failed"]
    assert [row.error for row in first if row.status == "failed"] == ["INTERRUPTED"]
    then = run_sweep(plan(SOME), tmp_path / "there", jobs=2, runner=SlurmRunner(HERE, cluster="local"))
    assert [row.metrics for row in here] == [row.metrics for row in then]
    assert _files(tmp_path / "here") == _files(tmp_path / "there")


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.slow
def test_tasks_of_ray_leave_what_processes_leave(tmp_path: Path) -> None:
    run_sweep(plan(SOME), tmp_path / "here", jobs=2, runner=ProcessRunner(HERE))
    command = [sys.executable, "-c", RAY, str(tmp_path / "there")]  # Ray leaves processes to Python's end
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[3])
    assert _files(tmp_path / "here") == _files(tmp_path / "there")


def test_a_run_that_nobody_waits_for_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = Store(tmp_path), plan(SOME).runs[0]
    part = store.begin(run.folder, run.text)

    def taken_over(*_: object, **more: object) -> None:
        store.begin(run.folder, run.text)  # a second sweep begins the same run
        (Path(str(more["out"])) / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr("secfed.simulation.simulate.simulate", taken_over)
    assert run_alone(part, HERE, False) != 0
    assert sorted(path.name for path in part.iterdir()) == ["study.toml"]
    assert not (store.runs / run.folder).exists()
    shutil.rmtree(part)


@pytest.mark.parametrize(
    ("engine", "slurm", "said"),
    [
        ("batch", [], "--engine batch: unknown"),
        ("slurm", ["partition"], "--slurm partition: not KEY=VALUE"),
        ("ray", ["a=b"], "--slurm: has no effect with --engine ray"),
    ],
)
def test_what_makes_no_sense_is_refused(engine: str, slurm: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_runner(engine, HERE, 2, slurm, debug=False)


@pytest.mark.parametrize(
    ("runner", "module"), [(SlurmRunner(HERE), "submitit"), (RayRunner(HERE, 2), "ray")], ids=["slurm", "ray"]
)
def test_a_package_that_is_missing_is_named(
    runner: Runner, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match="is not installed"):
        runner.start(plan(SOME).runs[0], tmp_path)


@pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
def test_a_setting_that_jobs_do_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--engine slurm"):
        SlurmRunner(HERE, cluster="local", settings={"wings": 2}).start(plan(SOME).runs[0], tmp_path)
