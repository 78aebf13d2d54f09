"""A ``glm`` of analysis.json as a results object of statsmodels: tests, predictions and tables from there.

Needs statsmodels, and nothing of secfed: copy it to where you work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import statsmodels.api as sm
from statsmodels.genmod.generalized_linear_model import GLMResults, GLMResultsWrapper


def statsmodels_glm(entry: Mapping[str, Any], frame: Any) -> Any:
    """The results object (``GLMResults``) with the coefficients and covariance of a study.

    Nothing is fitted. What statsmodels computes from records (residuals, likelihood, the number of
    observations in a summary) is of ``frame``.

    Args:
        entry: of one analysis, as analysis.json has it.
        frame: a pandas frame with the formula's columns, categories in the declared order, and an outcome of
            numbers; one record is enough.

    Raises:
        ValueError: there is no such estimate, or the frame gives other terms.
    """
    if entry.get("kind") != "glm" or "coefficients" not in entry:
        raise ValueError("not a glm with coefficients: name an analysis that has some")
    family = getattr(sm.families, entry["family"].capitalize())()
    model = sm.GLM.from_formula(entry["formula"], frame, family=family)
    terms = list(entry["terms"])
    if sorted(terms) != sorted(model.exog_names):
        raise ValueError(
            f"the frame gives the terms {', '.join(model.exog_names)}, not {', '.join(terms)}: "
            "make its categories those of the study, in that order"
        )
    order = [terms.index(name) for name in model.exog_names]
    scale = float(entry.get("dispersion", 1.0))
    covariance = np.asarray(entry["covariance"])[np.ix_(order, order)] / scale
    model.df_resid = float(entry.get("df_residual", entry["n"] - len(terms)))
    gaussian = entry["family"] == "gaussian"
    coefficients = np.asarray(entry["coefficients"])[order]
    found = GLMResults(model, coefficients, covariance, scale, use_t=gaussian)
    found.method, found.fit_history = "secfed", {"iteration": 0}  # for summary()
    return GLMResultsWrapper(found)
