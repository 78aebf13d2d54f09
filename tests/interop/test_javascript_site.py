"""The second implementation, in JavaScript: it passes the vectors, and is one hospital of three in a study.

It was written from docs/protocol.md and shares no code with secfed; see tests/interop/README.md.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from safetensors.torch import load, load_file

from secfed.crypto.masked.graph import DROPOUT_RATE
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.records.roster_file import read_roster
from secfed.runs.run_folder import MODEL_FILE
from secfed.site.terms import Terms
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.conftest import ROOT
from tests.deploy.deployment_case import POLICY, Deployment, Process
from tests.deploy.simulated import simulated

HERE: Final = Path(__file__).parent / "javascript"
NODE: Final = shutil.which("node")
VECTORS: Final = ROOT / "tests" / "vectors" / "v1"
SCRIPTS: Final = VECTORS.with_name("v1.1")
SITE: Final = "hospital-3"

pytestmark = pytest.mark.skipif(
    NODE is None or not (HERE / "node_modules").is_dir(),
    reason="needs Node and its libraries: npm ci in tests/interop/javascript",
)

# All records of a site are one batch: their order, and so the generator that draws it, does not matter.
STUDY: Final = """\
[study]
name = "plugs"
rounds = 2
seed = 3

[algorithm]
name = "fedavg"
local_epochs = 1
batch_size = 1024
learning_rate = 0.5
weighting = "equal"

[model]
name = "logistic-regression"

[data]
name = "breast-cancer"
sites = 3
partition = "iid"

[protection]
name = "masked"
deadline_s = 3600
"""


def run(*arguments: object) -> None:
    command = [str(NODE), *map(str, arguments)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_it_passes_the_vectors() -> None:
    run("vectors.mjs", VECTORS)


@pytest.mark.parametrize("name", ["site_scripts.json", "sparse_site_scripts.json"])
def test_it_passes_the_scripts_for_a_site(name: str) -> None:
    run("scripts.mjs", SCRIPTS / name)


def test_it_passes_the_scripts_of_closed_sums() -> None:
    run("frames.mjs", SCRIPTS / "closed_scripts.json")


def test_it_passes_the_functions_that_it_has() -> None:
    run("functions.mjs", SCRIPTS / "functions.json")


def test_its_libraries_are_pinned_without_naming_a_registry() -> None:
    lock = json.loads((HERE / "package-lock.json").read_text())
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert all(version[0].isdigit() for version in wanted.values())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert all("integrity" in package for name, package in lock["packages"].items() if name)


def records(terms: Terms) -> dict[str, list[dict[str, Any]]]:
    """Of the hospital, as its own program reads them."""
    algorithm: Any = terms.algorithm
    data = algorithm.site_data(SITE)
    halves = {"train": (data.train_x, data.train_y), "test": (data.test_x, data.test_y)}
    return {
        half: [{"x": x, "label": label} for x, label in zip(xs.tolist(), ys.tolist(), strict=True)]
        for half, (xs, ys) in halves.items()
    }


def run_folder(deployment: Deployment) -> Path:
    return deployment.folder / SITE / "state" / "studies" / "plugs"


def configuration(deployment: Deployment, study: Study) -> Path:
    """What the hospital's administrator writes down: the study as agreed, its files, its own minimums."""
    folder = deployment.folder / SITE
    roster = read_roster(folder / "pinned-roster.json")
    terms = Terms.of(study, roster, SITE)
    (folder / "records.json").write_text(json.dumps(records(terms)))
    algorithm: Any = terms.algorithm
    weight, bias = algorithm.initial
    content = {
        "site": SITE,
        "study": study_id(study),
        "keystream": study.protection.keystream,
        "graph": {"dropout_rate": DROPOUT_RATE} if study.protection.sparse_graph else None,
        "settings": {
            "algorithm": "fedavg",
            "protection": "masked",
            "rounds": study.rounds,
            "sites": 3,
            "privacy": None,
        },
        "address": SiteFolder(folder).address(),
        "proto": str(ROOT / "deploy" / "transport" / "messages.proto"),
        "max_frame_bytes": 1 << 24,
        "identity_key": str(folder / "identity.key"),
        "pinned_roster": str(folder / "pinned-roster.json"),
        "roster_digest": roster.digest.hex(),
        "tls_key": str(folder / "tls.key"),
        "certificate": str(folder / "tls.pem"),
        "ca": str(folder / "ca.pem"),
        "folder": str(run_folder(deployment)),
        "records": str(folder / "records.json"),
        "policy": {"minCohort": 3, "minThreshold": 3},
        "program": {
            "rounds": study.rounds,
            "features": algorithm.initial[weight].shape[1],
            "learningRate": 0.5,
            "weight": weight,
            "bias": bias,
            "bound": study.protection.bound,
            "bits": study.protection.bits,
        },
    }
    path = folder / "javascript.json"
    path.write_text(json.dumps(content, indent=1))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keystream", "graph"), [("chacha20", "complete"), ("aes-256-ctr", "complete"), ("chacha20", "sparse")]
)
def test_it_is_one_of_three_hospitals(keystream: str, graph: str, tmp_path: Path) -> None:
    """Over gRPC, with our aggregator and two of our agents: the model is that of a simulation."""
    (tmp_path / "all").mkdir()
    policy = POLICY.replace("[privacy]\nmax_epsilon", "[privacy]\nrequire = false\nmax_epsilon")
    text = STUDY.replace('name = "masked"', f'name = "masked"\nkeystream = "{keystream}"\ngraph = "{graph}"')
    deployment = Deployment(tmp_path / "all", text, policy=policy)
    study = Study.parse(text)
    command = [str(NODE), str(HERE / "main.mjs"), str(configuration(deployment, study))]
    deployment.agents[SITE] = Process(SITE, command, deployment.folder / f"{SITE}.log")
    deployment.run()

    names = deployment.names
    assert [(what[0], what[1], what[3]) for what in deployment.sums()] == [
        (1, "update", names),
        (2, "update", names),
        (3, "evaluate", names),
    ]
    assert SITE in deployment.verify()
    own = run_folder(deployment) / MODEL_FILE
    assert own.read_bytes() == (deployment.out / MODEL_FILE).read_bytes()

    expected, found = load(simulated(study, tmp_path / "simulated")), load_file(own)
    assert expected.keys() == found.keys()
    # What differs is how each site rounds to fixed point, and float32 against float64.
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) < 1e-5
    scores = [
        json.loads((run / "run.json").read_text())["final"]
        for run in (deployment.out, tmp_path / "simulated")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert "refused" not in (deployment.folder / f"{SITE}.log").read_text()
