"""The pages of results are written from files of runs, and keep what people wrote."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

PAGE = """# Old

<!-- begin reading -->
what people wrote
<!-- end reading -->

## The paper's Table 1

| set | multi : single view | ACC | NMI | ARI | paper | seeds | main rounds | minutes |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| MNIST-USPS, 5000 records, 24 hospitals | 1:1 | 94.0 ± 0.2 | 87.4 | 87.4 | 92.9 84.2 85.0 | 3 | 8 | 32 |
| MNIST-USPS, 5000 records, 24 hospitals | 1:2 | 92.2 | 84.5 | 83.8 | 90.1 79.4 79.5 | 1 | 12 | 74 |

## ACC after each main round, 1:1

| set | weights | run | ACC |
| --- | --- | --- | --- |
| mnist-usps | public weights | 1 | 57.0 94.0 |
| mnist-usps | public weights | 2 | 53.5 94.2 |
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("results_fmcsc")
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(module, "_PAGE", page)
    return module


def _run(runs: Path, ratio: str, seed: int, acc: float) -> None:
    out = runs / "mnist-usps" / f"public-{ratio}-seed-{seed}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    final = {"acc": acc, "nmi": 0.5, "ari": 0.25}
    result = {"final": final, "rounds": {"40": {"loss": 1.0}, "41": {"acc": acc}}, "wall_s": 120.0}
    out.write_text(json.dumps(result), encoding="utf-8")


def test_rows_with_more_seeds_than_there_are_files_stay(script: ModuleType, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    _run(runs, "1-1", 1, 0.5)
    _run(runs, "1-2", 1, 0.80)
    _run(runs, "1-2", 2, 0.82)
    script._write(runs)
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "what people wrote" in page
    rows = [line for line in page.splitlines() if line.startswith("| MNIST-USPS")]
    assert rows == [
        "| MNIST-USPS, 5000 records, 24 hospitals | 1:1 | 94.0 ± 0.2 | 87.4 | 87.4 "
        "| 92.9 84.2 85.0 | 3 | 8 | 32 |",
        "| MNIST-USPS, 5000 records, 24 hospitals | 1:2 | 81.0 ± 1.4 | 50.0 ± 0.0 | 25.0 ± 0.0 "
        "| 90.1 79.4 79.5 | 2 | 1 | 2 |",
    ]
    assert "| mnist-usps | public weights | 1 | 57.0 94.0 |" in page
    assert "| mnist-usps | public weights | 2 | 53.5 94.2 |" in page


def test_a_page_without_runs_is_written_as_it_was(script: ModuleType, tmp_path: Path) -> None:
    script._write(tmp_path / "none")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.endswith(PAGE.split("<!-- end reading -->")[1])


def test_the_page_about_privacy_has_a_row_per_epsilon_and_counts_shared_runs_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("results_dp")
    monkeypatch.setattr(module, "PAGE", tmp_path / "dp.md")
    monkeypatch.setattr(module, "FIGURE", tmp_path / "dp.svg")
    monkeypatch.setattr(module, "STUDIES", {"one": ("One", "two hospitals")})
    monkeypatch.setattr("sys.argv", ["results_dp.py", str(tmp_path)])
    points = [("inf", 0.9, 0.9), ("1.0", 0.5, 0.7)]
    suffix = {"inf": ("", ""), "1.0": ("local", "shared")}  # studies without noise are equal
    rows = [
        f"{variant},{epsilon},{seed},done,60,{score + seed / 100},{epsilon}{seed}{own}"
        for seed in (1, 2)
        for epsilon, *scores in points
        for variant, score, own in zip(("local", "shared"), scores, suffix[epsilon], strict=True)
    ]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "summary.md").write_text("", encoding="utf-8")
    table = ["variant,epsilon,seed,status,seconds,accuracy,study_digest", *rows]
    (tmp_path / "one" / "results.csv").write_text("\n".join(table), encoding="utf-8")
    module.main()
    page = (tmp_path / "dp.md").read_text(encoding="utf-8")
    assert "2 seeds, 6 minutes" in page
    assert "| ∞ | 91.5 ± 0.7 | 91.5 ± 0.7 |" in page
    assert "| 1 | 51.5 ± 0.7 | 71.5 ± 0.7 |" in page
    assert (tmp_path / "dp.svg").stat().st_size > 1000
