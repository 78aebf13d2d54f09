"""A whole site of a study with closed sums: keys, tasks, and which sums it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from secfed.crypto import labels
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.codec import digest
from secfed.crypto.encrypted.messages import ClosedSum, KeyDelivery, KeyHello, KeyPackage, KeyRequest, Summed
from secfed.crypto.encrypted.study_keys import key_context
from secfed.crypto.keystream import RoundingStream
from secfed.crypto.masked.closing import closed_shape, group_key_check
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Adverts, FinalModel, Specification, Survivors
from secfed.protection.closed import GroupKeys
from secfed.protection.opened_at_sites import ExpectedState
from secfed.wire.frames import Notice, Step, Task, encode_state
from tests.vectors.primitives import Json, pattern
from tests.vectors.scripts.book import shortened
from tests.vectors.scripts.closed_case import closed_vector, relayed, tag_of
from tests.vectors.scripts.frame_scripts import VALUES, Writer
from tests.vectors.scripts.site_builder import Scripts, draws_of
from tests.vectors.scripts.world import ASIDE, COHORT, DROPPED, GROUP_KEY, ME, STUDY, Honest, World

FIRST, _, _, FOURTH, FIFTH, LAST = COHORT
ASKED: Final = (FIRST, DROPPED, ME, FOURTH)
AWAY: Final = (FIRST, DROPPED, FOURTH)  # a sum that the site has no part in
DRAW: Final = "closed"
BEYOND: Final = {"weight": [0.5, -1.25, 1.0], "count": 250.0}  # as lanes of one site alone
TOTAL: Final = [len(AWAY) * value for value in VALUES["weight"]]
EVERYBODY: Final = [len(ASKED) * value for value in VALUES["weight"]]


class ClosedWriter(Writer):
    """What all scripts of the file refer to."""

    prefix = "closed"

    def __init__(self, scripts: Scripts, world: World) -> None:
        super().__init__(scripts, world)
        self.content["about"] = "a site of a study with closed sums, behind its frames; see README.md"
        plan = {str(number): ["first", "update"] for number in (1, 2, 3)}
        party = self.content["party"]
        party.update(plan=plan, broadcast={"total": [3]}, holder=FIRST, keystream="chacha20", contributors=[])
        party["study_sites"] = list(ASKED)
        self.shape = self.layout.shape
        self.first = self.spec()
        given = {"shape": self.shape, "broadcast_digest": tag_of(), "group_key": GROUP_KEY}
        limits = SiteLimits(**party["limits"])
        self.honest = Honest(
            world,
            self.first,
            DRAW,
            silent={DROPPED: "mask"},
            given=lambda: {**given, "limits": limits, "source": self.source()},
            shape=closed_shape(self.shape),
        ).run()
        drawn = world.entropies
        mine = draws_of(drawn[(ME, DRAW)])
        seal_key = self.key_to_ask_with = world.entropy(ME, "asking").seal_key()
        asked = drawn[(ME, "asking")]
        asking = {"mlkem_seed": asked.mlkem_seed.hex(), "x25519_private": asked.x25519_private.hex()}
        mine.update(group_key=GROUP_KEY.hex(), key_to_ask_with=asking)
        self.content["draws"] = {"first": mine}
        self.content["keys"] = {name: scripts.keys_of(drawn[(name, DRAW)]) for name in AWAY}
        self.content["packages"] = self.packages
        self.kappa = key_context(STUDY, world.roster, GroupKeys(), FIRST)
        self.delivery = Notice(self.package(seal_key.public_bytes).encode())
        self.hello = Notice(KeyRequest(()).encode())
        self.book.add("key delivery", self.delivery.encode())
        for stage in ("share", "confirm"):
            self.book.add(stage, self.step(self.honest.requests[stage][ME]).encode())
        self.book.add("sum", Notice(self.summed().encode()).encode())
        self.book.add("task", self.task().encode())
        self.book.add("own advert", self.honest.replies["advertise"][ME])
        hello = KeyHello(ME, seal_key.public_bytes)
        signed_hello = signed(hello, world.people[ME], labels.SIGN_KEY_HELLO, *self.kappa)
        self.book.add("own hello", signed_hello.encode())
        self.begin = ((self.hello,), (self.delivery,))

    def source(self) -> Any:
        """What every site adds, to be read once."""
        values = {name: torch.tensor(value, dtype=torch.float64) for name, value in VALUES.items()}
        return self.layout.encoder(values, RoundingStream(pattern("rounding")))

    def spec(self, **changes: Any) -> Specification:
        """Of round 1, on the state after no sum."""
        own = {"round": 1, "cohort": ASKED, "threshold": 3, "layout_digest": self.shape.digest}
        return self.world.specification(**{**own, "broadcast_digest": tag_of(), **changes})

    def package(self, seal_key: bytes, **changes: Any) -> KeyDelivery:
        """The group key for this site, as the holder seals it, with changes to what it says."""
        key, to = changes.pop("key", GROUP_KEY), changes.pop("to", ME)
        kappa, signer = changes.pop("kappa", self.kappa), changes.pop("signer", FIRST)
        public_key = changes.pop("public_key", group_key_check(key))
        context = *kappa, changes.pop("sealed_for", to).encode()
        sealed = self.world.envelopes.seal(seal_key, key, labels.SEAL_STUDY_KEY, *context)
        parts = *kappa, digest(labels.STUDY_PUBLIC_KEY, public_key)
        package = signed(KeyPackage(to, sealed), self.world.people[signer], labels.SIGN_KEY_PACKAGE, *parts)
        return KeyDelivery(public_key, replace(package, **changes))

    def task(self, sums: int = 0, state: bytes = bytes(32), at: tuple[int, int] = (1, 1)) -> Task:
        """The task of an exchange."""
        name = ("first", "update")[at[1]]
        return Task(STUDY, *at, name, ExpectedState(sums, state).encode())

    def step(self, message: bytes) -> Step:
        """A step of round 1, exchange 1, attempt 0."""
        return Step(1, 1, 0, message)

    def summed(
        self,
        spec: Specification | None = None,
        survivors: Sequence[str] = AWAY,
        *,
        of: Sequence[str] | None = None,
        adverts_digest: bytes = pattern("adverts"),
        values: Any = VALUES,
        key: bytes = GROUP_KEY,
        flip: int | None = None,
        headroom: int = 0,
        **changes: Any,
    ) -> ClosedSum:
        """The sum of what the survivors, or the sites ``of``, add."""
        spec = self.spec() if spec is None else spec
        added = dict.fromkeys(survivors if of is None else of, values)
        vector = closed_vector(self.layout, spec, added, adverts_digest, key=key, headroom=headroom)
        if flip is not None:
            vector[flip] ^= 1
        return relayed(self.world, spec, survivors, adverts_digest, vector, **changes)

    def after_keys(self, name: str, *steps: tuple[Any, ...], **party: Any) -> None:
        """A script of a site that has the key; messages are put into notices."""
        framed = tuple((Notice(one.encode()) if hasattr(one, "TYPE") else one, *rest) for one, *rest in steps)
        self.script(name, *self.begin, *framed, **party)


def closed_content(world: World, scripts: Scripts) -> Json:
    """The file."""
    writer = ClosedWriter(scripts, world)
    writer.book.add("own sum", Notice(_own_sum(writer).encode()).encode())
    _whole(writer)
    _keys(writer)
    _holder(writer)
    _tasks(writer)
    _refused_sums(writer)
    _wrong_sums(writer)
    _survivors_that_differ(writer)
    return {**writer.content, "bytes": writer.book.content(), "scripts": shortened(writer.scripts)}


def _attempt(writer: ClosedWriter, until: str = "result") -> tuple[tuple[Any, ...], ...]:
    """The task, and the honest messages of all stages before this one."""
    stages = writer.honest.stages
    sent = (writer.honest.requests[stage][ME] for stage in stages[: stages.index(until)])
    return ((writer.task(),), *((writer.step(message),) for message in sent))


def _own_sum(writer: ClosedWriter, survivors: Sequence[str] | None = None, **changes: Any) -> ClosedSum:
    adverts = Adverts.decode(writer.honest.requests["share"][ME]).digest
    names = writer.honest.survivors if survivors is None else survivors
    return writer.summed(writer.first, names, adverts_digest=adverts, **changes)


def _whole(writer: ClosedWriter) -> None:
    result, own = writer.honest.requests["result"][ME], _own_sum(writer)
    after = writer.task(1, tag_of(TOTAL), (2, 0))
    writer.after_keys(
        "whole_attempt", *_attempt(writer), (own,), (own, None), (after,), (writer.task(1), None)
    )
    writer.after_keys("result_of_an_open_sum", *_attempt(writer), (writer.step(result), 2), (own,))
    writer.after_keys("upload_under_aes", *_attempt(writer, "consistency"), keystream="aes-256-ctr")


def _keys(writer: ClosedWriter) -> None:
    make, asked = writer.package, writer.key_to_ask_with.public_bytes
    third = replace(writer.delivery, message=writer.delivery.message[:-1])
    writer.script("key_before_it_was_asked_for", (writer.delivery, None), *writer.begin)
    writer.script("key_twice", *writer.begin, (writer.delivery, None), (writer.hello,), (writer.task(),))
    writer.script("task_without_a_key", (writer.task(), None), (writer.hello,), (writer.task(), None))
    writer.script("sum_without_a_key", (writer.hello,), (Notice(writer.summed().encode()), None))
    other = (b"another study", *writer.kappa[1:])
    by_another_holder = (*writer.kappa[:3], DROPPED.encode())
    of_a_ring = (*writer.kappa[:2], pattern("ring"), writer.kappa[3])
    short = GROUP_KEY[:31]
    wrong: dict[str, KeyDelivery] = {
        "for_another_site": make(asked, to=FOURTH),
        "that_names_another_site": make(asked, to=FOURTH, sealed_for=ME),
        "unsigned": make(asked, signature=bytes(64)),
        "signed_by_another_site": make(asked, signer=DROPPED),
        "of_another_study": make(asked, kappa=other),
        "of_another_holder": make(asked, kappa=by_another_holder),
        "of_a_ring": make(asked, kappa=of_a_ring),
        "with_the_check_value_of_another": make(asked, public_key=group_key_check(pattern("x"))),
        "of_31_bytes": make(asked, key=short),
        "for_another_seal_key": make(writer.world.entropy(ME, "other").seal_key().public_bytes),
    }
    altered = make(asked)
    wrong["with_another_public_key_unsigned"] = replace(altered, public_key=group_key_check(pattern("x")))
    for name, delivery in wrong.items():
        frame = Notice(delivery.encode())
        writer.book.add(f"key {name}", frame.encode())
        writer.script(f"key_{name}", (writer.hello,), (frame, None), (writer.delivery,), (writer.task(),))
    writer.script("key_cut_off", (writer.hello,), (third, None), (writer.delivery,))


def _holder(writer: ClosedWriter) -> None:
    world = writer.world
    kappa = key_context(STUDY, world.roster, GroupKeys(), ME)

    def hello(site: str, signer: str = "", key: bytes | None = None, context: Any = kappa) -> KeyHello:
        drawn = world.entropy(site, DRAW).seal_key().public_bytes if key is None else key
        return signed(KeyHello(site, drawn), world.people[signer or site], labels.SIGN_KEY_HELLO, *context)

    def asks(*hellos: KeyHello) -> Notice:
        return Notice(KeyRequest(hellos).encode())

    good = asks(hello(FIRST), hello(FOURTH))
    writer.book.add("hellos", good.encode())
    holder = {"holder": ME}
    writer.script("holder", (writer.hello,), (good,), (writer.hello,), **holder)
    writer.script("holder_that_was_not_asked_first", (good, None), (writer.hello,), (good,), **holder)
    for name, request in {
        "unsigned": asks(replace(hello(FIRST), signature=bytes(64))),
        "signed_by_another": asks(hello(FIRST), hello(FOURTH, FIRST)),
        "of_another_study": asks(hello(FIRST, context=(b"another", *kappa[1:]))),
        "of_a_hospital_outside_the_study": asks(hello(ASIDE)),
        "of_a_stranger": asks(replace(hello(FIRST), site="x")),
        "with_an_invalid_key": asks(hello(FIRST, key=b"\xff" * 1216)),
        "of_a_site_that_has_the_key": asks(hello(FIRST, key=b"")),
    }.items():
        writer.script(f"holder_hello_{name}", (writer.hello,), (request, None), (good,), **holder)
    writer.script("hellos_at_another_site", *writer.begin, (asks(hello(FOURTH, context=writer.kappa)), None))


def _tasks(writer: ClosedWriter) -> None:
    specification = writer.step(writer.first.encode())
    writer.after_keys("task_again", (writer.task(),), (writer.task(),), (specification,))
    writer.after_keys("task_on_the_same_state", (writer.task(0, tag_of()),), (specification,))
    writer.after_keys("task_on_another_state", (writer.task(0, pattern("x")), None), (specification, None))
    writer.after_keys(
        "task_after_a_sum_that_is_missing", (writer.task(1, tag_of(TOTAL)),), (specification, None)
    )
    behind = writer.task(1, tag_of(TOTAL), (1, 1))
    writer.after_keys("task_of_a_sum_that_was_taken", (writer.summed(),), (behind, None))
    following = writer.spec(round=2, broadcast_digest=tag_of(TOTAL))
    going_on = Step(2, 1, 0, following.encode())
    writer.after_keys(
        "task_after_a_sum", (writer.summed(),), (writer.task(1, tag_of(TOTAL), (2, 1)),), (going_on,)
    )
    short = replace(writer.task(), state=b"\0" * 35)
    writer.after_keys("task_cut_off", (short, None), (writer.task(),))
    stale = Step(1, 1, 0, writer.spec(broadcast_digest=pattern("x")).encode())
    writer.after_keys("specification_on_another_state", (writer.task(),), (stale, 15))


def _refused_sums(writer: ClosedWriter) -> None:
    """Refused before anything is opened: the right sum is taken all the same."""
    world, spec = writer.world, writer.spec
    good = writer.summed()
    unsigned = replace(spec(), threshold=2)
    by_a_site = world.specification(world.people[FIRST], **_fields(writer))
    three = (FIRST, DROPPED, FOURTH)
    cases: dict[str, tuple[ClosedSum, int | None]] = {
        "specification_unsigned": (writer.summed(unsigned), 3),
        "specification_signed_by_a_site": (writer.summed(by_a_site), 3),
        "result_unsigned": (replace(good, result=replace(good.result, signature=bytes(64))), 35),
        "result_altered": (replace(good, result=replace(good.result, survivors=ASKED)), 35),
        "another_roster": (writer.summed(spec(roster_digest=pattern("x"))), 4),
        "another_study": (writer.summed(spec(study="another")), 10),
        "another_exchange": (writer.summed(spec(exchange="first")), 10),
        "no_such_exchange": (writer.summed(spec(exchange_index=2)), None),
        "no_such_round": (writer.summed(spec(round=9)), None),
        "another_layout": (writer.summed(spec(layout_digest=pattern("x"))), 13),
        "a_stranger_in_the_cohort": (writer.summed(spec(cohort=(*ASKED, "x"))), 5),
        "cohort_backwards": (writer.summed(spec(cohort=ASKED[::-1])), 6),
        "a_hospital_outside_the_study": (writer.summed(spec(cohort=(ASIDE, *ASKED))), 38),
        "two_sites_asked": (writer.summed(spec(cohort=three[:2], threshold=2), three[:2]), 8),
        "two_survivors": (writer.summed(spec(threshold=2), three[:2]), 29),
        "fewer_survivors_than_the_threshold": (writer.summed(spec(threshold=4)), 29),
        "this_site_without_an_upload": (writer.summed(survivors=ASKED), 36),
        "result_of_another_specification": (writer.summed(spec_digest=spec(attempt=1).digest), 36),
        "another_totals_digest": (writer.summed(totals_digest=pattern("x")), 36),
        "another_vector": (replace(good, vector=bytes(len(good.vector))), 36),
        "another_advertised_set_unsigned": (replace(good, adverts_digest=pattern("x")), 36),
        "survivors_outside_the_cohort": (writer.summed(spec(cohort=three), (*three, FIFTH)), 36),
        "survivors_backwards": (writer.summed(survivors=three[::-1]), 36),
        "survivor_repeated": (writer.summed(survivors=(*three, FOURTH)), 36),
        "another_state": (writer.summed(spec(broadcast_digest=tag_of(TOTAL))), 36),
        "another_group_key_in_the_tag": (writer.summed(spec(broadcast_digest=tag_of(key=pattern("x")))), 36),
    }
    for name, (message, number) in cases.items():
        writer.after_keys(f"sum_with_{name}", (message, number), (good,))
    part = [[list(three[:2]), 1]]
    writer.after_keys("sum_with_too_few_contributors", (good, 39), contributors=part)
    writer.after_keys("sum_with_one_contributor_who_fell_silent", (good, 39), contributors=[[[ME], 1]])
    most = [[[FIRST, DROPPED, ME], 3]]
    writer.after_keys("sum_with_too_few_contributors_left", (good, 39), contributors=most)
    own = {"limits": {**writer.content["party"]["limits"], "min_cohort": 4}}
    writer.after_keys("sum_below_the_own_minimum_cohort", (good, 29), **own)
    own = {"limits": {**writer.content["party"]["limits"], "min_threshold": 4}}
    writer.after_keys("sum_below_the_own_minimum_threshold", (good, 29), **own)
    lax = {"limits": {**writer.content["party"]["limits"], "min_cohort": 1, "min_threshold": 1}}
    of_two = writer.summed(spec(cohort=three[:2], threshold=2), three[:2])
    writer.after_keys("sum_of_two_sites_though_permitted", (of_two, 8), (good,), **lax)
    two_left = writer.summed(spec(threshold=2), three[:2])
    writer.after_keys("sum_of_two_survivors_though_permitted", (two_left, 29), (good,), **lax)
    cut = Notice(good.encode()[:-1])
    writer.after_keys("sum_cut_off", (cut, None), (good,))
    second = writer.summed(spec(round=2, broadcast_digest=tag_of(TOTAL)))
    third = writer.summed(
        spec(round=2, exchange_index=0, exchange="first", broadcast_digest=tag_of(TOTAL, TOTAL))
    )
    writer.after_keys("sums_in_order", (good,), (good, None), (second,), (third, None), (second, None))
    on_the_first = writer.summed(spec(round=2))
    writer.after_keys("sum_on_an_older_state", (good,), (on_the_first, 36), (second,))
    writer.after_keys("sum_of_a_later_round_first", (on_the_first,), (good, None))
    other = Summed(good.spec, good.result, b"", bytes(32), b"")
    writer.after_keys("encrypted_sum", (other, None), (good,))
    writer.after_keys("result_alone", (good.result, None), (good,))
    state = encode_state({"total": torch.zeros(3, dtype=torch.float64)})
    model = FinalModel(STUDY, world.roster.digest, 1, 1, hashlib.sha256(state).digest(), model=state)
    writer.after_keys("final_model", (signed(model, world.aggregator, labels.SIGN_MODEL), 41), (good,))


def _fields(writer: ClosedWriter) -> dict[str, Any]:
    own = {"round": 1, "cohort": ASKED, "threshold": 3}
    return {**own, "layout_digest": writer.shape.digest, "broadcast_digest": tag_of()}


def _wrong_sums(writer: ClosedWriter) -> None:
    """Refused when they are opened: the site stops, and takes not even the right one."""
    good = writer.summed()
    tags_at = len(good.vector) - 96
    cases: dict[str, tuple[ClosedSum, int | None]] = {
        "a_lane_shifted": (writer.summed(flip=0), 45),
        "a_wide_lane_shifted": (writer.summed(flip=tags_at - 1), 45),
        "the_first_tag_shifted": (writer.summed(flip=tags_at), 45),
        "the_last_tag_shifted": (writer.summed(flip=len(good.vector) - 1), 45),
        "a_survivor_more": (writer.summed(of=AWAY[:2]), 45),
        "a_survivor_too_few": (writer.summed(of=(*AWAY, FIFTH)), 45),
        "another_advertised_set": (_under(writer, good), 45),
        "another_attempt": (_of(writer, writer.spec(attempt=1)), 45),
        "another_group_key": (writer.summed(key=pattern("x")), 45),
        "a_total_beyond_its_limits": (writer.summed(values=BEYOND, headroom=1), None),
        "a_lane_that_wraps": (writer.summed(headroom=1), 45),
        "nothing_of_it": (_with_vector(writer, bytes(len(good.vector))), 45),
        "a_vector_too_short": (_with_vector(writer, bytes(good.vector)[:-1]), None),
        "a_vector_too_long": (_with_vector(writer, bytes(good.vector) + b"\0"), None),
    }
    for name, (message, number) in cases.items():
        writer.after_keys(f"opening_{name}", (message, number), (good, None), (writer.task(), None))


def _with_vector(writer: ClosedWriter, vector: bytes) -> ClosedSum:
    return relayed(writer.world, writer.spec(), AWAY, pattern("adverts"), vector)


def _under(writer: ClosedWriter, good: ClosedSum) -> ClosedSum:
    """The vector of one advertised set, signed for another."""
    return relayed(writer.world, good.spec, AWAY, pattern("other adverts"), bytes(good.vector))


def _of(writer: ClosedWriter, other: Specification) -> ClosedSum:
    """The vector of one attempt, signed for another."""
    vector = closed_vector(writer.layout, other, dict.fromkeys(AWAY, VALUES), pattern("adverts"))
    return relayed(writer.world, writer.spec(), AWAY, pattern("adverts"), vector)


def _survivors_that_differ(writer: ClosedWriter) -> None:
    own, away = _own_sum(writer), writer.summed()
    whole = _attempt(writer)
    writer.after_keys("other_survivors_than_signed", *whole, (_own_sum(writer, ASKED), 36), (own,))
    without = _own_sum(writer, AWAY)
    writer.after_keys("survivors_without_this_site", *whole, (without, 36), (own,))
    second = writer.summed(writer.spec(attempt=1))
    writer.after_keys("another_attempt_than_uploaded", *whole, (second, 36), (own,))
    uploaded = _attempt(writer, "consistency")
    writer.after_keys(
        "uploaded_and_not_named", *uploaded, (writer.summed(writer.spec(attempt=1)), 36), (own,)
    )
    writer.after_keys("no_view_was_signed", *uploaded, (_own_sum(writer, ASKED),))
    keys_only = _attempt(writer, "mask")
    writer.after_keys("another_attempt_before_the_upload", *keys_only, (second,))
    earlier = writer.summed(writer.spec(exchange_index=0, exchange="first"))
    writer.after_keys("sum_before_the_upload", *uploaded, (earlier, None), (own,))
    everybody = writer.step(Survivors(ASKED).encode())
    writer.after_keys("view_of_everybody", *uploaded, (everybody,), (own, 36), (_own_sum(writer, ASKED),))
    assert away.spec == own.spec
