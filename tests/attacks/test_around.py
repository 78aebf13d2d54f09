"""Attacks around the sum end as SECURITY.md says; with a defence lifted each succeeds, and that shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from secfed.algorithms.federated_averaging import fedavg
from secfed.attack import twins
from secfed.attack.attack import Attack, AttackSetting, Impossible
from secfed.attack.catalogue import Outcome, attacks_on, run_attacks
from secfed.attack.downgrade import DOWNGRADE
from secfed.attack.framing import FRAMING
from secfed.attack.ghosts import GHOST_SURVIVORS
from secfed.attack.silence import SILENCE, trap
from secfed.attack.twins import TWINS
from secfed.attack.wards import names, study
from secfed.attack.watched import Hospitals
from secfed.crypto.masked import client as masked_site
from secfed.crypto.masked import server as masked_server
from secfed.crypto.masked.disputes import Verdict
from secfed.deploy.admission import near_twins
from secfed.deploy.policy import checks as policy_checks
from secfed.dp.training import private_loop
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.errors import ConfigError, RangeError
from secfed.server import round as secure_round
from secfed.site import local_work
from secfed.site.attempt_store import AttemptStore
from secfed.site.session import Site
from secfed.study.study import Study

ATTACKS = {attack.name: attack for attack in (*SILENCE, *TWINS, FRAMING, DOWNGRADE)}
FEWEST = {attack.name: 3 for attack in SILENCE} | {"twin-study": 4, "approved-twin": 4}


@pytest.fixture(autouse=True)
def no_plug_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk here survives what these tests do without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


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
    assert outcome.ended == ("everything learned" if name == "approved-twin" else "nothing learned")


@pytest.mark.parametrize("attack", [*TWINS, FRAMING, DOWNGRADE], ids=lambda attack: attack.name)
def test_some_need_more_hospitals(attack: Attack) -> None:
    with pytest.raises(Impossible):
        attack.run(AttackSetting(3))


def test_all_of_them_are_played_by_default() -> None:
    assert [attack.name for attack in attacks_on("masked")][-10:] == [
        "overflow-oracle",
        "bisection",
        "private-metrics-oracle",
        "site-level-oracle",
        "engine-disagreement",
        "twin-study",
        "approved-twin",
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
    monkeypatch.setattr(fedavg, "otherwise", lambda _fallback, part, *given: part(*given))


@pytest.mark.usefixtures("uncontained")
def test_a_refusal_for_values_tells_of_the_record() -> None:
    assert noticed("overflow-oracle") == "everything"


@pytest.mark.usefixtures("uncontained")
def test_refusals_for_values_give_a_feature_to_24_bits() -> None:
    assert noticed("bisection") == "everything"


@pytest.mark.usefixtures("uncontained")
def test_a_refusal_under_noise_for_the_whole_hospital_tells_of_the_record() -> None:
    assert noticed("site-level-oracle") == "everything"


def test_an_answer_whose_length_depends_on_a_record_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Site._work

    def telling(self: Any, task: Any) -> bytes:
        return bytes(honest(self, task)) + b" " * len(self._local._alarm.__self__)

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
    monkeypatch.setattr(fedavg.classification, "evaluate", _careless_evaluation)
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


# Twins.


def test_batches_in_a_public_order_give_the_update_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttemptStore, "site_seed", lambda _: 3)
    assert noticed("twin-study") == "part"


def test_a_twin_that_nobody_is_asked_about_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_twins, "near_twins", lambda *_: ())
    assert noticed("twin-study") == "part"


def test_a_twin_that_waits_without_a_warning_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_twins, "noted", lambda *_: ())
    assert noticed("twin-study") == "part"


def test_a_deadline_that_makes_another_study_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Study, "identity", Study.tables)
    assert noticed("twin-study") == "part"


def test_secret_batches_are_what_hides_an_approved_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "_FULL_BATCHES", twins._MINI_BATCHES)
    assert noticed("approved-twin") == "nothing"


# Framing.


def test_a_site_that_is_blamed_for_being_accused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(disputes: Any, _colluders: int) -> Verdict:
        return Verdict(at_fault=tuple(dict.fromkeys(accused for _, accused in disputes)))

    monkeypatch.setattr(secure_round, "settle", careless)
    assert noticed("framing") == "part"


def test_shares_that_nobody_checks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_server, "check_shares", lambda *_args, **_options: None)
    assert noticed("framing") == "part"


def test_a_duplicate_key_that_reaches_the_others_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_server._Advertise, "_check_fresh", lambda *_: None)
    assert noticed("framing") == "part"


# Downgrade.


@pytest.mark.parametrize("check", ["_check_protection", "_check_privacy"])
def test_a_policy_that_does_not_look_is_noticed(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    monkeypatch.setattr(policy_checks, check, lambda *_: [])
    assert noticed("downgrade") == "part"


def test_a_specification_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_site, "check_specification", lambda *_args, **_options: None)
    assert noticed("downgrade") == "part"


# Ghosts.


def test_a_sum_whose_tag_is_not_checked_gives_the_upload_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tenseal")
    from secfed.crypto.encrypted.client import SiteCipher

    monkeypatch.setattr(SiteCipher, "verify", lambda *_: None)
    (outcome,) = run_attacks([GHOST_SURVIVORS], AttackSetting(3))
    assert not outcome.as_documented
    assert outcome.evidence is not None
    assert outcome.evidence.learned == "everything"


def test_without_the_extra_it_is_not_played_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("secfed.attack.encrypted", "secfed.crypto.encrypted.bfv_tenseal"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    (outcome,) = run_attacks([GHOST_SURVIVORS], AttackSetting(3))
    assert outcome.as_documented
    assert outcome.ended == "not played: needs the extra he"
