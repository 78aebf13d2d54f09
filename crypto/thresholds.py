"""How many sites must answer, and why.

Of n sites asked, c may collude with the server. To unmask, the server needs t shares of one kind per
site. An honest site gives out *one* share per peer, of the self mask or of the mask secret, never both;
a colluding one gives both. Learning both secrets of one site takes 2t shares, and n - c honest sites
plus c colluding ones yield at most (n - c) + 2c = n + c. Hence no site is unmasked twice iff 2t > n + c.
The same inequality makes two survivor sets with t signatures each impossible: they would share more
than c signers, so an honest one would have signed both.

A cohort needs two honest sites at least, n >= c + 2: with one, the colluders subtract their own values
from the sum and hold that site's. Together with 2t > n + c this also gives t >= c + 2.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017, section 6 (there with t > 2n/3 for c = ceil(n/3) - 1).
"""

from __future__ import annotations

FLOOR = 3  # a sum over fewer sites hides nothing: two sites learn each other's values


def default_colluders(sites: int) -> int:
    """Colluding sites tolerated by default: ceil(n/3) - 1."""
    return max(0, -(-sites // 3) - 1)


def default_threshold(sites: int, colluders: int | None = None) -> int:
    """Answers needed by default: max(3, floor(2n/3) + 1), more where ``colluders`` asks for more.

    ``colluders`` None means the default of a roster of this size; for a smaller cohort, give the roster's.
    """
    least = max(FLOOR, 2 * sites // 3 + 1)
    return least if colluders is None else max(least, (sites + colluders) // 2 + 1)


def is_safe(threshold: int, sites: int, colluders: int) -> bool:
    """Whether ``colluders`` sites and the server still learn only one sum, over two other sites at least."""
    return FLOOR <= threshold <= sites and 2 * threshold > sites + colluders and sites >= colluders + 2
