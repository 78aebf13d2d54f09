"""Vision-language studies between machines: robust weights, alignment modules and teachers survive a kill.

A site of FedDRA keeps its robust weight from exchange to exchange, a site of FedRGB its own aligner, too. If
a restart lost them, it would go on with other numbers: the bytes of the model would not be the simulation's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from safetensors.torch import save

from secfed.deploy.agent import agent
from secfed.records.roster_file import read_roster
from secfed.runs.run_folder import TRANSCRIPT_FILE, study_folder
from secfed.study.study import Study
from tests.algorithms import vlp_case
from tests.deploy.agent_case import Centre
from tests.deploy.deployment_case import Deployment, sums
from tests.deploy.simulated import model_in, simulated
from tests.deploy.training_here import TrainingHere

NAMES: Final = tuple(f"hospital-{number}" for number in range(1, 6))
VICTIM: Final = "hospital-3"

STUDY: Final = """\
[study]
name = "xrays"
rounds = 2
seed = 5

[algorithm]
batch_size = 8
learning_rate = 1e-3
loss_batch_size = 8
evaluation_batch = 8
device = "cpu"
{algorithm}

[model]
name = "vision-language"
size = "tiny"

[data]
name = "chest-synthetic"
sites = 5
train = 24
test = 8
size = 16

[protection]
name = "masked"
threshold = 4
deadline_s = 3600
{privacy}
"""
FEDDRA: Final = 'name = "feddra"\nalign_steps = 1\njoint_steps = 2\nrho = 0.3\n'
FEDRGB: Final = 'name = "fedrgb"\nwarmup_steps = 1\nguided_steps = 2\nteacher_steps = 2\nrho = 0.3\n'
PRIVACY: Final = """
[privacy]
unit = "group"
group_size = 4
epsilon = 8.0
delta = 1e-4
metrics = "unprotected"
accountant = "rdp"
"""
POLICY: Final = """\
approve = "automatic"

[studies]
names = ["xrays"]

[protection]
names = ["masked"]
min_threshold = 4
kept_state = "permit"

[privacy]
require = false
max_epsilon = 8.0
max_delta = 1e-4
metrics = ["unprotected"]

[algorithms.{algorithm}]
batch_size = {{ max = 64 }}
learning_rate = {{ max = 0.01 }}
rho = {{ max = 1.0 }}
loss_batch_size = {{ min = 8 }}
evaluation_batch = {{ min = 8 }}
{steps}

[models.vision-language]
size = ["tiny"]

[[data]]
name = "chest"
source = "chest-synthetic"
options = "any"

[[data.budget]]
epsilon = 20.0
delta = 1e-4
"""
# In the order in which they come by, in FedDRA's exchanges. Named in secfed/site/durable_store.py,
# journal.py.
POINTS: Final = (
    "site: before contribution noted",  # weights: the loss was measured, and is lost
    "site: after secrets erased",
    "site: before contribution noted",  # align: trained with a weight that an earlier process was told
    "site: after unmask journalled",
    "site: before contribution noted",  # joint
    "site: after upload journalled",
    "site: before contribution noted",  # weights of round 2: they move on from what earlier processes kept
    "site: after contribution noted",
    "site: before contribution noted",
)
KINDS: Final = {
    "feddra": (FEDDRA, "", "align_steps = { max = 5 }\njoint_steps = { max = 5 }"),
    "feddra-private": (FEDDRA, PRIVACY, "align_steps = { max = 5 }\njoint_steps = { max = 5 }"),
    "fedrgb": (
        FEDRGB,
        "",
        "warmup_steps = { max = 5 }\nguided_steps = { max = 5 }\nteacher_steps = { max = 5 }",
    ),
}


def totals(path: Path, key: bytes | None = None) -> list[tuple[Any, ...]]:
    """The sums of a transcript, with the digests of their totals; without a key, the aggregator's."""
    return sums(path, key or read_roster(path.parent / "roster.json").aggregator, "totals_digest")


# In threads, with a toy in place of the network: quick, and every exchange is there.


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Centre]:
    monkeypatch.setattr(agent, "TrainingProcess", TrainingHere)
    toy = vlp_case.TINY.replace('"plain"', '"masked"').replace("rounds = 3", "rounds = 2")
    case = "tests.algorithms.vlp_case:"
    policy = POLICY.replace("xrays", "vlp-tiny").replace('approve = "automatic"', 'approve = "{approve}"')
    policy = policy.replace("{algorithm}", '"feddra"').replace("{steps}", "")
    policy = policy.replace("vision-language", f'"{case}toy"').replace('size = ["tiny"]', "")
    policy = policy.replace('"chest-synthetic"', f'"{case}pairs"')
    for name in ("align_steps", "joint_steps", "loss_batches"):
        policy = policy.replace("rho =", f'{name} = "any"\nrho =', 1)
    made = Centre(tmp_path, toy, policy=policy.replace("max = 0.01", "max = 0.1"), names=NAMES)
    yield made
    made.close()


def test_five_agents_give_the_bytes_of_a_simulation(centre: Centre, tmp_path: Path) -> None:
    for name in NAMES:
        centre.start(name, simulated_randomness=True)
    outcomes = centre.complete()
    assert not centre.watched.refusals
    assert [len(outcome.sums) for outcome in outcomes] == [3, 3, 1]  # weights, align, joint; evaluation
    model = save({name: value.contiguous() for name, value in centre.model.items()})
    assert model == simulated(centre.study, tmp_path / "simulated")
    expected = [digest for _, _, digest, _ in totals(tmp_path / "simulated" / TRANSCRIPT_FILE)]
    for name, key in centre.roster.members:
        path = study_folder(centre.folders[name].state, centre.terms.study_id) / TRANSCRIPT_FILE
        assert [digest for _, _, digest, _ in totals(path, key)] == expected
    assert len(expected) == 7


# In processes of their own, with the real network.


def run(folder: Path, kind: str, points: tuple[str, ...] = ()) -> None:
    """A study through the command line; one hospital dies at each of these points, and is started again."""
    algorithm, privacy, steps = KINDS[kind]
    text = STUDY.format(algorithm=algorithm, privacy=privacy)
    policy = POLICY.format(algorithm=kind.partition("-")[0], steps=steps)
    folder.mkdir()
    deployment = Deployment(
        folder, text, sites=len(NAMES), policy=policy, options=["--silent", "600", "--farewell", "300"]
    )
    victim = deployment.agents[VICTIM]
    victim.points = list(points)
    deployment.run()
    assert (victim.deaths, victim.points) == (list(points), [])
    expected = folder / "simulated"
    assert model_in(deployment.out) == simulated(Study.parse(text), expected)
    aggregator = read_roster(folder / "centre" / "roster.json").aggregator
    found = totals(deployment.out / TRANSCRIPT_FILE, aggregator)
    assert found == totals(expected / TRANSCRIPT_FILE)
    assert all(survivors == NAMES for *_, survivors in found)
    deployment.verify()


@pytest.mark.slow
def test_feddra_between_processes_gives_the_bytes_of_a_simulation(tmp_path: Path) -> None:
    run(tmp_path / "all", "feddra")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hospital_killed_in_every_exchange_loses_nothing(tmp_path: Path, kind: str) -> None:
    run(tmp_path / "all", kind, POINTS)
