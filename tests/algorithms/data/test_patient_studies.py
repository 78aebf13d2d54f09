"""Studies that hide whole patients: what leaves a site, what is paid, what the report says; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tests.algorithms.data.test_patient_studies as named  # the copy that the study's names import
from secfed.algorithms.data.image_text.base import ImageTextSite
from secfed.algorithms.data.memory import SiteTables
from secfed.cli.audit import audit_app
from secfed.dp.accounting.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import spent_of
from secfed.dp.ledger.ledger import verify as verify_ledger
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.errors import ConfigError
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.runs.run_folder import ledger_file, site_folder
from secfed.runs.run_report import SilentObserver
from secfed.simulation.simulate import simulate
from secfed.study.build import build
from secfed.study.study import Study
from tests.algorithms.image_text_case import picture
from tests.algorithms.vlp_case import TINY, ToyPairs
from tests.algorithms.vlp_case import pairs as toy_pairs
from tests.dp.wards import audit

SITES = ("north", "south", "west")
HIDES = Adjacency.REPLACE_PATIENT
CLIP = 0.5
PRIVACY = f"""
[privacy]
unit = "group"
group_size = 4
epsilon = 8.0
delta = 1e-4
clip_norm = {CLIP}
adjacency = "replace-patient"
"""

# --- what one site sends ---

WARDS = f"""
study = {{ name = "wards", rounds = 1, seed = 1 }}
algorithm = {{ name = "fedavg", weighting = "equal", learning_rate = 1.0, batch_size = 40 }}
model = {{ name = "{__name__}:line" }}
data = {{ name = "{__name__}:wards" }}
protection = {{ name = "plain", min_cohort = 2 }}
"""
WHOSE = [number for number in range(16) for _ in range(1 + number % 4)]  # 40 records of 16 patients
CONTENT = [1.0]  # of the last patient's four records
NAMED = [True]


def line(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    model = torch.nn.Linear(input_shape[0], classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def wards() -> SiteTables:
    x = np.where(np.array(WHOSE) == 15, named.CONTENT[0], 1e-9)[:, None]
    tables = {"a": (x, np.zeros(40, dtype=int)), "b": (x, np.zeros(40, dtype=int))}
    patients = {"a": WHOSE, "b": WHOSE} if named.NAMED[0] else None
    return SiteTables(tables, classes=2, standardize=False, test_fraction=0.0, patients=patients)


def moved() -> float:
    """How far the sum of clipped gradients of one site moves when one patient's records all turn round."""
    sent = []
    for content in (1e6, -1e6):
        named.CONTENT[0] = content
        study = Study.parse(WARDS + PRIVACY)
        algorithm = build(study)
        exchange, program = algorithm.exchanges(1)[0], algorithm.site("a")
        free: Any = SimpleNamespace(spender=lambda **_: lambda event: None)
        assert study.privacy is not None
        privacy = LocalPrivacy(
            study.privacy, free, study="s", seed=1, random=lambda number, name: SecureRandom(b"1" * 32)
        )
        program.use_privacy(privacy)  # type: ignore[attr-defined]
        assert privacy.mechanism().sampling_rate == 1.0
        privacy.enter(1, exchange.name)
        units = privacy.mechanism().steps_per_pass * len(privacy.training()._partition)  # type: ignore[arg-type]
        got = program.contribute(1, exchange, algorithm.server().broadcast(1, exchange))
        sent.append(torch.as_tensor(got["update/weight"]).double() * units)
    return float((sent[0] - sent[1]).norm())


def test_a_patient_moves_what_a_site_sends_by_two_clipping_norms() -> None:
    assert moved() == pytest.approx(2 * CLIP, rel=1e-3)


# --- whole studies ---


def run(made: Study, out: Path) -> None:
    report = simulate(made, out=out, drops=(), observer=SilentObserver())
    assert report.privacy is not None
    assert report.privacy.adjacency == "replace-patient"
    for site in report.privacy.sites:
        assert 0.9 * 8.0 < site.epsilon <= 8.0


def events(folder: Path, site: str, dataset: str) -> list[Event]:
    """Of a verified ledger whose numbers are recomputed."""
    roster = read_roster(folder / ROSTER_FILE)
    with ledger_file(site_folder(folder, site), dataset).open("rb") as lines:
        chain = verify_ledger(lines, roster.public(site), owner=site)
    audit(chain)
    return [entry.event for entry in spent_of(chain)]


def page(folder: Path) -> str:
    """As a data-protection officer gets it."""
    made = CliRunner().invoke(audit_app, ["report", str(folder), "--out", str(folder / "report.html")])
    assert made.exit_code == 0, made.output
    return (folder / "report.html").read_text(encoding="utf-8")


TABLE = f"""
study = {{ name = "visits", rounds = 2, seed = 7 }}
algorithm = {{ name = "NAME", weighting = "equal", batch_size = 16, learning_rate = 0.2 }}
model.name = "logistic-regression"
protection = {{ name = "plain", min_cohort = 3 }}
[data]
name = "csv"
path = "visits.csv"
site_column = "site"
sites = {json.dumps(SITES)}
patient_column = "patient"
label_column = "label"
labels = [0, 1]
feature_columns = ["age"]
scale = {{ age = [50, 20] }}
impute = "centre"
standardize = false
test_fraction = 0.0
{PRIVACY}"""


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox"])
def test_a_table_of_visits(tmp_path: Path, algorithm: str) -> None:
    rng = np.random.default_rng(3)
    visits = ((site, at // 3) for site in SITES for at in range(60))
    rows = [f"{site},{site}-{who},{rng.integers(20, 90)},{rng.integers(2)}" for site, who in visits]
    (tmp_path / "visits.csv").write_text("\n".join(["site,patient,age,label", *rows]) + "\n")
    (tmp_path / "study.toml").write_text(TABLE.replace("NAME", algorithm))
    out = tmp_path / "out"
    run(Study.load(tmp_path / "study.toml"), out)
    for site in SITES:
        found = events(out, site, "csv")
        assert [type(event) for event in found] == [PoissonSampledGaussian] * 2
        assert {event.adjacency for event in found} == {HIDES}
    text = page(out)
    assert "protecting one patient, relation replace-patient" in text
    assert "all records of a patient at one site are protected" in text
    everything = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"north-1" not in everything  # the names of patients stay where they are


PAIRS = f"""
study = {{ name = "scans", rounds = 1, seed = 1 }}
[algorithm]
name = "feddra"
align_steps = 1
joint_steps = 1
batch_size = 8
learning_rate = 1e-3
loss_batch_size = 4
[model]
name = "vision-language"
size = "tiny"
[data]
name = "image-text"
path = "."
table = "scans.jsonl"
images = "images"
site_column = "site"
sites = {json.dumps(SITES)}
patient_column = "patient"
size = 32
text_length = 16
test_fraction = 0.0
[protection]
name = "plain"
min_cohort = 3
{PRIVACY}"""


def write_scans(folder: Path) -> Study:
    (folder / "images").mkdir()
    rows = []
    for at in range(72):
        (folder / "images" / f"{at}.png").write_bytes(picture(3 * at))
        whose = f"{SITES[at % 3]}-{at // 9}"  # three pairs each
        row = {"image": f"{at}.png", "text": f"scan number {at}", "site": SITES[at % 3], "patient": whose}
        rows.append(json.dumps(row))
    (folder / "scans.jsonl").write_text("\n".join(rows))
    (folder / "study.toml").write_text(PAIRS)
    return Study.load(folder / "study.toml")


def test_pairs_of_images_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(write_scans(tmp_path), out)
    for site in SITES:
        found = events(out, site, "image-text")
        assert [type(event) for event in found] == [Gaussian, *[PoissonSampledGaussian] * 2]
        assert {event.adjacency for event in found} == {HIDES}
    assert "protecting one patient, relation replace-patient" in page(out)


# --- what is refused ---


def test_a_table_that_names_no_patients_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(PAIRS.replace('patient_column = "patient"\n', ""))
    for made in (
        Study.load(tmp_path / "study.toml"),
        Study.parse(TABLE.replace("NAME", "fedavg").replace('patient_column = "patient"\n', "")),
    ):
        with pytest.raises(ConfigError, match=r"^privacy\.adjacency:.*does not say") as refused:
            build(made)
        assert "data.patient_column" in refused.value.remedy


def test_one_s_own_data_set_without_patients_is_refused_at_the_site(tmp_path: Path) -> None:
    pairs = Study.parse(TINY + PRIVACY)
    with pytest.raises(ConfigError, match=r"^privacy\.adjacency:.*does not say"):
        simulate(pairs, out=None, drops=(), observer=SilentObserver())
    named.NAMED[0] = False
    try:
        with pytest.raises(ConfigError, match=r"^privacy\.adjacency:.*does not say"):
            simulate(Study.parse(WARDS + PRIVACY), out=None, drops=(), observer=SilentObserver())
    finally:
        named.NAMED[0] = True


class PatientPairs(ToyPairs):
    """Toy pairs, two of each patient."""

    def site(self, site_id: str) -> ImageTextSite:
        found = super().site(site_id)
        return ImageTextSite(found.train, found.test, tuple(at // 2 for at in range(len(found.train))))


def pairs() -> PatientPairs:
    return PatientPairs(5, 24, 16, 4.0)


def test_one_s_own_pairs_with_patients(tmp_path: Path) -> None:
    assert toy_pairs().site("hospital-1").train_patients is None
    text = (TINY + PRIVACY).replace("tests.algorithms.vlp_case:pairs", f"{__name__}:pairs")
    run(Study.parse(text), tmp_path)
