"""Tables that are bundled or downloaded, with declared columns."""

from __future__ import annotations

import numpy as np
import pytest

from secfed.study.build import build_data
from secfed.study.study import Study


@pytest.mark.parametrize("name", ["diabetes-table", "breast-cancer-table"])
def test_bundled_tables_keep_their_declared_bounds(name):
    study = Study.parse(
        'study = { name = "a", rounds = 1, seed = 1 }\nalgorithm.name = "fedavg"\nmodel.name = "mlp"\n'
        f'protection = {{ name = "plain", min_cohort = 2 }}\ndata = {{ name = "{name}", sites = 3 }}'
    )
    data = build_data(study)
    tables = [data.table(site) for site in data.sites]
    assert sum(table.records for table in tables) == {"diabetes-table": 442}.get(name, 569)
    for table in tables:
        for column in data.columns:
            found = table.values[column.name]
            assert column.low <= found.min() < found.max() <= column.high


@pytest.mark.shared_data
def test_heart_table_is_the_four_hospitals_with_raw_values(shared_data, monkeypatch):
    monkeypatch.setenv("SECFED_DATA", str(shared_data))
    study = Study.parse(
        'study = { name = "a", rounds = 1, seed = 1 }\nalgorithm.name = "fedavg"\nmodel.name = "mlp"\n'
        'protection = { name = "plain", min_cohort = 2 }\ndata.name = "heart-table"'
    )
    tables = {site: build_data(study).table(site) for site in build_data(study).sites}
    assert [table.records for table in tables.values()] == [303, 294, 123, 200]
    assert [int(table.values["disease"].sum()) for table in tables.values()] == [139, 106, 115, 149]
    assert np.isnan(tables["switzerland"].values["chol"]).all()  # recorded as 0
    assert tables["cleveland"].values["thal"][:2].tolist() == [1.0, 0.0]
