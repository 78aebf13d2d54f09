"""What an aggregator says of a study before anybody works, and a hospital compares with its own.

A hospital derives the roster's digest and the study's plan by itself, and checks them in every message. There
it is too late: the work is done and paid for. So both travel with the offer, and who would refuse later
refuses before it works. Security: neither makes anything safe; an aggregator that lies here is refused in the
attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from secfed.algorithms.framework.base import Algorithm
from secfed.config.cohort_rules import min_cohort, threshold
from secfed.crypto import labels, thresholds
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Roster
from secfed.crypto.refusals import Refusal
from secfed.deploy.transport.messages import HelloReply
from secfed.errors import ConfigError, InconsistentView, ProtocolError, RosterError
from secfed.records.hash_chain import canonical_json
from secfed.records.roster_file import is_within
from secfed.records.transcript import TRANSCRIPT
from secfed.site.terms import Terms
from secfed.study.study import Study
from secfed.wire.layout import Exchange

_SAME_SOFTWARE: Final = "all parties of a study run the same version of secfed"
_Planned = tuple[int, Exchange, tuple[str, ...]]  # a round that has it, the exchange, its cohort


def plan_digest(study: Study, algorithm: Algorithm, sites: Sequence[str], roster: Roster) -> bytes:
    """Digest of what decides later whether an attempt is accepted, 32 bytes.

    Versions of protocol and records, and of every kind of exchange its layout, its cohort and the answers
    that it needs.
    """
    count = len(roster.sites)
    exchanges = [
        [
            exchange.name,
            exchange.layout.digest.hex(),
            list(cohort),
            threshold(study.protection, count, len(cohort), len(cohort)),
        ]
        for _, exchange, cohort in _planned(study, algorithm, sites, roster)
    ]
    facts = {
        "protocol": labels.PROTOCOL.decode(),
        "records": TRANSCRIPT.chain_label.decode(),
        "protection": study.protection.kind,
        "least_cohort": min_cohort(study.protection, count),
        "exchanges": exchanges,
    }
    return hashlib.sha256(canonical_json(facts)).digest()


@contextmanager
def own_files() -> Iterator[None]:
    """Errors of the site's own files become ones whose words stay here: they name paths."""
    try:
        yield
    except ProtocolError as error:
        raise ConfigError(error.message, remedy=error.remedy) from None


def check_still_pinned(roster: Roster, pinned: Roster) -> None:
    """Refuse to go on with a study of whose roster a member, or its key, was taken out of the pinned one."""
    if not is_within(roster, pinned):
        raise RosterError(
            "the roster that is pinned here now lacks a member of this study, or gives it another key",
            remedy="this study is over for this site; a new one needs the new roster everywhere",
        )


def check_roster(offer: HelloReply, pinned: Roster) -> None:
    """Refuse to work with an aggregator that uses another roster than the pinned one."""
    if not offer.roster:
        raise RosterError("the aggregator does not say which roster it uses", remedy=_SAME_SOFTWARE)
    if offer.roster != pinned.digest:
        raise RosterError(
            f"the aggregator uses the roster {offer.roster.hex()[:16]}, and {pinned.digest.hex()[:16]} is "
            "pinned here; every sum would be refused after it was paid for",
            remedy="get the new roster from the study centre, compare its digest and pin it: "
            "secfed site trust ROSTER",
        )


def check_plan(offer: HelloReply, terms: Terms, roster: Roster) -> None:
    """Refuse to work where the aggregator derives another plan from the same settings."""
    if offer.plan != plan_digest(terms.study, terms.algorithm, terms.sites, roster):
        raise InconsistentView(
            "the aggregator derives other layouts or thresholds from this study than this site does",
            remedy=_SAME_SOFTWARE,
        )


def check_limits(terms: Terms, roster: Roster, limits: SiteLimits, own: str) -> None:
    """Refuse a study whose attempts this site would refuse even if every hospital answered.

    Raises:
        PolicyRefused: refusal 8, 9, 14 or 39.

    Source: the rules for message 0, :mod:`secfed.crypto.specification`.
    """
    study, count, general = terms.study, len(roster.sites), limits
    colluders = thresholds.default_colluders(count) if limits.colluders is None else limits.colluders
    for number, exchange, cohort in _planned(study, terms.algorithm, terms.sites, roster):
        if own not in cohort:
            continue
        limits = general.of_exchange(len(cohort))
        answers = threshold(study.protection, count, len(cohort), len(cohort))
        if len(cohort) < limits.min_cohort:
            raise Refusal.COHORT_TOO_SMALL.refuse(f"{len(cohort)} sites")
        is_safe = not study.protection.traits.opened_by_shares or thresholds.is_safe(
            answers, len(cohort), colluders
        )
        if answers < max(limits.min_threshold, limits.min_cohort) or not is_safe:
            raise Refusal.THRESHOLD_TOO_LOW.refuse(f"{answers} of {len(cohort)}")
        if exchange.layout.shape.elements > limits.max_elements:
            raise Refusal.LAYOUT_TOO_LARGE.refuse(f"{exchange.layout.shape.elements} elements")
        for part, least in terms.algorithm.contributors(number, exchange):
            found, needed = len(set(part) & set(cohort)), max(least, colluders + 2)
            if 0 < found < needed:
                raise Refusal.TOO_FEW_CONTRIBUTORS.refuse(f"{found} of {needed}")


def _planned(study: Study, algorithm: Algorithm, sites: Sequence[str], roster: Roster) -> list[_Planned]:
    """Every kind of exchange of a study, once, with the sites that it asks."""
    named = tuple(site for site in roster.sites if site in sites)
    kinds: dict[tuple[Exchange, tuple[str, ...]], int] = {}  # in order
    for number in range(1, study.rounds + 2):
        for exchange in algorithm.exchanges(number):
            cohort = tuple(algorithm.members(number, exchange, named))
            kinds.setdefault((exchange, cohort), number)
    return [(number, exchange, cohort) for (exchange, cohort), number in kinds.items()]
