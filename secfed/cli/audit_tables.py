"""Tables of ``secfed audit``: what was read, where every budget stands, and what was decided."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secfed.audit.privacy import phrases
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Report
from secfed.terminal.consoles import plain_text
from secfed.terminal.tables import fits, new_table


def show_files(console: Console, made: Report) -> None:
    """Every file that was read, and whether it verifies."""
    first = {item.file: item for item in reversed(made.verification.problems)}
    # Of one folder, names below it are enough, and more of them fit.
    folder = made.folders[0] if len(made.folders) == 1 else ""
    if folder:
        console.print(f"In {plain_text(folder)}:", soft_wrap=True, markup=False)
    rows = []
    for item in made.verification.files:
        result = Text("verified", style="green")
        if not item.verified:
            problem = first.get(item.file)
            where = f"line {problem.line}" if problem is not None and problem.line else "bad"
            result = Text(where, style="bold red")
        file = item.file.removeprefix(f"{folder.rstrip('/')}/") if folder else item.file
        named = (plain_text(file), item.kind, plain_text(item.owner))
        rows.append((*named, str(item.entries or ""), item.head[:16], result))
    console.print(_file_table(console, rows))
    console.print()


def _file_table(console: Console, rows: Sequence[tuple[str | Text, ...]]) -> Table:
    """As many columns as fit: what a file is, and whose, mostly shows in its name."""
    headers = ("File", "Kind", "Owner", "Entries", "Head", "Result")
    for left_out in ((), ("Kind",), ("Kind", "Owner"), ("Kind", "Owner", "Head")):
        table = new_table()
        columns = [place for place, header in enumerate(headers) if header not in left_out]
        for place in columns:
            right = headers[place] == "Entries"
            table.add_column(headers[place], justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(row[place] for place in columns))
        if fits(console, table):
            break
    return table


def show_budgets(console: Console, made: Report) -> None:
    """A table for each way in which epsilon is stated; mostly there is one."""
    stated: dict[str, list[tuple[LedgerFacts, Amount]]] = {}
    for ledger in made.ledgers:
        for amount in ledger.amounts:
            stated.setdefault(_stated(amount), []).append((ledger, amount))
    for how, amounts in stated.items():
        console.print(Text(plain_text(how)))
        console.print()
        console.print(_budget_table(amounts))
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
    table = new_table()
    for header in ("Site", "Data set"):
        table.add_column(header, no_wrap=True, overflow="fold")
    for header in ("Protects", "Counts"):
        table.add_column(header)
    for header in ("Limit", "Spent", "Left"):
        table.add_column(header, justify="right", no_wrap=True)
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
    from rich.text import Text

    from secfed.audit.privacy import phrases
    from secfed.terminal.consoles import plain_text

    for study in made.studies:
        for model in study.models:
            after = phrases.after_round(model.round)
            for file in model.files:
                line = f"{file}: is the model of study {study.name!r}, {after}."
                console.print(Text(plain_text(line)), soft_wrap=True)
            if not model.files:
                line = f"Not here: the model of study {study.name!r}, {after}, SHA-256 {model.sha256}."
                console.print(Text(plain_text(line)), soft_wrap=True)
    if any(study.models for study in made.studies):
        console.print()


def show_decisions(console: Console, made: Report) -> None:
    """What each decision log says, a line for each entry: long ones are for searching."""
    from secfed.audit.privacy.decision_section import in_words, place

    for log in made.decisions:
        console.print(plain_text(f"{log.site}: {log.file}"), soft_wrap=True, markup=False, highlight=False)
        for item in log.decisions:
            where = f" ({place(item)})" if item.round is not None else ""
            study = f"study {phrases.printable(item.study)}: " if item.study else ""
            line = f"{phrases.moment(item.time_s)}  {study}{in_words(item)}{where}"
            console.print(plain_text(line), soft_wrap=True, markup=False, highlight=False)
        console.print(f"Head {log.head}", soft_wrap=True, markup=False, highlight=False)
        console.print()
    if not made.decisions:
        console.print("No decision log that verifies is here.")
        console.print()
