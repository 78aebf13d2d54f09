"""``secfed init``: from a table to a study, a proposed policy, and a first look at the records."""

from __future__ import annotations

import os
import re
import shlex
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from secfed.cli.asking import someone_is_there
from secfed.deploy.pki.names import check_site_name
from secfed.errors import ConfigError, DataError
from secfed.storage import private_files
from secfed.terminal.consoles import plain_text, plural, stdout
from secfed.terminal.tables import first_that_fits, new_table

_MOST_CLASSES: Final = 20
_MOST_ROWS: Final = 1_000_000  # all are looked at: for hospitals, labels, numeric columns and delta
_FEWEST_NUMBERED: Final = 10  # records; fewer have other numbers by chance
_MOST_NAMED: Final = 50  # features
_FEW: Final = 0.1  # of a column's values: more are no slips of the pen


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
    table: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="The records.", show_default=False)
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What is predicted.", show_default=False)
    ] = None,
    site_column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Which hospital a record is of; without it they are simulated."),
    ] = None,
    sites: Annotated[int, typer.Option(min=3, help="Simulated hospitals, without --site-column.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Training rounds.")] = 20,
    epsilon: Annotated[
        float | None, typer.Option(help="Differential privacy for every record; without it, none.")
    ] = None,
    purpose: Annotated[str, typer.Option(help="What the study is for, in a sentence.")] = "",
) -> None:
    """Write study.toml and policy.toml for a table, and show what was found in it. Asks for what is missing.

    [bold]Example:[/] secfed init heart --table heart.csv --label num --site-column hospital --epsilon 3
    """
    table = Path(_asked(table, "--table", "Which CSV file holds the records?"))
    lines, found = _read(table)
    columns = list(found)
    label = str(_asked(label, "--label", f"Which column is predicted ({', '.join(columns)})?"))
    for option, column in (("--label", label), ("--site-column", site_column)):
        if column is not None and column not in columns:
            remedy = f"columns: {', '.join(columns)}"
            raise ConfigError(f"{option} {column}: {table} has no such column", remedy=remedy)
    others = {name: _no_numbers(found[name]) for name in columns if name not in (label, site_column)}
    features = [name for name, at in others.items() if not at]
    tables: dict[str, Any] = {
        "study": {"name": _name(folder), "rounds": rounds, **({"purpose": purpose} if purpose else {})},
        "algorithm": {"name": "fedavg", "weighting": "equal"},
        "model": {"name": "mlp", "hidden": [16]},
        "data": _data(table, label, features, found, site_column, sites),
        "protection": {"name": "masked"},
    }
    if epsilon is not None:
        # Below 1 / records: otherwise a record may be published outright with that probability.
        delta = float(f"{0.1 / len(lines):.0e}")
        tables["privacy"] = {"unit": "record", "epsilon": epsilon, "delta": delta, "clip_norm": 1.0}
        # Statistics of the records would let one of them change all others; public constants replace these.
        scale = {name: [0.0, 1.0] for name in features}
        tables["data"] |= {"standardize": False, "impute": "centre", "scale": scale}
    left_out = [name for name in columns if name not in (*features, label, site_column)]
    _write(folder, tables, left_out)
    for name, at in others.items():
        if 0 < len(at) <= len(lines) * _FEW:
            told = f"{name}: is left out for {plural(len(at), 'value')} that cannot be read as a number, the"
            _warn(f"{told} first in line {lines[at[0]]}. Correct it, or name it in data.missing_values.")
    for name in tables["data"]["sites"] if site_column is not None else ():
        try:
            check_site_name(name)
        except ConfigError as error:
            _warn(f"{error.message} where hospitals enrol: {error.remedy}. A simulation takes it.")
    for name in features:
        if _may_be_an_id(found[name]):
            told = f"{name}: is another whole number in every record. If it is an identifier, remove it from"
            _warn(f"{told} feature_columns in study.toml.")


def _warn(told: str) -> None:
    stdout().print(Text(plain_text(told), style="yellow"))


def _asked(given: object, option: str, question: str) -> Any:
    if given is not None:
        return given
    if not someone_is_there():
        raise ConfigError(f"{option}: is missing, and nobody is there to ask", remedy=f"add {option}")
    return typer.prompt(question, err=True)


def _read(table: Path) -> tuple[list[int], dict[str, list[str]]]:
    """The lines of a table at which records begin, and its columns."""
    from secfed.algorithms.data.table_lines import csv_rows

    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            header, numbered = csv_rows(stream, table.name)
            rows = list(islice(numbered, _MOST_ROWS + 1))
    except UnicodeDecodeError:
        raise DataError(f"{table} is not a UTF-8 CSV table", remedy="save it as one") from None
    except OSError as error:
        raise DataError(f"{table}: cannot be read ({error.strerror})", remedy="name a CSV file") from None
    if len(rows) > _MOST_ROWS:
        raise DataError(
            f"{table}: has more than {_MOST_ROWS:,} records",
            remedy="write the study file by hand (docs/studies.md), with delta well below 1 / records",
        )
    if not rows:
        raise DataError(f"{table}: has no records", remedy="it needs a line of column names, and records")
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{table} has the column {name!r} twice", remedy="rename one")
    columns = zip(*(cells for _, cells in rows), strict=True)
    found = {name: [cell.strip() for cell in cells] for name, cells in zip(header, columns, strict=True)}
    return [line for line, _ in rows], found


def _no_numbers(values: list[str]) -> list[int]:
    """Where a value is neither a number nor missing; everywhere, if all are missing."""
    from secfed.algorithms.data.tabular.options import ALWAYS_MISSING, number_of

    wrong, numbers = [], 0
    for at, value in enumerate(values):
        if value.lower() not in ALWAYS_MISSING:
            try:
                number_of(value)
                numbers += 1
            except ValueError:
                wrong.append(at)
    return wrong if numbers else list(range(len(values)))


def _may_be_an_id(values: list[str]) -> bool:
    return len(set(values)) == len(values) >= _FEWEST_NUMBERED and all(
        re.fullmatch(r"[+-]?[0-9]+", value) for value in values
    )


def _data(
    table: Path,
    label: str,
    features: list[str],
    found: dict[str, list[str]],
    site_column: str | None,
    sites: int,
) -> dict[str, Any]:
    labels = sorted({value for value in found[label] if value})
    if not 2 <= len(labels) <= _MOST_CLASSES:
        message = f"--label {label}: has {plural(len(labels), 'value')}, and 2 to {_MOST_CLASSES} are classes"
        raise ConfigError(
            message, remedy="name a column with classes; a study file can divide numbers in two"
        )
    if site_column is None:
        parted: dict[str, Any] = {"partition": "iid", "sites": sites}
    else:
        names = sorted(set(found[site_column]))
        if not all(1 <= len(name.encode()) <= 200 for name in names):
            raise DataError(
                f"--site-column {site_column}: some records name no hospital, or one of more than 200 bytes",
                remedy="fill it in, or remove those records",
            )
        parted = {"site_column": site_column, "sites": names}
    return {
        "name": "csv",
        "path": str(table.resolve()),
        "label_column": label,
        "labels": labels,
        "feature_columns": features,
        **parted,
    }


def _name(folder: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:63] or "study"


def _write(folder: Path, tables: dict[str, Any], left_out: list[str]) -> None:
    import tomli_w

    from secfed.deploy.policy.proposal import in_short, proposal
    from secfed.study.study import Study

    counts = _counts(Study.parse(tomli_w.dumps(tables)))  # what does not load is not worth a study
    private_files.make_private_folder(folder)
    tables["data"]["path"] = os.path.relpath(tables["data"]["path"], folder.resolve())
    private_files.create(folder / "study.toml", in_short(tomli_w.dumps(tables)).encode())
    policy = proposal(Study.load(folder / "study.toml"))
    private_files.create(folder / "policy.toml", policy.encode())
    console, shown = stdout(), new_table("Hospital", "Training", "Held out", numbers=("Training", "Held out"))
    for site, (training, held_out) in counts.items():
        shown.add_row(plain_text(site), f"{training:,}", f"{held_out:,}")
    console.print(first_that_fits(console, [shown]))
    data = tables["data"]
    names, classes = data["feature_columns"], len(data["labels"])
    console.print(Text(f"{plural(len(names), 'feature')}, {classes} classes."))
    console.print(Text(plain_text(f"Features: {_named(names)}.")))
    if left_out:
        told = f"Left out: {_named(left_out)}. Such columns need data.categorical, or --site-column."
        console.print(Text(plain_text(told), style="yellow"))
    if "scale" in data:
        told = (
            "Write the usual centre and spread of every column into data.scale: they are public, and must not"
        )
        console.print(Text(f"{told} come from these records.", style="yellow"))
    typer.echo(f"Wrote {folder / 'study.toml'}, and {folder / 'policy.toml'} for a hospital that permits it.")
    again = shlex.join(["secfed", "policy", "from", str(folder / "study.toml")])
    typer.echo(f"Whoever changes study.toml makes the policy again, which permits nothing else: {again}")
    command = ["secfed", "simulate", str(folder / "study.toml"), "--out", str(folder / "run")]
    typer.echo(f"Next: {shlex.join(command)}")


def _named(columns: list[str]) -> str:
    rest = f" and {len(columns) - _MOST_NAMED} more" if len(columns) > _MOST_NAMED else ""
    return f"{', '.join(columns[:_MOST_NAMED]) or 'none'}{rest}"


def _counts(study: Any) -> dict[str, tuple[int, int]]:
    """Records of every hospital, loaded and checked as for training."""
    from secfed.study.build import build_data

    data: Any = build_data(study)
    found = {site: data.site(site) for site in data.sites}
    return {site: (len(one.train_y), len(one.test_y)) for site, one in found.items()}
