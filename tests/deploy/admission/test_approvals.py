"""Refusals by name and by digest, before and after a study has asked, under either kind of approval."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from secfed.config.sections import StudySection
from secfed.crypto.identity import grouped
from secfed.deploy.admission import approvals as module
from secfed.deploy.admission import meant_study
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.person import Person
from secfed.errors import ConfigError, PolicyRefused

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ONE, TWO, OTHER = b"\x11" * 32, b"\x22" * 32, b"\x33" * 32
FILE = "approvals.json"


def refused(store: Approvals, name: str, digest: bytes, *, manual: bool = False) -> bool:
    try:
        store.require(name, digest, NOW, manual=manual)
    except PolicyRefused as error:
        return "was refused" in error.message
    return False


@pytest.fixture
def store(tmp_path: Path) -> Approvals:
    return Approvals(tmp_path / FILE)


class TestByName:
    @pytest.mark.parametrize("manual", [True, False])
    def test_a_name_that_never_asked_is_refused_with_all_settings(
        self, store: Approvals, manual: bool
    ) -> None:
        found = store.refuse_what("heart-1", NOW)
        assert (found.name, found.digest, found.state) == ("heart-1", "", ApprovalState.WITHDRAWN)
        assert refused(store, "heart-1", ONE, manual=manual)
        assert refused(store, "heart-1", TWO, manual=manual)
        assert not refused(store, "heart-2", OTHER)
        assert [item.name for item in store.refused_names()] == ["heart-1"]

    def test_an_approval_from_before_does_not_outlast_the_refusal_of_its_name(self, store: Approvals) -> None:
        store.record("heart-1", ONE, NOW)
        store.approve_what(ONE.hex(), NOW)
        store.refuse_what("heart-1", NOW)
        assert refused(store, "heart-1", ONE)
        assert [item.state for item in store.all()] == [ApprovalState.WITHDRAWN]
        with pytest.raises(PolicyRefused, match="was refused"):
            store.require("heart-1", ONE, NOW, manual=True)

    def test_approving_the_name_lifts_it_for_every_digest(self, store: Approvals) -> None:
        store.record("heart-1", ONE, NOW)
        store.refuse_what("heart-1", NOW)
        assert store.approve_what("heart-1", NOW).state is ApprovalState.APPROVED
        assert store.refused_names() == ()
        assert not refused(store, "heart-1", ONE, manual=True)
        assert not refused(store, "heart-1", TWO)

    @pytest.mark.parametrize("asked", [(), (ONE, TWO)])
    def test_lifting_a_name_approves_nothing_if_it_is_not_clear_what(
        self, store: Approvals, asked: tuple[bytes, ...]
    ) -> None:
        for digest in asked:
            store.record("heart-1", digest, NOW)
        store.refuse_what("heart-1", NOW)
        assert store.approve_what("heart-1", NOW).state is ApprovalState.PERMITTED
        assert not refused(store, "heart-1", ONE)
        assert store.state(ONE) is not ApprovalState.APPROVED
        with pytest.raises(PolicyRefused, match="waits"):
            store.require("heart-1", ONE, NOW, manual=True)

    def test_approving_a_digest_is_an_exception_for_it_alone(self, store: Approvals) -> None:
        store.record("heart-1", ONE, NOW)
        store.refuse_what("heart-1", NOW)
        store.approve_what(ONE.hex()[:8], NOW)
        assert not refused(store, "heart-1", ONE, manual=True)
        assert refused(store, "heart-1", TWO)
        store.refuse_what("heart-1", NOW)
        assert refused(store, "heart-1", ONE)

    def test_what_is_no_name_is_not_noted(self, store: Approvals) -> None:
        for text in ("heart-*", "Heart", "", "x" * 64, "../heart"):
            with pytest.raises(ConfigError, match="neither the name"):
                store.refuse_what(text, NOW)
        assert store.refused_names() == ()

    def test_names_are_those_of_a_study(self) -> None:
        (pattern,) = (
            item.pattern for item in StudySection.model_fields["name"].metadata if hasattr(item, "pattern")
        )
        assert pattern == f"^{meant_study._NAME.pattern}$"


class TestByDigest:
    def test_a_digest_that_never_asked_is_refused_alone(self, store: Approvals) -> None:
        store.refuse_what(ONE.hex().upper(), NOW)
        assert refused(store, "heart-1", ONE)
        assert not refused(store, "heart-1", TWO)
        assert [(item.name, item.state) for item in store.all()] == [("heart-1", ApprovalState.WITHDRAWN)]
        store.approve_what("heart-1", NOW)
        assert not refused(store, "heart-1", ONE, manual=True)

    def test_what_nobody_has_seen_is_not_approved_when_its_refusal_is_lifted(self, store: Approvals) -> None:
        store.refuse_what(ONE.hex(), NOW)
        assert store.approve_what(ONE.hex()[:10], NOW).state is ApprovalState.PERMITTED
        assert store.all() == ()
        with pytest.raises(PolicyRefused, match="waits"):
            store.require("heart-1", ONE, NOW, manual=True)

    @pytest.mark.parametrize(
        "text",
        [ONE.hex()[:8], grouped(ONE.hex()), f"heart-1-{ONE.hex()[:16]}", f"heart-1-{ONE.hex()}"],
        ids=["begin", "groups", "folder", "id"],
    )
    def test_every_form_in_which_a_study_is_shown_means_it(self, store: Approvals, text: str) -> None:
        store.record("heart-1", ONE, NOW)
        store.record("heart-1", TWO, NOW)
        assert store.find(text).digest == ONE.hex()
        assert store.refuse_what(text, NOW, unasked=False).digest == ONE.hex()
        assert store.approve_what(text, NOW).digest == ONE.hex()

    @pytest.mark.parametrize("text", ["lung", f"lung-{ONE.hex()}", "ab" * 32, f"heart-1-{'ab' * 8}"])
    def test_what_has_not_asked_is_an_error_that_lists_what_has(self, store: Approvals, text: str) -> None:
        store.record("heart-1", ONE, NOW)
        with pytest.raises(ConfigError, match="has asked") as caught:
            store.refuse_what(text, NOW, unasked=False)
        assert caught.value.remedy.startswith(f"known studies: heart-1 {ONE.hex()[:16]};")
        assert store.refused_names() == ()
        assert [item.state for item in store.all()] == [ApprovalState.PERMITTED]

    def test_an_id_of_a_study_that_has_not_asked_is_not_noted_as_a_name(self, store: Approvals) -> None:
        with pytest.raises(ConfigError, match="no study with the digest"):
            store.refuse_what(f"heart-1-{ONE.hex()[:16]}", NOW)
        assert store.refuse_what(f"heart-1-{ONE.hex()}", NOW).digest == ONE.hex()

    def test_a_part_of_an_unknown_digest_is_an_error(self, store: Approvals) -> None:
        with pytest.raises(ConfigError, match="no study with the digest") as caught:
            store.refuse_what(ONE.hex()[:16], NOW)
        assert "64 digits" in caught.value.remedy
        assert store.all() == ()

    def test_a_name_that_begins_another_digest_is_not_guessed(self, store: Approvals) -> None:
        store.record("33333333", ONE, NOW)
        store.record("heart-1", OTHER, NOW)
        for decide in (store.refuse_what, store.approve_what):
            with pytest.raises(ConfigError, match="several studies"):
                decide("33333333", NOW)
        store.refuse_what("22222222" * 8, NOW)


class TestRecord:
    def test_a_study_that_the_policy_let_in_can_be_found_and_is_not_approved(self, store: Approvals) -> None:
        store.record("heart-1", ONE, NOW)
        assert store.state(ONE) is ApprovalState.PERMITTED
        assert store.all()[0].digest == ONE.hex()
        with pytest.raises(PolicyRefused, match="waits"):  # the policy wants a person now
            store.require("heart-1", ONE, NOW, manual=True)
        assert store.state(ONE) is ApprovalState.HELD
        store.record("heart-1", ONE, NOW)  # and now it does not
        assert store.state(ONE) is ApprovalState.PERMITTED

    def test_a_decision_stays(self, store: Approvals) -> None:
        store.record("heart-1", ONE, NOW)
        store.approve_what(ONE.hex(), NOW)
        store.record("heart-1", TWO, NOW)
        store.refuse_what(TWO.hex(), NOW)
        for digest, state in ((ONE, ApprovalState.APPROVED), (TWO, ApprovalState.WITHDRAWN)):
            store.record("heart-1", digest, NOW)
            assert store.state(digest) is state

    def test_a_server_cannot_fill_the_disk_and_decisions_are_not_forgotten(
        self, store: Approvals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_MOST_PERMITTED", 3)
        store.record("heart-0", OTHER, NOW)
        store.refuse_what(OTHER.hex(), NOW)
        for number in range(1, 6):
            store.record(f"heart-{number}", bytes([number]) * 32, NOW + number * SECOND)
        assert [item.name for item in store.all()] == ["heart-0", "heart-3", "heart-4", "heart-5"]


def test_a_file_from_before_refused_names_is_read(tmp_path: Path, store: Approvals) -> None:
    entry: dict[str, Any] = {"name": "heart-1", "state": "approved", "since_s": 1}
    (tmp_path / FILE).write_text(json.dumps({"version": 1, "studies": {ONE.hex(): entry}}))
    assert store.state(ONE) is ApprovalState.APPROVED
    store.refuse_what("lung", NOW)
    assert store.state(ONE) is ApprovalState.APPROVED
    assert json.loads((tmp_path / FILE).read_text())["refused_names"] == {"lung": int(NOW.timestamp())}


class TestByDecision:
    def test_a_new_study_waits_until_it_is_approved(self, store: Approvals, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(PolicyRefused, match="'heart-1' waits for the approval") as caught:
                store.require("heart-1", ONE, NOW, manual=True)
            assert ONE.hex()[:16] in caught.value.remedy
        assert store.state(ONE) is ApprovalState.HELD
        store.approve_what(ONE.hex(), NOW + SECOND)
        store.require("heart-1", ONE, NOW, manual=True)
        assert Approvals(tmp_path / FILE).state(ONE) is ApprovalState.APPROVED
        assert store.all()[0].since == NOW + SECOND
        with pytest.raises(PolicyRefused):  # an approval is for one digest
            store.require("heart-1", TWO, NOW, manual=True)
        (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-9])
        with pytest.raises(ConfigError, match=r"approvals\.json"):  # a damaged file approves nothing
            store.require("heart-1", ONE, NOW, manual=True)

    def test_a_refused_study_stays_refused_under_any_policy_and_however_often_it_asks(
        self, store: Approvals
    ) -> None:
        store.require("heart-1", ONE, NOW, manual=False)
        assert store.state(ONE) is None
        store.record("heart-1", ONE, NOW)
        store.refuse_what(ONE.hex(), NOW)
        assert refused(store, "heart-1", ONE, manual=True)
        assert refused(store, "heart-1", ONE, manual=False)
        store.hold("heart-1", ONE, NOW)
        assert store.state(ONE) is ApprovalState.WITHDRAWN

    def test_a_study_is_found_by_name_or_digest_if_that_is_clear(self, store: Approvals) -> None:
        similar = ONE[:4] + TWO[4:]
        store.hold("heart-1", ONE, NOW)
        assert store.approve_what("heart-1", NOW).digest == ONE.hex()
        store.hold("heart-1", similar, NOW)
        for unclear in ("heart-1", "11111111"):
            with pytest.raises(ConfigError, match="several studies"):
                store.approve_what(unclear, NOW)
        assert store.approve_what(similar.hex()[:10].upper(), NOW).digest == similar.hex()
        for unknown in ("lung", "1111", ""):
            with pytest.raises(ConfigError, match="no study"):
                store.approve_what(unknown, NOW)

    def test_a_server_cannot_fill_the_disk_with_studies(self, store: Approvals, tmp_path: Path) -> None:
        store.hold("heart-1", ONE, NOW)
        file = json.loads((tmp_path / FILE).read_text())
        entry = file["studies"][ONE.hex()]
        file["studies"] = {f"{number:064x}": entry for number in range(1000)}
        (tmp_path / FILE).write_text(json.dumps(file))
        with pytest.raises(ConfigError, match="1000 studies wait"):
            store.hold("lung", OTHER, NOW)


class TestFourEyes:
    """A study that two persons have to approve."""

    DIGEST = b"\x07" * 32

    @pytest.fixture
    def store(self, tmp_path: Path) -> Approvals:
        made = Approvals(tmp_path / "approvals.json")
        made.hold("heart", self.DIGEST, NOW)
        return made

    def approve(self, store: Approvals, by: str, persons: Literal[1, 2] = 2) -> tuple[str, str]:
        decision = store.approve_what("heart", NOW, by=Person(by), persons=persons)
        return str(decision.state), decision.by

    def is_let_in(self, store: Approvals) -> bool:
        try:
            store.require("heart", self.DIGEST, NOW, manual=True, persons=2)
        except PolicyRefused:
            return False
        return True

    def test_one_approval_from_before_is_the_first_of_two(self, store: Approvals) -> None:
        assert self.approve(store, "dr.a", 1) == ("approved", "dr.a")
        store.require("heart", self.DIGEST, NOW, manual=True)
        assert not self.is_let_in(store)
        assert store.state(self.DIGEST) is ApprovalState.HELD
        with pytest.raises(PolicyRefused, match=r"dr\.a has approved"):
            self.approve(store, "dr.a")
        assert self.approve(store, "dr.b") == ("approved", "dr.a, dr.b")
        assert self.is_let_in(store)

    def test_it_counts_also_before_the_study_asks_again(self, store: Approvals) -> None:
        self.approve(store, "dr.a", 1)
        with pytest.raises(PolicyRefused, match=r"dr\.a has approved"):
            self.approve(store, "dr.a")
        assert self.approve(store, "dr.b") == ("approved", "dr.a, dr.b")

    def test_a_repeat_takes_nobodys_name_away(self, store: Approvals) -> None:
        assert self.approve(store, "dr.a") == ("held", "dr.a")
        assert self.approve(store, "dr.b") == ("approved", "dr.a, dr.b")
        assert self.approve(store, "dr.c") == ("approved", "dr.a, dr.b")
        assert self.is_let_in(store)

    def test_a_refusal_ends_the_first_approval(self, store: Approvals) -> None:
        self.approve(store, "dr.a")
        store.refuse_what("heart", NOW, by=Person("dr.b"))
        assert self.approve(store, "dr.c") == ("held", "dr.c")
        assert not self.is_let_in(store)


ISSUER = "https://login.uk.example/realms/uk"
WEISS = Person.signed_in("weiss@uk.example", ISSUER, "console", "5f0c")
BRAUN = Person.signed_in("braun@uk.example", ISSUER, "console", "81aa")


class TestSignedIn:
    """Two persons by what an identity provider calls them, beside accounts of the machine."""

    DIGEST = b"\x07" * 32

    @pytest.fixture
    def store(self, tmp_path: Path) -> Approvals:
        made = Approvals(tmp_path / "approvals.json")
        made.hold("heart", self.DIGEST, NOW)
        return made

    def approve(self, store: Approvals, by: Person) -> ApprovalState:
        return store.approve_what("heart", NOW, by=by, persons=2).state

    def test_two_who_signed_in_are_two_and_both_are_kept(self, store: Approvals) -> None:
        assert self.approve(store, WEISS) is ApprovalState.HELD
        assert self.approve(store, BRAUN) is ApprovalState.APPROVED
        (decision,) = store.decided()
        assert decision.by == f"{WEISS.name}, {BRAUN.name}"
        assert decision.subjects == (f"{ISSUER} console 5f0c", f"{ISSUER} console 81aa")
        store.require("heart", self.DIGEST, NOW, manual=True, persons=2)

    def test_one_person_under_two_names_is_one_and_two_of_one_name_are_two(self, store: Approvals) -> None:
        self.approve(store, WEISS)
        with pytest.raises(PolicyRefused, match="has approved") as caught:
            self.approve(store, Person.signed_in("neu@uk.example", ISSUER, "console", "5f0c"))
        assert "sign in" in caught.value.remedy
        assert (
            self.approve(store, Person.signed_in("weiss@uk.example", ISSUER, "console", "81aa")) == "approved"
        )

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (Person("weiss"), WEISS),
            (WEISS, Person("weiss")),
            (WEISS, Person(WEISS.name)),
            (WEISS, Person.signed_in("weiss@uk.example", "https://other.example", "console", "5f0c")),
            # Another name of the same person, where the provider's are pairwise:
            (WEISS, Person.signed_in("weiss@uk.example", ISSUER, "console-2", "77b1")),
        ],
    )
    def test_who_may_be_one_person_takes_the_place_of_the_first(
        self, store: Approvals, first: Person, second: Person
    ) -> None:
        self.approve(store, first)
        for by in (second, first):
            assert self.approve(store, by) is ApprovalState.HELD
            assert store.find("heart").by == by.name

    def test_one_from_before_is_the_first_of_two(self, store: Approvals) -> None:
        store.approve_what("heart", NOW, by=WEISS)
        with pytest.raises(PolicyRefused, match="waits for the approval"):
            store.require("heart", self.DIGEST, NOW, manual=True, persons=2)
        with pytest.raises(PolicyRefused, match="has approved"):
            self.approve(store, WEISS)
        assert self.approve(store, BRAUN) is ApprovalState.APPROVED

    def test_a_refusal_says_who_too_and_a_refused_name_forgets_the_first(self, store: Approvals) -> None:
        self.approve(store, WEISS)
        store.refuse_what("heart", NOW, by=Person("dr.b"))
        (held,) = store.all()
        assert (held.by, held.subjects) == ("", ())
        assert self.approve(store, BRAUN) is ApprovalState.HELD
        refused = store.refuse_what(self.DIGEST.hex(), NOW, by=BRAUN)
        assert (refused.by, refused.subjects) == (BRAUN.name, (BRAUN.subject,))

    def test_pages_tell_persons_apart_by_all_that_is_known_of_them(self) -> None:
        others = (BRAUN, Person(WEISS.name), Person("neu", WEISS.subject), Person(WEISS.name, BRAUN.subject))
        assert len({one.digest for one in (WEISS, *others)}) == 5

    def test_a_file_without_anybody_who_signed_in_is_as_it_was(
        self, store: Approvals, tmp_path: Path
    ) -> None:
        self.approve(store, Person("dr.a"))
        assert "subjects" not in (tmp_path / "approvals.json").read_text()

    def test_a_file_whose_subjects_do_not_fit_is_refused(self, store: Approvals, tmp_path: Path) -> None:
        self.approve(store, WEISS)
        path = tmp_path / "approvals.json"
        path.write_text(path.read_text().replace(f'"{WEISS.subject}"', '"a", "b"'))
        with pytest.raises(ConfigError, match="subjects"):
            store.decided()
