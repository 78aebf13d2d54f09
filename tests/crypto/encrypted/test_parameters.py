"""The parameter search stays within the standard, keeps its promises, and the slots add up without keys."""

from __future__ import annotations

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from hypothesis import given
from hypothesis import strategies as st

from secfed.crypto.encrypted import bfv
from secfed.crypto.encrypted.bfv import (
    HE_STANDARD,
    MAX_SITES,
    Parameters,
    Ring,
    choose,
    choose_ring,
    fit,
    ntt_prime,
)
from secfed.crypto.encrypted.bfv_packing import lanes_from, pack_words, slot_frames, unpack_words
from secfed.crypto.encrypted.server import UPLOAD, FrameFormat
from secfed.crypto.lanes import Run
from secfed.errors import ConfigError, RangeError
from tests.crypto.encrypted_case import Lanes, limit, ring_sums

WIDTHS = st.sampled_from([8, 12, 16, 19, 20, 24, 28, 32, 64])
MODES = st.sampled_from(["public", "symmetric"])


@given(bits=WIDTHS, sites=st.integers(1, MAX_SITES), mode=MODES, count=st.sampled_from([1, 5000, 10**6]))
def test_every_chosen_ring_is_within_the_128_bit_table_of_the_standard(bits, sites, mode, count):
    ring = choose((Run(bits, count),), sites, key_mode=mode).ring
    total = sum(modulus.bit_length() for modulus in ring.key_moduli)
    assert total <= HE_STANDARD[ring.size][0]
    assert total <= sealapi.CoeffModulus.MaxBitCount(ring.size, sealapi.SEC_LEVEL_TYPE.TC128)
    assert ring.security_bits >= 128


def test_the_table_is_the_librarys_table():
    levels = (sealapi.SEC_LEVEL_TYPE.TC128, sealapi.SEC_LEVEL_TYPE.TC192, sealapi.SEC_LEVEL_TYPE.TC256)
    for size, caps in HE_STANDARD.items():
        assert caps == tuple(sealapi.CoeffModulus.MaxBitCount(size, level) for level in levels)


@pytest.mark.parametrize("size", HE_STANDARD)
@pytest.mark.parametrize("bits", [16, 30, 41, 47, 53, 60])
def test_the_primes_are_those_the_library_would_choose(size, bits):
    (expected,) = sealapi.CoeffModulus.Create(size, [bits])
    assert ntt_prime(size, bits) == expected.value()


@pytest.mark.parametrize(("mode", "most_bytes"), [("public", 7.7), ("symmetric", 3.9)])
def test_sixteen_value_bits_and_eight_sites_stay_below_the_promised_bytes(mode, most_bytes):
    parameters = choose((Run(16 + 3, 10**6),), 8, key_mode=mode)
    assert parameters.lanes_per_slot(parameters.runs[0]) == 2
    assert FrameFormat(parameters, UPLOAD).total_bytes / 10**6 <= most_bytes


def test_one_ring_serves_every_exchange_of_a_study():
    exchanges = [(Run(32, 10**6), Run(64, 4)), (Run(64, 12),), (Run(19, 10**5), Run(32, 7))]
    ring = choose_ring(exchanges, 20)
    assert all(fit(ring, runs, 20).ring == ring for runs in exchanges)


def test_within_one_percent_of_bytes_the_more_secure_ring_wins():
    ring = choose((Run(19, 10**6),), 8, key_mode="symmetric").ring
    assert (ring.size, ring.security_bits) == (4096, 256)
    # A handful of scalars would waste most of a large ciphertext.
    assert choose((Run(64, 4),), 8, key_mode="symmetric").ring.size == 2048


@pytest.mark.parametrize("sites", [0, MAX_SITES + 1])
def test_a_roster_beyond_the_examined_noise_is_refused(sites):
    with pytest.raises(ConfigError, match="sites") as refusal:
        choose((Run(32, 10),), sites)
    assert refusal.value.remedy


def test_a_lane_that_no_ring_carries_is_refused_with_its_width():
    with pytest.raises(RangeError, match="59 bits and the noise of 64 sites") as refusal:
        choose((Run(59, 10),), 64)
    assert "protection.bits" in refusal.value.remedy


def test_a_lane_that_the_studys_ring_does_not_carry_is_refused():
    with pytest.raises(RangeError, match="32 bits"):
        fit(Ring("bfv", "public", 2048, 30, 0), (Run(32, 10),), 8)


def test_an_unknown_mode_scheme_or_ring_is_refused():
    with pytest.raises(ConfigError, match="key_mode"):
        choose((Run(32, 10),), 8, key_mode="private")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scheme"):
        choose((Run(32, 10),), 8, scheme="bgv")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="128-bit table"):
        Ring("bfv", "public", 2048, 55, 0)
    with pytest.raises(ConfigError, match="without elements"):
        choose((Run(32, 0),), 8)


def test_the_digest_tells_any_two_parameters_apart():
    base = choose((Run(19, 1000), Run(64, 3)), 8)
    others = [
        fit(base.ring, (Run(19, 1001), Run(64, 3)), 8),
        fit(base.ring, (Run(19, 1000), Run(64, 3)), 7),
        Parameters(base.ring, base.slot_bits + 1, base.sites, base.runs),
        choose((Run(19, 1000), Run(64, 3)), 8, key_mode="symmetric"),
        choose((Run(19, 1000), Run(64, 3)), 8, scheme="ckks"),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 1 + len(others)


@given(bits=st.integers(1, 60), blocks=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_words_survive_packing_at_their_exact_size(bits, blocks, seed):
    words = np.random.default_rng(seed).integers(0, 1 << bits, 64 * blocks, dtype=np.uint64)
    words[::7] = (1 << bits) - 1
    packed = pack_words(words, bits)
    assert len(packed) == 64 * blocks * bits // 8
    assert np.array_equal(unpack_words(memoryview(packed), bits), words)


@given(
    widths=st.lists(WIDTHS, min_size=1, max_size=3, unique=True),
    sites=st.integers(1, MAX_SITES),
    mode=MODES,
    data=st.data(),
)
def test_sums_of_slots_are_ring_sums_at_the_extremes_of_the_range(widths, sites, mode, data):
    """Slots are added modulo t here, as ciphertexts add them, by every site of the roster."""
    runs = tuple(Run(bits, data.draw(st.integers(1, 9))) for bits in widths)
    parameters = choose(runs, sites, key_mode=mode)
    drawn: list[list[list[int]]] = []
    for _ in range(min(sites, 3)):
        drawn.append([data.draw(_lanes(run, sites)) for run in runs])
    vectors = [drawn[index % len(drawn)] for index in range(sites)]
    slots = sum(next(slot_frames(Lanes(runs, vector), parameters)) for vector in vectors)
    slots &= np.uint64((1 << parameters.slot_bits) - 1)
    assert [run.tolist() for run in lanes_from([slots], parameters)] == ring_sums(runs, vectors)


def _lanes(run: Run, sites: int) -> st.SearchStrategy[list[int]]:
    top = limit(run, sites)
    value = st.one_of(st.sampled_from([-top, -1, 0, 1, top]), st.integers(-top, top))
    return st.lists(value, min_size=run.count, max_size=run.count)


@pytest.mark.parametrize("mode", ["public", "symmetric"])
def test_runs_follow_each_other_across_frames_and_empty_runs_keep_their_place(mode, monkeypatch):
    monkeypatch.setattr("secfed.crypto.encrypted.bfv_packing.FRAME_CIPHERTEXTS", 1)
    monkeypatch.setattr(bfv, "FRAME_CIPHERTEXTS", 1)
    runs = (Run(19, 9001), Run(20, 0), Run(64, 3001), Run(32, 5))
    parameters = fit(Ring("bfv", mode, 2048, 53, 0), runs, 8)
    rng = np.random.default_rng(5)
    vector = [rng.integers(-limit(run, 8), limit(run, 8), run.count, endpoint=True).tolist() for run in runs]
    frames = list(slot_frames(Lanes(runs, vector), parameters))
    assert len(frames) == parameters.frames == parameters.ciphertexts > 3
    assert sum(len(frame) for frame in frames) == parameters.ciphertexts
    assert [run.tolist() for run in lanes_from(frames, parameters)] == ring_sums(runs, [vector])
