"""Sections of docs/benchmarks.md: each benchmark rewrites its own and leaves the others.

Tracked pages are rewritten only with ``--update-docs``; without it, a copy in ``runs/bench`` is.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

from secfed.runs.machine import processor
from secfed.terminal.text_table import TextTable

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "docs" / "figures"

COPIES = ROOT / "runs" / "bench"

UPDATE_DOCS = "--update-docs" in sys.argv
if UPDATE_DOCS:  # for no script's own parser
    sys.argv.remove("--update-docs")

_HEAD = """# Benchmarks

Every number here was printed by the command above its table; `make bench ARGS=--update-docs` runs them
all and rewrites this page. Seconds depend on the machine and on what else it is doing; the ratios were
measured within one run.
"""


def beside(tracked: Path) -> Path:
    """The tracked file itself with ``--update-docs``, else its copy, which begins as the tracked one is."""
    if UPDATE_DOCS or not tracked.is_relative_to(ROOT):
        return tracked
    copy = COPIES / tracked.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if tracked.exists() and not copy.exists():
        shutil.copyfile(tracked, copy)
    return copy


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = f"{os.cpu_count()} cores"
    return f"Measured on: {processor()}, {cores}, {memory:.0f} GiB, Python {platform.python_version()}."


def write(name: str, title: str, text: str) -> None:
    """Replace (or append) the section ``name``."""
    target = beside(PAGE)
    page = target.read_text(encoding="utf-8") if target.exists() else _HEAD
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n## {title}\n\n{machine()}\n\n{text.strip()}\n{end}"
    if begin in page:
        before, rest = page.split(begin, 1)
        page = before + section + rest.split(end, 1)[1]
    else:
        page = page.rstrip() + "\n\n" + section + "\n"
    target.write_text(page, encoding="utf-8")
    print(f"wrote {target}")


def written_by_people(page: Path, name: str = "reading") -> str:
    """A part of a page of results that people write; it stays as it is when the page is rewritten."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    inside = old.split(begin, 1)[1].split(end, 1)[0].strip("\n") if begin in old and end in old else ""
    return f"{begin}\n{inside}\n{end}" if inside or name == "reading" else ""


def rows(page: Path, title: str) -> list[list[str]]:
    """The cells of the first table under a heading of a page, without its head; none if there is none."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    if f"## {title}\n" not in old:
        return []
    section = old.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    from_table = dropwhile(lambda line: not line.startswith("|"), section)
    lines = list(takewhile(lambda line: line.startswith("|"), from_table))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def table(columns: list[str], rows: list[list[str]]) -> str:
    return TextTable(columns, rows, numbers_from=len(columns)).markdown()


def write_page(page: Path, parts: Sequence[str]) -> Path:
    """A page of results from its parts, those that are empty left out."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(part.strip("\n") for part in parts if part) + "\n", encoding="utf-8")
    return page
