"""A report as PDF: the same document as the HTML page, drawn with fpdf2.

Security: every text is drawn as text; fpdf2's markup (markdown, HTML) is never switched on, and only the
figures that :mod:`secfed.audit.render.figures` draws are embedded.
"""

from __future__ import annotations

import io
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from fpdf import FPDF, XPos, YPos
from fpdf.enums import Align, TableBordersLayout
from fpdf.fonts import FontFace

from secfed.audit.languages import say, spoken
from secfed.audit.privacy import document as doc
from secfed.audit.privacy import phrases
from secfed.audit.privacy.data_protection import build
from secfed.audit.privacy.evidence import Report
from secfed.audit.render.figures import png

_INK, _FAINT, _LINE, _ACCENT = (29, 39, 51), (90, 102, 115), (205, 212, 220), (11, 92, 140)
_TONES: Final[dict[doc.Tone, tuple[tuple[int, int, int], tuple[int, int, int]]]] = {
    "good": ((20, 112, 58), (231, 244, 236)),
    "warn": ((138, 90, 0), (253, 243, 220)),
    "bad": ((163, 32, 20), (251, 233, 231)),
    "info": ((43, 76, 126), (233, 240, 250)),
}
_SANS, _MONO = "sans", "mono"
_BODY_PT, _SMALL_PT, _LINE_MM = 9.0, 7.5, 4.6
_BLANK: Final = "\n\n"  # room to write by hand


def to_pdf(report: Report) -> bytes:
    """The bytes of ``--pdf``, in the language of the moment."""
    # A letter that the font lacks is drawn as a box; fpdf2 would log each one, and fontTools its progress.
    logging.getLogger("fpdf").setLevel(logging.ERROR)
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    document = build(report)
    page = _Page(document.title)
    page.set_creation_date(datetime.fromtimestamp(report.made_s, UTC))
    page.add_page()
    _front(page, document)
    for number, section in enumerate(document.sections, start=1):
        if not section.folded:
            _section(page, report, number, section)
    page.write_note(phrases.TEXTS["folded"]["note"])
    return bytes(page.output())


class _Page(FPDF):
    """A4 with the fonts that come with matplotlib, and page numbers."""

    def __init__(self, title: str) -> None:
        super().__init__(format="A4")
        self._title = title
        self.set_margins(16, 16)
        self.set_auto_page_break(True, margin=18)
        fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
        self.add_font(_SANS, "", fonts / "DejaVuSans.ttf")
        self.add_font(_SANS, "B", fonts / "DejaVuSans-Bold.ttf")
        self.add_font(_MONO, "", fonts / "DejaVuSansMono.ttf")
        self.set_title(title)
        self.set_lang(spoken())
        self.set_creator("secfed")

    def footer(self) -> None:
        """Page number on every page."""
        self.set_y(-13)
        self.set_font(_SANS, "", _SMALL_PT)
        self.set_text_color(*_FAINT)
        text = say("{title}, page {page} of {pages}", title=self._title, page=self.page_no(), pages="{nb}")
        self.cell(0, 5, text, align=Align.R)

    def write_line(
        self,
        text: str,
        size: float = _BODY_PT,
        style: str = "",
        height: float = _LINE_MM,
        font: str = _SANS,
        **options: Any,
    ) -> None:
        """A paragraph over the whole width, as :func:`secfed.audit.privacy.phrases.printable` shows it."""
        self.set_font(font, style, size)
        shown = phrases.printable(text)
        self.multi_cell(0, height, shown, align=Align.L, new_x=XPos.LMARGIN, new_y=YPos.NEXT, **options)

    def write_note(self, text: str, colour: tuple[int, int, int] = _FAINT) -> None:
        """A small paragraph."""
        self.set_text_color(*colour)
        self.write_line(text, _SMALL_PT + 0.5, "", 4)

    def need(self, height: float) -> None:
        """Begin a new page if less than this is left on the page."""
        if self.get_y() + height > self.h - self.b_margin:
            self.add_page()


def _front(page: _Page, document: doc.Document) -> None:
    if document.banner:
        _alert(page, doc.Alert("info", document.banner))
    page.set_text_color(*_INK)
    page.write_line(document.title, 20, "B", 9)
    page.set_text_color(*_FAINT)
    page.write_line(document.subtitle, 11, "", 6)
    page.ln(2)
    _alert(page, doc.Alert(document.tone, document.verdict))
    for name, value in document.facts:
        page.write_note(f"{name}: {value}")
    page.ln(3)


def _section(page: _Page, report: Report, number: int, section: doc.Section) -> None:
    page.need(30)
    page.ln(3)
    page.start_section(phrases.printable(section.title))
    page.set_text_color(*_ACCENT)
    page.write_line(f"{number}. {section.title}", 14, "B", 7)
    page.ln(1.5)
    for block in section.blocks:
        page.set_text_color(*_INK)
        _block(page, report, block)


def _block(page: _Page, report: Report, block: doc.Block) -> None:
    match block:
        case doc.Text(text):
            page.write_line(text)
            page.ln(1.5)
        case doc.Heading(text, note):
            page.need(28)
            page.ln(2.5)
            page.write_line(text, 10.5, "B", 5.2)
            if note:
                page.write_note(note)
            page.ln(1.5)
        case doc.Items(items):
            for item in items:
                page.write_line(f"\N{BULLET} {item}")
                page.ln(0.8)
            page.ln(1)
        case doc.Code(lines):
            page.write_line("\n".join(lines), _SMALL_PT, "", 4, _MONO)
            page.ln(1.5)
        case doc.Alert():
            _alert(page, block)
        case doc.Cards(cards):
            for card in cards:
                _card(page, card)
        case doc.Form(rows):
            filled = tuple((name, _BLANK if value is None else value) for name, value in rows)
            _table(page, doc.ReportTable(("", ""), filled, weights=(4, 9)), TableBordersLayout.ALL)
        case doc.Figure(number, alt):
            page.need(70)
            page.image(io.BytesIO(png(report.ledgers[number])), w=page.epw, alt_text=phrases.printable(alt))
            page.ln(3)
        case doc.ReportTable():
            _table(page, block, TableBordersLayout.HORIZONTAL_LINES)


def _alert(page: _Page, alert: doc.Alert) -> None:
    ink, ground = _TONES[alert.tone]
    page.need(14)
    page.set_fill_color(*ground)
    page.set_text_color(*ink)
    page.write_line(alert.title, _BODY_PT, "B", 5.4, fill=True, padding=2)
    page.set_text_color(*_INK)
    for item in alert.items:
        page.write_line(f"\N{BULLET} {item}", _SMALL_PT + 0.5, "", 4.2, fill=True, padding=(0, 2, 1, 2))
    page.ln(2.5)


def _card(page: _Page, card: doc.Card) -> None:
    page.need(30)
    page.set_text_color(*_INK)
    page.write_line(f"{card.title}: {card.value} {card.of}", 11, "B", 6)
    page.write_line(card.meaning)
    if card.fraction is not None:
        top, width = page.get_y() + 0.8, page.epw
        page.set_fill_color(*_LINE)
        page.rect(page.l_margin, top, width, 2.2, style="F")
        page.set_fill_color(*(_TONES["warn"][0] if card.nearly_spent else _ACCENT))
        if card.fraction > 0:
            page.rect(page.l_margin, top, width * card.fraction, 2.2, style="F")
        page.ln(4.5)
    page.write_note("; ".join(f"{name} {value}" for name, value in card.facts))
    if card.warning:
        page.write_note(card.warning, _TONES["warn"][0])
    page.ln(3)


def _table(page: _Page, table: doc.ReportTable, borders: TableBordersLayout) -> None:
    """Headers are repeated on every page, and a row stays whole."""
    page.set_font(_SANS, "", _SMALL_PT)
    page.set_draw_color(*_LINE)
    page.set_fill_color(255, 255, 255)  # cells inherit the last alert's otherwise
    headed = any(table.headers)
    aligned = tuple(Align.R if column in table.numbers else Align.L for column in range(len(table.headers)))
    mono = FontFace(family=_MONO, size_pt=6)
    tones = dict(table.tones)
    with page.table(
        borders_layout=borders,
        col_widths=table.weights or tuple(1 for _ in table.headers),
        first_row_as_headings=headed,
        headings_style=FontFace(emphasis="BOLD", color=_FAINT),
        line_height=3.8,
        padding=(0.8, 1.2),
        text_align=aligned,
        width=page.epw,
    ) as drawn:
        if headed:
            drawn.row([phrases.printable(header) for header in table.headers])
        for number, cells in enumerate(table.rows):
            row = drawn.row()
            last = len(cells) - 1
            tone = tones.get(number)
            for column, cell in enumerate(cells):
                style = mono if column in table.digests else None
                if tone is not None and column == last:
                    style = FontFace(color=_TONES[tone][0])
                row.cell(phrases.printable(cell), style=style)
    page.ln(3)
