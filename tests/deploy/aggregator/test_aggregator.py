"""`secfed aggregate` as a process of its own, over real connections: killed, stopped, resumed, finished."""

from __future__ import annotations

import re
import signal
from importlib.util import find_spec
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from secfed import __version__
from secfed.audit.transcript_check import verify_run
from secfed.cli.app import app
from secfed.deploy.aggregator import aggregator
from secfed.deploy.aggregator.aggregator import Aggregator, Service
from secfed.deploy.transport.signals import Stopper
from secfed.deploy.transport.study_server import Refused, SiteReply
from secfed.errors import ConfigError
from secfed.runs.run_folder import site_folder
from tests.deploy.central_case import TOML
from tests.deploy.centre_case import Centre, events, interrupted
from tests.deploy.simulated import model_in, simulated
from tests.secfed.run_case import scalars

SITES = 3


@pytest.fixture
def centre(tmp_path):
    made = Centre(tmp_path, TOML.format(protection="masked", sites=SITES, rounds=2))
    yield made
    made.close()


def test_killed_and_finished_with_the_bytes_of_a_simulation(centre):
    """Every point at which it can be killed: test_crashes.py."""
    centre.join()
    board, broken = centre.folder / "board", "tensorboard:/dev/null/board"
    tracks = ("--track", f"tensorboard:{board}", "--track", broken) if find_spec("tensorboardX") else ()
    killed = centre.aggregate(*tracks, crash_at="aggregate: after summed is in the transcript:2")
    _, log = killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL, log
    last = centre.aggregate("--json", *tracks)
    shown, log = last.communicate(timeout=300)
    assert last.returncode == 0, log
    seen = events(log)
    assert seen[0]["message"] == "resumed"
    if tracks:
        assert {step for name, step in scalars(board) if name == "metrics/accuracy"} == {1, 2}
        lost = [event for event in seen if event["message"] == "untracked"]
        assert [event["tracker"] for event in lost] == [broken, broken]
        assert "the run goes on" in lost[0]["reason"]
    (told,) = [event for event in seen if event["message"] == "told"]
    assert told["sites"] == sorted(centre.folders)
    # Its hospitals say that they run another version.
    assert told["software"] == dict.fromkeys(sorted(centre.folders), "secfed test")
    warned = {event["site"]: event for event in seen if event["message"] == "version"}
    assert sorted(warned) == sorted(centre.folders)
    for event in warned.values():
        assert (event["software"], event["own"]) == ("secfed test", f"secfed {__version__}")
        assert event["level"].upper() == "WARNING"
    for hospital in centre.hospitals:
        hospital.thread.join(60)  # they were told that the study is finished
        assert not hospital.thread.is_alive()
        assert not hospital.errors
    assert model_in(centre.out) == simulated(centre.study, centre.folder / "simulated")
    assert shown == (centre.out / "run.json").read_text()
    assert len(list((centre.out / "figures").glob("*.svg"))) > 0
    for name, folder in centre.folders.items():
        target = site_folder(centre.out, name)
        target.mkdir(parents=True)
        (target / "transcript.jsonl").write_bytes((folder.folder / "transcript.jsonl").read_bytes())
    verdict = verify_run(centre.out, centre.roster)
    assert not verdict.problems, [str(problem) for problem in verdict.problems]
    assert [len(party.summed) for party in verdict.parties] == [3] * (1 + SITES)


def test_stopped_while_it_waits_for_the_quorum(centre):
    log = interrupted(centre.aggregate(), until='"waiting"')
    assert "start it again with --out" in log
    assert "Traceback" not in log


def refused(centre: Centre, *more: str) -> Result:
    """The command in this process; it must come to nothing."""
    where = ("--consortium", str(centre.consortium.folder), "--out", str(centre.out))
    result = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, ["aggregate", str(centre.study_file), *where, *more]
    )
    assert result.exit_code == ConfigError.exit_code, result.output
    return result


def test_how_many_uploads_are_held_at_a_time_is_the_operators_choice(centre, monkeypatch):
    given = []

    def server(*arguments, **_):
        given.append(arguments[-1])
        raise ConfigError("this test needs no server")

    monkeypatch.setattr(aggregator, "LinkServer", server)
    refused(centre)
    refused(centre, "--uploads-at-a-time", "1")
    refused(centre, "--uploads-at-a-time", "12")
    assert [limits.answers for limits in given] == [None, 1, 12]
    for impossible in ("0", "-1"):
        output = refused(centre, "--uploads-at-a-time", impossible).output
        assert f"--uploads-at-a-time {impossible}: must be 1 or more" in output
        assert "1 needs the least memory" in output
    assert len(given) == 3


def test_a_time_that_is_no_number_is_refused(centre):
    for option in ("--silent", "--farewell", "--patience"):
        assert f"{option} nan: is not a number" in refused(centre, option, "nan").output


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:99999", "127.0.0.1", ":8443", "localhost:https", "127.0.0.1:-1"]
)
def test_an_address_that_grpc_would_read_as_another_one_is_refused(listen):
    with pytest.raises(ConfigError, match=re.escape(f"--listen {listen}: is not HOST:PORT")):
        Service(listen=listen).link_limits()
    assert Service(listen="[::1]:0").link_limits() == Service().link_limits()


@pytest.mark.parametrize("put_right", [True, False])
def test_a_hospital_that_has_failed_has_the_whole_farewell_and_is_then_told_the_end(put_right, monkeypatch):
    """It could not take the model, and destroys the study's secrets when it hears that the study is over."""
    monkeypatch.setattr(aggregator, "_LAST_WORD_S", 0.0)
    finished, informed = [], {"there"} | ({"failed"} if put_right else set())
    seen = {"there": SimpleNamespace(declined=None), "failed": SimpleNamespace(declined="SecfedError: no")}
    served = Aggregator.__new__(Aggregator)
    served._server = SimpleNamespace(
        arrivals=SimpleQueue(),
        finish=lambda last=None: finished.append(last) or b"asked",
        informed=lambda: frozenset(informed),
        presence=lambda: seen,
        sending=frozenset,
    )
    served._central = SimpleNamespace(asked=("there", "failed"), study=SimpleNamespace(rounds=2))
    served._service, served._stopper = Service(farewell_s=0.0), Stopper()
    served._tell = lambda *_, **__: None
    served._say_farewell(b"model")
    everybody = {"there": b"model", "failed": b"model"}
    assert finished == ([everybody] if put_right else [everybody, None])


def test_only_an_answer_to_the_farewell_says_that_a_site_has_the_model():
    """A reply to an earlier request that comes in late must not stand in the transcript as a delivery."""
    farewell, earlier = b"f" * 16, b"e" * 16
    released, told, arrivals = [], [], SimpleQueue()
    for name, request in (("late", earlier), ("there", farewell)):
        arrivals.put(SiteReply(name, request, memoryview(b""), lambda name=name: released.append(name)))
    arrivals.put(Refused("late", earlier, "x", "no longer"))
    arrivals.put(Refused("refusing", farewell, "x", "bad model"))
    served = Aggregator.__new__(Aggregator)
    served._server = SimpleNamespace(arrivals=arrivals)
    served._central = SimpleNamespace(study=SimpleNamespace(rounds=2))
    served._tell = lambda what, **facts: told.append((what, facts["site"], facts["reason"]))
    took = set()
    served._hear(farewell, took)
    assert took == {"there"}
    assert released == ["late", "there"]
    assert told == [("refused", "refusing", "bad model")]
