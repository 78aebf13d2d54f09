"""Tables of a run, fitted to the width of the terminal. What does not fit is in run.json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from secfed.runs.run_report import (
    CLIPPED,
    PHASES,
    WAIT,
    Comparison,
    Metrics,
    PrivacyReport,
    RoundReport,
    RunReport,
    ordered_metrics,
)
from secfed.terminal.consoles import (
    explain_errors,
    plain_text,
    plural,
    show_bytes,
    show_metric,
    show_number,
    show_seconds,
)

WORTH_TELLING_S = 1.0  # a shorter wait for hospitals is the network's
_MOST_ROWS = 60  # longer runs show their beginning and their end
_MOST_SITES = 24
_MOST_INCIDENTS = 12
_NARROW = 60  # columns of a console in which tables are stacked
_LONG_NAME = 9  # longer metric names are broken at an underscore


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[RoundReport], str]
    rank: int = 0  # columns of the highest rank leave first when space is short


def new_table(*headers: str, numbers: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """An empty table in the one style of the command line.

    Columns of ``numbers`` stand to the right and are never broken; those of ``whole`` are not broken either.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
    several_lines = any("\n" in header for header in headers)
    for header in headers:
        table.add_column(
            header,
            justify="right" if header in numbers else "left",
            no_wrap=header in numbers or header in whole,
            vertical="bottom" if several_lines else "top",
            overflow="fold",
        )
    return table


def first_that_fits(console: Console, tables: Iterable[Table]) -> Table:
    """The first table in which nothing has to be broken or cut on this console, else the last.

    On a very narrow console that one is stacked, a line for each cell: columns would cut names and numbers.
    """
    unlimited = console.options.update(max_width=10_000)
    table = new_table()
    for table in tables:
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            return table
    return table if console.width >= _NARROW else _stacked(table)


def _stacked(table: Table) -> Table:
    """Headers and cells of every row below each other, rows apart from each other."""
    stacked = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=False)
    stacked.add_column(style="bold", overflow="fold", max_width=14)
    stacked.add_column(overflow="fold")
    columns = [
        (str(column.header).replace("\n", " ").strip(), list(column.cells)) for column in table.columns
    ]
    for row in range(table.row_count):
        if row:
            stacked.add_row("", "")
        for header, cells in columns:
            stacked.add_row(header, cells[row])
    return stacked


def round_table(console: Console, rounds: Sequence[RoundReport], *, most_rows: int = _MOST_ROWS) -> Table:
    """One row per round: metrics, survivors, bytes per site, seconds by phase."""
    columns = _columns(rounds)
    ranks = sorted({column.rank for column in columns}, reverse=True)
    narrower = ([column for column in columns if column.rank <= most] for most in ranks)
    return first_that_fits(console, (_filled(rounds, chosen, most_rows) for chosen in narrower))


def _columns(rounds: Sequence[RoundReport]) -> list[_Column]:
    metrics = ordered_metrics(report.metrics for report in rounds)
    waited = any(report.seconds.get(WAIT, 0.0) >= WORTH_TELLING_S for report in rounds)
    return [
        _Column("Round", lambda report: str(report.round)),
        # The first metric always stays.
        *(_metric(name, rank=20 + place if place else 0) for place, name in enumerate(metrics)),
        _Column("Survivors", _survivors),
        _Column("Up/site", lambda report: show_bytes(report.bytes_up_per_site.mean)),
        _Column("Down/site", lambda report: show_bytes(report.bytes_down_per_site.mean), rank=30),
        *([_phase(WAIT, rank=10)] if waited else []),
        *(_phase(phase) for phase in PHASES),
    ]


def _metric(name: str, rank: int) -> _Column:
    return _Column(_heading(name), lambda report: show_metric(report.metrics or {}, name), rank)


def _heading(name: str) -> str:
    """A metric's name, a long one in two lines: ``balanced_`` above ``accuracy``."""
    name = plain_text(name)
    breaks = [at for at, letter in enumerate(name) if letter == "_"]
    if len(name) <= _LONG_NAME or not breaks:
        return name
    middle = min(breaks, key=lambda at: abs(at - len(name) // 2))
    return f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def _phase(phase: str, rank: int = 0) -> _Column:
    return _Column(f"{phase}\ns", lambda report: show_seconds(report.seconds.get(phase, 0.0)), rank)


def _filled(rounds: Sequence[RoundReport], columns: Sequence[_Column], most_rows: int) -> Table:
    headers = [column.header for column in columns]
    table = new_table(*headers, numbers=headers)
    shown: list[RoundReport | None] = list(rounds)
    if len(rounds) > most_rows:
        half = most_rows // 2
        shown = [*rounds[:half], None, *rounds[-half:]]
    for report in shown:
        if report is None:
            table.add_row(*("⋮" for _ in columns), style="dim")
            continue
        style = "red" if report.aborted else "yellow" if len(report.survivors) < len(report.asked) else ""
        table.add_row(*(column.cell(report) for column in columns), style=style)
    return table


def _survivors(report: RoundReport) -> str:
    return "aborted" if report.aborted else f"{len(report.survivors)}/{len(report.asked)}"


def incidents(rounds: Sequence[RoundReport]) -> list[str]:
    """One sentence per round in which a site dropped or a sum was given up."""
    lines = []
    for report in rounds:
        drops = ", ".join(
            f"{plain_text(site)} dropped at {stage}"
            + ("" if report.aborted else " (in the sum)" if site in report.survivors else " (not in the sum)")
            for site, stage in report.drops
        )
        why = f" {plain_text(report.gave_up)}." if report.gave_up else ""
        if report.aborted:
            reason = plain_text(report.aborted).removeprefix(f"round {report.round}, ").rstrip(".")
            lines.append(f"Round {report.round} aborted: {reason}.{f' {drops}.' if drops else ''}{why}")
        elif drops:
            lines.append(f"Round {report.round}: {drops}.{why}")
    return lines


def comparison_table(console: Console, comparison: Comparison) -> Table:
    """The federated model beside the other one, per hospital and on average."""
    metrics = ordered_metrics(side for row in comparison.rows for side in (row.federated, row.other))
    other = f"\n{plain_text(comparison.other)}"

    def with_metrics(names: Sequence[str]) -> Table:
        headers = [header for name in names for header in (f"{plain_text(name)}\nfederated", other)]
        table = new_table("Held-out\npatients of", *headers, numbers=headers)
        for row in comparison.rows:
            cells = [show_number(side.get(name)) for name in names for side in (row.federated, row.other)]
            table.add_row(plain_text(row.where), *cells, style="bold" if row.where == "mean" else "")
        return table

    fewer = range(len(metrics), 0, -1) or (0,)
    return first_that_fits(console, (with_metrics(metrics[:most]) for most in fewer))


def summary(console: Console, report: RunReport) -> RenderableType:
    """Everything that is printed after a run."""
    title = Text.assemble(
        (plain_text(report.study), "bold"),
        f"  {report.algorithm}, {report.protection}, {plural(len(report.sites), 'hospital')}, "
        f"{plural(len(report.rounds), 'round')}",
    )
    parts: list[RenderableType] = [title, ""]
    if report.rounds:
        parts += [round_table(console, report.rounds), ""]
    lines = incidents(report.rounds)
    parts += [Text(line) for line in lines[:_MOST_INCIDENTS]]
    if len(lines) > _MOST_INCIDENTS:
        parts.append(f"... and {len(lines) - _MOST_INCIDENTS} more rounds like these; see run.json")
    if report.compare is not None:
        heading = Text(f"Federated beside {report.compare.other}  ", style="bold")
        heading.append("oracle: looks at single hospitals, simulation only", style="not bold dim")
        parts += ["", heading, comparison_table(console, report.compare), ""]
    if report.oracle:
        oracle = report.oracle.items()
        numbers = ", ".join(f"{plain_text(name)} {show_number(value)}" for name, value in oracle)
        parts.append(Text.assemble(("Oracle (single hospitals, simulation only): ", "dim"), numbers))
        clipped = report.oracle.get(CLIPPED)
        if clipped is not None:
            share = f"{100 * clipped:.0f}" if clipped >= 0.1 else f"{100 * clipped:.2g}"
            advice = "raise it, or lower algorithm.learning_rate."
            warning = f"protection.bound clipped {share}% of the numbers of one update: {advice}"
            parts.append(Text(warning, style="yellow"))
    parts += [Text(line, style="yellow") for line in _zeroed(report)]
    if report.privacy is not None:
        parts += ["", *_privacy(console, report.privacy), ""]
    parts += [*_chosen(report), *_final(report)]
    if errors := explain_errors([report.initial, report.final, *(one.metrics for one in report.rounds)]):
        parts.append(Text(errors, style="yellow"))
    parts.append(Text(plain_text(report.saw), style="green" if report.protection != "plain" else "yellow"))
    return Group(*parts)


def _zeroed(report: RunReport) -> list[str]:
    """Where local work failed and added zeros: outside a simulation only the hospital itself learns it."""
    alike: dict[tuple[int, str], list[str]] = {}
    for one in report.zeroed:
        alike.setdefault((one.contributions, plain_text(one.first)), []).append(plain_text(one.site))
    return [
        f"{', '.join(sites)}: local work failed in {plural(contributions, 'contribution')}, and "
        f"what failed added zeros. First: {first}."
        for (contributions, first), sites in alike.items()
    ]


def _chosen(report: RunReport) -> list[Text]:
    """Which round's model it is, where the study chooses by a metric."""
    lines = []
    if report.stopped_after is not None:
        lines.append(Text(f"Training ended after round {report.stopped_after}: the metric got no better."))
    if report.kept_round is not None:
        lines.append(Text(f"The model is that after round {report.kept_round}, the best one."))
    return lines


def _final(report: RunReport) -> list[Text]:
    """What is known of the final model; if it was not measured, of which model the newest metrics are."""
    began = "untrained" if report.start is None else "at the start"
    why = plain_text(report.closing_aborted or "").removeprefix(f"round {len(report.rounds) + 1}, ")
    given_up = f"The closing evaluation was given up: {why.rstrip('.')}."
    if report.final:
        lines = [Text.assemble(("Final model: ", "bold"), _beside(report.final, report.initial or {}, began))]
        return [*lines, Text(given_up, style="yellow")] if why else lines
    if not why and report.last_measured is None:
        return [Text.assemble(("Final model: ", "bold"), "no metrics")]
    reason = f" {given_up}" if why else ""
    lines = [Text.assemble(("Final model: ", "bold"), ("not measured.", "yellow"), reason)]
    if report.last_measured is not None:
        number, metrics = report.last_measured
        first = "the untrained model: " if report.start is None else "the model at the start: "
        which = f"the model after round {number}: " if number else first
        before = (report.initial or {}) if number else {}
        lines.append(Text.assemble(("Measured last: ", "bold"), which, _beside(metrics, before, began)))
    return lines


def _beside(metrics: Metrics, before: Metrics, began: str) -> str:
    return ", ".join(
        f"{plain_text(name)} {show_metric(metrics, name)}"
        + (f" ({began} {show_metric(before, name)})" if name in before else "")
        for name in ordered_metrics([metrics])
    )


def _privacy(console: Console, privacy: PrivacyReport) -> list[RenderableType]:
    """What every site's ledger says: never an epsilon without its relation, delta and accountant."""
    heading = Text("Privacy spent  ", style="bold")
    relation = f"unit: {privacy.unit}, {privacy.adjacency}, delta {privacy.delta:g}"
    steps = f", clipped by {plain_text(', '.join(privacy.engines))}" if privacy.engines else ""
    heading.append(f"{relation}, {plain_text(privacy.accountant)}{steps}", style="not bold dim")
    numbers = ("epsilon\nspent", "\nleft", "refused\nrounds")
    table = new_table(f"Ledger of\n{plain_text(privacy.dataset)} at", *numbers, numbers=numbers)
    for one in privacy.sites[:_MOST_SITES]:
        left = "no limit" if one.limit is None else f"{max(0.0, one.limit - one.epsilon):.2f}"
        refused = str(one.refused) if one.refused else ""
        table.add_row(plain_text(one.site), f"{one.epsilon:.2f}", left, refused)
    parts: list[RenderableType] = [heading, first_that_fits(console, [table])]
    if len(privacy.sites) > _MOST_SITES:
        parts.append(Text(f"... and {len(privacy.sites) - _MOST_SITES} more; see run.json"))
    warnings = []
    if privacy.weak_delta:
        names = ", ".join(plain_text(name) for name in privacy.weak_delta[:_MOST_SITES])
        warnings.append(
            f"Delta {privacy.delta:g} is 1 / (training records) or more at: {names}. Choose it well "
            "below: it permits to publish a record outright with that probability."
        )
    if privacy.unprotected:
        groups = dict.fromkeys(name.partition("/")[0] for name in privacy.unprotected)
        names = ", ".join(plain_text(privacy.words.get(name, name)) for name in groups)
        warnings.append(f"Left in sums without noise: {names}. Not in epsilon.")
    return [*parts, *(Text(warning, style="yellow") for warning in warnings)]
