"""Whether a hospital can load its data never depends on single values: who writes a study chooses [data]."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from secfed.algorithms.data.multiview.options import MultiviewOptions
from secfed.algorithms.data.multiview.sets import multiview
from secfed.algorithms.data.prepare import Facts, Preparation, PreparedRecords, prepare
from secfed.algorithms.data.transfer.base import Kind, Samples, TransferData, TransferSite, check_transfer
from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.framework.datasets import check_site
from secfed.algorithms.framework.targets import Targets
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.config.schema import checked
from secfed.deploy.agent import training
from secfed.deploy.agent.training import TrainingProcess
from secfed.engine.trainer import Trainer
from secfed.engine.wire import Job
from secfed.errors import DataError, SecfedError
from secfed.site.containment import UNFIT, Failure
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.image_text_case import picture, write_pairs
from tests.forks import Fork

SITES = ("hospital-1", "hospital-2", "hospital-3")
LARGEST = float(np.finfo(np.float32).max)
RECORDS = 30  # a third of them at each hospital

TABLE = """
study = {{ name = "t", rounds = 1, seed = 3 }}
algorithm = {{ name = "fedavg", local_epochs = 1, batch_size = 8, learning_rate = 0.1 }}
model = {{ name = "logistic-regression" }}
protection = {{ name = "masked" }}
[data]
name = "csv"
path = "d.csv"
site_column = "site"
sites = ["hospital-1", "hospital-2", "hospital-3"]
test_fraction = 0.3
{}
"""
LABEL = 'label_column = "y"\nlabel_above = 0\n'
FEATURES = 'feature_columns = ["age"]\n'
PAIRS = """
study = {{ name = "t", rounds = 1, seed = 3 }}
algorithm = {{ name = "vlp-fedavg", batch_size = 4, local_steps = 1 }}
model = {{ name = "tests.algorithms.vlp_case:toy" }}
protection = {{ name = "masked", min_cohort = 3 }}
[data]
name = "image-text"
path = "."
table = "pairs.jsonl"
images = "images"
size = 8
text_length = 6
sites = ["north", "south", "east"]
site_column = "site"
{}
"""
AGES = tuple(20.5 + 1.75 * at for at in range(RECORDS))


def table(folder: Path, **changes: str) -> Path:
    """A table of which hospital-1's second record has these cells, and all others usual ones."""
    lines = ["site,age,kind,y,patient"]
    for at, age in enumerate(AGES):
        row = {"site": SITES[at % 3], "age": str(age), "kind": "ab"[at % 2], "y": str(at // 3 % 2)}
        row |= {"patient": f"p{at}"} | (changes if at == 3 else {})
        lines.append(",".join(row.values()))
    (folder / "d.csv").write_text("\n".join(lines) + "\n")
    return folder / "d.csv"


def loads(text: str, path: Path, site: str = SITES[0], **keys: object) -> Trainer:
    """What the training process of a hospital does before the first round."""
    job = Job(
        site=site,
        settings=text,
        study="x",
        data_path=str(path),
        own_code=("tests.algorithms.vlp_case:toy",),
        **{"site_seed": 4, **keys},  # type: ignore[arg-type]
    )
    return Trainer(job, cast("Connection", None), {})


def serves(text: str, path: Path, site: str = SITES[0]) -> bool:
    try:
        loads(text, path, site)
    except SecfedError:
        return False
    return True


def test_no_choice_of_a_scale_finds_a_hospitals_largest_value(tmp_path: Path) -> None:
    path = table(tmp_path)
    for age in (1.0, 40.0, 60.0, 90.0):
        scale = f"scale = {{ age = [0.0, {age / LARGEST!r}] }}\n"
        assert serves(TABLE.format(LABEL + FEATURES + scale), path)


def test_no_choice_of_a_missing_value_finds_one_that_a_hospital_has(tmp_path: Path) -> None:
    path = table(tmp_path)
    for age in (AGES[3], 55.5):
        missing = f'missing_values = [{age}]\nimpute = "none"\n'
        assert serves(TABLE.format(LABEL + FEATURES + missing), path)


@pytest.mark.parametrize("limit", ["max_megapixels = 1", "max_image_mib = 1"])
def test_no_limit_finds_a_hospital_with_a_large_image(tmp_path: Path, limit: str) -> None:
    write_pairs(tmp_path)
    large = picture(5, size=(1100, 1000)) + bytes(2 << 20)  # what follows the image's end is not read
    (tmp_path / "images" / "2.png").write_bytes(large)
    for site in ("north", "south"):
        assert serves(PAIRS.format(f"test_fraction = 0.0\n{limit}"), tmp_path, site)
    one, other = (Study.parse(PAIRS.format(more)).digest() for more in ("", limit))
    assert one != other  # an approval is for one limit


UNFIT_CELLS: Mapping[str, tuple[str, dict[str, str]]] = {
    "number": (LABEL + FEATURES, {"age": "old"}),
    "infinite": (LABEL + FEATURES, {"age": "inf"}),
    "several lines": (LABEL + FEATURES, {"age": '"4\n0"'}),
    "not imputed": (LABEL + FEATURES + 'impute = "none"\n', {"age": ""}),
    "scaled": (LABEL + FEATURES + 'impute = "none"\nscale = { age = [50.0, 10.0] }\n', {"age": ""}),
    "category": (LABEL + 'feature_columns = ["kind"]\ncategorical = { kind = ["a", "b"] }\n', {"kind": "c"}),
    "label": ('label_column = "y"\nlabels = [0, 1]\n' + FEATURES, {"y": "2"}),
    "label above": (LABEL + FEATURES, {"y": "many"}),
    "patient": (LABEL + FEATURES + 'patient_column = "patient"\n', {"patient": ""}),
}


@pytest.mark.parametrize("case", UNFIT_CELLS)
def test_a_cell_that_does_not_fit_is_a_default_at_a_hospital_and_an_error_elsewhere(
    tmp_path: Path, case: str
) -> None:
    options, cells = UNFIT_CELLS[case]
    text, path = TABLE.format(options), table(tmp_path, **cells)
    assert loads(text, path).unfit > 0
    algorithm = cast("FedAvg", build(Study.parse(text).replace("data.path", str(path))))
    found: list[DataError] = []
    with counted_as_defaults(found.append):
        data = algorithm.data.site(SITES[0])
    assert found
    assert len(data.train_y) + len(data.test_y) == RECORDS // 3
    assert bool(torch.isfinite(data.train_x).all())
    assert bool(torch.isfinite(data.test_x).all())
    for keys in ({"simulated": True}, {"strict": True}):
        with pytest.raises(DataError):
            loads(text, path, **keys)


PAIR_CASES = {
    "absent key": 'test_fraction = 0.0\nfinding_columns = ["rare"]',
    "no text": 'test_fraction = 0.0\ntext_columns = ["note"]',
    "finding": 'test_fraction = 0.0\nfinding_columns = ["patient"]',
    "category": 'test_fraction = 0.0\ncategories = { site = ["west"] }',
    "overflow": "test_fraction = 0.0\nmean = [0.0]\nstd = [1e-40]",
    "all held out": 'split_column = "part"\ntrain_values = ["none"]\ntest_values = ["train", "test"]',
    "none used": 'split_column = "part"\ntrain_values = ["none"]\ntest_values = ["neither"]',
}


@pytest.mark.parametrize("case", PAIR_CASES)
def test_pairs_that_do_not_fit_are_blank_at_a_hospital_and_errors_in_a_simulation(
    tmp_path: Path, case: str
) -> None:
    text = PAIRS.format(PAIR_CASES[case])
    write_pairs(tmp_path)
    assert loads(text, tmp_path, "north").unfit > 0
    with pytest.raises(DataError):
        loads(text, tmp_path, "north", simulated=True)


def test_a_hospital_whose_records_are_all_held_out_trains_on_a_blank_one() -> None:
    records = PreparedRecords(np.ones((4, 2)), np.array([0, 1, 1, 0]), patients=("the only patient",) * 4)
    found: list[DataError] = []
    for rules in (Preparation(0.9, True, impute="median"), Preparation(0.9, False, impute="none")):
        with counted_as_defaults(found.append):
            data = prepare("s", records, Facts(("s",), rules, (2,), 2, 0))
        assert data.train_x.tolist() == [[0.0, 0.0]]
        assert data.train_patients == (0,)
        assert data.blank  # and stays so when it is checked again
        assert check_site("s", data, input_shape=(2,), targets=Targets.of_classes(2)).blank
        assert len(data.test_y) == 4
        assert bool(torch.isfinite(data.test_x).all())
        with pytest.raises(DataError, match="no training records"):
            prepare("s", records, Facts(("s",), rules, (2,), 2, 0))


def test_views_that_do_not_fit_count_as_zeros_and_the_first_class(tmp_path: Path) -> None:
    rows = np.arange(1.0, 13.0).reshape(6, 2)
    sites = np.array(["north", "south"] * 3)
    np.savez(tmp_path / "v.npz", X1=rows, Y=np.array([0, 1, 2, 0, 0.5, 0]), where=sites)
    keys = {"name": "multiview", "path": "v.npz", "views": ["X1"], "classes": 2, "site_key": "where"}
    given = {**keys, "sites": ["north", "south"], "scale": {"X1": [0.0, 1e-38]}}
    data = multiview(checked(MultiviewOptions, given, "data"), 0, tmp_path)
    found: list[DataError] = []
    with counted_as_defaults(found.append):
        north = data.site("north")
    assert len(found) == 3
    assert north.labels.tolist() == [0, 0, 0]
    assert north.views[0] is not None
    assert north.views[0].shape == (3, 2)
    assert bool(torch.isfinite(north.views[0]).all())
    with pytest.raises(DataError):
        data.site("north")


@pytest.mark.parametrize("kind", ["image", "text", "pairs"])
def test_transfer_records_that_do_not_fit_count_as_defaults(kind: Kind) -> None:
    facts = cast(
        "TransferData",
        SimpleNamespace(
            kind_of={"s": kind},
            image_shape=(1, 2, 2),
            text_length=4,
            vocabulary=9,
            image_classes=2,
            text_classes=2,
        ),
    )
    images = None if kind == "text" else torch.full((2, 1, 2, 2), float("inf"))
    tokens = None if kind == "image" else torch.tensor([[0, 0, 0, 0], [1, 0, 9, 0]])
    labels = None if kind == "pairs" else torch.tensor([0, 2])
    samples = Samples(images, tokens, labels, torch.tensor([1, 0]) if kind == "pairs" else None)
    nothing = Samples(*(None if part is None else part[:0] for part in vars(samples).values()))
    found: list[DataError] = []
    for train, rows in ((samples, 2), (nothing, 1)):
        with counted_as_defaults(found.append):
            site = check_transfer("s", TransferSite(kind, train, samples), facts)
        assert len(site.train) == rows
        assert check_transfer("s", site, facts) is site  # it fits now
        with pytest.raises(DataError):
            check_transfer("s", TransferSite(kind, train, samples), facts)
    if tokens is not None:
        assert site.test.tokens is not None
        assert site.test.tokens.tolist() == [[2, 0, 0, 0], [1, 2, 2, 0]]


def test_an_image_that_cannot_be_read_is_blank(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    (tmp_path / "images" / "2.png").write_bytes(b"no image")
    text = PAIRS.format("test_fraction = 0.0")
    trainer = loads(text, tmp_path, "north")
    assert trainer.unfit == 1
    pairs = trainer._program.data.train  # type: ignore[attr-defined]
    assert len(pairs) == 12
    assert not bool(pairs.images[1].any())
    assert bool(pairs.images[2].any())


def test_files_and_columns_that_are_missing_are_errors_at_a_hospital_too(tmp_path: Path) -> None:
    path = table(tmp_path)
    with pytest.raises(DataError, match="no column 'height'"):
        loads(TABLE.format(LABEL + 'feature_columns = ["height"]'), path)
    with pytest.raises(DataError):
        loads(TABLE.format(LABEL + FEATURES), tmp_path / "absent.csv")


def test_only_the_hospital_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.subprocess, "Popen", Fork)
    path, alarms = table(tmp_path, age="old"), list[Failure]()
    process = TrainingProcess(
        Job(
            site=SITES[0],
            settings=TABLE.format(LABEL + FEATURES),
            study="x",
            data_path=str(path),
            site_seed=4,
        ),
        gpu=False,
        log_path=tmp_path / "log",
        local_key=None,
        ledger=None,
        stored=dict,
        alarm=alarms.append,
    )
    try:
        process.start()
    finally:
        process.close()
    assert [str(one) for one in alarms] == [f"loading: {UNFIT}"]
    assert "line 5: column 'age' is not a number" in (tmp_path / "log").read_text()
