"""Makes the cases that must fail (see ``bad.py``), and runs each of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from secfed.crypto import labels, shamir
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.message_base import Message, signed
from secfed.crypto.messages import (
    Adverts,
    Deliveries,
    Envelope,
    Result,
    Shares,
    SharingSet,
    Specification,
    Survivors,
    UnmaskRequest,
)
from secfed.crypto.refusals import Refusal
from tests.vectors.bad import SITE, check
from tests.vectors.bad_model import model_cases
from tests.vectors.ciphers import aes_cases
from tests.vectors.closed import SMALL, closed_cases, closed_vectors
from tests.vectors.messages import example_messages
from tests.vectors.primitives import Json, pattern
from tests.vectors.replay import rebuild, request_to


def _case(name: str, operation: str, error: str, **inputs: Any) -> Json:
    return {"name": f"bad_{name}", "operation": operation, "error": error, **inputs}


def _message_cases() -> list[Json]:
    examples = example_messages()
    cases = []
    for name in ("Specification", "Upload", "Survivors", "View", "UnmaskRequest", "Shares", "Result"):
        encoded = examples[name].encode()
        spoiled = {
            "another_version": encoded.replace(b"secfed/v1", b"secfed/v2", 1),
            "another_type": encoded[:9] + bytes([(encoded[9] + 1) % 11]) + encoded[10:],
            "empty": b"",
        }
        if name != "Upload":  # its vector takes whatever length is there
            spoiled |= {"trailing_byte": encoded + b"\0", "last_byte_missing": encoded[:-1]}
        for what, data in spoiled.items():
            cases.append((f"{name.lower()}_{what}", name, data))
    upload, survivors = examples["Upload"].encode(), Survivors(()).encode()[:10]
    shares = examples["Shares"]
    cases += [
        ("upload_padding_not_zero", "Upload", upload[:15] + b"\1" + upload[16:]),
        ("upload_without_trailer", "Upload", upload[: 16 + 127]),
        ("list_above_its_cap", "Survivors", survivors + (1001).to_bytes(4, "big") + bytes(4004)),
        ("list_of_four_billion", "Survivors", survivors + b"\xff" * 4),
        ("name_above_its_cap", "Survivors", Survivors(("x" * 201,)).encode()),
        ("name_not_utf8", "Survivors", survivors + bytes.fromhex("0000000100000001c3")),
        ("adverts_longer_than_the_message", "Adverts", Adverts(()).encode()[:10] + bytes([0, 0, 0, 1, 0, 0])),
        ("shares_out_of_order", "Shares", Shares(shares.shares[::-1], bytes(64)).encode()),
        ("shares_both_kinds_of_one_peer", "Shares", _both_kinds(shares).encode()),
        ("shares_unknown_kind", "Shares", _unknown_kind(shares.encode())),
    ]
    return [
        _case(what, "decode a message", "MalformedMessage", message=message, input=data.hex())
        for what, message, data in cases
    ]


def _both_kinds(shares: Shares) -> Shares:
    first, second = shares.shares
    return Shares((first, type(second)(first.peer, second.share)), shares.signature)


def _unknown_kind(encoded: bytes) -> bytes:
    at = encoded.index(b"hospital-0") + len(b"hospital-0")
    return encoded[:at] + b"\3" + encoded[at + 1 :]


def _arithmetic_cases() -> list[Json]:
    left = iter([5, 7])
    shares = shamir.split(pattern("secret"), 3, (1, 2, 3), randbelow=lambda _: next(left))
    hexed = {str(point): share.hex() for point, share in shares.items()}
    p = f"{shamir.PRIME:066x}"
    # On the line through these two points, the value at 0 is 2^256: a field element, but no 32 bytes.
    beyond = {"1": f"{2**256 + 1:066x}", "2": f"{2**256 + 2:066x}"}
    rule = {"bound": (1.0).hex(), "bits": 16, "sites": 3}
    by_operation: dict[str, list[tuple[str, str, Json]]] = {
        "combine shares": [
            ("shamir_too_few", "RangeError", {"threshold": 3, "shares": dict(list(hexed.items())[:2])}),
            ("shamir_not_in_the_field", "RangeError", {"threshold": 3, "shares": {**hexed, "1": p}}),
            ("shamir_share_too_short", "RangeError", {"threshold": 3, "shares": {**hexed, "1": p[:-2]}}),
            ("shamir_secret_too_large", "RangeError", {"threshold": 2, "shares": beyond}),
        ],
        "choose a fixed point": [
            ("fixedpoint_no_headroom", "RangeError", {"bits": 8, "bound": (1.0).hex(), "sites": 100}),
            ("fixedpoint_width_7", "RangeError", {"bits": 7, "bound": (1.0).hex(), "sites": 3}),
            ("fixedpoint_width_33", "RangeError", {"bits": 33, "bound": (1.0).hex(), "sites": 3}),
            ("fixedpoint_bound_zero", "RangeError", {"bits": 32, "bound": (0.0).hex(), "sites": 3}),
        ],
        "quantise": [
            ("fixedpoint_nan", "RangeError", {"values": [math.nan.hex()], **rule}),
            ("fixedpoint_infinity", "RangeError", {"values": [(0.0).hex(), (-math.inf).hex()], **rule}),
        ],
        "decode a sum": [("fixedpoint_sum_out_of_range", "RangeError", {"sums": [1 << 15], **rule})],
        "unpack lanes": [
            ("lanes_padding_not_zero", "MalformedMessage", {"bits": 9, "count": 1, "input": "ff03"}),
            ("lanes_too_short", "MalformedMessage", {"bits": 9, "count": 8, "input": "00" * 8}),
            ("lanes_too_long", "MalformedMessage", {"bits": 32, "count": 1, "input": "00" * 5}),
        ],
    }
    return [
        _case(name, operation, error, **inputs)
        for operation, cases in by_operation.items()
        for name, error, inputs in cases
    ]


def _key_cases(attempt: Json) -> list[Json]:
    recorded = attempt["sites"][SITE]
    envelope = _deliveries(attempt)[0]
    spec_digest = bytes.fromhex(attempt["specification_digest"])
    adverts_digest = Adverts.decode(request_to(attempt, "share", SITE)).digest
    context = [spec_digest, adverts_digest, envelope.sender.encode(), SITE.encode()]
    key = {
        "mlkem_seed": recorded["seal_key_mlkem_seed"],
        "x25519_private": recorded["seal_key_x25519_private"],
        "label": labels.SEAL_SHARES.decode(),
        "context": [part.hex() for part in context],
    }
    sealed = envelope.sealed_shares
    public = Adverts.decode(request_to(attempt, "share", SITE)).adverts[1].seal_key

    def opening(name: str, data: bytes, **changes: Any) -> Json:
        return _case(
            f"open_{name}", "open an envelope", "MalformedMessage", input=data.hex(), **{**key, **changes}
        )

    def sealing(name: str, key: bytes) -> Json:
        return _case(f"seal_{name}", "seal an envelope", "MalformedMessage", public=key.hex())

    signer = Identity.from_seed("signer", pattern("signer"))
    signature = signer.sign(labels.SIGN_VIEW, b"one", b"two")
    good = {
        "public": signer.public_bytes.hex(),
        "signature": signature.hex(),
        "label": labels.SIGN_VIEW.decode(),
        "parts": [b"one".hex(), b"two".hex()],
    }

    def verifying(name: str, **changes: Any) -> Json:
        return _case(f"verify_{name}", "verify a signature", "BadSignature", **{**good, **changes})

    roster = Roster.decode(bytes.fromhex(attempt["roster"]))
    encoded = roster.encode()
    item = 4 + len(roster.sites[0]) + 32
    swapped = (
        encoded[:36] + encoded[36 + item : 36 + 2 * item] + encoded[36 : 36 + item] + encoded[36 + 2 * item :]
    )
    return [
        opening("altered", sealed[:-1] + bytes([sealed[-1] ^ 1])),
        opening("too_short", sealed[:1000]),
        opening("another_label", sealed, label=labels.SEAL_PAIR_SEED.decode()),
        opening("another_recipient", sealed, context=[*key["context"][:3], b"hospital-2".hex()]),
        opening("shifted_context", sealed, context=["".join(key["context"][:2]), *key["context"][2:]]),
        opening("another_key", sealed, x25519_private=pattern("another").hex()),
        sealing("small_order_key", public[:-32] + bytes(32)),
        sealing("unreduced_key", b"\xff" * 1216),
        verifying("another_label", label=labels.SIGN_UPLOAD.decode()),
        verifying("shifted_parts", parts=[b"onet".hex(), b"wo".hex()]),
        verifying("another_signer", public=Identity.from_seed("other", pattern("other")).public_bytes.hex()),
        verifying("altered", signature=(signature[:-1] + bytes([signature[-1] ^ 1])).hex()),
        _case("roster_out_of_order", "decode a roster", "RosterError", input=swapped.hex()),
        _case("roster_one_key_twice", "decode a roster", "RosterError", input=_same_key(encoded, item).hex()),
        _case("roster_trailing_byte", "decode a roster", "MalformedMessage", input=(encoded + b"\0").hex()),
    ]


def _same_key(encoded: bytes, item: int) -> bytes:
    second_key = 36 + 2 * item - 32
    return encoded[:second_key] + encoded[36 + item - 32 : 36 + item] + encoded[second_key + 32 :]


def _deliveries(attempt: Json) -> tuple[Envelope, ...]:
    return Deliveries.decode(request_to(attempt, "confirm", SITE)).envelopes


def _pieces(honest: bytes, message: bytes, shortest: int = 16) -> list[list[Any]]:
    """The message as copied parts of the honest request and bytes of its own."""
    pieces: list[list[Any]] = []
    own, at = b"", 0
    while at < len(message):
        start = honest.find(message[at : at + shortest]) if len(message) - at >= shortest else -1
        if start < 0:
            own, at = own + message[at : at + 1], at + 1
            continue
        size = shortest
        while honest[start + size : start + size + 1] == message[at + size : at + size + 1] != b"":
            size += 1
        pieces += [["hex", own.hex()]] if own else []
        pieces.append(["request", start, start + size])
        own, at = b"", at + size
    return pieces + ([["hex", own.hex()]] if own else [])


def _site_cases(attempt: Json) -> list[Json]:
    aggregator = Identity.from_seed("aggregator", bytes.fromhex(attempt["aggregator_identity_seed"]))
    honest = {stage: request_to(attempt, stage, SITE) for stage in attempt["requests"]}
    spec = Specification.decode(honest["advertise"])
    adverts = Adverts.decode(honest["share"]).adverts
    envelopes = _deliveries(attempt)
    sharing = SharingSet.decode(honest["mask"]).sharing
    survivors = Survivors.decode(honest["consistency"]).survivors
    request, result = UnmaskRequest.decode(honest["unmask"]), Result.decode(honest["result"])
    colluder = Identity.from_seed(
        envelopes[0].sender, bytes.fromhex(attempt["sites"][envelopes[0].sender]["identity_seed"])
    )

    def resigned(**changes: Any) -> Specification:
        return signed(replace(spec, **changes), aggregator, labels.SIGN_SPEC)

    def complained_of() -> Json:
        """Deliveries with one envelope that does not open, and the complaint that answers them."""
        bad = replace(envelopes[0], sealed_seed=bytes(len(envelopes[0].sealed_seed)))
        bad = signed(bad, colluder, labels.SIGN_ENVELOPE, spec.digest, Adverts(adverts).digest)
        delivered = Deliveries((bad, *envelopes[1:])).encode()
        reply = rebuild(attempt, SITE, "confirm").handle(delivered)
        return {"pieces": _pieces(honest["confirm"], delivered), "reply": bytes(reply).hex()}

    def views(*chosen: int, **changes: Any) -> UnmaskRequest:
        return replace(request, views=tuple(replace(request.views[i], **changes) for i in chosen))

    garbled = complained_of()
    flipped_key = replace(adverts[0], mask_key=adverts[0].mask_key[:-1] + b"\x55")
    flipped_seed = replace(envelopes[0], sealed_seed=envelopes[0].sealed_seed[:-1] + b"\x55")
    others = result.survivors[:-1]
    cases: list[tuple[str, str, Message | bytes, Refusal]] = [
        ("specification_altered", "advertise", replace(spec, threshold=3), Refusal.SPEC_SIGNATURE),
        ("specification_roster", "advertise", resigned(roster_digest=bytes(32)), Refusal.ROSTER_CHANGED),
        ("specification_stranger", "advertise", resigned(cohort=(*spec.cohort, "x")), Refusal.UNKNOWN_MEMBER),
        ("specification_repeats", "advertise", resigned(cohort=(SITE, SITE, SITE)), Refusal.COHORT_ORDER),
        ("specification_uninvited", "advertise", resigned(cohort=spec.cohort[2:]), Refusal.NOT_INVITED),
        ("specification_two_sites", "advertise", resigned(cohort=spec.cohort[:2]), Refusal.COHORT_TOO_SMALL),
        ("specification_threshold", "advertise", resigned(threshold=3), Refusal.THRESHOLD_TOO_LOW),
        ("specification_round", "advertise", resigned(round=2), Refusal.OTHER_EXCHANGE),
        ("specification_layout", "advertise", resigned(layout_digest=bytes(32)), Refusal.LAYOUT_CHANGED),
        (
            "specification_broadcast",
            "advertise",
            resigned(broadcast_digest=bytes(32)),
            Refusal.BROADCAST_UNKNOWN,
        ),
        ("adverts_substituted", "share", Adverts((flipped_key, *adverts[1:])), Refusal.ADVERT_SIGNATURE),
        ("adverts_repeated", "share", Adverts((*adverts, adverts[-1])), Refusal.ADVERT_ORDER),
        ("adverts_without_own", "share", Adverts((adverts[0], *adverts[2:])), Refusal.OWN_ADVERT),
        ("adverts_too_few", "share", Adverts(adverts[:3]), Refusal.TOO_FEW_ADVERTS),
        (
            "envelope_altered",
            "confirm",
            Deliveries((flipped_seed, *envelopes[1:])),
            Refusal.ENVELOPE_SIGNATURE,
        ),
        ("envelope_repeated", "confirm", Deliveries((*envelopes, envelopes[-1])), Refusal.ENVELOPE_STRAY),
        ("envelopes_too_few", "confirm", Deliveries(envelopes[:2]), Refusal.TOO_FEW_SHARING),
        ("sharing_set_stranger", "mask", SharingSet((*sharing, "x")), Refusal.ENVELOPE_STRAY),
        ("sharing_set_without_self", "mask", SharingSet(sharing[2:]), Refusal.ENVELOPE_STRAY),
        ("sharing_set_too_small", "mask", SharingSet(sharing[:3]), Refusal.TOO_FEW_SHARING),
        ("sharing_set_after_a_complaint", "mask", honest["mask"], Refusal.ENVELOPE_SEALED),
        ("survivors_stranger", "consistency", Survivors((*survivors, "x")), Refusal.SURVIVORS_OUTSIDE),
        ("survivors_without_self", "consistency", Survivors(survivors[2:]), Refusal.SURVIVORS_WITHOUT_SELF),
        ("survivors_too_few", "consistency", Survivors(survivors[:3]), Refusal.TOO_FEW_SURVIVORS),
        ("view_altered", "unmask", views(0, 1, 2, 3, signature=bytes(64)), Refusal.VIEW_SIGNATURE),
        ("view_repeated", "unmask", views(0, 1, 2, 2), Refusal.VIEW_OUTSIDER),
        ("views_too_few", "unmask", views(0, 1, 2), Refusal.TOO_FEW_VIEWS),
        ("unmask_nobody_dropped", "unmask", replace(request, dropped=()), Refusal.DROPPED_MISMATCH),
        (
            "unmask_survivor_dropped",
            "unmask",
            replace(request, dropped=("hospital-0", *request.dropped)),
            Refusal.DROPPED_MISMATCH,
        ),
        ("result_unsigned", "result", replace(result, signature=bytes(64)), Refusal.RESULT_SIGNATURE),
        (
            "result_survivors",
            "result",
            signed(replace(result, survivors=others), aggregator, labels.SIGN_RESULT),
            Refusal.RESULT_MISMATCH,
        ),
        ("result_early", "mask", honest["result"], Refusal.OUT_OF_ORDER),
        ("unmask_twice", "result", honest["unmask"], Refusal.SECOND_UNMASK),
        ("garbage", "consistency", b"secfed/v1", Refusal.MALFORMED),
    ]
    return [
        _case(
            f"site_{name}",
            "hand a message to a site",
            refusal.error.__name__,
            refusal=refusal.number,
            site=SITE,
            stage=stage,
            pieces=_pieces(honest[stage], message if isinstance(message, bytes) else message.encode()),
            **({"complaint": garbled} if refusal is Refusal.ENVELOPE_SEALED else {}),
        )
        for name, stage, message, refusal in cases
    ]


def bad_files(attempt: Json) -> dict[str, Json]:
    """File name -> content; every case has been run.

    Raises:
        AssertionError: a case does not fail, or not as it says.
    """
    files = {
        "bad_messages.json": _message_cases(),
        "bad_arithmetic.json": _arithmetic_cases(),
        "bad_keys.json": _key_cases(attempt),
        "bad_model.json": model_cases(attempt),
        "bad_site.json": _site_cases(attempt),
        "bad_closed.json": closed_cases(closed_vectors(SMALL)),
        "bad_keystream_aes.json": aes_cases(),
    }
    for cases in files.values():
        for case in cases:
            check(case, attempt)
    return {name: {"cases": cases} for name, cases in files.items()}
