"""What a masked attempt needs from outside: limits, the journal, randomness, and who is asking for what."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Protocol

from secfed.crypto import sealing, thresholds
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import VectorShape, VectorSource


@dataclass(frozen=True, order=True)
class AttemptId:
    """Position of an attempt within its study; each site serves them in strictly ascending order."""

    round: int
    exchange_index: int
    attempt: int


class AttemptJournal(Protocol):
    """A site's durable memory. Every call returns only after the fact is on stable storage.

    Security: a journal that forgets lets a server unmask one update under two survivor sets. Restoring
    an older copy is such forgetting; see SECURITY.md, "Journal rollback".
    """

    def begin(self, study: str, attempt: AttemptId) -> None:
        """Note that an attempt starts; :class:`Replay` if a later one was begun, or its update has left."""
        ...

    def uploaded(self, study: str, attempt: AttemptId) -> None:
        """Note that the update is about to leave: it is spent, and no other attempt may carry it."""
        ...

    def unmasked(self, study: str, attempt: AttemptId) -> None:
        """Note that shares are about to be given out: the exchange's update is spent."""
        ...


@dataclass(frozen=True)
class SiteLimits:
    """What a site insists on, whatever the server asks.

    Attributes:
        max_dropouts: how many of the sites that the study asks in an exchange may be missing in its sum;
            None for as many as the other limits permit. See :meth:`of_exchange`.
        colluders: sites to be safe against; None means ceil(n/3) - 1 of the *roster's* n sites, however small
            a cohort the server names. Set it where cohorts are much smaller than the roster.
        require_privacy: refuse to contribute an update made without differential privacy.
    """

    min_cohort: int = thresholds.FLOOR
    min_threshold: int = thresholds.FLOOR
    max_dropouts: int | None = None
    colluders: int | None = None
    max_elements: int = 1 << 31
    require_privacy: bool = False

    def of_exchange(self, members: int) -> SiteLimits:
        """These limits for an exchange in which the study asks so many sites.

        Security: noise in the sum is chosen for so many survivors (:mod:`secfed.dp.mechanisms.noise`).
        """
        if self.max_dropouts is None:
            return self
        least = members - self.max_dropouts
        return replace(
            self, min_cohort=max(self.min_cohort, least), min_threshold=max(self.min_threshold, least)
        )


class Entropy:
    """Randomness of one attempt: the operating system's.

    A site that survives restarts draws from a fresh secret seed instead (``seeded_entropy.py``), and test
    vectors from a fixed one; nothing else may replace it.
    """

    def token(self, purpose: str) -> bytes:  # noqa: ARG002 - the purpose names the draw in test vectors
        """32 fresh secret bytes."""
        return secrets.token_bytes(32)

    def below(self, limit: int) -> int:
        """A uniform integer in [0, limit)."""
        return secrets.randbelow(limit)

    def seal_key(self) -> sealing.SealKey:
        """A fresh key pair for sealed shares."""
        return sealing.SealKey.generate()

    def seal(self, public_bytes: bytes, plaintext: bytes, label: bytes, *context: bytes) -> bytes:
        """Seal an envelope."""
        return sealing.seal(public_bytes, plaintext, label, *context)


@dataclass(frozen=True, kw_only=True)
class SumRules:
    """What one site insists on about who is in a sum.

    Attributes:
        planned: sites that the study asks in this exchange; None for all of the roster.
        contributors: for every part of the sum to which some sites add only zeros, the sites that may add
            more, and the fewest of them that the study wants; never fewer than ``colluders`` + 2.
    """

    roster: Roster
    limits: SiteLimits = SiteLimits()
    planned: frozenset[str] | None = None
    contributors: tuple[tuple[frozenset[str], int], ...] = ()

    @property
    def colluders(self) -> int:
        """Colluding sites that this one wants to be safe against.

        By default of the roster, not of the cohort: the server names the cohort, and must not lower it so.
        """
        limit = self.limits.colluders
        return thresholds.default_colluders(len(self.roster.sites)) if limit is None else limit


@dataclass(frozen=True, kw_only=True)
class SiteContribution(SumRules):
    """One site's input to one attempt: who it is, what it serves now, what it has, what it insists on.

    ``shape`` and ``broadcast_digest`` are those that *this site* derived and trained on; ``source`` is the
    quantised update, read once. With a ``group_key`` the sum is closed (``masked/closing.py``). The study
    names the ``cipher`` that makes masks.
    """

    identity: Identity
    study: str
    round: int
    exchange: str
    exchange_index: int
    shape: VectorShape
    broadcast_digest: bytes
    source: VectorSource = field(repr=False)
    journal: AttemptJournal
    privacy_applied: bool = False
    entropy: Entropy = field(default_factory=Entropy)
    group_key: bytes | None = field(repr=False, default=None)
    cipher: StreamCipher = StreamCipher.CHACHA20

    @property
    def site(self) -> str:
        """This site's id."""
        return self.identity.name
