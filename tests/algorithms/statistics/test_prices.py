"""How many records an analysis takes, as docs/analyse.md has it from benchmarks/withheld_statistics.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
STUDIES = 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "told"),
    [
        ("`bp ~ age + chol`", 200, True),
        ("`bp ~ age + chol + bmi + log(creatinine) + sex`", 200, True),
        ("`bp ~ age + I(age**2) + chol`", 200, False),
        ("`bp ~ age + I(age**2) + chol`", 1600, True),
        ("`bp ~ age + I(age**2) + chol`, narrower bounds that clip", 200, True),
        ("`bp ~ age * chol + sex`", 1600, True),
        ("means of two numbers by stage (4)", 50, False),
        ("means of two numbers by stage (4)", 400, True),
    ],
)
def test_so_many_records_do(monkeypatch: pytest.MonkeyPatch, name: str, size: int, told: bool) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import withheld_statistics as prices

    rngs = (np.random.default_rng([size, number]) for number in range(STUDIES))
    lost = [
        prices.withheld(prices.divided(prices.records(size, rng), size, name), prices.STUDIES[name])
        for rng in rngs
    ]
    assert sum(lost) <= STUDIES / 4 if told else all(lost)


def test_the_table_of_the_documents_is_that_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import withheld_statistics as prices

    page = (ROOT / "docs" / "analyse.md").read_text(encoding="utf-8")
    table = page.split("<!-- begin prices -->")[1].split("<!-- end prices -->")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row in prices.STUDIES] == list(prices.STUDIES)
