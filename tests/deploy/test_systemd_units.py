"""The units as systemd reads them: nothing unknown in them, and little left that a service could do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT

FOLDER: Final = ROOT / "deploy" / "systemd"
INSTALLED: Final = "/opt/secfed/bin/secfed"
UNITS: Final = {"secfed-agent.service": "", "secfed-aggregator@.service": "heart-1"}  # file: instance
MEANT: Final = ["Memory", "Files", "Rights", "System"]  # what the hardening paragraphs begin with
LARGEST_EXPOSURE: Final = 2.0  # of 10; systemd itself calls below 2.5 "OK"

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which is part of systemd"
)


class _Repeated(dict[str, Any]):
    """Keys of a unit file may come again; then all values count."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self and isinstance(value, list):
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def settings(name: str) -> dict[str, list[str]]:
    """Settings of ``[Service]``, with the values of a repeated one in order."""
    parser = RawConfigParser(dict_type=_Repeated, strict=False, comment_prefixes="#", delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = re.sub(r"\\\n\s*", "", (FOLDER / name).read_text(encoding="utf-8"))
    parser.read_string(text)
    return {key: value.split("\n") for key, value in parser["Service"].items()}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Copies of the units that name a program which exists here."""
    program = Path(sys.prefix) / "bin" / "secfed"
    if not program.exists():
        pytest.skip(f"secfed is not installed at {program}")
    for name, instance in UNITS.items():
        text = (FOLDER / name).read_text(encoding="utf-8").replace(INSTALLED, str(program))
        (tmp_path / name.replace("@.", f"@{instance}.")).write_text(text, encoding="utf-8")
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@needs_analyze
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name: str, installed: Path) -> None:
    path = installed / name.replace("@.", f"@{UNITS[name]}.")
    done = analyze("verify", "--man=no", str(path))
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


@needs_analyze
@pytest.mark.parametrize("name", UNITS)
def test_little_is_left_that_the_service_could_do(name: str, installed: Path) -> None:
    path = installed / name.replace("@.", f"@{UNITS[name]}.")
    threshold = f"--threshold={round(10 * LARGEST_EXPOSURE)}"  # systemd-analyze counts in tenths
    done = analyze("security", "--offline=yes", "--no-pager", threshold, str(path))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze here is older than 250 and cannot look at files")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_what_hospitals_asked_for_is_set(name: str) -> None:
    found = settings(name)
    wanted = {
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "NoNewPrivileges": "yes",
        "UMask": "0077",
        "StateDirectoryMode": "0700",
        "Restart": "on-failure",
        "LimitCORE": "0",
        "MemorySwapMax": "0",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    }
    assert {key: found[key][0] for key in wanted} == wanted
    assert found["User"][0] not in ("", "root", "0")
    assert "MemoryMax" in found
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert "MALLOC_MMAP_THRESHOLD_=262144" in found["Environment"]
    (credential,) = found["LoadCredential"]
    assert f"SECFED_PASSPHRASE_FILE=%d/{credential}" in found["Environment"]


@pytest.mark.parametrize("name", UNITS)
def test_what_every_hardening_line_is_for_stands_above_it(name: str) -> None:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("# Memory"))
    hardening = lines[begin : lines.index("StandardOutput=journal")]
    paragraphs = "\n".join(hardening).split("\n\n")
    assert [paragraph.split()[1].strip(".:") for paragraph in paragraphs] == MEANT
    assert all(paragraph.startswith("# ") for paragraph in paragraphs)
    # A comment is for the few settings below it, not for a screen full of them.
    groups = [
        len(re.findall(r"(?m)^[^#\n]", group)) for group in re.split(r"(?m)(?:^#.*\n)+", "\n".join(hardening))
    ]
    assert max(groups) <= 4


def test_training_that_runs_out_of_memory_does_not_take_the_agent_with_it() -> None:
    assert settings("secfed-agent.service")["OOMPolicy"] == ["continue"]


def test_the_agent_may_do_nothing_that_needs_a_capability() -> None:
    found = settings("secfed-agent.service")
    assert (found["CapabilityBoundingSet"], found["AmbientCapabilities"]) == ([""], [""])


def test_training_in_an_account_of_its_own_needs_three_capabilities_and_no_more() -> None:
    found = settings("training-user.conf")
    wanted = ["CAP_SETUID CAP_SETGID CAP_KILL"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == wanted
    assert found["SystemCallFilter"] == ["@setuid"]
    assert "NoNewPrivileges" not in found, "the unit's own stays"


@needs_analyze
def test_systemd_finds_nothing_wrong_with_training_in_an_account_of_its_own(installed: Path) -> None:
    path = installed / "secfed-agent.service"
    more = (FOLDER / "training-user.conf").read_text(encoding="utf-8").partition("[Service]")[2]
    path.write_text(path.read_text(encoding="utf-8").replace("\n[Install]", f"{more}\n[Install]"))
    done = analyze("verify", "--man=no", str(path))
    assert [line for line in done.stderr.splitlines() if path.name in line] == []


@needs_analyze
def test_several_studies_are_served_where_a_single_one_would_be(installed: Path) -> None:
    """So that a study which was begun by itself goes on among others."""
    more = settings("several-studies.conf")["ExecStart"]
    alone = settings("secfed-aggregator@.service")["ExecStart"][0]
    assert more[0] == "", "the unit's own command goes"
    assert alone.replace("/%i.toml", "").replace("/%i", "") == more[1]
    path = installed / "secfed-aggregator@heart-1.service"
    text = (FOLDER / "several-studies.conf").read_text(encoding="utf-8").partition("[Service]")[2]
    text = text.replace(INSTALLED, str(Path(sys.prefix) / "bin" / "secfed"))
    path.write_text(path.read_text(encoding="utf-8").replace("\n[Install]", f"{text}\n[Install]"))
    done = analyze("verify", "--man=no", str(path))
    assert [line for line in done.stderr.splitlines() if path.name in line] == []


def test_accounts_of_the_units_are_declared() -> None:
    declared = re.findall(r"(?m)^u (\S+)", (FOLDER / "secfed.sysusers.conf").read_text())
    assert sorted(declared) == sorted([*(settings(name)["User"][0] for name in UNITS), "secfed-training"])


@pytest.mark.parametrize("name", UNITS)
def test_no_secret_is_on_the_command_line_or_in_the_environment(name: str) -> None:
    found = settings(name)
    for value in (*found["ExecStart"], *found["Environment"]):
        assert "passphrase=" not in value.lower().replace("secfed-passphrase", "")
