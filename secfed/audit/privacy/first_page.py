"""The first page of a report: what was spent means this, who trusts whom, and what left without noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from secfed.audit.languages import say
from secfed.audit.privacy import document as doc
from secfed.audit.privacy import phrases, releases
from secfed.audit.privacy.budgets import accountant_of, alike
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Report
from secfed.records.decision_state import REFUSAL

_TEXTS = phrases.TEXTS["budgets"]
_MEANING = phrases.TEXTS["meaning"]
_TRUST = phrases.TEXTS["who_trusts"]
# Relations under which somebody is there or not; under the others, two contents are told apart.
_FOUND = {"add-or-remove-record": "found-record", "zero-out-site": "found-site"}


def banner(report: Report) -> str:
    """That nothing here protects anybody, where that is so."""
    simulated = sorted({one.name for one in report.studies if one.simulated})
    if not simulated:
        return ""
    return f"{say('SIMULATED: study {names}.', names=', '.join(simulated))} {_TEXTS['simulated']}"


def summary(report: Report) -> doc.Section:
    """What every hospital's budget means, and what must not be overlooked."""
    blocks: list[doc.Block] = []
    if report.ledgers:
        groups = alike(report.ledgers)
        blocks.append(
            doc.Cards(tuple(_card(report, [report.ledgers[one] for one in many]) for many in groups))
        )
    blocks += _warnings(report)
    if report.verification.notes:
        notes = phrases.plural(len(report.verification.notes), "note")
        blocks.append(doc.Alert("info", say("{notes} on completeness under Verification", notes=notes)))
    blocks.append(doc.Heading(say("Who trusts whom")))
    headers = say("Who"), say("Has to trust")
    blocks.append(doc.ReportTable(headers, tuple(_who_trusts(report)), weights=(2, 9)))
    refused = Counter(item.what for item in report.refusals)
    blocks.append(
        doc.Text(
            say(
                "{sums}. Refused: {uses} of data by a budget, {messages} in transcripts, and by agents at "
                "least {by_agents:,}. {rounds} given up.",
                sums=phrases.plural(sum(study.sums for study in report.studies), "finished sum"),
                uses=phrases.plural(refused["budget"], "use"),
                messages=phrases.plural(refused["message"], "message"),
                by_agents=_refused_messages(report),
                rounds=phrases.plural(refused["round"], "round"),
            )
        )
    )
    return doc.Section("summary", say("What this means"), tuple(blocks))


def meaning(amount: Amount) -> str:
    """What an epsilon means to the one whom it protects, from the whole privacy curve."""
    relation = amount.whole.adjacency
    if relation is None:
        return str(_MEANING["nothing_spent"])
    secret = _MEANING["secret"].get(relation, _MEANING["other_secret"])
    guessed = 1.0 if amount.guessed is None else amount.guessed
    if phrases.is_certain(guessed):
        return str(_MEANING["nothing_left"]).format(secret=secret)
    found = 1.0 if amount.found is None else amount.found
    kind = _FOUND.get(relation, "told")
    sentences = [_MEANING["guess"]] + ([] if phrases.is_certain(found) else [_MEANING[kind]])
    return " ".join(sentences).format(
        secret=secret, guessed=phrases.of_hundred(guessed), found=phrases.of_hundred(found)
    )


def _refused_messages(report: Report) -> int:
    """The newest count of every study and number."""
    counts = {
        (log.site, item.study, item.number): item.count or 1
        for log in report.decisions
        for item in log.decisions
        if item.kind == REFUSAL
    }
    return sum(counts.values())


def _card(report: Report, group: list[LedgerFacts]) -> doc.Card:
    """The budget that is closest to its limit stands for the ledgers, the worst of them for all."""
    title = f"{', '.join(one.site for one in group)} \N{MIDDLE DOT} {group[0].dataset}"
    if not group[0].amounts:
        nothing = say("no budget recorded")
        return doc.Card(title, say("No budget is recorded."), phrases.NOTHING, nothing, None, ())
    nearest = [max(one.amounts, key=_share) for one in group]
    shown = max(nearest, key=lambda one: (one.spent, one.guessed or 0.0))
    alike = [one for one in nearest if one.protects == shown.protects]
    worst = max(alike, key=lambda one: (one.guessed or 0.0, one.whole.spent))
    whom = phrases.TEXTS["protects"][phrases.hidden(shown)]
    facts = (
        (say("delta"), phrases.delta(shown.delta)),
        (say("protects"), f"{whom} ({shown.whole.adjacency or say('nothing spent yet')})"),
        (say("left"), phrases.number_down(shown.left)),
        (say("counts"), say("{period}, all studies together", period=phrases.period(shown))),
        (say("accountant"), accountant_of(shown)),
    )
    outside = dict.fromkeys(line for one in group for line in releases.uncovered(report, one.site))
    return doc.Card(
        title,
        meaning(worst),
        phrases.number_up(shown.spent),
        say("of epsilon {limit}", limit=phrases.limit(shown)) if shown.limit else say("epsilon, no limit"),
        None if shown.limit is None else min(1.0, shown.spent / shown.limit),
        facts,
        say("Not covered: {what}", what=say("; ").join(outside)) if outside else "",
    )


def _share(amount: Amount) -> float:
    return amount.spent / amount.limit if amount.limit else -1.0


def _who_trusts(report: Report) -> Iterator[tuple[str, str]]:
    """Each party with what it has to take on trust."""
    footings = {amount.relies_on for ledger in report.ledgers for amount in ledger.amounts}
    noise = " ".join(_TRUST[kind] for kind in ("local-noise", "sum-noise") if kind in footings)
    yield say("Every patient"), noise or _TRUST["no_noise"]
    for name, text in releases.protections_relied_on(report):
        yield say("Every hospital ({protection})", protection=name), text
    yield say("You"), _TRUST["reader"] if report.verification.pinned else _TRUST["reader_unpinned"]


def _warnings(report: Report) -> list[doc.Block]:
    studies = report.studies
    blocks: list[doc.Block] = []

    def warn(tone: doc.Tone, title: str, names: Iterable[str], *lines: str) -> None:
        shown = ", ".join(dict.fromkeys(names))
        if shown:
            blocks.append(doc.Alert(tone, f"{title} {shown}", lines))

    if report.bare:
        title = say("Left without noise")
        blocks.append(doc.Alert("warn", title, tuple(releases.bare_lines(report))))
    without = [one.name for one in studies if one.settings_recorded and one.privacy is None]
    warn("warn", say("No differential privacy in study"), without, _TEXTS["no_privacy"])
    plain = [one.name for one in studies if one.protection == "plain"]
    warn("warn", say("Not protected from the aggregator: study"), plain, _TEXTS["plain"])
    warn(
        "info",
        say("Settings not recorded: study"),
        [one.name for one in studies if not one.settings_recorded],
    )
    with_ledger = {ledger.site for ledger in report.ledgers}
    others = [site for site in report.sites if site not in with_ledger]
    without_ledger = phrases.sentence(say("Without a ledger: {what}", what=say(releases.NO_PRIVACY)))
    warn("warn", say("No verified ledger in these files:"), others, without_ledger)
    return blocks
