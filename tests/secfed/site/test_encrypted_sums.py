"""Whole sites and a malicious aggregator: which sums they take, and what follows from one that is none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tenseal", reason="encrypted protection needs the extra 'he'")

import torch

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters
from secfed.crypto.encrypted.bfv_tenseal import generate_keys
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.messages import Summed
from secfed.crypto.encrypted.server import UPLOAD, FrameFormat
from secfed.crypto.encrypted.session import EncryptedServer
from secfed.crypto.identity import Identity
from secfed.crypto.keystream import RoundingStream
from secfed.crypto.messages import Upload
from secfed.errors import (
    BadSignature,
    InconsistentView,
    MalformedMessage,
    RangeError,
    RoundAborted,
    SecfedError,
    UnmaskRefused,
    WrongState,
)
from secfed.study.study import Study
from secfed.wire.frames import Notice, Step, decode
from tests.crypto.encrypted_case import added, resigned
from tests.secfed import durable_case
from tests.secfed.site.closed_case import SITE, run, watch
from tests.secfed.site.held_case import HeldSum, hold_back
from tests.secfed.site.test_encrypted_session import STUDY

VICTIM = "hospital-2"


@dataclass
class Held(HeldSum[Summed]):
    """With encrypted sums.

    Attributes:
        uploads: per specification digest and site, the vectors that arrived.
        decrypted: one entry for each decryption since.
    """

    uploads: dict[bytes, dict[str, bytes]] = field(default_factory=dict)
    decrypted: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> Parameters:
        exchange = self.site._exchange(self.last.spec.round, self.last.spec.exchange_index)
        return self.rounds.protection.parameters(exchange)

    def sum_of(self, *names: str, of: Summed | None = None) -> dict[str, Any]:
        """The honest sum of some uploads, with nonces and tag."""
        vectors = self.uploads[(self.last if of is None else of).spec.digest]
        return added(self.parameters, {name: vectors[name] for name in names})

    def changed(self, **changes: Any) -> Summed:
        """The last sum with something changed, and signed again."""
        return resigned(self.rounds.rules.identity, self.last, **changes)

    def refused(self, summed: Summed, number: int) -> None:
        """And nothing was decrypted."""
        super().refused(summed, number)
        assert not self.decrypted


@pytest.fixture(scope="module")
def played() -> Held:
    uploads: dict[bytes, dict[str, bytes]] = {}
    receive = EncryptedServer.receive

    def note_upload(self: EncryptedServer, site: str, reply: Buffer) -> None:
        uploads.setdefault(self._spec.digest, {})[site] = bytes(Upload.decode(reply).vector)
        receive(self, site, reply)

    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch)
        patch.setattr(EncryptedServer, "receive", note_upload)
        hold_back(patch)
        run(Study.parse(STUDY).replace("study.rounds", 2), None)
    made = Held(seen.sites[SITE], seen.rounds[0], seen.sums[:2], uploads)
    assert (made.site.sums, made.last.spec.round) == (1, 2)
    return made


@pytest.fixture
def held(played: Held, monkeypatch: pytest.MonkeyPatch) -> Held:
    """With a copy of the site, which each test brings into another state."""
    made = replace(played.with_a_copy(), decrypted=[])
    decrypt = SiteCipher.decrypt

    def noted(self: SiteCipher, parameters: Parameters, frames: Any) -> Any:
        made.decrypted.append("")
        return decrypt(self, parameters, frames)

    monkeypatch.setattr(SiteCipher, "decrypt", noted)
    return made


# Sums of other uploads than those of the named survivors.


def test_one_upload_presented_as_the_sum_with_invented_survivors_is_refused(held: Held) -> None:
    """All sites once took this, and held another hospital's update to 1.5e-8."""
    alone = held.sum_of(VICTIM)
    forged = held.changed(ciphertext=alone["ciphertext"], tag=alone["tag"])  # survivors and nonces of all
    assert len(forged.result.survivors) == 4
    held.refused(forged, 45)
    assert held.is_stopped()


def test_the_words_of_one_upload_under_the_tag_of_the_whole_sum_are_refused(held: Held) -> None:
    held.refused(held.changed(ciphertext=held.sum_of(VICTIM)["ciphertext"]), 45)
    assert held.is_stopped()


def test_a_sum_that_leaves_out_a_survivor_whom_it_names_is_refused(held: Held) -> None:
    without = held.sum_of(*held.last.result.survivors[:-1])
    held.refused(held.changed(ciphertext=without["ciphertext"], tag=without["tag"]), 45)


def test_uploads_of_another_round_are_refused(held: Held) -> None:
    earlier = held.sum_of(*held.last.result.survivors, of=held.sums[0])
    held.refused(held.changed(**earlier), 45)


def test_a_flipped_bit_of_the_tag_is_refused_and_stops_the_study(held: Held) -> None:
    tag = held.last.tag[:-1] + bytes([held.last.tag[-1] ^ 1])
    held.refused(held.changed(tag=tag), 45)
    assert held.is_stopped()


# What is wrong before anything is computed is refused, and the honest sum is taken afterwards.


def test_fewer_survivors_than_the_study_wants_are_refused_though_the_sum_is_theirs(held: Held) -> None:
    two = held.last.result.survivors[:2]
    with pytest.raises(UnmaskRefused):
        held.give(held.changed(survivors=two, **held.sum_of(*two)))
    held.refused(held.changed(survivors=two[1:], **held.sum_of(*two[1:])), 29)
    assert not held.is_stopped()


def test_a_sum_for_another_specification_than_the_one_that_the_site_signed_for_is_refused(held: Held) -> None:
    for change in ({"attempt": 1}, {"cohort": held.last.spec.cohort[1:]}, {"threshold": 4}):
        spec = replace(held.last.spec, **change)  # type: ignore[arg-type]
        survivors = spec.cohort
        held.refused(held.changed(spec=spec, survivors=survivors, **held.sum_of(*survivors)), 36)
    assert not held.is_stopped()


def test_a_site_that_uploaded_nothing_is_no_survivor(held: Held) -> None:
    held.site._uploaded = None
    held.refused(held.last, 36)
    others = held.last.result.survivors[1:]
    held.give(held.changed(survivors=others, **held.sum_of(*others)))  # it was away: it takes their sum
    assert held.site.sums == 2


def test_the_sum_of_an_exchange_before_the_newest_upload_is_refused(held: Held) -> None:
    uploaded = held.site._uploaded
    assert uploaded is not None
    held.site._uploaded = replace(uploaded, here=(3, 0))
    with pytest.raises(InconsistentView, match="later"):
        held.give(held.last)
    assert not held.decrypted


def test_a_sum_taken_before_is_refused(held: Held) -> None:
    with pytest.raises(InconsistentView, match="taken before"):
        held.give(held.sums[0])
    held.give(held.last)
    held.site._uploaded = None
    with pytest.raises(InconsistentView, match="taken before"):
        held.give(held.last)
    assert held.decrypted == [""]


def test_forged_altered_or_unlisted_sums_are_refused(held: Held) -> None:
    last = held.last
    stranger = Identity.generate("aggregator")
    forged = stranger.sign(labels.SIGN_RESULT, last.result.body())
    with pytest.raises(BadSignature):
        held.give(replace(last, result=replace(last.result, signature=forged)))
    held.refused(replace(last, ciphertext=bytes(len(last.ciphertext))), 36)
    held.refused(held.changed(survivors=(*last.result.survivors, "hospital-9")), 36)
    held.refused(held.changed(spec=replace(last.spec, broadcast_digest=bytes(32))), 36)
    assert not held.is_stopped()


# What is wrong once a sum was begun to be read stops the study.


def test_uploads_that_do_not_decrypt_stop_the_study_though_their_tags_are_right(held: Held) -> None:
    exchange = held.site._exchange(held.last.spec.round, held.last.spec.exchange_index)
    parameters, vectors = held.parameters, {}
    form = FrameFormat(parameters, UPLOAD)
    nothing = {field.name: torch.zeros(field.shape) for field in exchange.layout.fields}
    with SiteCipher(generate_keys(parameters.ring)) as stranger:
        for name in held.last.result.survivors:
            source = exchange.layout.encoder(nothing, RoundingStream())
            frames = b"".join(stranger.encrypt(parameters, source))
            spec_digest = held.last.spec.digest
            tag = held.site._opening.cipher().tag(parameters, spec_digest, name, form.split(frames))
            vectors[name] = frames + tag
    bad = held.changed(**added(parameters, vectors))
    with pytest.raises(RangeError):
        held.give(bad)
    for summed in (bad, held.last):  # no second answer, not even to the real sum
        with pytest.raises(WrongState, match="stopped the study"):
            held.give(summed)


@pytest.mark.parametrize("problem", ["words", "nonces"])
def test_a_malformed_sum_stops_the_study_before_anything_is_decrypted(held: Held, problem: str) -> None:
    """Otherwise a bad last frame would buy any number of answers about the frames before it."""
    not_reduced = held.last.ciphertext[:-32] + b"\xff" * 32
    change = {"ciphertext": not_reduced} if problem == "words" else {"nonces": held.last.nonces[:-16]}
    with pytest.raises(MalformedMessage, match="not reduced" if problem == "words" else "nonce"):
        held.give(held.changed(**change))
    assert not held.decrypted
    assert held.is_stopped()


@pytest.mark.parametrize("problem", [ZeroDivisionError, KeyError, WrongState])
def test_a_server_step_that_fails_in_any_way_stops_the_study(
    held: Held, monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    """An error that nobody thought of answers a chosen ciphertext, too, and it would do so for ever."""

    def fails(*_: object) -> None:
        raise problem("1.25")

    with monkeypatch.context() as patch:
        patch.setattr(type(held.site.replica), "absorb", fails)
        with pytest.raises(SecfedError) as refused:
            held.give(held.last)
    if problem is not WrongState:
        assert isinstance(refused.value, RoundAborted)
        assert "1.25" not in str(refused.value)
    assert held.is_stopped()


def test_a_machine_without_memory_does_not_stop_the_study(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(held.site.replica), "absorb", fails)
        with pytest.raises(MemoryError):
            held.give(held.last)
    other = bytes(reversed(held.last.ciphertext))  # it must not buy an answer about another sum
    with pytest.raises(InconsistentView, match="begun before"):
        held.give(held.changed(ciphertext=other))
    assert not held.is_stopped()


# Restarts.


def test_a_restarted_site_knows_which_specification_it_signed_for(tmp_path: Path) -> None:
    consortium = durable_case.Consortium(durable_case.study("encrypted", None), tmp_path / "x")
    aggregator, checked = consortium.rules.identity, []

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Buffer) -> bytes:
        if (stage, hospital.identity.name) == ("result", durable_case.VICTIM) and not checked:
            notice = decode(frame)
            assert isinstance(notice, Notice)
            real = Summed.decode(notice.message)
            # A stray message ends the attempt at this site: what it signed for is known all the same.
            with pytest.raises(SecfedError, match="refusal 1: "):
                hospital.handle(Step(real.spec.round, real.spec.exchange_index, 0, b"stray").encode())
            hospital.start()
            for change in ({"attempt": 1}, {"threshold": 2}):
                other = resigned(aggregator, real, spec=replace(real.spec, **change))  # type: ignore[arg-type]
                with pytest.raises(InconsistentView, match="refusal 36: "):
                    hospital.handle(Notice(other.encode()).encode())
            checked.append(stage)
        return hospital.handle(frame)

    consortium.deliver = deliver
    consortium.run()
    assert checked
    assert [outcome.aborted for outcome in consortium.outcomes] == [None] * len(consortium.outcomes)
    consortium.close()


def test_a_wrong_tag_stops_the_study_for_good(tmp_path: Path) -> None:
    consortium = durable_case.Consortium(durable_case.study("encrypted", None), tmp_path / "x")
    victim, aggregator = consortium.hospitals[durable_case.VICTIM], consortium.rules.identity
    refused: list[str] = []

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Buffer) -> bytes:
        if (stage, hospital) != ("result", victim) or refused:
            return hospital.handle(frame)
        notice = decode(frame)
        assert isinstance(notice, Notice)
        real = Summed.decode(notice.message)
        forged = resigned(aggregator, real, tag=bytes(len(real.tag)))
        with pytest.raises(InconsistentView, match="refusal 45: "):
            hospital.handle(Notice(forged.encode()).encode())
        hospital.start()
        with pytest.raises(WrongState, match="stopped the study") as error:
            hospital.handle(frame)
        refused.append(error.value.message)
        raise error.value

    consortium.deliver = deliver
    consortium.run()
    assert refused
    others = [outcome.survivors for outcome in consortium.outcomes]
    assert others[0] == durable_case.NAMES  # the others took the sum and would go on, were they enough
    consortium.close()
