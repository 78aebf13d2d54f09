"""Makes the finished models that a site must refuse (message 8, which belongs to no attempt)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch

from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import FinalModel, Specification
from secfed.crypto.refusals import Refusal
from secfed.runs.final_model import open_final
from secfed.wire.frames import encode_state
from tests.vectors.bad import SITE
from tests.vectors.primitives import Json, pattern
from tests.vectors.replay import request_to


def model_cases(attempt: Json) -> list[Json]:
    """Each is an honest model with one change, signed again where the aggregator itself is the attacker."""
    aggregator = Identity.from_seed("aggregator", bytes.fromhex(attempt["aggregator_identity_seed"]))
    roster = Roster.decode(bytes.fromhex(attempt["roster"]))
    study = Specification.decode(request_to(attempt, "advertise", SITE)).study
    model, other = (encode_state({"weight": torch.full((3,), value)}) for value in (1.0, 2.0))
    unsigned = FinalModel(study, roster.digest, 2, 5, hashlib.sha256(model).digest(), model=model)

    def signed(identity: Identity = aggregator, **changes: object) -> FinalModel:
        made = replace(unsigned, **changes)  # type: ignore[arg-type]
        return replace(made, signature=identity.sign(labels.SIGN_MODEL, made.body()))

    honest = signed()
    open_final(honest.encode(), roster, study)
    no_tensors = b"no safetensors"
    cases = [
        ("unsigned", replace(honest, signature=bytes(64)), Refusal.MODEL_SIGNATURE),
        ("of_another_aggregator", signed(Identity.from_seed("x", pattern("x"))), Refusal.MODEL_SIGNATURE),
        ("of_more_sums", replace(honest, sums=6), Refusal.MODEL_SIGNATURE),
        ("of_another_study", signed(study="another"), Refusal.MODEL_MISMATCH),
        ("of_another_roster", signed(roster_digest=bytes(32)), Refusal.MODEL_MISMATCH),
        ("replaced_after_signing", replace(honest, model=other), Refusal.MODEL_MISMATCH),
        (
            "without_tensors",
            signed(model=no_tensors, model_digest=hashlib.sha256(no_tensors).digest()),
            Refusal.MALFORMED,
        ),
    ]
    return [
        {
            "name": f"bad_model_{name}",
            "operation": "open a final model",
            "error": refusal.error.__name__,
            "refusal": refusal.number,
            "study": study,
            "input": message.encode().hex(),
        }
        for name, message, refusal in cases
    ]
