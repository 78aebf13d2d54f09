"""Refusals 1-16 and 37-39: what a malicious server may not even ask for."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Roster
from secfed.crypto.messages import Adverts, Specification, Survivors
from secfed.crypto.refusals import Refusal
from secfed.site.journal import Journal
from tests.simulator import Attempt, Consortium, provokes

VICTIM = "hospital-0"


def refused_at_once(consortium: Consortium, spec: Specification, refusal: Refusal, **given: Any) -> None:
    """The site refuses the specification before it notes anything or makes any secret."""
    attempt = Attempt(consortium, consortium.specification(), contributions={VICTIM: given})
    attempt.refused(VICTIM, spec.encode(), refusal)
    assert not consortium.journals[VICTIM].begun


def _cut(message: bytes) -> bytes:
    return message[:-1]


def _longer(message: bytes) -> bytes:
    return message + b"\0"


def _other_version(message: bytes) -> bytes:
    return message.replace(labels.PROTOCOL, b"secfed/v2", 1)


def _huge_count(message: bytes) -> bytes:
    at = message.index(b"hospital-0") - 8  # the cohort's count stands before the first name's length
    return message[:at] + b"\xff\xff\xff\xff" + message[at + 4 :]


def _not_text(message: bytes) -> bytes:
    return message.replace(b"hospital-0", b"hospital-\xff", 1)


@provokes(Refusal.MALFORMED)
@pytest.mark.parametrize("mangle", [_cut, _longer, _other_version, _huge_count, _not_text, lambda _: b""])
def test_bytes_that_are_no_message(mangle: Any) -> None:
    consortium = Consortium()
    attempt = consortium.attempt()
    attempt.refused(VICTIM, mangle(consortium.specification().encode()), Refusal.MALFORMED)
    assert not consortium.journals[VICTIM].begun


def test_a_colluders_invalid_key_is_named_and_refused() -> None:
    consortium = Consortium()
    colluder = consortium.identities["hospital-1"]
    attempt = consortium.attempt().run(until="share")
    adverts = list(Adverts.decode(attempt.requests[VICTIM]).adverts)
    bad = replace(adverts[1], mask_key=adverts[1].mask_key[:-32] + bytes(32))  # X25519's point of order 1
    signature = colluder.sign(labels.SIGN_ADVERT, attempt.spec.digest, bad.body())
    adverts[1] = replace(bad, signature=signature)
    error = attempt.refused(VICTIM, Adverts(tuple(adverts)).encode(), Refusal.MALFORMED)
    assert "hospital-1" in error.message


@provokes(Refusal.OUT_OF_ORDER)
def test_leaving_out_the_upload_to_get_views_and_shares() -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="mask")
    attempt.refused(VICTIM, Survivors(consortium.names).encode(), Refusal.OUT_OF_ORDER)


def test_a_second_survivor_set_is_not_signed() -> None:
    consortium = Consortium()
    attempt = consortium.attempt().run(until="consistency")
    attempt.deliver(VICTIM, attempt.requests[VICTIM])
    attempt.refused(VICTIM, Survivors(consortium.names[:4]).encode(), Refusal.OUT_OF_ORDER)


def test_a_second_vector_is_not_masked_with_the_same_secrets() -> None:
    attempt = Consortium().attempt().run(until="mask")
    attempt.deliver(VICTIM, attempt.requests[VICTIM])
    attempt.refused(VICTIM, attempt.requests[VICTIM], Refusal.OUT_OF_ORDER)


@provokes(Refusal.SPEC_SIGNATURE)
@pytest.mark.parametrize("signer", ["hospital-1", "stranger"])
def test_a_specification_signed_by_someone_else(signer: str) -> None:
    consortium = Consortium()
    spec = consortium.specification(signer=consortium.person(signer))
    refused_at_once(consortium, spec, Refusal.SPEC_SIGNATURE)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 2},
        {"attempt": 1},
        {"exchange": "other"},
        {"threshold": 3},
        {"cohort": ("hospital-0", "hospital-1", "hospital-2")},
        {"roster_digest": bytes(32)},
        {"layout_digest": bytes(32)},
        {"broadcast_digest": bytes(32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_specification_changed_after_signing(change: dict[str, Any]) -> None:
    consortium = Consortium()
    refused_at_once(consortium, replace(consortium.specification(), **change), Refusal.SPEC_SIGNATURE)


@provokes(Refusal.ROSTER_CHANGED, Refusal.UNKNOWN_MEMBER)
@pytest.mark.parametrize("own_roster", [True, False], ids=["the server's own roster", "the pinned roster"])
def test_one_honest_site_among_sybils(own_roster: bool) -> None:
    consortium = Consortium()
    fakes = [consortium.person(f"hospital-{90 + index}") for index in range(4)]
    roster = Roster.of(consortium.aggregator, [consortium.identities[VICTIM], *fakes])
    digest = {"roster_digest": roster.digest} if own_roster else {}
    spec = consortium.specification(cohort=roster.sites, **digest)
    refused_at_once(consortium, spec, Refusal.ROSTER_CHANGED if own_roster else Refusal.UNKNOWN_MEMBER)


def test_a_roster_that_swaps_one_pinned_key() -> None:
    consortium = Consortium()
    swapped = {**consortium.identities, "hospital-4": replace(consortium.person("x"), name="hospital-4")}
    roster = Roster.of(consortium.aggregator, list(swapped.values()))
    assert roster.sites == consortium.roster.sites
    refused_at_once(consortium, consortium.specification(roster_digest=roster.digest), Refusal.ROSTER_CHANGED)


NAMES = Consortium().names
SIGNED: list[tuple[Refusal, dict[str, Any], dict[str, int]]] = [
    (Refusal.COHORT_ORDER, {"cohort": (*NAMES[:2], NAMES[1], NAMES[1])}, {}),  # one peer counted three times
    (Refusal.COHORT_ORDER, {"cohort": (NAMES[1], NAMES[0], *NAMES[2:4])}, {}),
    (Refusal.NOT_INVITED, {"cohort": NAMES[1:]}, {}),
    (Refusal.COHORT_TOO_SMALL, {"cohort": NAMES[:1], "threshold": 1}, {}),
    (Refusal.COHORT_TOO_SMALL, {"cohort": NAMES[:2], "threshold": 2}, {}),
    (Refusal.COHORT_TOO_SMALL, {"cohort": NAMES[:2], "threshold": 2}, {"min_cohort": 1}),  # it would allow it
    (Refusal.COHORT_TOO_SMALL, {"cohort": NAMES[:4], "threshold": 3}, {"min_cohort": 5}),
    *(
        (Refusal.OTHER_EXCHANGE, changes, {})
        for changes in ({"study": "another"}, {"round": 0}, {"round": 2})
    ),
    *((Refusal.OTHER_EXCHANGE, changes, {}) for changes in ({"exchange": "losses"}, {"exchange_index": 1})),
    (Refusal.LAYOUT_CHANGED, {"layout_digest": bytes(32)}, {}),
    (Refusal.LAYOUT_TOO_LARGE, {}, {"max_elements": 5}),  # the tiny layout has six
    (Refusal.BROADCAST_UNKNOWN, {"broadcast_digest": bytes(32)}, {}),
]


@provokes(*dict.fromkeys(refusal for refusal, _, _ in SIGNED))
@pytest.mark.parametrize(("refusal", "changes", "limits"), SIGNED, ids=repr)
def test_what_the_aggregator_signs_is_not_what_the_site_expects(
    refusal: Refusal, changes: dict[str, Any], limits: dict[str, int]
) -> None:
    consortium = Consortium(limits=SiteLimits(**limits))
    refused_at_once(consortium, consortium.specification(**changes), refusal)


@provokes(Refusal.THRESHOLD_TOO_LOW)
@pytest.mark.parametrize(
    ("sites", "cohort", "threshold", "limits"),
    [
        (5, 5, 2, SiteLimits()),
        (5, 5, 3, SiteLimits()),  # 2t = 6 = n + c, not above it
        (9, 9, 5, SiteLimits()),  # 2t = 10 < 11
        (5, 5, 6, SiteLimits()),  # nobody could ever unmask; a secret shared beyond the cohort
        (5, 5, 4, SiteLimits(min_threshold=5)),
        (5, 5, 4, SiteLimits(min_cohort=5)),  # four survivors would be below the minimum cohort
        (5, 5, 3, SiteLimits(colluders=1)),
        (4, 4, 4, SiteLimits(colluders=3)),  # three colluders subtract themselves from a sum of four
        (7, 3, 3, SiteLimits()),  # the victim and two of the two tolerated colluders
        (7, 4, 3, SiteLimits()),  # 2t = 6 = 4 + 2
    ],
)
def test_a_threshold_that_would_let_the_server_unmask_one_site(
    sites: int, cohort: int, threshold: int, limits: SiteLimits
) -> None:
    consortium = Consortium(sites, limits=limits)
    spec = consortium.specification(cohort=consortium.names[:cohort], threshold=threshold)
    refused_at_once(consortium, spec, Refusal.THRESHOLD_TOO_LOW)


@provokes(Refusal.OLD_ATTEMPT)
@pytest.mark.parametrize("again", [0, 1, 2], ids=["an older one", "an older one", "the same one"])
def test_an_attempt_that_was_begun_before(again: int) -> None:
    consortium = Consortium()
    consortium.attempt(consortium.specification(attempt=2)).run(until="mask")
    spec = consortium.specification(attempt=again)
    consortium.attempt(spec).refused(VICTIM, spec.encode(), Refusal.OLD_ATTEMPT)


def test_an_old_round_is_refused_although_it_was_never_begun() -> None:
    consortium = Consortium()
    consortium.attempt(consortium.specification(round=7)).run()
    spec = consortium.specification(round=6)
    consortium.attempt(spec).refused(VICTIM, spec.encode(), Refusal.OLD_ATTEMPT)


@provokes(Refusal.ALREADY_SPENT)
def test_a_second_attempt_for_an_update_that_has_left() -> None:
    consortium = Consortium()
    consortium.attempt().run()
    spec = consortium.specification(attempt=1, cohort=consortium.names[:4])  # differs by one hospital
    consortium.attempt(spec).refused(VICTIM, spec.encode(), Refusal.ALREADY_SPENT)


def test_two_attempts_side_by_side_let_one_update_leave() -> None:
    """Two sessions over one journal, as when an agent was started twice: the earlier one is stopped."""
    consortium = Consortium()
    first = consortium.attempt().run(until="mask")
    second = consortium.attempt(consortium.specification(attempt=1, cohort=consortium.names[:4]))
    second.run()
    for site in consortium.names[:4]:
        first.refused(site, first.requests[site], Refusal.OLD_ATTEMPT)


@provokes(Refusal.PRIVACY_FLOOR)
def test_an_update_without_the_privacy_that_the_policy_demands() -> None:
    limits = SiteLimits(require_privacy=True)
    consortium = Consortium(limits=limits)
    refused_at_once(consortium, consortium.specification(), Refusal.PRIVACY_FLOOR, privacy_applied=False)
    given = {name: {"privacy_applied": True} for name in NAMES}
    assert not Consortium(limits=limits).attempt(contributions=given).run().refusals


@provokes(Refusal.NOT_PLANNED)
def test_a_cohort_with_a_site_that_the_study_does_not_ask() -> None:
    consortium = Consortium()
    planned = frozenset(consortium.names[:4])
    refused_at_once(consortium, consortium.specification(), Refusal.NOT_PLANNED, planned=planned)
    spec = consortium.specification(cohort=consortium.names[:4])
    given = {name: {"planned": planned} for name in planned}
    assert not consortium.attempt(spec, contributions=given).run().refusals


@provokes(Refusal.TOO_FEW_CONTRIBUTORS)
@pytest.mark.parametrize(("least", "colluders"), [(4, 1), (2, 2)])
def test_a_cohort_in_which_the_victim_s_values_meet_zeros_only(least: int, colluders: int) -> None:
    """Three sites add more than zeros: fewer than the study wants, or than two beside the colluders."""
    consortium = Consortium(limits=SiteLimits(colluders=colluders))
    parts = ((frozenset(consortium.names[:3]), least),)
    refused_at_once(consortium, consortium.specification(), Refusal.TOO_FEW_CONTRIBUTORS, contributors=parts)


def test_enough_contributors_and_none_at_all_are_both_in_order() -> None:
    consortium = Consortium(limits=SiteLimits(colluders=1))
    parts = ((frozenset(consortium.names[:3]), 3), (frozenset({"hospital-x"}), 3))
    given = {name: {"contributors": parts} for name in consortium.names}
    attempt = consortium.attempt(contributions=given).run()
    assert not attempt.refusals
    assert attempt.stage == "over"


@provokes(Refusal.JOURNAL_ROLLED_BACK)
@pytest.mark.parametrize("how", ["copied over", "renamed in", "removed"])
def test_a_journal_rolled_back_while_the_site_runs(how: str, tmp_path: Path) -> None:
    path, backup = tmp_path / "journal.sqlite", tmp_path / "backup.sqlite"
    journal = Journal(path)
    shutil.copy(path, backup)
    consortium = Consortium()
    consortium.journals[VICTIM].journal = journal
    attempt = consortium.attempt().run(until="unmask")
    if how == "copied over":
        shutil.copyfile(backup, path)
    elif how == "renamed in":
        backup.rename(path)
    else:
        path.unlink()
    error = attempt.refused(VICTIM, attempt.requests[VICTIM], Refusal.JOURNAL_ROLLED_BACK)
    assert str(tmp_path) not in str(error)  # the aggregator is told why
    journal.close()
