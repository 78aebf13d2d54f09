"""Tables of ``secfed audit``: what was read, where every budget stands, and what was decided."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secfed.audit.privacy import phrases
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Report
from secfed.audit.privacy.record_sections import in_words, place
from secfed.terminal.consoles import plain_text, say
from secfed.terminal.tables import first_that_fits, new_table


def show_files(console: Console, made: Report) -> None:
    """Every file that was read, and whether it verifies."""
    first = {item.file: item for item in reversed(made.verification.problems)}
    # Of one folder, names below it are enough, and more of them fit.
    folder = made.folders[0] if len(made.folders) == 1 else ""
    if folder:
        say(console, f"In {folder}:")
    rows: list[tuple[str | Text, ...]] = []
    for item in made.verification.files:
        result = Text("verified", style="green")
        if not item.verified:
            problem = first.get(item.file)
            line = f"line {problem.line}" if problem is not None and problem.line else "bad"
            result = Text(line, style="bold red")
        file = item.file.removeprefix(f"{folder.rstrip('/')}/") if folder else item.file
        names = (plain_text(file), item.kind, plain_text(item.owner))
        rows.append((*names, str(item.entries or ""), item.head[:16], result))
    # What a file is, and whose, mostly shows in its name.
    left_out: tuple[tuple[str, ...], ...] = ((), ("Kind",), ("Kind", "Owner"), ("Kind", "Owner", "Head"))
    console.print(first_that_fits(console, (_file_table(rows, names) for names in left_out)))
    console.print()


def _file_table(rows: Sequence[tuple[str | Text, ...]], left_out: Sequence[str]) -> Table:
    headers = ("File", "Kind", "Owner", "Entries", "Head", "Result")
    columns = [index for index, header in enumerate(headers) if header not in left_out]
    table = new_table(*(headers[index] for index in columns), numbers=["Entries"])
    for row in rows:
        table.add_row(*(row[index] for index in columns))
    return table


def show_budgets(console: Console, made: Report) -> None:
    """A table for each way in which epsilon is stated; mostly there is one."""
    stated: dict[str, list[tuple[LedgerFacts, Amount]]] = {}
    for ledger in made.ledgers:
        for amount in ledger.amounts:
            stated.setdefault(_stated(amount), []).append((ledger, amount))
    for how, amounts in stated.items():
        say(console, how)
        console.print()
        console.print(first_that_fits(console, [_budget_table(amounts)]))
        console.print()
    if not made.ledgers:
        console.print("No ledger that verifies: no differential privacy is recorded here.")
        console.print()


def _stated(amount: Amount) -> str:
    """Everything without which an epsilon means nothing."""
    if amount.adjacency is None:
        return f"Delta {phrases.delta(amount.delta)}; nothing spent yet"
    accountant = f"{amount.accountant} ({amount.version})"
    return f"Delta {phrases.delta(amount.delta)}, relation {amount.adjacency}, accountant {accountant}"


def _budget_table(amounts: Sequence[tuple[LedgerFacts, Amount]]) -> Table:
    whole, numbers = ("Site", "Data set"), ("Limit", "Spent", "Left")
    table = new_table(*whole, "Protects", "Counts", *numbers, numbers=numbers, whole=whole)
    for ledger, amount in amounts:
        table.add_row(
            plain_text(ledger.site),
            plain_text(ledger.dataset),
            amount.protects,
            phrases.period(amount),
            phrases.limit(amount),
            phrases.number_up(amount.spent),
            phrases.number_down(amount.left),
        )
    return table


def show_models(console: Console, made: Report) -> None:
    """Which model each study released, and which file here is it."""
    for study in made.studies:
        for model in study.models:
            what = f"the model of study {study.name!r}, {phrases.after_round(model.round)}"
            for file in model.files:
                say(console, f"{file}: is {what}.")
            if not model.files:
                say(console, f"Not here: {what}, SHA-256 {model.sha256}.")
    if any(study.models for study in made.studies):
        console.print()


def show_decisions(console: Console, made: Report) -> None:
    """What each decision log says, a line for each entry: long ones are for searching."""
    for log in made.decisions:
        say(console, f"{log.site}: {log.file}")
        for item in log.decisions:
            where = f" ({place(item)})" if item.round is not None else ""
            study = f"study {phrases.printable(item.study)}: " if item.study else ""
            say(console, f"{phrases.moment(item.time_s)}  {study}{in_words(item)}{where}")
        say(console, f"Head {log.head}")
        console.print()
    if not made.decisions:
        console.print("No decision log that verifies is here.")
        console.print()
