"""Masks of AES-256 in counter mode: the same sums, under keys that serve one cipher only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secfed.crypto import labels
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import Run
from secfed.crypto.masked import masks
from secfed.crypto.masked.closing import Closing
from secfed.crypto.masked.graph import SparseGraph
from tests.simulator import Attempt, Consortium

AES = StreamCipher.AES_256_CTR
RUNS = (Run(20, 4096), Run(64, 3))


def _consortium(**options: Any) -> Consortium:
    return Consortium(5, runs=list(RUNS), cipher=AES, **options)


def _exact(attempt: Attempt, missing: str) -> None:
    consortium = attempt.consortium
    updates = [consortium.updates[name] for name in consortium.names if name != missing]
    for index, run in enumerate(RUNS):
        total = sum(update[index] for update in updates) & run.dtype.type((1 << run.bits) - 1)
        np.testing.assert_array_equal(attempt.server.sums[index], total)


@pytest.mark.parametrize("graph", [None, SparseGraph(0.1)])
@pytest.mark.parametrize("missing", ["", "hospital-3"])
def test_sums_are_exact_with_and_without_a_dropout(graph: SparseGraph | None, missing: str) -> None:
    silent = {missing: "mask"} if missing else {}
    _exact(_consortium(graph=graph).attempt(silent=silent).run(), missing)


def test_uploads_differ_from_those_under_the_other_cipher() -> None:
    attempts = [Consortium(5, runs=list(RUNS), cipher=cipher).attempt().run() for cipher in StreamCipher]
    one, other = (attempt.uploaded("hospital-0").vector for attempt in attempts)
    assert bytes(one) != bytes(other)


def test_sites_that_do_not_agree_on_the_cipher_give_no_sum() -> None:
    """Their studies differ, so they never meet; if they did, noise would come of it and no site's values."""
    consortium = _consortium()
    attempt = consortium.attempt(contributions={"hospital-0": {"cipher": StreamCipher.CHACHA20}}).run()
    with pytest.raises(AssertionError):
        _exact(attempt, "")


def test_no_key_serves_both_ciphers() -> None:
    streams = [
        masks.self_mask(b"s" * 32, 1),
        masks.pair_mask(b"s" * 16, b"s" * 16, 1),
        Closing(b"g" * 32, b"d" * 32, b"a" * 32).stream("hospital-0", 1),
    ]
    shape = Consortium(5, runs=list(RUNS)).shape
    keys = {
        stream.key(masks.MaskContext(b"d" * 32, b"b" * 32, shape, cipher), index).stream_key
        for stream in streams
        for cipher in StreamCipher
        for index in range(len(RUNS))
    }
    assert len(keys) == len(streams) * len(StreamCipher) * len(RUNS)
    assert {stream.label for stream in streams} == masks._AES_LABELS.keys()
    assert all(b"AES-256-CTR" in label for label in masks._AES_LABELS.values())
    assert labels.DERIVE_PAIR_MASK_AES == labels.DERIVE_PAIR_MASK + b" AES-256-CTR"
