"""How the secret key of a study whose sums sites open gets to them, and to nobody else (protocol.md, 12.1).

The key holder makes the study's keys, and seals the secret key to a fresh X-Wing key of every site that asks,
signed by an identity of the pinned roster. The aggregator relays, and holds the public key only. A roster may
hold hospitals that are not in the study: they get no key, since they could open its sums.

Security: every site ends up with the secret key, from which the tags' secrets follow; one that hands it to
the aggregator lets it read every upload and forge sums. The key belongs to one study and dies with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from secfed.crypto import labels, sealing
from secfed.crypto.codec import digest
from secfed.crypto.encrypted.messages import KeyDelivery, KeyHello, KeyPackage, KeyPackages, KeyRequest
from secfed.crypto.identity import Identity, Roster, verify
from secfed.crypto.message_base import signed
from secfed.errors import InconsistentView, RosterError, WrongState


@dataclass(frozen=True)
class KeyPair:
    """The keys of one study. ``secret_key`` is sealed to every site; the aggregator never holds it."""

    secret_key: bytes = field(repr=False)
    public_key: bytes


class KeyForm(Protocol):
    """What the keys of a study are for; every party derives it from the study."""

    @property
    def digest(self) -> bytes:
        """32 bytes: all messages about the keys are bound to it."""
        ...

    def generate(self) -> KeyPair:
        """Fresh keys."""
        ...

    def check(self, keys: KeyPair) -> None:
        """Whether keys that were delivered can be such keys.

        Raises:
            MalformedMessage: they cannot.
        """
        ...


@dataclass
class StudyKeys:
    """One site's hold on the keys of one study, made by the site ``holder`` for the study's ``sites``.

    ``received`` is called with the keys before they are used, so that a hospital stores them;
    ``new_seal_key`` gives the key to seal to, which a hospital keeps until the study key is there.
    """

    identity: Identity
    roster: Roster
    study: str
    sites: Collection[str]
    holder: str
    form: KeyForm
    received: Callable[[KeyPair], None] = lambda _keys: None
    new_seal_key: Callable[[], sealing.SealKey] = sealing.SealKey.generate

    def __post_init__(self) -> None:
        self.keys: KeyPair | None = None
        self._seal_key: sealing.SealKey | None = None

    def restore(self, keys: KeyPair | None, seal_key: sealing.SealKey | None) -> None:
        """Go on after a restart with what was kept: the keys, or the seal key they were asked for with."""
        self.keys, self._seal_key = keys, seal_key

    @property
    def required(self) -> KeyPair:
        """The keys; :class:`WrongState` where this site has none yet."""
        if self.keys is None:
            raise WrongState("this site has no study key yet", remedy="the key holder must be reachable once")
        return self.keys

    def hello(self) -> bytes:
        """Message 11: holding the key, or asking for it."""
        if self.identity.name == self.holder and self.keys is None:
            self._keep(self.form.generate())
        if self.keys is None and self._seal_key is None:
            self._seal_key = self.new_seal_key()
        public = b"" if self.keys is not None or self._seal_key is None else self._seal_key.public_bytes
        hello = KeyHello(self.identity.name, public)
        return signed(hello, self.identity, labels.SIGN_KEY_HELLO, *self._context()).encode()

    def pack(self, request: KeyRequest) -> bytes:
        """Messages 12 -> 13, at the holder; ``WrongState`` elsewhere.

        Also raises as :func:`check_hello`, and ``RosterError`` for a hospital that is not in the study.
        """
        if self.identity.name != self.holder:
            raise WrongState("this site does not hold the study key for others")
        keys, packages = self.required, []
        for hello in request.hellos:
            if hello.site not in self.sites:
                raise RosterError(
                    f"{hello.site!r} asks for the study key and is no site of the study",
                    remedy="ask whoever runs the aggregator why it passed this on",
                )
            check_hello(hello, self.roster, self._context())
            sealed = sealing.seal(
                hello.seal_key, keys.secret_key, labels.SEAL_STUDY_KEY, *self._context(), hello.site.encode()
            )
            context = *self._context(), digest(labels.STUDY_PUBLIC_KEY, keys.public_key)
            package = KeyPackage(hello.site, sealed)
            packages.append(signed(package, self.identity, labels.SIGN_KEY_PACKAGE, *context))
        return KeyPackages(keys.public_key, tuple(packages)).encode()

    def unpack(self, delivery: KeyDelivery) -> None:
        """Message 14: take the study key.

        ``InconsistentView``: the package is for another site, or was not asked for; ``BadSignature``: the
        holder did not sign it; ``MalformedMessage``: it cannot be opened, or holds no such keys.
        """
        if delivery.package.recipient != self.identity.name or self._seal_key is None:
            raise InconsistentView("a study key was delivered that this site did not ask for")
        if self.holder not in self.roster.sites:
            raise RosterError(f"the key holder {self.holder!r} is not in the pinned roster")
        verify(
            self.roster.public(self.holder),
            delivery.package.signature,
            labels.SIGN_KEY_PACKAGE,
            *self._context(),
            digest(labels.STUDY_PUBLIC_KEY, delivery.public_key),
            delivery.package.body(),
            who=self.holder,
        )
        site = self.identity.name.encode()
        sealed, context = delivery.package.sealed_key, (*self._context(), site)
        secret = self._seal_key.open(sealed, labels.SEAL_STUDY_KEY, *context)
        keys = KeyPair(secret_key=secret, public_key=delivery.public_key)
        self.form.check(keys)
        self._keep(keys)
        self._seal_key = None

    def _keep(self, keys: KeyPair) -> None:
        # First to the disk: a holder that gave out a key which it does not keep would make another one after
        # a restart. Where keeping fails, the next hello asks, or makes a key, again.
        self.received(keys)
        self.keys = keys

    def _context(self) -> Sequence[bytes]:
        return key_context(self.study, self.roster, self.form, self.holder)


def key_context(study: str, roster: Roster, form: KeyForm, holder: str) -> Sequence[bytes]:
    """What every signature and envelope about study keys is bound to."""
    return study.encode(), roster.digest, form.digest, holder.encode()


def check_hello(hello: KeyHello, roster: Roster, context: Sequence[bytes]) -> None:
    """Whether its site signed a hello; the aggregator checks too, so that one bad hello blocks nobody.

    ``RosterError``: from outside the roster; ``BadSignature``: its site did not sign it;
    ``MalformedMessage``: the study key cannot be sealed to its key.
    """
    public = roster.public(hello.site)
    verify(public, hello.signature, labels.SIGN_KEY_HELLO, *context, hello.body(), who=hello.site)
    if not hello.holds_key:
        # A trial: the holder refuses a whole request for one key that it cannot seal to.
        sealing.seal(hello.seal_key, b"", labels.SEAL_STUDY_KEY)
