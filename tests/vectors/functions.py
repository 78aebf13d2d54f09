"""The operations of ``functions.json``: what each does with its input, in this implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from secfed.crypto import labels, sealing, shamir, thresholds
from secfed.crypto.codec import digest
from secfed.crypto.encrypted.tags import TagKey, add_tags, encode_tag
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.identity import Identity, Roster, verify
from secfed.crypto.keystream import SEGMENT_BYTES, StreamCipher, StreamKey, derive
from secfed.crypto.lanes import Run
from secfed.crypto.masked.closing import Closing, group_key_check
from secfed.crypto.masked.disputes import settle
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.refusals import Refusal
from secfed.dp.ledger.ledger import LEDGER
from secfed.errors import ConfigError, SecfedError
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import BrokenChain, Chain, verify_chain
from secfed.records.transcript import TRANSCRIPT
from secfed.runs.final_model import open_final
from secfed.wire import frames
from secfed.wire.layout import Field, Layout, state_digest
from tests.vectors import encrypted_functions
from tests.vectors.primitives import Json, stream_bytes
from tests.vectors.scripts.play import Differs, refusal_number

CHAINS: Final = {"transcript": TRANSCRIPT, "ledger": LEDGER, "decision log": DECISIONS}


def _rule(given: Json) -> FixedPoint:
    return FixedPoint.choose(bound=float.fromhex(given["bound"]), bits=given["bits"], sites=given["sites"])


def _fixed_point(given: Json) -> Json:
    rule = _rule(given)
    return {"exponent": rule.exponent, "limit": rule.limit}


def _quantise(given: Json) -> Json:
    rule = _rule(given)
    values = np.array([float.fromhex(value) for value in given["values"]])
    lanes = np.zeros(values.size, rule.dtype)
    rule.quantise(values, np.array(given["words"], np.uint32), lanes)
    return {"lanes": [int(lane) & ((1 << rule.bits) - 1) for lane in lanes]}


def _decode_sum(given: Json) -> Json:
    rule = _rule(given)
    totals = rule.decode(np.array(given["lanes"], rule.dtype), given["summands"])
    return {"totals": [value.hex() for value in totals.tolist()]}


def _layout(given: Json) -> Json:
    fields = (
        Field(name, tuple(shape), float.fromhex(bound), bits) for name, shape, bound, bits in given["fields"]
    )
    layout = Layout(tuple(fields), given["sites"])
    runs = [[run.bits, run.count] for run in layout.shape.runs]
    return {
        "wire_order": [field.name for field in layout.ordered],
        "runs": runs,
        "digest": layout.digest.hex(),
    }


def _roster(given: Json) -> Json:
    roster = Roster.decode(bytes.fromhex(given["encoding"]))
    return {"digest": roster.digest.hex(), "sites": list(roster.sites)}


def _verify(given: Json) -> Json:
    public, signature = bytes.fromhex(given["public"]), bytes.fromhex(given["signature"])
    verify(public, signature, given["label"].encode(), *map(bytes.fromhex, given["parts"]), who="signer")
    return {}


def _seal(given: Json) -> Json:
    sealing.seal(bytes.fromhex(given["public"]), b"", labels.SEAL_SHARES)
    return {}


def _combine(given: Json) -> Json:
    shares = {int(point): bytes.fromhex(share) for point, share in given["shares"].items()}
    return {"secret": shamir.combine(shares, given["threshold"]).hex()}


def _thresholds(given: Json) -> Json:
    colluders = thresholds.default_colluders(given["sites"])
    return {"colluders": colluders, "threshold": thresholds.default_threshold(given["cohort"], colluders)}


def _holders(given: Json) -> Json:
    graph = SparseGraph(given["dropout_rate"])
    sizes = (given[name] for name in ("roster", "threshold", "colluders", "advertised"))
    made = graph.holders(*sizes)
    return {"holders": made.count, "threshold": made.threshold}


def _stream(given: Json) -> Json:
    cipher = StreamCipher(given["cipher"])
    key, size, at = bytes.fromhex(given["key"]), SEGMENT_BYTES, given["at"]
    made = StreamKey(key, cipher).segment(at // size)
    return {"bytes": stream_bytes(made, at % size + given["size"])[at % size :].hex()}


def _closing(given: Json) -> Closing:
    names = "group_key", "specification_digest", "advertised_set_digest"
    return Closing(*(bytes.fromhex(given[name]) for name in names))


def _vector_tags(given: Json) -> Json:
    tags = _closing(given).tags()
    for bits, lanes in given["runs"]:
        run = Run(bits, len(lanes))
        tags.add(run, np.array(lanes, np.uint64).astype(run.dtype))
    return {"tags": [int(tag) for tag in tags.value]}


def _study_key(given: Json) -> Json:
    key, state = bytes.fromhex(given["study_key"]), bytes.fromhex(given["state"])
    return {
        "state_tag": derive(key, labels.DERIVE_STATE_TAG, state_digest(state)).hex(),
        "group_key_check": group_key_check(key).hex(),
        "public_key_digest": digest(labels.STUDY_PUBLIC_KEY, key).hex(),
    }


def _is_sum(given: Json) -> Json:
    modulus, frames = given["modulus"], [np.array(words, np.uint64) for words in given["frames"]]
    key = TagKey(bytes.fromhex(given["study_key"]), bytes.fromhex(given["specification_digest"]), modulus)
    uploads = [(site, bytes.fromhex(nonce)) for site, nonce in given["uploads"]]
    products = [key.products(words[np.newaxis], at) for at, words in enumerate(frames)]
    if "tag" not in given:
        pads = [key.pads(site, nonce) for site, nonce in uploads]
        return {"tag": encode_tag(add_tags(modulus, *pads, *products)).hex()}
    if not key.is_sum(bytes.fromhex(given["tag"]), uploads, products):
        raise Refusal.SUM_TAG.refuse()
    return {}


def _settle(given: Json) -> Json:
    verdict = settle([(one, other) for one, other in given["disputes"]], given["colluders"])
    return {"at_fault": list(verdict.at_fault), "separated": [list(pair) for pair in verdict.separated]}


def _frame(given: Json) -> Json:
    frame = frames.decode(bytes.fromhex(given["encoding"]))
    names = {"state": "rest", "message": "rest"}
    fields = {
        names.get(name, name): bytes(value).hex() if name in names else value
        for name, value in vars(frame).items()
    }
    return {"kind": type(frame).__name__.lower(), **fields}


def _chain(given: Json) -> Json:
    lines = [line.encode() for line in given["lines"]]
    entries = verify_chain(lines, bytes.fromhex(given["public"]), CHAINS[given["kind"]], owner=given["owner"])
    return {"head": entries[-1].hash.hex()}


def _append(given: Json) -> Json:
    lines: list[bytes] = []
    identity = Identity.from_seed(given["owner"], bytes.fromhex(given["identity_seed"]))
    chain = Chain(identity, CHAINS[given["kind"]], sink=lines.append)
    for kind, body in given["entries"]:
        chain.append(kind, body)
    return {"lines": [line.decode() for line in lines]}


def _final_model(given: Json) -> Json:
    roster = Roster.decode(bytes.fromhex(given["roster"]))
    final = open_final(bytes.fromhex(given["encoding"]), roster, given["study"])
    return {"round": final.round, "sums": final.sums, "model_digest": final.model_digest.hex()}


OPERATIONS: Final[dict[str, Callable[[Json], Json]]] = {
    "fixed point": _fixed_point,
    "quantise": _quantise,
    "decode a sum": _decode_sum,
    "layout": _layout,
    "roster": _roster,
    "verify": _verify,
    "seal": _seal,
    "combine": _combine,
    "thresholds": _thresholds,
    "settle": _settle,
    "holders": _holders,
    "stream": _stream,
    "tags": _vector_tags,
    "study key": _study_key,
    "tag of frames": _is_sum,
    **encrypted_functions.OPERATIONS,
    "frame": _frame,
    "chain": _chain,
    "append": _append,
    "final model": _final_model,
}


def outcome(operation: str, given: Json) -> Json:
    """What a case comes to: its output, or that it fails and how."""
    try:
        return {"output": OPERATIONS[operation](given)}
    except (SecfedError, ConfigError) as error:
        number = refusal_number(error)
        line = {"line": error.line} if isinstance(error, BrokenChain) else {}
        return {"fails": True, **({"refusal": number} if number is not None else {}), **line}


def play_function(case: Json) -> None:
    """Run one case; AssertionError if it comes to something else."""
    expected: dict[str, Any] = {
        name: case[name] for name in ("output", "fails", "refusal", "line") if name in case
    }
    found = outcome(case["operation"], case["input"])
    if found != expected:
        raise Differs(f"{case['name']}: {found}, not {expected}")
