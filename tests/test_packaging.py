"""The layout's pitfalls, one test each (docs/adr/001-layout-and-packaging.md).

Four rooms of the package are top-level folders: ``crypto/`` imports as ``secfed.crypto`` and so on. An
explicit package list, a package-dir mapping and committed symlinks make that work; each of them can
break without a sound, so each is looked at here.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

import pytest

from tests.layout import EXAMPLES, HOMES, PROJECT, ROOMS, ROOT, files_of, in_wheel

SETUPTOOLS = PROJECT["tool"]["setuptools"]


def modules() -> list[str]:
    """The dotted name of every module of secfed, read off the tree."""
    names = (in_wheel(path) for home in HOMES for path in files_of(home) if path.suffix == ".py")
    return sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names)


def python(code: str, cwd: Path, *options: str) -> str:
    """Run ``code`` in a fresh interpreter in ``cwd`` and return what it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *options, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The file names in a wheel built, offline, from a copy of the tree."""
    copy = tmp_path_factory.mktemp("tree")
    skip = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
    for home in (*HOMES, EXAMPLES):
        shutil.copytree(ROOT / home, copy / home, symlinks=True, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy2(ROOT / name, copy / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_folder_with_python_files_is_a_listed_package() -> None:
    folders = {path.parent for home in HOMES for path in files_of(home) if path.suffix == ".py"}
    found = {in_wheel(folder).replace("/", ".") for folder in folders}
    assert found | {f"secfed.{EXAMPLES}"} == set(SETUPTOOLS["packages"])
    assert len(SETUPTOOLS["packages"]) == len(set(SETUPTOOLS["packages"]))


def test_every_package_has_an_init_file() -> None:
    folders = {path.parent for home in HOMES for path in files_of(home) if path.suffix == ".py"}
    assert [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()] == []


def test_every_room_is_mapped_to_its_folder() -> None:
    mapped = {f"secfed.{folder}": folder for folder in (*ROOMS, EXAMPLES)}
    assert SETUPTOOLS["package-dir"] == {"secfed": "secfed"} | mapped


def test_wheel_contains_every_module(wheel_names: set[str]) -> None:
    expected = {in_wheel(path) for home in HOMES for path in files_of(home) if path.suffix == ".py"}
    assert expected - wheel_names == set()


def test_wheel_contains_every_data_file(wheel_names: set[str]) -> None:
    expected = {in_wheel(path) for home in HOMES for path in files_of(home) if path.suffix != ".py"}
    assert "secfed/py.typed" in expected
    # A file that is missing here needs a line in [tool.setuptools.package-data].
    assert expected - wheel_names == set()


def _examples() -> set[str]:
    """What git has of the examples, as it is called in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", EXAMPLES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\0")[:-1] or [str(path) for path in files_of(EXAMPLES)]
    return {f"secfed/{name}" for name in names}


def test_wheel_contains_every_example(wheel_names: set[str]) -> None:
    assert len(_examples()) > 40
    assert _examples() - wheel_names == set()
    assert not (ROOT / "secfed" / EXAMPLES).exists(), "the examples lie in one place"


def test_wheel_holds_one_copy_of_each_room_and_nothing_else(wheel_names: set[str]) -> None:
    packed = {name for name in wheel_names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in packed} == {"secfed"}
    examples = {name for name in packed if name.startswith(f"secfed/{EXAMPLES}/")}
    assert packed - examples <= {in_wheel(path) for home in HOMES for path in files_of(home)}


@pytest.mark.parametrize("room", ROOMS)
def test_room_symlink_resolves_to_the_top_level_folder(room: str) -> None:
    link = ROOT / "secfed" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"
    assert link.resolve() == ROOT / room


@pytest.mark.parametrize("room", ROOMS)
def test_room_symlink_is_committed_as_a_symlink(room: str) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: nothing says how the link is committed")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", f"secfed/{room}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert listed.startswith("120000 "), f"secfed/{room} is not a committed symlink: {listed!r}"


def test_no_module_of_secfed_imports_a_room_by_its_top_level_name() -> None:
    """In this process, which *could* import ``crypto``, for the root is on its path; nor did a test."""
    assert str(ROOT) in sys.path
    for name in modules():
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert [room for room in ROOMS if room in sys.modules] == []


def test_a_class_is_the_same_object_by_every_secfed_route() -> None:
    import secfed.crypto.identity as by_module
    from secfed import crypto as room

    route = sys.modules["secfed.crypto.identity"]
    assert room.identity is by_module is route
    assert room.identity.Roster is by_module.Roster is route.Roster
    assert by_module.Roster.__module__ == "secfed.crypto.identity"
    assert Path(by_module.__file__).resolve() == ROOT / "crypto" / "identity.py"


@pytest.mark.parametrize("where", ["secfed/snippet.py", "tests/snippet.py", "benchmarks/snippet.py"])
def test_ruff_bans_the_top_level_names_and_allows_them_under_secfed(where: str) -> None:
    forms = ("import {0}", "import {0}.part", "from {0} import part")
    banned = [form.format(room) for room in ROOMS for form in forms]
    allowed = [line for room in ROOMS for line in (f"from secfed import {room}", f"import secfed.{room}")]
    assert lines_banned("\n".join([*banned, *allowed, ""]), where) == set(range(1, len(banned) + 1))


def lines_banned(source: str, where: str) -> set[int]:
    """The lines of ``source``, as the file ``where``, in which ruff by the project's settings sees TID251."""
    command = [sys.executable, "-m", "ruff", "check", "--output-format=json", "--no-cache"]
    done = subprocess.run(
        [*command, "--stdin-filename", where, "-"], cwd=ROOT, input=source, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr
    return {one["location"]["row"] for one in json.loads(done.stdout) if one["code"] == "TID251"}


def test_the_build_backend_is_setuptools() -> None:
    """Hatchling cannot make an editable install of this layout."""
    assert PROJECT["build-system"]["build-backend"] == "setuptools.build_meta"


def test_pytest_does_not_collect_doctests_from_modules() -> None:
    """From the root that imports every room a second time, under its top-level name."""
    options = PROJECT["tool"]["pytest"]["ini_options"]
    assert "doctest" not in json.dumps(options)
    assert options["testpaths"] == ["tests"]
    assert "--import-mode=importlib" in options["addopts"]


def test_whoever_copies_the_sources_copies_every_folder_of_the_package() -> None:
    """Or the build there ends with a package directory that does not exist."""
    folders = set(SETUPTOOLS["package-dir"].values())
    assert all((ROOT / folder).is_dir() for folder in folders)
    container = ROOT / "deploy" / "container"
    copied = re.findall(r"^COPY (\w+) \1$", (container / "Containerfile").read_text("utf-8"), re.MULTILINE)
    seen = re.findall(
        r"^!(\w+)$", (container / "Containerfile.dockerignore").read_text("utf-8"), re.MULTILINE
    )
    (read_only,) = re.findall(r"cp -R (.*) \$@", (ROOT / "Makefile").read_text("utf-8"))
    for found in (copied, seen, read_only.split()):
        assert folders <= set(found)


def test_an_editable_install_imports_from_the_tree(tmp_path: Path) -> None:
    # -I: neither the working directory nor PYTHONPATH helps; only the installation can find it.
    reading = 'import importlib.metadata as m; print(m.distribution("secfed").read_text("direct_url.json"))'
    record = json.loads(python(reading, tmp_path, "-I"))
    assert record["dir_info"].get("editable") is True, "secfed is not an editable install: run `make setup`"
    assert Path(unquote(urlparse(record["url"]).path)).resolve() == ROOT

    code = f"""
import importlib.util, json
from pathlib import Path
names = {modules()!r}
print(json.dumps({{name: str(Path(importlib.util.find_spec(name).origin).resolve()) for name in names}}))
"""
    found = json.loads(python(code, tmp_path, "-I").splitlines()[-1])
    expected = {str(ROOT / path) for home in HOMES for path in files_of(home) if path.suffix == ".py"}
    assert set(found.values()) == expected


def test_make_keeps_out_of_a_read_only_checkout() -> None:
    command = [
        "make",
        "--dry-run",
        "--always-make",
        "demo",
        "READONLY=yes",
        "VENV=/new/venv",
        "DEMO=/new/demo",
        "PYTHON=/new/python3",  # whichever is first on the PATH may be the one of this checkout
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--editable /new/venv/source" in done.stdout
    assert "--out /new/demo " in done.stdout
    assert ".venv" not in done.stdout
    assert "runs/" not in done.stdout


def test_readme_shows_the_bring_your_own_example_as_it_is_in_at_most_20_lines() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = [ROOT / "examples" / "bring-your-own" / name for name in ("my_hospital.py", "study.toml")]
    sources = [file.read_text(encoding="utf-8").strip() for file in files]
    assert all(
        f"```{kind}\n{text}\n```" in readme for kind, text in zip(("python", "toml"), sources, strict=True)
    )
    assert sum(len(text.splitlines()) for text in sources) <= 20


INSTALLS: Final = (
    r"\b(?:pip3?|pipx|uv|conda) (?:install|add|download|wheel|run)\b[^\n#]*?(?<![\w./-])secfed(?![\w./-])"
)


def _texts() -> Iterator[tuple[str, str]]:
    """(path, text) of every file of the repository that somebody may read."""
    skipped = {"runs", "build", "dist", "wheelhouse", "node_modules", "__pycache__"}
    for folder, below, names in os.walk(ROOT):
        below[:] = [
            name
            for name in below
            if name not in skipped and not name.endswith(".egg-info") and (name == ".ci" or name[0] != ".")
        ]
        for path in (Path(folder) / name for name in names):
            if path.suffix not in (".png", ".svg", ".so", ".pyc", ".safetensors"):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def test_nobody_is_told_to_install_secfed_by_its_name() -> None:
    """Whoever registered the name on a package index would get code run where somebody followed that."""
    seen = set()
    for path, text in _texts():
        seen.add(path)
        if path != "pyproject.toml":  # its extra dev names the other extras of the same project
            assert not re.search(r"\bsecfed\[", text), path
        joined = text.replace("\\\n", " ")
        assert not re.search(INSTALLS, joined), path
    assert {
        "README.md",
        "crypto/encrypted/bfv_tenseal.py",
        "examples/vlp-medpix.toml",
        "docs/operators.md",
    } <= seen
