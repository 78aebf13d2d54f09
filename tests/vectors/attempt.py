"""The vector of a whole attempt: five sites, one drop, byte for byte.

Sealing is random inside the library. The first run seals and the file keeps the envelopes; a later run
replays an envelope from the file if it opens, under the right key and context, to exactly what has to be
sealed. Everything else is derived, so a later run must give the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from secfed.crypto import labels, sealing
from secfed.crypto.attempt import Entropy
from secfed.crypto.keystream import RoundingStream
from secfed.crypto.masked.key_derivation import mask_key
from secfed.crypto.messages import Envelope, Sharing
from secfed.errors import MalformedMessage
from secfed.wire.layout import Field, Layout, state_digest
from tests.simulator import Attempt, Consortium, SeededEntropy
from tests.vectors.primitives import Json, pattern

FILE = "attempt.json"
SITES, DROPPED, DROPPED_AT = 5, "hospital-3", "mask"
LAYOUT = Layout(
    (Field("weight", (2, 2), 4.0, 12), Field("loss", (), 100.0, 64), Field("bias", (3,), 1.0, 12)), SITES
)


@dataclass
class Envelopes:
    """The envelopes of an earlier run, and the private keys of this one to test them with."""

    recorded: dict[tuple[str, str], Envelope] = field(default_factory=dict)
    keys: dict[bytes, sealing.SealKey] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Envelopes:
        """From the file, if there is one."""
        envelopes = cls()
        if (folder / FILE).exists():
            replies = json.loads((folder / FILE).read_text())["replies"]["share"]
            for reply in replies.values():
                for envelope in Sharing.decode(bytes.fromhex(reply)).envelopes:
                    envelopes.recorded[(envelope.sender, envelope.recipient)] = envelope
        return envelopes

    def seal(self, public: bytes, plaintext: bytes, label: bytes, *context: bytes) -> bytes:
        """The recorded envelope if it is what is asked for, a fresh one otherwise."""
        sender, recipient = context[2].decode(), context[3].decode()
        envelope = self.recorded.get((sender, recipient))
        if envelope is not None:
            sealed = envelope.sealed_seed if label == labels.SEAL_PAIR_SEED else envelope.sealed_shares
            try:
                if self.keys[public].open(sealed, label, *context) == plaintext:
                    return sealed
            except MalformedMessage:
                pass
        return sealing.seal(public, plaintext, label, *context)


class VectorEntropy(Entropy):
    """Draws that depend on the site and are written down."""

    def __init__(self, site: str, envelopes: Envelopes) -> None:
        self._from, self._envelopes = SeededEntropy("secfed/v1 test vectors", site), envelopes
        self.tokens: dict[str, str] = {}
        self.coefficients: list[str] = []
        self.drawn: list[tuple[str, int]] = []  # all of them, with what each is below
        self.mlkem_seed, self.x25519_private = pattern(f"{site} ML-KEM", 64), pattern(f"{site} X25519")

    def token(self, purpose: str) -> bytes:
        """The mask secret or the self-mask seed."""
        drawn = self._from.token(purpose)
        self.tokens[purpose] = drawn.hex()
        if purpose == "mask secret":
            key = mask_key(drawn)
            self._envelopes.keys[key.public_bytes] = key
        return drawn

    def below(self, limit: int) -> int:
        """A Shamir coefficient."""
        drawn = self._from.below(limit)
        self.coefficients.append(f"{drawn:066x}")
        self.drawn.append((self.coefficients[-1], limit))
        return drawn

    def seal_key(self) -> sealing.SealKey:
        """The seal key pair."""
        key = sealing.SealKey.from_seeds(self.mlkem_seed, self.x25519_private)
        self._envelopes.keys[key.public_bytes] = key
        return key

    def seal(self, public_bytes: bytes, plaintext: bytes, label: bytes, *context: bytes) -> bytes:
        """A recorded envelope, or a fresh one."""
        return self._envelopes.seal(public_bytes, plaintext, label, *context)


def summands(site: int) -> dict[str, torch.Tensor | float]:
    """What one site adds: one value is clipped, one lies on the bound."""
    weight = torch.tensor([[0.5, -1.25], [4.0, -9.0]], dtype=torch.float64) * (1 + site / 8)
    return {"weight": weight, "loss": 12.5 + site, "bias": torch.tensor([1.0, -1 / 3, site / 7])}


def run_attempt(envelopes: Envelopes) -> tuple[Attempt, dict[str, VectorEntropy]]:
    """The attempt up to its end."""
    consortium = Consortium(SITES, seed=1)
    consortium.shape = LAYOUT.shape
    consortium.broadcast_digest = state_digest(b"the broadcast of the test vectors")
    entropies = {name: VectorEntropy(name, envelopes) for name in consortium.names}
    given = {
        name: {
            "entropy": entropies[name],
            "source": LAYOUT.encoder(summands(index), RoundingStream(pattern(f"{name} rounding"))),
        }
        for index, name in enumerate(consortium.names)
    }
    attempt = Attempt(
        consortium, consortium.specification(), contributions=given, silent={DROPPED: DROPPED_AT}
    )
    return attempt, entropies


def attempt_vectors(folder: Path) -> Json:
    """The whole attempt; its recorded envelopes are taken from ``folder``."""
    attempt, entropies = run_attempt(Envelopes.load(folder))
    consortium, spec = attempt.consortium, attempt.spec
    requests: dict[str, Any] = {}
    while attempt.stage != "over":
        stage = attempt.stage
        pending = {site: bytes(message).hex() for site, message in attempt.requests.items()}
        same = len(set(pending.values())) == 1
        requests[stage] = {"to": list(pending), "message": next(iter(pending.values()))} if same else pending
        attempt.step()
    replies: dict[str, dict[str, str]] = {}
    for stage, site, reply in attempt.replies:
        if reply:
            replies.setdefault(stage, {})[site] = reply.hex()
    totals = LAYOUT.decode(attempt.server.sums, attempt.server.survivors)
    return {
        "about": f"{SITES} sites, {DROPPED} silent from stage {DROPPED_AT!r} on; hexadecimal throughout",
        "aggregator_identity_seed": consortium.aggregator.private_bytes().hex(),
        "roster": consortium.roster.encode().hex(),
        "roster_digest": consortium.roster.digest.hex(),
        "layout": {
            "sites": LAYOUT.sites,
            "fields": [[f.name, list(f.shape), f.bound.hex(), f.bits] for f in LAYOUT.fields],
            "runs": [[run.bits, run.count] for run in LAYOUT.shape.runs],
            "digest": LAYOUT.digest.hex(),
        },
        "broadcast": b"the broadcast of the test vectors".hex(),
        "broadcast_digest": spec.broadcast_digest.hex(),
        "specification_digest": spec.digest.hex(),
        "sites": {
            name: _site(index, name, entropies[name], consortium)
            for index, name in enumerate(consortium.names)
        },
        "requests": requests,
        "replies": replies,
        "survivors": list(attempt.server.survivors),
        "sums": [[int(lane) for lane in run] for run in attempt.server.sums],
        "totals": {
            name: [value.hex() for value in tensor.reshape(-1).tolist()] for name, tensor in totals.items()
        },
    }


def _site(index: int, name: str, entropy: VectorEntropy, consortium: Consortium) -> Json:
    values = {
        key: [float(value).hex() for value in torch.as_tensor(value).reshape(-1).tolist()]
        for key, value in summands(index).items()
    }
    rounding_key = pattern(f"{name} rounding")
    encoder = LAYOUT.encoder(summands(index), RoundingStream(rounding_key))
    ring = []
    for run in LAYOUT.shape.runs:
        lanes = np.zeros(run.count, run.dtype)
        encoder.fill(run, lanes)
        ring.append([int(lane) & ((1 << run.bits) - 1) for lane in lanes])
    return {
        "identity_seed": consortium.identities[name].private_bytes().hex(),
        "mask_secret": entropy.tokens["mask secret"],
        "self_seed": entropy.tokens["self-mask seed"],
        "seal_key_mlkem_seed": entropy.mlkem_seed.hex(),
        "seal_key_x25519_private": entropy.x25519_private.hex(),
        "coefficients_of_mask_secret": entropy.coefficients[: len(entropy.coefficients) // 2],
        "coefficients_of_self_seed": entropy.coefficients[len(entropy.coefficients) // 2 :],
        "summands": values,
        "rounding_key": rounding_key.hex(),
        "ring_integers": ring,
    }


def attempt_files(folder: Path) -> Mapping[str, Json]:
    """File name -> content."""
    return {FILE: attempt_vectors(folder)}
