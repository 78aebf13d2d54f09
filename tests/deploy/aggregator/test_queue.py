"""Several studies at one aggregator: each has its turn, and a pause or a failure keeps no other from it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.aggregator.queue import QueuedStudy, StudyQueue, _is_of
from secfed.deploy.transport.signals import Stopped, Stopper, StudyPaused
from secfed.errors import ConfigError, DiskFull, LinkError, RoundAborted, StudyStopped
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.deploy import central_case


class Case:
    """Study files in a folder, and a queue whose studies do what a test says."""

    def __init__(self, folder: Path) -> None:
        self.studies, self.out = folder / "studies", folder / "runs"
        self.studies.mkdir()
        self.paused: set[str] = set()
        self.served: list[str] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.acts: dict[str, Callable[[], None]] = {}
        self.stopper = Stopper()
        self.waits: dict[str, float] = {}  # seconds that a study waits in its first turn

    def add(self, name: str, stem: str = "") -> Path:
        path = self.studies / f"{stem or name}.toml"
        path.write_text(f'[study]\nname = "{name}"\n', encoding="utf-8")
        return path

    def queue(self, *sources: Path, patience_s: float = 600.0) -> StudyQueue:
        def tell(event: str, **facts: Any) -> None:
            self.told.append((event, facts))

        paused = self.paused.__contains__
        return StudyQueue(sources or (self.studies,), self.out, paused, tell, self.stopper, patience_s)

    def run(self, *sources: Path) -> None:
        self.queue(*sources).run(self._serve)

    def _serve(self, one: QueuedStudy, gives_way: Callable[[float], bool]) -> None:
        self.served.append(one.name)
        self.acts.get(one.name, lambda: None)()
        if gives_way(self.waits.pop(one.name, 0.0)):
            raise StudyPaused("The study is paused")
        self.end(one.out)

    def end(self, out: Path, kind: str = "closed") -> None:
        out.mkdir(parents=True, exist_ok=True)
        study = f"{out.name}-{'0' * 64}"
        lines = [{"kind": "opened", "body": {"study": study}}, {"kind": kind}]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (out / "transcript.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    made = Case(tmp_path)
    for name in ("alpha", "beta", "gamma"):
        made.add(name)
    monkeypatch.setattr("secfed.deploy.aggregator.queue._LOOK_S", 0.001)
    return made


def test_each_study_has_its_turn_and_a_finished_one_none(case: Case) -> None:
    case.end(case.out / "beta")
    case.end(case.out / "gamma", kind="summed")
    case.acts["alpha"] = lambda: case.add("delta")  # put into the folder while another one is served
    case.run()
    assert case.served == ["alpha", "delta", "gamma"]
    turns = [facts for event, facts in case.told if event == "turn"]
    assert [facts["queued"] for facts in turns] == [["gamma"], ["gamma"], []]
    assert turns[0]["out"] == str(case.out / "alpha")


def test_a_paused_study_gives_way_and_goes_on_when_it_is_resumed(case: Case) -> None:
    case.acts["alpha"] = lambda: case.paused.add("alpha") if case.served == ["alpha"] else None
    case.acts["gamma"] = case.paused.clear
    case.run()
    assert case.served == ["alpha", "beta", "gamma", "alpha"]
    assert [told for told in case.told if told[0] in ("paused", "continued")] == [
        ("paused", {"study": "alpha"}),
        ("continued", {"study": "alpha"}),
    ]


def test_a_study_that_waits_too_long_goes_behind_those_that_can_run(case: Case) -> None:
    case.waits = {"alpha": 601.0, "beta": 599.0}
    case.run()
    assert case.served == ["alpha", "beta", "gamma", "alpha"]
    assert ("gave_way", {"study": "alpha"}) in case.told


def test_another_study_in_the_file_of_a_finished_one_has_its_turn(case: Case) -> None:
    """Where it is refused, as it is without a queue, and not passed over in silence."""
    case.end(case.out / "alpha")
    case.add("alpha-2", stem="alpha")
    case.run()
    assert case.served == ["alpha-2", "beta", "gamma"]
    text = central_case.TOML.format(rounds=1, sites=3, protection="masked")
    study = Study.parse(text)
    assert _is_of(study_id(study), text, study.name)
    assert not _is_of(study_id(study), text.replace("batch_size = 64", "batch_size = 32"), study.name)


def test_with_nothing_else_to_do_a_study_waits_on(case: Case) -> None:
    case.paused |= {"beta", "gamma"}
    queue = case.queue()
    gives_way = queue._gives_way(queue.studies()[0], set(), 0)
    assert not gives_way(10_000.0)
    case.add("delta")  # put there while alpha waits
    assert gives_way(10_000.0)
    case.end(case.out / "delta")
    assert not gives_way(10_000.0)
    case.paused.remove("gamma")
    assert gives_way(10_000.0)
    assert not gives_way(10.0)


@pytest.mark.parametrize(
    ("patience", "turns"), [(5.0, [5, 10, 20, 40]), (400.0, [400, 600]), (900.0, [900, 900])]
)
def test_turns_too_short_to_open_a_study_grow_up_to_ten_minutes(
    case: Case, patience: float, turns: list[int]
) -> None:
    queue = case.queue(patience_s=patience)
    for before, seconds in [*enumerate(turns), (5000, max(600, turns[0]))]:
        gives_way = queue._gives_way(queue.studies()[0], set(), before)
        assert not gives_way(seconds)
        assert gives_way(seconds + 1)


def test_paused_studies_are_waited_for_and_ctrl_c_ends_the_wait(case: Case) -> None:
    case.paused |= {"alpha", "beta", "gamma"}
    looks = 0

    def look(name: str) -> bool:
        nonlocal looks
        looks += 1
        case.stopper.asked = looks > 9
        return name in case.paused

    queue = StudyQueue((case.studies,), case.out, look, lambda *_, **__: None, case.stopper)
    with pytest.raises(Stopped):
        queue.run(case._serve)
    assert not case.served


@pytest.mark.parametrize("failure", [ConfigError("bad"), RoundAborted("no sum"), StudyStopped("stopped")])
def test_a_study_that_fails_keeps_no_other_from_its_turn(case: Case, failure: Exception) -> None:
    def fail() -> None:
        raise failure

    case.acts["alpha"] = fail
    with pytest.raises(type(failure)) as caught:
        case.run()
    assert caught.value is failure
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert "fail" not in frames  # they would hold the run, its model and its files
    assert case.served == ["alpha", "beta", "gamma"]
    assert ("failed", {"study": "alpha", "reason": str(failure)}) in case.told


def test_a_full_disk_ends_the_wait_for_paused_studies(case: Case) -> None:
    """Started again, it would go on with the study that met it; waiting on, nobody would."""
    case.paused.add("beta")

    def fails() -> None:
        raise DiskFull("No space left on device")

    case.acts["alpha"] = fails
    with pytest.raises(DiskFull):
        case.run()
    assert case.served == ["alpha", "gamma"]


def test_without_its_address_an_aggregator_serves_nothing(case: Case) -> None:
    def fail() -> None:
        raise LinkError("cannot listen")

    case.acts["alpha"] = fail
    with pytest.raises(LinkError):
        case.run()
    assert case.served == ["alpha"]


def test_a_single_study_has_the_folder_to_itself_and_is_served_again_when_it_is_over(case: Case) -> None:
    case.end(case.out)
    case.run(case.studies / "alpha.toml")
    assert case.served == ["alpha"]
    (one,) = case.queue(case.studies / "alpha.toml").studies()
    assert one.out == case.out


def test_what_cannot_be_queued_is_refused_before_anything_is_served(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        case.queue(case.studies / "none.toml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no study is there"):
        case.queue(tmp_path / "empty")
    (tmp_path / "alpha.toml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="would share the folder"):
        case.queue(case.studies, tmp_path / "alpha.toml")
    named = case.add("heart-2", stem="another-file")
    assert [one.name for one in case.queue(named, case.studies / "alpha.toml").studies()] == [
        "heart-2",
        "alpha",
    ]
