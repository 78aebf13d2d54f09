"""What the vision-language papers claim, and what runs of ``results_vlp.py`` say to it, with intervals.

    python benchmarks/vlp_claims.py [RUNS] [SWEEP] [--update-docs]

reads the JSON files of RUNS (default ``runs/vlp/chest-synthetic``) and the table of SWEEP (default
``runs/vlp-medpix-towers``), where it is, and rewrites the section "claims" of docs/results/vlp.md. A claim is
a difference of two methods with the same seeds, hence the same records, division and batches. The interval is
Student's, 95 %, over those differences. A claim is *shown* where it lies on the claim's side of zero,
*refuted* where it lies on the other, and *open* otherwise, or where seeds are too few or all equal for an
interval.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sections
from scipy.stats import t as student

Run = dict[str, Any]
PAGE = sections.ROOT / "docs" / "results" / "vlp.md"
BEGIN, END = "<!-- begin claims -->", "<!-- end claims -->"
_HEAD = f"""## Claims

    python {Path(__file__).resolve().relative_to(sections.ROOT)} --update-docs

Each line is a difference of two methods with the same seeds: its mean and its 95 % interval over seeds
(Student's, of paired differences). **Shown**: the interval lies on the claim's side of zero; **refuted**: on
the other; **open**: it contains zero, or there are fewer than three seeds, or all agree to the last held-out
pair, which says nothing of how far others lie. Every line is for itself, uncorrected for how many there are.

Synthetic chest images, encoders pretrained on others of their kind:"""
_HEAD_OF_SWEEP = (
    "[MedPix on top of public encoders](#on-top-of-public-encoders), which saw no CT or MR image:"
)


def _score(key: str) -> Callable[[Run], float | None]:
    return lambda run: run["scores"].get(key)


def _entry(key: str) -> Callable[[Run], float | None]:
    return lambda run: run.get(key)


@dataclass(frozen=True)
class Claim:
    """``method`` is better than ``beside`` by ``score``; ``sign`` is -1 where smaller is better."""

    paper: str
    text: str
    method: str
    beside: str
    score: Callable[[Run], float | None]
    sign: int = 1
    scale: float = 100.0  # points; 1 leaves the number as it is


_FEWEST = 3  # with two seeds a chance agreement makes an interval of any width
_EQUAL = 1e-9
_R1, _WORST = _score("recall_at_1"), _score("worst_at_1")
_EVEN = _score("common_relative_disparity")
CLAIMS = (
    Claim("FedDRA, Table 2", "above FedAvg, R@1; mu = 5 on the mean, as coded", "feddra", "fedavg", _R1),
    Claim("FedDRA, Table 2", "the same above FedAvg with heads first", "feddra", "fedavg-heads-share", _R1),
    Claim("FedDRA, Table 2", "above FedAvg, R@1; the paper's mu = 5", "feddra-sum-5", "fedavg", _R1),
    Claim("FedDRA, Table 2", "above FedAvg, worst hospital; mu = 5", "feddra-sum-5", "fedavg", _WORST),
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
        "FedDRA, Table 3",
        "a stage of alignment in every round helps FedAvg, R@1",
        "fedavg-heads-each-share",
        "fedavg-heads-share",
        _R1,
    ),
    Claim("FedDRA, Table 3", "the constraint (mu = 5) helps, R@1", "feddra-sum-5", "feddra", _R1),
    Claim(
        "FedDRA, Table 3",
        "robust weights from the excess lift the worst hospital",
        "feddra-excess",
        "feddra",
        _WORST,
    ),
    Claim(
        "FedDRA, Table 3",
        "robust weights from the excess make hospitals more equal (R@1 / ceiling, one mixture)",
        "feddra-excess",
        "feddra",
        _EVEN,
        -1,
    ),
    Claim(
        "FedRGB, Table 2",
        "above FedAvg with as many steps (80), R@1",
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
        "FedRGB, Table 11",
        "less distortion by a round of its own at one hospital than FedAvg (the paper: 0.6 of it)",
        "fedrgb-sum-1",
        "fedavg",
        _entry("distortion_own"),
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
)


def differences(claim: Claim, found: dict[str, dict[int, Run]]) -> list[float]:
    """One per seed that both methods have, in the units of the table."""
    mine, its = (found.get(f"{name}-pretrained", {}) for name in (claim.method, claim.beside))
    pairs = [(claim.score(mine[seed]), claim.score(its[seed])) for seed in sorted(set(mine) & set(its))]
    return [claim.scale * (one - other) for one, other in pairs if one is not None and other is not None]


def verdict(gaps: list[float], sign: int, digits: int = 1) -> tuple[str, str]:
    """The difference with its interval, and what follows for a claim that it is positive (``sign`` 1)."""
    if not gaps:
        return "-", "open"
    mean = statistics.fmean(gaps)
    if len(gaps) < _FEWEST or statistics.stdev(gaps) < _EQUAL:
        return f"{mean:+.{digits}f}", "open"
    half = float(student.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / len(gaps) ** 0.5
    low, high = sorted((sign * (mean - half), sign * (mean + half)))
    state = "**shown**" if low > 0 else "**refuted**" if high < 0 else "open"
    return f"{mean:+.{digits}f} ({mean - half:+.{digits}f} to {mean + half:+.{digits}f})", state


def table(found: dict[str, dict[int, Run]]) -> str:
    lines = []
    for claim in CLAIMS:
        gaps = differences(claim, found)
        effect, state = verdict(gaps, claim.sign, 1 if claim.scale > 1 else 3)
        beside = f"`{claim.method}` less `{claim.beside}`"
        lines.append([claim.paper, claim.text, state, effect, str(len(gaps)), beside])
    return sections.table(["paper", "claim", "state", "effect", "seeds", "runs"], lines)


def table_of_sweep(path: Path) -> str:
    """The methods of a sweep less its FedAvg, in every panel; nothing where it was not run."""
    if not path.is_file():
        return ""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["status"] == "done":
                found.setdefault((row["panel"], row["variant"]), {})[row["seed"]] = row
    lines = []
    for (panel, variant), runs in found.items():
        beside = found.get((panel, "fedavg"), {})
        for score, name in (("recall_at_1", "R@1"), ("recall_at_5", "R@5")):
            gaps = [
                100 * (float(runs[seed][score]) - float(beside[seed][score]))
                for seed in sorted(set(runs) & set(beside))
            ]
            if variant != "fedavg" and gaps:
                effect, state = verdict(gaps, 1)
                lines.append([panel, f"`{variant}` above FedAvg, {name}", state, effect, str(len(gaps))])
    return sections.table(["shift", "claim", "state", "effect", "seeds"], lines) if lines else ""


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/vlp/chest-synthetic")
    found: dict[str, dict[int, Run]] = {}
    for path in sorted(folder.glob("*-pretrained-seed-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(run["method"], {})[run["seed"]] = run
    sweep = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/vlp-medpix-towers")
    real = table_of_sweep(sweep / "results.csv")
    parts = [BEGIN + "\n" + _HEAD, table(found), *([_HEAD_OF_SWEEP, real] if real else [])]
    text = "\n\n".join(parts) + f"\n{END}"
    target = sections.beside(PAGE)
    page = target.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    target.write_text(before + text + rest.split(END, 1)[1], encoding="utf-8")
    print(f"{len(found)} methods; wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
