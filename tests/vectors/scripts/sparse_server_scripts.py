"""A server in a sparse graph of masks, against sites that lie in turn.

Five sites of seven are asked, each of which has three holders. The fourth and the third are no neighbours;
the first holds shares of the fourth, and not the other way round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.graph_messages import AdvertDigests, Choice, NeighbourSharing, SeedEnvelope
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Confirmation, Envelope, SelfMaskShare, Shares
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.server_scripts import ServerScripts
from tests.vectors.scripts.sparse_case import GRAPH
from tests.vectors.scripts.world import COHORT, DROPPED, ME, Honest, World

ASKED: Final = COHORT[:5]
FIRST, _, _, FOURTH, FIFTH = ASKED
HOLDERS: Final = (FIRST, DROPPED, FIFTH)  # of the fourth
Lies = dict[str, tuple[str, bytes]]


def sparse_server_content(world: World) -> Json:
    """The file."""
    spec = world.specification(cohort=ASKED, threshold=3)
    given, graph = {"limits": SiteLimits(colluders=0)}, SparseGraph(**GRAPH)
    honest = Honest(world, spec, "sparse server 12", graph=graph, given=lambda: given).run()
    made = ServerScripts(world, honest, prefix="sparse_server", more={"graph": GRAPH})
    made.play("whole_attempt")
    made.play("every_reply_once", twice=True)
    made.play("just_enough_shares", silent={FOURTH: "unmask"})
    made.play("too_few_holders_at_the_end", silent={FIFTH: "unmask"}, names=(DROPPED, FIFTH))
    for stage in ("choose", "share", "confirm"):
        made.play(f"too_few_at_{stage}", silent=dict.fromkeys((FIRST, FOURTH, FIFTH), stage))
    # Three sites answer, which would be enough; one of them has only one holder left.
    made.play(
        "holders_silent_while_sharing", silent=dict.fromkeys((FIRST, FIFTH), "share"), names=(FIRST, FIFTH)
    )
    made.play(
        "holders_silent_while_confirming",
        silent=dict.fromkeys((FIRST, FIFTH), "confirm"),
        names=(FIRST, FIFTH),
    )
    made.play("silent_before_it_chooses", silent={FIRST: "choose"}, until="choose")
    for stage, lies in _lies(made).items():
        for name, (site, message) in lies.items():
            made.play(f"{stage}_{name}", bad={(stage, site): message}, until=stage)
    _taken(made)
    return made.content()


def _digest(made: ServerScripts) -> bytes:
    return AdvertDigests.decode(made.honest.requests["choose"][ME]).digest


def _choice(made: ServerScripts, *holders: str, threshold: int = 2, **other: Any) -> bytes:
    """A choice of the fourth site."""
    unsigned = replace(Choice.of(other.pop("site", FOURTH), holders, threshold, ASKED), **other)
    context = made.honest.spec.digest, _digest(made)
    return signed(unsigned, made.world.people[FOURTH], labels.SIGN_CHOICE, *context).encode()


def _lies(made: ServerScripts) -> dict[str, Lies]:
    spec, people, replies = made.honest.spec.digest, made.world.people, made.honest.replies
    digest, person = _digest(made), people[FOURTH]
    own = Choice.decode(replies["choose"][FOURTH])
    sharing = NeighbourSharing.decode(replies["share"][FOURTH])
    envelopes, seeds = sharing.envelopes, sharing.seeds
    shares = Shares.decode(replies["unmask"][FOURTH]).shares

    def shared(envelopes: tuple[Envelope, ...], seeds: tuple[SeedEnvelope, ...]) -> bytes:
        return NeighbourSharing(envelopes, seeds).encode()

    def seed(recipient: str, sender: str = FOURTH, adverts_digest: bytes = digest) -> SeedEnvelope:
        made = SeedEnvelope(sender, recipient, envelopes[0].sealed_seed)
        return signed(made, person, made.LABEL, spec, adverts_digest)

    def envelope(recipient: str) -> Envelope:
        return signed(replace(envelopes[0], recipient=recipient), person, Envelope.LABEL, spec, digest)

    def confirmation(*of: str) -> bytes:
        return signed(Confirmation(FOURTH, of), person, labels.SIGN_CONFIRMATION, spec, digest).encode()

    def unmasked(*given: Any) -> bytes:
        return signed(Shares(tuple(given)), person, labels.SIGN_UNMASK, spec).encode()

    bits = own.holders[0]
    other = signed(own, person, labels.SIGN_CHOICE, spec, pattern("x"))
    return {
        "choose": {
            "of_another_site": (FOURTH, replies["choose"][FIFTH]),
            "in_the_name_of_another": (FOURTH, _choice(made, FIRST, DROPPED, ME, site=FIFTH)),
            "unsigned": (FOURTH, replace(own, signature=bytes(64)).encode()),
            "of_another_advertised_set": (FOURTH, other.encode()),
            "too_long": (FOURTH, _choice(made, *HOLDERS, holders=bytes([bits, 0]))),
            "too_short": (FOURTH, _choice(made, *HOLDERS, holders=b"")),
            "padding": (FOURTH, _choice(made, *HOLDERS, holders=bytes([bits | 32]))),
            "of_itself": (FOURTH, _choice(made, FIRST, DROPPED, FOURTH)),
            "of_nobody": (FOURTH, _choice(made)),
            "with_no_threshold": (FOURTH, _choice(made, *HOLDERS, threshold=0)),
            "with_a_threshold_above": (FOURTH, _choice(made, *HOLDERS, threshold=4)),
            "with_no_room_for_dropouts": (FOURTH, _choice(made, *HOLDERS, threshold=3)),
            "with_one_holder": (FOURTH, _choice(made, FIRST, threshold=1)),
            "with_everybody_and_no_room": (FOURTH, _choice(made, FIRST, DROPPED, ME, FIFTH, threshold=4)),
            "an_advert": (FOURTH, replies["advertise"][FOURTH]),
        },
        "share": {
            "one_missing": (FOURTH, shared(envelopes[1:], seeds)),
            "one_too_many": (FOURTH, shared(envelopes, (seed(ME), *seeds))),
            "shares_for_no_neighbour": (
                FOURTH,
                shared((*envelopes[:2], envelope(ME), *envelopes[2:]), seeds),
            ),
            "a_seed_for_a_holder": (FOURTH, shared(envelopes[1:], (seed(FIRST), *seeds))),
            "out_of_order": (FOURTH, shared(envelopes[::-1], seeds)),
            "unsigned": (FOURTH, shared((replace(envelopes[0], signature=bytes(64)), *envelopes[1:]), seeds)),
        },
        "confirm": {
            "complains_of_no_neighbour": (FOURTH, confirmation(ME)),
            "complains_of_itself": (FOURTH, confirmation(FOURTH)),
        },
        "unmask": {
            "with_its_own": (
                FOURTH,
                unmasked(*sorted((*shares, SelfMaskShare(FOURTH, bytes(33))), key=_peer)),
            ),
            "one_missing": (FOURTH, unmasked(*shares[1:])),
            "of_a_holder_that_dealt_nothing": (
                FOURTH,
                unmasked(*sorted((*shares, SelfMaskShare(FIRST, bytes(33))), key=_peer)),
            ),
            "false": (FOURTH, unmasked(*shares[:-1], replace(shares[-1], share=bytes(33)))),
            "none": (FOURTH, unmasked()),
        },
        "mask": {"of_another_site": (FOURTH, replies["mask"][FIFTH])},
    }


def _peer(share: Any) -> str:
    return str(share.peer)


def _taken(made: ServerScripts) -> None:
    """Choices that a server takes, though no default led to them."""
    for name, reply in {
        "everybody": _choice(made, FIRST, DROPPED, ME, FIFTH, threshold=2),
        "everybody_with_room": _choice(made, FIRST, DROPPED, ME, FIFTH, threshold=3),
        "a_lower_threshold": _choice(made, *HOLDERS, threshold=1),
    }.items():
        replies = {**made.honest.replies, "choose": {**made.honest.replies["choose"], FOURTH: reply}}
        made.play(f"choose_{name}", replies, until="choose")
