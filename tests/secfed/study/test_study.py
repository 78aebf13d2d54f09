from __future__ import annotations

import sys

import pytest

from secfed.config.sections import PROTECTIONS, ProtectionSection, StudySection
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError
from secfed.study.registry import KINDS
from secfed.study.study import Study

GOOD = """
[study]
name = "demo-1"
rounds = 5
seed = 7

[algorithm]
name = "fedprox"
mu = 0.1
learning_rate = 0.05

[model]
name = "mlp"
hidden = [8, 4]

[data]
name = "breast-cancer"
sites = 6
partition = "dirichlet"
alpha = 1

[protection]
name = "masked"
"""


def test_a_study_has_its_values_and_the_documented_defaults():
    study = Study.parse(GOOD)
    assert (study.name, study.rounds, study.seed) == ("demo-1", 5, 7)
    assert (study.algorithm.mu, study.model.hidden, study.data.alpha) == (0.1, (8, 4), 1.0)
    protection = study.protection
    assert (protection.name, protection.bits, protection.bound) == ("masked", 32, 4.0)
    assert (protection.min_cohort, protection.deadline_s) == (3, 600.0)
    assert (protection.threshold_for(6), protection.colluders_for(6)) == (5, 1)
    assert (protection.threshold_for(3), protection.colluders_for(3)) == (3, 0)


@pytest.mark.parametrize("value", ["[" * 20_000, "9" * 5_000], ids=["nested", "digits"])
def test_a_hostile_file_is_one_clear_error(value):
    with pytest.raises(ConfigError, match="a study: ") as caught:
        Study.parse(f"{GOOD}x = {value}\n", source="a study", own_code=())
    assert caught.value.remedy


def test_masked_is_the_default_protection():
    assert PROTECTIONS == ("plain", "masked", "encrypted")
    assert Study.parse(GOOD[: GOOD.index("[protection]")]) == Study.parse(GOOD)


def edit(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def private(keys: str) -> str:
    return f"{GOOD}[privacy]\nepsilon = 1\ndelta = 1e-5\n{keys}\n"


RECORD, NOISY = 'unit = "record"\n', 'metrics = "private"\n'
PATIENTS, HIDES_SITES = 'adjacency = "replace-patient"\n', 'adjacency = "zero-out-site"\n'
MODEL = '[model]\nname = "mlp"\nhidden = [8, 4]\n'
GROUPS = 'unit = "group"\ngroup_size = 4\n'
CASES = {
    # what is written wrongly: (text, what the error says, what the remedy says)
    "unknown section": (edit("[protection]", "[protecton]"), "protecton: unknown section", "'protection'"),
    "a file for secfed sweep": (edit("[model]", "[sweep]\n[model]"), "sweep: this file", "secfed sweep"),
    "missing section": (edit(MODEL, ""), "model: this section", "[model]"),
    "value for a section": ("model = 3\n" + edit("[model]", "[x]"), "model: is a value", "[model]"),
    "unknown study key": (edit("rounds", "round"), "study.round: unknown key", "'rounds'"),
    "missing key": (edit("rounds = 5\n", ""), "study.rounds: is missing", "[study]"),
    "negative rounds": (edit("rounds = 5", "rounds = -1"), "study.rounds: should be greater", "rounds"),
    "text for a number": (edit("= 5", '= "5"'), "study.rounds: should be a valid int", "number"),
    "fraction for a count": (edit("= 5", "= 5.0"), "study.rounds: should be a valid int", ""),
    "truth for a count": (edit("= 5", "= true"), "study.rounds: should be a valid int", ""),
    "seed too large": (edit("seed = 7", f"seed = {2**63}"), "study.seed", "a smaller number"),
    "name not fit for a file": (edit("demo-1", "../Demo 1"), "study.name", "lower-case"),
    "unknown algorithm": (edit("fedprox", "fedprx"), "algorithm.name: there is no 'fedprx'", "'fedprox'"),
    "no algorithm name": (edit('name = "fedprox"\n', ""), "algorithm.name: is missing", "of: canonical"),
    "name of a wrong type": (edit('"fedprox"', "3"), "algorithm.name: must be a text", "fedavg"),
    "option of another algorithm": (edit("fedprox", "fedavg"), "algorithm.mu: unknown key", "known keys"),
    "misspelt option": (edit("learning_rate", "leaning_rate"), "algorithm.leaning_rate", "'learning_rate'"),
    "option out of range": (edit("0.05", "0.0"), "algorithm.learning_rate: should be greater than 0", "step"),
    "not a number": (edit("0.05", "nan"), "algorithm.learning_rate: should be a finite number", "step"),
    "infinite": (edit("0.05", "inf"), "algorithm.learning_rate: should be a finite number", "step"),
    "unknown choice": (edit("mu = 0.1", 'optimizer = "sdg"'), "algorithm.optimizer", '"sgd" or "adam"'),
    "momentum for adam": (edit("mu = 0.1", 'optimizer = "adam"\nmomentum = 0.9'), "algorithm.momentum", ""),
    "cap without weights": (
        edit("mu = 0.1", 'weighting = "equal"\nweight_cap = 9'),
        "weight_cap: has no",
        "",
    ),
    "unknown model": (edit('"mlp"', '"mpl"'), "model.name: there is no 'mpl'", "'mlp'"),
    "wrong element": (edit("[8, 4]", '[8, "4"]'), "model.hidden[1]: should be a valid int", "array"),
    "unknown data set": (edit("breast-cancer", "brest-cancer"), "data.name: there is no", "'breast-cancer'"),
    "alpha of zero": (edit("alpha = 1", "alpha = 0"), "data.alpha: should be greater than 0", "Dirichlet"),
    "alpha without effect": (edit("dirichlet", "iid"), "data.alpha: has no effect", "dirichlet"),
    "one site": (edit("sites = 6", "sites = 1"), "data.sites: a cohort of one site", "three"),
    "no site": (edit("sites = 6", "sites = 0"), "data.sites: should be greater", "hospitals"),
    "own code not importable": (edit("mlp", "nowhere.models:net"), "model.name: cannot import", "install"),
    "unknown protection": (edit("masked", "mask"), "protection.name: should be 'plain', 'masked'", "masked"),
    "key mode without encryption": (GOOD + 'key_mode = "symmetric"', "key_mode: has no effect", "encrypted"),
    "unknown key mode": (
        edit("masked", "encrypted") + 'key_mode = "none"',
        "key_mode: should be 'public'",
        "",
    ),
    "privacy without a unit": (private(""), "privacy.unit: is missing", '"record"'),
    "negative epsilon": (
        private(RECORD).replace("epsilon = 1", "epsilon = -1"),
        "privacy.epsilon",
        "above 0",
    ),
    "another's relation": (private(f"{RECORD}{HIDES_SITES}"), "privacy.adjacency", "add-or-remove-record"),
    "patients without groups": (private(f"{RECORD}{PATIENTS}"), "privacy.adjacency", "add-or-remove-record"),
    "noisy sums beside patients": (private(f"{GROUPS}{PATIENTS}{NOISY}"), "privacy.metrics", "withheld"),
    "groups without a size": (private('unit = "group"'), "privacy.group_size: is missing", "2 or more"),
    "group size without groups": (private(f"{RECORD}group_size = 4"), "privacy.group_size: has no", "remove"),
    "an engine that cannot clip groups": (private(GROUPS + 'engine = "ghost"'), "privacy.engine", "loop"),
    "noisy metrics of sites": (private(f'unit = "site"\n{NOISY}'), "privacy.metrics", "withheld"),
    "bits out of range": (GOOD + "bits = 64", "protection.bits: should be less than", "8 to 32"),
    "bits without headroom": (edit("= 6", "= 100") + "bits = 8", "protection.bits: 8 bits leave no", "raise"),
    "bound too small for float64": (GOOD + "bound = 5e-324", "protection.bound: bound is too small", "raise"),
    "bound of zero": (GOOD + "bound = 0", "protection.bound: should be greater than 0", "weighted update"),
    "cohort above the sites": (GOOD + "min_cohort = 7", "protection.min_cohort: 7 is above", "lower"),
    "masked cohort of two": (GOOD + "min_cohort = 2", "protection.min_cohort: 2 is below 3", "cohort = 3"),
    "cohort of zero": (GOOD + "min_cohort = 0", "protection.min_cohort: should be greater", "3 or more"),
    "threshold above the sites": (GOOD + "threshold = 7", "protection.threshold: 7 is above", "leave it out"),
    "threshold too low": (GOOD + "threshold = 3", "protection.threshold: 3 answers of 6", "threshold = 4"),
    "threshold below three": (edit("= 6", "= 3") + "threshold = 2", "threshold: 2 answers", "threshold = 3"),
    "too many colluders": (GOOD + "colluders = 4", "protection.colluders: 5 answers of 6", "threshold = 6"),
    "far too many colluders": (GOOD + "colluders = 6", "protection.colluders", "lower protection.colluders"),
    "deadline of zero": (GOOD + "deadline_s = 0", "protection.deadline_s: should be greater", "seconds"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_mistake_is_one_error_that_names_key_and_remedy(case):
    text, what, remedy = CASES[case]
    with pytest.raises(ConfigError) as caught:
        Study.parse(text)
    assert what in caught.value.message
    assert caught.value.remedy
    assert remedy in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_plain_cohort_may_be_smaller():
    two = edit("sites = 6", "sites = 2").replace('"masked"', '"plain"\nmin_cohort = 1')
    assert Study.parse(two).protection.min_cohort == 1
    with pytest.raises(ConfigError, match=r"protection\.min_cohort: 3 is above the number of sites, 2"):
        Study.parse(two.replace("min_cohort = 1", ""))
    with pytest.raises(ConfigError, match=r"protection\.min_cohort: 1 is below 3"):
        Study.parse(two).replace("protection.name", "masked")


def test_broken_toml_names_file_and_line():
    with pytest.raises(ConfigError, match=r"^here\.toml: not valid TOML: .*line 4"):
        Study.parse(edit("rounds = 5", "rounds 5"), source="here.toml")


def test_load_reads_a_file_and_remembers_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "study.toml"
    for text in (GOOD, "\ufeff" + GOOD):  # a file may begin with a byte order mark
        path.write_text(text, encoding="utf-8")
        study = Study.load(path)
        assert study.folder == study.replace("study.rounds", 1).folder == tmp_path
        assert study.digest() == Study.parse(text).digest() == Study.parse(GOOD).digest()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "study.toml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"studdy\.toml: there is no such.*did you mean 'study\.toml'"):
        Study.load(tmp_path / "studdy.toml")
    with pytest.raises(ConfigError, match=r"study\.toml: there is no such.*check the path"):
        Study.load(tmp_path / "nowhere" / "study.toml")
    with pytest.raises(ConfigError, match=r"cannot be read.*name the study file in it"):
        Study.load(tmp_path)
    (tmp_path / "study.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        Study.load(tmp_path / "study.toml")


def test_a_study_cannot_be_changed():
    study = Study.parse(GOOD)
    for part, name in ((study, "data"), (study.study, "rounds"), (study.algorithm, "mu")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(part, name, 1)


def test_digest_ignores_how_a_study_is_written_down():
    study = Study.parse(GOOD)
    reordered = "# a comment\n" + edit("rounds = 5\nseed = 7", "seed = 7\nrounds = 5")
    spelt_out = GOOD + "bits = 32\nmin_cohort = 3\n"
    as_float = edit("alpha = 1", "alpha = 1.0")
    assert {Study.parse(text).digest() for text in (reordered, spelt_out, as_float)} == {study.digest()}
    assert len(study.digest()) == 32


def test_digest_changes_with_every_value():
    study = Study.parse(GOOD)
    changes = {"study.name": "demo-2", "study.seed": 8, "algorithm.mu": 0.2, "model.hidden": [8]}
    changes |= {"data.alpha": 2.0, "data.test_fraction": 0.3}
    changes |= {"protection.name": "plain", "protection.threshold": 5}
    found = {study.digest(), *(study.replace(key, value).digest() for key, value in changes.items())}
    assert len(found) == 1 + len(changes)


def test_replace_gives_a_validated_copy():
    study = Study.parse(GOOD)
    plain = study.replace("protection.name", "plain")
    assert (plain.protection.name, study.protection.name) == ("plain", "masked")
    assert plain.replace("protection.name", "masked") == study
    with pytest.raises(ConfigError, match=r"data\.sites: a cohort of one"):
        study.replace("data.sites", 1)
    with pytest.raises(ConfigError, match=r"data\.alhpa: unknown key.*did you mean 'alpha'"):
        study.replace("data.alhpa", 1.0)
    with pytest.raises(ConfigError, match="rounds: unknown section"):
        study.replace("rounds", 3)
    with pytest.raises(ConfigError, match=r"data\.sites\.x: sites is a value"):
        study.replace("data.sites.x", 3)


def test_the_roster_is_checked_like_the_number_of_sites():
    study = Study.parse(GOOD)
    study.check_roster(3)
    for sites in (1, 2):
        with pytest.raises(ConfigError):
            study.check_roster(sites)


def test_tables_are_plain_values_that_parse_to_the_same_study():
    study = Study.parse(GOOD)
    tables = study.tables()
    assert tables["protection"]["min_cohort"] == 3
    assert "folder" not in tables
    rebuilt = study
    for section, values in tables.items():
        # Options of encryption may only be written where there is encryption.
        for key in values.keys() - {"key_mode", "key_holder", "scheme", "processes"}:
            rebuilt = rebuilt.replace(f"{section}.{key}", values[key])
    assert rebuilt.digest() == study.digest()


@pytest.mark.parametrize(
    ("name", "sites", "cohort", "remedy"),
    [
        ("masked", 2, 3, "add sites: a sum under masked protection needs at least 3"),
        ("masked", 4, 5, "lower protection.min_cohort or add sites"),
        ("encrypted", 2, 3, "lower protection.min_cohort or add sites"),
        ("plain", 2, 3, "lower protection.min_cohort or add sites"),
    ],
)
def test_lowering_the_cohort_is_offered_only_where_it_would_be_taken(name, sites, cohort, remedy):
    text = edit("sites = 6", f"sites = {sites}").replace('"masked"', f'"{name}"\nmin_cohort = {cohort}')
    with pytest.raises(ConfigError, match=r"protection\.min_cohort: \d is above the number") as caught:
        Study.parse(text)
    assert caught.value.remedy == remedy
    if "lower" in remedy:
        lowered = Study.parse(text.replace(f"min_cohort = {cohort}", f"min_cohort = {sites}"))
        assert lowered.protection.min_cohort == sites


# Every key that says how the work is carried out and nothing else. A new one is a decision: docs/adr/017.
OPERATIONAL_KEYS = {
    "protection.deadline_s",
    "protection.processes",
    "algorithm.device",
    "algorithm.compile",
    "model.gradient_checkpointing",
}


def test_which_keys_are_operational():
    tables = {("protection", ProtectionSection), ("study", StudySection), ("privacy", PrivacySection)}
    tables |= {(kind, entry.options) for kind, (entries, _) in KINDS.items() for entry in entries.values()}
    found = {f"{name}.{key}" for name, table in tables for key in table.operational_defaults()}
    assert found == OPERATIONAL_KEYS


@pytest.mark.parametrize(("key", "value"), [("protection.deadline_s", 1.0), ("algorithm.device", "cpu")])
def test_operational_keys_are_no_part_of_the_identity(key, value):
    study = Study.parse(GOOD)
    other = study.replace(key, value)
    assert other.digest() == study.digest()
    assert other.tables() != study.tables()  # they still count for what is carried out
    assert other.digest(operational=True) != study.digest(operational=True) == study.digest()


def test_arguments_of_own_code_are_never_operational():
    data = {"name": f"{__name__}:with_device", "device": "cpu"}
    study = Study.parse(GOOD).replace("data", data)
    assert study.digest() != study.replace("data.device", "cuda").digest()


def with_device(device: str) -> None:
    """The factory of ``[data]``; only its arguments are looked at."""
