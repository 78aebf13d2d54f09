"""The finished model in a transcript: which file a study came to.

Whoever holds the model when a study ends writes one entry of kind MODEL into its transcript, with
the aggregator's signature where it was given the model (:mod:`secfed.runs.final_model`). The digest is the
SHA-256 of ``model.safetensors``: safetensors writes equal models as equal bytes, and ``sha256sum`` compares
the file without this software.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from secfed.crypto.codec import Buffer
from secfed.crypto.identity import SIGNATURE_BYTES
from secfed.crypto.messages import DIGEST_BYTES
from secfed.errors import TranscriptError
from secfed.records.hash_chain import Entry, canonical_json
from secfed.records.transcript import FOLLOWED, SUMMED, SumRecord
from secfed.runs.run_folder import MODEL_FILE
from secfed.runs.run_report import Metrics, numbers

_SUMS: Final = (SUMMED, FOLLOWED)


@dataclass(frozen=True)
class ModelRecord:
    """One finished model."""

    round: int  # last training round of which a sum is in it; 0 for the model that training began with
    sums: int  # sums that its owner took before it was written, those of the closing evaluation included
    sha256: bytes  # of the file, 32 bytes
    size_bytes: int  # of the file
    metrics: bytes = b""  # digest of what was measured, see :func:`metrics_digest`; empty if nothing was
    # the aggregator's, where the owner was given the model; empty where it computed it
    signature: bytes = b""

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        data: Buffer,
        *,
        rounds: int,
        metrics: bytes = b"",
        sums: int | None = None,
    ) -> Self:
        """The record of a model file, from its owner's transcript; ``sums`` of its sums are in it, or all."""
        taken = [SumRecord.from_body(entry.body).round for entry in entries if entry.kind in _SUMS][:sums]
        last = max((number for number in taken if number <= rounds), default=0)
        view = memoryview(data).cast("B")
        return cls(last, len(taken), hashlib.sha256(view).digest(), len(view), metrics)

    def to_body(self) -> dict[str, Any]:
        """Body of a MODEL entry."""
        body: dict[str, Any] = {
            "file": MODEL_FILE,
            "sha256": self.sha256.hex(),
            "bytes": self.size_bytes,
            "round": self.round,
            "sums": self.sums,
        }
        body |= {"metrics": self.metrics.hex()} if self.metrics else {}
        return body | ({"signature": self.signature.hex()} if self.signature else {})

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Read a body, whose further keys are ignored; TranscriptError: a missing key or a wrong type."""
        counts = [body.get(name) for name in ("round", "sums", "bytes")]
        if not all(type(value) is int and value >= 0 for value in counts):
            raise TranscriptError("an entry about a model is incomplete")
        number, sums, size_bytes = (int(str(value)) for value in counts)
        sha256, metrics = _digest(body.get("sha256")), _digest(body.get("metrics", ""))
        signature = _digest(body.get("signature", ""), SIGNATURE_BYTES)
        if not sha256:
            raise TranscriptError("an entry about a model has no digest of it")
        return cls(number, sums, sha256, size_bytes, metrics, signature)


def _digest(value: object, size: int = DIGEST_BYTES) -> bytes:
    """A digest or signature in hexadecimal, or nothing."""
    try:
        data = bytes.fromhex(value) if isinstance(value, str) else b"?"
    except ValueError:
        data = b"?"
    if len(data) not in (0, size):
        raise TranscriptError("an entry about a model has a digest of the wrong form")
    return data


def metrics_digest(versions: Mapping[int, Metrics], rounds: int) -> bytes:
    """Digest of all metrics of a run; empty where nothing was measured.

    Version 0 is the initial model, r the model after round r, and ``rounds`` the final one.
    """
    by_round = {str(number): numbers(found) for number, found in versions.items() if found}
    return _of_parts(by_round.pop("0", None), by_round, numbers(versions.get(rounds, {})))


def run_metrics_digest(content: Mapping[str, Any]) -> bytes:
    """The same digest, from the content of a ``run.json``; TranscriptError if no run writes that."""
    rows = content.get("rounds")
    initial, final = content.get("initial"), content.get("final", {})
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise TranscriptError("it has no list of rounds")
    measured = {str(row.get("round")): row["metrics"] for row in rows if row.get("metrics")}
    return _of_parts(initial, measured, final)


def _of_parts(initial: object, rounds: Mapping[str, object], final: object) -> bytes:
    if not (initial or rounds or final):
        return b""
    parts = {"initial": initial or None, "rounds": rounds, "final": final}
    return hashlib.sha256(canonical_json(parts)).digest()
