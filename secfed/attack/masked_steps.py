"""What attacks on masked sums have in common: go as far as sites let you, and see what that gave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secfed.attack.attack import lanes_of, numbers
from secfed.attack.evidence import Evidence
from secfed.attack.harvest import Harvest, unmask_alone
from secfed.attack.scene import Attempt, RingVector, SimulatedConsortium
from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Survivors, View
from secfed.errors import RoundAborted, SecfedError


def views(
    attempt: Attempt, sites: Sequence[str], survivors: Sequence[str], refused: list[SecfedError]
) -> dict[str, View]:
    """The signatures of sites that are told these survivors; what they refuse with goes to ``refused``."""
    signed = {}
    for site in sites:
        try:
            signed[site] = View.decode(attempt.deliver(site, Survivors(tuple(survivors)).encode()))
        except SecfedError as refusal:
            refused.append(refusal)
    return signed


def try_sum(attempt: Attempt) -> RingVector | None:
    """Carry an attempt as far as it goes; its sum, if there is one."""
    try:
        attempt.run()
    except RoundAborted:
        return None
    return tuple(attempt.server.sums)


def deliver(attempt: Attempt, site: str, message: Buffer) -> list[SecfedError]:
    """Hand a message to a site; what it refused with, if it did."""
    try:
        attempt.deliver(site, message)
    except SecfedError as refusal:
        return [refusal]
    return []


def best(attempt: Attempt, victim: str) -> RingVector:
    """The victim's upload without the masks that the shares open; as it is, where they open none."""
    consortium = attempt.consortium
    if not any((stage, site) == ("mask", victim) for stage, site, _ in attempt.replies):
        return nothing(consortium)
    stripped = unmask_alone(attempt, victim, Harvest.of(attempt), [], consortium.names)
    return lanes_of(consortium, attempt.uploaded(victim)) if stripped is None else stripped


def nothing(consortium: SimulatedConsortium) -> RingVector:
    """A vector of zeros: a guess without knowledge."""
    return tuple(np.zeros(run.count, run.dtype) for run in consortium.shape.runs)


def evidence(
    attempt: Attempt,
    victim: str,
    guess: RingVector,
    *,
    allowed: tuple[RingVector, ...] = (),
    seen: Attempt | None = None,
    refused: list[SecfedError] | None = None,
) -> Evidence:
    """What an attack came to: the attacker's guess, what it may know, and which refusals it met."""
    consortium = attempt.consortium
    errors = [*attempt.refusals.values(), *(refused or ()), *(() if seen is None else seen.refusals.values())]
    known = tuple(tuple(vector) for vector in allowed)
    return Evidence(consortium.shape, consortium.updates[victim], guess, known, numbers(errors))
