"""Studies that begin with a model from a file: the same model everywhere, or one clear error."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from secfed.algorithms.federated_averaging.weighted_mean import WeightedMeanServer
from secfed.algorithms.federated_averaging.weighted_plan import UPDATE
from secfed.crypto.identity import Identity, Roster
from secfed.errors import ConfigError, RoundAborted
from secfed.records.chain_file import verify_file
from secfed.records.transcript import REFUSED, SETTINGS, TRANSCRIPT
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE
from secfed.runs.run_report import RunReport, SilentObserver
from secfed.simulation.simulate import simulate
from secfed.site.terms import Terms
from secfed.study.build import build
from secfed.study.study import Study
from secfed.study.warm_start import MODELS_FOLDER, digest_of, load_initial_model
from secfed.sweep.plan import check
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, State
from tests.algorithms import vlp_case
from tests.secfed import durable_case
from tests.secfed.durable_case import VICTIM, Consortium, Hospital
from tests.secfed.run_case import secfed

TOML = """
[study]
name = "first"
rounds = 1
seed = 3
[algorithm]
name = "fedavg"
batch_size = 64
learning_rate = 0.1
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
sites = 3
partition = "iid"
[protection]
name = "plain"
bits = 20
"""


def run(study: Study, out: Path | None = None) -> RunReport:
    if out is not None:
        out.mkdir()
    return simulate(study, out=out, drops=[], observer=SilentObserver())


def began_with(study: Study, path: Path, **changes: Any) -> Study:
    """The study, beginning with a file."""
    study = study.replace("model.start", str(path)).replace("model.start_sha256", digest(path))
    for key, value in changes.items():
        study = study.replace(key.replace("__", "."), value)
    return study


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReport, Path]:
    """A finished study, and its folder."""
    out = tmp_path_factory.mktemp("start") / "first"
    return run(Study.parse(TOML), out), out


@pytest.fixture
def model(first: tuple[RunReport, Path]) -> Path:
    return first[1] / MODEL_FILE


def parameters(model: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(model))


def test_the_next_study_goes_on_where_the_first_ended(
    first: tuple[RunReport, Path], model: Path, tmp_path: Path
) -> None:
    found = {}
    for name in ("plain", "masked", "encrypted"):
        report = run(began_with(Study.parse(TOML), model, protection__name=name), tmp_path / name)
        assert report.initial is not None
        measured = {key: value for key, value in first[0].final.items() if key != "train_loss"}
        assert {key: report.initial[key] for key in measured} == measured
        assert report.to_json()["start_sha256"] == digest(model)
        found[name] = (tmp_path / name / MODEL_FILE).read_bytes()
    assert len(set(found.values())) == 1
    assert found["plain"] != model.read_bytes()
    told = secfed("audit", "verify", tmp_path / "masked", tmp_path / "encrypted")
    assert told.exit_code == 0


def test_without_rounds_a_finished_model_is_measured_and_compared(model: Path, tmp_path: Path) -> None:
    study = began_with(Study.parse(TOML), model, study__rounds=0)
    report = simulate(study, out=tmp_path, drops=[], observer=SilentObserver(), compare="alone")
    assert (tmp_path / MODEL_FILE).read_bytes() == model.read_bytes()
    assert report.compare is not None
    for row in report.compare.rows:  # no round moved anything, so both are the model in the file
        assert row.federated == row.other


def test_noise_of_whole_sites_begins_there_too(model: Path, tmp_path: Path) -> None:
    private = {"unit": "site", "epsilon": 50.0, "delta": 1e-4, "accountant": "rdp", "metrics": "unprotected"}
    study = began_with(
        Study.parse(TOML),
        model,
        algorithm__weighting="equal",
        data__standardize="public",
        protection__name="masked",
        privacy=private,
    )
    run(study, tmp_path / "site")
    at = {"from the file": study, "from the seed": study.replace("model", {"name": "logistic-regression"})}
    initial = {name: run(one).initial for name, one in at.items()}
    assert initial["from the file"] != initial["from the seed"]


def test_a_study_without_a_start_keeps_its_digest(model: Path) -> None:
    study = Study.parse(TOML)
    assert set(study.tables()["model"]) == {"name"}
    other = began_with(study, model)
    assert other.digest() != study.digest()
    assert other.replace("model.start_sha256", "0" * 64).digest() != other.digest()
    assert "start" not in study.settings(3)
    assert other.settings(3)["start"] == digest(model)


def test_vision_language_studies_begin_with_a_file(tmp_path: Path) -> None:
    study = vlp_case.study(study__rounds=1)
    like = build(study).server().model()
    save_file({name: value + 0.01 for name, value in like.items()}, tmp_path / "start.safetensors")
    study = began_with(study, tmp_path / "start.safetensors")
    algorithm = build(study)
    start = load_initial_model(study, algorithm)
    assert start is not None
    assert digest_of(start).hex() == study.model.start_sha256
    run(study, tmp_path / "out")
    assert (tmp_path / "out" / MODEL_FILE).read_bytes() != encode_state(start)


def test_the_audit_report_names_the_model_and_who_made_it(
    first: tuple[RunReport, Path], model: Path, tmp_path: Path
) -> None:
    run(began_with(Study.parse(TOML), model), tmp_path / "next")
    for folders, says in (
        ((first[1], tmp_path / "next"), "came to, so what"),
        ((tmp_path / "next",), "No study in"),
    ):
        made = secfed(
            "audit", "report", *folders, "--out", tmp_path / "r.html", "--json", tmp_path / "r.json"
        )
        assert made.exit_code == 0
        page = " ".join((tmp_path / "r.html").read_text().split())
        assert f"Training began with a finished model, by the SHA-256 of its file {digest(model)}" in page
        assert says in page
        studies = json.loads((tmp_path / "r.json").read_text())["studies"]
        assert [study["start"] for study in studies].count(digest(model)) == 1


# --- what cannot be used ------------------------------------------------------------------------------------


def written(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path, Path], None]:
    def write(model: Path, path: Path) -> None:
        state = parameters(model)
        change(state)
        save_file(state, path)

    return write


def huge(model: Path, path: Path) -> None:
    """A header that names half a terabyte, and a file with a hole of that size."""
    header = {"1.weight": {"dtype": "F32", "shape": [1 << 37], "data_offsets": [0, 1 << 39]}}
    header["1.bias"] = {"dtype": "F32", "shape": [2], "data_offsets": [1 << 39, (1 << 39) + 8]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + (1 << 39) + 8)


WRONG = {
    "a name": (written(lambda s: s.update(other=s.pop("1.bias"))), "lacks 1.bias; it has besides other"),
    "a shape": (written(lambda s: s.update({"1.bias": torch.zeros(3)})), r"'1.bias' has the shape \(3,\)"),
    "a type": (written(lambda s: s.update({"1.bias": torch.zeros(2).half()})), "'1.bias' is of type F16"),
    "NaN": (written(lambda s: s["1.bias"].fill_(torch.nan)), "'1.bias' contains NaN or Inf"),
    "a pickle": (lambda _, path: path.write_bytes(pickle.dumps({"1.weight": [1.0]})), "is not a whole safe"),
    "half a file": (lambda model, path: path.write_bytes(model.read_bytes()[:-4]), "is not a whole safetens"),
    "too large": (huge, r"has 549,755,\d+,\d+ bytes, and this study's model 248"),
    "many": (written(lambda s: s.update({f"x.{n}": torch.zeros(1) for n in range(9)})), "x.2 and 6 more"),
    "another model": (written(lambda s: s["1.bias"].add_(1.0)), "is not the model that model.start_sha256"),
    "nothing": (lambda _model, _path: None, "there is no such file"),
    "a folder": (lambda _model, path: path.mkdir(), "there is no such file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_cannot_be_used_is_one_error(case: str, model: Path, tmp_path: Path) -> None:
    write, why = WRONG[case]
    write(model, tmp_path / "start.safetensors")
    study = began_with(Study.parse(TOML), model).model_copy(update={"folder": tmp_path})
    with pytest.raises(ConfigError, match=rf"^model\.start: .*start\.safetensors.*{why}") as caught:
        run(study.replace("model.start", "start.safetensors"))
    assert caught.value.remedy


def test_a_missing_digest_is_told(model: Path) -> None:
    study = Study.parse(TOML).replace("model.start", str(model))
    with pytest.raises(ConfigError, match=r"^model\.start_sha256: is missing") as caught:
        run(study)
    assert f'start_sha256 = "{digest(model)}"' in caught.value.remedy
    with pytest.raises(ConfigError, match=r"^model\.start_sha256: is missing") as caught:
        Terms.of(study, roster(), durable_case.NAMES[0])  # a hospital reads no path of a study


def roster() -> Roster:
    aggregator = Identity.from_seed("aggregator", bytes(32))
    return Roster.of(
        aggregator,
        [Identity.from_seed(name, bytes([n]) * 32) for n, name in enumerate(durable_case.NAMES, 1)],
    )


def test_a_digest_that_is_none_or_has_no_file_and_weights_beside_one(model: Path) -> None:
    for bad in ("abc", "F" * 64, 7):
        with pytest.raises(ConfigError, match=r"^model\.start_sha256: "):
            Study.parse(TOML).replace("model.start", str(model)).replace("model.start_sha256", bad)
    with pytest.raises(ConfigError, match=r"^model\.start_sha256: has no effect without model\.start"):
        Study.parse(TOML).replace("model.start_sha256", "0" * 64)
    study = Study.parse(TOML).replace("model", {"name": "vision-language", "start": "x.safetensors"})
    with pytest.raises(ConfigError, match=r"^model\.image_weights: "):
        study.replace("model.image_weights", "vit.safetensors")


def test_an_algorithm_that_sends_no_whole_model_refuses() -> None:
    study = Study.load(Path(__file__).parents[3] / "examples" / "fmcsc-digits.toml")
    study = study.replace("model.start", "x.safetensors").replace("model.start_sha256", "0" * 64)
    with pytest.raises(ConfigError, match=r"^model\.start: \w+ cannot begin with a model from a file"):
        build(study)


def test_a_sweep_finds_it_before_anything_starts(tmp_path: Path, model: Path) -> None:
    study = began_with(Study.parse(TOML), model)
    check(study)
    with pytest.raises(ConfigError, match=r"^model\.start: "):
        check(study.replace("model.start", str(tmp_path / "gone.safetensors")))


def test_overwriting_a_run_spares_the_model_that_the_study_begins_with(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text(TOML)
    assert secfed("simulate", tmp_path / "first.toml", "--out", tmp_path / "out").exit_code == 0
    kept = (tmp_path / "out" / MODEL_FILE).read_bytes()
    start = f'start = "out/{MODEL_FILE}"\nstart_sha256 = "{hashlib.sha256(kept).hexdigest()}"'
    toml = TOML.replace('"logistic-regression"', f'"logistic-regression"\n{start}')
    (tmp_path / "next.toml").write_text(toml)
    done = secfed("simulate", tmp_path / "next.toml", "--out", tmp_path / "out", "--overwrite")
    assert done.exit_code == ConfigError.exit_code
    assert (tmp_path / "out" / MODEL_FILE).read_bytes() == kept
    done = secfed("simulate", tmp_path / "next.toml", "--out", tmp_path / "second")
    assert done.exit_code == 0
    assert "(at the start 0." in done.stdout
    assert "untrained" not in done.stdout


# --- at a hospital ------------------------------------------------------------------------------------------


@pytest.fixture
def consortium(model: Path, tmp_path: Path) -> Any:
    made = Consortium(began_with(durable_case.study("masked", None, rounds=2), model), tmp_path / "all")
    yield made
    made.close()


def entries(hospital: Hospital, kind: str) -> list[Any]:
    assert hospital.open is not None
    path = hospital.open.folder / TRANSCRIPT_FILE
    found = verify_file(path, hospital.identity.public_bytes, TRANSCRIPT)
    return [entry.body for entry in found if entry.kind == kind]


def test_a_hospital_without_the_file_takes_the_model_that_the_study_names(
    consortium: Consortium, model: Path
) -> None:
    consortium.start = parameters(model)
    consortium.run()
    assert all(outcome.aborted is None for outcome in consortium.outcomes)
    assert entries(consortium.hospitals[VICTIM], SETTINGS)[0]["start"] == digest(model)


def test_a_hospital_that_was_sent_another_model_stops_the_study_whatever_restarts(
    consortium: Consortium, model: Path
) -> None:
    hospitals = consortium.hospitals.values()
    consortium.run()  # with the seed's model
    assert all(outcome.aborted is not None for outcome in consortium.outcomes)
    consortium.start, consortium.outcomes = parameters(model), []
    for hospital in hospitals:
        hospital.start()
    consortium.run()
    assert all(outcome.aborted is not None for outcome in consortium.outcomes)
    for hospital in hospitals:
        (refused,) = entries(hospital, REFUSED)
        assert (refused["round"], refused["reason"][:11]) == (1, "refusal 42:")
        assert hospital.trained == 0
        assert hospital.open is not None
        hospital.open.finish()
        assert hospital.files == ["stopped"]


def test_a_hospital_that_is_drawn_only_to_train_compares_as_well(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``sites_per_round`` another cohort evaluates first, and may be sent the right model."""
    sampled = {"data__sites": 6, "protection__sites_per_round": 3, "algorithm__weighting": "equal"}

    def cohorts(study: Study) -> list[set[str]]:
        algorithm = build(study)
        return [
            set(algorithm.members(1, exchange, algorithm.setting.sites))
            for exchange in algorithm.exchanges(1)
        ]

    # The draw follows the study's digest, and so the folder of this test: both cohorts may be the same.
    studies = (began_with(Study.parse(TOML), model, study__seed=seed, **sampled) for seed in range(100))
    study, compared, drawn = next(
        (study, evaluate, update)
        for study, (evaluate, update) in ((study, cohorts(study)) for study in studies)
        if update - evaluate
    )
    honest = WeightedMeanServer.broadcast

    def broadcast(self: WeightedMeanServer, number: int, exchange: Exchange) -> State:
        state = honest(self, number, exchange)
        return {name: value + float(exchange.name == UPDATE) for name, value in state.items()}

    monkeypatch.setattr(WeightedMeanServer, "broadcast", broadcast)
    with pytest.raises(RoundAborted, match="the only round was given up"):
        run(study, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / TRANSCRIPT_FILE).read_text().splitlines()]
    refused = {line["body"]["site"]: line["body"]["reason"][:11] for line in lines if line["kind"] == REFUSED}
    assert refused == dict.fromkeys(drawn - compared, "refusal 42:")


@pytest.mark.parametrize("where", [f"{MODELS_FOLDER}/public.safetensors", f"studies/first/{MODEL_FILE}"])
def test_under_encrypted_protection_a_hospital_finds_the_model_at_home(
    where: str, model: Path, tmp_path: Path
) -> None:
    study = began_with(durable_case.study("encrypted", None), model)
    identity = Identity.from_seed(VICTIM, bytes([2]) * 32)
    hospital = Hospital(Terms.of(study, roster(), VICTIM), identity, roster(), tmp_path)
    other, right = tmp_path / MODELS_FOLDER / "another.safetensors", tmp_path / where
    for path in (other, right):
        path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value + 1 for name, value in parameters(model).items()}, other)
    with pytest.raises(ConfigError, match=r"^model\.start: this site has no model with the digest") as caught:
        hospital.start()
    assert str(tmp_path) not in str(caught.value)
    right.write_bytes(model.read_bytes())
    site: Any = hospital.start().site
    assert encode_state(site.replica.model()) == model.read_bytes()
    assert hospital.open is not None
    hospital.open.close()
