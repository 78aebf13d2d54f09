"""``secfed audit``: report, verify and budget, as an operator types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner, Result

from secfed.cli.audit import _write, audit_app
from secfed.cli.guard import GuardedGroup
from secfed.runs.run_folder import site_folder
from tests.dp.report_case import DATASET, Case, hospital, studies, write_case

LEDGER = f"ledger-{DATASET}.jsonl"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("case")
    write_case(root)
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "case"))


def application() -> typer.Typer:
    app = typer.Typer(cls=GuardedGroup)
    app.add_typer(audit_app, name="audit")

    @app.callback()
    def _options() -> None:
        """As in secfed.cli.app."""

    return app


def secfed(*arguments: object, columns: int = 180) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(
        application(), ["audit", *(str(item) for item in arguments)]
    )


class TestReport:
    def test_it_writes_what_was_asked_for(self, written: Path, tmp_path: Path) -> None:
        page, facts = tmp_path / "report.html", tmp_path / "report.json"
        done = secfed("report", *studies(written), "--out", page, "--json", facts)
        assert done.exit_code == 0, done.output
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        content = json.loads(facts.read_text(encoding="utf-8"))
        assert content["verification"]["verified"] is True
        assert f"Wrote {page}" in done.stdout
        assert f"Wrote {facts}" in done.stdout
        assert "Verified: 21 files; 58 epsilons computed again." in done.stdout
        assert sorted(tmp_path.iterdir()) == [page, facts]

    def test_pdf(self, written: Path, tmp_path: Path) -> None:
        pytest.importorskip("fpdf", reason="fpdf2 is not installed")
        out = tmp_path / "report.pdf"
        done = secfed("report", written / "pilot", "--out", tmp_path / "report.html", "--pdf", out)
        assert done.exit_code == 0, done.output
        assert out.read_bytes().startswith(b"%PDF-")

    def test_without_fpdf2_the_remedy_says_what_to_do(
        self, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "secfed.audit.render.pdf", raising=False)
        monkeypatch.setitem(sys.modules, "fpdf", None)
        done = secfed("report", written / "pilot", "--out", tmp_path / "r.html", "--pdf", tmp_path / "r.pdf")
        assert done.exit_code != 0
        assert not (tmp_path / "r.pdf").exists()

    def test_a_report_on_bad_records_is_written_and_fails(self, root: Path, tmp_path: Path) -> None:
        damage(root)
        out = tmp_path / "report.html"
        done = secfed("report", *studies(root), "--out", out)
        assert done.exit_code == 24
        assert "DOES NOT VERIFY" in out.read_text(encoding="utf-8")

    def test_a_place_that_cannot_be_written_is_one_line_with_a_remedy(
        self, written: Path, tmp_path: Path
    ) -> None:
        done = secfed("report", written / "pilot", "--out", tmp_path / "none" / "report.html")
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 2
        assert "Remedy:" in done.stderr

    def test_a_pipe_or_device_is_written_to_and_not_replaced(self, tmp_path: Path) -> None:
        pipe, told = tmp_path / "pipe", list[bytes]()
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: told.append(pipe.read_bytes()), daemon=True)
        reader.start()
        _write(pipe, b"report")
        reader.join(30)
        assert told == [b"report"]
        assert pipe.is_fifo()

    def test_a_link_to_a_report_stays_a_link(self, tmp_path: Path) -> None:
        link, report = tmp_path / "newest.html", tmp_path / "report.html"
        link.symlink_to(report)
        _write(link, b"report")
        assert link.is_symlink()
        assert report.read_bytes() == b"report"


def damage(root: Path) -> Path:
    path = site_folder(root / "heart", "st-anna") / LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], lines[6].replace(b'"round":3', b'"round":4'), *lines[7:]]))
    return path


class TestVerify:
    def test_tells_what_was_checked(self, written: Path) -> None:
        done = secfed("verify", *studies(written))
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.count(" verified") == 21
        assert "58 epsilons computed again" in done.stdout
        assert Case(written).roster.digest.hex() in done.stdout

    @pytest.mark.parametrize("columns", [80, 180])
    def test_names_of_files_are_whole_and_below_the_folder(self, written: Path, columns: int) -> None:
        folder = written / "heart"
        shown = secfed("verify", folder, columns=columns).stdout
        assert shown.startswith(f"In {folder}:\n")
        rows = [line.split() for line in shown.splitlines() if line.endswith("verified")]
        below = (path for path in folder.rglob("*") if path.is_file())
        names = {str(path.relative_to(folder)) for path in below}
        assert len(rows) > 5
        assert {row[0] for row in rows} <= names
        assert ("Owner" in shown) == (columns == 180)

    def test_one_changed_byte_is_named_and_exits_non_zero(self, root: Path) -> None:
        path = damage(root)
        done = secfed("verify", *studies(root))
        assert done.exit_code == 24
        assert f"{path}, line 7" in done.stderr
        assert f"{path}, line 7" in done.stdout
        assert "Verified" not in done.stdout
        assert done.stderr.count("Error:") == 1
        assert "Remedy:" in done.stderr

    def test_an_older_ledger_is_named_with_the_round_it_lacks(self, root: Path) -> None:
        path = site_folder(root / "heart", "st-anna") / LEDGER
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))
        done = secfed("verify", root / "heart")
        assert done.exit_code == 24
        assert str(path) in done.stderr
        assert "older copy" in done.stderr
        assert "(round 3)" in done.stderr

    def test_a_pinned_roster_may_be_named(self, written: Path, tmp_path: Path) -> None:
        pinned = tmp_path / "pinned.json"
        shutil.copy(written / "heart" / "roster.json", pinned)
        done = secfed("verify", *studies(written), "--roster", pinned)
        assert done.exit_code == 0
        assert "Keys from the folders" not in done.stdout
        done = secfed("verify", *studies(written), "--roster", tmp_path / "none.json")
        assert done.exit_code == 2

    def test_a_hospitals_own_folder(self, written: Path, tmp_path: Path) -> None:
        own = hospital(written, Case(written), "st-anna", tmp_path / "own")
        done = secfed("verify", own)
        assert done.exit_code == 0
        assert "was not compared with it" in done.stdout

    def test_control_characters_of_a_hostile_file_do_not_reach_the_terminal(self, root: Path) -> None:
        shutil.copytree(
            site_folder(root / "heart", "st-anna"),
            site_folder(root / "heart", "x").with_name("\x1b[31mred\x07"),
        )
        done = secfed("verify", root / "heart")
        assert done.exit_code == 24
        assert "\x1b[31m" not in done.output
        assert "\x07" not in done.output

    def test_nothing_there_is_one_line_with_a_remedy(self, tmp_path: Path) -> None:
        for folder, code in ((tmp_path / "none", 2), (tmp_path, 24)):
            done = secfed("verify", folder)
            assert (done.exit_code, done.stderr.count("\n")) == (code, 2)


class TestBudget:
    def test_every_budget_with_everything_it_needs(self, written: Path) -> None:
        done = secfed("budget", *studies(written))
        assert done.exit_code == 0, done.output
        blocks = done.stdout.split("Delta ")
        (block,) = (block for block in blocks if "1.567" in block)
        assert block.startswith("1e-5, relation add-or-remove-record, accountant rdp (")
        (line,) = [line for line in block.splitlines() if line.startswith("st-anna") and "in all" in line]
        for part in (DATASET, "record", "1.6", "1.567", "0.033"):
            assert part in line
        assert done.stdout.count("last 365 days") == 3

    def test_no_word_is_cut_or_broken_at_80_columns(self, written: Path) -> None:
        done = secfed("budget", *studies(written), columns=80)
        assert "…" not in done.stdout
        rows = [line for line in done.stdout.splitlines() if " " + DATASET in line]
        assert rows
        assert max(map(len, rows)) <= 80
        wide = secfed("budget", *studies(written), columns=180).stdout
        assert [row.split() for row in rows] == [
            line.split() for line in wide.splitlines() if " " + DATASET in line
        ]

    def test_what_all_budgets_share_is_said_once(self, written: Path) -> None:
        shown = secfed("budget", *studies(written), columns=80).stdout
        stated = [line for line in shown.splitlines() if line.startswith("Delta ")]
        assert len(stated) == len(set(stated))
        assert shown.count("Data set") == len(stated)

    def test_no_ledger_is_said(self, written: Path, tmp_path: Path) -> None:
        own = hospital(written, Case(written), "st-anna", tmp_path / "own", ledger=False)
        done = secfed("budget", own / "pilot")
        assert done.exit_code == 0
        assert "no differential privacy is recorded here" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, secfed.cli.audit\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'fpdf', 'dp_accounting', 'cryptography', 'opacus'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_commands_are_documented() -> None:
    command = typer.main.get_command(application())
    assert isinstance(command, click.Group)
    audit = command.commands["audit"]
    assert isinstance(audit, click.Group)
    assert sorted(audit.commands) == ["budget", "decisions", "report", "verify"]
    assert all(one.help for one in audit.commands.values())
