"""A glm of analysis.json as statsmodels reads it: the same estimates, intervals and predictions."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.statistics.test_regressions import COLUMNS, RECORDS, frame
from tests.algorithms.statistics_case import of_kind

pytest.importorskip("statsmodels.api", reason="to read it")
SCRIPT = Path(__file__).parents[3] / "examples" / "statsmodels_glm.py"
statsmodels_glm = runpy.run_path(str(SCRIPT))["statsmodels_glm"]


@pytest.mark.parametrize(
    ("family", "formula"),
    [("poisson", "visits ~ age * sex"), ("gaussian", "time ~ age + sex"), ("binomial", "dead ~ age + sex")],
)
def test_statsmodels_reads_a_glm(family: str, formula: str) -> None:
    import statsmodels.api as sm

    found = of_kind(COLUMNS, RECORDS, kind="glm", family=family, formula=formula)
    entry: dict[str, Any] = json.loads(json.dumps(found.to_json()))
    read = statsmodels_glm(entry, frame().iloc[:50])
    known = sm.GLM.from_formula(formula, frame(), family=getattr(sm.families, family.capitalize())())
    fitted = known.fit(tol=1e-14, use_t=family == "gaussian")
    assert np.allclose(read.predict(frame()), fitted.predict(frame()), rtol=1e-8)
    assert np.allclose(read.bse[fitted.bse.index], fitted.bse, rtol=1e-7)
    assert np.allclose(read.conf_int().loc[fitted.bse.index], fitted.conf_int(), rtol=1e-6, atol=1e-8)
    assert "age" in str(read.summary())


def test_other_terms_are_refused() -> None:
    found = of_kind(COLUMNS, RECORDS, kind="glm", formula="time ~ age + sex").to_json()
    other = frame()
    other["sex"] = other["sex"].cat.reorder_categories(other["sex"].cat.categories[::-1])
    with pytest.raises(ValueError, match="the frame gives the terms"):
        statsmodels_glm(found, other)
    with pytest.raises(ValueError, match="not a glm"):
        statsmodels_glm({"kind": "glm", "withheld": "few_records: ..."}, other)
