"""What the vision-language papers claim, and what the runs behind the page say to it, with intervals.

    python benchmarks/vlp_claims.py [--update-docs]

reads what ``kept_runs.py`` keeps of ``results_vlp.py``, and rewrites the section "claims" of the page.
A claim is a difference of two methods with the same seeds, hence the same records, division and batches. The
interval is Student's, 95 %, over those differences. A claim is *shown* where it lies on the claim's side of
zero, *refuted* where it lies on the other, and *open* otherwise, or where seeds are too few or all equal for
an interval.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
Seeds are taken as many as there was time for, whatever they show; the runs are in [runs](runs), a line each.
Claims with tables of their own: [the papers' regime](#in-the-papers-regime),
[GLoRIA and MGCA](#with-glorias-and-mgcas-objectives),
[few labels](#few-labels-on-the-features-that-training-reads),
[real pairs: MedPix and photographs](#on-top-of-public-encoders).

Synthetic chest images, encoders pretrained on others of their kind:"""


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
_FINDINGS, _PNEUMONIA = "findings_path_10", "pneumonia_path_1"
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
        "FedDRA, Table 8",
        "radius 0.1 above 0.01, findings with a tenth of the labels",
        "feddra-rho-01",
        "feddra",
        _FINDINGS,
    ),
    Claim(
        "FedDRA, Table 8",
        "radius 0.1 above 0.01, pneumonia with a hundredth of the labels",
        "feddra-rho-01",
        "feddra",
        _PNEUMONIA,
    ),
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
    Claim(
        "FedRGB, Table 4",
        "the same, findings with a tenth of the labels",
        "fedrgb-sum-1",
        "fedrgb-averaged",
        _FINDINGS,
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
        "FedRGB, Table 15",
        "guidance 5 below 1, R@1",
        "fedrgb-sum-5",
        "fedrgb-sum-1",
        _R1,
        -1,
    ),
    Claim(
        "FedRGB, Table 15",
        "guidance 5 above 1, worst hospital",
        "fedrgb-sum-5",
        "fedrgb-sum-1",
        _WORST,
    ),
    Claim(
        "FedRGB, Table 15",
        "the same, worst hospital by R@1 / ceiling, one mixture",
        "fedrgb-sum-5",
        "fedrgb-sum-1",
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
    *(
        Claim("FedDRA and FedRGB, Table 2", f"{title} below FedAvg, R@1", name, "fedavg", _R1, -1)
        for name, title in _BASELINES.items()
    ),
)


def table(found: Found) -> str:
    """A line per claim."""
    lines = []
    for claim in CLAIMS:
        mine, its = (
            found.get((SYNTHETIC, f"{name}-pretrained"), {}) for name in (claim.method, claim.beside)
        )
        gaps = kept_runs.differences(mine, its, claim.score)
        over = kept_runs.OverSeeds.of([claim.scale * gap for gap in gaps])
        effect, state = over.verdict(claim.sign, 1 if claim.scale > 1 else 3)
        beside = f"`{claim.method}` less `{claim.beside}`"
        lines.append([claim.paper, claim.text, state, effect, str(over.seeds), beside])
    return sections.table(["paper", "claim", "state", "effect", "seeds", "runs"], lines)


def main() -> int:
    runs = kept_runs.by_place(kept_runs.kept(f"vlp-{SYNTHETIC}"))
    text = f"{BEGIN}\n{_HEAD}\n\n{table(runs)}\n{END}"
    target = sections.beside(PAGE)
    page = target.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    target.write_text(before + text + rest.split(END, 1)[1], encoding="utf-8")
    print(f"{len(runs)} methods; wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
