"""The consortium of :mod:`secfed.attack.scene` for tests: small vectors, and journals that can be watched.

consortium = Consortium(5)
attempt = consortium.attempt()
attempt.run(until="unmask")           # honest so far; attempt.requests holds the pending messages
attempt.refused("hospital-0", forged, Refusal.VIEW_SIGNATURE)
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secfed.attack import scene
from secfed.attack.scene import STAGES
from secfed.crypto import sealing
from secfed.crypto.attempt import Entropy, SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.keystream import StreamCipher
from secfed.crypto.lanes import Run
from secfed.crypto.masked.graph import SparseGraph
from secfed.crypto.masked.states import Closed
from secfed.crypto.messages import Message, Specification
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError
from tests.journals import WatchedJournal
from tests.ring import RingVector, add_in_ring, random_vector

__all__ = ["STAGES", "TINY", "Attempt", "Consortium", "SeededEntropy", "provokes"]

TINY = (Run(16, 3), Run(32, 2), Run(64, 1))


class SeededEntropy(Entropy):
    """Secrets that depend on a seed only. Sealing stays random: nothing downstream depends on it."""

    def __init__(self, *seed: object) -> None:
        self._seed = repr(seed).encode()
        self._drawn = 0

    def token(self, purpose: str) -> bytes:
        """32 bytes."""
        self._drawn += 1
        return hashlib.sha256(b"%s/%s/%d" % (self._seed, purpose.encode(), self._drawn)).digest()

    def below(self, limit: int) -> int:
        """An integer below ``limit``, off uniform by less than 2^-200."""
        wide = self.token("below, high") + self.token("below, low")
        return int.from_bytes(wide, "big") % limit

    def seal_key(self) -> sealing.SealKey:
        """A key from two further tokens."""
        mlkem_seed = self.token("seal key, d") + self.token("seal key, z")
        return sealing.SealKey.from_seeds(mlkem_seed, self.token("seal key, X25519"))


class Consortium(scene.SimulatedConsortium):
    """A consortium whose updates fill their rings, and whose journals tell what was asked of them."""

    journals: dict[str, WatchedJournal]  # type: ignore[assignment]  # of the kind that `journal` makes

    def __init__(
        self,
        sites: int = 5,
        *,
        runs: Sequence[Run] = TINY,
        threshold: int | None = None,
        limits: SiteLimits | None = None,
        seed: int = 0,
        graph: SparseGraph | None = None,
        cipher: StreamCipher = StreamCipher.CHACHA20,
    ) -> None:
        super().__init__(
            sites, runs=runs, threshold=threshold, limits=limits, seed=seed, graph=graph, cipher=cipher
        )

    def update(self, generator: np.random.Generator) -> RingVector:
        """Uniform ring integers."""
        return random_vector(self.shape, generator)

    def journal(self) -> WatchedJournal:
        """An empty journal that remembers."""
        return WatchedJournal(super().journal())

    def attempt(self, spec: Specification | None = None, **options: Any) -> Attempt:
        """An attempt over this consortium."""
        return Attempt(self, self.specification() if spec is None else spec, **options)

    def expected(self, survivors: Iterable[str]) -> list[list[int]]:
        """The true sum over these sites."""
        return add_in_ring((self.updates[name] for name in survivors), self.shape)


PROVOKED: set[Refusal] = set()  # what Attempt.refused has seen in the running test


def provokes(*refusals: Refusal) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a test as the one that provokes these refusals; it fails if none of them comes."""

    def register(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            PROVOKED.clear()
            test(*args, **kwargs)
            assert not PROVOKED.isdisjoint(refusals), f"{test.__name__} never provoked {refusals}"

        run.provokes = refusals  # type: ignore[attr-defined]
        return run

    return register


class Attempt(scene.Attempt):
    """An attempt that can tell whether a message was refused altogether."""

    consortium: Consortium

    def pending(self, site: str, kind: type[Message], **changes: Any) -> bytes:
        """The pending request to a site with some of its fields replaced."""
        return replace(kind.decode(self.requests[site]), **changes).encode()

    def refused(self, site: str, message: Buffer, refusal: Refusal) -> SecfedError:
        """Assert that a message gains the server nothing at all; return the error.

        The site raises this refusal's error class with its number in the text, answers nothing, notes no
        use of its update, and from then on refuses even the message it was waiting for.
        """
        session, journal = self.sites[site], self.consortium.journals[site]
        replies, noted = len(self.replies), (list(journal.left), list(journal.spent))
        with pytest.raises(SecfedError) as caught:
            self.deliver(site, message)
        error = caught.value
        assert type(error) is refusal.error, f"{error!r} is not {refusal.error.__name__}"
        assert error.message.startswith(f"refusal {refusal.number}: "), error.message
        assert f"SECURITY.md explains refusal {refusal.number}" in error.remedy
        assert len(self.replies) == replies, "a reply left the site"
        assert (journal.left, journal.spent) == noted, "the update was spent"
        assert isinstance(session.state, Closed)
        assert session.result is None
        PROVOKED.add(refusal)
        honest = self.requests.get(site, self.spec.encode())
        with pytest.raises(SecfedError, match=rf"^refusal {Refusal.OUT_OF_ORDER.number}: "):
            self.deliver(site, honest)
        return error
