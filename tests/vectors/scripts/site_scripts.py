"""Every rule of a site, broken by a server, a site or both; and what must not be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from secfed.crypto import labels
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Deliveries,
    Envelope,
    Result,
    SharingSet,
    Specification,
    Survivors,
    UnmaskRequest,
    View,
    view_parts,
)
from secfed.crypto.refusals import Refusal as R
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.site_builder import Scripts
from tests.vectors.scripts.site_journal_scripts import journal_scripts
from tests.vectors.scripts.world import ASIDE, COHORT, DROPPED, GROUP_KEY, ME, SHAPE, THRESHOLD

FIRST, _, _, FOURTH, FIFTH, LAST = COHORT


def site_scripts(scripts: Scripts) -> Json:
    """The file."""
    _whole_attempts(scripts)
    _specifications(scripts)
    _adverts(scripts)
    _deliveries(scripts)
    _sharing_sets(scripts)
    _survivors(scripts)
    _unmasking(scripts)
    _results(scripts)
    journal_scripts(scripts)
    return scripts.content()


def _each(
    scripts: Scripts,
    stage: str,
    cases: dict[str, tuple[Any, R]],
    party: Callable[[str], dict[str, Any]] | None = None,
) -> None:
    for name, (message, refusal) in cases.items():
        script = scripts.begin(name, **(party(name) if party else {}))
        script.until(stage).refuses(message, refusal).end()


def _whole_attempts(scripts: Scripts) -> None:
    honest = scripts.honest.requests
    whole = scripts.begin("whole_attempt")
    whole.until("result").honest("result").refuses(honest["result"][ME], R.OUT_OF_ORDER).end()
    for name, own in {
        "closed": {"group_key": GROUP_KEY.hex()},
        "aes": {"keystream": "aes-256-ctr"},
        "closed_aes": {"group_key": GROUP_KEY.hex(), "keystream": "aes-256-ctr"},
    }.items():
        script = scripts.begin(f"upload_{name}", **own).until("consistency")
        script.honest("consistency", "unmask")
        (script.refuses(honest["result"][ME], R.OUT_OF_ORDER) if "group_key" in own else script).end()
    request = UnmaskRequest.decode(honest["unmask"][ME])
    others = tuple(view for view in request.views if view.site != ME)
    script = scripts.begin("views_of_others_are_enough").until("unmask")
    script.send(replace(request, views=others[:THRESHOLD])).honest("result").end()


def _specifications(scripts: Scripts) -> None:
    world, honest = scripts.world, scripts.honest.spec
    encoded, make = honest.encode(), world.specification

    def named(**changes: Any) -> Specification:
        return make(**changes)

    cases: dict[str, tuple[Any, R]] = {
        "empty": (b"", R.MALFORMED),
        "another_version": (b"secfed/v2" + encoded[9:], R.MALFORMED),
        "only_a_header": (encoded[:10], R.MALFORMED),
        "cut_off": (encoded[:-1], R.MALFORMED),
        "trailing_byte": (encoded + b"\0", R.MALFORMED),
        "unknown_type": (encoded[:9] + b"\xc8" + encoded[10:], R.OUT_OF_ORDER),
        "another_type_cut_off": (b"secfed/v1\2", R.OUT_OF_ORDER),
        "adverts_first": (scripts.honest.requests["share"][ME], R.OUT_OF_ORDER),
        "altered": (replace(honest, attempt=1), R.SPEC_SIGNATURE),
        "signed_by_a_site": (make(world.people[ME]), R.SPEC_SIGNATURE),
        "signed_as_a_result": (make(label=labels.SIGN_RESULT), R.SPEC_SIGNATURE),
        "roster_changed": (named(roster_digest=pattern("x")), R.ROSTER_CHANGED),
        "roster_before_cohort": (named(roster_digest=pattern("x"), cohort=()), R.ROSTER_CHANGED),
        "stranger": (named(cohort=(*COHORT[:5], "x")), R.UNKNOWN_MEMBER),
        "stranger_before_order": (named(cohort=("x", *COHORT[::-1])), R.UNKNOWN_MEMBER),
        "cohort_backwards": (named(cohort=COHORT[::-1]), R.COHORT_ORDER),
        "cohort_by_utf16": (named(cohort=(*COHORT[:4], LAST, FIFTH)), R.COHORT_ORDER),
        "cohort_by_number": (named(cohort=(FIRST, ME, DROPPED, *COHORT[3:])), R.COHORT_ORDER),
        "member_twice": (named(cohort=(*COHORT[:3], *COHORT[2:])), R.COHORT_ORDER),
        "not_invited": (named(cohort=(FIRST, DROPPED, *COHORT[3:])), R.NOT_INVITED),
        "two_sites": (named(cohort=(ME, FOURTH), threshold=2), R.COHORT_TOO_SMALL),
        "empty_cohort": (named(cohort=()), R.NOT_INVITED),
        "another_study": (named(study=honest.study + "0"), R.OTHER_EXCHANGE),
        "another_round": (named(round=4), R.OTHER_EXCHANGE),
        "another_exchange_index": (named(exchange_index=2), R.OTHER_EXCHANGE),
        "another_exchange": (named(exchange="another"), R.OTHER_EXCHANGE),
        "layout": (named(layout_digest=pattern("x")), R.LAYOUT_CHANGED),
        "broadcast": (named(broadcast_digest=pattern("x")), R.BROADCAST_UNKNOWN),
        "layout_before_broadcast": (
            named(layout_digest=pattern("x"), broadcast_digest=pattern("x")),
            R.LAYOUT_CHANGED,
        ),
        "threshold_zero": (named(threshold=0), R.THRESHOLD_TOO_LOW),
        "threshold_above_the_cohort": (named(threshold=7), R.THRESHOLD_TOO_LOW),
        "threshold_two_of_three": (named(cohort=COHORT[:3], threshold=2), R.THRESHOLD_TOO_LOW),
        "threshold_half": (named(threshold=3), R.THRESHOLD_TOO_LOW),
    }
    _each(scripts, "advertise", {f"specification_{name}": case for name, case in cases.items()})
    least, parts = COHORT[:2], [[list(COHORT[1:4]), 2]]
    limited: dict[str, tuple[dict[str, Any], Any, R]] = {
        "own_minimum_cohort": ({"limits": {"min_cohort": 7}}, honest, R.COHORT_TOO_SMALL),
        "two_sites_though_permitted": (
            {"limits": {"min_cohort": 1, "min_threshold": 1, "colluders": 0}},
            named(cohort=(ME, FOURTH), threshold=2),
            R.COHORT_TOO_SMALL,
        ),
        "own_minimum_threshold": ({"limits": {"min_threshold": 5}}, honest, R.THRESHOLD_TOO_LOW),
        "own_minimum_cohort_as_threshold": ({"limits": {"min_cohort": 5}}, honest, R.THRESHOLD_TOO_LOW),
        "colluders_of_the_roster": ({"limits": {"colluders": None}}, honest, R.THRESHOLD_TOO_LOW),
        "twice_the_threshold_at_the_limit": ({"limits": {"colluders": 2}}, honest, R.THRESHOLD_TOO_LOW),
        "two_honest_sites": ({"limits": {"colluders": 5}}, named(threshold=6), R.THRESHOLD_TOO_LOW),
        "too_many_elements": ({"limits": {"max_elements": SHAPE.elements - 1}}, honest, R.LAYOUT_TOO_LARGE),
        "too_many_elements_and_another_layout": (
            {"limits": {"max_elements": 0}},
            named(layout_digest=pattern("x")),
            R.LAYOUT_TOO_LARGE,
        ),
        "privacy_demanded": ({"limits": {"require_privacy": True}}, honest, R.PRIVACY_FLOOR),
        "privacy_before_threshold": (
            {"limits": {"require_privacy": True}},
            named(threshold=3),
            R.PRIVACY_FLOOR,
        ),
        "not_planned": ({"planned": [name for name in COHORT if name != LAST]}, honest, R.NOT_PLANNED),
        "nobody_else_planned": ({"planned": [ME]}, honest, R.NOT_PLANNED),
        "two_contributors": ({"contributors": [[list(least), 1]]}, honest, R.TOO_FEW_CONTRIBUTORS),
        "one_contributor": ({"contributors": [[[ME], 1]]}, honest, R.TOO_FEW_CONTRIBUTORS),
        "fewer_contributors_than_wanted": (
            {"contributors": [*parts, [list(COHORT[:4]), 5]]},
            honest,
            R.TOO_FEW_CONTRIBUTORS,
        ),
        "contributors_before_layout": (
            {"contributors": [[list(least), 1]]},
            named(layout_digest=pattern("x")),
            R.TOO_FEW_CONTRIBUTORS,
        ),
    }
    for name, (party, message, refusal) in limited.items():
        scripts.begin(f"policy_{name}", **party).refuses(message, refusal).end()
    permitted: dict[str, dict[str, Any]] = {
        "elements_at_the_limit": {"limits": {"max_elements": SHAPE.elements}},
        "privacy_applied": {"limits": {"require_privacy": True}, "privacy_applied": True},
        "limits_just_met": {"limits": {"min_cohort": 4, "min_threshold": 4}},
        "all_planned": {"planned": [ASIDE, *COHORT]},
        "enough_contributors": {"contributors": [[list(COHORT[1:4]), 3]]},
        "no_contributor_at_all": {"contributors": [[[ASIDE], 3]]},
    }
    for name, party in permitted.items():
        scripts.begin(f"permitted_{name}", **party).send(honest).end()


def _adverts(scripts: Scripts) -> None:
    world, spec = scripts.world, scripts.honest.spec
    adverts = Adverts.decode(scripts.honest.requests["share"][ME]).adverts
    own = adverts[2]

    def by(site: str, **changes: Any) -> Advert:
        advert = next((one for one in adverts if one.site == site), own)
        made = replace(advert, **{"site": site, **changes})
        return signed(made, world.people[site], labels.SIGN_ADVERT, spec.digest)

    def with_(*made: Advert) -> Adverts:
        new = {one.site: one for one in made}
        return Adverts(tuple(new.get(one.site, one) for one in adverts))

    second = world.specification(attempt=1)
    elsewhere = signed(adverts[0], world.people[FIRST], labels.SIGN_ADVERT, second.digest)
    other, fresh = adverts[4], pattern("fresh", 1216)
    cases: dict[str, tuple[Any, R]] = {
        "of_the_roster_not_of_the_cohort": (
            Adverts((by(ASIDE, mask_key=fresh), *adverts)),
            R.ADVERT_OUTSIDER,
        ),
        "of_a_stranger": (Adverts((*adverts, replace(own, site="x"))), R.ADVERT_OUTSIDER),
        "backwards": (Adverts(adverts[::-1]), R.ADVERT_ORDER),
        "two_exchanged": (Adverts((*adverts[:4], adverts[5], adverts[4])), R.ADVERT_ORDER),
        "repeated": (Adverts((*adverts[:3], *adverts[2:])), R.ADVERT_ORDER),
        "altered": (with_(replace(adverts[0], commitment=pattern("x"))), R.ADVERT_SIGNATURE),
        "own_altered_unsigned": (with_(replace(own, commitment=pattern("x"))), R.ADVERT_SIGNATURE),
        "of_another_attempt": (with_(elsewhere), R.ADVERT_SIGNATURE),
        "of_another_site": (with_(replace(adverts[4], site=FIRST)), R.ADVERT_SIGNATURE),
        "own_altered": (with_(by(ME, commitment=pattern("x"))), R.OWN_ADVERT),
        "own_missing": (Adverts((*adverts[:2], *adverts[3:])), R.OWN_ADVERT),
        "mask_key_copied": (with_(by(FIRST, mask_key=other.mask_key)), R.DUPLICATE_KEY),
        "seal_key_copied": (with_(by(FIRST, seal_key=other.seal_key)), R.DUPLICATE_KEY),
        "commitment_copied": (with_(by(FIRST, commitment=own.commitment)), R.DUPLICATE_KEY),
        "mask_key_as_seal_key": (with_(by(LAST, seal_key=adverts[0].mask_key)), R.DUPLICATE_KEY),
        "own_key_copied": (with_(by(LAST, mask_key=own.seal_key)), R.DUPLICATE_KEY),
        "one_key_for_two": (with_(by(LAST, seal_key=adverts[5].mask_key)), R.DUPLICATE_KEY),
        "too_few": (Adverts(adverts[:3]), R.TOO_FEW_ADVERTS),
        "empty": (Adverts(()), R.OWN_ADVERT),
        "mask_key_unreduced": (with_(by(FIRST, mask_key=b"\xff" * 1216)), R.MALFORMED),
        "seal_key_of_small_order": (
            with_(by(LAST, seal_key=adverts[5].seal_key[:-32] + bytes(32))),
            R.MALFORMED,
        ),
    }
    _each(scripts, "share", {f"adverts_{name}": case for name, case in cases.items()})
    scripts.begin("adverts_just_enough").until("share").send(Adverts(adverts[:4])).end()


def _deliveries(scripts: Scripts) -> None:
    world, spec = scripts.world, scripts.honest.spec
    envelopes = Deliveries.decode(scripts.honest.requests["confirm"][ME]).envelopes
    digest = Adverts.decode(scripts.honest.requests["share"][ME]).digest
    first, *rest = envelopes

    def by(sender: str, adverts_digest: bytes = digest, **changes: Any) -> Envelope:
        envelope = next((one for one in envelopes if one.sender == sender), first)
        made = replace(envelope, **{"sender": sender, **changes})
        return signed(made, world.people[sender], labels.SIGN_ENVELOPE, spec.digest, adverts_digest)

    def in_place(*made: Envelope) -> Deliveries:
        new = {one.sender: one for one in made}
        return Deliveries(tuple(new.get(one.sender, one) for one in envelopes))

    cases: dict[str, tuple[Any, R]] = {
        "misaddressed": (in_place(by(FIRST, recipient=FIFTH)), R.ENVELOPE_STRAY),
        "from_itself": (Deliveries((*envelopes[:2], by(ME), *envelopes[2:])), R.ENVELOPE_STRAY),
        "from_outside": (Deliveries((by(ASIDE), *envelopes)), R.ENVELOPE_STRAY),
        "from_a_stranger": (Deliveries((replace(first, sender="x"), *rest)), R.ENVELOPE_STRAY),
        "repeated": (Deliveries((first, *envelopes)), R.ENVELOPE_STRAY),
        "backwards": (Deliveries(envelopes[::-1]), R.ENVELOPE_STRAY),
        "altered": (in_place(replace(first, self_mask_share_digest=pattern("x"))), R.ENVELOPE_SIGNATURE),
        "of_another_advertised_set": (in_place(by(LAST, pattern("x"))), R.ENVELOPE_SIGNATURE),
        "of_another_sender": (in_place(replace(rest[-1], sender=FIRST)), R.ENVELOPE_SIGNATURE),
        "too_few": (Deliveries(envelopes[:2]), R.TOO_FEW_SHARING),
    }
    _each(scripts, "confirm", {f"deliveries_{name}": case for name, case in cases.items()})
    complaints = {
        "seed_does_not_open": by(FIRST, sealed_seed=bytes(1168)),
        "shares_do_not_open": by(FIRST, sealed_shares=bytes(1202)),
        "seed_for_another_site": by(LAST, sealed_seed=first.sealed_seed),
        "another_share_of_the_mask_secret": by(LAST, mask_secret_share_digest=pattern("x")),
        "another_share_of_the_self_mask_seed": by(FOURTH, self_mask_share_digest=pattern("x")),
        "digests_exchanged": by(
            FOURTH,
            mask_secret_share_digest=envelopes[2].self_mask_share_digest,
            self_mask_share_digest=envelopes[2].mask_secret_share_digest,
        ),
    }
    sharing = scripts.honest.requests["mask"][ME]
    for name, envelope in complaints.items():
        script = scripts.begin(f"complaint_{name}").until("confirm").send(in_place(envelope))
        script.refuses(sharing, R.ENVELOPE_SEALED).end()
    both = in_place(complaints["seed_does_not_open"], complaints["another_share_of_the_mask_secret"])
    scripts.begin("complaint_of_two").until("confirm").send(both).refuses(sharing, R.ENVELOPE_SEALED).end()
    few = scripts.begin("deliveries_just_enough").until("confirm").send(Deliveries(envelopes[:3]))
    few.send(SharingSet(tuple(sorted((ME, *(one.sender for one in envelopes[:3])))))).end()


def _sharing_sets(scripts: Scripts) -> None:
    every = SharingSet.decode(scripts.honest.requests["mask"][ME]).sharing
    cases = {
        "backwards": (every[::-1], R.ENVELOPE_STRAY),
        "two_exchanged": ((*every[:4], every[5], every[4]), R.ENVELOPE_STRAY),
        "repeated": ((every[0], *every), R.ENVELOPE_STRAY),
        "stranger": ((ASIDE, *every), R.ENVELOPE_STRAY),
        "without_itself": ((*every[:2], *every[3:]), R.ENVELOPE_STRAY),
        "too_few": (every[:3], R.TOO_FEW_SHARING),
        "empty": ((), R.ENVELOPE_STRAY),
    }
    _each(scripts, "mask", {f"sharing_{name}": (SharingSet(names), r) for name, (names, r) in cases.items()})
    envelopes = Deliveries.decode(scripts.honest.requests["confirm"][ME]).envelopes
    script = scripts.begin("sharing_with_a_site_that_sent_nothing").until("confirm")
    script.send(Deliveries(envelopes[:-1])).refuses(SharingSet(every), R.ENVELOPE_STRAY).end()
    scripts.begin("sharing_just_enough").until("mask").send(SharingSet(every[:4])).end()
    script = scripts.begin("sharing_then_survivors_outside").until("mask").send(SharingSet(every[:5]))
    script.refuses(Survivors(every[1:]), R.SURVIVORS_OUTSIDE).end()


def _survivors(scripts: Scripts) -> None:
    every = Survivors.decode(scripts.honest.requests["consistency"][ME]).survivors
    cases = {
        "backwards": (every[::-1], R.SURVIVORS_OUTSIDE),
        "repeated": ((*every, every[-1]), R.SURVIVORS_OUTSIDE),
        "outsider": ((ASIDE, *every), R.SURVIVORS_OUTSIDE),
        "without_itself": (tuple(name for name in COHORT if name != ME), R.SURVIVORS_WITHOUT_SELF),
        "too_few": (every[:3], R.TOO_FEW_SURVIVORS),
        "empty": ((), R.SURVIVORS_WITHOUT_SELF),
    }
    _each(scripts, "consistency", {f"survivors_{name}": (Survivors(n), r) for name, (n, r) in cases.items()})
    three = [[[DROPPED, ME, LAST], 1]]
    script = scripts.begin("survivors_too_few_contributors", contributors=three).until("consistency")
    script.refuses(Survivors(every), R.TOO_FEW_CONTRIBUTORS).end()
    scripts.begin("survivors_everybody").until("consistency").send(Survivors(COHORT)).end()
    script = scripts.begin("survivors_twice").until("consistency").send(Survivors(every))
    script.refuses(Survivors(COHORT), R.OUT_OF_ORDER).end()


def _unmasking(scripts: Scripts) -> None:
    world, spec = scripts.world, scripts.honest.spec
    request = UnmaskRequest.decode(scripts.honest.requests["unmask"][ME])
    adverts = Adverts.decode(scripts.honest.requests["share"][ME]).digest
    sharing = SharingSet.decode(scripts.honest.requests["mask"][ME]).sharing
    survivors = Survivors.decode(scripts.honest.requests["consistency"][ME]).survivors
    views = request.views

    def view(site: str, **shown: Any) -> View:
        parts = {"spec": spec.digest, "adverts": adverts, "sharing": sharing, "survivors": survivors, **shown}
        return View(site, world.people[site].sign(labels.SIGN_VIEW, *view_parts(*parts.values())))

    def having(*made: View) -> UnmaskRequest:
        return replace(request, views=made)

    cases: dict[str, tuple[Any, R]] = {
        "views_backwards": (having(*views[::-1]), R.VIEW_OUTSIDER),
        "view_repeated": (having(*views[:4], views[3]), R.VIEW_OUTSIDER),
        "view_of_the_dropped": (having(views[0], view(DROPPED), *views[1:]), R.VIEW_OUTSIDER),
        "view_of_an_outsider": (having(view(ASIDE), *views), R.VIEW_OUTSIDER),
        "view_unsigned": (having(*views[:4], replace(views[4], signature=bytes(64))), R.VIEW_SIGNATURE),
        "view_of_other_survivors": (having(view(FIRST, survivors=COHORT), *views[1:]), R.VIEW_SIGNATURE),
        "view_of_another_sharing_set": (having(view(FIRST, sharing=survivors), *views[1:]), R.VIEW_SIGNATURE),
        "view_of_other_adverts": (having(*views[:4], view(LAST, adverts=pattern("x"))), R.VIEW_SIGNATURE),
        "view_of_another_attempt": (having(*views[:4], view(LAST, spec=pattern("x"))), R.VIEW_SIGNATURE),
        "too_few_views": (having(*views[:3]), R.TOO_FEW_VIEWS),
        "no_views": (having(), R.TOO_FEW_VIEWS),
        "nobody_dropped": (replace(request, dropped=()), R.DROPPED_MISMATCH),
        "survivor_dropped": (replace(request, dropped=(FIRST, DROPPED)), R.DROPPED_MISMATCH),
        "another_dropped": (replace(request, dropped=(LAST,)), R.DROPPED_MISMATCH),
        "dropped_twice": (replace(request, dropped=(DROPPED, DROPPED)), R.DROPPED_MISMATCH),
    }
    _each(scripts, "unmask", {f"unmask_{name}": case for name, case in cases.items()})
    four = (FIRST, ME, FOURTH, LAST)
    both = tuple(view(name, survivors=four) for name in four)
    script = scripts.begin("unmask_dropped_backwards").until("consistency").send(Survivors(four))
    script.refuses(UnmaskRequest((FIFTH, DROPPED), both), R.DROPPED_MISMATCH).end()
    script = scripts.begin("unmask_two_dropped").until("consistency").send(Survivors(four))
    script.send(UnmaskRequest((DROPPED, FIFTH), both)).refuses(request, R.SECOND_UNMASK).end()
    script = scripts.begin("unmask_nobody_dropped_in_truth").until("consistency").send(Survivors(COHORT))
    script.send(UnmaskRequest((), tuple(view(name, survivors=COHORT) for name in COHORT))).end()


def _results(scripts: Scripts) -> None:
    world, spec = scripts.world, scripts.honest.spec
    honest = Result.decode(scripts.honest.requests["result"][ME])

    def made(**changes: Any) -> Result:
        return signed(replace(honest, **changes), world.aggregator, labels.SIGN_RESULT)

    cases: dict[str, tuple[Any, R]] = {
        "unsigned": (replace(honest, signature=bytes(64)), R.RESULT_SIGNATURE),
        "signed_by_a_site": (signed(honest, world.people[FIRST], labels.SIGN_RESULT), R.RESULT_SIGNATURE),
        "other_totals_unsigned": (replace(honest, totals_digest=pattern("x")), R.RESULT_SIGNATURE),
        "of_another_specification": (
            made(spec_digest=world.specification(attempt=1).digest),
            R.RESULT_MISMATCH,
        ),
        "other_survivors": (made(survivors=COHORT), R.RESULT_MISMATCH),
        "fewer_survivors": (made(survivors=honest.survivors[1:]), R.RESULT_MISMATCH),
        "unmask_again": (scripts.honest.requests["unmask"][ME], R.SECOND_UNMASK),
        "survivors_again": (scripts.honest.requests["consistency"][ME], R.OUT_OF_ORDER),
        "cut_off": (honest.encode()[:-1], R.MALFORMED),
    }
    _each(scripts, "result", {f"result_{name}": case for name, case in cases.items()})
    honest_result = scripts.honest.requests["result"][ME]
    scripts.begin("result_before_unmasking").until("unmask").refuses(honest_result, R.OUT_OF_ORDER).end()
    assert honest.spec_digest == spec.digest
