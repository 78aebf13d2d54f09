from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import secfed
from secfed.config import torchvision_repair
from secfed.config.plugins import allow_imports, make, own_errors_in_full
from secfed.engine.options import EngineOptions
from secfed.errors import ConfigError
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.loop import add_in_ring, simulate

EXAMPLES = Path(__file__).parents[3] / "examples"

MODULE = """
from torch import nn
from secfed.algorithms.data.memory import SiteTables

THREE = 3

def tables(n, *, shift=0.0):
    return SiteTables({s: ([[float(i + shift), 1.0] for i in range(n)], [i % 2 for i in range(n)])
                       for s in ("a", "b", "c")}, classes=2)

def three_lists():
    return [1, 2, 3]

def net(input_shape, classes, width=3, dropout=0.0):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Dropout(dropout), nn.Linear(width, classes))

def no_net(input_shape, classes):
    return "net"

def takes_nothing():
    return nn.Linear(1, 1)
"""

STUDY = """
study = { name = "own", rounds = 2, seed = 1 }
algorithm = { name = "fedavg" }
data = { name = "own_pieces:tables", n = 10 }
model = { name = "own_pieces:net", width = 4 }
protection = { name = "plain" }
"""


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    """A folder with a user's module beside the study; nothing of it stays importable."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_pieces.py").write_text(MODULE)
    (tmp_path / "study.toml").write_text(STUDY)
    yield tmp_path
    sys.modules.pop("own_pieces", None)


def changed(folder: Path, old: str, new: str) -> Study:
    assert old in STUDY
    path = folder / "changed.toml"
    path.write_text(STUDY.replace(old, new))
    return Study.load(path)


def test_own_model_and_data_set_train_like_built_in_ones(pieces):
    study = Study.load(pieces / "study.toml")
    server = simulate(study, adder=add_in_ring)
    assert server.model()["0.weight"].shape == (4, 2)
    assert sorted(server.metrics()) == [0, 1, 2]


def test_the_example_fits_in_twenty_lines_and_learns(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = EXAMPLES / "bring-your-own"
    lines = [line for path in sorted(folder.glob("*.*")) for line in path.read_text().splitlines() if line]
    assert len(lines) <= 20
    metrics = simulate(Study.load(folder / "study.toml")).metrics()
    assert metrics[10]["roc_auc"] > 0.9


def test_an_own_models_random_layers_are_seeded_too(pieces):
    study = changed(pieces, "width = 4", "dropout = 0.5")
    torch.manual_seed(1)
    first = simulate(study).model()
    torch.manual_seed(2)
    second = simulate(study, order=["c", "b", "a"], adder=add_in_ring).model()
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_the_digest_covers_the_arguments_and_not_their_order(pieces):
    study = Study.load(pieces / "study.toml")
    assert study.replace("data.n", 11).digest() != study.digest()
    assert study.replace("data.n", 10).digest() == study.digest()
    one, other = (changed(pieces, "n = 10", new) for new in ("n = 10, shift = 1.0", "shift = 1.0, n = 10"))
    assert one.digest() == other.digest() != study.digest()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("own_pieces:tables", "own_piece:tables", r"data\.name: cannot import module 'own_piece'"),
        ("own_pieces:tables", "own_pieces:table", r"data\.name: .* has no 'table'.*did you mean 'tables'"),
        ("own_pieces:tables", "own_pieces:THREE", r"data\.name: 'own_pieces:THREE' cannot be called"),
        ("own_pieces:tables", "own pieces:tables", r"data\.name: .*not of the form package\.module:factory"),
        ("own_pieces:tables", ":tables", r"data\.name: .*not of the form"),
        ("n = 10", "n = 10, shif = 1.0", r"data\.shif: .*did you mean 'shift'"),
        (", n = 10", "", r"data\.n: is missing"),
        ("width = 4", "wide = 4", r"model\.wide: the factory does not take.*did you mean 'width'"),
        ("width = 4", "classes = 4", r"model\.classes: the factory does not take"),
        ('own_pieces:net", width = 4', 'own_pieces:takes_nothing"', r"model\.name: .*cannot be called"),
        ('own_pieces:net", width = 4', 'own_pieces:no_net"', r"model\.name: .*gives no torch\.nn\.Module"),
        ('own_pieces:tables", n = 10', 'own_pieces:three_lists"', r"data\.name: .*gives no data set"),
        ('"plain"', '"plain", min_cohort = 4', r"protection\.min_cohort: 4 is above the number of sites, 3"),
    ],
)
def test_a_wrong_factory_or_argument_is_an_error_that_names_the_key(pieces, old, new, what):
    with pytest.raises(ConfigError, match=what) as caught:
        build(changed(pieces, old, new))  # what a factory gives is known when it is called
    assert caught.value.remedy


def remedy_for(pieces: Path, name: str) -> str:
    with pytest.raises(ConfigError, match=r"data\.name: cannot import module") as caught:
        changed(pieces, "own_pieces:tables", f"{name}:tables")
    return caught.value.remedy


def test_a_module_that_cannot_be_imported_is_told_from_one_that_is_not_there(pieces):
    assert remedy_for(pieces, "own_piece").startswith("put own_piece.py beside the study file")
    (pieces / "own_folder").mkdir()
    assert remedy_for(pieces, "own_folder.piece").startswith("put own_folder/piece.py beside the study file")
    (pieces / "own_needy.py").write_text("import not_installed_here")
    assert remedy_for(pieces, "own_needy").startswith("install the package that holds 'not_installed_here'")
    (pieces / "own_wrong.py").write_text("from json import no_such_name")
    assert remedy_for(pieces, "own_wrong") == "correct what 'own_wrong' imports"


def test_a_study_from_elsewhere_imports_only_what_is_permitted(pieces):
    sys.path.append(str(pieces))
    with pytest.raises(ConfigError, match=r"model\.name: 'own_pieces:net' is not permitted here"):
        Study.parse(STUDY, own_code=[])
    assert "own_pieces" not in sys.modules
    with pytest.raises(ConfigError, match=r"data\.name: 'own_pieces:tables' is not permitted here"):
        Study.parse(STUDY, own_code=["own_pieces:net"])
    assert Study.parse(STUDY, own_code=["own_pieces:net", "own_pieces:tables"]).name == "own"


def test_a_file_beside_the_study_cannot_replace_an_installed_module(pieces):
    (pieces / "json.py").write_text("raise SystemExit('shadowed')")
    Study.load(pieces / "study.toml")
    assert sys.path.index(str(pieces)) > sys.path.index(str(Path(torch.__file__).parents[1]))


@pytest.mark.parametrize(
    ("line", "kind"), [("def open_bracket(:", "SyntaxError"), ("no_such_name", "NameError")]
)
def test_a_module_with_a_mistake_in_it_is_named_with_the_line(pieces, line, kind):
    (pieces / "own_pieces.py").write_text(f"{MODULE}\n{line}")
    with pytest.raises(ConfigError, match=rf"cannot be imported \({kind} in own_pieces\.py, line 23\)"):
        Study.load(pieces / "study.toml")


def test_a_factory_that_fails_is_named_with_the_line_and_without_what_it_said(pieces):
    wrong = MODULE.replace(
        "    return SiteTables", "    raise ValueError('Jane Doe is 7')\n    return SiteTables"
    )
    (pieces / "own_pieces.py").write_text(wrong)
    told = r"data\.name: 'own_pieces:tables' failed \(ValueError in own_pieces\.py, line 8\)\. Remedy"
    with pytest.raises(ConfigError, match=told) as caught:
        build(Study.load(pieces / "study.toml"))
    assert "Jane" not in str(caught.value)
    study = changed(pieces, "width = 4", 'width = "wide"')
    (pieces / "own_pieces.py").write_text(MODULE)
    sys.modules.pop("own_pieces")
    with pytest.raises(ConfigError, match=r"model\.name: 'own_pieces:net' failed \(TypeError in own_pieces"):
        build(study)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "nn.Linear(input_shape[0], width)",
            "nn.Linear(7, width)",
            r"cannot take records of shape \(2,\): .*7",
        ),
        ("nn.Linear(width, classes)", "nn.Linear(width, 1)", r"gives \(2, 1\), not scores of shape \(2, 2\)"),
        ("return nn.Sequential(", "return nn.LSTM(2, 2) if width else (", r"gives tuple, not scores"),
    ],
)
def test_a_model_that_does_not_fit_the_records_is_refused_before_any_round(pieces, old, new, what):
    assert old in MODULE
    (pieces / "own_pieces.py").write_text(MODULE.replace(old, new))
    with pytest.raises(ConfigError, match=rf"model\.name: .*{what}"):
        build(Study.load(pieces / "study.toml"))


FAILING = """
import torch
from torch import nn
from secfed.algorithms.federated_averaging.fedavg import FedAvg

class Net(nn.Linear):
    def forward(self, x):
        if self.training:
            raise TypeError(f"a record begins with {float(x[0, 0])}")
        return super().forward(x)

def net(input_shape, classes):
    return Net(input_shape[0], classes)

def no_net(input_shape, classes):
    raise ValueError("no net of 7")

class Server(FedAvg):
    def server_step(self, model, mean, state):
        return {"of another model": mean["update/0.weight"]} if "0.weight" in model else {"1.bias": None}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "net",
            "net",
            r"own code \(.*pieces:net\) failed in own_pieces.py, line 9: TypeError: a record begins",
        ),
        ("net", "no_net", r"'own_pieces:no_net' failed in own_pieces.py, line 16: ValueError: no net of 7"),
        (
            "fedavg",
            "own_pieces:Server",
            r"own_pieces:Server.*: what it gave cannot be used: AttributeError: ",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_own_code_fails_with_type_text_file_and_line_in_a_simulation(
    pieces: Path, old: str, new: str, expected: str, workers: int
) -> None:
    (pieces / "own_pieces.py").write_text(FAILING)
    text = 'study = { name = "own", rounds = 1 }\nalgorithm = { name = "fedavg" }\n'
    text += 'protection = { name = "plain" }\n'
    text += 'data = { name = "breast-cancer" }\nmodel = { name = "own_pieces:net" }\n'
    if old == "fedavg":
        text = text.replace("own_pieces:net", "logistic-regression").replace('"fedavg"', f'"{new}"')
    else:
        text = text.replace("own_pieces:net", f"own_pieces:{new}")
    (pieces / "failing.toml").write_text(text)
    engine = EngineOptions("processes", workers) if workers else None
    with pytest.raises(ConfigError, match=expected):
        secfed.simulate(Study.load(pieces / "failing.toml"), engine=engine)
    if new == "no_net":
        with pytest.raises(ConfigError) as caught:  # as an aggregator or a hospital builds it
            build(Study.load(pieces / "failing.toml"))
        assert "of 7" not in str(caught.value)


def test_a_torchvision_that_does_not_fit_is_mended_for_own_code(
    pieces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended: list[None] = []
    monkeypatch.setattr(torchvision_repair, "mend_torchvision", lambda: mended.append(None))
    (pieces / "own_pieces.py").write_text(
        "def net(shape, classes):\n    raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    allow_imports(pieces)
    with pytest.raises(ConfigError, match="torchvision::nms"), own_errors_in_full():
        make("own_pieces:net", "model.name", (3,), 2)
    assert len(mended) == 1
