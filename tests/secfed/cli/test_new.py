"""``secfed new``: what it writes trains, and passes its own test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from secfed.simulation.simulate import simulate
from secfed.study.study import Study
from tests.secfed.run_case import secfed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if _lies_in(module, tmp_path)]:
        del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    return str(getattr(module, "__file__", None)).startswith(str(folder))


@pytest.mark.parametrize("kind", ["algorithm", "model", "data"])
def test_every_template_trains_under_masks_and_passes_its_test(here: Path, kind: str) -> None:
    name = f"my_{kind}"
    assert secfed("new", kind, name).exit_code == 0
    report = simulate(Study.load(here / name / "study.toml"))
    assert report.protection == "masked"
    assert report.final["accuracy"] > 0.7
    tests = dict[str, object]()
    exec((here / name / f"test_{name}.py").read_text(), tests)
    (test,) = [value for key, value in tests.items() if key.startswith("test_")]
    test()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My", "cannot be the name"),
        ("class", "cannot be the name"),
        ("torch", "installed"),
        ("there", "exists"),
    ],
)
def test_a_name_that_cannot_be_is_refused(here: Path, name: str, why: str) -> None:
    (here / "there").mkdir()
    done = secfed("new", "model", name)
    assert done.exit_code == 2
    assert why in done.stderr
    assert [path.name for path in here.iterdir()] == ["there"]
