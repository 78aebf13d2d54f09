"""A study that resembles one that was begun here: shown, and decided by a person who saw it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.crypto.identity import Roster
from secfed.deploy.admission import near_twins
from secfed.deploy.admission.admission import Admitted, admit, still_permitted
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.decision_recorder import SiteDecisions
from secfed.deploy.agent.agent import Agent
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.policy.sections import DataSet
from secfed.deploy.preflight.study_check import StudyCheck
from secfed.errors import ConfigError, PolicyRefused
from secfed.site.lost_memory import let_policy_decide, note_loss
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.deploy.agent_case import POLICY, TOML, permit
from tests.deploy.centre_case import found_consortium

NAMES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
FIRST = TOML.replace("sites = 3", "sites = 4")
LEFT_OUT = TOML.replace('"tiny"', '"smaller"')  # the same but for its name and the fourth hospital
WIDE = POLICY.replace('["tiny"]', '["*"]') + (
    '[[data]]\nname = "digits"\nsource = "digits"\noptions = "any"\n[models.mlp]\nhidden = "any"\n'
    '[[data]]\nname = "diabetes"\nsource = "diabetes-table"\noptions = "any"\n[models.none]\n'
    '[algorithms.statistics]\nanalyses = "any"\n'
    '[algorithms.fedprox]\nlocal_epochs = "any"\nbatch_size = "any"\nlearning_rate = "any"\nmu = "any"\n'
)
AGES = """
study = { name = "ages", rounds = 1 }
model = { name = "none" }
data = { name = "diabetes-table", sites = 4 }
protection = { name = "masked", max_dropouts = 0 }
algorithm = { name = "statistics", analyses.a = { kind = "histogram", column = "age", bins = 10 } }
"""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Roster]:
    centre, sites = found_consortium(tmp_path_factory.mktemp("consortium"), NAMES)
    roster = centre.roster()
    return sites[NAMES[0]].folder, roster


class Hospital:
    def __init__(self, folder: Path, roster: Roster) -> None:
        self.folder, self.roster = SiteFolder(folder), roster
        self.approvals = Approvals(self.folder.approvals_path)
        self.policy()

    def policy(self, approve: str = "automatic", twins: str = "ask", subtractable: str = "ask") -> None:
        keys = f'[studies]\nnear_twins = "{twins}"\nsubtractable = "{subtractable}"'
        text = WIDE.replace("[studies]", keys)
        permit(self.folder, approve, text)

    def offered(self, text: str) -> Admitted:
        return admit(self.folder, self.roster, study_id(Study.parse(text)), text.encode(), NOW)

    def begins(self, text: str, now: datetime = NOW) -> Admitted:
        """What the agent does with a study before it works."""
        admitted = self.offered(text)
        near_twins.begin(self.folder, admitted.terms, admitted.data, now)
        return admitted

    def is_held(self, text: str) -> bool:
        with pytest.raises(PolicyRefused, match="waits for the approval") as caught:
            self.offered(text)
        # It goes to the study centre, and says nothing of what the study resembles.
        name = Study.parse(text).name
        assert caught.value.message == f"study {name!r} waits for the approval of this site"
        return self.approvals.state(Study.parse(text).digest()) is ApprovalState.HELD

    def shown(self, text: str) -> list[str]:
        found = near_twins.noted(self.folder.state, Study.parse(text).digest().hex())
        return [twin.text for twin in found]

    def secfed(self, *arguments: str) -> tuple[int, str]:
        given = ["agent", *arguments, "--dir", str(self.folder.folder)]
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, given)
        return result.exit_code, result.output


@pytest.fixture
def hospital(tmp_path: Path, consortium: tuple[Path, Roster]) -> Hospital:
    folder, roster = consortium
    shutil.copytree(folder, tmp_path / "site")
    return Hospital(tmp_path / "site", roster)


@pytest.mark.parametrize("approve", ["automatic", "manual"])
def test_a_study_without_one_hospital_waits_for_a_person_who_was_shown_what_it_resembles(
    hospital: Hospital, approve: str
) -> None:
    first = hospital.begins(FIRST)
    near_twins.end(hospital.folder.state, first.terms.study_id, NOW)
    hospital.policy(approve)
    assert hospital.is_held(LEFT_OUT)
    (text,) = hospital.shown(LEFT_OUT)
    assert text == (
        "tiny (ended 2026-03-02): same data set wards, model logistic-regression, algorithm fedavg; "
        "differs in: sites (-hospital-4)"
    )
    code, output = hospital.secfed("status", "--json")
    assert code == 0
    assert [item["near_twins"] for item in json.loads(output)["studies"] if item["name"] == "smaller"] == [
        [text]
    ]
    assert text in hospital.secfed("status")[1]
    code, output = hospital.secfed("approve", "smaller")
    assert code == PolicyRefused.exit_code
    assert text in output
    assert near_twins.WARNING in output
    assert "--near-twin" in output
    assert hospital.is_held(LEFT_OUT)
    code, output = hospital.secfed("approve", "smaller", "--near-twin")
    assert code == 0, output
    assert text in output
    hospital.begins(LEFT_OUT)
    still_permitted(hospital.folder, Study.parse(LEFT_OUT), len(NAMES), NOW)
    assert hospital.shown(LEFT_OUT) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"tiny"', '"other"', "its name only"),
        ("seed = 3", "seed = 4", "study.seed (4, was 3)"),
        ("rounds = 1", "rounds = 2", "study.rounds (2, was 1)"),
        ("learning_rate = 0.1", "learning_rate = 0.10001", "algorithm.learning_rate (0.10001, was 0.1)"),
        ("test_fraction = 0.25", "test_fraction = 0.26", "data.test_fraction (0.26, was 0.25)"),
        ('name = "fedavg"', 'name = "fedprox"\nmu = 1e-9', "algorithm.mu (1e-09, was none); algorithm.name"),
        ('name = "masked"', 'name = "masked"\nbits = 31', "protection.bits (31, was 32)"),
        # Another name can be the same model, so any model is compared.
        ('name = "logistic-regression"', 'name = "mlp"', "model.hidden ([32], was none); model.name"),
    ],
)
def test_other_differences_make_a_near_twin_too(hospital: Hospital, old: str, new: str, says: str) -> None:
    hospital.begins(FIRST)
    assert hospital.is_held(FIRST.replace(old, new))
    (text,) = hospital.shown(FIRST.replace(old, new))
    assert "tiny (begun 2026-03-02)" in text
    assert f"differs in: {says}" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "masked"', 'name = "masked"\ndeadline_s = 60.0'),  # the same study
        ('name = "breast-cancer"', 'name = "digits"'),
    ],
)
def test_the_same_study_and_other_records_are_no_near_twins(hospital: Hospital, old: str, new: str) -> None:
    hospital.begins(FIRST)
    hospital.offered(FIRST.replace(old, new))


def test_an_approval_from_before_an_earlier_study_began_is_not_enough(hospital: Hospital) -> None:
    hospital.policy("manual")
    for text in (FIRST, LEFT_OUT):
        assert hospital.is_held(text)
        assert hospital.shown(text) == []
        hospital.approvals.approve_what(Study.parse(text).name, NOW)
    hospital.begins(FIRST)
    assert hospital.is_held(LEFT_OUT)
    assert len(hospital.shown(LEFT_OUT)) == 1
    hospital.begins(FIRST)  # what has begun goes on
    assert hospital.secfed("approve", "smaller", "--near-twin")[0] == 0
    # Another one begins after the person was shown the first.
    third = FIRST.replace('"tiny"', '"third"')
    assert hospital.is_held(third)
    assert hospital.secfed("approve", "third", "--near-twin")[0] == 0
    hospital.begins(third)
    assert hospital.is_held(LEFT_OUT)
    assert len(hospital.shown(LEFT_OUT)) == 2


def test_a_hospital_can_refuse_near_twins_or_let_its_policy_decide(hospital: Hospital) -> None:
    hospital.begins(FIRST)
    hospital.policy(twins="refuse")
    with pytest.raises(PolicyRefused, match="resembles an earlier one") as caught:
        hospital.offered(LEFT_OUT)
    assert caught.value.keys == ("near_twins",)
    assert "tiny" not in caught.value.message
    hospital.policy(twins="permit")
    hospital.offered(LEFT_OUT)


def test_site_check_says_it_before_a_study_is_offered(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secfed.deploy.preflight.study_check.TrainingProcess.start", lambda _: None)
    hospital.begins(FIRST)
    lines = {item.name: item for item in StudyCheck(hospital.folder, LEFT_OUT.encode(), NOW).checks()}
    assert "sites (-hospital-4)" in lines["near twin"].detail
    assert "--near-twin" in lines["near twin"].remedy


def test_what_cannot_be_compared_stops_new_studies_and_names_the_file(hospital: Hospital) -> None:
    hospital.begins(FIRST)
    (path,) = hospital.folder.state.glob("studies/*/settings.json")
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"settings\.json: cannot be read"):
        hospital.offered(LEFT_OUT)


def test_an_end_that_cannot_be_noted_does_not_end_the_agent(
    hospital: Hospital, caplog: pytest.LogCaptureFixture
) -> None:
    study = hospital.begins(FIRST).terms.study_id
    agent = Agent.__new__(Agent)
    agent._folder, agent._now = hospital.folder, lambda: NOW
    agent._decisions = SiteDecisions(hospital.folder, hospital.folder.identity(None))
    agent._board = MagicMock()
    agent._ends(study)
    (path,) = hospital.folder.state.glob("studies/*/settings.json")
    assert json.loads(path.read_text())["ended_s"] == NOW.timestamp()
    path.write_text("{}")
    agent._ends(study)
    assert "is not noted" in caplog.text
    agent._ends("../outside")


def test_records_under_another_name_of_the_policy_are_the_same_records(
    hospital: Hospital, tmp_path: Path
) -> None:
    hospital.policy(twins="permit")
    offered = hospital.offered(FIRST)

    def named(name: str, path: str | None) -> DataSet:
        section = offered.data.section.model_copy(update={"name": name, "path": path})
        return replace(offered.data, section=section)

    def twins(data: DataSet) -> int:
        return len(near_twins.near_twins(hospital.folder, hospital.offered(LEFT_OUT).terms, data, NOW))

    file = hospital.folder.folder / "wards.csv"
    file.touch()
    (tmp_path / "link.csv").symlink_to(file)
    near_twins.begin(hospital.folder, offered.terms, named("wards", "wards.csv"), NOW)
    assert twins(named("wards", "moved.csv")) == 1
    assert twins(named("other", str(file))) == 1
    assert twins(named("other", str(tmp_path / "link.csv"))) == 1
    assert twins(named("other", "other.csv")) == 0
    assert twins(named("other", None)) == 0


def test_long_differences_are_cut_and_the_newest_twins_shown(hospital: Hospital) -> None:
    hospital.policy(twins="permit")
    for number in range(22):
        hospital.begins(FIRST.replace('"tiny"', f'"n-{number}"'), datetime(2026, 3, 2 + number, tzinfo=UTC))
    offered = hospital.offered(LEFT_OUT)
    found = near_twins.near_twins(hospital.folder, offered.terms, offered.data, NOW)
    assert len(found) == 20
    assert found[0].text.startswith("n-21 (begun 2026-03-23)")
    assert len(near_twins._short("x" * 90)) == 43


def test_a_person_sees_what_is_asked_before_and_after_approving(hospital: Hospital) -> None:
    hospital.policy("manual")
    assert hospital.is_held(FIRST)
    study = Study.parse(FIRST)
    digest = study.digest().hex()
    wanted = ["Purpose", "not stated", f"{study.algorithm.name}, {study.rounds} rounds", "Partners", *NAMES]
    wanted += ["Protection", "masked", "Privacy", digest[:4], digest[-4:]]
    for command in ("show", "approve"):
        code, output = hospital.secfed(command, study.name)
        assert code == 0, output
        assert [word for word in wanted if word not in output] == []
    hospital.begins(FIRST)
    assert not list((hospital.folder.state / "offers").iterdir())
    assert [word for word in wanted if word not in hospital.secfed("show", study.name)[1]] == []


def test_after_a_loss_of_memory_a_person_decides_whatever_the_policy_says(hospital: Hospital) -> None:
    first = hospital.begins(FIRST)
    study = first.terms.study
    make_state_folder(hospital.folder.state)
    note_loss(hospital.folder.state, NOW)
    with pytest.raises(PolicyRefused, match="waits for the approval"):
        still_permitted(hospital.folder, study, 4, NOW)
    assert hospital.is_held(FIRST)
    code, output = hospital.secfed("approve", study.digest().hex())
    assert (code, "has lost part of its memory" in output) == (0, True)
    assert "lost on 2026-03-02" in hospital.secfed("status")[1]
    assert hospital.offered(FIRST)
    still_permitted(hospital.folder, study, 4, NOW)
    other = FIRST.replace('"tiny"', '"other"')
    hospital.policy(twins="permit")
    assert hospital.is_held(other)
    let_policy_decide(hospital.folder.state)
    assert hospital.offered(other)


def test_statistics_that_can_be_subtracted_have_a_rule_of_their_own(hospital: Hospital) -> None:
    hospital.policy(twins="permit")
    hospital.begins(AGES)
    for number in range(21):  # what is harmless does not push the first one out of the list
        hospital.begins(AGES.replace('"ages"', f'"h-{number}"').replace('"age"', '"bmi"'))
    finer = AGES.replace('"ages"', '"finer"').replace("bins = 10", "bins = 11")
    assert hospital.is_held(finer)
    first, second, *_ = hospital.shown(finer)
    assert first.startswith("ages (")
    assert first.endswith("; results can be subtracted, and differ in: cells of age (histogram)")
    assert "subtracted" not in second
    assert hospital.secfed("approve", "finer", "--near-twin")[0] == 0
    hospital.offered(finer)
    fewer = AGES.replace('"ages"', '"fewer"').replace("sites = 4", "sites = 3")
    fewer = fewer.replace(", max_dropouts = 0", "")
    hospital.policy(twins="permit", subtractable="refuse")
    with pytest.raises(PolicyRefused, match="resembles an earlier one") as caught:
        hospital.offered(fewer)
    assert caught.value.keys == ("subtractable",)
    hospital.policy(twins="permit", subtractable="permit")
    hospital.offered(fewer)


def test_what_nobody_was_shown_is_not_approved(hospital: Hospital) -> None:
    hospital.policy("manual")
    assert hospital.is_held(FIRST)
    study = Study.parse(FIRST)
    (hospital.folder.state / "offers" / f"{study.digest().hex()}.json").unlink()
    code, output = hospital.secfed("approve", study.name)
    assert code == PolicyRefused.exit_code
    assert "nothing is kept here of what the study asks for" in output
    assert hospital.is_held(FIRST)  # it asks again, and is kept again
    assert hospital.secfed("approve", study.name)[0] == 0


def test_a_study_with_an_infinite_setting_is_compared_with_later_ones(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Study.identity

    def unbounded(study: Study) -> dict[str, Any]:
        tables = plain(study)
        return tables | {"algorithm": {**tables["algorithm"], "bound": float("inf")}}

    monkeypatch.setattr(Study, "identity", unbounded)
    hospital.begins(FIRST)
    assert hospital.is_held(LEFT_OUT)
    (shown,) = hospital.shown(LEFT_OUT)
    assert "bound" not in shown


def test_another_study_whose_digest_begins_alike_hides_no_twin(hospital: Hospital) -> None:
    hospital.begins(FIRST)
    admitted = hospital.offered(FIRST)
    near_twins.begin(hospital.folder, admitted.terms, admitted.data, NOW)  # its own folder is no other's
    (path,) = hospital.folder.state.glob("studies/*/settings.json")
    table = json.loads(path.read_bytes())
    path.write_text(json.dumps({**table, "study": f"{table['study'][:-48]}{48 * 'f'}"}))
    with pytest.raises(ConfigError, match="belongs to another study"):
        hospital.offered(FIRST)
    with pytest.raises(ConfigError, match="belongs to another study"):
        near_twins.begin(hospital.folder, admitted.terms, admitted.data, NOW)
