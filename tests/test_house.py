"""The house has one direction: no circle among modules; every package says what it is; public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import secfed
from tests.layout import HOMES, ROOT, files_of


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import of every module: at the top, inside functions, and for types only."""
    return grimp.build_graph("secfed", cache_dir=None)


def circle(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others(graph: grimp.ImportGraph) -> None:
    edges = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    edges["secfed"] = set()  # the front door names what is public
    assert not circle(edges)


@pytest.mark.parametrize("depth", [2, 3])
def test_no_circle_among_packages(graph: grimp.ImportGraph, depth: int) -> None:
    packages = {".".join(name.split(".")[:depth]) for name in graph.modules}
    edges: dict[str, set[str]] = {name: set() for name in packages}
    for name in graph.modules:
        here = ".".join(name.split(".")[:depth])
        there = {".".join(to.split(".")[:depth]) for to in graph.find_modules_directly_imported_by(name)}
        edges[here] |= there - {here, "secfed"}
    del edges["secfed"]
    assert not circle(edges)


def packages() -> list[Path]:
    return sorted(path for home in HOMES for path in files_of(home) if path.name == "__init__.py")


@pytest.mark.parametrize("path", packages(), ids=str)
def test_every_package_says_what_it_is(path: Path) -> None:
    said = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    assert said
    assert len(said.splitlines()) <= 12


def test_the_public_names_are_there_and_nothing_is_imported_before_they_are_used() -> None:
    for name in secfed.__all__:
        assert getattr(secfed, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        secfed.nothing  # noqa: B018
    code = "import sys, secfed; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
