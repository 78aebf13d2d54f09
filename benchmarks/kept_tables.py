"""Tables of kept runs in the pages of results, written from the runs, so that the two cannot differ.

    python benchmarks/kept_tables.py [--update-docs]

A page marks where one stands, what it is of, which differences to one variant it has, and of which variants,
if not of all:

    <!-- kept vlp-flickr-towers: recall_at_1 recall_at_5; less fedavg: recall_at_1; of fedavg fedrgb -->
    <!-- end kept -->

With ``; across`` at the end there is a table per score, a line per panel and a column per variant. Labels
and their order are those of ``examples/NAME.toml``. What is in no sweep file has its name.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from typing import Final

import kept_runs
import sections
import vlp_drift
import vlp_runs
import vlp_similarity
from comparison import mean_and_spread
from kept_runs import OverSeeds, Place, Row

from secfed.sweep.file import SweepFile

PAGES: Final = sections.ROOT / "docs" / "results"
_MARKED: Final = re.compile(
    r"(<!-- kept (?P<name>[\w-]+): (?P<scores>[\w -]+?)"
    r"(; less (?P<beside>[\w-]+): (?P<less>[\w -]+?))?(; of (?P<of>[\w -]+?))?(?P<across>; across)? -->\n)"
    r".*?(?P<end><!-- end kept -->)",
    re.DOTALL,
)
_TITLES: Final = {  # of what no sweep makes
    vlp_drift.NAME: vlp_drift.TITLES,
    vlp_similarity.NAME: vlp_similarity.SHOWN,
    "vlp-chest-synthetic": {name: method.title for name, method in vlp_runs.ALL.items()},
}
_WORDS: Final = {
    "recall_at_1": "R@1",
    "recall_at_5": "R@5",
    "relative_recall_at_1": "R@1 / ceiling",
    "image_to_text_recall_at_1": "image to text",
    "text_to_image_recall_at_1": "text to image",
    "image_accuracy": "images, accuracy",
    "text_accuracy": "texts, accuracy",
    "acc": "ACC",
    "nmi": "NMI",
    "ari": "ARI",
    "participating_acc": "ACC where hospitals train",
    "others_acc": "ACC where they do not",
    "worst_at_1": "worst R@1",
    "common_relative_at_1": "R@1 / ceiling, one mixture",
    "distortion_own": "distortion, own loss, in hundredths",
    "settled": "nine tenths of its rise, after % of the rounds",
    "falls": "falls after that",
    "catching_up": "correlation with the next gain",
    "gap_disparity": "deviation of the gaps",
    "findings_1": "findings, 1 %",
    "findings_path_1": "findings, 1 %",
    "findings_path_10": "findings, 10 %",
    "pneumonia_path_1": "PneumoniaMNIST, 1 %",
    "pneumonia_path_10": "PneumoniaMNIST, 10 %",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    for page in sorted(PAGES.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        if _MARKED.search(old):
            target = sections.beside(page)
            target.write_text(written(old), encoding="utf-8")
            print(f"wrote {target}")
    return 0


def written(page: str) -> str:
    """A page with every marked table as the kept runs have it."""
    return _MARKED.sub(_table, page)


def _table(found: re.Match[str]) -> str:
    scores, less = found["scores"].split(), (found["less"] or "").split()
    write = across if found["across"] else table
    text = write(found["name"], scores, found["beside"] or "", less, (found["of"] or "").split())
    return f"{found[1]}{text}\n{found['end']}"


def table(name: str, scores: list[str], beside: str, less: list[str], of: list[str]) -> str:
    """A line per panel and variant; differences are paired over seeds, with where the interval lies."""
    runs = kept_runs.by_place(kept_runs.kept(name))
    panels, variants = _labels(name, runs)
    if of:
        variants = {variant: variants[variant] for variant in of}
    head = ["", "method"] if len(panels) > 1 else ["method"]
    head += [word(one) for one in scores]
    head += [f"{word(one)} less {variants[beside]}" for one in less]
    lines = []
    for panel, title in panels.items():
        before = title
        for variant, label in variants.items():
            if (panel, variant) in runs:
                line = _line(runs, (panel, variant), scores, beside, less)
                lines.append([*([before] if len(panels) > 1 else []), label, *line])
                before = ""
    return sections.table([*head, "seeds"], lines)


def across(name: str, scores: list[str], beside: str, less: list[str], of: list[str]) -> str:
    """A table per score, and per difference: a line per panel, a column per variant."""
    runs = kept_runs.by_place(kept_runs.kept(name))
    panels, variants = _labels(name, runs)
    several = {variant for (_, variant), seeds in runs.items() if len(seeds) > 1}  # one seed has no interval
    tables = []
    for at, score in enumerate([*scores, *less]):
        is_less = at >= len(scores)
        shown = [one for one in of or variants if not is_less or (one != beside and one in several)]
        head = f"{word(score)} less {variants[beside]}" if is_less else word(score)
        asked = ([], [score]) if is_less else ([score], [])
        lines = [
            [label, *(_line(runs, (panel, one), asked[0], beside, asked[1])[0] for one in shown)]
            for panel, label in panels.items()
        ]
        tables.append(sections.table([head, *(variants[one] for one in shown)], lines))
    return "\n\n".join(tables)


def _line(
    runs: Mapping[Place, Mapping[int, Row]], place: Place, scores: list[str], beside: str, less: list[str]
) -> list[str]:
    mine = runs.get(place, {})
    line = [mean_and_spread(kept_runs.score(run, name) for run in mine.values()) for name in scores]
    for name in less:
        gaps = kept_runs.differences(mine, runs.get((place[0], beside), {}), name)
        effect = " ".join(OverSeeds.of([100 * gap for gap in gaps]).interval())
        line.append("" if place[1] == beside or not gaps else effect)
    seeds = sum(any(run.get(name) for name in scores) for run in mine.values()) if scores else len(mine)
    return [*line, str(seeds)]


def _labels(name: str, runs: Mapping[Place, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Of panels and variants, in their order."""
    path = sections.ROOT / "examples" / f"{name}.toml"
    panels, variants = {}, dict(_TITLES.get(name, {}))
    if path.is_file():
        sweep = SweepFile.load(path)
        panels = {one.name: one.label for one in sweep.panels}
        variants = {one.name: one.label for one in sweep.variants}
    for panel, variant in runs:
        panels.setdefault(panel, panel)
        variants.setdefault(variant, variant.replace("-", " "))
    return panels, variants


def word(score: str) -> str:
    """How pages and figures call a score."""
    return _WORDS.get(score, score.replace("_", " "))


if __name__ == "__main__":
    sys.exit(main())
