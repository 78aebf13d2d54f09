"""Verdicts over claims: from intervals of paired differences, never from means alone."""

from __future__ import annotations

from pathlib import Path

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


def test_a_sweep_s_methods_are_compared_with_its_own_fedavg_in_every_panel(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    lines = ["panel,variant,seed,status,recall_at_1,recall_at_5"]
    for seed, more in ((1, 0.0), (2, 0.01), (3, -0.01)):
        lines += [f"p,fedavg,{seed},done,{0.2 + more},0.5", f"p,feddra,{seed},done,{0.25 + 2 * more},0.4"]
    lines += ["q,fedavg,1,done,0.1,0.1", "q,feddra,1,failed,,", "q,fedrgb,1,done,0.2,0.05"]
    table.write_text("\n".join(lines), encoding="utf-8")
    rows = [
        [part.strip() for part in line.split("|")[1:-1]]
        for line in vlp_claims.table_of_sweep(table).splitlines()[2:]
    ]
    assert rows == [
        ["p", "`feddra` above FedAvg, R@1", "**shown**", "+5.0 (+2.5 to +7.5)", "3"],
        ["p", "`feddra` above FedAvg, R@5", "open", "-10.0", "3"],
        ["q", "`fedrgb` above FedAvg, R@1", "open", "+10.0", "1"],
        ["q", "`fedrgb` above FedAvg, R@5", "open", "-5.0", "1"],
    ]
    assert vlp_claims.table_of_sweep(tmp_path / "nothing.csv") == ""
