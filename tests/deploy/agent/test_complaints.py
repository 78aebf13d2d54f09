"""A hospital that complains about another one's envelope tells its own people, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.masked.dealing import Dealer
from secfed.crypto.refusals import Refusal
from secfed.records.chain_file import verify_file
from secfed.records.decision_log import DECISIONS
from secfed.records.decision_state import REFUSAL
from secfed.records.transcript import COMPLAINED, TRANSCRIPT
from secfed.runs.run_folder import DECISIONS_FILE, TRANSCRIPT_FILE, study_folder
from secfed.study.limits import study_id
from tests.deploy.agent_case import NAMES, Centre, status

VICTIM, OTHER, LIAR = NAMES


def lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round, what the liar seals for the victim cannot be opened; it is signed all the same."""
    honest = Dealer._envelope

    def envelope(self: Dealer, peer: Any, *dealt: Any) -> Any:
        made = honest(self, peer, *dealt)
        if (self.own.site, peer.site, self.spec.round) != (LIAR, VICTIM, 1):
            return made
        made = replace(made, sealed_seed=bytes(len(made.sealed_seed)))
        parts = self.spec.digest, self.adverts_digest, made.body()
        return replace(made, signature=self.own.identity.sign(labels.SIGN_ENVELOPE, *parts))

    monkeypatch.setattr(Dealer, "_envelope", envelope)


@pytest.mark.usefixtures("trains_here")
def test_whose_envelope_was_no_good_stands_in_status_transcript_and_decision_log(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies(monkeypatch)
    for name in NAMES:
        centre.start(name)
    errors: list[str] = []
    monkeypatch.setattr(centre.boards[VICTIM], "error", errors.append)
    outcomes = centre.complete()
    assert [outcome.survivors for outcome in outcomes] == [(), NAMES]
    for name, folder in centre.folders.items():
        public = folder.request().identity_key
        path = study_folder(folder.state, study_id(centre.study)) / TRANSCRIPT_FILE
        entries = verify_file(path, public, TRANSCRIPT)
        complaints = [entry.body for entry in entries if entry.kind == COMPLAINED]
        decided = verify_file(folder.state / DECISIONS_FILE, public, DECISIONS)
        refusals = [entry.body for entry in decided if entry.kind == REFUSAL]
        if name != VICTIM:
            assert complaints == refusals == []
            continue
        assert [(body["round"], body["exchange"], body["attempt"], body["of"]) for body in complaints] == [
            (1, "update", 0, [LIAR])
        ]
        assert [(body["number"], body["round"]) for body in refusals] == [(Refusal.ENVELOPE_SEALED.number, 1)]
        assert refusals[0]["text"].endswith(f"({LIAR})")
        assert f"round 1, exchange 'update': a complaint about the envelope of {LIAR}" in errors
        assert status(folder)["totals"]["alarms"] == 0
