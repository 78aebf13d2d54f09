"""What an encrypted sum refuses, and what the aggregator cannot do with all it holds."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from secfed.crypto import labels, sealing
from secfed.crypto.encrypted.bfv import fit
from secfed.crypto.encrypted.bfv_format import MemoryFile
from secfed.crypto.encrypted.bfv_packing import pack_words
from secfed.crypto.encrypted.bfv_tenseal import Decryptor, Encryptor, generate_keys
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.server import HEADER_BYTES, SUM, UPLOAD, FrameFormat, RunningSum
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.lanes import Run
from secfed.errors import ConfigError, MalformedMessage, RangeError, Replay, WrongState
from tests.crypto.encrypted_case import Lanes, keys_of, small, study_ring, summed, upload

RUNS = (Run(19, 40), Run(64, 2))
VECTOR = [[7] * 40, [-9] * 2]
LARGE = (Run(19, 300_000),)


@pytest.fixture(params=["public", "symmetric"])
def case(request):
    """Parameters, cipher and an honest upload of a small exchange."""
    parameters, cipher = small(RUNS, 3, request.param)
    return parameters, cipher, upload(cipher, parameters, VECTOR)


def test_every_length_is_known_in_advance(case):
    parameters, _, honest = case
    assert len(honest) == FrameFormat(parameters, UPLOAD).total_bytes
    total = RunningSum(parameters)
    total.add("a", honest)
    assert len(b"".join(total.frames())) == FrameFormat(parameters, SUM).total_bytes


@pytest.mark.parametrize("change", [b"", b"\0"])
def test_an_upload_of_any_other_length_is_refused(case, change):
    parameters, _, honest = case
    with pytest.raises(MalformedMessage, match="expected"):
        RunningSum(parameters).add("a", honest + change if change else honest[:-1])


def test_a_header_that_differs_anywhere_is_refused_with_the_reason(case):
    parameters, _, honest = case
    reasons = {0: "not one of ciphertexts", 5: "wrong kind", 6: "other encryption parameters"}
    reasons |= {38: "out of order", 42: "wrong number of ciphertexts"}
    reason = ""
    for at in range(HEADER_BYTES):
        reason = reasons.get(at, reason)
        bad = bytearray(honest)
        bad[at] ^= 0x83
        with pytest.raises(MalformedMessage, match=reason):
            RunningSum(parameters).add("a", bad)


def test_a_word_that_is_not_below_q_is_refused(case):
    parameters, _, honest = case
    ring = parameters.ring
    form = FrameFormat(parameters, UPLOAD)
    words = form.words(honest, 0)[0].reshape(-1)
    for value, good in (
        (ring.modulus - 1, True),
        (ring.modulus, False),
        ((1 << ring.modulus_bits) - 1, False),
    ):
        words[17] = value
        packed = pack_words(words, ring.modulus_bits)
        bad = form.header(0) + packed + honest[HEADER_BYTES + len(packed) :]
        if good:
            RunningSum(parameters).add("a", bad)
        else:
            with pytest.raises(MalformedMessage, match="not reduced"):
                RunningSum(parameters).add("a", bad)


def test_an_upload_made_for_other_parameters_is_refused():
    ring = study_ring(19, 3, "public")
    with SiteCipher(keys_of(ring)) as cipher:
        # The same length, but one scalar fewer and one more lane.
        theirs, ours = fit(ring, (Run(19, 42),), 3), fit(ring, (Run(19, 41),), 3)
        made = upload(cipher, theirs, [[1] * 42])
        assert len(made) == FrameFormat(ours, UPLOAD).total_bytes
        with pytest.raises(MalformedMessage, match="other encryption parameters"):
            RunningSum(ours).add("a", made)


def test_a_sum_cannot_be_passed_off_as_an_upload():
    parameters, cipher = small(RUNS, 3, "public")
    total = RunningSum(parameters)
    total.add("a", upload(cipher, parameters, VECTOR))
    with pytest.raises(MalformedMessage, match="wrong kind"):
        RunningSum(parameters).add("b", b"".join(total.frames()))


def test_frames_in_another_order_are_refused():
    parameters, cipher = small(LARGE, 3, "symmetric")
    frames = list(cipher.encrypt(parameters, Lanes(LARGE, [[1] * LARGE[0].count])))
    assert len(frames) > 2
    frames[0], frames[1] = frames[1], frames[0]
    with pytest.raises(MalformedMessage, match="out of order"):
        RunningSum(parameters).add("a", b"".join(frames))


@pytest.mark.parametrize("spoil", ["cut off", "a bad last frame"])
def test_an_upload_that_breaks_off_or_turns_bad_leaves_the_sum_as_it_was(spoil):
    parameters, cipher = small(LARGE, 3, "symmetric")
    total = RunningSum(parameters)
    total.add("a", upload(cipher, parameters, [[1] * LARGE[0].count]))
    before = list(total.frames())
    frames = list(cipher.encrypt(parameters, Lanes(LARGE, [[2] * LARGE[0].count])))
    last = b"" if spoil == "cut off" else bytes(len(frames[-1]))
    with pytest.raises(MalformedMessage):
        total.add("b", b"".join([*frames[:-1], last]))
    assert list(total.frames()) == before
    assert total.sites == ("a",)


def test_a_site_counts_once_and_no_more_sites_than_the_roster_has(case):
    parameters, _, honest = case
    total = RunningSum(parameters)
    total.add("a", honest)
    with pytest.raises(Replay, match="'a'"):
        total.add("a", honest)
    total.add("b", honest)
    total.add("c", honest)
    with pytest.raises(WrongState, match="3 uploads"):
        total.add("d", honest)
    assert total.sites == ("a", "b", "c")


def test_an_empty_sum_has_no_frames(case):
    parameters, _, _ = case
    with pytest.raises(WrongState, match="no upload"):
        next(RunningSum(parameters).frames())


def test_a_sum_with_missing_or_extra_frames_is_refused(case):
    parameters, cipher, honest = case
    total = RunningSum(parameters)
    total.add("a", honest)
    (frame,) = total.frames()
    with pytest.raises(MalformedMessage, match="fewer frames"):
        cipher.decrypt(parameters, [])
    for second in (frame, frame[:HEADER_BYTES]):
        with pytest.raises(MalformedMessage, match="more ciphertext frames than 1"):
            cipher.decrypt(parameters, [frame, second])


def test_words_that_are_no_encryption_under_the_key_are_reported_not_decoded(case):
    parameters, cipher, _ = case
    ring = parameters.ring
    noise = np.random.default_rng(1).integers(0, ring.modulus, 2 * ring.size, dtype=np.uint64)
    frame = FrameFormat(parameters, SUM).header(0) + pack_words(noise, ring.modulus_bits)
    with pytest.raises(RangeError, match="no margin"):
        cipher.decrypt(parameters, [frame])


def test_altered_bytes_never_crash_the_library(repository):
    """In a child process, because a crash would take the process with it."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.crypto.encrypted_fuzz", "25", "20240601"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    outcomes = json.loads(child.stdout)
    assert sum(outcomes.values()) == 2 * 4 * 25
    for name in ("upload", "sum", "encryption key", "secret key"):
        assert outcomes[f"{name} refused"] > 8, outcomes
        assert outcomes[f"{name} unreadable"] > 1, outcomes  # well-formed words reached the library


# What the aggregator holds.


def test_the_aggregator_holds_no_key_and_cannot_decrypt_what_it_holds(case):
    parameters, cipher, honest = case
    secret = keys_of(parameters.ring).secret_key
    total = RunningSum(parameters)
    total.add("a", honest)
    held = honest + b"".join(total.frames()) + pickle.dumps((parameters, total._total, total.sites))
    body = secret[-parameters.ring.size * parameters.ring.modulus_bits // 8 :]
    assert all(body[at : at + 16] not in held for at in range(0, len(body), 64))
    # Everything it can build from the parameters: keys of its own, which decrypt nothing.
    own = SiteCipher(generate_keys(parameters.ring))
    with pytest.raises(RangeError, match="no margin"):
        own.decrypt(parameters, total.frames())
    assert cipher.decrypt(parameters, total.frames())[0].tolist() == [7] * 40


def test_the_public_key_does_not_decrypt_even_when_relabelled():
    parameters, cipher = small(RUNS, 3, "public")
    keys = keys_of(parameters.ring)
    with pytest.raises(MalformedMessage, match="not a secret key"):
        Decryptor(parameters, keys.public_key)
    head = keys.secret_key[: len(keys.secret_key) - _key_words(parameters)]
    forged = head + keys.public_key[-_key_words(parameters) :]
    assert len(forged) == len(keys.secret_key)
    total = RunningSum(parameters)
    total.add("a", upload(cipher, parameters, VECTOR))
    with pytest.raises(RangeError, match="no margin"):
        SiteCipher(KeyPair(forged, keys.public_key)).decrypt(parameters, total.frames())


def _key_words(parameters) -> int:
    return sum(parameters.ring.size * modulus.bit_length() // 8 for modulus in parameters.ring.key_moduli)


def _sum_of(parameters, honest):
    total = RunningSum(parameters)
    total.add("a", honest)
    return total.frames()


def test_the_secret_key_travels_sealed_and_still_works(case):
    parameters, _, honest = case
    keys = keys_of(parameters.ring)
    receiver = sealing.SealKey.generate()
    sealed = sealing.seal(receiver.public_bytes, keys.secret_key, labels.SEAL_STUDY_KEY, b"study")
    opened = receiver.open(sealed, labels.SEAL_STUDY_KEY, b"study")
    cipher = SiteCipher(KeyPair(opened, keys.public_key))
    decrypted = cipher.decrypt(parameters, _sum_of(parameters, honest))
    assert decrypted[1].view(np.int64).tolist() == [-9, -9]


def test_a_key_of_another_ring_size_or_range_is_refused(case):
    parameters, _, _ = case
    keys = keys_of(parameters.ring)
    other = generate_keys(study_ring(32, 3, parameters.ring.key_mode))
    with pytest.raises(MalformedMessage, match="secret key of the study's encryption ring"):
        Decryptor(parameters, other.secret_key)
    with pytest.raises(MalformedMessage, match="bytes, expected"):
        Decryptor(parameters, keys.secret_key[:-1])
    body = len(keys.secret_key) - _key_words(parameters)
    with pytest.raises(MalformedMessage, match="not reduced"):
        Decryptor(parameters, keys.secret_key[:body] + b"\xff" * _key_words(parameters))
    key = keys.public_key if parameters.ring.key_mode == "public" else keys.secret_key
    with pytest.raises(MalformedMessage):
        Encryptor(parameters, key[::-1])


def test_the_secret_key_is_not_shown(case):
    parameters, _, _ = case
    keys = keys_of(parameters.ring)
    assert "secret_key" not in repr(keys)
    assert repr(keys.secret_key)[10:40] not in repr(keys)


def test_the_library_reads_and_writes_files_in_memory_only():
    memory = MemoryFile()
    assert os.readlink(memory.put(b"key")) == "/memfd:secfed (deleted)"
    assert memory.take() == b"key"
    path = memory.path
    del memory
    assert not os.path.exists(path)


def test_a_vector_that_exceeds_its_range_still_sums_modulo_its_own_lane():
    """One lane to a slot: even a wrapping sum is the ring's, as under the other protections."""
    runs = (Run(32, 3),)
    parameters, cipher = small(runs, 3, "public")
    vectors = [[[2**31 - 1, -(2**31), 5]], [[2**31 - 1, -(2**31), 6]]]
    assert summed(cipher, parameters, vectors) == [[2**32 - 2, 0, 11]]


def test_the_aggregator_of_public_uploads_never_loads_the_library(repository):
    code = (
        "import sys; from secfed.crypto.encrypted.bfv import choose; from secfed.crypto.lanes import Run;"
        "from secfed.crypto.encrypted.server import UPLOAD, FrameFormat, RunningSum;"
        "p = choose((Run(19, 40),), 3); f = FrameFormat(p, UPLOAD); total = RunningSum(p);"
        "total.add('a', f.header(0) + bytes(f.frame_bytes(0) - len(f.header(0)))); list(total.frames());"
        "sys.exit('tenseal' in sys.modules or 'zstandard' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", code], cwd=repository, timeout=300, check=False)
    assert child.returncode == 0


@pytest.mark.parametrize("package", ["tenseal.sealapi", "zstandard"])
def test_a_missing_package_is_named_with_its_remedy(package, monkeypatch):
    for name in ("secfed.crypto.encrypted.bfv_tenseal", "secfed.crypto.encrypted.bfv_format"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=package) as refusal:
        importlib.import_module("secfed.crypto.encrypted.bfv_tenseal")
    assert "pip install --constraint constraints.txt --editable '.[he]'" in refusal.value.remedy
