"""What the aggregator could read in a run, in one sentence; and why it has no metrics where it read none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from secfed.algorithms.framework.base import PARAMETERS
from secfed.config.protections import TRAITS

if TYPE_CHECKING:
    from secfed.wire.layout import Layout


def what_the_aggregator_saw(
    protection: str,
    *,
    sums: int,
    survivors: Iterable[int],
    layouts: Iterable[Layout],
    words: Mapping[str, str],
) -> str:
    """One honest sentence on what the aggregator could read in a run.

    Of the exchanges' layouts the largest is told. ``words`` are the algorithm's own for its fields
    (``field_words``); one that it does not describe is told by its name.
    """
    groups: dict[str, int] = {}
    for field in max(layouts, key=lambda layout: layout.elements).fields:
        group = field.name.partition("/")[0]
        groups[group] = groups.get(group, 0) + field.elements
    parameters = sum(
        groups.pop(group) for group, word in words.items() if word == PARAMETERS and group in groups
    )
    others = sum(groups.values())
    what = ", ".join(f"{size:,} for {words.get(group, group)}" for group, size in groups.items())
    parts = [f"{parameters:,} {_plural('parameter', parameters)}"] if parameters else []
    if others:
        parts.append(f"{others:,} {_plural('other number' if parameters else 'number', others)}")
    of = f"{' + '.join(parts)} each{f' ({what})' if what else ''}"
    counts = sorted(set(survivors))
    if not sums or not counts:
        return "The aggregator saw: no sum; no hospital's values."
    low, high = counts[0], counts[-1]
    over = f"{high} {_plural('hospital', high)}" if low == high else f"{low}-{high} hospitals"
    of_what = f"{sums:,} {_plural('sum', sums)} over {over} of {of}"
    traits = TRAITS[protection]
    if not traits.hides_sites:
        return f"The aggregator saw: every hospital's own values in {of_what} (no protection)."
    if not traits.aggregator_reads_sums:
        how = "closed" if traits.opened_by_shares else "as ciphertext"
        return f"The aggregator saw: {of_what}, {how}; no totals, no hospital's values."
    return f"The aggregator saw: {of_what}; no hospital's values."


def why_no_metrics(protection: str) -> str:
    """Why an aggregator has measured nothing, in one sentence; empty where it reads the sums."""
    if TRAITS[protection].aggregator_reads_sums:
        return ""
    return (
        "Only the hospitals can read the sums, so there are no metrics, no losses and no model here: "
        "every hospital has the model."
    )


def who_was_left_out(sites: Sequence[str]) -> str:
    """Who was in no sum with other kinds (``Algorithm.left_out``), in one sentence; or nothing."""
    if not sites:
        return ""
    return f"Left out of sums with others, since too few hospitals hold what they do: {', '.join(sites)}."


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"
