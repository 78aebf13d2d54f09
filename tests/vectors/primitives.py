"""Vectors of everything below the messages: labels, derivations, streams, sharing, fixed point, lanes."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

from secfed.crypto import keystream, labels, lanes, shamir
from secfed.crypto.codec import digest
from secfed.crypto.fixedpoint import FixedPoint
from secfed.crypto.identity import Identity, Roster, fingerprint
from secfed.crypto.keystream import Keystream, RoundingStream, derive
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import masks
from secfed.crypto.masked.key_derivation import commitment, mask_key, outgoing_seed
from secfed.wire.layout import Field, Layout

Json = dict[str, Any]


def pattern(name: str, size: int = 32) -> bytes:
    """Bytes that a reader can make again: SHA-256 of the name, then of that, and so on."""
    block, out = name.encode(), b""
    while len(out) < size:
        block = hashlib.sha256(block).digest()
        out += block
    return out[:size]


def label_vectors() -> Json:
    """Every label, and the two forms it enters: digest and key derivation."""
    texts = {name: value.decode() for name, value in vars(labels).items() if isinstance(value, bytes)}
    return {
        "labels": dict(sorted(texts.items())),
        "digest": [
            {
                "label": "secfed/v1 sharing set digest",
                "parts": [part.hex() for part in parts],
                "digest": digest(labels.SHARING_DIGEST, *parts).hex(),
            }
            for parts in ([], [b""], [b"ab", b"c"], [b"a", b"bc"])
        ],
        "derive": [
            {
                "secret": pattern("secret").hex(),
                "label": "secfed/v1 derive self mask stream",
                "context": [part.hex() for part in context],
                "size_bytes": size,
                "output": derive(pattern("secret"), labels.DERIVE_SELF_MASK, *context, size_bytes=size).hex(),
            }
            for context, size in (([], 32), ([b"x", b""], 32), ([b"", b"x"], 64))
        ],
    }


def derivation_vectors() -> Json:
    """From the secrets of one attempt to keys, seeds and stream keys."""
    mask_secret, self_seed = pattern("mask secret"), pattern("self-mask seed")
    spec_digest, broadcast = pattern("specification digest"), pattern("broadcast digest")
    shape = VectorShape((Run(20, 5), Run(64, 2)), pattern("layout digest"))
    context = masks.MaskContext(spec_digest, broadcast, shape)
    seed_lower, seed_higher = pattern("seed of the lower position"), pattern("seed of the higher position")
    streams = {"self": masks.self_mask(self_seed, 1), "pair": masks.pair_mask(seed_lower, seed_higher, 1)}
    identities = [Identity.from_seed(name, pattern(f"identity {name}")) for name in ("b", "a", "ä")]
    aggregator = Identity.from_seed("aggregator", pattern("identity aggregator"))
    roster = Roster.of(aggregator, identities)
    return {
        "mask_secret": mask_secret.hex(),
        "mask_key_mlkem_seed": derive(mask_secret, labels.DERIVE_MASK_KEY_MLKEM, size_bytes=64).hex(),
        "mask_key_x25519_private": derive(mask_secret, labels.DERIVE_MASK_KEY_X25519).hex(),
        "mask_key_public": mask_key(mask_secret).public_bytes.hex(),
        "specification_digest": spec_digest.hex(),
        "outgoing_seeds": [
            {
                "sender": sender,
                "recipient": recipient,
                "seed": outgoing_seed(mask_secret, spec_digest, sender, recipient).hex(),
            }
            for sender, recipient in (("hospital-0", "hospital-1"), ("hospital-1", "hospital-0"), ("", "ä"))
        ],
        "self_seed": self_seed.hex(),
        "commitment": commitment(self_seed).hex(),
        "layout_digest": shape.digest.hex(),
        "broadcast_digest": broadcast.hex(),
        "pair_seed_lower": seed_lower.hex(),
        "pair_seed_higher": seed_higher.hex(),
        "streams": [
            {
                "kind": kind,
                "run": index,
                "bits": run.bits,
                "count": run.count,
                "first_64_bytes": stream_bytes(stream.key(context, index).segment(0), 64).hex(),
            }
            for kind, stream in streams.items()
            for index, run in enumerate(shape.runs)
        ],
        "roster": {
            "aggregator_identity_seed": pattern("identity aggregator").hex(),
            "identity_seeds": {identity.name: identity.private_bytes().hex() for identity in identities},
            "encoding": roster.encode().hex(),
            "digest": roster.digest.hex(),
            "fingerprints": {name: fingerprint(public) for name, public in roster.members},
        },
        "signature": {
            "identity_seed": identities[0].private_bytes().hex(),
            "public": identities[0].public_bytes.hex(),
            "label": "secfed/v1 sign upload",
            "parts": [b"one".hex(), b"".hex()],
            "signature": identities[0].sign(labels.SIGN_UPLOAD, b"one", b"").hex(),
        },
        "layouts": [_layout(layout) for layout in _layouts()],
    }


def _layouts() -> list[Layout]:
    fields = (Field("weight", (2, 3), 4.0, 20), Field("loss", (), 1000.0, 64), Field("bias", (3,), 0.1, 20))
    return [Layout(fields, 5), Layout(fields[::-1], 5), Layout(fields, 6)]


def _layout(layout: Layout) -> Json:
    return {
        "sites": layout.sites,
        "fields": [
            {"name": field.name, "shape": list(field.shape), "bound": field.bound, "bits": field.bits}
            for field in layout.fields
        ],
        "wire_order": [field.name for field in layout.ordered],
        "runs": [[run.bits, run.count] for run in layout.shape.runs],
        "digest": layout.digest.hex(),
    }


def stream_bytes(stream: Keystream, size: int) -> bytes:
    """The next bytes of a stream."""
    out = bytearray(size)
    stream.into(bytes(size), out)
    return bytes(out)


class Counting:
    """Lane k is k modulo the ring."""

    def __init__(self) -> None:
        self._at = 0

    def fill(self, run: Run, out: np.ndarray[Any, Any]) -> None:
        """The next lanes."""
        lanes_ = np.arange(self._at, self._at + out.size, dtype=np.uint64)
        self._at += out.size
        out[:] = (lanes_ & np.uint64((1 << run.bits) - 1)).astype(run.dtype)


CHUNK: Final = 1 << 16  # implementations work in chunks of 2^16 lanes; the stream must not show it


def keystream_vectors() -> Json:
    """Streams, and a masked run, across the boundary of a chunk."""
    assert lanes.CHUNK_ELEMENTS == CHUNK
    stream_key = pattern("stream key")
    around = stream_bytes(Keystream(stream_key), 4 * CHUNK + 16)[4 * CHUNK - 16 :]
    masked = []
    for bits in (9, 32, 64):
        run = Run(bits, CHUNK + 5)
        shape = VectorShape((run,), pattern("layout digest"))
        context = masks.MaskContext(pattern("specification digest"), pattern("broadcast digest"), shape)
        streams = [
            masks.self_mask(pattern("self-mask seed"), 1),
            masks.pair_mask(pattern("one"), pattern("two"), -1),
        ]
        wire = bytearray(run.wire_bytes)
        vector_digest = masks.write_masked(Counting(), streams, context, memoryview(wire))
        edge = CHUNK * bits // 8
        masked.append(
            {
                "bits": bits,
                "count": run.count,
                "wire_bytes": run.wire_bytes,
                "first_16_bytes": wire[:16].hex(),
                "bytes_around_lane_65536": wire[edge - 16 : edge + 5].hex(),
                "sha256": hashlib.sha256(wire).hexdigest(),
                "vector_digest": vector_digest.hex(),
            }
        )
    long = bytes(index % 251 for index in range((1 << 20) + 7))
    return {
        "stream_key": stream_key.hex(),
        "first_80_bytes": stream_bytes(Keystream(stream_key), 80).hex(),
        "bytes_262128_to_262160": around.hex(),
        "rounding_words": [int(word) for word in RoundingStream(stream_key).words(4)],
        "masked": {
            "rule": "lane k is k mod 2^bits; plus the self mask; minus the pair mask",
            "self_seed": pattern("self-mask seed").hex(),
            "pair_seed_lower": pattern("one").hex(),
            "pair_seed_higher": pattern("two").hex(),
            "specification_digest": pattern("specification digest").hex(),
            "layout_digest": pattern("layout digest").hex(),
            "broadcast_digest": pattern("broadcast digest").hex(),
            "runs": masked,
        },
        "vector_digests": [
            {"rule": "byte k is k mod 251", "bytes": len(part), "digest": masks.vector_digest(part).hex()}
            for part in (memoryview(long)[:size] for size in (0, 1, 1 << 20, (1 << 20) + 7))
        ],
    }


def shamir_vectors() -> Json:
    """Sharing with given coefficients."""
    cases = []
    for threshold, points, secret in (
        (1, (1, 2), pattern("secret")),
        (3, (1, 2, 3, 5), pattern("secret")),
        (3, (2, 700, 65536), b"\xff" * 32),
        (2, (1, 2, 3), bytes(32)),
    ):
        drawn = [int.from_bytes(pattern(f"coefficient {at}", 33), "big") % shamir.PRIME for at in range(8)]
        drawn[0] = shamir.PRIME - 1
        left = iter(drawn)
        shares = shamir.split(secret, threshold, points, randbelow=lambda _, left=left: next(left))
        some = dict(list(shares.items())[-threshold:])
        cases.append(
            {
                "secret": secret.hex(),
                "threshold": threshold,
                "coefficients": [f"{value:066x}" for value in drawn[: threshold - 1]],
                "shares": {str(point): share.hex() for point, share in shares.items()},
                "rebuilt_from_the_last": shamir.combine(some, threshold).hex(),
            }
        )
    return {"prime": f"{shamir.PRIME:066x}", "cases": cases}


def fixedpoint_vectors() -> Json:
    """Scaling, stochastic rounding and decoding."""
    cases = []
    for bound, bits, sites in (
        (1.0, 32, 10),
        (4.0, 20, 5),
        (0.1, 8, 3),
        (1000.0, 64, 5),
        (3.0, 64, 100),
        (2.0**-30, 16, 4),
    ):
        rule = FixedPoint.choose(bound=bound, bits=bits, sites=sites)
        # Exact ties, the bounds, values beyond them, and fractions on both sides of the random word.
        values = [0.0, -0.0, bound, -bound, 2 * bound, -2 * bound, bound / 3, -bound / 3]
        values += [rule.step * 0.5, -rule.step * 0.5, rule.step * 1.25, -rule.step * 1.25]
        for word in (0, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
            words = np.full(len(values), word, np.uint32)
            out = np.zeros(len(values), rule.dtype)
            clipped = rule.quantise(np.array(values), words, out)
            ring = out & rule.dtype((1 << bits) - 1)
            cases.append(
                {
                    "bound": bound.hex(),
                    "bits": bits,
                    "sites": sites,
                    "exponent": rule.exponent,
                    "random_word": word,
                    "values": [value.hex() for value in values],
                    "ring_integers": [int(value) for value in ring],
                    "clipped": clipped,
                    "decoded": [value.hex() for value in rule.decode(ring.astype(rule.dtype))],
                }
            )
    return {"cases": cases}


def lane_vectors() -> Json:
    """Lanes on the wire."""
    cases = []
    for bits, count in ((8, 3), (9, 8), (11, 3), (12, 2), (20, 5), (31, 9), (32, 2), (64, 2)):
        values = [int.from_bytes(pattern(f"lane {at}", 8), "big") % (1 << bits) for at in range(count)]
        run = Run(bits, count)
        wire = bytearray(run.wire_bytes)
        lanes.pack_into(np.array(values, dtype=run.dtype), run, wire)
        assert [int(lane) for lane in lanes.unpack_chunk(wire, run, 0, run.count)] == values
        cases.append({"bits": bits, "lanes": values, "wire": wire.hex()})
    return {"cases": cases}


def primitive_files() -> dict[str, Json]:
    """File name -> content."""
    assert keystream.KEY_BYTES == 32
    return {
        "labels.json": label_vectors(),
        "derivations.json": derivation_vectors(),
        "keystream.json": keystream_vectors(),
        "shamir.json": shamir_vectors(),
        "fixedpoint.json": fixedpoint_vectors(),
        "lanes.json": lane_vectors(),
    }
