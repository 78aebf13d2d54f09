"""What attacks on masked sums share: a consortium with a victim, what sites let pass, and what that gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from secfed.attack.attack import AttackSetting, numbers
from secfed.attack.evidence import Evidence
from secfed.attack.harvest import Harvest, unmask_alone
from secfed.attack.scene import Attempt, RingVector
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Specification, Survivors, View
from secfed.errors import RoundAborted, SecfedError


class MaskedPlay:
    """One attack on a masked sum, on real sessions; ``victim`` is a position in the roster.

    Where a hospital refuses, the attacker goes on with what it has; every refusal is noted.
    """

    def __init__(self, setting: AttackSetting, victim: int = 0, **options: Any) -> None:
        self.consortium = setting.consortium(**options)
        self.names = self.consortium.names
        self.victim = self.names[victim]
        self.others = tuple(name for name in self.names if name != self.victim)
        self.attempts: list[Attempt] = []
        self._refused: list[SecfedError] = []

    @property
    def first(self) -> Attempt:
        """The attempt that is attacked."""
        return self.attempts[0]

    def begin(self, spec: Specification | None = None, *, until: str = "", **options: Any) -> Attempt:
        """Begin an attempt, and carry it honestly until a stage."""
        self.attempts.append(self.consortium.attempt(spec, **options))
        return self.attempts[-1].run(until) if until else self.attempts[-1]

    def try_sum(self, spec: Specification | None = None, **options: Any) -> RingVector | None:
        """Begin an attempt and carry it as far as it goes; its sum, if there is one."""
        attempt = self.begin(spec, **options)
        try:
            return tuple(attempt.run().server.sums)
        except RoundAborted:
            return None

    def deliver(self, site: str, message: Buffer) -> bytes | None:
        """Hand a message of the first attempt to a site; its answer, None if it refuses."""
        try:
            return self.first.deliver(site, message)
        except SecfedError as refusal:
            self._refused.append(refusal)
            return None

    def views(self, sites: Sequence[str], survivors: Sequence[str]) -> dict[str, View]:
        """The signatures of sites that are shown these survivors."""
        request = Survivors(tuple(survivors)).encode()
        replies = {site: self.deliver(site, request) for site in sites}
        return {site: View.decode(reply) for site, reply in replies.items() if reply is not None}

    def unmasked(self, colluding: Sequence[str] = (), sharing: Sequence[str] | None = None) -> RingVector:
        """The victim's upload without the masks that the shares open; as it is, where they open none."""
        if not any((stage, site) == ("mask", self.victim) for stage, site, _ in self.first.replies):
            return self.consortium.zeros()
        harvest = Harvest.of(self.first, colluding)
        found = unmask_alone(self.first, self.victim, harvest, colluding, sharing or self.names)
        return self.consortium.integers(self.first.uploaded(self.victim)) if found is None else found

    def learned(self, guess: RingVector | None = None, *allowed: RingVector | None) -> Evidence:
        """What it came to: a guess, by default from the first upload, and what the attacker may know."""
        guess = self.unmasked() if guess is None else guess
        errors = [*(error for one in self.attempts for error in one.refusals.values()), *self._refused]
        known = tuple(tuple(vector) for vector in allowed if vector is not None)
        truth = self.consortium.updates[self.victim]
        return Evidence(self.consortium.shape, truth, tuple(guess), known, numbers(errors))
