"""A whole study over Flower's Grid, masked and with closed sums; a real site's folder behind every node."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from secfed.deploy.agent import agent as agent_module
from secfed.deploy.agent.status import STATUS_FILE
from secfed.deploy.aggregator.aggregator import Aggregator, Service
from secfed.deploy.aggregator.queue import QueuedStudy, StudyQueue
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.flower import server_app
from secfed.deploy.transport.signals import Stopper
from secfed.errors import ConfigError
from secfed.records.chain_file import verify_file
from secfed.records.transcript import SUMMED, TRANSCRIPT
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE
from secfed.runs.run_report import RoundReport, RunReport, SilentObserver
from secfed.simulation.dropouts import Dropout
from secfed.study.study import Study
from tests.deploy.agent_case import POLICY, TOML, Agents, permit
from tests.deploy.centre_case import found_consortium
from tests.deploy.flower_case import QUICK, FakeGrid, quick_sockets, run_server_app
from tests.deploy.simulated import model_in, simulated
from tests.deploy.training_here import TrainingHere

NAMES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")
STUDY = TOML.replace("sites = 3", "sites = 4").replace("rounds = 1", "rounds = 2")
CLOSED = STUDY.replace('name = "masked"', 'name = "masked"\nreveal = "sites"')


class Watching(SilentObserver):
    def __init__(self, on_round) -> None:
        self._on_round = on_round

    def round_finished(self, report: RoundReport) -> None:
        self._on_round(report)


class Case(Agents):
    """A consortium on the disk, its agents in threads, and Flower between them."""

    def __init__(self, folder: Path, sockets: Path, toml: str) -> None:
        super().__init__()
        self.folder, self.sockets, self.grid = folder, sockets, FakeGrid()
        self.consortium, self.folders = found_consortium(folder, NAMES)
        self.toml, self.study, self.out = toml, Study.parse(toml), folder / "run"
        self.told: list[tuple[str, dict]] = []
        self.app: threading.Thread | None = None
        for number, name in enumerate(NAMES):
            site = self.folders[name]
            settings = site.folder / "site.toml"
            text = settings.read_text(encoding="utf-8")
            path = sockets / f"{name}.sock"
            assert '# socket = "/run/secfed/agent.sock"' in text
            text = text.replace('# socket = "/run/secfed/agent.sock"', f'socket = "{path}"')
            settings.write_text(text, encoding="utf-8")
            self.folders[name] = SiteFolder(site.folder)
            permit(self.folders[name], policy=POLICY)
            self.grid.add(number + 1, server_app.client_app, path)

    def start(self, name: str, *, once: bool = True) -> None:
        self.serve(self.folders[name], limits=QUICK, poll_s=0.2, once=once, simulated_randomness=True)

    def aggregate(self, observer: SilentObserver | None = None) -> RunReport:
        """`secfed aggregate` and `flwr run`."""
        path = self.sockets / "centre.sock"
        aggregator = Aggregator(
            self.study,
            self.toml,
            self.consortium,
            self.out,
            passphrase=None,
            service=Service(quorum=3, flower_socket=path, silent_s=1.0),
            observer=observer or SilentObserver(),
            tell=lambda event, **facts: self.told.append((event, facts)),
            stopper=Stopper(),
        )
        if self.app is None:
            self.app = run_server_app(self.grid, path)
        return aggregator.run()

    def close(self) -> None:
        if self.app is not None:
            self.app.join(60)
            assert not self.app.is_alive()
        super().close()
        self.grid.close()
        assert not self.errors


@pytest.fixture(params=[STUDY, pytest.param(CLOSED, marks=pytest.mark.slow)], ids=["masked", "closed"])
def case(tmp_path, monkeypatch, request):
    monkeypatch.setattr(agent_module, "TrainingProcess", TrainingHere)
    with quick_sockets(monkeypatch) as sockets:
        made = Case(tmp_path, sockets, request.param)
        yield made
        made.close()


def test_a_study_with_a_hospital_that_refuses_ends_with_the_bytes_of_a_simulation(case):
    """Stopped after its first round and started again, too; the ServerApp waits for it meanwhile."""
    refusing = case.folders[NAMES[3]]
    policy = refusing.policy_path.read_text(encoding="utf-8").replace('names = ["tiny"]', 'names = ["other"]')
    refusing.policy_path.write_text(policy, encoding="utf-8")
    for name in NAMES:
        case.start(name)

    def stop(_report: RoundReport) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.aggregate(Watching(stop))
    report = case.aggregate()
    assert [event for event, _ in case.told if event in ("started", "resumed")] == ["started", "resumed"]
    assert [row.survivors for row in report.rounds] == [NAMES[:3]] * 2
    reads_sums = case.study.protection.traits.aggregator_reads_sums
    stage = "train" if reads_sums else "keys"  # asked first
    assert ("missing", {"round": 2, "site": NAMES[3], "stage": stage}) in case.told
    status = (case.folders[NAMES[3]].state / STATUS_FILE).read_text(encoding="utf-8")
    assert "study 'tiny' is not permitted at this site" in status

    expected = simulated(case.study, case.folder / "simulated", (Dropout(NAMES[3], "train"),))
    case.ended(*NAMES[:3])  # each got the model or has made it, and the news that the study is over
    (told,) = [facts for event, facts in case.told if event == "told"]
    if reads_sums:
        assert model_in(case.out) == expected
        assert told["model"] == list(NAMES[:3])
    else:
        assert not list(case.out.rglob(MODEL_FILE))
        assert not any(row.metrics for row in report.rounds)
    roster = case.consortium.roster()
    for name in NAMES[:3]:
        (model,) = case.folders[name].state.rglob(MODEL_FILE)
        assert model_in(model) == expected
        (path,) = case.folders[name].state.rglob(TRANSCRIPT_FILE)
        entries = verify_file(path, roster.public(name), TRANSCRIPT)
        assert [entry.body["round"] for entry in entries if entry.kind == SUMMED] == [1, 2, 3]


@pytest.fixture
def masked_case(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_module, "TrainingProcess", TrainingHere)
    with quick_sockets(monkeypatch) as sockets:
        made = Case(tmp_path, sockets, STUDY)
        yield made
        made.close()


def two_studies(case: Case) -> dict[str, str]:
    """The texts of two studies which every hospital permits, with agents that serve one after the other."""
    header = 'name = "tiny"\nrounds = 2'
    for name in NAMES:
        policy = POLICY.replace('["tiny"]', '["a", "b"]\nnear_twins = "permit"')
        permit(case.folders[name], policy=policy)
        case.start(name, once=False)
    return {name: STUDY.replace(header, f'name = "{name}"\nrounds = 1') for name in "ab"}


def serve(case: Case, text: str, out: Path, path: Path, **options: Any) -> RunReport:
    return Aggregator(
        Study.parse(text),
        text,
        case.consortium,
        out,
        passphrase=None,
        service=Service(quorum=4, flower_socket=path, **options),
        observer=SilentObserver(),
        tell=lambda event, **facts: case.told.append((event, facts)),
        stopper=Stopper(),
    ).run()


def test_several_studies_have_their_turns_with_one_app_which_ends_with_the_last(masked_case):
    case, studies, runs = masked_case, masked_case.folder / "studies", masked_case.folder / "runs"
    texts, path = two_studies(case), case.sockets / "centre.sock"
    studies.mkdir()
    for name, text in texts.items():
        (studies / f"{name}.toml").write_text(text, encoding="utf-8")
    told = lambda event, **facts: case.told.append((event, facts))  # noqa: E731
    queue = StudyQueue((studies,), runs, lambda _: False, told, Stopper())
    case.app = run_server_app(case.grid, path)

    def turn(one: QueuedStudy, _gives_way: object) -> None:
        serve(case, one.file.read_text("utf-8"), one.out, path, silent_s=1.0, another=queue.has_more)

    queue.run(turn)
    case.app.join(60)
    assert not case.app.is_alive()
    assert [event for event, _ in case.told if event in ("turn", "missing", "failed")] == ["turn"] * 2
    for name, text in texts.items():
        assert model_in(runs / name) == simulated(Study.parse(text), case.folder / f"simulated-{name}")


@pytest.mark.slow
def test_two_aggregators_in_one_federation_end_both(masked_case):
    """Agents change between the two offers, as often as a message of the other study comes."""
    case, apps = masked_case, []
    texts = two_studies(case)
    with ThreadPoolExecutor(2) as pool:
        ended = {}
        for name, text in texts.items():
            path = case.sockets / f"{name}.sock"
            ended[name] = pool.submit(serve, case, text, case.folder / name, path, silent_s=30.0)
            apps.append(run_server_app(case.grid, path))
    for app in apps:
        app.join(60)
        assert not app.is_alive()
    for name, text in texts.items():
        assert [row.survivors for row in ended[name].result().rounds] == [NAMES]
        assert model_in(case.folder / name) == simulated(Study.parse(text), case.folder / f"simulated-{name}")


def test_listening_options_belong_to_grpc(tmp_path):
    with pytest.raises(ConfigError, match="--flower-socket was given"):
        Service(listen="127.0.0.1:1", flower_socket=tmp_path / "a.sock").link_limits()
