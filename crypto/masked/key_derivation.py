"""What a site derives from the two secrets of an attempt, and the server from a recovered one."""

from __future__ import annotations

from secfed.crypto import labels, sealing
from secfed.crypto.codec import digest
from secfed.crypto.keystream import derive
from secfed.crypto.masked import masks


def mask_key(mask_secret: bytes) -> sealing.SealKey:
    """The X-Wing key pair that a mask secret stands for; the server rebuilds it for a dropped site."""
    return sealing.SealKey.from_seeds(
        derive(mask_secret, labels.DERIVE_MASK_KEY_MLKEM, size_bytes=sealing.MLKEM_SEED_BYTES),
        derive(mask_secret, labels.DERIVE_MASK_KEY_X25519),
    )


def outgoing_seed(mask_secret: bytes, spec_digest: bytes, sender: str, recipient: str) -> bytes:
    """The 32-byte pair seed that ``sender`` contributes to its pair with ``recipient``."""
    return derive(mask_secret, labels.DERIVE_PAIR_SEED, spec_digest, sender.encode(), recipient.encode())


def commitment(self_seed: bytes) -> bytes:
    """What is advertised of a self-mask seed, so that a wrongly rebuilt one is noticed."""
    return digest(labels.SELF_MASK_COMMITMENT, self_seed)


def envelope_context(
    spec_digest: bytes, adverts_digest: bytes, sender: str, recipient: str
) -> tuple[bytes, ...]:
    """What a sealed envelope is bound to."""
    return spec_digest, adverts_digest, sender.encode(), recipient.encode()


def share_digest(kind: bytes, context: tuple[bytes, ...], share: bytes) -> bytes:
    """What a sender states of a 33-byte share, so that another one in its place is noticed: 32 bytes.

    ``kind`` is ``labels.MASK_SECRET_SHARE`` or ``labels.SELF_MASK_SHARE``.
    """
    return digest(kind, *context, share)


def pair_stream(me: int, peer: int, seed_out: bytes, seed_in: bytes) -> masks.MaskStream:
    """The mask of a pair, as the site at roster position ``me`` applies it: the lower position adds."""
    lower, higher = (seed_out, seed_in) if me < peer else (seed_in, seed_out)
    return masks.pair_mask(lower, higher, 1 if me < peer else -1)
