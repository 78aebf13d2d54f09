"""Verdicts over claims: from intervals of paired differences, never from means alone."""

from __future__ import annotations

import pytest
import vlp_claims
import vlp_runs


@pytest.mark.parametrize(
    ("gaps", "sign", "state"),
    [
        ([], 1, "open"),
        ([5.0], 1, "open"),
        ([5.0, 5.1], 1, "open"),
        ([5.0, 5.0, 5.0], 1, "open"),  # worst hospitals differ by whole pairs, and may agree by chance
        ([1.0, 1.1, 0.9], 1, "**shown**"),
        ([-1.0, -1.1, -0.9], 1, "**refuted**"),
        ([1.0, 1.1, 0.9], -1, "**refuted**"),
        ([-1.0, -1.1, -0.9], -1, "**shown**"),
        ([1.0, -1.0, 1.0], 1, "open"),
        ([3.0, 1.0, 0.5], 1, "open"),  # better with every seed, and yet not told from chance
    ],
)
def test_a_verdict_needs_an_interval_beside_zero(gaps: list[float], sign: int, state: str) -> None:
    assert vlp_claims.verdict(gaps, sign)[1] == state


def test_the_interval_is_students() -> None:
    # Mean 2, standard deviation 1, n = 3: 2 +- 4.302653 / sqrt(3).
    assert vlp_claims.verdict([1.0, 2.0, 3.0], 1)[0] == "+2.0 (-0.5 to +4.5)"


def test_differences_are_of_equal_seeds() -> None:
    claim = vlp_claims.Claim("paper", "text", "one", "other", lambda run: run["scores"].get("r"))
    runs = {
        "one-pretrained": {seed: {"scores": {"r": value}} for seed, value in ((1, 0.5), (2, 0.75), (3, 0.9))},
        "other-pretrained": {
            2: {"scores": {"r": 0.25}},
            1: {"scores": {"r": 0.25}},
            4: {"scores": {"r": 0.0}},
        },
    }
    assert vlp_claims.differences(claim, runs) == [25.0, 50.0]


def test_every_claim_names_methods_that_can_be_run() -> None:
    names = {f"{name}-pretrained" for claim in vlp_claims.CLAIMS for name in (claim.method, claim.beside)}
    assert names <= set(vlp_runs.ALL)
