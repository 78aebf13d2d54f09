"""A release: equal bytes from equal trees, complete, and its parts say what they are."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from secfed.crypto.identity import grouped
from secfed.storage.code_digest import code_digest
from tests.layout import ROOT

EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_tree(folder: Path, mtime: int) -> Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (mtime, mtime))
    return folder


@pytest.mark.slow
def test_equal_trees_give_equal_bytes_and_a_whole_source_distribution(
    release: ModuleType, tmp_path: Path
) -> None:
    first = release.distributions(a_tree(tmp_path / "a", 1_500_000_000), EPOCH)
    second = release.distributions(a_tree(tmp_path / "b", 1_600_000_000), EPOCH)
    assert first == second
    wheel, sdist = sorted(first, key=lambda name: name.endswith(".gz"))
    with tarfile.open(fileobj=io.BytesIO(first[sdist])) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    wanted = ["constraints.txt", "NOTICE", "LICENSE", "Makefile", "examples/breast-cancer.toml"]
    wanted += [
        "tests/conftest.py",
        "tests/vectors/v1/lanes.json",
        "docs/install.md",
        "examples/flower/README.md",
    ]
    assert set(wanted) <= held
    assert not any(name.startswith("secfed/crypto") or "__pycache__" in name for name in held)
    with zipfile.ZipFile(io.BytesIO(first[wheel])) as archive:
        archive.extractall(tmp_path / "installed")
    code = "import sys; from secfed.cli import main; sys.argv = ['secfed', '--version']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith(f"build {grouped(code_digest()[:16])}\n")
    assert release.build_of(first[wheel]) == code_digest()


def test_the_bill_of_materials_names_every_pin(release: ModuleType) -> None:
    bill = release.sbom("1.0", {"torch": "sha256:00"}, EPOCH)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in bill["components"]}
    assert set(parts) == set(release.version())
    assert parts["torch"]["hashes"] == [{"alg": "SHA-256", "content": "00"}]
    assert parts["numpy"]["purl"] == f"pkg:pypi/numpy@{release.version()['numpy']}"
    assert parts["cryptography"]["licenses"] == [{"expression": "Apache-2.0 OR BSD-3-Clause"}]


def test_the_digest_of_the_code_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    code_digest.cache_clear()
    before = code_digest(tmp_path)
    (tmp_path / "b.txt").write_text("")
    code_digest.cache_clear()
    assert code_digest(tmp_path) != before
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("")
    (tmp_path / "b.txt").unlink()
    code_digest.cache_clear()
    assert code_digest(tmp_path) == before
