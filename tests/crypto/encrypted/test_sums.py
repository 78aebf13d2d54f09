"""Encrypted sums are the ring sums of the other protections, whoever takes part, wherever they are made."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secfed.crypto.encrypted.bfv import MAX_SITES
from secfed.crypto.encrypted.bfv_tenseal import SeedExpander
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.server import UPLOAD, FrameFormat, RunningSum
from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.crypto.lanes import Run
from secfed.wire.layout import Field, Layout
from tests.crypto.encrypted_case import keys_of, limit, ring_sums, small, study_ring, summed, upload

MODES = st.sampled_from(["public", "symmetric"])


@st.composite
def studies(draw):
    """A small exchange with scalars, a roster, and the vectors of some of its sites."""
    sites = draw(st.integers(2, 64))
    runs = (Run(draw(st.sampled_from([19, 20, 24, 32])), draw(st.integers(1, 40))), Run(64, 3))
    survivors = draw(st.integers(1, min(sites, 6)))
    vectors = []
    for _ in range(survivors):
        tops = [limit(run, sites) for run in runs]
        lane = [st.one_of(st.sampled_from([-top, 0, top]), st.integers(-top, top)) for top in tops]
        vectors.append(
            [
                draw(st.lists(lane[index], min_size=run.count, max_size=run.count))
                for index, run in enumerate(runs)
            ]
        )
    return runs, sites, vectors


@settings(max_examples=10)
@given(study=studies(), mode=MODES)
def test_any_survivors_sums_are_the_ring_sums(study, mode):
    runs, sites, vectors = study
    parameters, cipher = small(runs, sites, mode)
    assert summed(cipher, parameters, vectors) == ring_sums(runs, vectors)


@pytest.mark.parametrize("mode", ["public", "symmetric"])
@pytest.mark.parametrize("bits", [19, 20, 24, 32])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_full_roster_at_one_end_of_the_range_decrypts_with_a_margin(bits, mode, sign):
    """Decryption refuses a noise budget below one bit, so a result also proves the margin."""
    runs = (Run(bits, 100), Run(64, 2))
    parameters, cipher = small(runs, 64, mode)
    vector = [[sign * limit(run, 64)] * run.count for run in runs]
    assert summed(cipher, parameters, [vector] * 64) == ring_sums(runs, [vector] * 64)


@pytest.mark.parametrize("mode", ["public", "symmetric"])
def test_the_largest_roster_decrypts_with_a_margin(mode):
    runs = (Run(19, 8192),)
    parameters, cipher = small(runs, MAX_SITES, mode)
    rng = np.random.default_rng(3)
    top = limit(runs[0], MAX_SITES)
    vectors = [[rng.integers(-top, top, 8192, endpoint=True).tolist()] for _ in range(MAX_SITES)]
    assert summed(cipher, parameters, vectors) == ring_sums(runs, vectors)


def test_totals_equal_those_of_plain_summation_bit_for_bit():
    """From real summands through a layout, as under every other protection."""
    layout = Layout((Field("weights", (50, 3), 1.0, 20), Field("loss", (), 10.0, 64)), sites=4)
    parameters, cipher = small(layout.shape.runs, 4, "public")
    torch.manual_seed(0)
    plain = [np.zeros(run.count, run.dtype) for run in layout.shape.runs]
    total = RunningSum(parameters)
    for site in ("a", "b", "c"):
        summands = {"weights": torch.rand(50, 3) * 3 - 1.5, "loss": 10.0}
        encoder = partial(layout.encoder, summands)
        total.add(
            site, b"".join(cipher.encrypt(parameters, encoder(rounding_stream_for_simulation(1, site))))
        )
        again = encoder(rounding_stream_for_simulation(1, site))
        for run, lanes in zip(layout.shape.runs, plain, strict=True):
            chunk = np.empty(run.count, run.dtype)
            again.fill(run, chunk)
            lanes += chunk
    sums = cipher.decrypt(parameters, total.frames())
    expected = layout.decode(tuple(plain), total.sites)
    for name, value in layout.decode(sums, total.sites).items():
        assert torch.equal(value, expected[name])


def test_exchanges_of_one_study_share_its_keys():
    ring = study_ring(20, 8, "public")
    with SiteCipher(keys_of(ring)) as cipher:
        for runs in ((Run(20, 7),), (Run(32, 5), Run(64, 1)), (Run(64, 2),)):
            parameters, _ = small(runs, 8, "public")
            parameters = type(parameters)(ring, parameters.slot_bits, 8, runs)
            vector = [[limit(run, 8)] * run.count for run in runs]
            assert summed(cipher, parameters, [vector] * 8) == ring_sums(runs, [vector] * 8)


def test_two_uploads_of_one_vector_share_no_word():
    parameters, cipher = small((Run(19, 100),), 8, "public")
    form = FrameFormat(parameters, UPLOAD)
    first, second = (form.words(upload(cipher, parameters, [[5] * 100]), 0)[0].reshape(-1) for _ in range(2))
    assert np.mean(first == second) < 0.001


def test_a_symmetric_seed_stands_for_a_uniform_polynomial():
    ring = study_ring(19, 8, "symmetric")
    words = SeedExpander(ring).words(bytes(range(64)))
    assert words.shape == (ring.size,)
    assert int(words.max()) < ring.modulus
    assert abs(float(words.mean()) / ring.modulus - 0.5) < 0.03
    assert np.array_equal(words, SeedExpander(ring).words(bytes(range(64))))
    assert not np.array_equal(words, SeedExpander(ring).words(bytes(range(1, 65))))


@pytest.mark.parametrize("mode", ["public", "symmetric"])
def test_ckks_sums_of_parameters_are_close_and_those_of_counts_are_exact(mode):
    runs = (Run(32, 1000), Run(64, 20))
    parameters, cipher = small(runs, MAX_SITES, mode, "ckks")
    rng = np.random.default_rng(7)
    tops = [limit(run, MAX_SITES) for run in runs]
    drawn = [
        [
            [top, -top, *rng.integers(-top, top, run.count - 2).tolist()]
            for run, top in zip(runs, tops, strict=True)
        ]
        for _ in range(MAX_SITES)
    ]
    near, exact = summed(cipher, parameters, drawn)
    expected = ring_sums(runs, drawn)
    assert exact == expected[1]
    assert max(abs((a - b + 2**31) % 2**32 - 2**31) for a, b in zip(near, expected[0], strict=True)) < 32
