"""A site in a sparse graph of masks from the sharing set to its shares: what is another rule there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from secfed.crypto import labels
from secfed.crypto.masked.graph_messages import (
    ProvenUnmaskRequest,
    UploadProof,
)
from secfed.crypto.messages import (
    SharingSet,
    Survivors,
    UnmaskRequest,
    names_digest,
    view_parts,
)
from secfed.crypto.messages import View as SignedView
from secfed.crypto.refusals import Refusal as R
from tests.vectors.primitives import pattern
from tests.vectors.scripts.sparse_case import (
    ASIDE,
    DROPPED,
    FIFTH,
    FIRST,
    FOURTH,
    LAST,
    ME,
    OUTSIDER,
    SparseScripts,
)


def sum_scripts(scripts: SparseScripts) -> None:
    """From the sharing set on."""
    _sharing_sets(scripts)
    _proofs(scripts)
    _unmasking(scripts)


def _sharing_sets(scripts: SparseScripts) -> None:
    every = SharingSet.decode(scripts.honest.requests["mask"][ME]).sharing
    without = {name: tuple(one for one in every if one != name) for name in every}
    cases = {
        "without_itself": (without[ME], R.ENVELOPE_STRAY),
        "of_an_outsider": ((OUTSIDER, *every), R.ENVELOPE_STRAY),
        "backwards": (every[::-1], R.ENVELOPE_STRAY),
        "too_few": ((DROPPED, ME, LAST), R.TOO_FEW_SHARING),
        # More than t of all sites, fewer than its threshold of this site's holders.
        "with_too_few_holders": ((FIRST, DROPPED, ME, FOURTH, LAST), R.TOO_FEW_SHARING),
    }
    scripts.each("mask", {name: (SharingSet(names), refusal) for name, (names, refusal) in cases.items()})
    deliveries = replace(scripts.deliveries, envelopes=scripts.deliveries.envelopes[1:])
    script = scripts.begin("mask_towards_a_neighbour_that_sent_nothing").until("confirm").send(deliveries)
    script.refuses(SharingSet(every), R.ENVELOPE_STRAY).end()
    for name, names in {
        "sharing_without_a_neighbour": without[FIRST],
        "sharing_without_a_stranger": without[FOURTH],
        "sharing_just_enough": (ASIDE, ME, FIFTH, LAST),
    }.items():
        scripts.begin(name).until("mask").send(SharingSet(names)).end()
    survivors = Survivors.decode(scripts.honest.requests["consistency"][ME]).survivors
    for count, refused in ((3, True), (4, False)):
        part = [[[ME, *survivors[:1], FOURTH, FIFTH][:count], 1]]
        script = scripts.begin(f"survivors_with_{count}_contributors", contributors=part).until("consistency")
        message = Survivors(survivors)
        (script.refuses(message, R.TOO_FEW_CONTRIBUTORS) if refused else script.send(message)).end()


def _proofs(scripts: SparseScripts) -> None:
    people, request = scripts.world.people, scripts.unmasking
    every = SharingSet.decode(scripts.honest.requests["mask"][ME]).sharing
    proofs = request.uploads
    first = proofs[0]

    def proof(
        site: str,
        *,
        spec_digest: bytes = scripts.spec_digest,
        sharing: tuple[str, ...] = every,
        adverts_digest: bytes = scripts.listed.digest,
        vector_digest: bytes = first.vector_digest,
        signer: str = "",
    ) -> UploadProof:
        parts = spec_digest, adverts_digest, names_digest(labels.SHARING_DIGEST, sharing), vector_digest
        return UploadProof(site, vector_digest, people[signer or site].sign(labels.SIGN_UPLOAD, *parts))

    def having(*made: UploadProof) -> ProvenUnmaskRequest:
        return replace(request, uploads=made)

    fewer = tuple(name for name in every if name != ME)
    cases: dict[str, tuple[Any, R]] = {
        "without_proofs": (having(), R.UPLOAD_UNPROVEN),
        "proof_missing": (having(*proofs[1:]), R.UPLOAD_UNPROVEN),
        "proofs_backwards": (having(*proofs[::-1]), R.UPLOAD_UNPROVEN),
        "proof_repeated": (having(first, *proofs), R.UPLOAD_UNPROVEN),
        "proof_of_no_dealer": (having(first, proof(FIFTH), *proofs[1:]), R.UPLOAD_UNPROVEN),
        "proof_of_the_dropped": (having(first, proof(DROPPED), *proofs[1:]), R.UPLOAD_UNPROVEN),
        "proof_unsigned": (having(*proofs[:1], replace(proofs[1], signature=bytes(64))), R.UPLOAD_UNPROVEN),
        "proof_signed_by_another": (having(proof(FIRST, signer=FIFTH), *proofs[1:]), R.UPLOAD_UNPROVEN),
        "proof_of_another_sharing_set": (having(proof(FIRST, sharing=fewer), *proofs[1:]), R.UPLOAD_UNPROVEN),
        "proof_of_other_adverts": (
            having(proof(FIRST, adverts_digest=pattern("x")), *proofs[1:]),
            R.UPLOAD_UNPROVEN,
        ),
        "proof_of_another_attempt": (
            having(proof(FIRST, spec_digest=pattern("x")), *proofs[1:]),
            R.UPLOAD_UNPROVEN,
        ),
        "proof_of_another_vector": (
            having(replace(first, vector_digest=pattern("x")), *proofs[1:]),
            R.UPLOAD_UNPROVEN,
        ),
        "proofs_before_views": (ProvenUnmaskRequest(request.dropped, (), ()), R.UPLOAD_UNPROVEN),
        "views_backwards": (replace(request, views=request.views[::-1]), R.VIEW_OUTSIDER),
        "view_unsigned": (
            replace(request, views=(*request.views[:5], replace(request.views[5], signature=bytes(64)))),
            R.VIEW_SIGNATURE,
        ),
        "too_few_views": (replace(request, views=request.views[:3]), R.TOO_FEW_VIEWS),
        "nobody_dropped": (replace(request, dropped=()), R.DROPPED_MISMATCH),
        "of_the_complete_graph": (UnmaskRequest(request.dropped, request.views), R.OUT_OF_ORDER),
    }
    scripts.each("unmask", cases)


def _unmasking(scripts: SparseScripts) -> None:
    request = scripts.unmasking
    for name, message in {
        "the_same": request,
        "that_of_the_complete_graph": UnmaskRequest(request.dropped, request.views),
    }.items():
        script = scripts.begin(f"unmask_again_by_{name}").until("result")
        script.refuses(message, R.SECOND_UNMASK).end()
    # Nobody whose shares this site holds is in the sum but one: it gives out a share of each kind.
    world, spec = scripts.world, scripts.honest.spec
    every = SharingSet.decode(scripts.honest.requests["mask"][ME]).sharing
    four = (FIRST, ME, FOURTH, FIFTH)
    parts = view_parts(spec.digest, scripts.listed.digest, every, four)
    views = tuple(SignedView(name, world.people[name].sign(labels.SIGN_VIEW, *parts)) for name in four)
    dropped = tuple(name for name in every if name not in four)
    script = scripts.begin("shares_of_both_kinds").until("consistency").send(Survivors(four))
    script.send(ProvenUnmaskRequest(dropped, views, request.uploads[:1])).end()
