"""A whole site of a study with closed sums, as a script describes it, and sums for it to open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import digest
from secfed.crypto.encrypted.messages import ClosedSum, KeyPackages, closed_digest
from secfed.crypto.encrypted.study_keys import KeyPair, key_context
from secfed.crypto.identity import Identity, Roster, verify
from secfed.crypto.keystream import RoundingStream, StreamCipher, derive
from secfed.crypto.lanes import pack_into
from secfed.crypto.masked.closing import Closing, closed_shape, group_key_check
from secfed.crypto.masked.masks import Accumulator, MaskContext, write_masked
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Result, Specification, peek_type
from secfed.protection.closed import Closed, GroupKeys
from secfed.records.transcript import Transcript
from secfed.site.journal import Journal
from secfed.site.opening_session import OpeningSession
from secfed.site.parts import Agreement, Draws, Member, Services
from secfed.wire.frames import encode_state
from secfed.wire.layout import Layout, state_digest
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.planned import Planned, Store
from tests.vectors.scripts.play import Differs, key_pair
from tests.vectors.scripts.world import GROUP_KEY, World


class RecordedKey(GroupKeys):
    """The group key that the holder draws, as it is written down."""

    def __init__(self, group_key: bytes) -> None:
        self._group_key = group_key

    def generate(self) -> KeyPair:
        """The recorded one."""
        return KeyPair(secret_key=self._group_key, public_key=group_key_check(self._group_key))


def closed_site(content: Json, party: Json) -> OpeningSession:
    """The site of a script."""
    roster = Roster.decode(bytes.fromhex(party["roster"]))
    identity = Identity.from_seed(party["site"], bytes.fromhex(party["identity_seed"]))
    algorithm, study, draws = Planned(party), party["study"], content["draws"]["first"]
    agreement = Agreement(
        study,
        algorithm,
        Closed(party["holder"], cipher=StreamCipher(party["keystream"])),
        tuple(party["study_sites"]),
        broadcast_bound=float.fromhex(party["broadcast_bound"]),
    )
    site = OpeningSession(
        Member(identity, roster),
        agreement,
        algorithm.site(identity.name),
        limits=SiteLimits(**party["limits"]),
        draws=Draws.seeded(0, identity.name),
        store=Store(Journal(), study, draws),
        services=Services(Transcript(identity, study=study, roster_digest=roster.digest)),
    )
    site._keys.form = RecordedKey(bytes.fromhex(draws["group_key"]))
    site._keys.new_seal_key = lambda: key_pair(draws["key_to_ask_with"])
    return site


def is_packages(reply: bytes) -> bool:
    """Whether a reply holds study keys, whose sealing is random."""
    return reply[:9] == b"secfed/v1" and peek_type(reply) == KeyPackages.TYPE


def packed(reply: bytes, party: Json, keys: Json) -> list[Json]:
    """What a key holder sealed, once everything about its packages is known to be right."""
    roster = Roster.decode(bytes.fromhex(party["roster"]))
    kappa = key_context(party["study"], roster, GroupKeys(), party["holder"])
    packages = KeyPackages.decode(reply)
    parts = *kappa, digest(labels.STUDY_PUBLIC_KEY, packages.public_key)
    found = []
    for one in packages.packages:
        public = roster.public(party["site"])
        verify(public, one.signature, labels.SIGN_KEY_PACKAGE, *parts, one.body(), who="")
        recipient = key_pair(keys[one.recipient]["seal_key"])
        context = *kappa, one.recipient.encode()
        group_key = recipient.open(one.sealed_key, labels.SEAL_STUDY_KEY, *context)
        if group_key_check(group_key) != packages.public_key:
            raise Differs("a package holds another key than it says")
        found.append({"recipient": one.recipient, "group_key": group_key.hex()})
    return found


def tag_of(*totals: Sequence[float], key: bytes = GROUP_KEY) -> bytes:
    """The tag of the state after these totals of the field ``weight``."""
    total = torch.zeros(3, dtype=torch.float64)
    for one in totals:
        total = total + torch.tensor(one, dtype=torch.float64)
    return derive(key, labels.DERIVE_STATE_TAG, state_digest(encode_state({"total": total})))


def closed_vector(
    layout: Layout,
    spec: Specification,
    values: Mapping[str, Mapping[str, Any]],
    adverts_digest: bytes,
    *,
    key: bytes = GROUP_KEY,
    cipher: StreamCipher = StreamCipher.CHACHA20,
    headroom: int = 0,
) -> bytearray:
    """The closed sum of what these sites add; with ``headroom`` for fewer sites beyond their limits."""
    encoding = Layout(layout.fields, headroom or layout.sites)
    closing, shape = Closing(key, spec.digest, adverts_digest, cipher), layout.shape
    whole = closed_shape(shape)
    context = MaskContext(spec.digest, spec.broadcast_digest, whole, cipher)
    total = Accumulator(whole)
    for site, own in values.items():
        room = memoryview(bytearray(whole.wire_bytes))
        tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in own.items()}
        source = encoding.encoder(tensors, RoundingStream(pattern("rounding")))
        write_masked(closing.tagged(source, shape), [closing.stream(site, 1)], context, room)
        total.add(room)
    wire, at = bytearray(whole.wire_bytes), 0
    for run, summed in zip(whole.runs, total.reduced(), strict=True):
        pack_into(summed, run, memoryview(wire)[at : at + run.wire_bytes])
        at += run.wire_bytes
    return wire


def relayed(
    world: World,
    spec: Specification,
    survivors: Sequence[str],
    adverts_digest: bytes,
    vector: bytes | bytearray,
    **changes: Any,
) -> ClosedSum:
    """A sum as the aggregator signs and relays it; ``changes`` are to the result, before it is signed."""
    said = closed_digest(spec.layout_digest, adverts_digest, vector)
    result = replace(Result(spec.digest, tuple(survivors), said), **changes)
    made = signed(result, world.aggregator, labels.SIGN_RESULT)
    return ClosedSum(spec, made, adverts_digest, bytes(vector))
