from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secfed.errors import ConfigError, DataError
from secfed.study.build import build_data
from secfed.study.study import Study

TABLE = """site,age,sex,chol,kind,outcome
north,40,1,200,a,0
north,50,0,0,b,2
north,60,1,,a,1
north,70,0,260,c,0
south,45,1,0,b,3
south,?,0,0,c,0
"""

OPTIONS = """
site_column = "site"
sites = ["north", "south"]
label_column = "outcome"
label_above = 0
feature_columns = ["age", "sex", "chol", "kind"]
categorical.kind = ["a", "b", "c"]
missing_values = ["?"]
zero_is_missing = ["chol"]
missing_indicator = ["chol"]
standardize = false
test_fraction = 0.0
"""


@pytest.fixture
def load(tmp_path):
    def load(table: str = TABLE, options: str = OPTIONS):
        (tmp_path / "patients.csv").write_text(table)
        study = tmp_path / "study.toml"
        study.write_text(
            'study = { name = "a", rounds = 1, seed = 1 }\nalgorithm.name = "fedavg"\nmodel.name = "mlp"\n'
            'protection = { name = "plain", min_cohort = 2 }\n'
            f'[data]\nname = "csv"\npath = "patients.csv"\n{options}'
        )
        return build_data(Study.load(study))

    return load


def rows(site) -> list[tuple[list[float], int]]:
    return sorted((x.tolist(), int(y)) for x, y in zip(site.train_x, site.train_y, strict=True))


def test_columns_become_what_the_options_say(load):
    data = load()
    assert (data.sites, data.input_shape, data.classes) == (("north", "south"), (7,), 2)
    #          age   sex  chol   kind a, b, c   chol missing
    assert rows(data.site("north")) == [
        ([40.0, 1.0, 200.0, 1.0, 0.0, 0.0, 0.0], 0),
        ([50.0, 0.0, 230.0, 0.0, 1.0, 0.0, 1.0], 1),
        ([60.0, 1.0, 230.0, 1.0, 0.0, 0.0, 1.0], 1),
        ([70.0, 0.0, 260.0, 0.0, 0.0, 1.0, 0.0], 0),
    ]
    assert rows(data.site("south")) == [
        ([45.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0], 0),
        ([45.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0], 1),
    ]


def test_a_public_scale_is_applied_and_a_column_never_measured_is_its_centre(load):
    scaled = load(
        options=OPTIONS.replace("= false", "= true") + "scale = { age = [55, 10], chol = [240, 50] }"
    )
    assert rows(scaled.site("south"))[0][0][:3] == [-1.0, -1.0, 0.0]  # sex is scaled by the site itself
    ages = sorted(row[0][0] for row in rows(scaled.site("north")))
    assert ages == [-1.5, -0.5, 0.5, 1.5]


def test_standardising_leaves_one_hot_and_indicator_columns_alone(load):
    site = load(options=OPTIONS.replace("= false", "= true")).site("north")
    assert torch.allclose(site.train_x[:, :3].mean(dim=0), torch.zeros(3), atol=1e-6)
    assert set(site.train_x[:, 3:].flatten().tolist()) == {0.0, 1.0}


def test_listed_labels_become_classes_in_their_order(load):
    data = load(options=OPTIONS.replace("label_above = 0", "labels = [3, 2, 1.0, 0]"))
    assert data.classes == 4
    assert sorted(data.site("south").train_y.tolist()) == [0, 3]


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_a_table_without_sites_can_be_divided_among_simulated_ones(load, partition):
    options = OPTIONS.replace('site_column = "site"\n', f'partition = "{partition}"\nmin_records = 1\n')
    data = load(options=options.replace('["north", "south"]', "2"))
    assert data.sites == ("hospital-1", "hospital-2")
    assert sum(len(data.site(site).train_y) for site in data.sites) == 6


@pytest.mark.parametrize(
    "table",
    [
        "\ufeff" + TABLE.replace("north,40", " north ,40").replace(",a,", ", a ,"),
        "\n\r\n" + TABLE.replace("\n", "\n\n  \n", 3),
        TABLE.replace("50,0,0,b", "50,0,-0.0,b"),
    ],
    ids=["byte order mark and spaces", "empty lines", "minus zero"],
)
def test_other_ways_to_write_the_same_table(load, table):
    assert rows(load(table).site("north")) == rows(load().site("north"))


def test_a_record_in_the_place_of_names_is_not_told(load):
    with pytest.raises(DataError, match="must begin with the names of its columns") as caught:
        load(TABLE.partition("\n")[2]).site("north")
    assert not {"north", "120", "200"} & set(str(caught.value).replace(",", " ").split())


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("age,sex", "aged,sex", "has no column 'age'.*did you mean 'aged'"),
        ("site,age", "centre,age", "has no column 'site'"),
        ("north,40", "north,forty", "line 2: column 'age' is not a number"),
        ("200,a", "200,d", "line 2: column 'kind' is not one of data.categorical"),
        ("a,0\n", "a,\n", "site 'north': patients.csv, line 2: column 'outcome' is not a number"),
        ("a,0\n", "a,inf\n", "site 'north': patients.csv, line 2: column 'outcome' is not a number"),
        ("north,40", "north,4_0", "line 2: column .* is not a number"),
        ("200,a,0", "200,a,1_0", "line 2: column .* is not a number"),
        ("north,40", "north,inf", "patients.csv, line 2: column 'age' is not a finite number"),
        ("north,40", "north,1e400", "patients.csv, line 2: column 'age' is not a finite number"),
        ("north,40", "north,4e38", "patients.csv, line 2: column 'age' is too large a number"),
        ("north,40", "north,40,0", "patients.csv, line 2: 7 cells, the header has 6"),
        ("north,40", "north", "patients.csv, line 2: 5 cells, the header has 6"),
        ("north,50,0,0,b,2\n", "\n\nnorth\n", "patients.csv, line 5: 1 cell, the header has 6"),
        ("north,50", '"north,50', "patients.csv, line 3: a quoted cell begins there that nothing ends"),
        ("200,a", '200,"a"b', "patients.csv, line 2: .* goes on after its closing quote"),
        ("200,a", "200," + "a" * 140_000, "patients.csv, line 2: a cell has more than 131,072 characters"),
    ],
)
def test_a_wrong_cell_is_an_error_that_names_line_and_column_and_no_value(load, old, new, what):
    with pytest.raises(DataError, match=what) as caught:
        load(TABLE.replace(old, new, 1)).site("north")
    assert caught.value.remedy
    for value in ("forty", "200", "'d'"):
        assert value not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "site", "what"),
    [
        ("label_above = 0", "labels = [0, 1, 2]", "south", r"'south': .*line 6.*not one of data\.labels"),
        ("= 0.0", '= 0.0\nimpute = "none"', "north", r"'north'.*NaN.*data\.impute"),
        ('"south"', '"south", "west"', "west", "'west' has no records"),
    ],
)
def test_records_that_do_not_fit_the_options_name_the_site(load, old, new, site, what):
    with pytest.raises(DataError, match=f"site {what}"):
        load(options=OPTIONS.replace(old, new)).site(site)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"patients\.csv is empty"),
        ("site;age;sex\nnorth;1,5;0\n", r"patients\.csv: its columns are separated by semicolons.*point"),
        ("site\tage\tsex\nnorth\t1.5\t0\n", r"patients\.csv: its columns are separated by tabs"),
    ],
)
def test_a_file_that_a_spreadsheet_saved_in_another_way_is_told_so(load, tmp_path, text, what):
    data = load()
    (tmp_path / "patients.csv").write_text(text)
    with pytest.raises(DataError, match=what):
        data.site("north")


def test_a_file_that_is_missing_or_no_text_is_an_error_when_records_are_read(load, tmp_path):
    data = load()
    path = tmp_path / "patients.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"patients\.csv is not a UTF-8"):
        data.site("north")
    path.unlink()
    with pytest.raises(DataError, match=r"data\.path: cannot read .*patients\.csv"):
        data.site("north")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('site_column = "site"\n', "", r"data\.site_column: is missing"),
        ('["north", "south"]', "2", r"data\.sites"),
        ('["north", "south"]', '["north", "north"]', r"data\.sites"),
        ('site_column = "site"', 'partition = "iid"', r"data\.sites"),
        ('sites = ["north", "south"]\n', "", r"data\.sites: is missing"),
        ("label_above = 0\n", "", r"data\.label_above: set either"),
        ("label_above = 0", "label_above = 0\nlabels = [0, 1]", r"data\.label_above: set either"),
        ("label_above = 0", "labels = [1, 1.0]", r"data\.labels"),
        ('"chol", "kind"]', '"kind"]', r"data\.zero_is_missing: there is no feature column 'chol'"),
        ('"chol", "kind"]', '"chol", "chol", "kind"]', r"data\.feature_columns: names a column twice"),
        ('"chol", "kind"]', '"chol", "kind", "outcome"]', r"data\.feature_columns: .* label, 'outcome'"),
        ('["age", "sex", "chol", "kind"]', "[]", r"data\.feature_columns"),
        ("categorical.kind", "categorical.kin", r"data\.categorical: .*'kin'.*did you mean 'kind'"),
        ("test_fraction", "scale.age = [5, 0]\ntest_fraction", r"data\.scale\.age: needs a spread above 0"),
        ("test_fraction", "scale.kind = [5, 1]\ntest_fraction", r"data\.scale\.kind"),
        ("test_fraction", "alpha = 1.0\ntest_fraction", r"data\.alpha: has no effect"),
        ("test_fraction", 'impute = "mean"\ntest_fraction', r"data\.impute.*'median', 'centre' or 'none'"),
    ],
)
def test_options_that_do_not_fit_together_name_their_key(load, old, new, key):
    assert old in OPTIONS
    with pytest.raises(ConfigError, match=key) as caught:
        load(options=OPTIONS.replace(old, new, 1))
    assert caught.value.remedy


def test_heart_disease_without_its_file_names_the_variable_to_set(monkeypatch, tmp_path):
    monkeypatch.setenv("SECFED_DATA", str(tmp_path))
    study = Study.load(Path(__file__).parents[4] / "examples" / "heart-disease.toml")
    with pytest.raises(DataError, match=r"fed_heart_disease\.csv.*SECFED_DATA"):
        build_data(study)


def test_a_column_that_is_there_twice_is_refused_if_a_key_names_it(load):
    twice = TABLE.replace("age,sex", "age,age").replace('"sex", ', "")
    with pytest.raises(DataError, match=r"patients\.csv has the column 'age' twice"):
        load(twice, OPTIONS.replace('"sex", ', "")).site("north")
    header, *lines = TABLE.splitlines()
    unused = "\n".join([f"{header},note,note", *(f"{line},1,2" for line in lines)])
    assert rows(load(unused).site("north")) == rows(load().site("north"))


def with_notes(*notes: str) -> str:
    """The table with a column that no key names."""
    lines = TABLE.splitlines()
    return "\n".join(f"{line},{note}" for line, note in zip(lines, ("note", *notes), strict=True)) + "\n"


@pytest.mark.parametrize(
    "note",
    ['"a, b\nc"', '"a ""quoted"" word\r\n\r\n40,50"', '"north,40\n1,2"', '"he\nsaid, on, the, way, to, us"'],
)
def test_a_quoted_text_may_have_commas_and_lines(load, note):
    table = with_notes("", note, "x", "", "", "")
    assert rows(load(table).site("north")) == rows(load().site("north"))


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        (("a", '"b', "c", "d", "e", "f"), "line 3: a quoted cell begins there that nothing ends"),
        (("a", '"b', "c", '"d"', "e", "f"), "line 3: .* goes on after its closing quote"),
        (("a", '"b', "c", 'd"', "e", "f"), "line 3: column 'note' holds other records of this table"),
        (("a", '"b', 'c"', "d", "e", "f"), "line 3: column 'note' holds other records of this table"),
    ],
)
def test_a_stray_quote_loses_no_record_in_silence(load, notes, what):
    with pytest.raises(DataError, match=rf"patients\.csv, {what}") as caught:
        load(with_notes(*notes)).site("north")
    assert caught.value.remedy


def test_a_site_of_several_lines_is_no_other_site(load):
    table = TABLE.replace("north,50", '"north,50').replace("north,70", 'north",70')
    with pytest.raises(DataError, match="line 3: column 'site' has more than one line"):
        load(table).site("north")


def test_a_number_is_judged_on_its_public_scale(load):
    options = OPTIONS.replace("= false", "= true") + "scale = { age = [0, 1e-30] }"
    with pytest.raises(DataError, match="line 2: column 'age' is too large a number"):
        load(TABLE.replace("north,40", "north,1e10"), options).site("north")


def test_a_path_that_no_file_can_have_is_an_error(load):
    data = load(options=OPTIONS + "impute = 'median'")
    data._read.__self__._path = Path("a\0b")
    with pytest.raises(DataError, match=r"data\.path: cannot be the name of a file.*Remedy"):
        data.site("north")
