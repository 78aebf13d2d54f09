"""Between machines, a study begins with the finished model of an earlier one, whatever is killed.

Compared with the same study in one process, byte for byte. Under masked protection no hospital is given the
file: the first broadcast is what the study names. Under encrypted protection the aggregator has none, and
hospitals find it at home: where an earlier study left it, or where a person put it.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

import pytest

from secfed.deploy.admission.memory import belong_together
from secfed.records.chain_file import verify_file
from secfed.records.roster_file import read_roster
from secfed.records.transcript import SETTINGS, TRANSCRIPT
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE
from secfed.study.study import Study
from secfed.study.warm_start import MODELS_FOLDER
from tests.deploy.deployment_case import POLICY, STUDY, Deployment
from tests.deploy.simulated import model_in, simulated

EARLIER: Final = STUDY.format(rounds=1, sites=3)
START: Final = "earlier/model.safetensors"
CENTRE_POINT: Final = "aggregate: after a reply is recorded"  # of the first broadcast
HOSPITAL_POINT: Final = "site: after contribution noted"


@pytest.fixture
def earlier(tmp_path: Path) -> bytes:
    """The model of a finished study, which lies beside the study file of the next one."""
    simulated(Study.parse(EARLIER), tmp_path / "earlier")
    return (tmp_path / START).read_bytes()


def begins_with(model: bytes, protection: str) -> str:
    named, digest = 'name = "logistic-regression"', hashlib.sha256(model).hexdigest()
    more = f'{named}\nstart = "{START}"\nstart_sha256 = "{digest}"'
    return EARLIER.replace(named, more).replace('"masked"', f'"{protection}"')


def deployment(folder: Path, toml: str, model: bytes) -> Deployment:
    rule = f'[models.logistic-regression]\nstart_sha256 = ["{hashlib.sha256(model).hexdigest()}"]'
    options = ["--silent", "600", "--farewell", "300"]
    return Deployment(
        folder, toml, policy=POLICY.replace("[models.logistic-regression]", rule), options=options
    )


def expected(folder: Path, toml: str) -> bytes:
    (folder / "study.toml").write_text(toml, encoding="utf-8")
    return simulated(Study.load(folder / "study.toml"), folder / "once")


@pytest.mark.slow
def test_masked_with_kills_on_both_sides(tmp_path: Path, earlier: bytes) -> None:
    toml = begins_with(earlier, "masked")
    made, wanted = deployment(tmp_path, toml, earlier), expected(tmp_path, toml)
    hospital = made.agents["hospital-1"]
    made.aggregator.points, hospital.points = [CENTRE_POINT], [HOSPITAL_POINT]
    made.run()
    assert (made.aggregator.deaths, hospital.deaths) == ([CENTRE_POINT], [HOSPITAL_POINT])
    assert model_in(made.out) == wanted
    made.verify()
    roster = read_roster(tmp_path / "centre" / "roster.json")
    for name, key in roster.members:
        (path,) = (tmp_path / name / "state").glob(f"studies/*/{TRANSCRIPT_FILE}")
        (stated,) = [entry.body for entry in verify_file(path, key, TRANSCRIPT) if entry.kind == SETTINGS]
        assert stated["start"] == hashlib.sha256(earlier).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["encrypted", 'masked"\nreveal = "sites'], ids=["encrypted", "closed"])
def test_sums_at_sites_with_the_model_at_home_and_none_at_the_aggregator(
    tmp_path: Path, earlier: bytes, protection: str
) -> None:
    toml = begins_with(earlier, protection)
    made, wanted = deployment(tmp_path, toml, earlier), expected(tmp_path, toml)
    shutil.rmtree(tmp_path / "earlier")  # the study centre's
    for number, name in enumerate(made.names):
        where = f"{MODELS_FOLDER}/public.safetensors" if number else f"studies/earlier/{MODEL_FILE}"
        state = tmp_path / name / "state"
        state.mkdir(mode=0o700)
        belong_together(tmp_path / name, state, anew=False)  # as its agent did when it served that study
        path = state / where
        path.parent.mkdir(parents=True)
        path.write_bytes(earlier)
    made.agents["hospital-1"].points = ["site: after state noted"]
    made.run()
    assert made.agents["hospital-1"].deaths == ["site: after state noted"]
    for name in made.names:
        (path,) = (tmp_path / name / "state").glob(f"studies/plugs-*/{MODEL_FILE}")
        assert model_in(path) == wanted
    made.verify()
