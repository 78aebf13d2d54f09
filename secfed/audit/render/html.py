"""A report as one HTML page, from ``report.html.j2``: no script, no reference to anything outside the page.

Security: Jinja2 escapes every value. The only markup from elsewhere is the figure that
:mod:`secfed.audit.render.figures` draws, in which text is outlines. The page forbids itself to load or run
anything, so a mistake here would stay harmless.
"""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from secfed.audit.languages import say, spoken
from secfed.audit.privacy import phrases
from secfed.audit.privacy.data_protection import build
from secfed.audit.privacy.document import Figure, Tone
from secfed.audit.privacy.evidence import Report
from secfed.audit.render.figures import svg

# The last one with the selector for text, not a picture.
_MARKS: Final[dict[Tone, str]] = {
    "good": "\N{HEAVY CHECK MARK}",
    "bad": "\N{HEAVY BALLOT X}",
    "warn": "\N{WARNING SIGN}\N{VARIATION SELECTOR-15}",
}


def to_html(report: Report) -> str:
    """The text of ``--out``, in the language of the moment."""

    def figure(block: Figure) -> Markup:
        drawn = svg(report.ledgers[block.ledger], f"f{block.ledger}").removeprefix("<svg")
        alt = escape(phrases.printable(block.alt))
        return Markup('<svg role="img" aria-label="{}"').format(alt) + Markup(drawn)  # noqa: S704

    page = _ENVIRONMENT.get_template("report.html.j2")
    document, note = build(report), phrases.TEXTS["folded"]["note"]
    mark = _MARKS[document.tone]
    shown = page.render(document=document, mark=mark, figure=figure, folded_note=note, language=spoken())
    return f"{shown}\n"


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("secfed.audit.render", package_path=""),
    autoescape=True,
    undefined=StrictUndefined,
    # Texts as the whole report shows them; markup of our own stays as it is.
    finalize=lambda value: phrases.printable(value) if type(value) is str else value,
)
_ENVIRONMENT.globals["say"] = say
_ENVIRONMENT.filters["kind"] = lambda block: type(block).__name__
