"""Vectors of every message by itself: fields, encoding, and the digests that go into signatures.

Long constant fields are written as ``{"byte": ..., "count": ...}``.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from secfed.crypto import labels, sealing
from secfed.crypto.codec import digest
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    Choice,
    NeighbourDeliveries,
    Neighbourhood,
    NeighbourSharing,
    ProvenUnmaskRequest,
    SeedEnvelope,
    UploadProof,
    advert_digest,
)
from secfed.crypto.messages import (
    SEALED_SEED_BYTES,
    SEALED_SHARES_BYTES,
    Advert,
    Adverts,
    Confirmation,
    Deliveries,
    Envelope,
    FinalModel,
    MaskSecretShare,
    Result,
    SelfMaskShare,
    Shares,
    Sharing,
    SharingSet,
    Specification,
    Survivors,
    UnmaskRequest,
    Upload,
    View,
    names_digest,
    view_parts,
)
from tests.vectors.primitives import Json


def _constant(byte: int, count: int = 32) -> bytes:
    return bytes([byte]) * count


def example_messages() -> dict[str, Any]:
    """One message of each type, with texts beyond ASCII where the protocol takes texts."""

    def advert(at: int, name: str) -> Advert:
        keys = (_constant(first + at, sealing.PUBLIC_BYTES) for first in (16, 32))
        return Advert(name, *keys, _constant(48 + at), _constant(64 + at, 64))

    names = ("hospital-0", "klinikum-süd", "病院")
    adverts = (advert(0, names[0]), advert(1, names[1]))
    sealed = _constant(1, SEALED_SEED_BYTES), _constant(2, SEALED_SHARES_BYTES)
    envelopes = (Envelope(*names[:2], *sealed, _constant(15), _constant(16), _constant(3, 64)),)
    digests = _constant(4), _constant(5), _constant(6)
    spec = Specification("study-5f", 7, 258, "update", 65537, names, 3, *digests, _constant(7, 64))
    shares = SelfMaskShare(names[0], _constant(1, 33)), MaskSecretShare(names[1], _constant(2, 33))
    views = tuple(View(name, _constant(8 + index, 64)) for index, name in enumerate(names[:2]))
    vector = bytes(range(1, 8))
    choice = replace(Choice.of(names[1], (names[0], names[2]), 2, names), signature=_constant(19, 64))
    seed = SeedEnvelope(*names[:2], _constant(20, SEALED_SEED_BYTES), _constant(21, 64))
    return {
        "Specification": spec,
        "Advert": adverts[0],
        "Adverts": Adverts(adverts),
        "Sharing": Sharing(envelopes),
        "Deliveries": Deliveries(envelopes),
        "Confirmation": Confirmation("klinikum-süd", ("hospital-0",), _constant(17, 64)),
        "Confirmation without complaints": Confirmation("klinikum-süd", (), _constant(18, 64)),
        "SharingSet": SharingSet(names),
        "Upload": Upload(_constant(1), _constant(2), _constant(3, 64), memoryview(vector)),
        "Survivors": Survivors(names),
        "View": views[0],
        "UnmaskRequest": UnmaskRequest(("病院",), views),
        "Shares": Shares(shares, _constant(9, 64)),
        "Result": Result(spec.digest, names, _constant(10), _constant(11, 64)),
        "FinalModel": FinalModel(
            "study-5f", _constant(12), 7, 65538, _constant(13), _constant(14, 64), vector
        ),
        "Empty Survivors": Survivors(()),
        "AdvertDigests": AdvertDigests(tuple(advert_digest(advert) for advert in adverts)),
        "Choice": choice,
        "Neighbourhood": Neighbourhood(adverts[1:], (choice,)),
        "NeighbourSharing": NeighbourSharing(envelopes, (seed,)),
        "NeighbourDeliveries": NeighbourDeliveries(envelopes, (seed,)),
        "ProvenUnmaskRequest": ProvenUnmaskRequest(
            ("病院",), views[:1], (UploadProof(names[0], _constant(22), _constant(23, 64)),)
        ),
    }


def as_json(value: Any) -> Any:
    """A message's fields for a reader."""
    if isinstance(value, bytes | memoryview):
        raw = bytes(value)
        if len(raw) > 16 and len(set(raw)) == 1:
            return {"byte": f"{raw[0]:02x}", "count": len(raw)}
        return raw.hex()
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if is_dataclass(value):
        shown = {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
        kind = getattr(value, "KIND", None)
        return shown if kind is None else {"kind": kind, **shown}
    return value


def message_vectors() -> Json:
    """Fields and encoding of one message of each type, and the digests that go into signatures."""
    examples = example_messages()
    spec, adverts = examples["Specification"], examples["Adverts"]
    names = examples["Survivors"].survivors
    parts = view_parts(spec.digest, adverts.digest, names, names[:2])
    bodies = {name: examples[name] for name in ("Specification", "Advert")}
    bodies["Envelope"] = examples["Sharing"].envelopes[0]
    bodies |= {name: examples[name] for name in ("Confirmation", "Shares", "Result", "FinalModel")}
    bodies |= {"Choice": examples["Choice"], "SeedEnvelope": examples["NeighbourSharing"].seeds[0]}
    digests = {
        "specification": spec.digest,
        "advertised_set": adverts.digest,
        "advertised_set_of_a_sparse_graph": examples["AdvertDigests"].digest,
        "sharing_set_of_survivors": names_digest(labels.SHARING_DIGEST, names),
        "signed_by_a_view_without_the_third": digest(labels.SIGN_VIEW, *parts),
    }
    return {
        "messages": [
            {"name": name, "type": one.TYPE, "fields": as_json(one), "encoding": one.encode().hex()}
            for name, one in examples.items()
        ],
        "bodies": {name: record.body().hex() for name, record in bodies.items()},
        "digests": {name: value.hex() for name, value in digests.items()},
    }
