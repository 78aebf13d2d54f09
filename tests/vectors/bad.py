"""Vectors that must fail: each names the operation, its input, the error class and, at a site, the refusal.

The inputs stand in the file; running a case needs nothing else but ``attempt.json``. Where an input is an
honest message of that attempt with a change, it is written as pieces: ``["request", start, end]`` copies
bytes of the honest request, ``["hex", ...]`` inserts others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from secfed.crypto import labels, lanes, messages, sealing, shamir
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.identity import Roster, verify
from secfed.crypto.lanes import Run
from secfed.crypto.messages import Message
from secfed.errors import SecfedError
from secfed.runs.final_model import open_final
from tests.vectors.closed import open_closed
from tests.vectors.primitives import Json
from tests.vectors.replay import rebuild, request_to

SITE = "hospital-1"


def _decode(case: Json, _: Json) -> object:
    kind: type[Message] = getattr(messages, case["message"])
    return kind.decode(bytes.fromhex(case["input"]))


def _combine(case: Json, _: Json) -> object:
    shares = {int(point): bytes.fromhex(share) for point, share in case["shares"].items()}
    return shamir.combine(shares, case["threshold"])


def _choose(case: Json, _: Json) -> object:
    return FixedPoint.choose(bound=float.fromhex(case["bound"]), bits=case["bits"], sites=case["sites"])


def _quantise(case: Json, attempt: Json) -> object:
    rule = _choose(case, attempt)
    assert isinstance(rule, FixedPoint)
    values = np.array([float.fromhex(value) for value in case["values"]])
    return rule.quantise(values, np.zeros(values.size, np.uint32), np.zeros(values.size, rule.dtype))


def _decode_sum(case: Json, attempt: Json) -> object:
    rule = _choose(case, attempt)
    assert isinstance(rule, FixedPoint)
    return rule.decode(np.array(case["sums"], rule.dtype))


def _unpack(case: Json, _: Json) -> object:
    run = Run(case["bits"], case["count"])
    return lanes.unpack_chunk(bytes.fromhex(case["input"]), run, 0, run.count)


def _open(case: Json, _: Json) -> object:
    key = sealing.SealKey.from_seeds(bytes.fromhex(case["mlkem_seed"]), bytes.fromhex(case["x25519_private"]))
    context = [bytes.fromhex(part) for part in case["context"]]
    return key.open(bytes.fromhex(case["input"]), case["label"].encode(), *context)


def _seal(case: Json, _: Json) -> object:
    return sealing.seal(bytes.fromhex(case["public"]), b"", labels.SEAL_SHARES)


def _verify(case: Json, _: Json) -> None:
    parts = [bytes.fromhex(part) for part in case["parts"]]
    public, signature = bytes.fromhex(case["public"]), bytes.fromhex(case["signature"])
    verify(public, signature, case["label"].encode(), *parts, who="signer")


def _roster(case: Json, _: Json) -> object:
    return Roster.decode(bytes.fromhex(case["input"]))


def _final(case: Json, attempt: Json) -> object:
    roster = Roster.decode(bytes.fromhex(attempt["roster"]))
    return open_final(bytes.fromhex(case["input"]), roster, case["study"])


def _put_together(pieces: Json, honest: bytes) -> bytes:
    return b"".join(
        honest[rest[0] : rest[1]] if kind == "request" else bytes.fromhex(rest[0]) for kind, *rest in pieces
    )


def _site(case: Json, attempt: Json) -> object:
    message = _put_together(case["pieces"], request_to(attempt, case["stage"], SITE))
    if "complaint" not in case:
        return rebuild(attempt, SITE, case["stage"]).handle(message)
    # What the site was delivered instead, and what it must answer to that.
    session, given = rebuild(attempt, SITE, "confirm"), case["complaint"]
    reply = session.handle(_put_together(given["pieces"], request_to(attempt, "confirm", SITE)))
    assert bytes(reply).hex() == given["reply"]
    return session.handle(message)


OPERATIONS: dict[str, Callable[[Json, Json], object]] = {
    "decode a message": _decode,
    "combine shares": _combine,
    "choose a fixed point": _choose,
    "quantise": _quantise,
    "decode a sum": _decode_sum,
    "unpack lanes": _unpack,
    "open an envelope": _open,
    "seal an envelope": _seal,
    "verify a signature": _verify,
    "decode a roster": _roster,
    "open a final model": _final,
    "hand a message to a site": _site,
    "open a closed sum": open_closed,
}


def run_case(case: Json, attempt: Json) -> SecfedError | None:
    """The error that a case ends with, None if it does not fail."""
    try:
        OPERATIONS[case["operation"]](case, attempt)
    except SecfedError as error:
        return error
    return None


def check(case: Json, attempt: Json) -> None:
    """Run a case; it must fail as it says."""
    error = run_case(case, attempt)
    assert type(error).__name__ == case["error"], f"{case['name']}: {error!r}"
    if "refusal" in case:
        assert error is not None
        assert error.message.startswith(f"refusal {case['refusal']}: "), f"{case['name']}: {error}"
