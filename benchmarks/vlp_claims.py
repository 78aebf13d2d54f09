"""What the vision-language papers claim, and what the runs behind the page say to it, with intervals.

    python benchmarks/vlp_claims.py [--update-docs]

reads what ``kept_runs.py`` keeps of ``results_vlp.py`` and of ``examples/vlp-medpix-towers.toml``, and
rewrites the section "claims" of docs/results/vlp.md. A claim is a difference of two methods with the same
seeds, hence the same records, division and batches. The interval is Student's, 95 %, over those differences.
A claim is *shown* where it lies on the claim's side of zero, *refuted* where it lies on the other, and *open*
otherwise, or where seeds are too few or all equal for an interval. Of many runs with seeds 1 to 3
only what was printed is left: ``vlp-claims-earlier`` has it, rounded to a tenth of a point.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import kept_runs
import sections

Found = Mapping[kept_runs.Place, Mapping[int, kept_runs.Row]]
SYNTHETIC = "chest-synthetic"
PAGE = sections.ROOT / "docs" / "results" / "vlp.md"
BEGIN, END = "<!-- begin claims -->", "<!-- end claims -->"
_HEAD = f"""## Claims

    python {Path(__file__).resolve().relative_to(sections.ROOT)} --update-docs

Each line is a difference of two methods with the same seeds: its mean and its 95 % interval over seeds
(Student's, of paired differences). **Shown**: the interval lies on the claim's side of zero; **refuted**: on
the other; **open**: it contains zero, or there are fewer than three seeds, or all agree to the last held-out
pair, which says nothing of how far others lie. Every line is for itself, uncorrected for how many there are.
Seeds are taken in order, as many as there was time for, whatever they show; the runs are in [runs](runs), a
line each. Where runs of seeds 1 to 3 are not among them, what this table had of them is pooled, rounded:
limits may be off by a tenth. Claims with tables of their own: [the papers' regime](#in-the-papers-regime),
[GLoRIA and MGCA](#with-glorias-and-mgcas-objectives),
[few labels](#few-labels-on-the-features-that-training-reads), [photographs](#on-top-of-public-encoders).

Synthetic chest images, encoders pretrained on others of their kind:"""
_HEAD_OF_SWEEP = (
    "[MedPix on top of public encoders](#on-top-of-public-encoders), which saw no CT or MR image:"
)


@dataclass(frozen=True)
class Claim:
    """``method`` is better than ``beside`` by ``score``; ``sign`` is -1 where smaller is better."""

    paper: str
    text: str
    method: str
    beside: str
    score: str
    sign: int = 1
    scale: float = 100.0  # points; 1 leaves the number as it is


_R1, _WORST = "recall_at_1", "worst_at_1"
_WORST_FAIR, _UNSEEN = "worst_common_relative_at_1", "unseen_at_1"
_BASELINES = {
    "fedmoon": "FedMOON", "fedema": "FedEMA", "fedldawa": "FedLDAWA", "fedmae": "FedMAE, as sums allow,",
    "fedx": "FedX, as sums allow,", "fedu": "FedU, as sums allow,",
}  # fmt: skip
_EVEN, _APART, _DICE = "common_relative_disparity", "disparity", "dice_10"
CLAIMS = (
    Claim("FedDRA, Table 2", "above FedAvg, R@1; mu = 5 on the mean, as coded", "feddra", "fedavg", _R1),
    Claim(
        "FedDRA, Table 2",
        "the same above FedAvg with heads first in every round, at one rate",
        "feddra",
        "fedavg-heads-each",
        _R1,
    ),
    Claim(
        "FedDRA, Table 2",
        "the same above FedAvg with heads first once (280 steps, a rising rate; FedDRA 240, none)",
        "feddra",
        "fedavg-heads-share",
        _R1,
    ),
    Claim("FedDRA, Table 2", "above FedAvg, R@1; the paper's mu = 5", "feddra-sum-5", "fedavg", _R1),
    Claim("FedDRA, Table 2", "above FedAvg, worst hospital; mu = 5", "feddra-sum-5", "fedavg", _WORST),
    Claim(
        "FedDRA, Table 2",
        "the same, worst hospital by R@1 / ceiling, one mixture",
        "feddra-sum-5",
        "fedavg",
        _WORST_FAIR,
    ),
    Claim("FedDRA, Table 9", "above FedAvg, R@1; mu = 1", "feddra-sum-1", "fedavg", _R1),
    Claim(
        "FedDRA, Table 2",
        "above FedAvg with as many steps (16 + 40), R@1",
        "feddra-on-top-share",
        "fedavg-56-share",
        _R1,
    ),
    Claim(
        "FedDRA, Table 2",
        "the same, worst hospital",
        "feddra-on-top-share",
        "fedavg-56-share",
        _WORST,
    ),
    Claim(
        "FedDRA, Table 2",
        "the same, worst hospital by R@1 / ceiling, one mixture",
        "feddra-on-top-share",
        "fedavg-56-share",
        _WORST_FAIR,
    ),
    Claim(
        "FedDRA, Table 3",
        "a stage of alignment in every round helps FedAvg, R@1",
        "fedavg-heads-each",
        "fedavg",
        _R1,
    ),
    Claim(
        "FedDRA, Table 3",
        "it helps more in every round than once, R@1",
        "fedavg-heads-each-share",
        "fedavg-heads-share",
        _R1,
    ),
    Claim(
        "FedDRA, Table 3",
        "robust weights (rho = 0.01) help, R@1",
        "feddra-no-anchor",
        "fedavg-heads-each",
        _R1,
    ),
    Claim("FedDRA, Table 3", "the same, worst hospital", "feddra-no-anchor", "fedavg-heads-each", _WORST),
    Claim("FedDRA, Table 3", "the constraint (mu = 5) helps, R@1", "feddra-sum-5", "feddra-no-anchor", _R1),
    Claim(
        "FedDRA, Table 3",
        "robust weights from the excess lift the worst hospital (rho = 0.1 both)",
        "feddra-excess",
        "feddra-rho-01",
        _WORST,
    ),
    Claim(
        "FedDRA, Table 3",
        "robust weights from the excess make hospitals more equal (R@1 / ceiling, one mixture)",
        "feddra-excess",
        "feddra-rho-01",
        _EVEN,
        -1,
    ),
    Claim("FedDRA, Table 3", "the constraint (mu = 1) helps, R@1", "feddra-sum-1", "feddra-no-anchor", _R1),
    Claim("FedDRA, Table 9", "mu = 5 above 1, R@1", "feddra-sum-5", "feddra-sum-1", _R1),
    Claim(
        "FedDRA, Table 9",
        "mu = 5 makes hospitals more equal than 1",
        "feddra-sum-5",
        "feddra-sum-1",
        _APART,
        -1,
    ),
    Claim("FedDRA, Table 2", "above FedAvg, Dice with a tenth of the masks", "feddra", "fedavg", _DICE),
    Claim("FedDRA, Table 8", "radius 0.01 above 0.1, R@1", "feddra", "feddra-rho-01", _R1),
    Claim("FedDRA, Table 8", "radius 0.1 above 0.01, worst hospital", "feddra-rho-01", "feddra", _WORST),
    Claim(
        "FedRGB, Table 2",
        "above FedAvg with nearly as many steps (480, FedRGB 520), R@1",
        "fedrgb-on-top-share",
        "fedavg-80-share",
        _R1,
    ),
    Claim(
        "FedRGB, Table 2",
        "the same, worst hospital",
        "fedrgb-on-top-share",
        "fedavg-80-share",
        _WORST,
    ),
    Claim(
        "FedRGB, Table 2",
        "the same, worst hospital by R@1 / ceiling, one mixture",
        "fedrgb-on-top-share",
        "fedavg-80-share",
        _WORST_FAIR,
    ),
    Claim(
        "FedRGB, Table 11",
        "less distortion by a round of its own at one hospital than FedAvg (the paper: 0.6 of it)",
        "fedrgb-sum-1",
        "fedavg",
        "distortion_own",
        -1,
        1.0,
    ),
    Claim(
        "FedRGB, Table 2",
        "guidance (squared norm, 1) at equal steps: above FedAvg, R@1",
        "fedrgb-sum-1",
        "fedavg",
        _R1,
    ),
    Claim("FedRGB, Table 2", "the same, Dice with a tenth of the masks", "fedrgb-sum-1", "fedavg", _DICE),
    Claim(
        "FedRGB, Table 5", "the same in a style that no hospital has, R@1", "fedrgb-sum-1", "fedavg", _UNSEEN
    ),
    Claim(
        "FedRGB, Table 4",
        "the robust teacher above the mean of local aligners (as many steps), R@1",
        "fedrgb-sum-1",
        "fedrgb-averaged",
        _R1,
    ),
    Claim("FedRGB, Table 19", "the same, worst hospital", "fedrgb-sum-1", "fedrgb-averaged", _WORST),
    Claim(
        "FedRGB, Table 19",
        "the same, worst hospital by R@1 / ceiling, one mixture",
        "fedrgb-sum-1",
        "fedrgb-averaged",
        _WORST_FAIR,
    ),
    Claim(
        "FedRGB, Table 4", "guided by distance above by contrast, R@1", "fedrgb-sum-1", "fedrgb-contrast", _R1
    ),
    Claim("FedRGB, Table 19", "the same, worst hospital", "fedrgb-sum-1", "fedrgb-contrast", _WORST),
    Claim(
        "FedRGB, Table 19",
        "the same, worst hospital by R@1 / ceiling, one mixture",
        "fedrgb-sum-1",
        "fedrgb-contrast",
        _WORST_FAIR,
    ),
    Claim(
        "FedRGB, Figure 8",
        "more guidance (5 instead of 1) makes hospitals more equal (R@1 / ceiling, one mixture)",
        "fedrgb-sum-5",
        "fedrgb-sum-1",
        _EVEN,
        -1,
    ),
    Claim("FedDRA, Table 6", "FedAvg above single hospitals, R@1", "fedavg", "decentralised", _R1),
    Claim("FedDRA, Table 6", "pooled pairs above FedAvg, R@1", "centralised", "fedavg", _R1),
    Claim(
        "FedDRA, Table 6",
        "the same by R@1 / ceiling, one mixture",
        "centralised",
        "fedavg",
        "common_relative_at_1",
    ),
    *(
        Claim("FedDRA and FedRGB, Table 2", f"{title} below FedAvg, R@1", name, "fedavg", _R1, -1)
        for name, title in _BASELINES.items()
    ),
)


@dataclass(frozen=True)
class Earlier:
    """What was printed for seeds whose runs were not kept; it stands aside once runs of such a seed are."""

    seeds: frozenset[int]
    found: kept_runs.OverSeeds


def read_earlier(rows: Iterable[kept_runs.Row]) -> dict[tuple[str, str, str, str], Earlier]:
    """By panel, variant, the variant beside it, and score."""
    found = {}
    for row in rows:
        seeds = frozenset(map(int, row["seeds"].split()))
        half = (float(row["high"]) - float(row["low"])) / 2
        printed = kept_runs.OverSeeds.printed(len(seeds), float(row["mean"]), half)
        found[row["panel"], row["variant"], row["beside"], row["score"]] = Earlier(seeds, printed)
    return found


def paired(
    found: Found,
    earlier: Mapping[tuple[str, str, str, str], Earlier],
    place: tuple[str, str, str, str],
    scale: float,
) -> kept_runs.OverSeeds:
    """The differences of kept runs, and of earlier ones with other seeds."""
    panel, variant, beside, score = place
    mine, its = (found.get((panel, name), {}) for name in (variant, beside))
    kept = kept_runs.OverSeeds.of([scale * gap for gap in kept_runs.differences(mine, its, score)])
    before = earlier.get(place)
    return kept if before is None or before.seeds & set(mine) & set(its) else kept + before.found


def table(found: Found, earlier: Mapping[tuple[str, str, str, str], Earlier]) -> str:
    lines = []
    for claim in CLAIMS:
        place = (SYNTHETIC, f"{claim.method}-pretrained", f"{claim.beside}-pretrained", claim.score)
        gaps = paired(found, earlier, place, claim.scale)
        effect, state = gaps.verdict(claim.sign, 1 if claim.scale > 1 else 3)
        beside = f"`{claim.method}` less `{claim.beside}`"
        lines.append([claim.paper, claim.text, state, effect, str(gaps.seeds), beside])
    return sections.table(["paper", "claim", "state", "effect", "seeds", "runs"], lines)


def table_of_sweep(found: Found, earlier: Mapping[tuple[str, str, str, str], Earlier]) -> str:
    """The methods of a sweep less its FedAvg, in every panel; nothing where nothing is known."""
    places = dict.fromkeys([*found, *((panel, variant) for panel, variant, _, _ in earlier)])
    lines = []
    for panel, variant in sorted(places):
        for score, name in (("recall_at_1", "R@1"), ("recall_at_5", "R@5")):
            gaps = paired(found, earlier, (panel, variant, "fedavg", score), 100.0)
            if variant != "fedavg" and gaps.seeds:
                effect, state = gaps.verdict()
                lines.append([panel, f"`{variant}` above FedAvg, {name}", state, effect, str(gaps.seeds)])
    return sections.table(["shift", "claim", "state", "effect", "seeds"], lines) if lines else ""


def main() -> int:
    earlier = read_earlier(kept_runs.kept("vlp-claims-earlier"))
    synthetic = {place: value for place, value in earlier.items() if place[0] == SYNTHETIC}
    real = {place: value for place, value in earlier.items() if place[0] != SYNTHETIC}
    runs = kept_runs.by_place(kept_runs.kept(f"vlp-{SYNTHETIC}"))
    swept = kept_runs.by_place(kept_runs.kept("vlp-medpix-towers"))
    parts = [BEGIN + "\n" + _HEAD, table(runs, synthetic), _HEAD_OF_SWEEP, table_of_sweep(swept, real)]
    text = "\n\n".join(parts) + f"\n{END}"
    target = sections.beside(PAGE)
    page = target.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    target.write_text(before + text + rest.split(END, 1)[1], encoding="utf-8")
    print(f"{len(runs)} methods; wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
