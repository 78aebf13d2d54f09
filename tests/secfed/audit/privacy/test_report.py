"""What an audit states: every number is the ledger's, from whichever folders it was made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from secfed.audit.privacy import make_report, to_json
from secfed.audit.privacy.evidence import SCHEMA_VERSION, Report, ranges
from secfed.crypto.identity import Identity, Roster
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp, statement
from secfed.dp.accounting.trade_off import found_at
from secfed.errors import ConfigError, TranscriptError
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder
from tests.dp.report_case import (
    ADD,
    DATASET,
    DAY_S,
    LEDGER,
    NOW_S,
    SECRET,
    SITES,
    START_S,
    Case,
    Study,
    hospital,
    problems,
    report,
    studies,
)


class TestFacts:
    def test_everything_verifies_and_is_counted(self, made: Report) -> None:
        assert made.verification.verified
        assert made.verification.problems == ()
        assert made.sites == SITES
        assert [(study.name, study.protection, study.sums) for study in made.studies] == [
            ("heart", "masked", 7),
            ("lung", "masked", 4),
            ("pilot", "plain", 2),
        ]
        assert any("paid for 'elsewhere'" in note for note in made.verification.notes)
        # two budgets after each of 10, 10 and 9 payments
        assert made.verification.recomputed == 58
        files = {(item.kind, Path(item.file).parent.name): item for item in made.verification.files}
        assert len(made.verification.files) == 3 + 12 + 6
        assert all(item.verified for item in files.values())

    def test_budgets_equal_the_ledgers_own_standings(self, example: Case, made: Report) -> None:
        case, example.now_s = example, NOW_S
        assert [ledger.site for ledger in made.ledgers] == list(SITES)
        for found in made.ledgers:
            expected = case.ledger(found.site).standings()
            assert [(one.spent, one.delta, one.limit, one.period_days) for one in found.amounts] == [
                (one.epsilon, one.budget.delta, one.budget.epsilon, one.budget.period_days)
                for one in expected
            ]
            for amount, one in zip(found.amounts, expected, strict=True):
                assert one.spent is not None
                assert amount.left == one.budget.epsilon - one.epsilon
                named = (str(one.spent.adjacency), one.spent.accountant, one.spent.version)
                assert (amount.adjacency, amount.accountant, amount.version) == named
                assert amount.relies_on == "local-noise"
                # Of the whole curve: much less than the epsilon at one delta permits.
                assert amount.found is not None
                assert 0.01 < amount.found < 0.9 * found_at(amount.spent, amount.delta, 0.01)

    def test_a_period_ends_at_the_date_of_the_report(self, written: Path) -> None:
        later = make_report(studies(written), clock=lambda: NOW_S + 400 * 86_400)
        whole, year = later.ledgers[0].amounts
        assert whole.spent > 0
        assert (year.spent, year.adjacency, year.left) == (0.0, None, year.limit)

    def test_payments_carry_their_event_and_the_total_so_far(self, made: Report) -> None:
        (found,) = [one for one in made.ledgers if one.site == "st-anna"]
        places = [(payment.study, payment.round) for payment in found.payments[5:]]
        assert places == [("heart", 6), ("lung", 1), ("lung", 2), ("elsewhere", 1)]
        events = [Gaussian(ADD, 9.0, 8), Gaussian(ADD, 5.0, 1)]
        assert found.payments[-1].after[0].spent == statement(events, 1e-5, Rdp()).epsilon
        assert found.payments[0].event["noise_multiplier"] == 9.0
        alone = {spend.study: spend.alone[0].spent for spend in found.studies}
        assert alone["heart"] == statement([Gaussian(ADD, 9.0, 6)], 1e-5, Rdp()).epsilon
        assert sum(alone.values()) > found.amounts[0].spent  # epsilons compose; the report must not add

    def test_what_left_is_grouped_by_how_it_is_covered(self, made: Report) -> None:
        left = {(one.name, item.site, item.exchange): item for one in made.studies for item in one.left}
        update = left["heart", "st-anna", "update"]
        assert (update.privacy, update.sums, update.paid) == ("paid", 6, 6)
        assert (update.rounds, update.cohort) == ("1-6", (3, 3))
        assert set(update.bare) == {"weight", "eval/records", "eval/loss", "eval/scores"}
        assert left["heart", "st-anna", "evaluate"].privacy == "bare"
        assert left["lung", "st-anna", "update"].sums == 2  # it left after its budget refused
        assert left["lung", "hospital-b", "update"].cohort == (2, 3)
        assert left["pilot", "st-anna", "update"].privacy == "none"

    def test_every_refusal_is_there(self, made: Report) -> None:
        found = made.refusals
        assert [(item.what, item.site, item.study, item.round) for item in found] == [
            ("budget", "st-anna", "lung", 3),
            ("budget", "st-anna", "lung", 4),
            ("message", "st-anna", "lung", 3),
            ("message", "st-anna", "lung", 4),
            ("round", "", "lung", 5),
        ]
        assert "epsilon 1.6 at delta 1e-05" in found[0].reason

    def test_json_is_the_same_facts_and_holds_no_site_value(self, made: Report, written: Path) -> None:
        text = to_json(made)
        content = json.loads(text)
        assert next(iter(content)) == "schema_version"
        assert content["schema_version"] == SCHEMA_VERSION
        assert content["ledgers"][2]["amounts"][0]["spent"] == made.ledgers[2].amounts[0].spent
        assert content["verification"]["verified"] is True
        planted = site_folder(written / "heart", "st-anna") / TRANSCRIPT_FILE
        assert str(SECRET) in planted.read_text()
        assert str(SECRET) not in text

    def test_the_schema_keeps_its_keys(self, made: Report) -> None:
        content = json.loads(to_json(made))
        assert " ".join(content) == (
            "schema_version made_s secfed_version folders verification ledgers studies bare refusals "
            "decisions named_rosters secfed_build"
        )
        assert " ".join(content["ledgers"][0]["amounts"][0]) == (
            "protects limit spent left delta period_days adjacency accountant version relies_on "
            "found guessed ever"
        )

    def test_old_transcripts_without_settings_are_reported_as_such(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        study = Study(case, "old", "old", None)
        study.round(1, ("update/w",))
        study.close(with_ledgers=False)
        (found,) = report(tmp_path / "old").studies
        assert (found.settings_recorded, found.protection, found.privacy) == (False, None, None)
        assert {left.privacy for left in found.left} == {"unknown"}


class TestDates:
    def test_an_entry_from_after_the_audit_is_worth_knowing(self, written: Path) -> None:
        def notes(now_s: int) -> list[str]:
            made = make_report(studies(written), clock=lambda: now_s)
            assert made.verification.verified
            return [note for note in made.verification.notes if "after this audit" in note]

        assert len(notes(START_S - DAY_S)) == len(SITES)
        (first, *_) = sorted(notes(START_S - DAY_S))
        assert f"{LEDGER}, line 2 is dated 2027-01-16 08:00 UTC" in first
        assert notes(NOW_S) == []
        assert len(notes(NOW_S - 39 * DAY_S)) == len(SITES)  # some entries of each


class TestFolders:
    def test_a_ledger_found_twice_is_one(self, made: Report) -> None:
        assert [(one.site, one.dataset) for one in made.ledgers] == [(site, DATASET) for site in SITES]

    def test_a_hospitals_own_folder_is_enough(self, written: Path, made: Report, tmp_path: Path) -> None:
        whole, made = made, report(hospital(written, Case(written), "st-anna", tmp_path / "own"))
        assert made.verification.verified
        assert [study.name for study in made.studies] == ["heart", "lung", "pilot"]
        assert {study.parties for study in made.studies} == {("st-anna",)}
        assert made.ledgers[0].amounts == whole.ledgers[2].amounts
        assert any("aggregator's transcript is not here" in note for note in made.verification.notes)

    def test_folders_of_several_parties_are_compared_with_each_other(
        self, root: Path, tmp_path: Path
    ) -> None:
        own = hospital(root, Case(root), "st-anna", tmp_path / "own")
        shutil.rmtree(site_folder(root / "heart", "st-anna"))
        made = report(root / "heart", own / "heart", own)
        (heart,) = [study for study in made.studies if study.name == "heart"]
        assert heart.parties == ("aggregator", *SITES)
        assert made.verification.verified
        # Now the two disagree: the hospital recorded a sum that the aggregator does not know.
        other = Study(Case(tmp_path / "other"), "heart", "other", None)
        other.round(9, ("update/w",))
        shutil.copy(site_folder(other.close(with_ledgers=False), "st-anna") / TRANSCRIPT_FILE, own / "heart")
        ((name, line, why),) = problems(report(root / "heart", own / "heart"))
        assert (name, line) == (TRANSCRIPT_FILE, 3)
        assert "the aggregator's transcript has no such sum" in why

    def test_a_roster_that_was_pinned_decides(self, root: Path, tmp_path: Path) -> None:
        pinned = tmp_path / "pinned.json"
        shutil.copy(root / "heart" / ROSTER_FILE, pinned)
        made = report(*studies(root), pinned=(pinned,))
        assert (made.verification.verified, made.verification.pinned) == (True, True)
        other = Roster.of(Identity.generate("aggregator"), [Identity.generate(site) for site in SITES])
        write_roster(pinned, other)
        made = report(*studies(root), pinned=(pinned,))
        assert not made.verification.verified
        assert any("roster.json is not among the rosters of --roster" in n for n in made.verification.notes)
        assert any(
            "under which it was made, is missing; name it with --roster" in p[2] for p in problems(made)
        )
        assert not made.verification.is_only_unchecked, "ledgers signed with another key are wrong"
        assert made.ledgers == ()  # no number from a ledger that does not verify

    def test_nothing_to_report_on_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(TranscriptError, match="neither a transcript nor a ledger"):
            report(tmp_path)
        with pytest.raises(ConfigError, match="no such folder"):
            report(tmp_path / "none")

    def test_a_pinned_roster_that_cannot_be_read_is_an_error(self, written: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.json"):
            report(written / "heart", pinned=(tmp_path / "none.json",))


def test_ranges_read_like_ranges() -> None:
    assert ranges({1, 2, 3, 7, 9, 10}) == "1-3, 7, 9-10"
    assert ranges(set()) == ""
