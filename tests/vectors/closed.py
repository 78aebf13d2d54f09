"""Vectors of closed sums: what two sites upload but for masks, their sum, and sums that must be refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from secfed.crypto import lanes
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked.closing import Closing, closed_shape, group_key_check
from secfed.crypto.masked.masks import Accumulator, MaskContext, write_masked
from secfed.crypto.refusals import Refusal
from tests.vectors.primitives import Json, pattern

SHAPE = VectorShape((Run(20, 1025), Run(64, 2)), pattern("layout digest"))
SMALL = VectorShape((Run(20, 11), Run(64, 2)), SHAPE.digest)
SITES = ("hospital-0", "klinikum-süd")


class _Source:
    def __init__(self, runs: list[list[int]]) -> None:
        self._left = [np.array(lanes, np.int64) for lanes in runs]

    def fill(self, run: Run, out: NDArray[Any]) -> None:
        """See :class:`secfed.crypto.lanes.VectorSource`."""
        out[:] = self._left.pop(0).view(np.uint64).astype(run.dtype)


def _integers(site: int, shape: VectorShape) -> list[list[int]]:
    """Signed, of each run."""
    narrow = [(-1) ** at * (at * (site + 3) % 30_000) for at in range(shape.runs[0].count)]
    return [narrow, [2**50 + site, -1 - site]]


def _closing(cipher: StreamCipher) -> Closing:
    names = "group key", "specification digest", "advertised set digest"
    return Closing(*map(pattern, names), cipher)


def closed_vectors(shape: VectorShape = SHAPE, cipher: StreamCipher = StreamCipher.CHACHA20) -> Json:
    """Everything from the group key to the opened sum."""
    closing, broadcast, whole = _closing(cipher), pattern("broadcast digest"), closed_shape(shape)
    context = MaskContext(closing.spec_digest, broadcast, whole, cipher)
    total, uploads = Accumulator(whole), []
    for index, site in enumerate(SITES):
        room = memoryview(bytearray(whole.wire_bytes))
        tags = closing.tags()
        source = _Source(_integers(index, shape))
        write_masked(closing.tagged(source, shape), [closing.stream(site, 1)], context, room)
        for run, values in zip(shape.runs, _integers(index, shape), strict=True):
            tags.add(run, np.array(values, np.int64).view(np.uint64).astype(run.dtype))
        total.add(room)
        uploads.append(
            {
                "site": site,
                "integers": _integers(index, shape),
                "closing_seed": closing.stream(site, 1).secret.hex(),
                "tags": [int(tag) for tag in tags.value],
                "closed": room.hex(),
            }
        )
    wire, at = bytearray(whole.wire_bytes), 0
    for run, summed in zip(whole.runs, total.reduced(), strict=True):
        lanes.pack_into(summed, run, memoryview(wire)[at : at + run.wire_bytes])
        at += run.wire_bytes
    opened = closing.opened(wire, SITES, broadcast, shape)
    return {
        "about": "vectors without masks; integers are signed, opened lanes are ring integers",
        "group_key": closing.group_key.hex(),
        "group_key_check": group_key_check(closing.group_key).hex(),
        "specification_digest": closing.spec_digest.hex(),
        "advertised_set_digest": closing.adverts_digest.hex(),
        "layout_digest": shape.digest.hex(),
        "broadcast_digest": broadcast.hex(),
        "runs": [[run.bits, run.count] for run in shape.runs],
        "uploads": uploads,
        "closed_sum": wire.hex(),
        "opened": [[int(lane) for lane in run] for run in opened],
    }


def closed_cases(good: Json) -> list[Json]:
    """Each is the honest sum of the small vectors with one change."""
    wire = bytes.fromhex(good["closed_sum"])
    keys = ("group_key", "specification_digest", "advertised_set_digest", "layout_digest", "broadcast_digest")
    honest = {key: good[key] for key in (*keys, "runs")} | {"survivors": list(SITES), "input": wire.hex()}

    def flipped(at: int) -> str:
        data = bytearray(wire)
        data[at] ^= 1
        return data.hex()

    changes: list[tuple[str, Refusal | None, dict[str, Any]]] = [
        ("lane_shifted", Refusal.SUM_TAG, {"input": flipped(0)}),
        ("wide_lane_shifted", Refusal.SUM_TAG, {"input": flipped(SMALL.runs[0].wire_bytes + 7)}),
        ("tag_shifted", Refusal.SUM_TAG, {"input": flipped(-1)}),
        ("one_upload_as_the_sum", Refusal.SUM_TAG, {"input": good["uploads"][0]["closed"]}),
        ("survivor_left_out", Refusal.SUM_TAG, {"survivors": list(SITES[:1])}),
        ("survivor_invented", Refusal.SUM_TAG, {"survivors": [*SITES, "x"]}),
        *((f"another_{key}", Refusal.SUM_TAG, {key: pattern("another").hex()}) for key in keys),
        ("too_short", None, {"input": wire[:-1].hex()}),
        ("padding_not_zero", None, {"input": _padded(wire).hex()}),
    ]
    return [
        {
            "name": f"bad_closed_{name}",
            "operation": "open a closed sum",
            "error": "MalformedMessage" if refusal is None else refusal.error.__name__,
            **({} if refusal is None else {"refusal": refusal.number}),
            **honest,
            **changed,
        }
        for name, refusal, changed in changes
    ]


def _padded(wire: bytes) -> bytes:
    end = SMALL.runs[0].wire_bytes
    return wire[: end - 1] + bytes([wire[end - 1] | 0x80]) + wire[end:]


def open_closed(case: Json, _: Json) -> tuple[NDArray[Any], ...]:
    """Run one case of the files."""
    shape = VectorShape(
        tuple(Run(bits, count) for bits, count in case["runs"]), bytes.fromhex(case["layout_digest"])
    )
    names = ("group_key", "specification_digest", "advertised_set_digest")
    cipher = StreamCipher(case.get("keystream", StreamCipher.CHACHA20))
    closing = Closing(*(bytes.fromhex(case[name]) for name in names), cipher)
    vector, broadcast = bytes.fromhex(case["input"]), bytes.fromhex(case["broadcast_digest"])
    return closing.opened(vector, case["survivors"], broadcast, shape)
