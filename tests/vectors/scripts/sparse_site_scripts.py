"""A site in a sparse graph of masks up to its neighbours' envelopes: what is another rule there, broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from secfed.crypto import labels
from secfed.crypto.masked.graph_messages import (
    AdvertDigest,
    AdvertDigests,
    Choice,
    NeighbourDeliveries,
    Neighbourhood,
    SeedEnvelope,
    advert_digest,
)
from secfed.crypto.message_base import signed
from secfed.crypto.messages import (
    Advert,
    Adverts,
    Deliveries,
    Envelope,
)
from secfed.crypto.refusals import Refusal as R
from tests.vectors.attempt import Envelopes
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.sparse_case import (
    ASIDE,
    DRAW,
    DROPPED,
    FIFTH,
    FIRST,
    FOURTH,
    GRAPH,
    HOLDERS,
    LAST,
    ME,
    OUTSIDER,
    SITES,
    THRESHOLD,
    SparseScripts,
    sparse_honest,
)
from tests.vectors.scripts.sparse_site_sums import sum_scripts
from tests.vectors.scripts.world import GROUP_KEY


def sparse_site_content(envelopes: Envelopes) -> Json:
    """The file."""
    honest = sparse_honest(envelopes)
    about = (
        "a sparse graph: one hospital of eight; seven are asked, one falls silent; README.md has the format"
    )
    scripts = SparseScripts(honest.world, honest, about, "sparse", (DRAW,), {"graph": GRAPH})
    _whole_attempts(scripts)
    _advert_digests(scripts)
    _choices(scripts)
    _relayed_adverts(scripts)
    _deliveries(scripts)
    sum_scripts(scripts)
    return scripts.content()


def _whole_attempts(scripts: SparseScripts) -> None:
    world, honest = scripts.world, scripts.honest
    whole = scripts.begin("whole_attempt").until("result").honest("result")
    whole.refuses(honest.requests["result"][ME], R.OUT_OF_ORDER).end()
    closed = scripts.begin("whole_attempt_of_a_closed_sum", group_key=GROUP_KEY.hex()).until("result")
    closed.refuses(honest.requests["result"][ME], R.OUT_OF_ORDER).end()
    other = scripts.begin("upload_under_aes", keystream="aes-256-ctr").until("consistency")
    other.honest("consistency").end()
    last = world.specification(cohort=SITES, threshold=THRESHOLD, attempt=15)
    scripts.begin("attempt_15").send(last).end()
    late = world.specification(cohort=SITES, threshold=THRESHOLD, attempt=16)
    refused = scripts.begin("attempt_16").refuses(late, R.TOO_MANY_ATTEMPTS)
    # Refused before the journal: the attempt was not begun.
    refused.open("b").send(last).end()
    complete = scripts.begin("attempt_16_of_a_complete_graph", graph=None)
    complete.send(late).end()


def _advert_digests(scripts: SparseScripts) -> None:
    lines = scripts.listed.adverts
    own = lines[3]
    adverts = {one.site: one for one in scripts.neighbourhood.adverts}
    complete = Adverts(tuple(adverts.values()))
    altered = replace(own, digest=pattern("x"))
    stranger = AdvertDigest(OUTSIDER, pattern("x"))
    cases = {
        "adverts_of_the_complete_graph": (complete, R.OUT_OF_ORDER),
        "of_the_roster_not_of_the_cohort": (AdvertDigests((stranger, *lines)), R.ADVERT_OUTSIDER),
        "backwards": (AdvertDigests(lines[::-1]), R.ADVERT_ORDER),
        "repeated": (AdvertDigests((*lines[:2], *lines[1:])), R.ADVERT_ORDER),
        "without_itself": (AdvertDigests((*lines[:3], *lines[4:])), R.OWN_ADVERT),
        "own_altered": (AdvertDigests((*lines[:3], altered, *lines[4:])), R.OWN_ADVERT),
        "too_few": (AdvertDigests(lines[1:4]), R.TOO_FEW_ADVERTS),
        "cut_off": (scripts.listed.encode()[:-1], R.MALFORMED),
    }
    scripts.each("choose", cases)
    scripts.begin("just_enough_advertised").until("choose").send(AdvertDigests(lines[:4])).end()
    scripts.begin("one_more_than_enough_advertised").until("choose").send(AdvertDigests(lines[2:])).end()


def _choices(scripts: SparseScripts) -> None:
    adverts, choices = scripts.neighbourhood.adverts, scripts.neighbourhood.choices
    people, first = scripts.world.people, choices[0]

    def by(
        site: str, *, adverts_digest: bytes = scripts.listed.digest, signer: str = "", **new: Any
    ) -> Choice:
        made = replace(next(one for one in choices if one.site == site), **new)
        who = people[signer or site]
        return signed(made, who, labels.SIGN_CHOICE, scripts.spec_digest, adverts_digest)

    def of(site: str, *holders: str, threshold: int = 3) -> Choice:
        made = Choice.of(site, holders, threshold, SITES)
        return signed(made, people[site], labels.SIGN_CHOICE, scripts.spec_digest, scripts.listed.digest)

    def having(*made: Choice) -> Neighbourhood:
        new = {one.site: one for one in made}
        return replace(scripts.neighbourhood, choices=tuple(new.get(one.site, one) for one in choices))

    bits = int.from_bytes(first.holders, "little")
    cases: dict[str, tuple[Any, R]] = {
        "choice_unsigned": (having(replace(first, signature=bytes(64))), R.CHOICE_SIGNATURE),
        "choice_signed_by_another": (having(by(FIRST, signer=LAST)), R.CHOICE_SIGNATURE),
        "choice_of_another_advertised_set": (
            having(by(LAST, adverts_digest=pattern("x"))),
            R.CHOICE_SIGNATURE,
        ),
        "choice_too_long": (having(by(FIRST, holders=first.holders + b"\0")), R.NEIGHBOURHOOD),
        "choice_empty": (having(by(FIRST, holders=b"")), R.NEIGHBOURHOOD),
        "choice_padding": (having(by(FIRST, holders=bytes([bits | 128]))), R.NEIGHBOURHOOD),
        "choice_of_itself": (having(of(FIRST, FIRST, ME, DROPPED, LAST)), R.NEIGHBOURHOOD),
        "choice_without_this_site": (having(of(FIRST, DROPPED, FOURTH, LAST)), R.NEIGHBOURHOOD),
        "choice_with_no_threshold": (having(by(FIRST, threshold=0)), R.NEIGHBOURHOOD),
        "choice_with_a_threshold_above": (having(by(FIRST, threshold=5)), R.NEIGHBOURHOOD),
        "signature_before_the_choice": (
            having(replace(by(FIRST, holders=b""), signature=bytes(64))),
            R.CHOICE_SIGNATURE,
        ),
        "choices_backwards": (replace(scripts.neighbourhood, choices=choices[::-1]), R.NEIGHBOURHOOD),
        "choice_repeated": (replace(scripts.neighbourhood, choices=(first, *choices)), R.NEIGHBOURHOOD),
        "choice_of_a_site_that_did_not_advertise": (
            replace(scripts.neighbourhood, choices=(replace(first, site=OUTSIDER), *choices)),
            R.NEIGHBOURHOOD,
        ),
        "own_choice": (
            replace(scripts.neighbourhood, choices=(*choices[:2], of(ME, *HOLDERS), *choices[2:])),
            R.NEIGHBOURHOOD,
        ),
        "dealer_without_its_choice": (replace(scripts.neighbourhood, choices=choices[1:]), R.NEIGHBOURHOOD),
        "advert_missing_of_a_holder": (
            replace(scripts.neighbourhood, adverts=adverts[1:]),
            R.NEIGHBOURHOOD,
        ),
        "advert_missing_of_a_dealer": (
            replace(scripts.neighbourhood, adverts=tuple(one for one in adverts if one.site != FIRST)),
            R.NEIGHBOURHOOD,
        ),
        "advert_of_no_neighbour": (
            replace(scripts.neighbourhood, adverts=_in_order(*adverts, _advert(scripts, FOURTH))),
            R.NEIGHBOURHOOD,
        ),
        "adverts_backwards": (replace(scripts.neighbourhood, adverts=adverts[::-1]), R.NEIGHBOURHOOD),
        "advert_altered": (
            replace(
                scripts.neighbourhood,
                adverts=(_again(scripts, adverts[0], commitment=pattern("x")), *adverts[1:]),
            ),
            R.NEIGHBOURHOOD,
        ),
        "adverts_of_the_complete_graph": (Adverts(adverts), R.OUT_OF_ORDER),
        "cut_off": (scripts.neighbourhood.encode()[:-1], R.MALFORMED),
    }
    scripts.each("share", cases)
    nobody = replace(
        scripts.neighbourhood, adverts=tuple(one for one in adverts if one.site in HOLDERS), choices=()
    )
    scripts.begin("nobody_chose_this_site").until("share").send(nobody).end()


def _in_order(*adverts: Advert) -> tuple[Advert, ...]:
    return tuple(sorted(adverts, key=lambda advert: SITES.index(advert.site)))


def _advert(scripts: SparseScripts, site: str) -> Advert:
    return Advert.decode(scripts.honest.replies["advertise"][site])


def _again(scripts: SparseScripts, advert: Advert, **changes: Any) -> Advert:
    who = scripts.world.people[advert.site]
    return signed(replace(advert, **changes), who, labels.SIGN_ADVERT, scripts.spec_digest)


def _relayed_adverts(scripts: SparseScripts) -> None:
    """Adverts that are bad, and the ones that were listed."""
    adverts = {one.site: one for one in scripts.neighbourhood.adverts}
    own, last, fifth = _advert(scripts, ME), adverts[LAST], adverts[FIFTH]
    signature = bytes(64)
    small = last.seal_key[:-32] + bytes(32)
    cases = {
        "unsigned": (replace(fifth, signature=signature), R.ADVERT_SIGNATURE),
        "with_a_key_of_another": (_again(scripts, fifth, mask_key=last.mask_key), R.DUPLICATE_KEY),
        "with_a_key_of_this_site": (_again(scripts, fifth, seal_key=own.mask_key), R.DUPLICATE_KEY),
        "with_one_key_for_two": (_again(scripts, fifth, seal_key=fifth.mask_key), R.DUPLICATE_KEY),
        "with_the_commitment_of_this_site": (
            _again(scripts, fifth, commitment=own.commitment),
            R.DUPLICATE_KEY,
        ),
        "with_an_invalid_mask_key": (_again(scripts, fifth, mask_key=b"\xff" * 1216), R.MALFORMED),
        "with_an_invalid_seal_key": (_again(scripts, last, seal_key=small), R.MALFORMED),
    }
    for name, (advert, refusal) in cases.items():
        line = advert_digest(advert)
        listed = AdvertDigests(
            tuple(line if one.site == line.site else one for one in scripts.listed.adverts)
        )
        shown = tuple(advert if one.site == advert.site else one for one in scripts.neighbourhood.adverts)
        choices = tuple(_chosen_for(scripts, one, listed) for one in scripts.neighbourhood.choices)
        script = scripts.begin(f"advert_{name}").until("choose").send(listed)
        script.refuses(Neighbourhood(shown, choices), refusal).end()


def _chosen_for(scripts: SparseScripts, choice: Choice, listed: AdvertDigests) -> Choice:
    who = scripts.world.people[choice.site]
    return signed(choice, who, labels.SIGN_CHOICE, scripts.spec_digest, listed.digest)


def _deliveries(scripts: SparseScripts) -> None:
    people, whole = scripts.world.people, scripts.deliveries
    envelopes, seeds = whole.envelopes, whole.seeds
    context = scripts.spec_digest, scripts.listed.digest

    def by(sender: str, **changes: Any) -> Envelope:
        made = replace(envelopes[0], **{"sender": sender, **changes})
        return signed(made, people[sender], made.LABEL, *context)

    def seed(sender: str, at: int = 0, **changes: Any) -> SeedEnvelope:
        made = replace(seeds[at], **{"sender": sender, **changes})
        return signed(made, people[sender], made.LABEL, *context)

    first = envelopes[0]
    plain = SeedEnvelope(FIRST, ME, first.sealed_seed)
    without_shares = signed(plain, people[FIRST], plain.LABEL, *context)
    cases: dict[str, tuple[Any, R]] = {
        "seed_alone_from_a_dealer": (
            NeighbourDeliveries(envelopes[1:], (seeds[0], without_shares, seeds[1])),
            R.ENVELOPE_STRAY,
        ),
        "shares_from_a_site_that_did_not_choose_this_one": (
            NeighbourDeliveries((*envelopes[:2], by(FIFTH), *envelopes[2:]), seeds[:1]),
            R.ENVELOPE_STRAY,
        ),
        "envelope_of_no_neighbour": (
            NeighbourDeliveries((*envelopes[:2], by(FOURTH), *envelopes[2:]), seeds),
            R.ENVELOPE_STRAY,
        ),
        "seed_of_no_neighbour": (
            NeighbourDeliveries(envelopes, (seeds[0], seed(FOURTH), seeds[1])),
            R.ENVELOPE_STRAY,
        ),
        "seeds_backwards": (replace(whole, seeds=seeds[::-1]), R.ENVELOPE_STRAY),
        "envelopes_backwards": (replace(whole, envelopes=envelopes[::-1]), R.ENVELOPE_STRAY),
        "seed_misaddressed": (
            replace(whole, seeds=(seed(ASIDE, recipient=FIFTH), *seeds[1:])),
            R.ENVELOPE_STRAY,
        ),
        "seed_unsigned": (
            replace(whole, seeds=(*seeds[:1], replace(seeds[1], signature=bytes(64)))),
            R.ENVELOPE_SIGNATURE,
        ),
        "envelope_signed_as_a_seed": (
            replace(
                whole,
                envelopes=(signed(first, people[FIRST], SeedEnvelope.LABEL, *context), *envelopes[1:]),
            ),
            R.ENVELOPE_SIGNATURE,
        ),
        # Five sites sent something; of this site's holders only two did.
        "of_too_few_holders": (NeighbourDeliveries(envelopes, ()), R.TOO_FEW_SHARING),
        "of_the_complete_graph": (Deliveries(envelopes), R.OUT_OF_ORDER),
    }
    scripts.each("confirm", cases)
    sharing = scripts.honest.requests["mask"][ME]
    complaints = {
        "of_a_seed": replace(whole, seeds=(seed(ASIDE, sealed_seed=bytes(1168)), *seeds[1:])),
        "of_a_seed_for_another": replace(whole, seeds=(seeds[0], seed(FIFTH, 0))),
        "of_a_share": replace(
            whole, envelopes=(by(FIRST, self_mask_share_digest=pattern("x")), *envelopes[1:])
        ),
    }
    for name, message in complaints.items():
        script = scripts.begin(f"complaint_{name}").until("confirm").send(message)
        script.refuses(sharing, R.ENVELOPE_SEALED).end()
    few = NeighbourDeliveries(envelopes[1:], seeds[:1])
    scripts.begin("of_just_enough_holders").until("confirm").send(few).end()
