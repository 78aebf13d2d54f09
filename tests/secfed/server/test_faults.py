"""What a hospital does against the protocol stands in the aggregator's transcript, and its records verify."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from secfed.audit.transcript_check import verify_run
from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.masked.states import AwaitUnmask, ClientState
from secfed.crypto.messages import Message, Shares
from secfed.records.roster_file import read_roster
from tests.secfed.server.test_aborted_rounds import run, study

BAD = "hospital-2"


def test_a_false_share_is_recorded_with_the_sum_that_it_did_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = run(study(), tmp_path / "honest")
    answer = AwaitUnmask.handle

    def lie(state: AwaitUnmask, message: Message) -> tuple[ClientState, Buffer]:
        after, reply = answer(state, message)
        given = state.before.own
        if given.site != BAD:
            return after, reply
        first, *others = Shares.decode(reply).shares
        false = Shares((replace(first, share=bytes(33)), *others))
        signature = given.identity.sign(labels.SIGN_UNMASK, state.before.spec.digest, false.body())
        return after, replace(false, signature=signature).encode()

    monkeypatch.setattr(AwaitUnmask, "handle", lie)
    report = run(study(), tmp_path / "lied")
    assert [entry.survivors for entry in report.rounds] == [entry.survivors for entry in honest.rounds]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("honest", "lied")]
    assert models[0] == models[1]
    false = f"{BAD}: site '{BAD}' returned another share than it was dealt and confirmed"
    for name, faults in (("honest", None), ("lied", [false])):
        lines = [json.loads(line) for line in (tmp_path / name / "transcript.jsonl").read_text().splitlines()]
        summed = [line["body"] for line in lines if line["kind"] == "summed"]
        assert summed
        assert all(body.get("faults") == faults for body in summed)
    assert not verify_run(tmp_path / "lied", read_roster(tmp_path / "lied" / "roster.json")).problems
