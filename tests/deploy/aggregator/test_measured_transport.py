"""A run over real connections in one process: quorum, a hospital that is away and comes back, Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from secfed.deploy.aggregator import measured_transport
from secfed.deploy.aggregator.aggregator import Service, _check_space, _quorum
from secfed.deploy.aggregator.measured_transport import MeasuredTransport
from secfed.deploy.aggregator.study import CentralStudy
from secfed.deploy.policy.absence import Absence
from secfed.deploy.transport import client as serving
from secfed.deploy.transport.signals import Stopped, Stopper, StudyPaused
from secfed.deploy.transport.study_server import Presence
from secfed.errors import ConfigError, DiskFull, RosterError
from secfed.runs.run_report import RoundReport, RunReport, SilentObserver
from secfed.study.study import Study
from tests.deploy.central_case import TOML, Hospitals, LocalCarrier
from tests.deploy.link_case import Consortium, consortium, wait_until


class Watching(SilentObserver):
    """Calls back when something happens."""

    def __init__(self) -> None:
        self.on_stage: Callable[[int, str, int], None] = lambda *_: None
        self.on_round: Callable[[RoundReport], None] = lambda _: None

    def stage(self, round_number: int, exchange: str, stage: str, done: int, total: int) -> None:
        self.on_stage(round_number, stage, done)

    def round_finished(self, report: RoundReport) -> None:
        self.on_round(report)


class Case:
    """Hospitals, a link to them, and the aggregator's run."""

    def __init__(self, c: Consortium, hospitals: Hospitals, quorum: int) -> None:
        self.c, self.hospitals, self.quorum = c, hospitals, quorum
        self.observer, self.stopper = Watching(), Stopper()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.steps: list[int] = []

    def count_as_there(self) -> None:
        """Who has called once counts as there: how fast this machine is decides nothing."""
        presence = self.c.server.presence

        def there() -> dict[str, Presence]:
            return {
                name: replace(seen, calling=seen.calling or seen.silent_s is not None)
                for name, seen in presence().items()
            }

        self.c.server.presence = there  # type: ignore[method-assign]

    def connect(self, *names: str) -> None:
        for name in names:
            self.c.run(name, lambda asked, name=name: self.hospitals.handle(name, asked.frame))

    def tell(self, event: str, **facts: Any) -> None:
        self.told.append((event, facts))

    def carrier(self, log: Any) -> MeasuredTransport:
        return MeasuredTransport(
            self.c.server,
            log,
            self.observer,
            self.tell,
            self.stopper,
            deadline_s=300.0,
            quorum=self.quorum,
            silent_s=1.0,
            wait_for_result=False,
            after_step=lambda: self.steps.append(len(self.told)),
        )

    def run(self) -> RunReport:
        return self.hospitals.run(self.observer, self.carrier)


@contextmanager
def case(folder, *, quorum: int = 3, **study: Any) -> Iterator[Case]:
    hospitals = Hospitals(folder, **study)
    with consortium(sites=hospitals.names) as c:
        over = Case(c, hospitals, quorum)
        over.count_as_there()
        yield over


def test_the_model_is_that_of_an_undisturbed_run_and_bytes_are_counted(tmp_path):
    expected = Hospitals(tmp_path / "expected", rounds=1)
    expected.run()
    with case(tmp_path / "carried", quorum=4, rounds=1) as over:
        over.connect(*over.hospitals.names)
        report = over.run()
        assert over.hospitals.model() == expected.model()
        (row,) = report.rounds
        assert row.survivors == row.asked == over.hospitals.names
        assert 0 < row.bytes_up_per_site.mean <= row.bytes_up_per_site.max
        assert row.bytes_down_per_site.max > 0
        assert row.seconds["train"] > 0
        assert row.seconds["carry"] > 0
        assert over.steps


def test_an_exchange_gives_way_before_it_begins_and_no_hospital_is_asked(tmp_path):
    with case(tmp_path, rounds=1) as over:
        over.connect("hospital-1")
        waited: list[float] = []
        carrier = over.carrier(None)
        carrier.gives_way = lambda waited_s: waited.append(waited_s) or len(waited) > 1
        with pytest.raises(StudyPaused):
            carrier.ask("train", dict.fromkeys(over.hospitals.names, b"x"), lambda *_: None)
        assert waited[0] < 1.0 <= waited[1]
        assert not over.hospitals.handled


def test_a_question_within_a_stage_waits_for_nobody(tmp_path):
    with case(tmp_path, rounds=1) as over:
        carrier = over.carrier(None)
        carrier.begins, carrier.deadline_s = False, 0.0
        carrier.ask("train", {"hospital-1": b"x"}, lambda *_: None)  # nobody is there, and it ends
        assert ("missing", {"round": 1, "site": "hospital-1", "stage": "train"}) in over.told


class Noting(LocalCarrier):
    """Notes who is asked, and whether the quorum would be waited for; one site is away at a time."""

    def __init__(self, hospitals: Hospitals, log: Any) -> None:
        self.hospitals, self.begins = hospitals, True
        self.asked_whom: list[tuple[int, str, tuple[str, ...], bool]] = []
        super().__init__(hospitals, log)

    def ask(self, stage: str, requests: Any, on_reply: Any) -> None:
        if stage in ("keys", "train"):
            self.asked_whom.append((self.round, stage, tuple(requests), self.begins))
        super().ask(stage, requests, on_reply)

    def start_round(self, number: int) -> None:
        self.hospitals.down = {1: {"hospital-4": {"result"}}, 2: {"hospital-3": {"train"}}}.get(number, {})
        super().start_round(number)


def test_who_lags_behind_is_asked_again_and_nobody_else_nor_waited_for(tmp_path):
    hospitals = Hospitals(tmp_path, protection_name="closed", rounds=2)
    made: list[Noting] = []
    report = hospitals.run(carrier=lambda log: made.append(Noting(hospitals, log)) or made[0])
    everybody, late = hospitals.names, ("hospital-4",)
    assert [asked[1:] for asked in made[0].asked_whom if asked[0] == 2] == [
        ("keys", everybody, True),
        ("train", everybody, True),
        ("train", late, False),  # the sum that it missed
        ("train", late, False),
    ]
    assert [asked[1:] for asked in made[0].asked_whom if asked[0] == 1] == [
        ("keys", everybody, True),
        ("keys", ("hospital-1",), False),
        ("keys", everybody[1:], False),
        ("train", everybody, True),
    ]
    assert report.rounds[1].survivors == ("hospital-1", "hospital-2", "hospital-4")


def test_nothing_is_asked_before_the_quorum_is_there(tmp_path):
    with case(tmp_path, rounds=1) as over:
        over.connect("hospital-1", "hospital-2")
        done: list[RunReport] = []
        thread = threading.Thread(target=lambda: done.append(over.run()), daemon=True)
        thread.start()
        wait_until(lambda: any(event == "waiting" and len(facts["sites"]) == 2 for event, facts in over.told))
        assert not over.hospitals.handled
        waited = time.perf_counter()
        time.sleep(1.0)
        waited = time.perf_counter() - waited
        over.connect("hospital-3", "hospital-4")
        thread.join(300)
        assert done
        assert done[0].rounds[0].survivors
        seconds = done[0].rounds[0].seconds
        assert seconds["wait"] >= waited
        assert seconds["server"] < sum(seconds.values()) - waited
        assert "quorum" in [event for event, _ in over.told]


def test_a_hospital_that_is_away_in_one_round_is_in_the_next(tmp_path):
    with case(tmp_path) as over:
        over.connect("hospital-1", "hospital-2", "hospital-3")
        back: list[str] = []

        def on_round(report: RoundReport) -> None:
            if not back:
                back.append("hospital-4")
                over.connect("hospital-4")
                wait_until(lambda: over.c.server.presence()["hospital-4"].calling)

        over.observer.on_round = on_round
        report = over.run()
        first, second = report.rounds
        assert first.survivors == over.hospitals.names[:3]
        assert first.drops == (("hospital-4", "train"),)
        assert ("missing", {"round": 1, "site": "hospital-4", "stage": "train"}) in over.told
        assert second.survivors == over.hospitals.names
        over.hospitals.check_transcripts()


@pytest.mark.parametrize("words", ["the site's", "of its own"])
def test_a_hospital_that_refuses_is_recorded_with_a_code_and_not_its_words(tmp_path, monkeypatch, words):
    expected = "the message belongs to another roster"
    if words == "of its own":  # in place of a code
        monkeypatch.setattr(serving, "outgoing", lambda _error: ("RosterError", "patient 4711 has none"))
        expected = "this site cannot do this now"
    with case(tmp_path, quorum=4, rounds=1) as over:
        over.connect("hospital-1", "hospital-2", "hospital-3")

        def refuse(_: Any) -> bytes:
            raise RosterError("another roster is pinned in /srv/patient-4711")

        over.c.run("hospital-4", refuse)
        report = over.run()
        assert report.rounds[0].survivors == over.hospitals.names[:3]
        (refusal,) = [facts for event, facts in over.told if event == "refused" and facts["round"] == 1]
        assert refusal["reason"] == expected
        recorded = (over.hospitals.out / "transcript.jsonl").read_bytes()
        assert expected.encode() in recorded
        assert b"patient" not in recorded


@pytest.mark.parametrize("stage", ["train", "advertise", "mask", "unmask", "result"])
def test_stopped_in_any_stage_and_resumed(tmp_path, stage):
    expected = Hospitals(tmp_path / "expected", rounds=1)
    expected.run()
    with case(tmp_path / "stopped", quorum=4, rounds=1) as over:
        over.connect(*over.hospitals.names)

        def on_stage(number: int, name: str, done: int) -> None:
            if (name, done) == (stage, 2):
                over.stopper._on_signal(2, None)

        over.observer.on_stage = on_stage
        with pytest.raises(Stopped):
            over.run()
        over.stopper, over.observer = Stopper(), Watching()
        over.run()
        assert over.hospitals.model() == expected.model()
        over.hospitals.check_transcripts()


def test_a_signal_while_a_reply_is_taken_waits_until_it_is_taken():
    stopper, taken = Stopper(), []

    def take() -> None:
        with stopper.waiting():
            with stopper.working():
                stopper._on_signal(15, None)
                taken.append("whole")
            taken.append("never")

    for _ in range(2):
        with pytest.raises(Stopped):
            take()
    assert taken == ["whole"]


def test_a_signal_while_a_refusal_is_written_waits_until_it_is_written(tmp_path):
    written = []
    with case(tmp_path) as over:

        class Slow:
            def append(self, _kind: str, body: Any) -> None:
                over.stopper._on_signal(15, None)
                written.append(body["site"])

        with pytest.raises(Stopped), over.stopper.waiting():
            over.carrier(Slow()).refused("train", "hospital-1", "RosterError", "why")
    assert written == ["hospital-1"]


def test_a_signal_while_nothing_is_waited_for_stops_at_the_next_wait():
    stopper = Stopper()
    stopper._on_signal(2, None)
    with pytest.raises(Stopped), stopper.waiting():
        raise AssertionError


# --- what is refused before anything is opened -----------------------------------------------------------


def test_sites_of_the_study_are_asked_or_those_that_are_named(tmp_path):
    h = Hospitals(tmp_path)
    more, fewer = (Study.parse(TOML.format(protection="masked", sites=n, rounds=1)) for n in (5, 3))
    with pytest.raises(RosterError, match="hospital-5"):
        CentralStudy(more, h.roster)
    with pytest.raises(RosterError, match="hospital-5: removed from the roster"):
        CentralStudy(more, h.roster, removed=["hospital-5", "hospital-1"])
    central = CentralStudy(fewer, h.roster)  # although the roster has more
    assert central.asked == central.names == h.names[:3]
    asked = CentralStudy(h.study, h.roster, ("hospital-4", "hospital-1", "hospital-2")).asked
    assert asked == ("hospital-1", "hospital-2", "hospital-4")
    with pytest.raises(ConfigError, match="no site 'x'"):
        CentralStudy(h.study, h.roster, ("x",))
    with pytest.raises(ConfigError, match="min_cohort"):
        CentralStudy(h.study, h.roster, ("hospital-1", "hospital-2"))


def test_a_disk_on_which_the_replies_do_not_fit_is_refused(tmp_path):
    _check_space(tmp_path / "new" / "run", 1000)
    with pytest.raises(DiskFull, match="MB are free"):  # 74: its unit starts it again
        _check_space(tmp_path / "new" / "run", 1 << 60)


def test_the_key_holder_cannot_be_left_out(tmp_path):
    pytest.importorskip("tenseal")
    h = Hospitals(tmp_path, protection_name="encrypted")
    with pytest.raises(ConfigError, match="leaves out hospital-1"):
        CentralStudy(h.study, h.roster, h.names[1:])


def test_sites_that_may_be_missing_are_not_waited_for(tmp_path):
    """``protection.max_dropouts`` counts in every exchange; who is left out on purpose is missing, too."""
    h = Hospitals(tmp_path)
    study = h.study.replace("protection.max_dropouts", 0)
    central = CentralStudy(study, h.roster)
    assert _quorum(central, Service().quorum) == central.threshold(4) == 4
    assert central.threshold(3) == 3
    with pytest.raises(ConfigError, match=r"protection\.max_dropouts is 0"):
        CentralStudy(study, h.roster, h.names[1:])


def test_the_quorum_is_between_the_least_cohort_and_all(tmp_path):
    h = Hospitals(tmp_path)
    assert _quorum(h.central, Service().quorum) == 3
    assert _quorum(h.central, 4) == 4
    for impossible in (2, 5):
        with pytest.raises(ConfigError, match="--quorum"):
            _quorum(h.central, impossible)


@pytest.mark.parametrize("last", ["failed", "waiting", None])
def test_who_refused_has_a_moment_to_say_that_it_has_failed(last, monkeypatch):
    """An agent says so right after its refusal; one that does not stays there, and would refuse again."""
    monkeypatch.setattr(measured_transport, "_SAYS_S", 0.3)
    said = {"a": Absence.FAILED, "b": None}

    def presence() -> dict[str, Any]:
        seen = {site: SimpleNamespace(absence=state) for site, state in said.items()}
        said["b"] = last and Absence(last)
        return seen

    carrier = MeasuredTransport.__new__(MeasuredTransport)
    carrier.server, carrier.stopper = SimpleNamespace(presence=presence), Stopper()
    assert set(carrier.failed({"a", "b"})) == ({"a", "b"} if last == "failed" else {"a"})
