"""Who gets the key of an encrypted study, and from whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tenseal")

from secfed.crypto import sealing
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import choose_ring
from secfed.crypto.encrypted.messages import KeyDelivery, KeyHello, KeyPackages, KeyRequest
from secfed.crypto.encrypted.study_keys import StudyKeys
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.lanes import Run
from secfed.crypto.messages import peek_type
from secfed.errors import BadSignature, InconsistentView, MalformedMessage, RosterError
from secfed.protection.encrypted import Encrypted, RingKeys
from secfed.server.opened_rounds import OpenedRounds, SumStore
from secfed.server.round import Rules
from secfed.wire.frames import READY, Notice, decode
from secfed.wire.transport import OnReply


class TestStudyKeys:
    """Who gets the study key, and from whom."""

    @pytest.fixture
    def parties(self) -> tuple[Roster, dict[str, StudyKeys]]:
        people = [Identity.generate(name) for name in ("a", "b", "c")]
        roster = Roster.of(Identity.generate("aggregator"), people)
        ring = choose_ring([(Run(20, 100),)], 3)
        return roster, {
            one.name: StudyKeys(one, roster, "study", "abc", "a", RingKeys(ring)) for one in people
        }

    def packages(self, parties: dict[str, StudyKeys], *names: str) -> KeyPackages:
        parties["a"].hello()
        hellos = tuple(KeyHello.decode(parties[name].hello()) for name in names)
        return KeyPackages.decode(parties["a"].pack(KeyRequest(hellos)))

    def test_every_site_gets_the_holders_key(self, parties: tuple[Roster, dict[str, StudyKeys]]) -> None:
        _, keys = parties
        made = self.packages(keys, "b", "c")
        for package in made.packages:
            keys[package.recipient].unpack(KeyDelivery(made.public_key, package))
        assert keys["b"].required == keys["c"].required == keys["a"].required

    def test_a_hello_that_its_site_did_not_sign_gets_nothing(
        self, parties: tuple[Roster, dict[str, StudyKeys]]
    ) -> None:
        _, keys = parties
        keys["a"].hello()
        hello = KeyHello.decode(keys["b"].hello())
        swapped = replace(hello, seal_key=sealing.SealKey.generate().public_bytes)
        with pytest.raises(BadSignature):
            keys["a"].pack(KeyRequest((swapped,)))

    def test_an_outsider_gets_nothing(self, parties: tuple[Roster, dict[str, StudyKeys]]) -> None:
        roster, keys = parties
        keys["a"].hello()
        sybil = StudyKeys(Identity.generate("d"), roster, "study", "abcd", "a", keys["a"].form)
        keys["a"].sites = "abcd"
        with pytest.raises(RosterError, match="roster"):
            keys["a"].pack(KeyRequest((KeyHello.decode(sybil.hello()),)))

    def test_nor_does_a_hospital_of_the_roster_that_is_not_in_the_study(
        self, parties: tuple[Roster, dict[str, StudyKeys]]
    ) -> None:
        """It could open the study's sums, and under encryption every upload."""
        _, keys = parties
        keys["a"].hello()
        keys["a"].sites = "ab"
        asked = {name: KeyHello.decode(keys[name].hello()) for name in "bc"}
        for hellos in ((asked["c"],), (asked["b"], asked["c"])):
            with pytest.raises(RosterError, match="no site of the study"):
                keys["a"].pack(KeyRequest(hellos))
        assert KeyPackages.decode(keys["a"].pack(KeyRequest((asked["b"],)))).packages

    def test_a_package_from_another_site_or_for_another_site_is_refused(
        self, parties: tuple[Roster, dict[str, StudyKeys]]
    ) -> None:
        _, keys = parties
        made = self.packages(keys, "b", "c")
        with pytest.raises(InconsistentView):
            keys["b"].unpack(KeyDelivery(made.public_key, made.packages[1]))
        forged = replace(made.packages[0], signature=made.packages[1].signature)
        with pytest.raises(BadSignature):
            keys["b"].unpack(KeyDelivery(made.public_key, forged))
        other = made.public_key[:-1] + bytes([made.public_key[-1] ^ 1])
        with pytest.raises(BadSignature):
            keys["b"].unpack(KeyDelivery(other, made.packages[0]))

    def test_a_package_sealed_to_an_older_key_cannot_be_opened(
        self, parties: tuple[Roster, dict[str, StudyKeys]]
    ) -> None:
        _, keys = parties
        made = self.packages(keys, "b")
        keys["b"]._seal_key = sealing.SealKey.generate()
        with pytest.raises(MalformedMessage):
            keys["b"].unpack(KeyDelivery(made.public_key, made.packages[0]))

    def test_another_study_has_another_context(self, parties: tuple[Roster, dict[str, StudyKeys]]) -> None:
        roster, keys = parties
        other = StudyKeys(keys["b"].identity, roster, "another study", "abc", "a", keys["b"].form)
        keys["a"].hello()
        with pytest.raises(BadSignature):
            keys["a"].pack(KeyRequest((KeyHello.decode(other.hello()),)))


class TestWhoIsSentAPackage:
    """The holder says whom its packages are for; the aggregator knows who asked."""

    def shared(self, folder: Path, *strays: str) -> tuple[list[str], list[str]]:
        """The members with the key, and who was sent a package, where the holder adds packages of its own."""
        aggregator = Identity.generate("aggregator")
        people = [Identity.generate(name) for name in ("a", "b", "c")]
        roster, ring = Roster.of(aggregator, people), choose_ring([(Run(20, 100),)], 3)
        keys = {one.name: StudyKeys(one, roster, "study", "abc", "a", RingKeys(ring)) for one in people}
        sent: list[str] = []

        def answer(site: str, frame: Buffer) -> bytes:
            notice = decode(frame)
            assert isinstance(notice, Notice)
            if peek_type(notice.message) == KeyDelivery.TYPE:
                sent.append(site)
                keys[site].unpack(KeyDelivery.decode(notice.message))
                return READY
            request = KeyRequest.decode(notice.message)
            if not request.hellos:
                return keys[site].hello()
            made = KeyPackages.decode(keys[site].pack(request))
            added = tuple(replace(made.packages[0], recipient=name) for name in strays)
            return KeyPackages(made.public_key, (*added, *made.packages)).encode()

        def ask(stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
            assert stage == "keys"
            for site in requests:
                if site not in keys:  # as every link does, in its own way
                    raise RosterError(f"site {site!r} is not in the roster of this link")
            for site, frame in requests.items():
                on_reply(site, answer(site, frame))

        protection = Encrypted(ring, "a")
        rules = Rules("study", aggregator, roster, protection, lambda cohort: cohort, 3)
        nothing: Any = None
        rounds = OpenedRounds(nothing, 1, protection, rules, SumStore(folder), ask, nothing)
        return rounds.share_keys(("a", "b", "c")), sent

    def test_sites_that_asked(self, tmp_path: Path) -> None:
        assert self.shared(tmp_path) == (["a", "b", "c"], ["b", "c"])

    @pytest.mark.parametrize("stray", ["stranger", "", "a"])
    def test_and_nobody_else(self, stray: str, tmp_path: Path) -> None:
        assert self.shared(tmp_path, stray) == (["a", "b", "c"], ["b", "c"])
