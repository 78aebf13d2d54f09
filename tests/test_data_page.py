"""docs/data.md: which files the studies and measurements read, and where they come from.

Its recipe for the table of the four hospitals is executed; docs/benchmarks.md must name its scripts.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
DATA: Final = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
NO_DATA: Final = {"results.csv"}  # what benchmarks write


def test_data_md_describes_every_data_file_that_the_code_names() -> None:
    sources = [*(ROOT / "algorithms").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = set(re.findall(r"(?<![\w{}.])\w[\w.-]*\.(?:csv|mat|npz|zip)(?:\.gz)?\b", text)) - NO_DATA
    assert {"fed_heart_disease.csv", "MNIST_USPS.mat", "medpix2_160.zip", "pneumoniamnist.npz"} <= named
    assert {name for name in named if f"`{name}`" not in DATA} == set()


@pytest.mark.shared_data
def test_sizes_and_digests_in_data_md_are_those_of_the_files(shared_data: Path) -> None:
    listed = re.findall(r"(?m)^\| `(\S+)` \| (\d+) \| `([0-9a-f]{64})` \|$", DATA)
    assert len(listed) == 13  # nine files, and the four that one of them was made of
    for name, size, sha256 in listed:
        path = shared_data / name
        if path.exists():
            content = path.read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (int(size), sha256), name


def test_the_recipe_of_data_md_makes_the_table_of_the_four_hospitals(tmp_path: Path) -> None:
    lines = {
        "cleveland": "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0",
        "hungarian": "28,1,2,130,132,0,2,185,0,0,?,?,?,0",
        "switzerland": "32,1,1,95,0,?,0,127,0,-.7,1,?,?,1",
        "va": "63,1,4,140,260,0,1,112,1,3,2,?,?,2",
    }
    for center, line in lines.items():
        (tmp_path / f"processed.{center}.data").write_text(f"{line}\n\n")
    recipe = re.search(r"(?s)```python\n(import csv\n.*?)```", DATA)
    assert recipe is not None
    subprocess.run([sys.executable, "-c", recipe[1]], cwd=tmp_path, check=True, timeout=300)
    assert (tmp_path / "fed_heart_disease.csv").read_bytes().decode().split("\n") == [
        "center,age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num",
        f"cleveland,{lines['cleveland']}",
        "hungarian,28.0,1.0,2.0,130.0,132.0,0.0,2.0,185.0,0.0,0.0,,,,0",
        "switzerland,32.0,1.0,1.0,95.0,0.0,,0.0,127.0,0.0,-0.7,1.0,,,1",
        "va,63.0,1.0,4.0,140.0,260.0,0.0,1.0,112.0,1.0,3.0,2.0,,,2",
        "",
    ]


def test_benchmarks_md_names_every_script_that_make_bench_runs() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks").glob("bench_*.py"):
        assert f"`python benchmarks/{path.name}`" in page.split("<!-- begin")[0]
