"""Whole studies with closed sums: the same model, nothing to read for the aggregator, no other sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.messages import ClosedSum
from secfed.crypto.identity import Identity
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Result
from secfed.errors import BadSignature, ConfigError, InconsistentView, SecfedError, WrongState
from secfed.server.opened_rounds import OpenedRounds
from secfed.simulation import simulate as simulation
from secfed.site.encrypted_store import Settled
from secfed.site.opening_session import OpeningSession
from secfed.study.study import Study
from secfed.wire.frames import Notice, Step, decode, encode_state
from tests.secfed import durable_case
from tests.secfed.site.closed_case import SITE, STUDY, Seen, run, study, watch
from tests.secfed.site.held_case import HeldSum, hold_back

DROPS = [
    f"hospital-{2 + number % 3}@{stage}:{number}"
    for number, stage in enumerate(
        ("train", "advertise", "share", "confirm", "mask", "consistency", "unmask"), start=1
    )
]


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a run takes longer than running it."""
    monkeypatch.setattr(simulation, "write_run", lambda *_: None)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return watch(monkeypatch)


def test_the_model_is_that_of_open_sums_with_a_dropout_at_every_stage(tmp_path: Path, seen: Seen) -> None:
    chosen = study(7)
    report = run(chosen, tmp_path / "closed", *DROPS)
    for name in ("plain", "masked"):
        same = chosen.replace("protection.reveal", None).replace("protection.name", name)
        drops = DROPS
        if name == "plain":  # it has no such stages: who is in a sum is what counts
            drops = [drop.split("@")[0] + "@train:" + drop.split(":")[1] for drop in DROPS[:5]]
        run(same, tmp_path / name, *drops)
    written = [path.read_bytes() for path in tmp_path.glob("*/model.safetensors")]
    assert (len(written), len(set(written))) == (3, 1)
    assert [entry.aborted for entry in report.rounds] == [None] * len(report.rounds)
    assert {site.sums for site in seen.sites.values()} == {8}
    assert written[0] == encode_state(seen.sites[SITE].replica.model())
    assert "no totals" in report.saw


# A malicious aggregator.


class Held(HeldSum[ClosedSum]):
    """With closed sums."""

    def changed(self, **changes: Any) -> ClosedSum:
        """The last sum with something changed, signed again by the aggregator."""
        survivors = changes.pop("survivors", self.last.result.survivors)
        made = replace(self.last, **changes)
        spec = signed(replace(made.spec, signature=b""), self.rounds.rules.identity, labels.SIGN_SPEC)
        unsigned = Result(spec.digest, survivors, made.totals_digest)
        result = signed(unsigned, self.rounds.rules.identity, labels.SIGN_RESULT)
        return replace(made, spec=spec, result=result)


@pytest.fixture(scope="module")
def played() -> Held:
    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch)
        hold_back(patch)
        patch.setattr(OpeningSession, "rest", lambda _self: None)  # its session is wanted below
        # The closing evaluation would end the session of the second round.
        patch.setattr(OpenedRounds, "_round", _first_two(OpenedRounds._round))
        run(study(), None)
    site = seen.sites[SITE]
    assert (site.sums, seen.sums[-1].spec.round) == (1, 2)
    return Held(site, seen.rounds[0], seen.sums)


def _first_two(original: Any) -> Any:
    def limited(self: OpenedRounds, number: int, outcome: Any) -> None:
        if number <= 2:
            original(self, number, outcome)

    return limited


@pytest.fixture
def held(played: Held) -> Held:
    return played.with_a_copy()


def _shifted(closed: Buffer, at: int) -> bytes:
    data = bytearray(closed)
    data[at] ^= 4
    return bytes(data)


@pytest.mark.parametrize("at", [0, 77, -97, -1])
def test_a_sum_with_one_lane_or_tag_shifted_is_refused_and_stops_the_study(held: Held, at: int) -> None:
    held.refused(held.changed(vector=_shifted(held.last.vector, at)), 45)
    assert held.is_stopped()


def test_an_older_closed_total_under_the_new_specification_is_refused(held: Held) -> None:
    older = held.sums[0]
    held.refused(held.changed(vector=older.vector, adverts_digest=older.adverts_digest), 45)
    assert held.is_stopped()


def test_a_sum_that_was_taken_before_is_refused(held: Held) -> None:
    with pytest.raises(InconsistentView, match="taken before"):
        held.give(held.sums[0])
    assert not held.is_stopped()


def test_another_survivor_list_than_the_site_signed_is_refused_before_anything_is_opened(held: Held) -> None:
    assert held.site._session is not None
    assert held.site._session.view == held.last.result.survivors
    held.refused(held.changed(survivors=held.last.result.survivors[:-1]), 36)
    assert not held.is_stopped()


def test_a_site_that_no_longer_knows_what_it_signed_refuses_another_survivor_list_by_the_tags(
    held: Held,
) -> None:
    held.site._session = None
    held.refused(held.changed(survivors=held.last.result.survivors[:-1]), 45)
    assert held.is_stopped()


def test_another_advertised_set_is_refused(held: Held) -> None:
    held.refused(held.changed(adverts_digest=bytes(32)), 45)


def test_too_few_survivors_and_other_specifications_are_refused(held: Held) -> None:
    held.site._session = None
    held.refused(held.changed(survivors=held.last.result.survivors[:3]), 29)
    held.refused(held.changed(spec=replace(held.last.spec, attempt=1)), 36)
    held.refused(replace(held.last, vector=_shifted(held.last.vector, 0)), 36)
    held.refused(replace(held.last, adverts_digest=bytes(32)), 36)  # not what the aggregator signed
    stranger = Identity.generate("aggregator").sign(labels.SIGN_RESULT, held.last.result.body())
    with pytest.raises(BadSignature):
        held.give(replace(held.last, result=replace(held.last.result, signature=stranger)))
    assert not held.is_stopped()


def test_two_survivors_are_too_few_whatever_the_study_and_the_hospital_ask_for(held: Held) -> None:
    made = held.changed(spec=replace(held.last.spec, threshold=1), survivors=held.last.result.survivors[:2])
    held.site._session, held.site._limits = None, SiteLimits(1, 1)
    held.site._uploaded = Settled((made.spec.round, made.spec.exchange_index), made.spec.digest)
    held.refused(made, 29)
    assert not held.site._local.stopped


def test_what_a_site_signed_about_survivors_counts_for_that_attempt_only(held: Held) -> None:
    """It takes sums that it has no part in while it still knows an older attempt."""
    assert held.site._signed_view(held.last.spec.digest) == held.last.result.survivors
    assert held.site._signed_view(held.sums[0].spec.digest) is None


def test_different_totals_at_different_sites_are_refused_where_they_are_not_the_sum(seen: Seen) -> None:
    """One site is given another total: it stops, and the others, who have the real one, go on."""
    handle = OpeningSession._take

    def other(self: OpeningSession, one: ClosedSum) -> None:
        if self._identity.name == SITE and one.spec.round == 1:
            identity = seen.rounds[0].rules.identity
            forged = Held(self, seen.rounds[0], [one])
            one = forged.changed(vector=_shifted(one.vector, 9))
            assert one.result.signature != identity.sign(labels.SIGN_RESULT, b"")
        handle(self, one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpeningSession, "_take", other)
        report = run(study(), None)
    assert seen.sites[SITE]._local.stopped
    assert [entry.aborted for entry in report.rounds] == [None, None]
    assert SITE not in report.rounds[1].survivors


# Restarts.


def test_a_restarted_site_knows_what_it_signed_and_stays_stopped_after_a_wrong_sum(tmp_path: Path) -> None:
    consortium = durable_case.Consortium(durable_case.study("closed", None), tmp_path / "x")
    victim, identity = consortium.hospitals[durable_case.VICTIM], consortium.rules.identity
    checked: list[str] = []

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Buffer) -> bytes:
        if (stage, hospital) != ("result", victim) or checked:
            return hospital.handle(frame)
        notice = decode(frame)
        assert isinstance(notice, Notice)
        real = ClosedSum.decode(notice.message)
        # A result as of open sums is none of this protocol, and ends the attempt at this site: what it
        # uploaded for is known all the same.
        with pytest.raises(SecfedError, match="refusal 2: "):
            hospital.handle(Step(real.spec.round, real.spec.exchange_index, 0, real.result.encode()).encode())
        hospital.start()
        for change, number in (({"attempt": 1}, 36), ({}, 45)):
            spec = signed(replace(real.spec, **change, signature=b""), identity, labels.SIGN_SPEC)  # type: ignore[arg-type]
            made = replace(real, spec=spec, vector=_shifted(real.vector, 3))
            unsigned = Result(spec.digest, real.result.survivors, made.totals_digest)
            made = replace(made, result=signed(unsigned, identity, labels.SIGN_RESULT))
            with pytest.raises(InconsistentView, match=f"refusal {number}: "):
                hospital.handle(Notice(made.encode()).encode())
        hospital.start()
        with pytest.raises(WrongState, match="stopped the study"):
            hospital.handle(frame)
        checked.append(stage)
        raise durable_case.Killed

    consortium.deliver = deliver
    with pytest.raises(durable_case.Killed):
        consortium.run()
    assert checked
    consortium.close()


def test_in_a_sparse_graph_a_hospital_that_restarts_after_every_message_takes_the_same_sums(
    tmp_path: Path,
) -> None:
    chosen = durable_case.study("closed", None).replace("protection.graph", "sparse")
    people = (*durable_case.NAMES, "hospital-4")
    consortium = durable_case.Consortium(chosen.replace("data.sites", 4), tmp_path / "x", people=people)
    restarted: list[str] = []

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Buffer) -> bytes:
        reply = hospital.handle(frame)
        if hospital.identity.name == durable_case.VICTIM and stage != "keys":
            hospital.start()
            restarted.append(stage)
        return reply

    consortium.deliver = deliver
    consortium.run()
    assert {"choose", "share", "mask", "unmask", "result"} < set(restarted)
    assert [outcome.survivors for outcome in consortium.outcomes] == [people] * 2
    sites = [one.open.site for one in consortium.hospitals.values() if one.open]
    assert {site.sums for site in sites} == {2}
    assert len({encode_state(site.replica.model()) for site in sites if site.replica}) == 1
    consortium.close()


# The study file.


@pytest.mark.parametrize("name", ["plain", "encrypted"])
def test_only_masked_sums_can_be_closed(name: str) -> None:
    with pytest.raises(ConfigError, match=r"protection\.reveal: has no effect under"):
        Study.parse(STUDY.format(rounds=1).replace('name = "masked"', f'name = "{name}"'))


def test_who_reads_sums_is_part_of_the_study_and_its_default_changes_no_digest() -> None:
    closed = study()
    opened = closed.replace("protection.reveal", "aggregator")
    assert closed.digest() != opened.digest()
    assert opened.digest() == closed.replace("protection.reveal", None).digest()
    assert "reveal" not in opened.tables()["protection"]
    assert (closed.protection.kind, opened.protection.kind) == ("closed", "masked")
    assert closed.protection.tolerated_colluders(7) == opened.protection.tolerated_colluders(7) == 2
    named = closed.replace("protection.key_holder", "hospital-9")
    with pytest.raises(ConfigError, match="hospital-9"):
        run(named, None)
    with pytest.raises(ConfigError, match=r"protection\.key_holder: has no effect"):
        opened.replace("protection.key_holder", SITE)
