"""FMCSC in the paper's configuration, and docs/results/fmcsc.md.

    python benchmarks/results_fmcsc.py [--set NAME]... [--ratio 1:1]... [--variant NAME]... [--jobs 2]

Every run is a study of its own process of one thread (20 to 40 minutes, 5 GB) and leaves one JSON file
in the folder RUNS (default ``runs/fmcsc``); what is there already, with the same study, is not repeated. The
page is written from the files, also after an interruption; what people wrote on it stays, and so does a row
of which the page has more seeds than the folder has files. Without --variant, only the runs of the paper's
Table 1.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import comparison
import fmcsc_runs
import sections
from comparison import mean_and_spread
from fmcsc_runs import PUBLIC, RATIOS, SETS, VARIANTS

from secfed.algorithms.data.folders import data_folder
from secfed.sweep.jobs import Job

Run = dict[str, Any]

_RATIOS = "The paper's Table 1"
_ABLATIONS = "Ablations, 1:1 (the paper's Table 2)"
_PARTICIPATION = "Participation, 1:1 (the paper's Table 3)"
_COURSE = "ACC after each main round, 1:1"

_PAGE = sections.ROOT / "docs" / "results" / "fmcsc.md"
_HEAD = """# FMCSC: what was measured

Federated multi-view clustering ([algorithms/fmcsc/algorithm.py](../../algorithms/fmcsc/algorithm.py)),
everything by
sums. ACC, NMI and ARI in percent after the last round, from the summed contingency table, over the records
of all hospitals; mean and standard deviation over seeds, minutes of one process of one thread, and the
paper's mean over five runs, which were trained one hospital after the other. A seed decides the division of
the records, the view of every hospital with one view, the initial model and the starts of k-means.

The study files are plain, with `small_kinds = "summed"`: where fewer than three hospitals hold the same
views, masked sums leave them out ([ADR 058](../adr/058-parts-by-kind.md)).

    python benchmarks/results_fmcsc.py --jobs 2
"""


def main() -> int:
    parser = comparison.arguments(__doc__, "runs/fmcsc")
    parser.add_argument("--set", action="append", choices=tuple(SETS), help="only this data set")
    parser.add_argument("--ratio", action="append", choices=RATIOS, help="only this ratio")
    parser.add_argument("--variant", action="append", choices=tuple(VARIANTS), help="at 1:1, unless given")
    asked = parser.parse_args()
    runs = Path(asked.runs).resolve()
    if asked.one:
        dataset, ratio, variant, seed = asked.one
        out = _file(runs, dataset, ratio, variant, int(seed))
        fmcsc_runs.run_one(dataset, ratio, variant, int(seed), out)
        return 0
    return comparison.run_missing(asked, _jobs(asked, runs), lambda: _write(runs))


def _jobs(asked: Any, runs: Path) -> Iterator[Job]:
    """What is missing, seed by seed, so that an interrupted comparison has whole seeds."""
    needs = {name: facts.needs for name, facts in SETS.items()}
    sets = list(comparison.available(asked.set or SETS, needs, data_folder()))
    for seed in asked.seeds:
        for dataset in sets:
            for variant in asked.variant or (PUBLIC,):
                for ratio in asked.ratio or (RATIOS if variant == PUBLIC else ("1:1",)):
                    one = (dataset, ratio, variant, seed)
                    out = _file(runs, *one)
                    if not comparison.is_done(out, fmcsc_runs.study_id_of(*one)):
                        yield comparison.one_run(__file__, runs, [*map(str, one)], out)


def _file(runs: Path, dataset: str, ratio: str, variant: str, seed: int) -> Path:
    return runs / dataset / f"{variant}-{ratio.replace(':', '-')}-seed-{seed}.json"


def _load(runs: Path, dataset: str, ratio: str, variant: str) -> list[Run]:
    files = sorted((runs / dataset).glob(f"{variant}-{ratio.replace(':', '-')}-seed-*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _write(runs: Path) -> Path:
    by_people = [sections.written_by_people(_PAGE, name) for name in ("reading", "epsilon")]
    parts = [_HEAD, sections.machine(), *by_people]
    for title, table in (
        (_RATIOS, _ratios(runs)),
        (_ABLATIONS, _ablations(runs)),
        (_PARTICIPATION, _participation(runs)),
        (_COURSE, _course(runs)),
    ):
        if table:
            parts += [f"## {title}", table]
    return sections.write_page(_PAGE, parts)


def _ratios(runs: Path) -> str:
    rows = []
    for dataset, facts in SETS.items():
        for ratio in RATIOS:
            found = _load(runs, dataset, ratio, PUBLIC)
            cells = [*_scores(found), _triple(facts.paper[ratio]), *_cost(found)] if found else []
            rows.append([facts.title, ratio, *cells])
    columns = ["set", "multi : single view", "ACC", "NMI", "ARI", "paper", "seeds", "main rounds", "minutes"]
    return _table(_RATIOS, columns, rows)


def _ablations(runs: Path) -> str:
    rows = []
    for dataset, facts in SETS.items():
        for variant, what in VARIANTS.items():
            if what.table != "participation":
                found, paper = _load(runs, dataset, "1:1", variant), facts.ablation.get(variant)
                cells = [*_scores(found), _triple(paper) if paper else "-", *_cost(found)] if found else []
                rows.append([dataset, what.title, *cells])
    columns = ["set", "variant", "ACC", "NMI", "ARI", "paper", "seeds", "main rounds", "minutes"]
    only_public = all(len(row) == 2 or row[1] == VARIANTS[PUBLIC].title for row in rows)
    return "" if only_public and not sections.rows(_PAGE, _ABLATIONS) else _table(_ABLATIONS, columns, rows)


def _participation(runs: Path) -> str:
    rows = []
    for dataset, facts in SETS.items():
        for variant, paper in facts.participation.items():
            found = _load(runs, dataset, "1:1", variant)
            accuracies = [_cell(found, "participating_acc"), _cell(found, "others_acc")]
            cells = [*accuracies, f"{paper[0]} {paper[1]}", str(len(found))] if found else []
            rows.append([dataset, VARIANTS[variant].title, *cells])
    columns = ["set", "", "ACC, taking part", "ACC, others", "paper", "seeds"]
    return _table(_PARTICIPATION, columns, rows)


def _table(title: str, columns: list[str], made: Sequence[list[str]]) -> str:
    """A table of means; a row that the page has with more seeds stays as it is.

    The first two columns tell the rows apart, and one is "seeds"; without a file, a row has only these two.
    """
    seeds = columns.index("seeds")
    old = {tuple(row[:2]): row for row in sections.rows(_PAGE, title)}
    rows = []
    for row in made:
        before, new = old.get((row[0], row[1])), row if len(row) > 2 else None
        if before and (new is None or int(before[seeds]) > int(new[seeds])):
            new = before
        if new:
            rows.append(new)
    return sections.table(columns, rows) if rows else ""


def _course(runs: Path) -> str:
    """Accuracy by main round, a row per run: what more rounds do. Runs that only the page has stay."""
    old = sections.rows(_PAGE, _COURSE)
    rows = []
    for dataset in SETS:
        for variant in (PUBLIC, "mi"):
            weights = VARIANTS[variant].title
            before = [row for row in old if row[:2] == [dataset, weights]]
            new = []
            for at, run in enumerate(_load(runs, dataset, "1:1", variant), start=1):
                scored = [(int(number), found) for number, found in run["rounds"].items() if "acc" in found]
                accuracies = " ".join(f"{100 * found['acc']:.1f}" for _, found in sorted(scored))
                new.append([dataset, weights, str(at), accuracies])
            rows += max(new, before, key=len)
    return sections.table(["set", "weights", "run", "ACC"], rows) if rows else ""


def _scores(found: Sequence[Run]) -> list[str]:
    return [_cell(found, name) for name in ("acc", "nmi", "ari")]


def _cell(found: Sequence[Run], name: str) -> str:
    return mean_and_spread(run["final"].get(name) for run in found)


def _cost(found: Sequence[Run]) -> list[str]:
    main = {sum("acc" in metrics for metrics in run["rounds"].values()) for run in found}
    minutes = statistics.fmean(run["wall_s"] for run in found) / 60
    return [str(len(found)), " or ".join(map(str, sorted(main))), f"{minutes:.0f}"]


def _triple(scores: Sequence[float]) -> str:
    return " ".join(f"{score:.1f}" for score in scores)


if __name__ == "__main__":
    sys.exit(main())
