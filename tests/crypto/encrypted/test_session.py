"""One attempt under encrypted protection: what a site refuses, and what the aggregator adds to no sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tenseal")

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import Parameters, fit
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.session import EncryptedServer, EncryptedSite
from secfed.crypto.lanes import Run
from secfed.crypto.masked import masks
from secfed.crypto.messages import Survivors, Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import BadSignature, MalformedMessage, RoundAborted, SecfedError, WrongState
from tests.crypto.encrypted_case import keys_of, study_ring
from tests.ring import Integers
from tests.simulator import Consortium

RUNS = (Run(20, 5), Run(64, 1))
RING = study_ring(20, 3, "symmetric")
SITE, PEER = "hospital-0", "hospital-1"

Edit = Callable[[Consortium, Upload], Upload]


def consortium_of(sites: int = 3, **options: Any) -> Consortium:
    """Sites whose values are small, so that no sum leaves its range."""
    consortium = Consortium(sites, runs=RUNS, **options)
    for number, name in enumerate(consortium.names, 1):
        consortium.updates[name] = tuple(np.full(run.count, number, run.dtype) for run in RUNS)
    return consortium


def parameters() -> Parameters:
    return fit(RING, RUNS, 3)


def session(consortium: Consortium, name: str = SITE, **changes: Any) -> EncryptedSite:
    given = consortium.contribution(name, source=Integers(consortium.updates[name]), **changes)
    return EncryptedSite(given, SiteCipher(keys_of(RING)), parameters())


def refused(site: EncryptedSite, message: Buffer, refusal: Refusal) -> None:
    with pytest.raises(SecfedError, match=rf"^refusal {refusal.number}: ") as caught:
        site.handle(message)
    assert type(caught.value) is refusal.error


def test_the_sum_is_that_of_the_sites_that_uploaded() -> None:
    consortium = consortium_of(threshold=2)
    server = EncryptedServer(consortium.specification(), consortium.roster, parameters())
    requests = server.begin()
    assert set(requests) == set(consortium.names)
    for name in (consortium.names[2], SITE):
        server.receive(name, session(consortium, name).handle(requests[name]))
    assert (server.stage, server.spent) == ("mask", True)
    assert server.advance() == {}
    assert (server.stage, server.survivors) == ("done", (SITE, consortium.names[2]))
    cipher = SiteCipher(keys_of(RING))
    sums = cipher.decrypt(parameters(), [server.ciphertext()])
    assert [run.tolist() for run in sums] == consortium.expected(server.survivors)


def test_too_few_uploads_are_no_sum() -> None:
    consortium = consortium_of()
    server = EncryptedServer(consortium.specification(), consortium.roster, parameters())
    message = server.begin()[SITE]
    server.receive(SITE, session(consortium).handle(message))
    with pytest.raises(RoundAborted, match="only 1 of 3 sites uploaded, 3 are needed"):
        server.advance()
    assert server.stage == "mask"


# What a site refuses.


@pytest.mark.parametrize(
    ("change", "given", "refusal"),
    [
        ({"roster_digest": bytes(32)}, {}, Refusal.ROSTER_CHANGED),
        ({"cohort": (SITE, PEER, "hospital-9")}, {}, Refusal.UNKNOWN_MEMBER),
        ({"cohort": (PEER, SITE, "hospital-2")}, {}, Refusal.COHORT_ORDER),
        ({"cohort": (PEER, "hospital-2")}, {}, Refusal.NOT_INVITED),
        ({"cohort": (SITE,)}, {"limits": SiteLimits(min_cohort=1)}, Refusal.COHORT_TOO_SMALL),
        ({"cohort": (SITE, PEER)}, {}, Refusal.COHORT_TOO_SMALL),
        ({"round": 2}, {}, Refusal.OTHER_EXCHANGE),
        ({"layout_digest": bytes(32)}, {}, Refusal.LAYOUT_CHANGED),
        ({}, {"limits": SiteLimits(max_elements=5)}, Refusal.LAYOUT_TOO_LARGE),
        ({"broadcast_digest": bytes(32)}, {}, Refusal.BROADCAST_UNKNOWN),
        ({}, {"limits": SiteLimits(require_privacy=True)}, Refusal.PRIVACY_FLOOR),
        ({}, {"planned": frozenset({SITE, PEER})}, Refusal.NOT_PLANNED),
        ({}, {"contributors": ((frozenset({SITE}), 2),)}, Refusal.TOO_FEW_CONTRIBUTORS),
    ],
    ids=lambda value: value.name if isinstance(value, Refusal) else "",
)
def test_a_specification_is_checked_as_under_masks(
    change: dict[str, Any], given: dict[str, Any], refusal: Refusal
) -> None:
    consortium = consortium_of()
    site = session(consortium, **given)
    message = consortium.specification(threshold=2, **change).encode()
    refused(site, message, refusal)
    assert not consortium.journals[SITE].begun
    refused(site, consortium.specification().encode(), Refusal.OUT_OF_ORDER)  # it is over


def test_two_sites_are_enough_where_the_site_says_so() -> None:
    consortium = consortium_of()
    spec = consortium.specification(cohort=(SITE, PEER), threshold=2)
    site = session(consortium, limits=SiteLimits(min_cohort=2))
    assert site.handle(spec.encode())


def test_what_the_aggregator_did_not_sign_or_is_no_specification() -> None:
    consortium = consortium_of()
    forged = consortium.specification(signer=consortium.person("stranger")).encode()
    refused(session(consortium), forged, Refusal.SPEC_SIGNATURE)
    refused(session(consortium), forged[:-1], Refusal.MALFORMED)
    refused(session(consortium), b"", Refusal.MALFORMED)
    refused(session(consortium), Survivors(consortium.names).encode(), Refusal.OUT_OF_ORDER)
    assert not consortium.journals[SITE].begun


def test_an_update_leaves_once_whatever_the_attempt() -> None:
    consortium = consortium_of()
    site, message = session(consortium), consortium.specification().encode()
    site.handle(message)
    refused(site, message, Refusal.OUT_OF_ORDER)
    assert len(consortium.journals[SITE].begun) == len(consortium.journals[SITE].left) == 1
    refused(session(consortium), message, Refusal.ALREADY_SPENT)
    refused(session(consortium), consortium.specification(attempt=1).encode(), Refusal.ALREADY_SPENT)


def test_the_journal_says_that_an_upload_left_before_it_is_made() -> None:
    consortium = consortium_of()

    def broken(*_: object) -> None:
        raise Refusal.ALREADY_SPENT.refuse()

    consortium.journals[SITE].uploaded = broken  # type: ignore[assignment,method-assign]
    refused(session(consortium), consortium.specification().encode(), Refusal.ALREADY_SPENT)


# What the aggregator refuses.


def _sign(consortium: Consortium, upload: Upload, signer: str = SITE, **changes: Any) -> Upload:
    """An upload with this signer's signature over the specification, or over one that differs."""
    spec = consortium.specification(**changes)
    parts = spec.digest, upload.sharing_digest, upload.vector_digest
    return replace(upload, signature=consortium.identities[signer].sign(labels.SIGN_UPLOAD, *parts))


def _of_vector(consortium: Consortium, upload: Upload, vector: bytes) -> Upload:
    view = memoryview(vector)
    return _sign(consortium, replace(upload, vector=view, vector_digest=masks.vector_digest(view)))


def _other_parameters(consortium: Consortium, upload: Upload) -> Upload:
    return _sign(consortium, replace(upload, sharing_digest=bytes(32)))


def _flipped(_: Consortium, upload: Upload) -> Upload:
    return replace(upload, vector=memoryview(bytes(upload.vector[:-1]) + bytes([upload.vector[-1] ^ 1])))


def _shorter(consortium: Consortium, upload: Upload) -> Upload:
    return _of_vector(consortium, upload, bytes(upload.vector[:-1]))


def _not_reduced(consortium: Consortium, upload: Upload) -> Upload:
    vector = bytearray(upload.vector)
    vector[100:-100] = b"\xff" * (len(vector) - 200)
    return _of_vector(consortium, upload, bytes(vector))


@pytest.mark.parametrize(
    ("edit", "error", "said"),
    [
        (_other_parameters, MalformedMessage, "other parameters"),
        (_flipped, MalformedMessage, "signed digest"),
        (_shorter, MalformedMessage, "expected|not reduced"),
        (_not_reduced, MalformedMessage, "not reduced"),
        (lambda _, upload: replace(upload, signature=bytes(64)), BadSignature, "does not verify"),
        (lambda c, upload: _sign(c, upload, PEER), BadSignature, "does not verify"),
        (lambda c, upload: _sign(c, upload, attempt=1), BadSignature, "does not verify"),
    ],
    ids=["parameters", "flipped", "shorter", "not reduced", "unsigned", "a peer's", "of another attempt"],
)
def test_a_bad_upload_leaves_the_sum_as_it_was(edit: Edit, error: type[SecfedError], said: str) -> None:
    consortium = consortium_of(threshold=2)
    server = EncryptedServer(consortium.specification(), consortium.roster, parameters())
    message = server.begin()[SITE]
    server.receive(PEER, session(consortium, PEER).handle(message))
    before = server.ciphertext()
    upload = Upload.decode(bytes(session(consortium).handle(message)))
    with pytest.raises(error, match=said):
        server.receive(SITE, edit(consortium, upload).encode())
    assert server.survivors == (PEER,)
    assert server.ciphertext() == before


def test_an_upload_counts_once_for_its_own_site_while_the_sum_is_open() -> None:
    consortium = consortium_of(threshold=2)
    spec = consortium.specification(cohort=(SITE, PEER), threshold=2)
    server = EncryptedServer(spec, consortium.roster, parameters())
    limits = SiteLimits(min_cohort=2)
    uploads = {name: session(consortium, name, limits=limits).handle(spec.encode()) for name in (SITE, PEER)}
    server.receive(SITE, uploads[SITE])
    with pytest.raises(WrongState, match=SITE):
        server.receive(SITE, uploads[SITE])
    with pytest.raises(BadSignature):
        EncryptedServer(spec, consortium.roster, parameters()).receive(PEER, uploads[SITE])
    with pytest.raises(WrongState, match="was not asked"):
        server.receive("hospital-2", uploads[SITE])
    server.receive(PEER, uploads[PEER])
    server.advance()
    with pytest.raises(WrongState, match="was not asked"):
        server.receive(PEER, uploads[PEER])


def test_a_site_whose_upload_was_refused_has_had_its_reply() -> None:
    consortium = consortium_of(threshold=2)
    server = EncryptedServer(consortium.specification(), consortium.roster, parameters())
    good = bytes(session(consortium).handle(server.begin()[SITE]))
    with pytest.raises(MalformedMessage):
        server.receive(SITE, good[:-1])
    with pytest.raises(WrongState, match="answered twice"):
        server.receive(SITE, good)
    assert server.survivors == ()


def test_what_does_not_decode_is_refusal_1_in_every_state() -> None:
    consortium = consortium_of()
    site = session(consortium)
    site.handle(consortium.specification().encode())
    refused(site, b"garbage", Refusal.MALFORMED)
