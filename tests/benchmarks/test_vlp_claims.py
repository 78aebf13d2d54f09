"""Claims: from kept runs, and from what was printed of seeds whose runs were not kept."""

from __future__ import annotations

from pathlib import Path

import kept_runs
import vlp_claims
import vlp_runs

PLACE = ("p", "one", "other", "r")


def _runs(panel: str, values: dict[str, dict[int, float]]) -> list[kept_runs.Row]:
    return [
        {"panel": panel, "variant": variant, "seed": str(seed), "r": str(value), "recall_at_1": str(value)}
        for variant, seeds in values.items()
        for seed, value in seeds.items()
    ]


def _earlier(folder: Path, seeds: str = "1 2 3") -> dict[tuple[str, str, str, str], vlp_claims.Earlier]:
    path = folder / "earlier.csv"
    path.write_text(
        f"panel,variant,beside,score,seeds,mean,low,high\np,one,other,r,{seeds},2.0,-0.484,4.484\n"
    )
    return vlp_claims.read_earlier(kept_runs.read(path))


def test_every_claim_names_methods_that_can_be_run() -> None:
    names = {f"{name}-pretrained" for claim in vlp_claims.CLAIMS for name in (claim.method, claim.beside)}
    assert names <= set(vlp_runs.ALL)


def test_what_was_printed_counts_as_the_seeds_that_it_was_printed_for(tmp_path: Path) -> None:
    # Mean 2 with that interval: differences 1, 2, 3. With 4, 5 and 9 of the kept runs the mean is 4.
    found = kept_runs.by_place(
        _runs("p", {"one": {4: 5.0, 5: 6.0, 6: 9.0}, "other": {4: 1.0, 5: 1.0, 6: 0.0}})
    )
    both = vlp_claims.paired(found, _earlier(tmp_path), PLACE, 1.0)
    exact = kept_runs.OverSeeds.of([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
    assert both.verdict(digits=2) == exact.verdict(digits=2) == ("+4.00 (+1.03 to +6.97)", "**shown**")


def test_a_kept_run_of_an_earlier_seed_replaces_all_that_was_printed(tmp_path: Path) -> None:
    found = kept_runs.by_place(_runs("p", {"one": {3: 5.0, 4: 6.0}, "other": {3: 1.0, 4: 0.0}}))
    assert vlp_claims.paired(found, _earlier(tmp_path), PLACE, 1.0) == kept_runs.OverSeeds.of([4.0, 6.0])


def test_what_was_printed_is_of_its_own_pair_only(tmp_path: Path) -> None:
    assert vlp_claims.paired({}, _earlier(tmp_path), ("p", "one", "third", "r"), 1.0).seeds == 0


def test_a_sweep_s_methods_are_compared_with_its_own_fedavg_in_every_panel() -> None:
    found = kept_runs.by_place(
        [
            *_runs("p", {"fedavg": {1: 0.2, 2: 0.21, 3: 0.19}, "feddra": {1: 0.25, 2: 0.27, 3: 0.23}}),
            *_runs("q", {"fedavg": {1: 0.1}, "feddra": {2: 0.3}, "fedrgb": {1: 0.2}}),
        ]
    )
    lines = vlp_claims.table_of_sweep(found, {}).splitlines()[2:]
    assert [[part.strip() for part in line.split("|")[1:-1]] for line in lines] == [
        ["p", "`feddra` above FedAvg, R@1", "**shown**", "+5.0 (+2.5 to +7.5)", "3"],
        ["q", "`fedrgb` above FedAvg, R@1", "open", "+10.0", "1"],
    ]
    assert vlp_claims.table_of_sweep({}, {}) == ""
