"""What one site does in the handshake and under the masks, in a complete graph and in a sparse one.

python benchmarks/bench_sparse.py [SITES ...]

One real session is played against peers that are made up: their adverts, choices and envelopes are signed and
well-formed, but nobody opens what the session sends them. CPU seconds of that session only, in one thread;
bytes both ways, without the vector. Masks are timed over a short vector and told per million parameters.
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from secfed.bench.masked import BenchConsortium
from secfed.crypto import labels
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.dealing import Dealer, Secrets
from secfed.crypto.masked.graph import SparseGraph, draw
from secfed.crypto.masked.graph_messages import (
    AdvertDigests,
    Choice,
    NeighbourDeliveries,
    Neighbourhood,
    advert_digest,
)
from secfed.crypto.masked.key_derivation import commitment, mask_key
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Advert, Adverts, Deliveries, SharingSet
from secfed.crypto.seeded_entropy import SeededEntropy
from secfed.crypto.thresholds import default_threshold

PARAMETERS = 100_000


class Played:
    """One session, its clock and its bytes."""

    def __init__(self, session: MaskedSite) -> None:
        self.session, self.seconds, self.sent = session, dict[str, float](), 0

    def step(self, stage: str, message: bytes) -> bytes:
        """Hand over one message, timed."""
        start = time.process_time()
        reply = bytes(self.session.handle(message))
        self.seconds[stage] = time.process_time() - start
        self.sent += len(message) + (0 if stage == "mask" else len(reply))
        return reply


def played(sites: int, graph: SparseGraph | None) -> dict[str, float]:
    """CPU seconds and bytes of one site of so many."""
    consortium = BenchConsortium(PARAMETERS, sites, 32)
    consortium.threshold = default_threshold(sites)
    names, spec = consortium.names, consortium.specification()
    me, peers = names[0], names[1:]
    drawn = {name: _secrets() for name in peers}
    own = Played(MaskedSite(consortium.contribution(me, source=consortium.encoder()), graph))
    adverts = {me: Advert.decode(own.step("advertise", spec.encode()))}
    for name in peers:
        kept = drawn[name]
        made = Advert(
            name,
            mask_key(kept.mask_secret).public_bytes,
            kept.seal_key.public_bytes,
            commitment(kept.self_seed),
        )
        adverts[name] = signed(made, consortium.identities[name], labels.SIGN_ADVERT, spec.digest)

    def dealer(name: str, listed: bytes) -> Dealer:
        return Dealer(consortium.contribution(name), spec, drawn[name], listed)

    def envelope(name: str, listed: bytes) -> Any:
        seed = dealer(name, listed)._seed_envelope(adverts[me])
        shares = (bytes(1) + secrets.token_bytes(32) for _ in range(2))
        return dealer(name, listed)._envelope(adverts[me], seed, *shares)

    if graph is None:
        relayed = Adverts(tuple(adverts.values()))
        own.step("share", relayed.encode())
        own.step("confirm", Deliveries(tuple(envelope(name, relayed.digest) for name in peers)).encode())
        neighbours = len(peers)
    else:
        listed = AdvertDigests(tuple(map(advert_digest, adverts.values())))
        own.step("choose", listed.encode())
        mine = own.session.state.holders  # type: ignore[attr-defined]
        choices, at = dict[str, Choice](), (spec.digest, listed.digest)
        for name in peers:
            others = [one for one in names if one != name]
            choice = Choice.of(name, draw(others, len(mine), secrets.randbelow), 1, names)
            if me in choice.names(names):
                choices[name] = signed(choice, consortium.identities[name], labels.SIGN_CHOICE, *at)
        near = [name for name in peers if name in mine or name in choices]
        hood = Neighbourhood(tuple(adverts[name] for name in near), tuple(choices.values()))
        own.step("share", hood.encode())
        seeds = []
        for name in near:
            if name not in choices:
                seed = dealer(name, listed.digest)._seed_envelope(adverts[me])
                seeds.append(signed(seed, consortium.identities[name], seed.LABEL, *at))
        dealt = tuple(envelope(name, listed.digest) for name in choices)
        own.step("confirm", NeighbourDeliveries(dealt, tuple(seeds)).encode())
        neighbours = len(near)
    own.step("mask", SharingSet(names).encode())
    handshake = sum(seconds for stage, seconds in own.seconds.items() if stage != "mask")
    mask = own.seconds["mask"] * 1e6 / PARAMETERS
    return {"neighbours": neighbours, "handshake": handshake, "mask": mask, "bytes": own.sent}


def _secrets() -> Secrets:
    entropy = SeededEntropy(secrets.token_bytes(32))
    return Secrets(entropy.token("mask secret"), entropy.token("self-mask seed"), entropy.seal_key())


def main() -> None:
    """Print the table of docs/protocol.md, section 14."""
    print(
        "| n | graph | neighbours | handshake, CPU s | masks, CPU s per million parameters | kB both ways |"
    )
    print("|---|---|---|---|---|---|")
    asked = [int(text) for text in sys.argv[1:] if text.isdecimal()]
    for sites in asked or (100, 200, 500, 1000):
        for name, graph in (("complete", None), ("sparse", SparseGraph())):
            one = played(sites, graph)
            cells = [sites, name, int(one["neighbours"]), f"{one['handshake']:.2f}", f"{one['mask']:.2f}"]
            print("|", " | ".join(map(str, [*cells, round(one["bytes"] / 1000)])), "|", flush=True)


if __name__ == "__main__":
    main()
