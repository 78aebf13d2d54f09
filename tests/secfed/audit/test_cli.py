"""``secfed audit``: report, verify and budget, as an operator types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pypdf
import pytest
from typer.testing import Result

from secfed.audit.render import chromium as print_page
from secfed.cli.audit import _write
from secfed.crypto.identity import grouped
from secfed.runs.run_folder import site_folder
from tests.dp.report_case import DATASET, LEDGER, Case, hospital, studies
from tests.secfed.run_case import secfed


def audit(*arguments: object, columns: int = 180) -> Result:
    return secfed("audit", *arguments, columns=columns)


def damage(root: Path) -> Path:
    path = site_folder(root / "heart", "st-anna") / LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], lines[6].replace(b'"round":3', b'"round":4'), *lines[7:]]))
    return path


class TestReport:
    def test_it_writes_what_was_asked_for(self, written: Path, tmp_path: Path) -> None:
        page, facts = tmp_path / "report.html", tmp_path / "report.json"
        done = audit("report", *studies(written), "--out", page, "--json", facts)
        assert done.exit_code == 0, done.output
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        assert json.loads(facts.read_text(encoding="utf-8"))["verification"]["verified"] is True
        told = (f"Wrote {page}", f"Wrote {facts}", "Verified: 21 files; 58 epsilons computed again.")
        assert all(text in done.stdout for text in told)
        assert sorted(tmp_path.iterdir()) == [page, facts]

    @pytest.mark.parametrize("installed", [True, False])
    def test_pdf(
        self, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
    ) -> None:
        if installed:
            pytest.importorskip("fpdf", reason="fpdf2 is not installed")
        else:
            monkeypatch.delitem(sys.modules, "secfed.audit.render.pdf", raising=False)
            monkeypatch.setitem(sys.modules, "fpdf", None)
        monkeypatch.setattr(print_page, "browser", lambda: None)
        out = tmp_path / "report.pdf"
        done = audit("report", written / "pilot", "--out", tmp_path / "report.html", "--pdf", out)
        assert (done.exit_code == 0, out.exists()) == (installed, installed), done.output
        assert not installed or out.read_bytes().startswith(b"%PDF-")

    @pytest.mark.skipif(print_page.browser() is None, reason="no chromium program on this machine")
    def test_chromium_prints_one_study_on_at_most_six_pages(
        self, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "fpdf", None)
        out = tmp_path / "report.pdf"
        done = audit("report", written / "heart", "--out", tmp_path / "report.html", "--pdf", out)
        assert done.exit_code == 0, done.output
        assert len(pypdf.PdfReader(out).pages) <= 6

    def test_a_browser_that_does_not_print_is_done_without(self) -> None:
        assert print_page.print_to_pdf("<p>", "/bin/false") is None
        assert print_page.print_to_pdf("<p>", "/no/such/program") is None

    def test_a_report_on_bad_records_is_written_and_fails(self, root: Path, tmp_path: Path) -> None:
        damage(root)
        out = tmp_path / "report.html"
        assert audit("report", *studies(root), "--out", out).exit_code == 24
        assert "DOES NOT VERIFY" in out.read_text(encoding="utf-8")

    def test_an_account_without_a_home_is_no_news(self, written: Path, tmp_path: Path) -> None:
        arguments = [
            "secfed",
            "audit",
            "report",
            str(written / "pilot"),
            "--out",
            str(tmp_path / "report.html"),
        ]
        code = f"import sys; from secfed.cli import main; sys.argv = {arguments}; main()"
        environment = {key: value for key, value in os.environ.items() if key != "MPLCONFIGDIR"}
        environment |= {"HOME": "/proc/none"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_place_that_cannot_be_written_is_one_line_with_a_remedy(
        self, written: Path, tmp_path: Path
    ) -> None:
        done = audit("report", written / "pilot", "--out", tmp_path / "none" / "report.html")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 2)
        assert "Remedy:" in done.stderr

    def test_only_an_earlier_report_of_the_kind_is_replaced(self, written: Path, tmp_path: Path) -> None:
        page, facts = tmp_path / "report.html", tmp_path / "report.json"
        for _ in range(2):
            assert audit("report", written / "pilot", "--out", page, "--json", facts).exit_code == 0
        ledger = tmp_path / "ledger.jsonl"
        others = {ledger: b"", tmp_path / "roster.json": b'{"sites": []}', tmp_path / "notes.html": b"mine"}
        for path, content in others.items():
            path.write_bytes(content)
            for option in ("--out", "--json", "--pdf"):
                rest = () if option == "--out" else ("--out", page)
                done = audit("report", written / "pilot", option, path, *rest)
                assert (done.exit_code, path.read_bytes()) == (2, content), (option, done.output)
                assert f"{option} {path}: is there, and is no report of this kind" in done.stderr
        assert audit("report", written / "pilot", "--out", page, "--pdf", facts).exit_code == 2

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


class TestVerify:
    def test_tells_what_was_checked(self, written: Path) -> None:
        done = audit("verify", *studies(written))
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.count(" verified") == 21
        assert "58 epsilons computed again" in done.stdout
        assert grouped(Case(written).roster.digest.hex()) in done.stdout

    @pytest.mark.parametrize("columns", [80, 180])
    def test_names_of_files_are_whole_and_below_the_folder(self, written: Path, columns: int) -> None:
        folder = written / "heart"
        shown = audit("verify", folder, columns=columns).stdout
        assert shown.startswith(f"In {folder}:\n")
        rows = [line.split() for line in shown.splitlines() if line.endswith("verified")]
        assert len(rows) > 5
        assert {row[0] for row in rows} <= {str(path.relative_to(folder)) for path in folder.rglob("*.json*")}
        assert ("Owner" in shown) == (columns == 180)

    def test_one_changed_byte_is_named_and_exits_non_zero(self, root: Path) -> None:
        path = damage(root)
        done = audit("verify", *studies(root))
        assert (done.exit_code, done.stderr.count("Error:")) == (24, 1)
        assert f"{path}, line 7" in done.stderr
        assert f"{path}, line 7" in done.stdout
        assert "Verified" not in done.stdout
        assert "Remedy:" in done.stderr

    def test_an_older_ledger_is_named_with_the_round_it_lacks(self, root: Path) -> None:
        path = site_folder(root / "heart", "st-anna") / LEDGER
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))
        done = audit("verify", root / "heart")
        assert done.exit_code == 24
        assert all(text in done.stderr for text in (str(path), "older copy", "(round 3)"))

    def test_a_pinned_roster_may_be_named(self, written: Path, tmp_path: Path) -> None:
        pinned = tmp_path / "pinned.json"
        shutil.copy(written / "heart" / "roster.json", pinned)
        done = audit("verify", *studies(written), "--roster", pinned)
        assert done.exit_code == 0
        assert "Keys from the folders" not in done.stdout
        assert audit("verify", *studies(written), "--roster", tmp_path / "none.json").exit_code == 2

    def test_control_characters_of_a_hostile_file_do_not_reach_the_terminal(self, root: Path) -> None:
        anna = site_folder(root / "heart", "st-anna")
        shutil.copytree(anna, anna.with_name("\x1b[31mred\x07"))
        done = audit("verify", root / "heart")
        assert done.exit_code == 24
        assert not {"\x1b", "\x07"} & set(done.output)

    def test_nothing_there_is_one_line_with_a_remedy(self, tmp_path: Path) -> None:
        for folder, code in ((tmp_path / "none", 2), (tmp_path, 24)):
            done = audit("verify", folder)
            assert (done.exit_code, done.stderr.count("\n")) == (code, 2)


class TestBudget:
    def test_every_budget_with_everything_it_needs_is_stated_once(self, written: Path) -> None:
        done = audit("budget", *studies(written))
        assert done.exit_code == 0, done.output
        blocks = done.stdout.split("Delta ")
        (block,) = (block for block in blocks if "1.567" in block)
        assert block.startswith("1e-5, relation add-or-remove-record, accountant rdp (")
        (line,) = [line for line in block.splitlines() if line.startswith("st-anna") and "in all" in line]
        assert all(part in line for part in (DATASET, "record", "1.6", "1.567", "0.033"))
        assert done.stdout.count("last 365 days") == 3
        stated = [line for line in done.stdout.splitlines() if line.startswith("Delta ")]
        assert len(stated) == len(set(stated)) == done.stdout.count("Data set")

    def test_no_word_is_cut_or_broken_at_80_columns(self, written: Path) -> None:
        narrow, wide = (audit("budget", *studies(written), columns=width).stdout for width in (80, 180))
        assert "…" not in narrow
        rows, whole = (
            [line for line in text.splitlines() if " " + DATASET in line] for text in (narrow, wide)
        )
        assert 0 < max(map(len, rows)) <= 80
        assert [row.split() for row in rows] == [row.split() for row in whole]

    def test_no_ledger_is_said(self, written: Path, tmp_path: Path) -> None:
        own = hospital(written, Case(written), "st-anna", tmp_path / "own", ledger=False)
        done = audit("budget", own / "pilot")
        assert done.exit_code == 0
        assert "no differential privacy is recorded here" in done.stdout
