"""How many sites a sum of DRO numbers must have, so that nobody can solve it for a single loss.

Each revealed sum is one equation in the numbers of the n sites. Whoever holds t of those numbers, and the
sums, is left with n - t unknowns; with no more unknowns than equations the solutions are finitely many.
So n - t must exceed the number of revealed sums. t is at least 1: every site holds its own number and is
told the sums. Proof and examples: docs/private-dro.md.
"""

from __future__ import annotations

from secfed.errors import ConfigError


def least_sites(revealed: int, colluders: int) -> int:
    """The least n with n - t > revealed, where t is the colluding sites but at least 1."""
    return max(colluders, 1) + revealed + 1


def check(sites: int, threshold: int | None, least: int) -> None:
    """Refuse a cohort that is too small, or whose sites would help to open a sum over too few of them.

    ``threshold`` is None for a protection that opens nothing; ``least`` are the fewest sites in a sum.
    """
    if sites < least:
        reasons = {
            2: "of two sites each could work out the other's loss",
            3: "of three sites each could work out the other two's losses, but for their order",
        }
        pooled = "with fewer, sites that pool what they know could solve for the others' losses"
        raise ConfigError(
            f"algorithm.rho: DRO weights need sums over {least} sites, and there are {sites}: "
            f"{reasons.get(sites, pooled)}",
            remedy="set algorithm.rho = 0 (equal weights), add noise to the losses, or add sites"
            + (
                "; or algorithm.allow_two_site_weight_disclosure = true, if both accept it"
                if sites == 2
                else ""
            ),
        )
    if threshold is not None and threshold < least:
        raise ConfigError(
            f"protection.threshold: sites would open a sum of DRO numbers over {threshold} of them, "
            f"and a sum over fewer than {least} could be solved for single losses",
            remedy=f"set protection.threshold = {least}, or algorithm.rho = 0",
        )
