"""A report as one HTML page: no script, no reference to anything outside the page.

Security: every text goes through :func:`html.escape` in :func:`_text`; nothing else puts text into the
page. The only markup from elsewhere is the figure that :mod:`secfed.audit.render.figures` draws, in which
text is outlines. The page forbids itself to load or run anything, so a mistake here would stay harmless.
"""

from __future__ import annotations

from html import escape
from typing import Final

from secfed.audit.privacy import phrases
from secfed.audit.privacy.data_protection import build
from secfed.audit.privacy.document import (
    Alert,
    Block,
    Card,
    Cards,
    Code,
    Document,
    Figure,
    Form,
    Heading,
    Items,
    ReportTable,
    Section,
    Text,
    Tone,
)
from secfed.audit.privacy.evidence import Report
from secfed.audit.render.css import CSS
from secfed.audit.render.figures import svg

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
# The last one with the selector for text, not a picture.
_MARKS: Final[dict[Tone, str]] = {
    "good": "\N{HEAVY CHECK MARK}",
    "bad": "\N{HEAVY BALLOT X}",
    "warn": "\N{WARNING SIGN}\N{VARIATION SELECTOR-15}",
}


def to_html(report: Report) -> str:
    """The text of ``--out``."""
    document = build(report)
    nav = "".join(
        f'<li><a href="#{_text(one.anchor)}">{_text(one.title)}</a></li>' for one in document.sections
    )
    facts = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in document.facts)
    sections = "\n".join(_section(report, *numbered) for numbered in enumerate(document.sections, start=1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_text(_POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_text(document.title)}: {_text(document.subtitle)}</title>
<style>{CSS}</style>
</head>
<body>
{_header(document, facts)}
<main>
<nav aria-label="Contents"><ol>{nav}</ol></nav>
{sections}
</main>
<footer>{_text(document.title)}, {_text(document.facts[0][1])}. {_text(document.verdict)}</footer>
</body>
</html>
"""


def _text(text: str) -> str:
    """Escaped, as :func:`secfed.audit.privacy.phrases.printable` shows it."""
    return escape(phrases.printable(text), quote=True)


def _header(document: Document, facts: str) -> str:
    mark = _MARKS[document.tone]
    return (
        f"<header><h1>{_text(document.title)}</h1>"
        f'<p class="subtitle">{_text(document.subtitle)}</p>'
        f'<div class="verdict {document.tone}">{mark} {_text(document.verdict)}</div>'
        f'<dl class="meta">{facts}</dl></header>'
    )


def _section(report: Report, number: int, section: Section) -> str:
    page = ' class="page"' if section.new_page else ""
    blocks = "\n".join(_block(report, block) for block in section.blocks)
    title = f"<h2>{number}. {_text(section.title)}</h2>"
    return f'<section id="{_text(section.anchor)}"{page}>{title}\n{blocks}\n</section>'


def _block(report: Report, block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{_text(text)}</p>"
        case Heading(text, note):
            below = f'<p class="note">{_text(note)}</p>' if note else ""
            return f"<h3>{_text(text)}</h3>{below}"
        case Items(items):
            return f'<ul class="items">{_list(items)}</ul>'
        case Code(lines):
            return f"<pre>{_text(chr(10).join(lines))}</pre>"
        case Alert(tone, title, items):
            listed = f"<ul>{_list(items)}</ul>" if items else ""
            return f'<div class="alert {tone}" role="note"><strong>{_text(title)}</strong>{listed}</div>'
        case Cards(cards):
            # Three fit side by side: a fourth would stand alone below them.
            pairs = " pairs" if len(cards) == 4 else ""
            return f'<div class="cards{pairs}">{"".join(_card(card) for card in cards)}</div>'
        case Form(rows):
            return _form(rows)
        case Figure(number, alt):
            drawn = svg(report.ledgers[number], f"f{number}")
            opening = f'<svg role="img" aria-label="{_text(alt)}"'
            return f"<figure>{opening}{drawn.removeprefix('<svg')}</figure>"
        case ReportTable():
            return _table(block)


def _list(items: tuple[str, ...]) -> str:
    return "".join(f"<li>{_text(item)}</li>" for item in items)


def _card(card: Card) -> str:
    bar = ""
    if card.fraction is not None:
        high = ' class="high"' if card.nearly_spent else ""
        bar = f'<div class="bar"><span{high} style="width:{card.fraction * 100:.1f}%"></span></div>'
    facts = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in card.facts)
    outside = f'<p class="outside">{_text(card.warning)}</p>' if card.warning else ""
    return (
        f'<div class="card"><h3>{_text(card.title)}</h3>'
        f'<div class="big">{_text(card.value)} <small>{_text(card.of)}</small></div>{bar}'
        f"<dl>{facts}</dl>{outside}</div>"
    )


def _form(rows: tuple[tuple[str, str | None], ...]) -> str:
    blank = '<div class="blank">to be filled in by the controller</div>'
    body = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{blank if value is None else _text(value)}</td></tr>'
        for name, value in rows
    )
    return f'<div class="scroll"><table class="form"><tbody>{body}</tbody></table></div>'


def _table(table: ReportTable) -> str:
    kinds = dict.fromkeys(table.numbers, "number") | dict.fromkeys(table.digests, "digest")
    classes = [f' class="{kinds[column]}"' if column in kinds else "" for column in range(len(table.headers))]
    tones = dict(table.tones)
    head = ""
    if any(table.headers):
        cells = "".join(
            f'<th scope="col"{kind}>{_text(name)}</th>'
            for name, kind in zip(table.headers, classes, strict=True)
        )
        head = f"<thead><tr>{cells}</tr></thead>"
    total = sum(table.weights)
    columns = "".join(f'<col style="width:{100 * weight / total:.1f}%">' for weight in table.weights)
    body = []
    for number, row in enumerate(table.rows):
        tone = f' class="row-{tones[number]}"' if number in tones else ""
        cells = "".join(f"<td{kind}>{_text(cell)}</td>" for cell, kind in zip(row, classes, strict=True))
        body.append(f"<tr{tone}>{cells}</tr>")
    return f'<div class="scroll"><table>{columns}{head}<tbody>{"".join(body)}</tbody></table></div>'
