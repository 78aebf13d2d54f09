"""Studies under encrypted protection: replayed states, late and diverging sites, who holds which key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tenseal", reason="encrypted protection needs the extra 'he'")

import torch
from safetensors.torch import load_file

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import Summed
from secfed.crypto.encrypted.server import UPLOAD, FrameFormat
from secfed.crypto.keystream import RoundingStream
from secfed.errors import (
    ConfigError,
    InconsistentView,
    RoundAborted,
    SecfedError,
    WrongState,
)
from secfed.runs.run_folder import prepare
from secfed.runs.run_report import RunReport, SilentObserver
from secfed.server.opened_rounds import OpenedRounds
from secfed.simulation.dropouts import Dropout
from secfed.simulation.simulate import simulate
from secfed.simulation.transport import SimulatedTransport
from secfed.site import build
from secfed.site.opening_session import OpeningSession
from secfed.study.study import Study
from secfed.wire.frames import Notice, decode
from secfed.wire.layout import Exchange
from secfed.wire.transport import OnReply
from tests.crypto.encrypted_case import added, resigned
from tests.secfed import durable_case
from tests.secfed.durable_case import Consortium

STUDY = """
[study]
name = "sealed"
rounds = 3
seed = 5
[algorithm]
name = "fedavg"
batch_size = 64
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 4
partition = "iid"
[protection]
name = "encrypted"
bits = 20
"""


def run(plan: Study, out: Path | None, *drops: str) -> RunReport:
    if out is not None:
        prepare(out, overwrite=False)
    return simulate(plan, out=out, drops=[Dropout.parse(text) for text in drops], observer=SilentObserver())


def model_bytes(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


@pytest.fixture
def study() -> Study:
    return Study.parse(STUDY)


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> dict[str, OpeningSession]:
    """The sites of the next simulation, by name."""
    made: dict[str, OpeningSession] = {}

    class Noted(OpeningSession):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made[self._identity.name] = self

    monkeypatch.setattr(build, "OpeningSession", Noted)
    return made


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same study under masked protection."""
    folder = tmp_path_factory.mktemp("masked") / "masked"
    run(Study.parse(STUDY).replace("protection.name", "masked"), folder)
    return folder


@pytest.mark.parametrize("key_mode", ["public", "symmetric"])
def test_both_key_modes_give_the_masked_model(
    tmp_path: Path, study: Study, exact: Path, key_mode: str
) -> None:
    run(study.replace("protection.key_mode", key_mode), tmp_path / "encrypted")
    assert model_bytes(tmp_path / "encrypted") == model_bytes(exact)


@pytest.mark.parametrize("drop", ["hospital-2@train:1", "hospital-2@mask:2", "hospital-1@train:2"])
def test_a_site_that_was_away_takes_what_it_missed_and_changes_nothing_for_the_others(
    tmp_path: Path, study: Study, sites: dict[str, OpeningSession], drop: str
) -> None:
    run(study, tmp_path / "encrypted", drop)
    run(study.replace("protection.name", "plain"), tmp_path / "plain", drop)
    assert model_bytes(tmp_path / "encrypted") == model_bytes(tmp_path / "plain")
    models = [site.replica.model() for site in sites.values()]
    assert {site.sums for site in sites.values()} == {4}
    assert all(torch.equal(models[0][name], model[name]) for model in models for name in model)


def test_without_the_key_holder_nothing_starts_and_nothing_is_lost(tmp_path: Path, study: Study) -> None:
    named = study.replace("protection.key_holder", "hospital-3")
    original = SimulatedTransport.ask

    def away(self: SimulatedTransport, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
        if self.round == 1:
            requests = {site: message for site, message in requests.items() if site != "hospital-3"}
        original(self, stage, requests, on_reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedTransport, "ask", away)
        report = run(named, tmp_path / "out")
    assert report.rounds[0].aborted is not None
    assert [entry.aborted for entry in report.rounds[1:]] == [None, None]


def test_a_key_holder_outside_a_cohort_is_asked_for_the_key_all_the_same(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, everyone = study.replace("protection.key_holder", "hospital-3"), FedAvg.members

    def without_the_holder(
        self: FedAvg, number: int, exchange: Exchange, sites: Sequence[str]
    ) -> Sequence[str]:
        members = everyone(self, number, exchange, sites)
        return members if number > 1 else tuple(site for site in members if site != "hospital-3")

    monkeypatch.setattr(FedAvg, "members", without_the_holder)
    report = run(named, tmp_path / "out")
    assert [entry.aborted for entry in report.rounds] == [None, None, None]


def test_a_sum_that_too_few_contribute_to_is_given_up_and_the_study_goes_on(
    tmp_path: Path, study: Study, sites: dict[str, OpeningSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every site would refuse it; stored all the same, it would stand in the way of all later sums."""
    part = frozenset({"hospital-1", "hospital-2", "hospital-3"})
    monkeypatch.setattr(FedAvg, "contributors", lambda *_: ((part, 3),), raising=False)
    report = run(study, tmp_path / "out", "hospital-2@mask:2")
    aborted = [entry.aborted for entry in report.rounds]
    assert (aborted[0], aborted[2]) == (None, None)
    assert aborted[1] is not None
    assert "add more than zeros" in aborted[1]
    assert {site.sums for site in sites.values()} == {3}


def test_a_site_whose_state_diverges_stops_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, study: Study, sites: dict[str, OpeningSession]
) -> None:
    original = OpeningSession._take

    def spoil(self: OpeningSession, summed: Summed) -> None:
        original(self, summed)
        if self._identity.name == "hospital-4" and summed.spec.round == 1:
            for tensor in self.replica.inner._model.values():  # type: ignore[attr-defined]
                tensor += 1e-3

    monkeypatch.setattr(OpeningSession, "_take", spoil)
    refused: list[tuple[str, SecfedError]] = []
    monkeypatch.setattr(
        SimulatedTransport, "_refused", lambda _self, site, error: refused.append((site, error))
    )
    report = run(study, None)
    assert ("hospital-4", InconsistentView) in [(site, type(error)) for site, error in refused]
    assert "differs" in next(error.message for site, error in refused if site == "hospital-4")
    assert "hospital-4" not in report.rounds[1].survivors
    assert {"hospital-1", "hospital-2", "hospital-3"} == set(report.rounds[2].survivors)


def test_nothing_that_passes_the_aggregator_holds_the_secret_key(
    monkeypatch: pytest.MonkeyPatch, study: Study, sites: dict[str, OpeningSession]
) -> None:
    passed: list[bytes] = []
    aggregators: list[OpenedRounds] = []
    original_ask, original_init = SimulatedTransport.ask, OpenedRounds.__init__

    def overheard(
        self: SimulatedTransport, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply
    ) -> None:
        def note(site: str, reply: Buffer) -> None:
            passed.append(bytes(reply))
            on_reply(site, reply)

        passed.extend(bytes(message) for message in requests.values())
        original_ask(self, stage, requests, note)

    def init(self: OpenedRounds, *arguments: Any, **more: Any) -> None:
        original_init(self, *arguments, **more)
        aggregators.append(self)

    monkeypatch.setattr(SimulatedTransport, "ask", overheard)
    monkeypatch.setattr(OpenedRounds, "__init__", init)
    run(study, None)
    keys = sites["hospital-1"]._keys.required
    words = keys.secret_key[-64:]
    assert all(site._keys.required.secret_key == keys.secret_key for site in sites.values())
    assert len(passed) > 50
    assert not any(words in message for message in passed)
    assert any(keys.public_key in message for message in passed)  # the search itself works
    held = repr(vars(aggregators[0])).encode()
    assert words not in held
    assert aggregators[0].public_key == keys.public_key


def test_state_digests_are_tagged_so_that_the_aggregator_cannot_test_guesses(
    study: Study, sites: dict[str, OpeningSession]
) -> None:
    from secfed.wire.frames import encode_state
    from secfed.wire.layout import state_digest

    run(study, None)
    site = sites["hospital-2"]
    assert site._state_tag() != state_digest(encode_state(site.replica.save()))
    assert site._state_tag() == sites["hospital-3"]._state_tag()


def test_ckks_is_close_to_the_exact_model_and_its_metrics(tmp_path: Path, study: Study, exact: Path) -> None:
    found = run(study.replace("protection.scheme", "ckks"), tmp_path / "ckks").final
    metrics = run(study, None).final
    assert metrics
    assert found == pytest.approx(metrics, abs=1e-2)
    approximate = load_file(tmp_path / "ckks" / "model.safetensors")
    model = load_file(exact / "model.safetensors")
    assert all(torch.allclose(approximate[name], model[name], atol=1e-3) for name in model)


def test_encryption_keys_in_a_masked_study_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"protection\.key_mode"):
        Study.parse(STUDY.replace('name = "encrypted"', 'name = "masked"\nkey_mode = "symmetric"'))


def test_a_key_holder_that_is_no_site_is_named(study: Study) -> None:
    with pytest.raises(ConfigError, match="hospital-9"):
        run(study.replace("protection.key_holder", "hospital-9"), None)


def test_a_total_that_no_honest_sites_can_have_made_stops_the_study_at_the_site(tmp_path: Path) -> None:
    """Whether the norm test passes tells about what was decrypted: once, and not again after a restart."""
    consortium = Consortium(durable_case.study("encrypted", "site"), tmp_path / "x")
    victim = consortium.hospitals[durable_case.VICTIM]
    frames: list[Buffer] = []

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Buffer) -> bytes:
        if (stage, hospital) == ("result", victim):
            frames.append(frame)
            raise durable_case.Killed
        return hospital.handle(frame)

    consortium.deliver = deliver
    with pytest.raises(durable_case.Killed):
        consortium.run()
    assert victim.open is not None
    site, notice = victim.open.site, decode(frames[0])
    assert isinstance(site, OpeningSession)
    assert isinstance(notice, Notice)
    real = Summed.decode(notice.message)
    exchange = site._exchange(real.spec.round, real.spec.exchange_index)
    parameters = site._opening.parameters(exchange)
    form, cipher, vectors = FrameFormat(parameters, UPLOAD), site._opening.cipher(), {}
    for name in durable_case.NAMES:
        largest = {item.name: torch.full(item.shape, item.bound) for item in exchange.layout.fields}
        source = exchange.layout.encoder(largest, RoundingStream())
        frames = b"".join(cipher.encrypt(parameters, source))
        vectors[name] = frames + cipher.tag(parameters, real.spec.digest, name, form.split(frames))
    bad = resigned(consortium.rules.identity, real, **added(parameters, vectors))
    with pytest.raises(RoundAborted, match="larger than clipped"):
        victim.handle(Notice(bad.encode()).encode())
    for _ in range(2):
        with pytest.raises(WrongState, match="stopped the study"):
            victim.handle(frames[0])
        victim.start()
    consortium.close()
