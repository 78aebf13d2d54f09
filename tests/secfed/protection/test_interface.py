"""The registry, the sessions' common ground, and plain protection."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from secfed.config.protections import TRAITS, ProtectionName
from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.messages import Result, Specification, Survivors, Upload
from secfed.crypto.refusals import Refusal
from secfed.errors import BadSignature, MalformedMessage, RoundAborted, SecfedError, WrongState
from secfed.protection.plain import PlainServer, PlainSite
from secfed.protection.registry import MASKED, PLAIN, make_protection
from secfed.study.build import build
from secfed.study.study import Study
from tests.ring import as_integers
from tests.simulator import Consortium

SITE = "hospital-0"
SITES = ("hospital-1", "hospital-2", "hospital-3")
STUDY = """
study = { name = "s", rounds = 1 }
algorithm = { name = "fedavg" }
model = { name = "logistic-regression" }
data = { name = "breast-cancer", sites = 3 }
"""


def plain_attempt(
    consortium: Consortium, survivors: tuple[str, ...]
) -> tuple[PlainServer, dict[str, PlainSite]]:
    """The specification to everybody, and the uploads of the survivors; not closed yet."""
    spec = consortium.specification()
    server = PlainServer(spec, consortium.roster, consortium.shape)
    sites = {name: PlainSite(consortium.contribution(name)) for name in consortium.names}
    for name, message in server.begin().items():
        reply = sites[name].handle(message)
        if name in survivors:
            server.receive(name, reply)
    return server, sites


def result_of(consortium: Consortium, survivors: tuple[str, ...], **changes: Any) -> Result:
    result = Result(consortium.specification().digest, survivors, bytes(32))
    result = replace(result, **changes)
    return replace(result, signature=consortium.aggregator.sign(labels.SIGN_RESULT, result.body()))


@pytest.mark.parametrize("name", ["plain", "masked"])
def test_a_protection_sums(name: str) -> None:
    consortium = Consortium(3)
    protection = {"plain": PLAIN, "masked": MASKED}[name]
    exchange: Any = SimpleNamespace(layout=SimpleNamespace(shape=consortium.shape))
    server = protection.server(exchange, consortium.specification(), consortium.roster)
    sites = {site: protection.site(exchange, consortium.contribution(site)) for site in consortium.names}
    requests = server.begin()
    stages = []
    while requests:
        stages.append(server.stage)
        for site, message in requests.items():
            server.receive(site, sites[site].handle(message))
        requests = server.advance()
    assert stages == (
        ["mask"] if name == "plain" else ["advertise", "share", "confirm", "mask", "consistency", "unmask"]
    )
    assert server.stage == "done"
    assert server.spent
    assert server.survivors == consortium.names
    assert as_integers(server.sums) == consortium.expected(consortium.names)
    message = result_of(consortium, consortium.names).encode()
    for site in sites.values():
        assert site.result is None
        assert site.handle(message) == b""
        assert site.result == Result.decode(message)


def test_every_protection_is_made_from_a_study_alike_at_every_party() -> None:
    for name in get_args(ProtectionName):
        study = Study.parse(STUDY).replace("protection.name", name)
        made = [make_protection(study.protection, build(study), 1, SITES) for _ in range(2)]
        assert made[0] == made[1]
        assert made[0].traits is TRAITS[name] is study.protection.traits


def test_a_party_without_the_study_key_encrypts_nothing() -> None:
    study = Study.parse(STUDY).replace("protection.name", "encrypted")
    algorithm = build(study)
    protection = make_protection(study.protection, algorithm, 1, SITES)
    pytest.importorskip("tenseal")
    with pytest.raises(WrongState, match="study key"):
        protection.site(algorithm.exchanges(1)[0], Consortium(3).contribution(SITE))


def test_plain_sums_the_survivors_in_roster_order() -> None:
    consortium = Consortium()
    survivors = consortium.names[:4]
    server, _ = plain_attempt(consortium, survivors)
    assert server.advance() == {}
    assert server.survivors == survivors
    assert as_integers(server.sums) == consortium.expected(survivors)


def test_plain_needs_the_threshold_too() -> None:
    consortium = Consortium()
    server, _ = plain_attempt(consortium, consortium.names[:3])
    with pytest.raises(RoundAborted, match="only 3 of 5 sites uploaded, 4 are needed"):
        server.advance()


def test_plain_runs_with_fewer_sites_than_masks_would_need() -> None:
    consortium = Consortium(2, threshold=1, limits=SiteLimits(min_cohort=1))
    server, _ = plain_attempt(consortium, consortium.names[:1])
    server.advance()
    assert as_integers(server.sums) == consortium.expected(consortium.names[:1])


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"round": 2}, Refusal.OTHER_EXCHANGE),
        ({"broadcast_digest": bytes(32)}, Refusal.BROADCAST_UNKNOWN),
        ({"layout_digest": bytes(32)}, Refusal.LAYOUT_CHANGED),
        ({"roster_digest": bytes(32)}, Refusal.ROSTER_CHANGED),
        ({"cohort": ("hospital-0", "hospital-1")}, Refusal.COHORT_TOO_SMALL),
    ],
)
def test_plain_sites_check_the_specification_too(change: dict[str, Any], refusal: Refusal) -> None:
    consortium = Consortium()
    site = PlainSite(consortium.contribution(SITE))
    with pytest.raises(refusal.error, match=f"^refusal {refusal.number}: "):
        site.handle(consortium.specification(**change).encode())
    assert not consortium.journals[SITE].begun
    with pytest.raises(WrongState):  # a refusal ends the session
        site.handle(consortium.specification().encode())


def test_a_plain_update_is_spent_when_it_leaves() -> None:
    consortium = Consortium()
    plain_attempt(consortium, consortium.names)
    for name in consortium.names:
        assert len(consortium.journals[name].left) == 1
        with pytest.raises(SecfedError, match=r"^refusal 12: "):
            PlainSite(consortium.contribution(name)).handle(consortium.specification(attempt=1).encode())


def test_plain_messages_out_of_order() -> None:
    consortium = Consortium()
    spec = consortium.specification().encode()
    result = result_of(consortium, consortium.names).encode()
    for first, then in ((result, None), (spec, spec), (spec, b"garbage")):
        consortium = Consortium()
        site = PlainSite(consortium.contribution(SITE))
        if then is not None:
            site.handle(first)
        with pytest.raises((WrongState, MalformedMessage)):
            site.handle(first if then is None else then)
    _, sites = plain_attempt(Consortium(), ())
    sites[SITE].handle(result)
    with pytest.raises(WrongState):
        sites[SITE].handle(result)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (b"", Refusal.MALFORMED),
        (b"garbage of some length", Refusal.MALFORMED),
        (Survivors(("hospital-0",)).encode(), Refusal.OUT_OF_ORDER),
        (Survivors(("hospital-0",)).encode()[:-1], Refusal.OUT_OF_ORDER),
    ],
    ids=["nothing", "garbage", "another type", "another type, cut off"],
)
def test_a_plain_site_numbers_what_it_refuses_as_masked_sites_do(message: bytes, refusal: Refusal) -> None:
    consortium = Consortium()
    _, sites = plain_attempt(consortium, ())
    fresh, waiting = PlainSite(Consortium().contribution(SITE)), sites[SITE]
    spec, result = consortium.specification().encode(), result_of(consortium, consortium.names).encode()
    for site, right in ((fresh, spec), (waiting, result), (fresh, spec)):  # the last one is closed
        with pytest.raises(refusal.error, match=f"^refusal {refusal.number}: "):
            site.handle(message)
        with pytest.raises(WrongState, match=r"^refusal 2: "):
            site.handle(right)
    cut_off = PlainSite(Consortium().contribution(SITE))
    with pytest.raises(MalformedMessage, match=r"^refusal 1: "):
        cut_off.handle(spec[:-1])


def test_a_plain_site_checks_the_result() -> None:
    consortium = Consortium()
    _, sites = plain_attempt(consortium, ())
    forged = replace(result_of(consortium, consortium.names), signature=bytes(64))
    with pytest.raises(BadSignature):
        sites["hospital-0"].handle(forged.encode())
    other = result_of(consortium, consortium.names, spec_digest=bytes(32))
    with pytest.raises(SecfedError, match=r"^refusal 36: "):
        sites["hospital-1"].handle(other.encode())


def test_a_plain_server_refuses_bad_replies() -> None:
    consortium = Consortium()
    server, _ = plain_attempt(consortium, ())
    spec = Specification.decode(server.begin()[SITE])
    fresh = Consortium()
    good = bytes(PlainSite(fresh.contribution(SITE)).handle(spec.encode()))
    flipped = good[:20] + bytes([good[20] ^ 1]) + good[21:]
    with pytest.raises(MalformedMessage, match="does not match its signed digest"):
        server.receive(SITE, flipped)
    with pytest.raises(WrongState, match="answered twice"):  # it has had its one reply
        server.receive(SITE, good)
    server, _ = plain_attempt(Consortium(), ())
    with pytest.raises(BadSignature):
        server.receive("hospital-1", good)
    with pytest.raises(WrongState, match="not asked"):
        server.receive("stranger", good)
    vector = Upload.decode(good).vector
    assert len(vector) == consortium.shape.wire_bytes
    server.receive(SITE, good)
    with pytest.raises(WrongState, match="answered twice"):
        server.receive(SITE, good)
