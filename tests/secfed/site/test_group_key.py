"""Hospitals with closed sums: who gets the group key, and what is said of a sum that nobody could open."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secfed.crypto.encrypted.messages import KeyDelivery, KeyHello, KeyPackage, KeyRequest
from secfed.crypto.encrypted.study_keys import StudyKeys
from secfed.crypto.identity import Identity
from secfed.crypto.messages import peek_type
from secfed.errors import InconsistentView, LinkError, RosterError
from secfed.protection.closed import Closed, GroupKeys
from secfed.site.local_work import LocalWork
from secfed.wire.frames import READY, Notice, decode
from tests.secfed import durable_case

OUTSIDER = "hospital-4"


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[durable_case.Consortium]:
    """Three hospitals of a study; a fourth one is in the roster only."""
    made = durable_case.Consortium(
        durable_case.study("closed", None), tmp_path / "x", people=(*durable_case.NAMES, OUTSIDER)
    )
    yield made
    made.close()


def ask(hospital: durable_case.Hospital, message: Any) -> bytes:
    return hospital.handle(Notice(message.encode()).encode())


def test_a_hospital_of_the_roster_that_is_not_in_the_study_gets_no_key(
    consortium: durable_case.Consortium,
) -> None:
    protection = consortium.terms.protection
    assert isinstance(protection, Closed)
    holder = consortium.hospitals[protection.holder]
    ask(holder, KeyRequest(()))
    identity = Identity.from_seed(OUTSIDER, hashlib.sha256(OUTSIDER.encode()).digest())
    study = consortium.terms.study_id
    everybody = consortium.roster.sites
    assert OUTSIDER in everybody
    outside = StudyKeys(identity, consortium.roster, study, everybody, protection.holder, protection.form)
    with pytest.raises(RosterError, match="no site of the study"):
        ask(holder, KeyRequest((KeyHello.decode(outside.hello()),)))


def test_a_site_says_ready_to_its_own_key_only(consortium: durable_case.Consortium) -> None:
    """It says so again after a crash; another key would go unnoticed until no sum can be opened."""
    victim, checked = consortium.hospitals[durable_case.VICTIM], list[bytes]()

    def deliver(_stage: str, hospital: durable_case.Hospital, frame: Any) -> bytes:
        reply = hospital.handle(frame)
        notice = decode(frame)
        if hospital is victim and isinstance(notice, Notice):
            if peek_type(notice.message) != KeyDelivery.TYPE:
                return reply
            real = KeyDelivery.decode(notice.message)
            assert ask(hospital, real) == READY
            package = KeyPackage(durable_case.VICTIM, real.package.sealed_key, bytes(64))
            with pytest.raises(InconsistentView, match="did not ask for"):
                ask(hospital, KeyDelivery(GroupKeys().generate().public_key, package))
            checked.append(reply)
            raise durable_case.Killed
        return reply

    consortium.deliver = deliver
    with pytest.raises(durable_case.Killed):
        consortium.run()
    assert checked == [READY]


def test_a_sum_that_nobody_could_open_is_no_finished_round(
    consortium: durable_case.Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hospital uploads lanes out of range, with honest tags: every hospital stops at the sum."""
    honest = LocalWork.source

    class Wild:
        def __init__(self, source: Any) -> None:
            self._source = source

        def fill(self, run: Any, out: Any) -> None:
            self._source.fill(run, out)
            if run.bits == 32:
                out[:] = np.uint32(0x7FFFFF00)

    def source(self: LocalWork, pending: Any) -> Any:
        made = honest(self, pending)
        return Wild(made) if self._site == durable_case.VICTIM else made

    monkeypatch.setattr(LocalWork, "source", source)
    consortium.run()
    stopped = [hospital.open.site._local.stopped for hospital in consortium.hospitals.values()]  # type: ignore[union-attr]
    assert stopped == [True] * 3
    first = consortium.outcomes[0]
    assert first.aborted is not None
    assert "no hospital could open the sum" in first.aborted.message
    assert [kind for kind, _ in consortium.log][:2] == ["summed", "aborted"]


def test_a_sum_that_reached_nobody_is_taken_later(consortium: durable_case.Consortium) -> None:
    lost: list[str] = []

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Any) -> bytes:
        if stage == "result" and len(lost) < 3:
            lost.append(stage)
            raise LinkError("away", remedy="none")
        return hospital.handle(frame)

    consortium.deliver = deliver
    consortium.run()
    assert [outcome.aborted is None for outcome in consortium.outcomes] == [False, True]
    assert {hospital.open.site.sums for hospital in consortium.hospitals.values()} == {2}  # type: ignore[union-attr]
