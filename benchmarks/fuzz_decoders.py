"""Feed mutated messages to every decoder: only our errors come out, in bounded memory, and nothing hangs.

    python benchmarks/fuzz_decoders.py --count 1000000 --seconds-per-type 300
    python benchmarks/fuzz_decoders.py --type Adverts --seed 7

For each type, valid messages are mutated by bit flips, truncation, edited length fields, splices with
messages of any type, and moved, repeated or deleted pieces. What a decoder accepts must encode to the very
same bytes (two byte strings never mean the same message). Every so often, the peak of what Python allocates
while decoding is held against a bound that is linear in the size of the input.

A failure prints the input in hexadecimal; the exit status is 1. ``tests/crypto/masked/test_fuzz.py`` runs a
short, deterministic part of this in every test run.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_origin, get_type_hints

import torch

from secfed.crypto import sealing, shamir
from secfed.crypto.codec import Writer
from secfed.crypto.encrypted import messages as opened_messages
from secfed.crypto.encrypted.tags import TAG_BYTES
from secfed.crypto.identity import MAX_NAME_BYTES, PUBLIC_BYTES, SIGNATURE_BYTES, Roster
from secfed.crypto.masked import graph_messages
from secfed.crypto.messages import (
    ALL,
    DIGEST_BYTES,
    SEALED_SEED_BYTES,
    SEALED_SHARES_BYTES,
    MaskSecretShare,
    SelfMaskShare,
    Shares,
)
from secfed.crypto.record import Record
from secfed.errors import SecfedError
from secfed.wire import frames

# Peak bytes a decoder may allocate: interpreter noise, and small objects for small fields (the densest is a
# list of empty names: 4 bytes each on the wire, a pointer in the growing list and one in the final tuple).
ALLOWED_BYTES = 16 * 1024
ALLOWED_PER_INPUT_BYTE = 12
HANG_S = 120.0  # a batch takes milliseconds; the process ends with a traceback after this


@dataclass(frozen=True)
class Target:
    """A decoder, valid inputs for it, and whether what it accepts must encode to the same bytes."""

    name: str
    decode: Callable[[bytes], Any]
    samples: tuple[bytes, ...]
    encode: Callable[[Any], bytes] | None


@dataclass
class Report:
    tried: int = 0
    accepted: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    failures: list[str] = field(default_factory=list)


def _names(random_: random.Random, most: int = 6) -> tuple[str, ...]:
    words = ["a", "hospital-1", "klinikum-süd", "病院", "x" * MAX_NAME_BYTES, ""]
    return tuple(random_.choice(words) for _ in range(random_.randint(0, most)))


def _name(random_: random.Random) -> str:
    return (*_names(random_, 3), "hospital-2")[0]


# Bytes of fields that hold no digest, and bits of numbers that are not of 32 bits.
_BYTES = {
    "signature": SIGNATURE_BYTES,
    "mask_key": sealing.PUBLIC_BYTES,
    "seal_key": sealing.PUBLIC_BYTES,
    "sealed_seed": SEALED_SEED_BYTES,
    "sealed_shares": SEALED_SHARES_BYTES,
    "share": shamir.SHARE_BYTES,
    "tag": TAG_BYTES,
}
_BITS = {"exchange_index": 16, "threshold": 16}


def _message(kind: Any, random_: random.Random) -> Any:
    """A well-formed message, or part of one, with random content: by the types of its fields."""
    if kind is Shares:  # of each peer one, in order
        peers = sorted(set(_names(random_)))
        kinds = [random_.choice((SelfMaskShare, MaskSecretShare)) for _ in peers]
        shares = (
            one(peer, random_.randbytes(shamir.SHARE_BYTES)) for one, peer in zip(kinds, peers, strict=True)
        )
        return Shares(tuple(shares), random_.randbytes(SIGNATURE_BYTES))
    hints = get_type_hints(kind)
    return kind(**{one.name: _value(one.name, hints[one.name], random_) for one in fields(kind)})


def _value(name: str, kind: Any, random_: random.Random) -> Any:
    if kind is str:
        return _name(random_)
    if kind is int:
        return random_.getrandbits(_BITS.get(name, 32))
    if kind is bytes:
        return random_.randbytes(_BYTES.get(name, DIGEST_BYTES))
    if isinstance(kind, type) and issubclass(kind, Record):
        return _message(kind, random_)
    if get_origin(kind) is tuple:
        (item, _) = get_args(kind)
        if item is str:
            return _names(random_)
        return tuple(_message(item, random_) for _ in range(random_.randint(0, 3)))
    return memoryview(random_.randbytes(random_.choice([0, 1, 40])))


def _roster(random_: random.Random) -> Roster:
    names = sorted({name for name in _names(random_, 6) if name} | {"hospital-3"})
    return Roster(
        random_.randbytes(PUBLIC_BYTES), tuple((name, random_.randbytes(PUBLIC_BYTES)) for name in names)
    )


def _state(random_: random.Random) -> bytes:
    generator = torch.Generator().manual_seed(random_.getrandbits(32))
    choices: list[list[tuple[int, ...]]] = [[(2, 3), (3,)], [()], [(0, 4), (1,)], []]
    shapes = random_.choice(choices)
    state = {f"layer.{index}": torch.rand(shape, generator=generator) for index, shape in enumerate(shapes)}
    if random_.random() < 0.3:
        state["steps"] = torch.tensor([1, 2, 3])
    return frames.encode_state(state)


def _frame(random_: random.Random) -> bytes:
    numbers = random_.getrandbits(32), random_.getrandbits(16)
    kind = random_.random()
    if kind < 0.2:
        return frames.Notice(random_.randbytes(20)).encode()
    if kind < 0.6:
        return frames.Task(_name(random_), *numbers, _name(random_), random_.randbytes(20)).encode()
    return frames.Step(*numbers, random_.getrandbits(32), random_.randbytes(20)).encode()


def targets(seed: int = 0, samples: int = 24) -> dict[str, Target]:
    """Every decoder that bytes from another machine can reach."""
    random_ = random.Random(seed)
    made = {
        kind.__name__: Target(
            kind.__name__,
            kind.decode,
            tuple(_message(kind, random_).encode() for _ in range(samples)),
            lambda message: message.encode(),
        )
        for kind in (*ALL, *graph_messages.ALL, *opened_messages.ALL)
    }
    rosters = tuple(_roster(random_).encode() for _ in range(samples))
    made["Roster"] = Target("Roster", Roster.decode, rosters, lambda roster: roster.encode())
    framed = tuple(_frame(random_) for _ in range(samples))
    made["frame"] = Target("frame", frames.decode, framed, lambda frame: frame.encode())
    # A safetensors header is JSON: many byte strings mean the same state, so there is nothing to compare.
    states = tuple(_state(random_) for _ in range(samples))
    made["state"] = Target("state", frames.decode_state, states, None)
    return made


_EXTREMES = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 1000, 1001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate(message: bytes, others: tuple[bytes, ...], random_: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(random_.randint(1, 4)):
        _MUTATIONS[random_.randrange(len(_MUTATIONS))](data, others, random_)
    return bytes(data)


def _flip_bit(data: bytearray, _: tuple[bytes, ...], random_: random.Random) -> None:
    if data:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _truncate(data: bytearray, _: tuple[bytes, ...], random_: random.Random) -> None:
    del data[random_.randrange(len(data) + 1) :]


def _extend(data: bytearray, _: tuple[bytes, ...], random_: random.Random) -> None:
    data += random_.randbytes(random_.randint(1, 40))


def _edit_length(data: bytearray, _: tuple[bytes, ...], random_: random.Random) -> None:
    """Put an extreme or a slightly different number where a length or count may be."""
    width = random_.choice([2, 4, 8])
    if len(data) < width:
        return
    # Most lengths stand near the front; the others are found by looking for small big-endian numbers.
    at = random_.randrange(min(len(data) - width + 1, 64 if random_.random() < 0.6 else len(data)))
    found = data.find(b"\0\0\0", at)
    if random_.random() < 0.5 and 0 <= found <= len(data) - 4:
        at, width = found, 4
    number = int.from_bytes(data[at : at + width], "big")
    near = number + random_.choice([-2, -1, 1, 2, 256])
    value = near if random_.random() < 0.5 else random_.choice(_EXTREMES)
    edited = (value % (1 << (8 * width))).to_bytes(width, "big")
    data[at : at + width] = edited[::-1] if random_.random() < 0.1 else edited  # safetensors is little-endian


def _splice(data: bytearray, others: tuple[bytes, ...], random_: random.Random) -> None:
    other = random_.choice(others)
    data[random_.randrange(len(data) + 1) :] = other[random_.randrange(len(other) + 1) :]


def _move(data: bytearray, _: tuple[bytes, ...], random_: random.Random) -> None:
    start = random_.randrange(len(data) + 1)
    piece = bytes(data[start : start + random_.choice([1, 4, 32, 64, 400])])
    if random_.random() < 0.7:
        del data[start : start + len(piece)]
    if random_.random() < 0.7:
        at = random_.randrange(len(data) + 1)
        data[at:at] = piece


_MUTATIONS = (*[_flip_bit] * 2, _truncate, _extend, *[_edit_length] * 3, _splice, _move)


def inputs(target: Target, pool: tuple[bytes, ...], seed: int) -> Iterator[bytes]:
    """Mutated messages without end; what was accepted is not fed back, so a run can be repeated exactly."""
    random_ = random.Random(f"{seed} {target.name}")
    yield from target.samples
    while True:
        yield mutate(random_.choice(target.samples), pool, random_)


def try_one(target: Target, data: bytes, report: Report, *, measure: bool = False) -> None:
    report.tried += 1
    if measure:
        tracemalloc.start()
    try:
        decoded = target.decode(data)
    except SecfedError:
        decoded = None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        report.failures.append(f"{target.name}: {type(error).__name__}: {error}: {data.hex()}")
        return
    finally:
        if measure:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            report.peak_bytes = max(report.peak_bytes, peak)
            if peak > ALLOWED_BYTES + ALLOWED_PER_INPUT_BYTE * len(data):
                report.failures.append(f"{target.name}: allocated {peak} bytes for {data.hex()}")
    if decoded is not None:
        report.accepted += 1
        if target.encode is not None and target.encode(decoded) != data:
            report.failures.append(f"{target.name}: accepted, but encodes differently: {data.hex()}")


def fuzz(
    target: Target,
    pool: tuple[bytes, ...],
    *,
    count: int,
    seconds: float | None = None,
    seed: int = 0,
    measure_every: int = 100,
) -> Report:
    """Try up to ``count`` inputs, for at most ``seconds``."""
    report = Report()
    start = time.monotonic()
    for number, data in enumerate(inputs(target, pool, seed)):
        late = seconds is not None and number % 256 == 0 and time.monotonic() - start > seconds
        if number >= count or late or len(report.failures) >= 10:
            break
        if seconds is not None and number % 256 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True, file=2)
        try_one(target, data, report, measure=number % measure_every == 0)
    faulthandler.cancel_dump_traceback_later()
    report.seconds = time.monotonic() - start
    return report


def hostile(target: Target) -> Iterable[bytes]:
    """Inputs that claim more than they hold, made by hand: the largest counts and lengths at every offset."""
    for sample in target.samples[:6]:
        for at in range(min(len(sample) - 4, 300)):
            for value in (0x7FFFFFFF, 0xFFFFFFFF, 1000):
                yield sample[:at] + value.to_bytes(4, "big") + sample[at + 4 :]
    # A list as long as its cap allows, of the smallest items: the most objects per input byte.
    header = target.samples[0][:10]
    for items in (999, 1000, 1001):
        yield header + Writer().uint(items, 4).done() + bytes(4 * items)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzz every decoder.")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs per type (default %(default)s)")
    parser.add_argument("--seconds-per-type", type=float, default=300.0, help="(default %(default)s)")
    parser.add_argument("--type", action="append", help="only this type; may be given again")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    everything = targets(options.seed)
    unknown = set(options.type or ()) - set(everything)
    if unknown:
        parser.error(f"unknown type {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    pool = tuple(sample for target in everything.values() for sample in target.samples)
    failures: list[str] = []
    print(f"{'type':<14} {'inputs':>9} {'accepted':>9} {'seconds':>8} {'peak KiB':>9} {'failures':>9}")
    for name in options.type or everything:
        target = everything[name]
        report = fuzz(target, pool, count=options.count, seconds=options.seconds_per_type, seed=options.seed)
        for data in hostile(target):
            try_one(target, data, report, measure=True)
        print(
            f"{name:<14} {report.tried:>9} {report.accepted:>9} {report.seconds:>8.1f} "
            f"{report.peak_bytes / 1024:>9.1f} {len(report.failures):>9}",
            flush=True,
        )
        failures += report.failures
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
