"""Child process of test_encrypted_refusals.py: feed altered bytes to every decoder that leads to the library.

Anything but a refusal or a result ends this process, and so the test: an unexpected exception by its
traceback, a crash of the library by its signal. Prints how often each outcome occurred, as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import random
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np

from secfed.crypto.encrypted.bfv import KeyMode, Ring, fit
from secfed.crypto.encrypted.bfv_tenseal import Decryptor, Encryptor, generate_keys
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.server import SUM, UPLOAD, FrameFormat, RunningSum
from secfed.crypto.lanes import Run
from secfed.errors import MalformedMessage, RangeError
from tests.crypto.encrypted_case import upload

RUNS = (Run(19, 40), Run(64, 2))
VECTOR = [[7] * 40, [-9] * 2]


def altered(data: bytes, rng: random.Random) -> bytes:
    """A few flipped bits, a block of noise, a repeated or a missing piece."""
    out = bytearray(data)
    at = rng.randrange(len(out)) if rng.random() < 0.7 else rng.randrange(64)
    kind = rng.choice(["flip", "flip", "noise", "ones", "zeros", "cut", "grow", "move", "empty"])
    size = min(rng.choice([1, 8, 64, 700]), len(out) - at)
    if kind == "flip":
        for _ in range(rng.randint(1, 4)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del out[at : at + size]
    elif kind == "grow":
        out[at:at] = rng.randbytes(size)
    elif kind == "move":
        out[at : at + size] = out[:size]
    elif kind == "empty":
        out.clear()
    else:
        fill = {"noise": rng.randbytes(size), "ones": b"\xff" * size, "zeros": bytes(size)}
        out[at : at + size] = fill[kind]
    return bytes(out)


def main(rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()

    def attempt(name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except MalformedMessage:
            outcomes[f"{name} refused"] += 1
        except RangeError:
            outcomes[f"{name} unreadable"] += 1
        else:
            outcomes[f"{name} taken"] += 1

    for mode in ("public", "symmetric"):
        _attack(mode, rounds, rng, attempt)
    print(json.dumps(outcomes))


def _attack(
    mode: KeyMode, rounds: int, rng: random.Random, attempt: Callable[[str, Callable[[], object]], None]
) -> None:
    ring = Ring("bfv", mode, 2048, 53, 0)
    parameters = fit(ring, RUNS, 8)
    keys = generate_keys(ring)
    cipher = SiteCipher(keys)
    honest = upload(cipher, parameters, VECTOR)
    total = RunningSum(parameters)
    total.add("honest", honest)
    summed = b"".join(total.frames())
    form = FrameFormat(parameters, SUM)
    encryption_key = keys.public_key if mode == "public" else keys.secret_key
    slots = np.ones((1, ring.size), np.uint64)
    for _ in range(rounds):
        bad_upload, bad_sum = altered(honest, rng), altered(summed, rng)

        def add(bad: bytes = bad_upload) -> None:
            mixed = RunningSum(parameters)
            mixed.add("site", bad)
            cipher.decrypt(parameters, mixed.frames())

        attempt("upload", add)
        attempt("sum", lambda bad=bad_sum: cipher.decrypt(parameters, form.split(bad)))
        bad_key, bad_secret = altered(encryption_key, rng), altered(keys.secret_key, rng)

        def encrypt(bad: bytes = bad_key) -> None:
            total = RunningSum(parameters)
            frame = FrameFormat(parameters, UPLOAD).header(0) + Encryptor(parameters, bad).frame(slots)
            total.add("site", frame)
            cipher.decrypt(parameters, total.frames())

        attempt("encryption key", encrypt)

        def decrypt(bad: bytes = bad_secret) -> None:
            Decryptor(parameters, bad).frame(form.words(summed, 0)[0])

        attempt("secret key", decrypt)


if __name__ == "__main__":
    faulthandler.enable()
    main(int(sys.argv[1]), int(sys.argv[2]))
