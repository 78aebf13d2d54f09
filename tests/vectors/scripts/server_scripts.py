"""Every check of a server, against sites that lie in turn; and sums that must come out all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from secfed.crypto import labels, shamir
from secfed.crypto.masked import masks
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.key_derivation import envelope_context
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Confirmation,
    Envelope,
    MaskSecretShare,
    SelfMaskShare,
    Shares,
    Sharing,
    Upload,
    View,
    names_digest,
    view_parts,
)
from secfed.crypto.sealing import SealKey
from tests.simulator import STAGES
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.book import Book, shortened
from tests.vectors.scripts.play import ServerPlayer, named
from tests.vectors.scripts.world import ASIDE, COHORT, DROPPED, ME, SHAPE, Honest, World

FIRST, _, _, FOURTH, FIFTH, LAST = COHORT
Replies = dict[str, dict[str, bytes]]


class ServerScripts:
    """All scripts of the file."""

    def __init__(
        self, world: World, honest: Honest, prefix: str = "server", more: Mapping[str, Json] | None = None
    ) -> None:
        self.world, self.honest, self.book, self._prefix = world, honest, Book(), prefix
        self.scripts: list[Json] = []
        self.book.add("specification", honest.spec.encode())
        self.add("", honest)
        self.party = {
            "roster": world.roster.encode().hex(),
            "specification": [["specification"]],
            "layout_digest": SHAPE.digest.hex(),
            "runs": [[run.bits, run.count] for run in SHAPE.runs],
            **(more or {}),
        }
        if honest.graph is not None:
            return
        self.adverts = Adverts.decode(honest.requests["share"][ME])

    def add(self, prefix: str, attempt: Honest) -> None:
        """What sites say in one attempt, to be copied from."""
        for stage, replies in attempt.replies.items():
            for site, reply in replies.items():
                if reply not in self.book.entries.values():
                    self.book.add(f"{prefix}{stage} {site}", reply)

    def _requests(self, requests: Mapping[str, Any]) -> Json:
        return {site: self.book.parts(bytes(one)) for site, one in requests.items()}

    def play(
        self,
        name: str,
        replies: Replies | None = None,
        *,
        bad: Mapping[tuple[str, str], bytes] | None = None,
        silent: Mapping[str, str] | None = None,
        until: str = "",
        names: tuple[str, ...] = (),
        twice: bool = False,
    ) -> None:
        """One script. ``bad`` replies, by stage and site, are refused; it ends with stage ``until``."""
        replies, bad, silent = replies or self.honest.replies, bad or {}, silent or {}
        player = ServerPlayer(self.party, self.honest.spec.encode())
        pending = player.server.begin()
        steps: list[Json] = [{"begin": self._requests(pending)}]
        self.scripts.append({"name": f"{self._prefix}_{name}", "steps": steps})
        index = self.honest.stages.index
        for stage in self.honest.stages[:-1]:
            for site in (*pending, *(one for at, one in bad if at == stage and one not in pending)):
                since = silent.get(site)
                lie, reply = bad.get((stage, site)), replies.get(stage, {}).get(site)
                message = reply if lie is None else lie
                if message is None or (since is not None and index(since) <= index(stage)):
                    continue
                if player.take(site, message) == (lie is not None):
                    raise AssertionError(f"{name}: {stage} of {site}")
                steps.append(
                    {"from": site, "in": self.book.parts(message)} | ({"refused": True} if lie else {})
                )
                if (lie or twice) and reply is not None:  # one reply is all that a site has
                    if player.take(site, reply):
                        raise AssertionError(f"{name}: a second reply of {site}")
                    steps.append({"from": site, "in": self.book.parts(reply), "refused": True})
            if stage == until:
                return
            found = player.advance()
            if isinstance(found, tuple):
                disputes, said = found
                if named(said, player.roster) != set(names):
                    raise AssertionError(f"{name}: {said}")
                steps.append({"advance": "aborted", "disputes": disputes, "names": list(names)})
                return
            steps.append({"advance": self._requests(found)})
            pending = found
        steps.append(player.sums())

    def content(self) -> Json:
        """The file."""
        return {
            "about": "a server, and sites of which one falls silent; README.md has the format"
            if "graph" in self.party
            else "a server, and six sites of which one falls silent; README.md has the format",
            "party": self.party,
            "bytes": self.book.content(),
            "scripts": shortened(self.scripts),
        }


def server_content(world: World, honest: Honest) -> Json:
    """The file."""
    made = ServerScripts(world, honest)
    made.play("whole_attempt")
    made.play("every_reply_once", twice=True)
    made.play("just_enough_shares", silent={FIRST: "unmask"})
    made.play("just_enough_views", silent={FIRST: "consistency"})
    for stage in STAGES[:-1]:
        silent = dict.fromkeys((FIRST, FOURTH, LAST), stage)
        made.play(f"too_few_at_{stage}", silent=silent)
    for stage, lies in _lies(made).items():
        for name, (site, message) in lies.items():
            made.play(f"{stage}_{name}", bad={(stage, site): message}, until=stage)
    made.play("goes_on_without_a_liar", bad={("unmask", FOURTH): _false_share(made, FOURTH, FIRST)})
    own = _false_share(made, FIRST, FIRST)
    replies = {**honest.replies, "unmask": {**honest.replies["unmask"], FIRST: own}}
    made.play("false_own_share_is_used_last", replies)
    made.play("false_own_share_is_needed", replies, silent={LAST: "unmask"}, names=(FIRST,))
    _complaints(made)
    _wrong_dealings(made)
    _out_of_turn(made)
    return made.content()


def _false_share(made: ServerScripts, site: str, peer: str) -> bytes:
    """Shares of a site, with another one for a peer."""
    shares = Shares.decode(made.honest.replies["unmask"][site]).shares
    changed = tuple(replace(one, share=bytes(33)) if one.peer == peer else one for one in shares)
    return _shares(made, site, changed)


def _shares(made: ServerScripts, site: str, shares: tuple[Any, ...]) -> bytes:
    spec = made.honest.spec
    return signed(Shares(shares), made.world.people[site], labels.SIGN_UNMASK, spec.digest).encode()


def _lies(made: ServerScripts) -> dict[str, dict[str, tuple[str, bytes]]]:
    world, honest = made.world, made.honest
    spec, digest, replies = honest.spec, made.adverts.digest, honest.replies
    person = world.people
    other = world.specification(attempt=1).digest

    # Every message as a site would sign it, and with one thing changed.
    def advert(of: str, spec_digest: bytes = spec.digest, **changes: Any) -> bytes:
        made_ = replace(Advert.decode(replies["advertise"][of]), **changes)
        return signed(made_, person[of], labels.SIGN_ADVERT, spec_digest).encode()

    envelopes = Sharing.decode(replies["share"][FOURTH]).envelopes

    def envelope(at: int, adverts_digest: bytes = digest, **changes: Any) -> Envelope:
        return signed(
            replace(envelopes[at], **changes),
            person[FOURTH],
            labels.SIGN_ENVELOPE,
            spec.digest,
            adverts_digest,
        )

    def sharing(*chosen: Envelope) -> bytes:
        return Sharing(chosen).encode()

    def confirmation(site: str, *complaints: str, label: bytes = labels.SIGN_CONFIRMATION) -> bytes:
        return signed(Confirmation(site, complaints), person[FOURTH], label, spec.digest, digest).encode()

    upload = Upload.decode(replies["mask"][FOURTH])

    def uploaded(
        vector: bytes = bytes(upload.vector),
        sharing_set: tuple[str, ...] = COHORT,
        signer: str = FOURTH,
        adverts_digest: bytes = digest,
        **stated: bytes,
    ) -> bytes:
        buffer, size = Upload.frame(len(vector)), len(vector)
        buffer[Upload.VECTOR_AT : Upload.VECTOR_AT + size] = vector
        parts = names_digest(labels.SHARING_DIGEST, sharing_set), masks.vector_digest(memoryview(vector))
        signature = person[signer].sign(labels.SIGN_UPLOAD, spec.digest, adverts_digest, *parts)
        Upload.finish(
            buffer, stated.get("sharing", parts[0]), stated.get("vector_digest", parts[1]), signature
        )
        return bytes(buffer)

    vector = bytes(upload.vector)
    padded = vector[:7] + bytes([vector[7] | 0x80]) + vector[8:]

    def view(site: str, **shown: Any) -> bytes:
        parts = {
            "spec": spec.digest,
            "adverts": digest,
            "sharing": COHORT,
            "survivors": honest.survivors,
            **shown,
        }
        return View(site, person[FOURTH].sign(labels.SIGN_VIEW, *view_parts(*parts.values()))).encode()

    shares = Shares.decode(replies["unmask"][FOURTH]).shares
    exchanged = tuple(
        (SelfMaskShare if isinstance(one, MaskSecretShare) else MaskSecretShare)(one.peer, one.share)
        if one.peer in (DROPPED,)
        else one
        for one in shares
    )
    dropped = next(
        one for one in Sharing.decode(replies["share"][DROPPED]).envelopes if one.recipient == FOURTH
    )
    entropy = world.entropies[(FOURTH, "first")]
    seal_key = SealKey.from_seeds(entropy.mlkem_seed, entropy.x25519_private)
    context = envelope_context(spec.digest, digest, DROPPED, FOURTH)
    of_self_mask = seal_key.open(dropped.sealed_shares, labels.SEAL_SHARES, *context)[33:]
    other_share = tuple(
        SelfMaskShare(DROPPED, of_self_mask) if one.peer == DROPPED else one for one in shares
    )
    foreign = signed(Shares(shares), person[FIRST], labels.SIGN_UNMASK, spec.digest).encode()
    first = Advert.decode(replies["advertise"][FIRST])
    own = Advert.decode(replies["advertise"][FOURTH])
    aside = MaskedSite(world.contribution(ASIDE)).state
    stranger = bytes(aside.handle(world.specification(cohort=(ASIDE, *COHORT), threshold=6))[1])
    stranger = signed(Advert.decode(stranger), person[ASIDE], labels.SIGN_ADVERT, spec.digest).encode()
    return {
        "advertise": {
            "of_another_site": (FOURTH, replies["advertise"][FIFTH]),
            "in_the_name_of_another": (FOURTH, advert(FOURTH, site=FIFTH)),
            "unsigned": (FOURTH, replace(own, signature=bytes(64)).encode()),
            "of_another_specification": (FOURTH, advert(FOURTH, other)),
            "mask_key_unreduced": (FOURTH, advert(FOURTH, mask_key=b"\xff" * 1216)),
            "seal_key_unreduced": (FOURTH, advert(FOURTH, seal_key=b"\xff" * 1184 + own.seal_key[1184:])),
            "mask_key_of_small_order": (FOURTH, advert(FOURTH, mask_key=own.mask_key[:1184] + bytes(32))),
            "seal_key_of_small_order": (FOURTH, advert(FOURTH, seal_key=own.seal_key[:1184] + bytes(32))),
            "one_key_for_two": (FOURTH, advert(FOURTH, seal_key=own.mask_key)),
            "key_of_another": (FOURTH, advert(FOURTH, mask_key=first.mask_key)),
            "seal_key_as_mask_key_of_another": (FOURTH, advert(FOURTH, mask_key=first.seal_key)),
            "commitment_of_another": (FOURTH, advert(FOURTH, commitment=first.commitment)),
            "trailing_byte": (FOURTH, replies["advertise"][FOURTH] + b"\0"),
            "of_a_site_that_was_not_asked": (ASIDE, stranger),
            "another_message": (FOURTH, replies["share"][FOURTH]),
        },
        "share": {
            "one_missing": (FOURTH, sharing(*envelopes[:-1])),
            "one_too_many": (FOURTH, sharing(*envelopes, envelopes[-1])),
            "out_of_order": (FOURTH, sharing(*envelopes[::-1])),
            "to_itself": (FOURTH, sharing(*envelopes[:3], envelope(3, recipient=FOURTH), *envelopes[3:])),
            "in_another_name": (FOURTH, sharing(envelope(0, sender=FIFTH), *envelopes[1:])),
            "unsigned": (FOURTH, sharing(*envelopes[:-1], replace(envelopes[-1], signature=bytes(64)))),
            "of_other_adverts": (FOURTH, sharing(envelope(0, pattern("x")), *envelopes[1:])),
        },
        "confirm": {
            "another_name": (FOURTH, confirmation(FIFTH)),
            "unsigned": (FOURTH, Confirmation(FOURTH, (), bytes(64)).encode()),
            "signed_as_a_view": (FOURTH, confirmation(FOURTH, label=labels.SIGN_VIEW)),
            "complains_of_itself": (FOURTH, confirmation(FOURTH, FOURTH)),
            "complains_of_an_outsider": (FOURTH, confirmation(FOURTH, ASIDE)),
            "complaints_out_of_order": (FOURTH, confirmation(FOURTH, FIFTH, FIRST)),
            "complains_twice": (FOURTH, confirmation(FOURTH, FIRST, FIRST)),
        },
        "mask": {
            "another_sharing_set": (FOURTH, uploaded(sharing_set=honest.survivors)),
            "another_sharing_set_unsigned": (FOURTH, uploaded(sharing=pattern("x"))),
            "another_vector_digest_unsigned": (FOURTH, uploaded(vector_digest=pattern("x"))),
            "unsigned": (FOURTH, replies["mask"][FOURTH][:-64] + bytes(64)),
            "signed_by_another": (FOURTH, uploaded(signer=FIFTH)),
            "of_other_adverts": (FOURTH, uploaded(adverts_digest=pattern("x"))),
            "altered": (FOURTH, replies["mask"][FOURTH][:20] + b"\x55" + replies["mask"][FOURTH][21:]),
            "too_short": (FOURTH, uploaded(vector[:-1])),
            "too_long": (FOURTH, uploaded(vector + b"\0")),
            "padding": (FOURTH, uploaded(padded)),
            "without_a_trailer": (FOURTH, replies["mask"][FOURTH][:80]),
        },
        "consistency": {
            "another_name": (FOURTH, view(FIFTH)),
            "unsigned": (FOURTH, View(FOURTH, bytes(64)).encode()),
            "of_other_survivors": (FOURTH, view(FOURTH, survivors=COHORT)),
            "of_another_sharing_set": (FOURTH, view(FOURTH, sharing=honest.survivors)),
            "of_other_adverts": (FOURTH, view(FOURTH, adverts=pattern("x"))),
            "of_the_dropped": (DROPPED, replies["advertise"][DROPPED]),
        },
        "unmask": {
            "signed_by_another": (FOURTH, foreign),
            "one_missing": (FOURTH, _shares(made, FOURTH, shares[:-1])),
            "of_an_outsider": (FOURTH, _shares(made, FOURTH, (SelfMaskShare(ASIDE, bytes(33)), *shares))),
            "of_the_wrong_kind": (FOURTH, _shares(made, FOURTH, exchanged)),
            "of_the_self_mask_of_the_dropped": (FOURTH, _shares(made, FOURTH, other_share)),
            "false_of_a_self_mask": (FOURTH, _false_share(made, FOURTH, FIRST)),
            "false_of_a_mask_secret": (FOURTH, _false_share(made, FOURTH, DROPPED)),
            "not_in_the_field": (FOURTH, _false(made, FOURTH, FIRST, shamir.PRIME.to_bytes(33, "big"))),
        },
    }


def _false(made: ServerScripts, site: str, peer: str, share: bytes) -> bytes:
    shares = Shares.decode(made.honest.replies["unmask"][site]).shares
    return _shares(
        made, site, tuple(replace(one, share=share) if one.peer == peer else one for one in shares)
    )


def _complaints(made: ServerScripts) -> None:
    """Who complains of whom ends the attempt."""
    spec, digest = made.honest.spec.digest, made.adverts.digest

    def complaint(site: str, *of: str) -> bytes:
        return signed(
            Confirmation(site, of), made.world.people[site], labels.SIGN_CONFIRMATION, spec, digest
        ).encode()

    def play(name: str, **of: tuple[str, ...]) -> None:
        said = {COHORT[int(at[1:])]: names for at, names in of.items()}
        confirmed = {
            **made.honest.replies["confirm"],
            **{one: complaint(one, *names) for one, names in said.items()},
        }
        pairs = {name for one, names in said.items() for name in (one, *names)}
        made.play(name, {**made.honest.replies, "confirm": confirmed}, names=tuple(sorted(pairs)))

    play("one_complaint", _2=(FIRST,))
    play("complaints_of_two", _3=(FIRST, LAST))
    play("complaints_of_each_other", _4=(ME,), _2=(FIFTH,), _0=(LAST,))


def _wrong_dealings(made: ServerScripts) -> None:
    """Sites that deal what they did not advertise: the sum is lost, and they are named."""
    world, spec = made.world, made.honest.spec

    def another(_: int, share: bytes) -> bytes:  # of a secret that is one more
        return ((int.from_bytes(share, "big") + 1) % shamir.PRIME).to_bytes(33, "big")

    wrong: dict[str, tuple[str, str, Callable[[int, bytes], bytes]]] = {
        "another_self_mask_seed": (FIRST, "self-mask seed", another),
        "another_mask_secret": (DROPPED, "mask secret", another),
        "shares_on_no_polynomial": (
            FIRST,
            "self-mask seed",
            lambda at, share: share if at % 2 else bytes(33),
        ),
        "shares_beyond_the_field": (FIRST, "self-mask seed", lambda at, share: share if at else b"\xff" * 33),
    }
    for name, dealing in wrong.items():
        attempt = Honest(world, spec, dealing=dealing).run()
        made.add(f"{name}: ", attempt)
        made.play(name, attempt.replies, names=dealing[:1])


def _out_of_turn(made: ServerScripts) -> None:
    """Replies of another stage, and to nothing that was asked."""
    honest = made.honest.replies
    made.play(
        "share_while_advertising", bad={("advertise", FOURTH): honest["share"][FOURTH]}, until="advertise"
    )
    made.play("advert_while_sharing", bad={("share", FOURTH): honest["advertise"][FOURTH]}, until="share")
    made.play("nothing_at_all", bad={("unmask", FOURTH): b"secfed/v1"}, until="unmask")
