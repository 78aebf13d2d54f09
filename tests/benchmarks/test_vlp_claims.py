"""Claims: differences of kept runs, in words."""

from __future__ import annotations

import kept_runs
import vlp_claims
import vlp_runs


def test_every_claim_names_methods_that_can_be_run() -> None:
    names = {f"{name}-pretrained" for claim in vlp_claims.CLAIMS for name in (claim.method, claim.beside)}
    assert names <= set(vlp_runs.ALL)


def test_a_claim_has_the_difference_of_its_two_methods_with_equal_seeds() -> None:
    values = {
        "feddra-pretrained": {1: 0.25, 2: 0.27, 3: 0.23, 4: 0.9},
        "fedavg-pretrained": {1: 0.2, 2: 0.21, 3: 0.19},
        "fedx-pretrained": {1: 0.1, 2: 0.1, 3: 0.1},
    }
    runs = [
        {"panel": vlp_claims.SYNTHETIC, "variant": name, "seed": str(seed), "recall_at_1": str(value)}
        for name, seeds in values.items()
        for seed, value in seeds.items()
    ]
    lines = vlp_claims.table(kept_runs.by_place(runs)).splitlines()[2:]
    first, last = (lines[at].split(" | ") for at in (0, -2))
    assert first[2:] == ["**shown**", "+5.0 (+2.5 to +7.5)", "3", "`feddra` less `fedavg` |"]
    assert last[1:3] == ["FedX, as sums allow, below FedAvg, R@1", "**shown**"]
    assert lines[-1].split(" | ")[2:5] == ["open", "-", "0"]
