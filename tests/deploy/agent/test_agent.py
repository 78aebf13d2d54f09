"""The agent: it serves what its site permits, over the real link, with training in processes of their own."""

from __future__ import annotations

import json
import stat
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import save
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.deploy.admission.admission import admit, still_permitted
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent import control
from secfed.deploy.agent.agent import Agent
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.policy.absence import HELD_TEXT, PAUSED_TEXT, WAITING_TEXT, Absence
from secfed.deploy.transport.client import CallFailed, refusal_message
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.messages import ANOTHER_STUDY, HelloReply
from secfed.deploy.transport.progress import ANSWERS, now_at_hospital
from secfed.errors import ConfigError, MalformedMessage, PolicyRefused, RangeError, SecfedError
from secfed.records.clock import own_clock
from secfed.site.runtime import SiteStudy
from secfed.study.limits import study_id
from secfed.study.study import Study
from secfed.wire.frames import Task
from tests.deploy import agent_case
from tests.deploy.agent_case import NAMES, TOML, Centre, permit, status
from tests.deploy.link_case import wait_until
from tests.deploy.simulated import simulated


def test_three_agents_give_the_bytes_of_a_simulation(centre: Centre, tmp_path: Path) -> None:
    for name in NAMES:
        centre.start(name, simulated_randomness=True)
    outcomes = centre.complete()
    assert not centre.watched.refusals
    assert [outcome.survivors for outcome in outcomes] == [NAMES, NAMES]
    expected = simulated(centre.study, tmp_path / "simulated")
    assert save({name: value.contiguous() for name, value in centre.model.items()}) == expected
    for name, folder in centre.folders.items():
        content = status(folder)
        assert content["site"] == name
        assert content["totals"]["sums"] == 2
        assert [item["survivors"] for item in content["left"]] == [list(NAMES)] * 2
        assert all(item["bytes_up"] > 0 and item["fields"] for item in content["left"])
        assert stat.S_IMODE((folder.state / STATUS_FILE).stat().st_mode) == 0o600
        work = next((folder.state / "studies").iterdir()) / "work"
        assert [path.name for path in work.iterdir()] == ["position"]
        begun = json.loads((work.parent / "settings.json").read_text())
        assert begun["study"] == study_id(centre.study)
        assert begun["sites"] == list(NAMES)
        wait_until(
            lambda kept=work.parent / "settings.json": json.loads(kept.read_text())["ended_s"] is not None
        )


@pytest.mark.usefixtures("trains_here")
def test_a_study_is_held_until_a_person_approves_it_and_a_paused_agent_takes_nothing(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    permit(folder, "manual")
    centre.start(NAMES[0])
    board = centre.boards[NAMES[0]]
    wait_until(lambda: '"held"' in board.path.read_text())
    wait_until(centre.declined)
    assert "waits for the approval" in centre.declined()
    assert centre.server.presence()[NAMES[0]].absence is Absence.HELD
    control.pause(folder.state)
    Approvals(folder.approvals_path).record("tiny", centre.study.digest(), utc_now())
    Approvals(folder.approvals_path).approve_what(centre.study.digest().hex(), utc_now())
    wait_until(lambda: "paused" in centre.declined())
    assert centre.server.presence()[NAMES[0]].absence is Absence.PAUSED
    wait_until(lambda: '"paused"' in board.path.read_text())
    control.resume(folder.state)
    wait_until(lambda: '"serving"' in board.path.read_text(), 60.0)


def test_local_training_gets_a_seed_that_only_this_agent_knows_unless_it_simulates(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module.TrainingProcess, "start", lambda _: None)  # it never gets to train
    for name in NAMES:
        centre.start(name, simulated_randomness=name == NAMES[2])
    seeds = []
    for name in NAMES:
        wait_until(lambda path=centre.boards[name].path: '"serving"' in path.read_text(), 60.0)
        training = centre.agents[name]._training
        seeds.append(training.job.site_seed)
    assert seeds[2] is None
    assert len({*seeds, centre.study.seed}) == 4


@pytest.mark.parametrize("how", ["paused", "refused"])
def test_a_site_that_takes_no_more_of_a_running_study_is_not_counted_as_there(
    centre: Centre, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the study goes through its rounds in vain, and the other sites pay for each of them."""
    monkeypatch.setattr(agent_module.TrainingProcess, "start", lambda _: None)  # it never gets to train
    name = NAMES[0]
    folder, approvals = centre.folders[name], Approvals(centre.folders[name].approvals_path)
    centre.start(name)
    wait_until(lambda: '"serving"' in centre.boards[name].path.read_text(), 60.0)
    if how == "paused":
        control.pause(folder.state)
    else:
        approvals.refuse_what("tiny", utc_now())
    assert centre.link.present(60.0) == (name,)
    task = Task(study_id(centre.study), 1, 0, "update", b"").encode()
    centre.link.ask("train", {name: task}, lambda *_: None)
    assert [(site, kind) for _, site, kind, _ in centre.watched.refusals] == [(name, "PolicyRefused")]
    assert centre.link.present(60.0) == ()  # at once: the next round waits for its quorum
    wait_until(lambda: f'"{how}"' in centre.boards[name].path.read_text())
    wait_until(lambda: how in centre.declined())
    assert centre.link.present(60.0) == ()
    control.resume(folder.state)
    if how == "refused":
        approvals.approve_what("tiny", utc_now())
    wait_until(lambda: centre.link.present(60.0) == (name,), 60.0)


def test_what_is_offered_must_be_what_it_is_called_and_permitted(centre: Centre) -> None:
    folder, settings = centre.folders[NAMES[0]], TOML.encode()
    named = study_id(centre.study)
    admitted = admit(folder, centre.roster, named, settings, utc_now())
    assert admitted.terms.sites == NAMES
    assert admitted.data.name == "wards"
    with pytest.raises(MalformedMessage, match="digest"):
        admit(folder, centre.roster, named, settings.replace(b"0.1", b"0.2"), utc_now())
    with pytest.raises(MalformedMessage, match="not text"):
        admit(folder, centre.roster, named, b"\xff", utc_now())
    beyond = TOML.replace("batch_size = 64", f"batch_size = 0x{5000 * 'f'}")
    with pytest.raises(ConfigError, match="beyond 64 bits"):  # and not the end of the agent
        admit(folder, centre.roster, named, beyond.encode(), utc_now())

    def offered(text: str) -> None:
        admit(folder, centre.roster, study_id(Study.parse(text)), text.encode(), utc_now())

    with pytest.raises(PolicyRefused, match=r"algorithm\.learning_rate"):
        offered(TOML.replace("learning_rate = 0.1", "learning_rate = 5.0"))
    with pytest.raises(PolicyRefused, match=r"algorithm\.batch_size.*at most 256"):
        offered(TOML.replace("batch_size = 64", f"batch_size = 1{18 * '0'}"))
    with pytest.raises(PolicyRefused, match="not in the roster"):
        offered(TOML.replace("sites = 3", "sites = 4"))
    own = TOML.replace('name = "logistic-regression"', 'name = "os:getcwd"')
    with pytest.raises(ConfigError, match="not permitted here"):
        admit(folder, centre.roster, named, own.encode(), utc_now())
    Approvals(folder.approvals_path).record("tiny", centre.study.digest(), utc_now())
    Approvals(folder.approvals_path).refuse_what(centre.study.digest().hex(), utc_now())
    with pytest.raises(PolicyRefused, match="was refused"):
        still_permitted(folder, centre.study, len(NAMES), utc_now())


def test_a_study_that_the_policy_lets_in_can_be_refused_by_name_with_other_settings_too(
    centre: Centre,
) -> None:
    folder = centre.folders[NAMES[0]]
    approvals = Approvals(folder.approvals_path)

    def offered(text: str = TOML) -> None:
        admit(folder, centre.roster, study_id(Study.parse(text)), text.encode(), utc_now())

    offered()
    (found,) = approvals.all()
    assert (found.digest, found.state) == (centre.study.digest().hex(), ApprovalState.PERMITTED)
    approvals.refuse_what("tiny", utc_now())
    for text in (TOML, TOML.replace("learning_rate = 0.1", "learning_rate = 0.2")):
        with pytest.raises(PolicyRefused, match="was refused"):
            offered(text)
    with pytest.raises(PolicyRefused, match="was refused"):  # also of a study that is running
        still_permitted(folder, centre.study, len(NAMES), utc_now())
    approvals.approve_what("tiny", utc_now())
    offered()


def test_a_damaged_roster_is_refused_without_a_word_about_where_it_is(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    agent = Agent(folder, passphrase=None, board=StatusBoard(folder.state / STATUS_FILE, folder.name))
    (folder.folder / "pinned-roster.json").write_text("{}", encoding="utf-8")
    offer = HelloReply(study_id(centre.study), TOML.encode(), 1 << 20)
    with pytest.raises(ConfigError, match=r"pinned-roster\.json: the pinned roster is damaged") as caught:
        agent._admit(offer)
    refusal = refusal_message("heart", b"", caught.value)
    assert (refusal.kind, refusal.reason) == ("SecfedError", "this site cannot do this now")


@pytest.mark.usefixtures("trains_here")
def test_a_half_written_policy_stops_no_study_and_the_hospital_is_told(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    for name in NAMES:
        centre.start(name)
    wait_until(lambda: status(folder).get("state") == "serving", 60.0)
    assert status(folder)["policy_error"] is None
    folder.policy_path.write_text("[studies", encoding="utf-8")
    outcomes = centre.complete()
    assert [outcome.survivors for outcome in outcomes] == [NAMES, NAMES]
    assert "not valid TOML" in status(folder)["policy_error"]
    shown = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["agent", "status", str(folder.folder)])
    assert shown.exit_code == 0, shown.output
    assert "not valid TOML" in shown.output
    assert "goes on with the last valid policy" in shown.output


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (PolicyRefused(f"study 'x' {HELD_TEXT}", remedy="secfed agent approve 12345678"), "held"),
        (PolicyRefused(PAUSED_TEXT, remedy="secfed agent resume"), "paused"),
        (PolicyRefused(f"study 'x' {WAITING_TEXT}"), "waiting"),
        (PolicyRefused("study 'x' is not permitted at this site"), "refused"),
        (ConfigError("the pinned roster is damaged", remedy="secfed site trust ROSTER"), "failed"),
    ],
)
def test_each_state_has_its_word_and_what_waits_is_no_error(
    centre: Centre, error: SecfedError, word: str
) -> None:
    folder = centre.folders[NAMES[0]]
    agent = Agent(folder, passphrase=None, board=StatusBoard(folder.state / STATUS_FILE, folder.name))
    link: Any = SimpleNamespace(study=study_id(centre.study), refuse=lambda *_: None)
    agent._connected()
    agent._decline(link, error)
    found = status(folder)
    assert (found["state"], found["why"]) == (word, str(error))
    with control.only_agent(folder.state):
        shown = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["agent", "status", str(folder.folder)]).output
    assert f"({word})" in shown
    assert ("Last error" in shown) == (word in ("failed", "refused"))  # also when the study is over
    (now,) = (line for line in shown.splitlines() if line.startswith("Now"))
    assert error.message in now
    if "secfed" in error.remedy:
        assert now.endswith(f"--dir {folder.folder}")


def test_an_agent_whose_site_was_removed_says_so_until_it_is_admitted_again(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    agent = Agent(folder, passphrase=None, board=StatusBoard(folder.state / STATUS_FILE, folder.name))
    agent._disconnected(CallFailed("permission denied: site 'hospital-1' was removed from the roster"))
    assert (status(folder)["state"], status(folder)["connection"]) == ("removed", "failing")
    assert "removed" in now_at_hospital({**status(folder), "running": True})
    assert status(folder)["last_error"] is None
    agent._connected()
    assert (status(folder)["state"], status(folder)["connection"]) == ("idle", "connected")
    agent._disconnected(CallFailed(f"failed precondition: {ANOTHER_STUDY} here"))
    assert status(folder)["last_error"] is None
    agent._disconnected(CallFailed("unavailable"))
    assert status(folder)["state"] == "idle"
    assert status(folder)["last_error"]["text"] == "unavailable"


def test_an_invalid_certificate_makes_an_agent_look_at_its_own_and_at_its_clock(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    board = StatusBoard(folder.state / STATUS_FILE, folder.name)
    agent = Agent(folder, passphrase=None, board=board, now=lambda: utc_now() + timedelta(days=100))
    agent._disconnected(CallFailed("unavailable: CERTIFICATE_VERIFY_FAILED: certificate has expired"))
    told = status(folder)["last_error"]["text"]
    assert "Of this site's own: the certificate expired on" in told
    assert own_clock() in told
    agent._disconnected(CallFailed("unavailable: connection refused"))
    assert own_clock() not in status(folder)["last_error"]["text"]


def test_a_study_that_cannot_be_opened_does_not_end_the_agent(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: Any, **__: Any) -> SiteStudy:
        raise RangeError("a weight is outside its range", remedy="the site's saved state is damaged")

    monkeypatch.setattr(agent_module, "open_site_study", damaged)
    centre.start(NAMES[0])
    wait_until(centre.declined)
    assert centre.declined() == "SecfedError: this site cannot do this now"
    assert centre.threads[NAMES[0]].is_alive()
    assert not centre.errors


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    control.make_state_folder(state)
    assert control.running(state) is None
    with control.only_agent(state):
        assert control.running(state) is not None
        with pytest.raises(ConfigError, match="another agent"), control.only_agent(state):
            pass
    assert control.running(state) is None
    assert not control.stop(state, 1.0)


def test_a_state_folder_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    with pytest.raises(ConfigError, match="other users"):
        control.make_state_folder(state)


@pytest.mark.usefixtures("trains_here")
def test_the_status_says_nothing_of_records(centre: Centre) -> None:
    board_path = centre.folders[NAMES[0]].state / STATUS_FILE
    agent = centre.start(NAMES[0])
    wait_until(lambda: board_path.exists() and '"serving"' in board_path.read_text(), 300.0)
    agent._heard(HelloReply("tiny", b"", 1, waits=ANSWERS, done=1, of=3))
    content = json.loads(board_path.read_text())
    assert content["rounds"] == 1
    assert now_at_hospital({**content, "running": True}) == "waiting for 2 more hospitals (1 of 3 answered)"
    told = "version site pid started_s time_s connection study state round exchange stage rounds working"
    assert set(content) == {
        *told.split(),
        *("waits", "why", "policy_error", "last_error", "last_alarm", "totals", "left"),
    }


@pytest.mark.usefixtures("trains_here")
def test_an_agent_that_takes_long_to_open_a_study_shows_that_it_is_there(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading data may take minutes; a silent hospital would be left out of the round."""
    opening, alive, saw = threading.Event(), threading.Event(), []
    hello, really = GrpcSiteConnection.hello, agent_module.open_site_study

    def counted(self: GrpcSiteConnection) -> HelloReply:
        if opening.is_set():
            alive.set()
        return hello(self)

    def slow(*arguments: Any, **more: Any) -> SiteStudy:
        opening.set()
        saw.append(alive.wait(60))
        opening.clear()
        return really(*arguments, **more)

    quick = ClientLimits(backoff_s=0.05, backoff_cap_s=0.2, heartbeat_s=0.1)
    monkeypatch.setattr(agent_case, "QUICK", quick)
    monkeypatch.setattr(GrpcSiteConnection, "hello", counted)
    monkeypatch.setattr(agent_module, "open_site_study", slow)
    for name in NAMES:
        centre.start(name)
    outcomes = centre.run()
    assert saw
    assert all(saw)
    assert [outcome.survivors for outcome in outcomes] == [NAMES, NAMES]
