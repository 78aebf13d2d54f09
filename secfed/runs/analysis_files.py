"""What ``secfed analyse`` writes: analysis.json, a page by itself, and a CSV file for each table."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from secfed.algorithms.statistics.report import as_json
from secfed.algorithms.statistics.results import Cell, Reported, ResultTable
from secfed.runs.analysis_forest import forest
from secfed.runs.analysis_svg import axes
from secfed.storage.atomic import write_atomic

ANALYSIS_FILE: Final = "analysis.json"
ANALYSIS_PAGE: Final = "analysis.html"
_SMALLEST_P: Final = 1e-4
_NUMBERS: Final = re.compile(r"[-+][-+0-9.e %,()\[\]]*")  # such as "-1.5 (0.2)": no formula of use

_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; width: max-content; max-width: 90vw; }
th, td { padding: .15rem .8rem .15rem 0; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; max-width: 44rem; }
.faint { opacity: .75; }
.withheld { border-left: 4px solid #d55e00; padding-left: .8rem; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def write_analysis(folder: Path, study: str, reported: Sequence[Reported], sites: int) -> None:
    """Write everything into a folder."""
    write_atomic(folder / ANALYSIS_FILE, analysis_json(reported).encode())
    write_atomic(folder / ANALYSIS_PAGE, page(study, reported, sites).encode())
    for one in reported:
        for number, table in enumerate(one.result.tables, start=1):
            write_atomic(folder / f"{one.name}-{number}.csv", csv_of(table).encode())


def analysis_json(reported: Sequence[Reported]) -> str:
    """The text of analysis.json."""
    return json.dumps(as_json(reported), indent=2) + "\n"


def covered(one: Reported, sites: int) -> str:
    """Which hospitals the numbers stand for, in one sentence."""
    if not one.hospitals:
        return "No sum of it came about."
    text = f"{len(one.hospitals)} of {sites} hospitals: {', '.join(one.hospitals)}."
    if one.changed:
        return text + " Others took part in an earlier step; the numbers are of these only."
    return text


def shown(cell: Cell, column: str = "") -> str:
    """A cell as people read it; digits of a very small p say nothing."""
    if column == "p" and isinstance(cell, float) and cell < _SMALLEST_P:
        return f"<{_SMALLEST_P:.4f}"
    if cell is None:
        return "withheld"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or math.isnan(cell):
        return str(cell)
    if cell != 0 and not 1e-4 <= abs(cell) < 1e6:
        return f"{cell:.3g}"
    return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:.0f}"


def page(study: str, reported: Sequence[Reported], sites: int) -> str:
    """One HTML page without a script and without a reference to anything outside it."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escape(study)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(study)}</h1>",
    ]
    for one in reported:
        parts.append(f"<h2>{escape(one.name)} <small class='faint'>{escape(one.kind)}</small></h2>")
        parts.append(f"<p class='faint'>{escape(covered(one, sites))}</p>")
        if one.withheld is not None:
            parts.append(f"<p class='withheld'>Withheld: {escape(one.withheld)}.</p>")
        parts += [_table(table) for table in one.result.tables]
        parts += [forest(drawn) if drawn.kind == "forest" else axes(drawn) for drawn in one.result.figures]
        parts += [f"<p class='faint'>{escape(note)}</p>" for note in one.result.notes]
    return "\n".join(map(_printable, "\n".join([*parts, "</body></html>\n"]).split("\n")))


def _table(table: ResultTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{escape(shown(*cell))}</td>" for cell in zip(row, table.columns, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>{rows}</table>"


def csv_of(table: ResultTable) -> str:
    """A table as a CSV file; a spreadsheet takes no text in it for a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv_cell, table.columns))
    writer.writerows(map(_csv_cell, row) for row in table.rows)
    return out.getvalue()


def _csv_cell(cell: Cell) -> str | float:
    if cell is None or cell != cell:
        return ""
    if not isinstance(cell, str):
        return cell
    text = _printable(cell)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and not _NUMBERS.fullmatch(text) else text


def _printable(text: str) -> str:
    """Text of a study without control characters, which a terminal or another program could act on."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
