"""Options that say two things about one thing, and a study file that says two: refused before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.cli import aggregate as aggregate_module
from secfed.cli import audit as audit_module
from secfed.cli.app import app
from secfed.deploy.aggregator.aggregator import Service
from secfed.errors import ConfigError
from secfed.runs.run_report import SilentObserver
from secfed.study.study import Study
from tests.deploy.agent_case import TOML


@pytest.mark.parametrize("other", ["--json", "--pdf"])
def test_one_file_for_two_forms_of_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_module, "_made", lambda *_: pytest.fail("the report was made"))
    arguments = ["audit", "report", ".", "--out", "report.html", other, str(tmp_path / "report.html")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"{other} {tmp_path}/report.html: is the file of --out, too" in result.stderr
    assert not list(tmp_path.iterdir())


def test_two_budgets_of_one_hospital(tmp_path: Path) -> None:
    budgets = ["--budget", "hospital-2=3", "--budget", "hospital-1=3", "--budget", "hospital-2=4"]
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "none.toml"), *budgets])
    assert result.exit_code == 2
    assert "--budget hospital-2=4: hospital-2 has one already" in result.stderr


def test_a_study_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, load = tmp_path / "study.toml", Study.load
    file.write_text(TOML)

    def slow(path: Path) -> Study:
        study = load(path)
        file.write_text(TOML.replace("rounds = 1", "rounds = 2"))
        return study

    monkeypatch.setattr(Study, "load", slow)
    unused: Any = None
    with pytest.raises(ConfigError, match=r"study\.toml: was changed while it was read"):
        aggregate_module._open(
            file, unused, tmp_path / "out", Service(), SilentObserver(), unused, unused, unused
        )
