"""Ed25519 identities of sites and aggregator, and the roster that pins them.

A roster is agreed between people, outside the software: each site's administrator compares
fingerprints and pins the roster's digest. Nothing the server sends can add a member to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from secfed.crypto import labels
from secfed.crypto.codec import Buffer, digest
from secfed.crypto.record import Record, fixed, many, pair, text
from secfed.errors import BadSignature, RosterError

SIGNATURE_BYTES = 64
PUBLIC_BYTES = 32
MAX_SITES = 1000
MAX_NAME_BYTES = 200


@dataclass(frozen=True)
class Identity:
    """One party's signing key. Security: keep it at its owner; a copy can speak in its name."""

    name: str
    _identity_key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, name: str) -> Identity:
        """A fresh identity from the operating system's generator."""
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, name: str, seed: bytes) -> Identity:
        """The identity of a 32-byte RFC 8032 private key."""
        return cls(name, Ed25519PrivateKey.from_private_bytes(seed))

    @cached_property
    def public_bytes(self) -> bytes:
        """The 32-byte public key."""
        return self._identity_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def private_bytes(self) -> bytes:
        """The 32-byte private key, for storage under the owner's protection."""
        return self._identity_key.private_bytes_raw()

    def sign(self, label: bytes, *parts: Buffer) -> bytes:
        """Sign the digest of label and parts: 64 bytes."""
        return self._identity_key.sign(digest(label, *parts))


def verify(public_bytes: bytes, signature: bytes, label: bytes, *parts: Buffer, who: str) -> None:
    """Check a signature made by :meth:`Identity.sign`.

    Raises:
        BadSignature: it does not verify; the message names ``who`` only.
    """
    check = _verify_once if _REMEMBERING.get() else _verify
    try:
        check(bytes(public_bytes), bytes(signature), digest(label, *parts))
    except (InvalidSignature, ValueError):
        raise BadSignature(f"a signature of {who!r} does not verify under the pinned identity") from None


def _verify(public_bytes: bytes, signature: bytes, signed: bytes) -> None:
    """Return if the signature is good."""
    Ed25519PublicKey.from_public_bytes(public_bytes).verify(signature, signed)


_verify_once = lru_cache(maxsize=1 << 14)(_verify)  # an error is not remembered
_REMEMBERING: Final = ContextVar("remembering", default=False)


@contextmanager
def remembered_signatures() -> Iterator[None]:
    """Check no signature again that was good, for these very bytes: in a simulation every site checks all."""
    before = _REMEMBERING.set(True)
    try:
        yield
    finally:
        _REMEMBERING.reset(before)
        _verify_once.cache_clear()


def fingerprint(public_bytes: bytes) -> str:
    """What two administrators read to each other: 40 hex digits in groups of four."""
    return grouped(digest(labels.FINGERPRINT, public_bytes).hex()[:40])


def grouped(digits: str) -> str:
    """Digits in groups of four, as they are read over a telephone."""
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


@dataclass(frozen=True)
class Roster(Record):
    """The identities of one consortium: (site id, public identity key), sorted by site id."""

    aggregator: Annotated[bytes, fixed(PUBLIC_BYTES)]
    members: Annotated[
        tuple[tuple[str, bytes], ...], many(pair(text(MAX_NAME_BYTES), fixed(PUBLIC_BYTES)), MAX_SITES)
    ]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.members]
        keys = [public for _, public in self.members]
        remedy = "get the roster from the consortium"
        if not names or len(names) > MAX_SITES:
            raise RosterError(f"a roster has 1 to {MAX_SITES} sites", remedy=remedy)
        if names != sorted(set(names)):
            raise RosterError("roster sites must be sorted and unique", remedy=remedy)
        if len({*keys, self.aggregator}) != len(keys) + 1:
            every = [*keys, self.aggregator]
            shared = ", ".join(repr(name) for name, public in self.members if every.count(public) > 1)
            raise RosterError(
                f"two members of the roster have the same identity key ({shared})",
                remedy="every site and the aggregator must make an identity of their own",
            )
        if any(len(public) != PUBLIC_BYTES for public in (*keys, self.aggregator)):
            raise RosterError("an identity key must be 32 bytes", remedy=remedy)
        if any(not name or len(name.encode()) > MAX_NAME_BYTES for name in names):
            raise RosterError(f"a site id has 1 to {MAX_NAME_BYTES} bytes", remedy=remedy)

    @classmethod
    def of(cls, aggregator: Identity, sites: list[Identity]) -> Roster:
        """The roster of these identities."""
        members = sorted((site.name, site.public_bytes) for site in sites)
        return cls(aggregator.public_bytes, tuple(members))

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """Site ids, in roster order."""
        return tuple(name for name, _ in self.members)

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        return dict(self.members)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.sites)}

    def position(self, site: str) -> int:
        """Index of a site in the roster; its Shamir coordinate is this plus one."""
        self.public(site)
        return self._positions[site]

    def public(self, site: str) -> bytes:
        """A site's public identity key; :class:`RosterError` for a stranger."""
        try:
            return self._keys[site]
        except KeyError:
            raise RosterError(f"site {site!r} is not in the pinned roster") from None

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical bytes: what an administrator pins."""
        return digest(labels.ROSTER_DIGEST, self.encode())
