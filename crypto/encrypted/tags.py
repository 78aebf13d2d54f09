"""Tags that show a sum of ciphertexts to be the sum of named uploads: a linearly homomorphic MAC.

tag_j = <w, k_j> + pad_j(site, nonce) mod q for j = 1 ... 4, over an upload's words w. Vectors k_j and pads
follow from the secret key and the specification, so only sites compute them; the aggregator adds tags as it
adds words.

Source: docs/protocol.md, 12.4. Agrawal, Boneh, "Homomorphic MACs: MAC-based integrity for network coding",
ACNS 2009, with every survivor's coefficient 1, several tags because one word is small, vectors of 32-bit
numbers.

Security: pads are used once, so tags say nothing about k_j. Another sum passes one tag for at most ceil(2^32
/ q) of the 2^32 values of an entry of k_j. As q > 2^29, one attempt passes all four with probability 2^-116
at most, for whoever has no study key. Whoever has it, every site, can make tags for anything.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, Reader
from secfed.crypto.encrypted.bfv_packing import Words
from secfed.crypto.keystream import Keystream, Workspace, derive
from secfed.errors import MalformedMessage

TAGS: Final = 4
NONCE_BYTES: Final = 16
TAG_BYTES: Final = 8 * TAGS
UPLOAD_TAG_BYTES: Final = NONCE_BYTES + TAG_BYTES

_VECTOR_WORD: Final = np.dtype("<u4")
# (2^32 - 1) * (2^20 - 1) * 4096 coefficients of the largest ring < 2^64: a row is summed without a carry.
_LIMB_BITS: Final = 20
_PAD_BYTES: Final = 32  # reduced modulo q < 2^60 it is uniform up to 2^-196

Tag = tuple[int, ...]
"""Four numbers modulo q."""


def new_nonce() -> bytes:
    """A nonce for one upload.

    Always the operating system's, also where a site repeats its randomness after a crash: the same update is
    encrypted anew then, and two vectors under one pad would tell about the vectors k_j.
    """
    return secrets.token_bytes(NONCE_BYTES)


@dataclass(frozen=True)
class TagKey:
    """What one specification's tags are made and checked with, modulo the prime q of the ring."""

    secret_key: bytes = field(repr=False)
    spec_digest: bytes
    modulus: int

    def products(self, words: Words, index: int) -> Tag:
        """The part <w, k_j> of one frame in every tag: [ciphertexts, 2, n] uint64 below q, seeds expanded."""
        rows = words.reshape(-1, words.shape[-1])
        context = self.spec_digest, index.to_bytes(4, "big")
        stream = Keystream(derive(self.secret_key, labels.DERIVE_TAG_VECTORS, *context))
        room = Workspace(_VECTOR_WORD.itemsize * rows.size)
        vectors = [
            room.words(stream, rows.size, _VECTOR_WORD).astype(np.uint64).reshape(rows.shape)
            for _ in range(TAGS)
        ]
        products = [0] * TAGS
        for shift in range(0, self.modulus.bit_length(), _LIMB_BITS):
            limbs = (rows >> np.uint64(shift)) & np.uint64((1 << _LIMB_BITS) - 1)
            for j, vector in enumerate(vectors):
                by_row: list[int] = np.einsum("rn,rn->r", limbs, vector).tolist()
                products[j] += sum(by_row) << shift
        return tuple(product % self.modulus for product in products)

    def pads(self, site: str, nonce: bytes) -> Tag:
        """One site's pads for one upload."""
        context = self.spec_digest, site.encode(), nonce
        stream = derive(self.secret_key, labels.DERIVE_TAG_PADS, *context, size_bytes=TAGS * _PAD_BYTES)
        numbers = (stream[at : at + _PAD_BYTES] for at in range(0, len(stream), _PAD_BYTES))
        return tuple(int.from_bytes(number, "big") % self.modulus for number in numbers)

    def upload_tag(self, site: str, products: Iterable[Tag]) -> bytes:
        """What follows the frames of an upload, from the products of all of them: nonce and tags."""
        nonce = new_nonce()
        tag = add_tags(self.modulus, self.pads(site, nonce), *products)
        return nonce + encode_tag(tag)

    def is_sum(self, tag: bytes, uploads: Iterable[tuple[str, bytes]], products: Iterable[Tag]) -> bool:
        """Whether words are the sum of uploads, by the sum of their tags and the sites' nonces."""
        pads = (self.pads(site, nonce) for site, nonce in uploads)
        return hmac.compare_digest(tag, encode_tag(add_tags(self.modulus, *pads, *products)))


def add_tags(modulus: int, *tags: Tag) -> Tag:
    """The sum modulo q, tag by tag."""
    return tuple(sum(column) % modulus for column in zip(*tags, strict=True))


def encode_tag(tag: Tag) -> bytes:
    """Four big-endian numbers of 64 bits."""
    return b"".join(number.to_bytes(8, "big") for number in tag)


def decode_tag(data: Buffer, modulus: int) -> Tag:
    """The inverse of :func:`encode_tag`; every number must be reduced."""
    reader = Reader(data)
    tag = tuple(reader.uint(8) for _ in range(TAGS))
    reader.end()
    if max(tag) >= modulus:
        raise MalformedMessage("a tag is not reduced modulo q")
    return tag
