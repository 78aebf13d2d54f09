"""Many simulated hospitals: seconds of a round, and memory of the driver and of a worker, for docs/scale.md.

python benchmarks/bench_scale.py [--quick] [--rounds N] [--draw] [--update-docs]

Every row is a process of its own, so that one row's memory is not another's. What was measured is written to
results/scale.json; ``--draw`` makes tables and figure from that file again and measures nothing. All are
copies in runs/bench/docs; ``--update-docs`` writes those in docs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import sections

EXAMPLE: Final = sections.ROOT / "examples" / "thousand-hospitals.toml"
PAGE: Final = sections.ROOT / "docs" / "scale.md"
MEASURED: Final = sections.ROOT / "docs" / "results" / "scale.json"
FIGURE: Final = sections.FIGURES / "scale.svg"
MOST: Final = 100  # sites that a round asks at most
RECORDS: Final = 100  # of every site
# Hidden layers: 103 210 parameters; 8 860 and 4 088 010 tell apart what grows with what.
LARGE, SMALL, HUGE = [300, 300], [100, 50], [2000, 2000]
ROWS: Final = (
    *((sites, "inline", LARGE) for sites in (10, 100, 1000)),
    *((sites, "processes", LARGE) for sites in (10, 100, 1000)),
    *((sites, "inline", SMALL) for sites in (10, 100)),
    *((sites, "inline", HUGE) for sites in (10, 30)),
)
QUICK_ROWS: Final = ((10, "inline", SMALL), (10, "processes", SMALL), (120, "inline", SMALL))


def measure(sites: int, engine: str, rounds: int, hidden: list[int]) -> dict[str, Any]:
    """One study, in this process."""
    from secfed.engine.options import EngineOptions
    from secfed.runs.run_report import RoundReport, SilentObserver
    from secfed.simulation.simulate import simulate
    from secfed.study.study import Study

    cpu: dict[int, float] = {}  # by the round that had just ended

    class Clock(SilentObserver):
        def started(self, *_: Any) -> None:
            cpu[0] = time.process_time()

        def round_finished(self, report: RoundReport) -> None:
            cpu.setdefault(report.round, time.process_time())  # told again once its metrics are known

    study = Study.load(EXAMPLE).replace("protection.sites_per_round", None)
    for key, value in {
        "study.rounds": rounds,
        "data.sites": sites,
        "data.records": sites * RECORDS,
        "model.hidden": hidden,
        "protection.sites_per_round": MOST if sites > MOST else None,
    }.items():
        study = study if value is None else study.replace(key, value)
    options = EngineOptions("processes", 2) if engine == "processes" else EngineOptions()
    with TemporaryDirectory(prefix="secfed-scale-") as folder:
        began = time.perf_counter()
        report = simulate(study, out=Path(folder), engine=options, observer=Clock())
        total_s = time.perf_counter() - began
    # The first round also imports what only training needs.
    later = report.rounds[1:] or report.rounds
    return {
        "sites": sites,
        "asked": min(sites, MOST),
        "engine": engine,
        "parameters": _parameters(32, *hidden, 10),
        "rounds": rounds,
        "round_s": statistics.median(one.busy_s for one in later),
        "train_s": statistics.median(one.seconds["train"] for one in later),
        "driver_cpu_s": statistics.median(np.diff(list(cpu.values()))[-len(later) :]),
        "total_s": total_s,
        "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "worker_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "up_bytes": later[0].bytes_up_per_site.mean,
        "down_bytes": later[0].bytes_down_per_site.mean,
    }


def _parameters(*widths: int) -> int:
    return sum((before + 1) * after for before, after in pairwise(widths))


def _tables(rows: list[dict[str, Any]], machine: str) -> str:
    shown = [
        [
            f"{row['sites']:,}",
            str(row["asked"]),
            f"{row['parameters']:,}",
            row["engine"],
            f"{row['round_s']:.1f}",
            f"{row['train_s']:.1f}",
            f"{row['driver_cpu_s']:.1f}" if row["driver_cpu_s"] else "",
            f"{row['driver_mib']:.0f}",
            f"{row['worker_mib']:.0f}" if row["engine"] == "processes" else "",
            f"{row['up_bytes'] / 1e6:.2f}",
            f"{row['down_bytes'] / 1e6:.2f}",
        ]
        for row in rows
    ]
    heads = [
        *("hospitals", "asked in a round", "parameters", "engine", "round, s", "of it training, s"),
        *("driver's CPU, s", "driver, MiB", "worker, MiB", "up, MB a site", "down, MB a site"),
    ]
    parts = [f"Measured by `python benchmarks/bench_scale.py`. {machine}", sections.table(heads, shown)]
    return "\n\n".join([*parts, "![seconds of a round over hospitals, and memory](figures/scale.svg)"])


def _figure(rows: list[dict[str, Any]]) -> None:
    """The rows with the network of the text, over hospitals: both engines have three of them."""
    from secfed.runs import figure_style as style  # matplotlib is slow to import

    parameters = _parameters(32, *LARGE, 10)
    with style.styled():
        figure, (seconds, memory) = style.new_figure(2, across=2, width_in=9)
        for colour, engine in zip(style.CYCLE, ("inline", "processes"), strict=False):
            found = [row for row in rows if row["engine"] == engine and row["parameters"] == parameters]
            x = [row["sites"] for row in found]
            for axis, name, line, label in (
                (seconds, "round_s", "o-", "round"),
                (seconds, "train_s", "o:", "of it training"),
                (memory, "driver_mib", "o-", "driver"),
                *([(memory, "worker_mib", "o:", "a worker")] if engine == "processes" else []),
            ):
                y = [row[name] for row in found]
                axis.plot(x, y, line, color=colour, label=f"{engine}: {label}")
        seconds.set_yscale("log")
        seconds.set_title(f"Seconds of a round ({parameters:,} parameters)")
        memory.set_title("MiB at most")
        for axis in (seconds, memory):
            axis.set_xscale("log")
            axis.set_xlabel(f"hospitals (at most {MOST} asked in a round)")
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.legend()
        seconds.yaxis.set_major_formatter("{x:g}")
        memory.set_ylim(bottom=0)
        style.save_svg(figure, sections.beside(FIGURE))


def draw() -> None:
    """Tables and figure from what was measured."""
    found = json.loads(sections.beside(MEASURED).read_text(encoding="utf-8"))
    target = sections.beside(PAGE)
    page = target.read_text(encoding="utf-8")
    begin, end = "<!-- begin scale -->", "<!-- end scale -->"
    before, rest = page.split(begin, 1)
    text = f"{begin}\n{_tables(found['rows'], found['machine'])}\n{end}"
    target.write_text(before + text + rest.split(end, 1)[1], encoding="utf-8")
    _figure(found["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small rows, printed only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(measure(**json.loads(asked.row))))
        return
    if not asked.draw:
        rows = []
        for sites, engine, hidden in QUICK_ROWS if asked.quick else ROWS:
            wanted = {"sites": sites, "engine": engine, "hidden": hidden, "rounds": asked.rounds}
            command = [sys.executable, __file__, "--row", json.dumps(wanted)]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            short = {key: round(one, 2) if isinstance(one, float) else one for key, one in rows[-1].items()}
            print(short, flush=True)
            if not asked.quick:  # row by row: all of them take a while
                found = {"machine": sections.machine(), "rows": rows}
                text = json.dumps(found, indent=1) + "\n"
                sections.beside(MEASURED).write_text(text, encoding="utf-8")
    if not asked.quick:
        draw()


if __name__ == "__main__":
    main()
