"""The front door: version, help that loads nothing heavy, and the list of what a study can name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from secfed import __version__
from secfed.cli.app import _COMMANDS
from secfed.crypto.identity import grouped
from secfed.storage.code_digest import code_digest
from tests.secfed.run_case import secfed


class TestFrontDoor:
    def test_version(self) -> None:
        said = secfed("--version").stdout
        assert said == f"secfed {__version__}, build {grouped(code_digest()[:16])}\n"

    @pytest.mark.parametrize(
        "command", [[], ["simulate"], ["transcript"], ["transcript", "verify"], ["algorithms"], ["audit"]]
    )
    def test_every_command_has_help(self, command: list[str]) -> None:
        result = secfed(*command, "--help", columns=80)
        assert result.exit_code == 0
        assert "Usage: secfed" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80

    def test_the_commands_stand_in_panels_by_who_is_served(self) -> None:
        shown = secfed("--help", columns=80).stdout
        panels = ("Researchers", "Hospital", "Study centre", "Officers and auditors")
        commands = {
            "Researchers": [
                "init",
                "examples",
                *("simulate", "analyse", "sweep", "new", "algorithms", "attack", "bench"),
            ],
            "Hospital": ["site", "agent", "policy"],
            "Study centre": ["consortium", "aggregate"],
            "Officers and auditors": ["audit", "transcript", "console"],
        }
        found: dict[str, list[str]] = {}
        for line in shown.splitlines():
            words = line.strip("╭─╮│╰╯ ").split("  ")
            if line.startswith("╭"):
                found[words[0]] = []
            elif line.startswith("│ ") and line[2].isalpha():
                found[list(found)[-1]].append(words[0])
        assert tuple(found)[1:] == panels
        assert {name: found[name] for name in panels} == commands

    @pytest.mark.parametrize(
        ("program", "heavy"),
        [
            (
                "from secfed.cli.app import app\ntry: app(['--help'])\nexcept SystemExit: pass",
                {"torch", "numpy", "matplotlib", "sklearn", "pydantic", "cryptography"},
            ),
            (
                "import secfed.cli.audit",
                {"torch", "numpy", "matplotlib", "fpdf", "dp_accounting", "cryptography", "opacus"},
            ),
            (
                f"import {', '.join(f'secfed.cli.{name}' for name in _COMMANDS)}",
                {"torch", "opacus", "grpc", "matplotlib", "sklearn", "flwr"},
            ),
        ],
        ids=["front-door", "audit", "every-command"],
    )
    def test_help_waits_for_no_library(self, program: str, heavy: set[str]) -> None:
        code = f"import sys\n{program}\nsys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def test_algorithms_lists_every_name_option_and_meaning(self) -> None:
        from secfed.study.registry import KINDS

        out = secfed("algorithms", "--options", columns=400).stdout
        bracketed = []
        for entries, _ in KINDS.values():
            for name, entry in entries.items():
                assert f"  {name}\n" in out
                options = {key: field for key, field in entry.options.model_fields.items() if key != "name"}
                assert all(f"    {key} " in out for key in options)
                bracketed += [one.description for one in options.values() if "[" in (one.description or "")]
        # Square brackets of a meaning are not markup.
        assert len(bracketed) >= 2
        assert all("".join((meaning or "").split()) in "".join(out.split()) for meaning in bracketed)

    def test_algorithms_lists_all_names_on_one_screen(self) -> None:
        from secfed.study.registry import KINDS

        out = secfed("algorithms", columns=80).stdout
        assert len(out.splitlines()) <= 24
        assert all(name in out for entries, _ in KINDS.values() for name in entries)
        assert "secfed algorithms NAME" in out

    def test_algorithms_shows_one_by_name(self) -> None:
        out = secfed("algorithms", "fedprox").stdout
        assert "mu" in out
        assert "breast-cancer" not in out

    def test_algorithms_refuses_an_unknown_name_with_the_list(self) -> None:
        result = secfed("algorithms", "fedfoo")
        assert result.exit_code == 2
        assert "fedavg" in result.stderr


def test_a_folder_of_another_account_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_args, **_named: False)  # as root everything can be read
    done = secfed("site", "status", "--dir", tmp_path)
    assert done.exit_code == 2
    said = " ".join(done.stderr.split())
    assert f"Path '{tmp_path}' is not readable" in said
    assert "sudo -u secfed-agent" in said
