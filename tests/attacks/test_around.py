"""Attacks around the sum end as SECURITY.md says; with a defence lifted each succeeds, and that shows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from secfed.algorithms.federated_averaging import weighted_mean
from secfed.algorithms.metrics import classification
from secfed.algorithms.statistics import algorithm as statistics
from secfed.algorithms.statistics import cross_table, disclosure
from secfed.algorithms.statistics.algorithm import Statistics
from secfed.algorithms.statistics.disclosure import Reason
from secfed.algorithms.statistics.roc import Roc
from secfed.algorithms.statistics.server import StatisticsServer
from secfed.attack import silence, twins
from secfed.attack.attack import Attack, AttackSetting, Impossible
from secfed.attack.catalogue import Outcome, attacks_on, ghosts, run_attacks
from secfed.attack.downgrade import downgrade
from secfed.attack.few_records import FEW_RECORDS
from secfed.attack.later_statistics import later_statistics
from secfed.attack.liars import framing
from secfed.attack.lone_work import LONE_WORK
from secfed.attack.silence import SILENCE, trap
from secfed.attack.small_cells import SMALL_CELLS
from secfed.attack.twins import TWINS
from secfed.attack.two_results import TWO_RESULTS
from secfed.attack.wards import names, study
from secfed.attack.watched import Hospitals
from secfed.crypto.masked import client as masked_site
from secfed.crypto.masked import server as masked_server
from secfed.crypto.masked import server_sum
from secfed.crypto.masked.disputes import Verdict
from secfed.deploy.admission import near_twins
from secfed.deploy.policy import check as policy_checks
from secfed.dp.training import private_loop
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.errors import ConfigError, RangeError
from secfed.server import round as secure_round
from secfed.site import local_work
from secfed.site.durable_store import DurableStore
from secfed.site.local_work import LocalWork
from secfed.site.session import Site
from secfed.study.study import Study

ATTACKS = {
    attack.name: attack
    for attack in (
        *LONE_WORK,
        *SILENCE,
        *TWINS,
        *SMALL_CELLS,
        *FEW_RECORDS,
        *TWO_RESULTS,
        later_statistics,
        framing,
        downgrade,
    )
}
FEWEST = {attack.name: 3 for attack in (*LONE_WORK, *SILENCE)} | {
    "twin-study": 4,
    "approved-twin": 4,
    "later-statistics": 4,
}


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "_ROUNDS", 8)  # bits that the bisection looks for; it takes 24


def played(name: str) -> Outcome:
    (outcome,) = run_attacks([ATTACKS[name]], AttackSetting(FEWEST.get(name, 5)))
    return outcome


def noticed(name: str) -> str:
    """What an attack brought that must not end as the documents say."""
    outcome = played(name)
    assert not outcome.as_documented
    assert outcome.ended != f"{outcome.attack.expected} learned"
    assert outcome.evidence is not None
    return outcome.evidence.learned


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_ends_as_documented(name: str) -> None:
    outcome = played(name)
    assert outcome.as_documented, outcome.evidence
    succeeds = name in ("approved-twin", "kept-state")
    assert outcome.ended == ("everything learned" if succeeds else "nothing learned")


@pytest.mark.parametrize("attack", [*TWINS, framing, downgrade], ids=lambda attack: attack.name)
def test_some_need_more_hospitals(attack: Attack) -> None:
    with pytest.raises(Impossible):
        attack.run(AttackSetting(3))


def test_all_of_them_are_played_by_default() -> None:
    assert [attack.name for attack in attacks_on("masked")][-28:] == [
        "lone-work",
        "split-work",
        "kept-state",
        "overflow-oracle",
        "bisection",
        "private-metrics-oracle",
        "site-level-oracle",
        "engine-disagreement",
        "twin-study",
        "approved-twin",
        "two-tables",
        "lonely-category",
        "shifted-cells",
        "chosen-patient",
        "rare-flag",
        "filter-formula",
        "regression-tables",
        "lonely-group",
        "shifted-scores",
        "odd-value",
        "ridge-scan",
        "steep-step",
        "score-edges",
        "two-models",
        "later-statistics",
        "ghost-survivors",
        "framing",
        "downgrade",
    ]


def test_the_trap_springs_and_only_the_hospital_hears_of_it() -> None:
    alarms = []
    for planted in ({}, {names(3)[0]: 0.9}):
        with Hospitals(study(3), planted) as hospitals:
            hospitals.federation.run(trap(0.75))
            alarms.append(len(hospitals.alarms))
    assert alarms[0] == 0
    assert alarms[1] > 0


# Silence: local work that fails on values makes the hospital refuse, as it once did.


def raising(_number: int, exchange: Any, work: Any, *_: Any, **__: Any) -> dict[str, torch.Tensor]:
    given = dict(work())
    if not all(bool(torch.isfinite(torch.as_tensor(value)).all()) for value in given.values()):
        raise RangeError("NaN or Inf")
    return {field.name: torch.as_tensor(given[field.name]) for field in exchange.layout.fields}


@pytest.fixture
def uncontained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_work, "contained", raising)
    monkeypatch.setattr(weighted_mean, "otherwise", lambda _fallback, part, *given: part(*given))


@pytest.mark.usefixtures("uncontained")
@pytest.mark.parametrize("attack", ["overflow-oracle", "bisection", "site-level-oracle"])
def test_a_refusal_for_values_tells_of_the_record(attack: str) -> None:
    assert noticed(attack) == "everything"


def test_an_answer_whose_length_depends_on_a_record_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Site._work

    def telling(self: Any, task: Any) -> bytes:
        return bytes(honest(self, task)) + b" " * len(self._services.alarm.__self__)

    monkeypatch.setattr(Site, "_work", telling)
    assert noticed("overflow-oracle") == "everything"


@pytest.mark.usefixtures("uncontained")
def test_work_before_the_payment_tells_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LocalPrivacy.release_sums

    def careless(self: LocalPrivacy, sums: Callable[[], Any], *given: Any, **options: Any) -> Any:
        if not all(bool(torch.isfinite(value).all()) for value in sums().values()):
            raise RangeError("NaN or Inf")
        return honest(self, sums, *given, **options)

    monkeypatch.setattr(LocalPrivacy, "release_sums", careless)
    monkeypatch.setattr(classification, "evaluate", _careless_evaluation)
    assert noticed("private-metrics-oracle") == "everything"


def _careless_evaluation(model: Any, records: torch.Tensor, *_: Any, **__: Any) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return {"eval/correct": model(records).sum()}


@pytest.mark.usefixtures("uncontained")
def test_engines_that_are_compared_on_real_records_tell_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(_name: str, engine: Any, model: Any, _loss: Any, like: Any) -> Any:
        with torch.no_grad():
            if not bool(torch.isfinite(model(like[0])).all()):
                raise ConfigError("the engines disagree")
        return engine

    monkeypatch.setattr(private_loop, "checked_engine", careless)
    assert noticed("engine-disagreement") == "everything"


# A defence is lifted, and the attack brings something that it should not.


def blames_the_accused(disputes: Any, _colluders: int) -> Verdict:
    return Verdict(at_fault=tuple(dict.fromkeys(accused for _, accused in disputes)))


def keeps_all(_cells: Any, small: Any, *_: Any) -> Any:
    return [list(row) for row in small]


def tells_all(cells: Any, *_: Any, **__: Any) -> disclosure.Told:
    columns = [sum(column) for column in zip(*cells, strict=True)]
    return disclosure.Told(cells, [sum(row) for row in cells], columns, sum(columns))


def all_records(algorithm: Statistics, site: str) -> Any:
    return algorithm.data.table(site)


def unchecked(_server: Any, analysis: Any, own: Any) -> tuple[Reason, Any]:
    return Reason.RELEASED, analysis.released(dict(own))


def every_curve(curve: Roc, options: Any, read: Any = Roc._read) -> None:
    read(curve, options)
    curve.first_model = True


def nothing(*_: Any, **__: Any) -> None:
    """Check nothing."""


@pytest.mark.parametrize(
    ("attack", "owner", "defence", "instead"),
    [
        pytest.param("twin-study", DurableStore, "site_seed", lambda _: 3, id="batches in a public order"),
        pytest.param("twin-study", near_twins, "near_twins", lambda *_: (), id="nobody is asked"),
        pytest.param("twin-study", near_twins, "noted", lambda *_: (), id="no warning"),
        pytest.param("twin-study", Study, "identity", Study.tables, id="a deadline makes another study"),
        pytest.param("framing", secure_round, "settle", blames_the_accused, id="the accused is blamed"),
        pytest.param("framing", server_sum, "check_shares", nothing, id="nobody checks shares"),
        pytest.param("framing", masked_server._Advertise, "_check_fresh", nothing, id="a duplicate key"),
        pytest.param("downgrade", policy_checks, "_check_protection", lambda *_: [], id="no protection"),
        pytest.param("downgrade", policy_checks, "_check_privacy", lambda *_: [], id="no privacy"),
        pytest.param("downgrade", masked_site, "check_specification", nothing, id="any specification"),
    ],
)
def test_a_lifted_defence_is_noticed(
    monkeypatch: pytest.MonkeyPatch, attack: str, owner: Any, defence: str, instead: Any
) -> None:
    monkeypatch.setattr(owner, defence, instead)
    assert noticed(attack) == "part"


@pytest.mark.parametrize("attack", LONE_WORK[:2], ids=lambda attack: attack.name)
def test_who_adds_to_work_that_it_did_not_do_leaves_another_alone(
    monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    monkeypatch.setattr(LocalWork, "_check_links", nothing)
    assert noticed(attack.name) == "everything"


@pytest.mark.parametrize(
    ("attack", "owner", "defence", "instead"),
    [
        pytest.param("two-tables", disclosure, "suppressed_table", keeps_all, id="no cell with a small one"),
        pytest.param("lonely-category", cross_table, "protected", tells_all, id="cells of one hospital"),
        pytest.param("shifted-cells", statistics, "check_cells", nothing, id="any cells"),
        pytest.param(
            "later-statistics", near_twins, "subtractable", lambda *_: [], id="any later statistics"
        ),
    ],
)
def test_a_lifted_rule_about_tables_is_noticed(
    monkeypatch: pytest.MonkeyPatch, attack: str, owner: Any, defence: str, instead: Any
) -> None:
    monkeypatch.setattr(owner, defence, instead)
    assert noticed(attack) == "everything"


@pytest.mark.parametrize(
    ("attack", "owner", "defence", "instead"),
    [
        pytest.param("chosen-patient", Statistics, "site_data", all_records, id="records that lack a value"),
        pytest.param("rare-flag", StatisticsServer, "_checked", unchecked, id="any leverage"),
        pytest.param("filter-formula", StatisticsServer, "_checked", unchecked, id="any formula"),
        pytest.param("regression-tables", StatisticsServer, "_checked", unchecked, id="any cell"),
        pytest.param("lonely-group", StatisticsServer, "_checked", unchecked, id="one hospital's category"),
        pytest.param("shifted-scores", Roc, "_read", every_curve, id="several curves"),
        pytest.param("odd-value", StatisticsServer, "_checked", unchecked, id="any deviation"),
        pytest.param("ridge-scan", statistics, "check_ridges", nothing, id="any ridge"),
        pytest.param("steep-step", statistics, "check_steps", nothing, id="any step"),
        pytest.param("score-edges", Roc, "_rounded", lambda _, records: records, id="exact points"),
        pytest.param("two-models", StatisticsServer, "_checked", unchecked, id="any products"),
    ],
)
def test_a_lifted_rule_about_few_records_is_noticed(
    monkeypatch: pytest.MonkeyPatch, attack: str, owner: Any, defence: str, instead: Any
) -> None:
    monkeypatch.setattr(owner, defence, instead)
    assert noticed(attack) in ("everything", "part")


def test_secret_batches_are_what_hides_an_approved_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "_FULL_BATCHES", twins._MINI_BATCHES)
    assert noticed("approved-twin") == "nothing"


# Ghosts.


def test_a_sum_whose_tag_is_not_checked_gives_the_upload_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tenseal")
    from secfed.crypto.encrypted.client import SiteCipher

    monkeypatch.setattr(SiteCipher, "verify", lambda *_: None)
    (outcome,) = run_attacks([ghosts], AttackSetting(3))
    assert not outcome.as_documented
    assert outcome.evidence is not None
    assert outcome.evidence.learned == "everything"


def test_formulas_are_not_played_without_the_extra_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic.parser", None)
    outcomes = {one.attack.name: one.ended for one in run_attacks(FEW_RECORDS, AttackSetting(3))}
    assert "learned" in outcomes.pop("chosen-patient")  # which asks for none
    assert set(outcomes.values()) == {"not played: needs the extra analyse"}


def test_without_the_extra_it_is_not_played_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("secfed.attack.encrypted", "secfed.crypto.encrypted.bfv_tenseal"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    (outcome,) = run_attacks([ghosts], AttackSetting(3))
    assert outcome.as_documented
    assert outcome.ended == "not played: needs the extra he"
