"""A site rebuilt from ``attempt.json`` alone: what another implementation would do with the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from secfed.crypto import labels, sealing
from secfed.crypto.attempt import Entropy, SiteContribution
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.messages import Sharing, Specification
from tests.journals import NoMemory
from tests.ring import Integers
from tests.simulator import STAGES
from tests.vectors.primitives import Json


class RecordedEntropy(Entropy):
    """Every draw of one site, as it is written down."""

    def __init__(self, recorded: Json, sharing: str | None) -> None:
        self._tokens = {
            "mask secret": bytes.fromhex(recorded["mask_secret"]),
            "self-mask seed": bytes.fromhex(recorded["self_seed"]),
        }
        both = recorded["coefficients_of_mask_secret"] + recorded["coefficients_of_self_seed"]
        self._coefficients = iter([int(value, 16) for value in both])
        self._mlkem = bytes.fromhex(recorded["seal_key_mlkem_seed"])
        self._x25519 = bytes.fromhex(recorded["seal_key_x25519_private"])
        envelopes = Sharing.decode(bytes.fromhex(sharing)).envelopes if sharing else ()
        self._sealed = {envelope.recipient: envelope for envelope in envelopes}

    def token(self, purpose: str) -> bytes:
        """The recorded secret."""
        return self._tokens[purpose]

    def below(self, limit: int) -> int:
        """The recorded coefficient."""
        return next(self._coefficients)

    def seal_key(self) -> sealing.SealKey:
        """The recorded key pair."""
        return sealing.SealKey.from_seeds(self._mlkem, self._x25519)

    def seal(self, public_bytes: bytes, plaintext: bytes, label: bytes, *context: bytes) -> bytes:
        """The recorded envelope."""
        envelope = self._sealed[context[3].decode()]
        return envelope.sealed_seed if label == labels.SEAL_PAIR_SEED else envelope.sealed_shares


def request_to(vectors: Json, stage: str, site: str) -> bytes:
    """The recorded request to a site."""
    requests: dict[str, Any] = vectors["requests"][stage]
    return bytes.fromhex(requests.get("message") or requests[site])


def rebuild(vectors: Json, site: str, until: str | None = None) -> MaskedSite:
    """A site's session, carried up to stage ``until``; every reply must be the recorded one."""
    recorded = vectors["sites"][site]
    spec = Specification.decode(request_to(vectors, "advertise", site))
    runs = tuple(Run(bits, count) for bits, count in vectors["layout"]["runs"])
    lanes = [np.array(v, run.dtype) for v, run in zip(recorded["ring_integers"], runs, strict=True)]
    given = SiteContribution(
        identity=Identity.from_seed(site, bytes.fromhex(recorded["identity_seed"])),
        roster=Roster.decode(bytes.fromhex(vectors["roster"])),
        study=spec.study,
        round=spec.round,
        exchange=spec.exchange,
        exchange_index=spec.exchange_index,
        shape=VectorShape(runs, bytes.fromhex(vectors["layout"]["digest"])),
        broadcast_digest=bytes.fromhex(vectors["broadcast_digest"]),
        source=Integers(tuple(lanes)),
        journal=NoMemory(),
        entropy=RecordedEntropy(recorded, vectors["replies"]["share"].get(site)),
    )
    session = MaskedSite(given)
    for stage in STAGES:
        if stage == until:
            break
        reply = bytes(session.handle(request_to(vectors, stage, site)))
        expected = vectors["replies"].get(stage, {}).get(site, "")
        assert reply.hex() == expected, f"{site} at {stage}: another reply than the recorded one"
    return session
