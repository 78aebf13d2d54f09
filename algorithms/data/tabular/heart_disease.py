"""``heart-disease``: four real hospitals, each its own site; 920 patients of UCI heart-disease.

The label is "narrowing found" (``num`` > 0). The first ten of 13 features are used; the others are missing
almost everywhere outside Cleveland. A cholesterol of 0 stands for "not measured" (all of Switzerland).

Source: Janosi, Steinbrunn, Pfisterer, Detrano, Heart Disease, UCI, 1988; federated by centre as in Ogier
du Terrail et al. 2022 (arXiv 2210.04620), section 4.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from secfed.algorithms.data.base import DataOptions
from secfed.algorithms.data.folders import data_folder, existing_file
from secfed.algorithms.data.prepare import PreparedSites
from secfed.algorithms.data.tabular.options import TableOptions
from secfed.algorithms.data.tabular.table import table_data
from secfed.algorithms.framework.datasets import SiteId

# Round numbers near what is usual in cardiac patients: [centre, spread], public and the same everywhere.
_SCALE = {"age": (55.0, 10.0), "trestbps": (130.0, 20.0), "chol": (240.0, 50.0), "thalach": (140.0, 25.0)}
_SCALE |= {"sex": (0.5, 0.5), "fbs": (0.5, 0.5), "exang": (0.5, 0.5), "oldpeak": (1.0, 1.0)}

CENTRES = ("cleveland", "hungarian", "switzerland", "va")


class HeartDiseaseOptions(DataOptions):
    """Options of ``heart-disease``."""

    test_fraction: float = Field(default=0.3, ge=0, le=0.9, description="the held-out share, 0 to 0.9")
    impute: Literal["median", "centre"] = Field(
        default="median", description='"median" (of the hospital) or "centre" (a public constant)'
    )

    def site_ids(self) -> tuple[SiteId, ...]:
        """The four hospitals."""
        return CENTRES


def heart_disease(options: HeartDiseaseOptions, seed: int) -> PreparedSites:
    """The four hospitals, imputed and scaled per hospital."""
    path = existing_file("heart-disease", data_folder() / "fed_heart_disease.csv")
    table = TableOptions(
        name="csv",
        path=str(path),
        site_column="center",
        sites=CENTRES,
        label_column="num",
        label_above=0,
        feature_columns=(
            *("age", "sex", "cp", "trestbps", "chol"),
            *("fbs", "restecg", "thalach", "exang", "oldpeak"),
        ),
        categorical={"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)},
        zero_is_missing=("chol", "trestbps"),
        missing_indicator=("chol", "fbs", "thalach", "oldpeak"),
        test_fraction=options.test_fraction,
        scale=_SCALE,
        impute=options.impute,
    )
    return table_data(table, path, seed)
