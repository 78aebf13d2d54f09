from __future__ import annotations

import re
import sqlite3
import tomllib
from contextlib import closing

import numpy as np
import pytest

from secfed.algorithms.data.tabular.columns import Column, Table, TableData
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.errors import ConfigError, DataError
from secfed.study.build import build_data
from secfed.study.study import Study
from tests.layout import ROOT

TABLE = """site,patient,age,chol,Gender,stage
north,a,40,200,1,I
north,a,50.5,0,2,II
north,b,,260,1,III
south,c,45,?,2,I
"""

COLUMNS = """
[data.columns.age]
low = 18
high = 100
unit = "years"
[data.columns.chol]
low = 50
high = 500
missing = [0, "?"]
[data.columns.sex]
source = "Gender"
categories = ["female", "male"]
codes = { female = [1], male = [2] }
[data.columns.stage]
categories = ["I", "II", "III"]
"""
SITES = 'site_column = "site"\nsites = ["north", "south"]\n'


@pytest.fixture
def load(tmp_path):
    def load(table: str | None = TABLE, options: str = SITES, columns: str = COLUMNS, path: str = "t.csv"):
        if table is not None:
            (tmp_path / path).write_text(table)
        study = tmp_path / "study.toml"
        study.write_text(
            'study = { name = "a", rounds = 1, seed = 1 }\nalgorithm.name = "fedavg"\nmodel.name = "mlp"\n'
            'protection = { name = "plain", min_cohort = 2 }\n'
            f'[data]\nname = "columns"\npath = "{path}"\n{options}\n{columns}'
        )
        return build_data(Study.load(study))

    return load


def values(table: Table) -> dict[str, list[float | None]]:
    return {
        name: [None if np.isnan(x) else float(x) for x in column] for name, column in table.values.items()
    }


NORTH = {
    "age": [40.0, 50.5, None],
    "chol": [200.0, None, 260.0],
    "sex": [0.0, 1.0, 0.0],
    "stage": [0.0, 1.0, 2.0],
}


def test_a_table_has_the_declared_columns_and_raw_values(load):
    data = load(options=SITES + 'patient_column = "patient"')
    assert isinstance(data, TableData)
    assert data.columns == (
        Column.number("age", 18, 100, "years"),
        Column.number("chol", 50, 500),
        Column.category("sex", ("female", "male")),
        Column.category("stage", ("I", "II", "III")),
    )
    north, south = data.table("north"), data.table("south")
    assert (values(north), north.records, north.patients) == (NORTH, 3, (0, 0, 1))
    assert (values(south)["chol"], south.records) == ([None], 1)
    assert north.complete(("age", "chol")).tolist() == [True, False, False]
    assert values(north.take(north.complete(("age",))))["stage"] == [0.0, 1.0]
    assert north.take(np.array([2, 0])).patients == (1, 0)


def write_sqlite(path, view: str = "CREATE VIEW heart AS SELECT * FROM raw") -> None:
    rows = [line.split(",") for line in TABLE.splitlines()[1:]]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE raw (site, patient, age REAL, chol, Gender INTEGER, stage)")
        cells = [[cell or None for cell in row] for row in rows]
        connection.executemany("INSERT INTO raw VALUES (?, ?, ?, ?, ?, ?)", cells)
        connection.execute(view)


def write_duckdb(path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="the extra analyse is not installed")
    with closing(duckdb.connect(str(path))) as connection:
        source = path.with_suffix(".csv")
        source.write_text(TABLE)
        connection.execute(f"CREATE TABLE raw AS SELECT * FROM read_csv('{source}', header = true)")
        connection.execute("CREATE VIEW heart AS SELECT * FROM raw")


def write_parquet(path) -> None:
    pytest.importorskip("pyarrow", reason="the extra analyse is not installed")
    from pyarrow import csv, parquet

    source = path.with_suffix(".csv")
    source.write_text(TABLE)
    parquet.write_table(csv.read_csv(source), path)


@pytest.mark.parametrize("write", [write_sqlite, write_duckdb, write_parquet])
def test_a_database_view_and_a_parquet_file_give_what_the_csv_file_gives(load, tmp_path, write):
    ending = write.__name__.removeprefix("write_")
    write(tmp_path / f"t.{ending}")
    view = "" if ending == "parquet" else 'view = "heart"\n'
    assert values(load(None, view + SITES, path=f"t.{ending}").table("north")) == NORTH


OMOP = """
CREATE TABLE person (person_id INTEGER, year_of_birth INTEGER, gender_concept_id INTEGER);
CREATE TABLE measurement (
  person_id INTEGER, measurement_concept_id INTEGER, unit_concept_id INTEGER, value_as_number REAL,
  measurement_date DATE
);
CREATE TABLE condition_occurrence (person_id INTEGER, condition_concept_id INTEGER);
INSERT INTO person VALUES (7, 1966, 8532), (8, 1946, 8507), (9, 1920, 8507);
INSERT INTO measurement VALUES (7, 3004249, 8876, 120, '2025-03-01'), (7, 3004249, 8876, 130, '2025-04-01'),
  (7, 3004249, 8876, 300, '2024-12-31'), (8, 3004249, 8876, 999, '2025-03-01');
INSERT INTO condition_occurrence VALUES (8, 312327), (8, 312327);
"""


@pytest.mark.parametrize("ending", ["sqlite", "duckdb"])
def test_the_example_of_the_guide_reads_tables_of_omop(tmp_path, ending):
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    page = page.split("## Tables with declared columns")[1]
    declared, policy = re.findall(r"(?s)```toml\n(.*?)```", page)[:2]
    view = re.findall(r"(?s)```sql\n(.*?)```", page)[0]
    if ending == "sqlite":
        with closing(sqlite3.connect(tmp_path / "omop.sqlite")) as connection:
            connection.executescript(OMOP + view)
    else:
        duckdb = pytest.importorskip("duckdb", reason="the extra analyse is not installed")
        with closing(duckdb.connect(str(tmp_path / "omop.duckdb"))) as connection:
            connection.execute(OMOP + view)
    study = Study.parse(
        'study = { name = "a", rounds = 1, seed = 1 }\nalgorithm.name = "fedavg"\nmodel.name = "mlp"\n'
        + declared
    )
    study = study.replace("data.view", "heart_study").replace("data.patient_column", "patient")
    (rules,) = tomllib.loads(policy)["data"]
    assert rules["options"]["view"] == ["heart_study"]
    assert study.data.path == rules["study_path"]
    own = study.replace("data.path", str(tmp_path / f"omop.{ending}"))
    with pytest.raises(DataError, match="row 3: column 'age' is not from 18 to 100 years"):
        build_data(own).table("north")
    with counted_as_defaults(lambda _: None):
        table = build_data(own).table("north")
    assert table.patients == (0, 1, 2)
    assert values(table) == {
        "age": [60.0, 80.0, None],
        "pressure": [125.0, None, None],
        "sex": [0.0, 1.0, 1.0],
        "infarction": [0.0, 1.0, 0.0],
    }


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("", "is a database, and no view"),
        ('view = "hart"\n', r"t\.sqlite, view 'hart': there is no such view"),
        ('view = "heart"\n', r"t\.sqlite, view 'heart' has no column 'patients'"),
    ],
)
def test_of_a_database_only_a_named_view_is_read(load, tmp_path, view, message):
    write_sqlite(tmp_path / "t.sqlite")
    data = load(None, view + SITES + 'patient_column = "patients"', path="t.sqlite")
    with pytest.raises((ConfigError, DataError), match=message):
        data.table("north")


def test_what_a_database_says_of_a_value_is_not_repeated(load, tmp_path):
    view = "CREATE VIEW heart AS SELECT site, patient, json(stage) AS age, chol, Gender, stage FROM raw"
    write_sqlite(tmp_path / "t.sqlite", view)
    with pytest.raises(DataError, match=r"view 'heart': cannot be read \(OperationalError\)") as refused:
        load(None, 'view = "heart"\n' + SITES, path="t.sqlite").table("north")
    assert "II" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("north,b,x,260,1,I", "'age' is not a number"),
        ("north,b,inf,260,1,I", "'age' is not a finite number"),
        ("north,b,17.9,260,1,I", "'age' is not from 18 to 100 years"),
        ("north,b,40,501,1,I", "'chol' is not from 50 to 500"),
        ("north,b,40,260,3,I", "'Gender' is not one of the declared categories"),
        ('north,b,40,260,1,"I\nII"', "'stage' has more than one line"),
    ],
)
def test_a_value_that_is_not_declared_is_an_error_here_and_missing_at_a_hospital(load, row, what):
    data = load(TABLE + row + "\n")
    with pytest.raises(DataError, match=rf"t\.csv, line 6: column {what}") as refused:
        data.table("north")
    assert "501" not in str(refused.value)
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        table = data.table("north")
    column = {"Gender": "sex"}.get(what.split("'")[1], what.split("'")[1])
    assert (table.records, values(table)[column][-1], len(heard)) == (4, None, 1)


@pytest.mark.parametrize("ending", ["csv", "sqlite", "parquet"])
def test_a_text_that_is_not_utf_8_is_a_value_that_does_not_fit(load, tmp_path, ending):
    path, view = tmp_path / f"t.{ending}", ""
    if ending == "csv":
        path.write_bytes((TABLE + "north,b,40,260,1,\xfc\n").encode("latin-1"))
    elif ending == "sqlite":
        view = 'view = "heart"\n'
        write_sqlite(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT INTO raw SELECT * FROM raw WHERE site = 'north' LIMIT 1")
            connection.execute(
                "UPDATE raw SET stage = CAST(x'fc' AS TEXT) WHERE rowid = (SELECT max(rowid) FROM raw)"
            )
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra parquet")
        from pyarrow import parquet

        lines = [line.split(",") for line in [*TABLE.splitlines(), "north,b,40,260,1,?"]]
        cells = {name: [line[at] for line in lines[1:]] for at, name in enumerate(lines[0])}
        bad = pyarrow.array([b"\xfc" if s == "?" else s.encode() for s in cells["stage"]])
        rest = {name: pyarrow.array(texts) for name, texts in cells.items()}
        parquet.write_table(pyarrow.table({**rest, "stage": bad.cast(pyarrow.string(), safe=False)}), path)
    data = load(None, view + SITES, path=path.name)
    with pytest.raises(DataError, match="column 'stage' is not UTF-8"):
        data.table("north")
    heard: list[DataError] = []
    with counted_as_defaults(heard.append):
        table = data.table("north")
    assert (table.records, values(table)["stage"][-1], len(heard)) == (4, None, 1)
    assert data.table("south").records == 1


def test_a_file_in_another_encoding_is_told_so(load, tmp_path):
    (tmp_path / "t.csv").write_bytes(TABLE.replace("Gender", "Gr\xf6\xdfe").encode("latin-1"))
    with pytest.raises(DataError, match=r"t\.csv is not UTF-8"):
        load(None).table("north")


def test_text_of_several_lines_in_another_column_is_no_error(load):
    assert load(TABLE + 'north,"b\nnorth, c",50,260,1,I\n').table("north").records == 4


def test_records_behind_a_stray_quote_are_found(load):
    lines = TABLE.splitlines()
    hidden = [lines[0], 'north,"a,40,200,1,I', 'north,a",50.5,0,2,II', *lines[3:]]
    with pytest.raises(DataError, match=r"line 2: column 'patient' holds other records"):
        load("\n".join(hidden) + "\n").table("north")


def test_values_outside_are_clipped_or_missing_where_that_is_declared(load):
    columns = COLUMNS.replace("high = 100", 'high = 45\noutside = "clip"')
    columns = columns.replace("high = 500", 'high = 250\noutside = "missing"')
    columns = columns.replace('["I", "II", "III"]', '["I", "II"]\noutside = "missing"')
    table = load(columns=columns).table("north")
    assert values(table)["age"] == [40.0, 45.0, None]
    assert values(table)["chol"] == [200.0, None, None]
    assert values(table)["stage"] == [0.0, 1.0, None]


def test_a_hospital_without_records_answers_with_none(load):
    data = load(TABLE.replace("south", "north"))
    with pytest.raises(DataError, match="'south' has no records"):
        data.table("south")
    with counted_as_defaults(lambda _: None):
        assert data.table("south").records == 0


def test_each_site_has_its_file(load, tmp_path):
    sites = 'partition = "by-file"\nsites = ["north", "south"]\n'
    (tmp_path / "north.csv").write_text(TABLE)
    (tmp_path / "south.csv").write_text("\n".join(TABLE.splitlines()[:3]))
    data = load(None, sites, path="{site}.csv")
    assert (data.table("north").records, data.table("south").records) == (4, 2)
    with pytest.raises(ConfigError, match=r"data\.path: by-file needs a file of each site"):
        load(None, sites, path="north.csv")
    own = load(None, sites, path=str(tmp_path / "north.csv"))  # as a hospital's policy sets it
    assert own.table("south").records == 4
    with pytest.raises(DataError, match="one file cannot be the file of several sites"):
        own.table("north")


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ('partition = "iid"\nsites = 2\nmin_records = 1', [2, 2]),
        ('partition = "dirichlet"\nskew_column = "stage"\nalpha = 1.0\nsites = 2\nmin_records = 1', None),
    ],
)
def test_one_table_is_divided_among_simulated_sites(load, options, sizes):
    data = load(options=options)
    tables = [data.table(site) for site in data.sites]
    found = [table.records for table in tables]
    assert sum(found) == 4
    assert found == (sizes or found)
    chol = [value for table in tables for value in values(table)["chol"]]
    assert sorted(value for value in chol if value) == [200.0, 260.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("low = 18\n", ""), r"data\.columns\.age: declares neither"),
        (("low = 18", "low = 100"), r"data\.columns\.age: low and high are not bounds"),
        (("low = 18", "lo = 18"), r"data\.columns\.age\.lo: unknown key.*'low'"),
        (("low = 18", 'low = "18"'), r"data\.columns\.age\.low: should be a valid number"),
        (("columns.age]", "columns.lambda]"), r"'lambda' cannot be the name"),
        (('["I", "II", "III"]', '["I"]'), r"data\.columns\.stage\.categories: needs at least two"),
        (('["I", "II", "III"]', '["I", "I"]'), r"data\.columns\.stage\.categories: needs at least two"),
        (("male = [2]", "male = [1]"), r"data\.columns\.sex\.categories: needs"),
        (("male = [2]", "man = [2]"), r"data\.columns\.sex\.codes: there is no category 'man'"),
        (('["I", "II", "III"]', '["I", "II"]\noutside = "clip"'), r"stage\.outside: a category cannot"),
        (('["I", "II", "III"]', '["I", "II"]\nunit = "x"'), r"stage\.unit: has no effect"),
    ],
)
def test_a_declaration_that_does_not_fit_names_its_key(load, change, message):
    with pytest.raises(ConfigError, match=message):
        load(columns=COLUMNS.replace(*change))


def test_a_hospital_can_put_its_own_file_in_the_place_of_the_study_s(load, tmp_path):
    load()
    study = Study.load(tmp_path / "study.toml")
    write_sqlite(tmp_path / "own.sqlite")
    own = study.replace("data.path", str(tmp_path / "own.sqlite")).replace("data.view", "heart")
    assert values(build_data(own).table("north")) == NORTH
    assert study.replace("data.path", "t.csv").digest() == study.digest()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('sites = ["north", "south"]', r"data\.site_column: belongs to"),
        (SITES + 'skew_column = "sex"', r"data\.skew_column: belongs to"),
        ('partition = "dirichlet"\nskew_column = "age"\nsites = 2', "'age' has no categories"),
        ('partition = "dirichlet"\nskew_column = "sx"\nsites = 2', r"data\.skew_column: there is no column"),
        ('partition = "iid"\nsites = ["north", "south"]', r"data\.sites: iid divides"),
        (SITES + 'view = "a b"', r"data\.view"),
        (SITES + "test_fraction = 0.2", r"data\.test_fraction"),
    ],
)
def test_a_partition_that_does_not_fit_names_its_key(load, options, message):
    with pytest.raises(ConfigError, match=message):
        load(options=options)


@pytest.mark.parametrize(
    ("table", "path", "message"),
    [
        (TABLE, "t.xlsx", r"t\.xlsx is none of \.csv"),
        (None, "gone.csv", r"there is no file .*gone\.csv"),
        (
            TABLE.replace("Gender", "gender"),
            "t.csv",
            r"has no column 'Gender'. Remedy: did you mean 'gender'",
        ),
        (TABLE.replace("chol", "age"), "t.csv", "has the column 'age' twice"),
        (TABLE.partition("\n")[2], "t.csv", "Remedy: the table must begin with the names of its columns$"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(load, table, path, message):
    with pytest.raises(DataError, match=message):
        load(table, path=path).table("north")
