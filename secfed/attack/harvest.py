"""What a malicious server can do with what it holds: shares that were answered, and its colluders' secrets.

The counterpart of :mod:`secfed.attack.scene`: there messages are made and carried, here they are exploited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from secfed.attack.scene import Attempt, RingVector
from secfed.crypto import labels, shamir
from secfed.crypto.codec import Buffer
from secfed.crypto.masked import masks
from secfed.crypto.masked.client import AwaitAdverts
from secfed.crypto.masked.key_derivation import envelope_context, mask_key, outgoing_seed, pair_stream
from secfed.crypto.masked.states import AwaitDeliveries, AwaitSharingSet
from secfed.crypto.messages import Envelope, MaskSecretShare, SelfMaskShare, Shares, Sharing
from secfed.errors import WrongState


def mask_secret_of(attempt: Attempt, colluder: str) -> bytes | None:
    """The secret that a colluding site hands over: the site's half of every pair."""
    states = attempt.states[colluder]
    secrets = (s.secrets.mask_secret for s in states if isinstance(s, AwaitAdverts | AwaitDeliveries))
    return next(secrets, None)


@dataclass
class Harvest:
    """Shares by dealer and kind, and what can be rebuilt from them."""

    attempt: Attempt
    self_mask: dict[str, dict[int, bytes]] = field(default_factory=dict)
    mask_secret: dict[str, dict[int, bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, attempt: Attempt, colluding: Iterable[str] = ()) -> Harvest:
        """All shares the server can have: answered ones, and the colluders' of both kinds."""
        harvest = cls(attempt)
        for stage, site, reply in attempt.replies:
            if stage == "unmask":
                harvest.add_reply(site, reply)
        for site in colluding:
            harvest.add_opened(site)
        return harvest

    def _point(self, site: str) -> int:
        return self.attempt.consortium.roster.position(site) + 1

    def add_reply(self, site: str, reply: Buffer) -> None:
        """Shares that a site answered with."""
        for share in Shares.decode(reply).shares:
            known = {SelfMaskShare: self.self_mask, MaskSecretShare: self.mask_secret}[type(share)]
            known.setdefault(share.peer, {})[self._point(site)] = share.share

    def add_opened(self, colluder: str) -> None:
        """Shares of both kinds that a colluding site holds."""
        states = self.attempt.states[colluder]
        opened = next((s.opened for s in states if isinstance(s, AwaitSharingSet)), {})
        for peer, envelope in opened.items():
            if envelope.shares is None:
                continue  # in a sparse graph: no holder of this peer's secrets
            of_mask_secret, of_self_mask = envelope.shares
            self.mask_secret.setdefault(peer, {})[self._point(colluder)] = of_mask_secret
            self.self_mask.setdefault(peer, {})[self._point(colluder)] = of_self_mask

    def rebuild(self, shares: Mapping[str, Mapping[int, bytes]], site: str) -> bytes | None:
        """One secret of a site, if there are shares enough."""
        threshold = self.attempt.spec.threshold
        held = shares.get(site, {})
        return shamir.combine(held, threshold) if len(held) >= threshold else None

    def exposed(self, site: str) -> bool:
        """Whether both secrets of a site can be rebuilt: its update lies open then."""
        return None not in (self.rebuild(self.self_mask, site), self.rebuild(self.mask_secret, site))


def unmask_alone(
    attempt: Attempt, victim: str, harvest: Harvest, colluding: Sequence[str], sharing: Sequence[str]
) -> RingVector | None:
    """Strip one site's upload with everything the server has: the attack that the protocol must defeat.

    ``colluding`` sites hand over their secrets; ``sharing`` is the set that the victim was shown, and masked
    towards. None if one of its masks cannot be known.
    """
    spec, position = attempt.spec, attempt.consortium.roster.position
    known = {site: mask_secret_of(attempt, site) for site in colluding}
    self_seed = harvest.rebuild(harvest.self_mask, victim)
    if self_seed is None:
        return None
    streams = [masks.self_mask(self_seed, -1)]
    victims_own = harvest.rebuild(harvest.mask_secret, victim)
    adverts_digest = next(
        state.dealer.adverts_digest for state in attempt.states[victim] if isinstance(state, AwaitDeliveries)
    )
    for peer in sharing:
        if peer == victim:
            continue
        secret = known.get(peer) or harvest.rebuild(harvest.mask_secret, peer)
        # Either mask secret of a pair is enough: it derives one seed and opens the envelope of the other.
        me, other, opener = (peer, victim, secret) if secret else (victim, peer, victims_own)
        if opener is None:
            return None
        context = envelope_context(spec.digest, adverts_digest, other, me)
        sealed = _envelope(attempt, other, me).sealed_seed
        seed_in = mask_key(opener).open(sealed, labels.SEAL_PAIR_SEED, *context)
        seed_out = outgoing_seed(opener, spec.digest, me, other)
        stream = pair_stream(position(me), position(other), seed_out, seed_in)
        # The peer's side of a pair cancels the victim's; the victim's own side must be taken off.
        streams.append(stream if me == peer else replace(stream, sign=-stream.sign))
    total = masks.Accumulator(attempt.consortium.shape)
    total.add(attempt.uploaded(victim).vector)
    total.apply(streams, masks.MaskContext(spec.digest, spec.broadcast_digest, attempt.consortium.shape))
    return total.reduced()


def _envelope(attempt: Attempt, sender: str, recipient: str) -> Envelope:
    for stage, site, reply in attempt.replies:
        if (stage, site) == ("share", sender):
            return next(e for e in Sharing.decode(reply).envelopes if e.recipient == recipient)
    raise WrongState(f"{sender} shared nothing")
