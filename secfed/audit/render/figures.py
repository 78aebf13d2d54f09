"""The figure of a ledger: epsilon spent after every payment, with the limits of its budgets."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from secfed.audit.languages import say
from secfed.audit.privacy import phrases
from secfed.audit.privacy.evidence import Amount, LedgerFacts, Payment
from secfed.runs import figure_style as style

_COLOURS: Final = (style.BLUE, style.GREEN, style.ORANGE, style.PURPLE, style.SKY)  # vermilion is the limit
_MOST_STUDIES: Final = len(_COLOURS)
_DAY_S: Final = 86_400
_LABEL: Final = 28  # longer names of studies are cut in the legend
_DIGEST: Final = len(" (00000000)")
_LEFT_OUT: Final = r'<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>| xmlns(:xlink)?="[^"]*"'
_DASHES: Final = ("solid", "dashed", "dotted")  # of as many budgets; more are not drawn


def svg(ledger: LedgerFacts, prefix: str) -> str:
    """The figure as an ``<svg>`` element: no prolog, no comments, and ids that begin with the prefix."""
    with io.StringIO() as out:
        _save(ledger, out, "svg")
        text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(_LEFT_OUT, "", text, flags=re.DOTALL).replace("xlink:href", "href")
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    # The page's own colours, so that the figure follows light and dark.
    for colour, name in ((style.INK, "ink"), (style.FAINT, "faint"), (style.GRID, "line")):
        text = re.sub(re.escape(colour), f"var(--{name})", text, flags=re.IGNORECASE)
    return text.strip()


def png(ledger: LedgerFacts) -> bytes:
    """The figure as a PNG for the PDF."""
    with io.BytesIO() as out:
        _save(ledger, out, "png")
        return out.getvalue()


def _save(ledger: LedgerFacts, out: io.StringIO | io.BytesIO, kind: str) -> None:
    with style.styled(), warnings.catch_warnings():
        # Names come from study files: no mathematics in them, and a letter the font lacks is a box.
        mpl.rcParams["text.parse_math"] = False
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = _draw(ledger)
        figure.patch.set_alpha(0.0 if kind == "svg" else 1.0)
        for axes in figure.axes:
            axes.patch.set_alpha(0.0)
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None} if kind == "svg" else None
        figure.savefig(out, format=kind, dpi=200, metadata=metadata)


def _draw(ledger: LedgerFacts) -> Figure:
    figure, (axes,) = style.new_figure(1, width_in=7.4, height_in=2.7)
    payments = ledger.payments
    by_time = payments[-1].time_s - payments[0].time_s >= 2 * _DAY_S
    places: list[float] = list(range(1, len(payments) + 1))
    if by_time:
        places = [payment.time_s / _DAY_S for payment in payments]  # matplotlib's dates are days since 1970
    budgets = list(zip(ledger.amounts, _DASHES, strict=False))
    highest = 0.0
    for amount, dash in budgets:
        series = [_spent(payment, amount) for payment in payments]
        highest = max([highest, *(value for value in series if math.isfinite(value))])
        axes.step(places, series, where="post", color=style.FAINT, linestyle=dash, linewidth=1.3)
        if amount.limit is not None:
            highest = max(highest, min(amount.limit, 3 * highest) if highest else amount.limit)
    if budgets:
        _points(axes, payments, places, budgets[0][0])
    for amount, dash in budgets:
        if amount.limit is not None and amount.limit <= highest * 1.1:
            axes.axhline(amount.limit, color=style.VERMILION, linestyle=dash, linewidth=1.3)
            text = "limit {limit}" if amount.period_days is None else "limit {limit} per {days} days"
            axes.annotate(
                say(text, limit=phrases.limit(amount), days=amount.period_days),
                (0.0, amount.limit),  # at the left, where what is spent is furthest from it
                xycoords=("axes fraction", "data"),
                xytext=(2, 3),
                textcoords="offset points",
                ha="left",
                color=style.VERMILION,
                fontsize=8,
            )
    axes.set_ylim(0, max(highest, 1e-6) * 1.18)
    axes.set_ylabel(say("epsilon spent"))
    if by_time:
        axes.xaxis.axis_date(UTC)
        axes.set_xlabel(say("date of the payment"))
        axes.margins(x=0.03)
        _few_dates(axes, places)
    else:
        axes.set_xlabel(say("payment"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len({payment.study for payment in payments}) > 1:  # one study is named by the table below
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
    return figure


def _points(axes: Axes, payments: Sequence[Payment], places: Sequence[float], budget: Amount) -> None:
    """One colour per study, so that one sees who spent what; the rest share a grey."""
    studies = list(dict.fromkeys(payment.study for payment in payments))
    for place, study in enumerate(studies[: _MOST_STUDIES + 1]):
        rest = place == _MOST_STUDIES
        mine = [
            place
            for place, payment in enumerate(payments)
            if payment.study == study or (rest and payment.study in studies[_MOST_STUDIES:])
        ]
        colour = style.FAINT if rest else _COLOURS[place]
        more = len(studies) - _MOST_STUDIES
        label = say("{count} more studies", count=more) if rest else _short(study)
        axes.plot(
            [places[one] for one in mine],
            [_spent(payments[one], budget) for one in mine],
            linestyle="none",
            marker="o",
            markersize=5 if len(payments) <= 60 else 2.5,
            color=colour,
            label=label,
        )


def _short(name: str) -> str:
    """As the rest of the report names a study, in one line; of a long name, the digest is kept."""
    text = phrases.printable(name).replace("\n", "\N{REPLACEMENT CHARACTER}")
    if len(text) > _LABEL:
        digest = text[-_DIGEST:] if phrases.settings_digest(name) else ""
        text = f"{text[: _LABEL - 1 - len(digest)]}\N{HORIZONTAL ELLIPSIS}{digest}"
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text  # matplotlib hides such labels


def _spent(payment: Payment, wanted: Amount) -> float:
    known = payment.spent_under(wanted)
    return math.nan if known is None else known  # a gap in the line


def _few_dates(axes: Axes, places: Sequence[float]) -> None:
    """At most five dates, spelled as everywhere in the report."""
    low, high = places[0], places[-1]
    ticks = sorted({round(low + (high - low) * step / 4) for step in range(5)})
    axes.set_xticks(ticks)
    axes.set_xticklabels([datetime.fromtimestamp(tick * _DAY_S, UTC).strftime("%Y-%m-%d") for tick in ticks])
