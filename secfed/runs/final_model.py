"""The finished model on its way home: what the aggregator sends when a study is over, and what a site checks.

Under plain and masked protection only the aggregator has the model. It signs the model's digest for this
study and roster; a site checks that, and that the bytes are those, before it writes a file. Under encrypted
protection a site has computed the model itself, and refuses any. Nothing is paid for: the model follows
from totals.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster, verify
from secfed.crypto.messages import FinalModel
from secfed.crypto.refusals import Refusal
from secfed.errors import BadSignature, MalformedMessage
from secfed.runs.model_record import ModelRecord


def final_frame(identity: Identity, roster: Roster, study: str, record: ModelRecord, data: Buffer) -> bytes:
    """The frame that carries a finished model to the sites."""
    unsigned = FinalModel(study, roster.digest, record.round, record.sums, record.sha256, model=data)
    from secfed.wire.frames import Notice  # as below

    signature = identity.sign(labels.SIGN_MODEL, unsigned.body())
    return Notice(replace(unsigned, signature=signature).encode()).encode()


def open_final(message: Buffer, roster: Roster, study: str) -> FinalModel:
    """Read and check a finished model.

    Raises:
        MalformedMessage: another message, or not a model (refusal 1).
        BadSignature: the aggregator did not sign it (refusal 40).
        InconsistentView: for another study or roster, or other bytes than were signed (refusal 41).
    """
    try:
        final = FinalModel.decode(message)
    except MalformedMessage as error:
        raise Refusal.MALFORMED.refuse(error.message) from None
    try:
        verify(roster.aggregator, final.signature, labels.SIGN_MODEL, final.body(), who="aggregator")
    except BadSignature:
        raise Refusal.MODEL_SIGNATURE.refuse() from None
    if final.study != study or final.roster_digest != roster.digest:
        raise Refusal.MODEL_MISMATCH.refuse("another study or roster")
    if hashlib.sha256(final.model).digest() != final.model_digest:
        raise Refusal.MODEL_MISMATCH.refuse("another digest")
    from secfed.wire.frames import (
        decode_state,  # needs torch, which whoever only checks records has no use for
    )

    try:
        decode_state(final.model)
    except MalformedMessage:
        raise Refusal.MALFORMED.refuse("the model is not a safetensors file") from None
    return final


def record_of(final: FinalModel) -> ModelRecord:
    """What a site's transcript says about a model that the aggregator signed."""
    size = len(final.model)
    return ModelRecord(final.round, final.sums, final.model_digest, size, signature=final.signature)


def check_signature(record: ModelRecord, roster: Roster, study: str) -> None:
    """Check the aggregator's signature in a site's record of a model."""
    body = FinalModel(study, roster.digest, record.round, record.sums, record.sha256).body()
    verify(roster.aggregator, record.signature, labels.SIGN_MODEL, body, who="aggregator")
