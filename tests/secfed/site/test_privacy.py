"""`[privacy]` in whole studies: what is paid, what leaves, who has the last word."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file

from secfed.algorithms.federated_averaging.fedavg import FedAvg
from secfed.algorithms.metrics.noise_error import WITHHELD_ABOVE
from secfed.attack.watched import Log
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.ledger import spent_of
from secfed.dp.ledger.ledger import verify as verify_ledger
from secfed.errors import ConfigError, RoundAborted, WrongState
from secfed.pipeline.noised_algorithm import with_privacy
from secfed.records.roster_file import ROSTER_FILE, read_roster
from secfed.runs.run_folder import ledger_file, site_folder
from secfed.simulation import parties
from secfed.site.attempt_store import NullStore
from secfed.site.build import build_site
from secfed.site.journal import Journal
from secfed.site.parts import Draws, Member, Services
from secfed.site.terms import Terms
from secfed.study.build import build, build_data
from secfed.study.study import Study
from secfed.terminal.tables import summary
from secfed.wire.layout import Field
from tests.algorithms.loop import BREAST_CANCER
from tests.dp.wards import audit
from tests.secfed.privacy_case import run, study


@pytest.mark.parametrize("unit", ["record", "site"])
def test_nobody_joins_a_private_study_without_a_ledger(unit: str) -> None:
    chosen = study(unit)
    built = build(chosen)
    names = tuple(build_data(chosen).sites)
    aggregator, identities = Identity.generate("aggregator"), [Identity.generate(name) for name in names]
    terms = Terms(chosen, with_privacy(chosen, built, names), names)
    with pytest.raises(WrongState, match="needs a ledger"):
        build_site(
            terms,
            Member(identities[0], Roster.of(aggregator, identities)),
            built.site(names[0]),
            limits=SiteLimits(),
            draws=Draws.seeded(1, names[0]),
            store=NullStore(Journal(), terms.study_id),
            services=Services(Log()),
        )


def entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a chain."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("unit", "more"),
    [
        ("record", "clip_quantile = 0.5"),
        ("group", "group_size = 4"),
        ("site", ""),
        ("site", 'distribution = "discrete-gaussian"'),
    ],
)
def test_private_models_are_the_same_bytes_under_plain_and_masked(
    tmp_path: Path, unit: str, more: str
) -> None:
    """Noise is drawn once per exchange and is part of the integers that are summed."""
    models = {}
    for protection in ("plain", "masked"):
        run(study(unit, protection=protection, privacy=more), tmp_path / protection)
        models[protection] = (tmp_path / protection / "model.safetensors").read_bytes()
    assert models["plain"] == models["masked"]
    run(study(unit, privacy=more).replace("study.seed", 3519), tmp_path / "other")
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != models["plain"]


@pytest.mark.parametrize("unit", ["record", "site"])
def test_private_models_are_the_same_bytes_under_encryption(tmp_path: Path, unit: str) -> None:
    pytest.importorskip("tenseal", reason="the extra he is not installed")
    for protection in ("plain", "encrypted"):
        # Encryption needs no answers but the cohort's, so the least sum, and with it the noise, differ.
        run(study(unit, protection=protection).replace("protection.threshold", 3), tmp_path / protection)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "encrypted")]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("unit", "more", "by"),
    [
        ("record", "", "pld"),
        ("record", "clip_quantile = 0.5", "rdp"),
        ("record", 'metrics = "private"', "rdp"),
        ("group", "group_size = 4", "rdp"),
        ("site", "", "pld"),
    ],
)
def test_every_site_spends_what_was_promised_and_no_more(
    tmp_path: Path, unit: str, more: str, by: str
) -> None:
    """The ledger's own epsilon, recomputed from its events, is just below the study's."""
    chosen = study(unit, privacy=more, accountant=by)
    report = run(chosen, tmp_path)
    assert report.privacy is not None
    assert chosen.privacy is not None
    assert [one.site for one in report.privacy.sites] == [f"hospital-{at}" for at in range(1, 5)]
    roster = read_roster(tmp_path / ROSTER_FILE)
    for one in report.privacy.sites:
        assert 7.5 < one.epsilon <= 8.0
        path = ledger_file(site_folder(tmp_path, one.site), "breast-cancer")
        with path.open("rb") as lines:
            chain = verify_ledger(lines, roster.public(one.site), owner=one.site)
        audit(chain, accountant(chosen.privacy.accountant))
        noted = [entry for entry in chain if entry.kind == "spent"]
        assert len(noted) == 2 + ("private" in more)  # one in each round
        assert spent_of(chain)


def full_batches(chosen: Study) -> Study:
    """Of all records: the noise of sampled ones is sought for seconds, by every site for itself."""
    return chosen.replace("algorithm.batch_size", 1000)


def test_less_epsilon_is_more_noise(tmp_path: Path) -> None:
    moved = {}
    for epsilon in (0.003, 0.01, 20.0):
        run(full_batches(study(epsilon=epsilon)), tmp_path / str(epsilon))
        model = load_file(tmp_path / str(epsilon) / "model.safetensors")
        moved[epsilon] = float(sum((value**2).sum() for value in model.values())) ** 0.5
    assert moved[0.003] > 1.2 * moved[0.01] > 1.4 * moved[20.0]


def test_a_site_whose_budget_is_spent_leaves_as_a_dropout_and_is_heard_of(tmp_path: Path) -> None:
    """The policy has the last word: nothing of the refused rounds leaves, the others go on."""
    whole = run(study())
    assert whole.privacy is not None
    half = whole.privacy.sites[1].epsilon * 0.8  # covers the first of two rounds
    report = run(study(protection="masked"), tmp_path, budgets={"hospital-2": half})
    assert report.privacy is not None
    here = {one.site: one for one in report.privacy.sites}
    assert 0 < here["hospital-2"].epsilon <= half
    assert here["hospital-2"].refused == 1
    assert all(here[name].refused == 0 for name in here if name != "hospital-2")
    assert "hospital-2" in report.rounds[0].survivors
    assert set(report.rounds[1].survivors) == {"hospital-1", "hospital-3", "hospital-4"}
    folder = site_folder(tmp_path, "hospital-2")
    refused = [entry for entry in entries(folder / "transcript.jsonl") if entry["kind"] == "refused"]
    assert [entry["body"]["reason"] for entry in refused] == ["privacy budget"]
    assert "refused" in [entry["kind"] for entry in entries(ledger_file(folder, "breast-cancer"))]


def test_no_site_with_budget_means_no_model(tmp_path: Path) -> None:
    with pytest.raises(RoundAborted):
        run(study(), tmp_path, budgets={f"hospital-{at}": 1e-3 for at in range(1, 5)})


def test_the_transcript_of_every_round_carries_the_head_of_the_ledger(tmp_path: Path) -> None:
    """An older copy of the ledger lacks a head that was recorded."""
    run(study(), tmp_path)
    folder = site_folder(tmp_path, "hospital-1")
    hashes = [entry["hash"] for entry in entries(ledger_file(folder, "breast-cancer"))]
    heads = [
        entry["body"]["ledgers"]["breast-cancer"]
        for entry in entries(folder / "transcript.jsonl")
        if entry["kind"] == "summed"
    ]
    assert len(heads) == 2
    assert [head in hashes for head in heads] == [True, True]
    assert heads[-1] == hashes[-1]


def fields_of(chosen: Study) -> list[set[str]]:
    """The fields of every exchange of a study."""
    algorithm = build(chosen)
    plans = [plan for number in range(1, chosen.rounds + 2) for plan in algorithm.exchanges(number)]
    return [{field.name for field in plan.layout.fields} for plan in plans]


def test_only_what_the_study_names_leaves_without_noise(tmp_path: Path) -> None:
    """Training losses never; metrics and record counts if the study says so, and it is written down."""
    assert all("train_loss" not in names for names in fields_of(study(privacy='metrics = "unprotected"')))
    withheld = fields_of(study())
    assert len(withheld) == 2
    assert not any(name.startswith("eval/") for names in withheld for name in names)
    private = fields_of(study(privacy='metrics = "private"'))
    assert private[-1] == {"eval/class_records", "eval/class_correct"}
    report = run(study(privacy='metrics = "unprotected"'), tmp_path)
    assert report.privacy is not None
    noted = [
        entry["body"]["fields"]
        for entry in entries(ledger_file(site_folder(tmp_path, "hospital-1"), "breast-cancer"))
        if entry["kind"] == "unprotected"
    ]
    assert len(noted) == 3  # two rounds and the closing evaluation
    leaving = set().union(*fields_of(study(privacy='metrics = "unprotected"')))
    assert set(noted[0]) == set(report.privacy.unprotected) == {name for name in leaving if "eval" in name}


def test_private_metrics_are_noisy_and_near_the_truth() -> None:
    exact = run(full_batches(study(epsilon=20.0, privacy='metrics = "private"'))).final
    noisy = full_batches(study(privacy='metrics = "private"'))
    found = [run(noisy.replace("study.seed", seed)).final for seed in (1, 2)]
    names = ("accuracy", "balanced_accuracy")
    assert set(exact) == {*names, *(f"{name}_error_95" for name in names)}
    for one in (exact, *found):
        for name in names:
            error = one[f"{name}_error_95"]
            assert 0.0 < error <= 1.0
            assert math.isnan(one[name]) == (error > WITHHELD_ABOVE)
    assert all(exact[f"{name}_error_95"] < one[f"{name}_error_95"] for one in found for name in names)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"algorithm": "weight_cap = 500\n#", "data": ""}, "algorithm.weight_cap"),
        ({"data": 'impute = "median"'}, "data.impute"),
    ],
)
def test_mistakes_name_their_key(change: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        study(**change)


def test_the_number_of_records_leaves_only_if_the_study_says_so() -> None:
    counted = study().replace("algorithm.weighting", "records")
    with pytest.raises(ConfigError, match=r"algorithm\.weighting"):
        build(counted)
    said = counted.replace("privacy.weights", "unprotected")
    algorithm = build(said)
    assert list(algorithm.unprotected(algorithm.exchanges(1)[0])) == ["weight"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"algorithm\.weighting"):
        build(study("site").replace("algorithm.weighting", "records"))


def test_records_that_are_prepared_from_each_other_are_refused() -> None:
    """Scaling by the site's own statistics changes all records when one changes."""
    with pytest.raises(ConfigError, match=r"data\.standardize"):
        build(study().replace("data.standardize", True))
    build(study("site").replace("data.standardize", True))  # the whole site is the unit


def test_replacing_one_record_changes_no_other_prepared_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbouring relation of the ledger holds for what training sees, not only for a table."""
    from secfed.algorithms.data import pool

    chosen = study(data='partition = "iid"')
    original = build_data(chosen).site("hospital-1")  # type: ignore[attr-defined]
    load = pool._load_breast_cancer
    position = int(build_data(chosen).pool.partition[0][3])  # type: ignore[attr-defined]

    def changed(options: pool.PoolOptions) -> Any:
        records = load(options)
        records.x[position] = 0.9
        records.y[position] = 1 - records.y[position]
        return records

    monkeypatch.setattr(pool, "_load_breast_cancer", changed)
    other = build_data(chosen).site("hospital-1")  # type: ignore[attr-defined]
    assert original.train_x.shape == other.train_x.shape
    pairs = (original.train_x, other.train_x), (original.test_x, other.test_x)
    assert sum(int((one != changed).any(1).sum()) for one, changed in pairs) == 1


def test_an_unknown_site_in_a_budget_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--budget elsewhere"):
        run(study(), tmp_path, budgets={"elsewhere": 1.0})


def test_a_delta_of_1_in_n_is_told_and_10_in_n_refused_before_any_round(tmp_path: Path) -> None:
    """About 107 records at every site: 0.05 was accepted in silence."""
    report = run(study().replace("privacy.delta", 0.05), tmp_path)
    assert report.privacy is not None
    assert report.privacy.weak_delta == tuple(f"hospital-{at}" for at in range(1, 5))
    assert report.privacy.to_json()["weak_delta"]
    assert report.privacy.to_json()["engines"] == ["ghost"]
    with pytest.raises(ConfigError, match=r"privacy\.delta: 0\.2 is 10 / \(training records"):
        run(study().replace("privacy.delta", 0.2), tmp_path / "refused")


def test_a_site_that_demands_privacy_gives_nothing_to_a_study_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the policy demands is held against what was done, not against what the study says."""
    demanding = SiteLimits(require_privacy=True)
    monkeypatch.setattr(parties, "limits_of", lambda *_: demanding)
    run(study(protection="masked").replace("study.rounds", 1))
    bare = Study.parse(BREAST_CANCER.replace('"plain"', '"masked"')).replace("study.rounds", 1)
    with pytest.raises(RoundAborted):
        run(bare)


class Leaking(FedAvg):
    """Inherits the units of what it is derived from, and adds a raw value of a record."""

    def fields(self) -> tuple[Field, ...]:
        return (*super().fields(), Field("score", (), 100.0, 64))

    def difference(self, model: Any, received: Any) -> Any:
        return {**super().difference(model, received), "score": self.site_data("hospital-1").train_x[0, 0]}


class Declaring(Leaking):
    noised_fields = ("update", "weight")


@pytest.mark.parametrize("name", ["Leaking", "Declaring"])
def test_an_own_field_that_no_declaration_covers_is_unprotected_in_report_ledger_and_summary(
    tmp_path: Path, name: str
) -> None:
    own = study().replace("study.rounds", 1).replace("algorithm.name", f"{__name__}:{name}")
    report = run(own, tmp_path)
    assert report.privacy is not None
    bare = set(report.privacy.unprotected)
    declared = {field for field in fields_of(own)[0] if field == "weight" or field.startswith("update/")}
    assert bare == ({"score"} if name == "Declaring" else {"score"} | declared)
    ledger = entries(ledger_file(site_folder(tmp_path, "hospital-1"), "breast-cancer"))
    noted = [set(entry["body"]["fields"]) for entry in ledger if entry["kind"] == "unprotected"]
    assert noted == [bare]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary(console, report))
    shown = console.export_text()
    told = "score" if name == "Declaring" else "parameters, score, the weight"
    assert f"Left in sums without noise: {told}. Not in epsilon" in shown
    assert "for score" in shown
    assert "metrics over" not in shown
