"""What secfed requires is declared, pinned as a whole closure, and the same wherever it comes from."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from secfed import errors
from tests.layout import HOMES, PROJECT, ROOT, files_of

EXTRAS = (
    "adapters",
    "analyse",
    "cluster",
    "he",
    "net",
    "web",
    "oidc",
    "imaging",
    "flower",
    "pdf",
    "vision-language",
    "encoders",
    "track",
    "mlflow",
    "dev",
    "docs",
)
# What is imported under another name than it is installed by, and need not be installed here.
NAMED = {"mlflow": "mlflow-skinny"}


def requirements(without: str = "") -> list[Requirement]:
    """What pyproject.toml asks for: the core and every extra but one, without secfed itself."""
    project = PROJECT["project"]
    lines = list(project["dependencies"])
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra] if extra != without else []
    return [asked for asked in map(Requirement, lines) if asked.name != "secfed"]


def optional() -> dict[str, list[str]]:
    """The extras of pyproject.toml, by name."""
    found: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    return found


def pins() -> dict[str, str]:
    """constraints.txt as package name -> version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = (re.fullmatch(r"([\w.-]+)==(\S+)", line) for line in lines if line and not line.startswith("#"))
    found = {canonicalize_name(match[1]): match[2] for match in pinned if match}
    assert len(found) == sum(1 for line in lines if line and not line.startswith("#")), (
        "a line is not NAME==VERSION"
    )
    return found


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level name of everything that a file of the tree imports."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, (node.module or "").partition(".")[0]


def test_no_file_of_the_crypto_room_imports_torch_or_a_network() -> None:
    banned = {"torch", "grpc", "flwr", "socket", "ssl", "http", "urllib", "asyncio"}
    paths = [path for path in files_of("crypto") if path.suffix == ".py"]
    assert paths
    assert [(path, line, top) for path in paths for line, top in imports_of(path) if top in banned] == []


def test_every_foreign_package_that_secfed_imports_is_a_requirement() -> None:
    """A package that only happens to be there, because another one needs it, may be gone tomorrow."""
    asked = {canonicalize_name(requirement.name) for requirement in requirements("dev")}
    distributions = importlib.metadata.packages_distributions()
    for path in (path for home in HOMES for path in files_of(home) if path.suffix == ".py"):
        for line, top in imports_of(path):
            if top != "secfed" and top not in sys.stdlib_module_names:
                owners = {canonicalize_name(owner) for owner in distributions.get(top, [NAMED.get(top, top)])}
                assert owners & asked, f"{path}:{line} imports {top}: pyproject.toml does not ask for it"


def test_every_extra_that_a_message_names_exists() -> None:
    named: dict[str, Path] = {}
    for path in (path for home in HOMES for path in files_of(home) if path.suffix == ".py"):
        text = (ROOT / path).read_text(encoding="utf-8")
        for extras in re.findall(r"secfed\[([\w,-]+)\]|installing\([\"']([\w-]+)", text):
            named |= dict.fromkeys("".join(extras).split(","), path)
    assert {extra: path for extra, path in named.items() if extra not in EXTRAS} == {}


def test_what_a_message_says_of_a_package_is_in_its_extra() -> None:
    distributions = importlib.metadata.packages_distributions()
    for extra, packages in errors.EXTRAS.items():
        asked = {canonicalize_name(Requirement(line).name) for line in optional()[extra]}
        found = [distributions.get(name, [NAMED.get(name, name)]) for name in packages]
        owners = {canonicalize_name(owner) for names in found for owner in names}
        assert owners == asked, extra


def test_every_requirement_is_pinned_to_a_version_it_accepts() -> None:
    found = pins()
    for asked in requirements():
        assert asked.specifier.contains(found[canonicalize_name(asked.name)]), asked


def test_every_requirement_of_an_installed_requirement_is_pinned() -> None:
    """The whole closure, except what a CUDA build of torch brings along and pins by itself."""
    found = pins()
    for name in found:
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for needed in map(Requirement, lines):
            theirs = canonicalize_name(needed.name)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            if theirs.startswith(("nvidia-", "cuda-", "triton")):
                continue
            assert theirs in found, f"{name} needs {theirs}, which constraints.txt does not pin"


def test_the_torch_pin_accepts_the_cpu_build_and_the_cuda_builds() -> None:
    version = pins()["torch"]
    assert "+" not in version
    for build in (version, f"{version}+cpu", f"{version}+cu130"):
        assert Requirement(f"torch=={version}").specifier.contains(build)
    assert not [name for name in pins() if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_constraints_name_no_place() -> None:
    """No index, host or folder: what is installed is the same wherever it comes from."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#") and re.search(r"[/@]|^-", line)] == []


def test_the_page_of_licences_names_every_requirement_of_a_user() -> None:
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    lines = [line for extra in EXTRAS if extra not in ("dev", "docs") for line in optional()[extra]]
    asked = [Requirement(line).name for line in (*lines, *PROJECT["project"]["dependencies"])]
    assert [name for name in asked if name not in page] == []
