"""The cases of ``functions.json``: extremes of the arithmetic, layouts, keys, rosters, shares, disputes."""

from __future__ import annotations

import math
from typing import Any, Final

from secfed.crypto import labels, shamir
from secfed.crypto.identity import Identity
from secfed.crypto.sealing import SealKey
from tests.vectors import encrypted_functions, key_cases, record_cases
from tests.vectors.functions import outcome
from tests.vectors.primitives import Json, pattern
from tests.vectors.record_cases import Cases
from tests.vectors.scripts.world import World

SPOILED: Final = "!"  # what a case must fail for stands behind it in its name


def function_content(world: World) -> Json:
    """The file. A name with ``!`` must fail, any other must not."""
    by_operation: dict[str, Cases] = {
        "fixed point": _fixed_points(),
        "quantise": _quantised(),
        "decode a sum": _decoded(),
        "layout": _layouts(),
        "roster": _rosters(world),
        "verify": _signatures(),
        "seal": _keys(),
        "combine": _shares(),
        "thresholds": {f"{n} of {m}": {"sites": m, "cohort": n} for m, n in _SIZES},
        "settle": _settled(),
        "holders": key_cases.holders(),
        "stream": key_cases.streams(),
        "tags": key_cases.tags(),
        "study key": key_cases.study_keys(),
        "tag of frames": key_cases.frame_tags(),
        "ring": encrypted_functions.rings(),
        "slots": encrypted_functions.slots(),
        "lanes of slots": encrypted_functions.lanes(),
        "packed words": encrypted_functions.packed_words(),
        "frame": record_cases.frames(),
        "append": record_cases.appended(),
        "chain": record_cases.chains(),
        "final model": record_cases.models(world),
    }
    made = []
    for operation, cases in by_operation.items():
        for name, given in cases.items():
            found = outcome(operation, given)
            if ("fails" in found) != (SPOILED in name):
                raise AssertionError(f"{operation} {name}: {found}")
            text = f"{operation}: {name.replace(SPOILED, '')}"
            made.append({"name": text, "operation": operation, "input": given, **found})
    return {"about": "inputs and outputs, or that it must fail; README.md has the operations", "cases": made}


_SIZES: Final = ((3, 3), (4, 4), (7, 6), (7, 5), (10, 10), (10, 6), (100, 100), (100, 60), (1000, 1000))


def _rule(bound: float, bits: int, sites: int, **more: Any) -> Json:
    return {"bound": bound.hex(), "bits": bits, "sites": sites, **more}


def _fixed_points() -> Cases:
    return {
        "the largest exponent": _rule(2.0**-871, 32, 3),
        "!beyond the largest exponent": _rule(2.0**-872, 32, 3),
        "the smallest exponent": _rule(2.0**951, 64, 3),
        "!beyond the smallest exponent": _rule(2.0**952, 64, 3),
        "!a subnormal bound": _rule(5e-324, 32, 3),
        "the bound is a power of two": _rule(4.0, 32, 10),
        "the bound is just above a power of two": _rule(math.nextafter(4.0, 5.0), 32, 10),
        "the bound times 2^e is the limit": _rule(10922.0, 16, 3),
        "the bound times 2^e is above the limit": _rule(10923.0, 16, 3),
        "64 bits, exact in float64": _rule(1.0, 64, 1),
        "64 bits, a thousand sites": _rule(0.1, 64, 1000),
        "room for 2": _rule(1.0, 8, 63),
        "!no room for 2": _rule(1.0, 8, 64),
        "!7 bits": _rule(1.0, 7, 3),
        "!33 bits": _rule(1.0, 33, 3),
        "!63 bits": _rule(1.0, 63, 3),
        "!65 bits": _rule(1.0, 65, 3),
        "!no sites": _rule(1.0, 32, 0),
        "!bound NaN": _rule(math.nan, 32, 3),
        "!bound infinite": _rule(math.inf, 32, 3),
        "!bound zero": _rule(0.0, 32, 3),
        "!bound negative": _rule(-1.0, 32, 3),
    }


def _quantised() -> Cases:
    def case(bound: float, bits: int, sites: int, values: list[float], words: list[int]) -> Json:
        return _rule(bound, bits, sites, values=[value.hex() for value in values], words=words)

    top = 2**32 - 1
    tiny = [-5e-324, -5e-324, 5e-324, 5e-324, -0.0, 0.0]
    return {
        "next to zero": case(1.0, 32, 3, tiny, [0, 1, 0, top, top, top]),
        "next to zero in 64 bits": case(1.0, 64, 3, tiny, [0, 1, 0, top, top, top]),
        "what underflows is zero": case(
            2.0**800, 32, 3, [-(2.0**-400), 2.0**-400, -(2.0**-300)], [0, top, 0]
        ),
        "what underflows is zero in 64 bits": case(2.0**900, 64, 3, [-(2.0**-400), 2.0**-400], [0, top]),
        "clipped": case(1.0, 12, 3, [1.0, -1.0, 1.5, -1.5, 1e308, -1e308], [top, 0, top, 0, top, 0]),
        "clipped in 64 bits": case(3.0, 64, 3, [3.0, -3.0, 4.0, -4.0], [top, 0, top, 0]),
        "the bound is no integer": case(0.1, 8, 3, [0.1, 0.1, -0.1, -0.1], [0, top, 0, top]),
        "downwards and upwards": case(
            1.0, 16, 3, [1 / 3, 1 / 3, -1 / 3, -1 / 3], [2863311530, 2863311531, 1431655765, 1431655766]
        ),
        "!a value is NaN": case(1.0, 16, 3, [0.0, math.nan], [0, 0]),
        "!a value is infinite": case(1.0, 16, 3, [math.inf, 0.0], [0, 0]),
    }


def _decoded() -> Cases:
    def case(bound: float, bits: int, sites: int, summands: int, *lanes: int) -> Json:
        return _rule(bound, bits, sites, summands=summands, lanes=[lane % 2**bits for lane in lanes])

    limit, wide = 8192, 2**50  # ceil(B 2^e) of the two rules below
    return {
        "at the limit of three": case(1.0, 16, 3, 3, 3 * limit, -3 * limit, 0, -1),
        "!above the limit of three": case(1.0, 16, 3, 3, 3 * limit + 1),
        "!below the limit of three": case(1.0, 16, 3, 3, -3 * limit - 1),
        "at the limit of two": case(1.0, 16, 3, 2, 2 * limit, -2 * limit),
        "!above the limit of two of three": case(1.0, 16, 3, 2, 2 * limit + 1),
        "at the limit in 64 bits": case(1.0, 64, 5, 5, 5 * wide, -5 * wide),
        "!above the limit in 64 bits": case(1.0, 64, 5, 5, 5 * wide + 1),
        "!another value in 64 bits": case(1.0, 64, 5, 5, 2**63),
        "a bound that is rounded up": case(0.1, 8, 3, 3, 3 * 26, -3 * 26),
        "!above a bound that is rounded up": case(0.1, 8, 3, 3, 3 * 26 + 1),
    }


def _layouts() -> Cases:
    def case(sites: int, *fields: tuple[str, list[int], float, int]) -> Json:
        return {"sites": sites, "fields": [[n, shape, bound.hex(), bits] for n, shape, bound, bits in fields]}

    weight, count, bias = ("weight", [2, 3], 0.1, 20), ("count", [], 1e6, 64), ("bias", [3], 1.0, 20)
    return {
        "widths in the order of appearance": case(5, weight, count, bias),
        "another roster": case(6, weight, count, bias),
        "another order": case(5, count, weight, bias),
        "a field without elements": case(5, ("none", [0, 7], 1.0, 20), weight),
        "a name beyond ASCII": case(5, ("größe", [1], 1.0, 8)),
        "!no fields": case(5),
        "!no elements": case(5, ("none", [0], 1.0, 32)),
        "!one name twice": case(5, weight, count, weight),
        "!one name twice in two widths": case(5, weight, ("weight", [], 1.0, 64)),
        "!no headroom": case(100, ("weight", [1], 1.0, 8)),
    }


def _rosters(world: World) -> Cases:
    key = world.people["hospital-1"].public_bytes
    keys = [Identity.from_seed(name, pattern(name)).public_bytes for name in "abc"]

    def case(*members: tuple[str, bytes], count: int | None = None) -> Json:
        body = b"".join(len(n.encode()).to_bytes(4, "big") + n.encode() + public for n, public in members)
        size = len(members) if count is None else count
        return {"encoding": (world.aggregator.public_bytes + size.to_bytes(4, "big") + body).hex()}

    return {
        "seven sites": {"encoding": world.roster.encode().hex()},
        "one site": case(("a", key)),
        "the order of code points": case(("\uff3aentrum", keys[0]), ("\U0001f3e5", keys[1])),
        "!the order of UTF-16": case(("\U0001f3e5", keys[1]), ("\uff3aentrum", keys[0])),
        "a name of 200 bytes": case(("x" * 200, key)),
        "!a name of 201 bytes": case(("x" * 201, key)),
        "!empty": case(),
        "!an empty name": case(("", key)),
        "!the aggregator's key": case(("a", keys[0]), ("b", world.aggregator.public_bytes)),
        "!one key twice": case(("a", key), ("b", keys[0]), ("c", key)),
        "!one name twice": case(("a", key), ("a", keys[0])),
        "!backwards": case(("b", key), ("a", keys[0])),
        "!fewer than stated": case(("a", key), count=2),
        "!more than stated": case(("a", key), ("b", keys[0]), count=1),
        "!four billion": case(("a", key), count=2**32 - 1),
    }


_ORDER_OF_THE_GROUP: Final = 2**252 + 27742317777372353535851937790883648493
# Key and signature of the parts "one", "two" under `sign consistent view`, by somebody who added a point of
# order 8 to the key: 8 S B = 8 R + 8 k A holds, and S B = R + k A does not.
_MIXED_KEY: Final = "b7e47a7a5bfb79208ab0bc0ea614d0c1a456c9539c839fe0fdfa0404bd6e5ff2"
_MIXED_SIGNATURE: Final = (
    "991f37dbb471e4cbd6ba0df9897fe173d880362e9d2fe1ef962c74c7e2d4ecdd"
    "5fe259b006f0e90b205c45bc384255e9e63bc7ba7b4f44a8982a36dd96b18901"
)


def _signatures() -> Cases:
    signer = Identity.from_seed("signer", pattern("signer"))
    signature = signer.sign(labels.SIGN_VIEW, b"one", b"two")
    above = int.from_bytes(signature[32:], "little") + _ORDER_OF_THE_GROUP
    good = {
        "public": signer.public_bytes.hex(),
        "label": labels.SIGN_VIEW.decode(),
        "parts": [b"one".hex(), b"two".hex()],
        "signature": signature.hex(),
    }
    return {
        "good": good,
        "!S plus the order of the group": {
            **good,
            "signature": (signature[:32] + above.to_bytes(32, "little")).hex(),
        },
        "!right only with the cofactor": {**good, "public": _MIXED_KEY, "signature": _MIXED_SIGNATURE},
        "!one part": {**good, "parts": [b"onetwo".hex()]},
        "!one part more": {**good, "parts": [*good["parts"], ""]},
        "!another label": {**good, "label": labels.SIGN_UPLOAD.decode()},
        "!too short": {**good, "signature": signature[:-1].hex()},
        "!no key": {**good, "public": "ff" * 32},
    }


def _keys() -> Cases:
    public = SealKey.from_seeds(pattern("ML-KEM", 64), pattern("X25519")).public_bytes
    mlkem, x25519 = public[:1184], public[1184:]
    field = 2**255 - 19
    points = {
        "0": bytes(32),
        "1": (1).to_bytes(32, "little"),
        "order 8": bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        "order 8, the other": bytes.fromhex(
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"
        ),
        "-1": (field - 1).to_bytes(32, "little"),
        "0 plus the field": field.to_bytes(32, "little"),
        "1 plus the field": (field + 1).to_bytes(32, "little"),
    }
    high = x25519[:31] + bytes([x25519[31] | 0x80])
    cases: Cases = {
        "good": {"public": public.hex()},
        "the highest bit is ignored": {"public": (mlkem + high).hex()},
        "a coefficient of 3328": {
            "public": (bytes([0x00, 0xD0 >> 4 | mlkem[1] & 0xF0]) + mlkem[2:] + x25519).hex()
        },
        "!a coefficient of 3329": {
            "public": (bytes([0x01, 0xD0 >> 4 | mlkem[1] & 0xF0]) + mlkem[2:] + x25519).hex()
        },
        "!all coefficients of 4095": {"public": (b"\xff" * 1152 + mlkem[1152:] + x25519).hex()},
        "!too short": {"public": public[:-1].hex()},
    }
    return cases | {
        f"!X25519 point {name}": {"public": (mlkem + point).hex()} for name, point in points.items()
    }


def _shares() -> Cases:
    left = iter([5, shamir.PRIME - 1])
    shares = shamir.split(pattern("secret"), 3, (2, 700, 1000), randbelow=lambda _: next(left))
    good = {str(point): share.hex() for point, share in shares.items()}
    prime = shamir.PRIME.to_bytes(33, "big").hex()
    return {
        "far apart": {"threshold": 3, "shares": good},
        "!a share of p": {"threshold": 3, "shares": {**good, "2": prime}},
        "!too few": {"threshold": 3, "shares": dict(list(good.items())[:2])},
        "!a secret of 2^256": {
            "threshold": 2,
            "shares": {"1": f"{2**256 + 1:066x}", "2": f"{2**256 + 2:066x}"},
        },
        "the largest secret": {"threshold": 2, "shares": {"1": f"{2**256:066x}", "2": f"{2**256 + 1:066x}"}},
    }


def _settled() -> Cases:
    def case(colluders: int, *disputes: str) -> Json:
        return {"disputes": [list(pair) for pair in disputes], "colluders": colluders}

    return {
        "nothing": case(2),
        "one pair": case(2, "ab"),
        "each of the other": case(2, "ab", "ba"),
        "more opponents than colluders": case(1, "ab", "ac"),
        "as many as colluders": case(2, "ab", "ac"),
        "one with three, another with one": case(2, "ab", "ac", "ad", "ef"),
        "a chain": case(1, "ab", "bc", "cd"),
        "what is left counts for fewer": case(2, "ab", "ac", "ad", "eb", "ec"),
        "two at once, the first by name": case(1, "xb", "xc", "yb", "yc"),
        "complaints that count once": case(2, "ab", "ab", "ba", "ac"),
        "nobody can be found at fault": case(0, "ab", "ac"),
    }
