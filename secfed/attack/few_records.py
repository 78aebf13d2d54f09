"""Attacks with what statistics tell of a few records: a chosen person, a small cell, or one hospital.

Whoever writes a study asks for what is harmless by itself: the mean of a flag, a regression on categories,
a formula that is 0 for all but one, two correlations of which one lacks a patient. Sums are added up here, as
in small_cells: no protection is attacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from secfed.algorithms.data.tabular.columns import Column, Table
from secfed.attack.attack import AttackSetting, attack, attacks_of
from secfed.attack.evidence import Count
from secfed.attack.small_cells import READER, Analyses, Tables, told
from secfed.attack.wards import names

AUTHOR: Final = "a study centre"
_RECORDS: Final = 60  # of each hospital
_COLUMNS: Final = (
    Column.number("age", 18, 100),
    Column.number("chol", 50, 700),
    Column.number("bp", 50, 250),
    Column.number("flag", 0, 1),
    Column.category("ward", ("a", "b")),
    Column.category("stage", ("i", "ii")),
    Column.category("dead", ("no", "yes")),
)


def hospitals(setting: AttackSetting, **first: Mapping[int, float]) -> Tables:
    """Ordinary records; ``first`` says of a column what single records of the first hospital have."""
    rng, tables = np.random.default_rng(setting.seed), {}
    for number, name in enumerate(names(setting.hospitals)):
        values: dict[str, Any] = {
            "age": rng.integers(30, 80, _RECORDS) * 1.0,
            "chol": rng.integers(120, 400, _RECORDS) * 1.0,
            "bp": rng.integers(90, 180, _RECORDS) * 1.0,
            "flag": np.zeros(_RECORDS),
            "ward": rng.integers(0, 2, _RECORDS) * 1.0,
            "stage": rng.integers(0, 2, _RECORDS) * 1.0,
            "dead": rng.integers(0, 2, _RECORDS) * 1.0,
        }
        for column, changed in first.items():
            for record, value in changed.items() if number == 0 else ():
                values[column][record] = value
        tables[name] = Table(_COLUMNS, values, _RECORDS)
    return Tables(tables, _COLUMNS)


def _tables_of(data: Tables) -> dict[str, Table]:
    return {site: data.table(site) for site in data.sites}


def _learned(found: Mapping[str, Any], *names_of: str) -> float:
    """How many of these results were told."""
    return float(sum("withheld" not in found[name] for name in names_of))


@attack(
    "chosen-patient",
    "asks for correlations with and without a column that one patient lacks, and subtracts them",
    who=AUTHOR,
    defence="the same records",
)
def _chosen_patient(setting: AttackSetting) -> Count:
    data = hospitals(setting, chol={7: np.nan})
    asked: Analyses = {
        "every": {"kind": "correlation", "columns": ["age", "bp"]},
        "but-one": {"kind": "correlation", "columns": ["age", "bp", "chol"]},
    }
    found = told(data, asked)
    return Count(found["every"]["n"] - found["but-one"]["n"], 1, "patients")


@attack(
    "rare-flag",
    "asks for mean, correlation and regression of a number that one record alone has",
    who=READER,
    defence="leverages",
)
def _rare_flag(setting: AttackSetting) -> Count:
    asked: Analyses = {
        "fit": {"kind": "glm", "formula": "bp ~ flag"},
        "pair": {"kind": "correlation", "columns": ["flag", "bp"]},
        "mean": {"kind": "describe", "columns": ["flag"]},
    }
    found = told(hospitals(setting, flag={7: 1.0}), asked)
    mean = found["mean"]["columns"]["flag"]["mean"][-1]
    return Count(_learned(found, "fit", "pair") + float(mean is not None), 3, "values of one record")


@attack(
    "filter-formula",
    "asks for a regression on a formula that is 0 for all but the patient of a known age and value",
    who=AUTHOR,
    defence="leverages",
)
def _filter_formula(setting: AttackSetting) -> Count:
    bump = "I(1/(1+1000000*((age-84)**2+(chol-633)**2)))"
    asked: Analyses = {
        "pressure": {"kind": "glm", "formula": f"bp ~ {bump}"},
        "death": {"kind": "glm", "formula": f"dead ~ {bump}", "family": "binomial", "ridge": 1.0},
    }
    found = told(hospitals(setting, age={7: 84.0}, chol={7: 633.0}), asked)
    return Count(_learned(found, *asked), len(asked), "values of one patient")


@attack(
    "regression-tables",
    "solves the covariance of regressions on two categories for cells that counts withholds",
    who=READER,
    defence="pairs of categories",
)
def _regression_tables(setting: AttackSetting) -> Count:
    tables = {}
    for name, table in _tables_of(hospitals(setting)).items():
        rare = np.flatnonzero((table.values["ward"] == 1) & (table.values["stage"] == 0))
        kept = np.setdiff1d(np.arange(table.records), rare[0 if name != names(1)[0] else 2 :])
        tables[name] = table.take(kept)
    asked: Analyses = {
        "sums": {"kind": "glm", "formula": "bp ~ C(ward)+C(stage)"},
        "cells": {"kind": "glm", "formula": "bp ~ C(ward)*C(stage)"},
        "deaths": {"kind": "glm", "formula": "dead ~ C(ward)+C(stage)", "family": "binomial"},
    }
    found = told(Tables(tables, _COLUMNS), asked)
    return Count(_learned(found, *asked), len(asked), "small cells")


@attack(
    "lonely-group",
    "asks for descriptions, tests and regressions by a category that one hospital alone has",
    who=READER,
    defence="min_hospitals",
)
def _lonely_group(setting: AttackSetting) -> Count:
    data = hospitals(setting)
    for name in data.sites:
        ward = data.table(name).values["ward"]
        ward[:] = np.arange(_RECORDS) % 2 if name == data.sites[0] else 0.0
    asked: Analyses = {
        "fit": {"kind": "glm", "formula": "bp ~ C(ward)"},
        "test": {"kind": "t-test", "column": "bp", "by": "ward"},
        "groups": {"kind": "describe", "columns": ["bp"], "by": "ward"},
    }
    found = told(data, asked)
    group = found["groups"]["columns"]["bp"]["mean"][1] if "columns" in found["groups"] else None
    return Count(_learned(found, "fit", "test") + float(group is not None), 3, "means of one hospital")


@attack(
    "shifted-scores",
    "asks for ROC curves of ever another model, and subtracts their points",
    who=AUTHOR,
    defence="one curve",
)
def _shifted_scores(setting: AttackSetting) -> Count:
    asked: dict[str, dict[str, Any]] = {}
    for number, terms in enumerate(("age", "age + bp", "age + chol", "age + bp + chol")):
        asked[f"fit{number}"] = {"kind": "glm", "formula": f"dead ~ {terms}", "family": "binomial"}
        asked[f"curve{number}"] = {"kind": "roc", "of": f"fit{number}"}
    found = told(hospitals(setting), asked)
    curves = [found[f"curve{number}"].get("true_positive_rate") for number in range(4)]
    return Count(sum(map(bool, curves)) - 1, 3, "curves to subtract")


FEW_RECORDS: Final = attacks_of(vars())
