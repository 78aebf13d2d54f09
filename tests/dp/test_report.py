"""What an audit finds and states: every change is found and named, and every number is the ledger's."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto.identity import Identity, Roster
from secfed.dp import ledger as ledger_module
from secfed.dp.accountant import Pld, Prv, Rdp, statement
from secfed.dp.budget import Budget, Spent, standing
from secfed.dp.events import Event, Gaussian, PoissonSampledGaussian
from secfed.dp.ledger import Ledger, verify
from secfed.dp.report import make_report, to_json
from secfed.dp.report.facts import SCHEMA_VERSION, Report, ranges
from secfed.dp.report.pld import ExpectingPld, RememberingPld
from secfed.dp.report.recompute import Recomputer
from secfed.dp.unit import Adjacency
from secfed.errors import ConfigError, RosterError, TranscriptError
from secfed.outputs import TRANSCRIPT_FILE, site_folder
from secfed.roster_file import ROSTER_FILE, write_roster
from secfed.transcript import SETTINGS
from tests.dp.report_case import (
    ADD,
    DATASET,
    NOW_S,
    PRIVACY,
    SECRET,
    SITES,
    Case,
    Study,
    hospital,
    settings,
    studies,
    write_case,
)

LEDGER = f"ledger-{DATASET}.jsonl"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return write_case(tmp_path_factory.mktemp("case"))


@pytest.fixture
def written(example: Case) -> Path:
    """The example's folder, for tests that only read it."""
    return example.root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """A copy of the example that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "case"))


def report(*folders: Path, pinned: tuple[Path, ...] = ()) -> Report:
    return make_report(folders, pinned, clock=lambda: NOW_S)


def problems(made: Report) -> list[tuple[str, int | None, str]]:
    return [(Path(item.file).name, item.line, item.why) for item in made.verification.problems]


class TestFacts:
    def test_everything_verifies_and_is_counted(self, written: Path) -> None:
        made = report(*studies(written))
        assert made.verification.verified
        assert made.verification.problems == ()
        assert made.sites == SITES
        assert [(study.name, study.protection, study.sums) for study in made.studies] == [
            ("heart", "masked", 7),
            ("lung", "masked", 4),
            ("pilot", "plain", 2),
        ]
        # two budgets after each of 10, 10 and 9 payments
        assert made.verification.recomputed == 58
        files = {(item.kind, Path(item.file).parent.name): item for item in made.verification.files}
        assert len(made.verification.files) == 3 + 12 + 6
        assert all(item.verified for item in files.values())

    def test_budgets_equal_the_ledgers_own_standings(self, example: Case) -> None:
        case, example.now_s = example, NOW_S
        made = report(*studies(example.root))
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

    def test_a_period_ends_at_the_date_of_the_report(self, written: Path) -> None:
        later = make_report(studies(written), clock=lambda: NOW_S + 400 * 86_400)
        whole, year = later.ledgers[0].amounts
        assert whole.spent > 0
        assert (year.spent, year.adjacency, year.left) == (0.0, None, year.limit)

    def test_payments_carry_their_event_and_the_total_so_far(self, written: Path) -> None:
        (found,) = [one for one in report(*studies(written)).ledgers if one.site == "st-anna"]
        places = [(payment.study, payment.round) for payment in found.payments]
        assert places == [
            *(("heart", number) for number in range(1, 7)),
            ("lung", 1),
            ("lung", 2),
            ("elsewhere", 1),
        ]
        events = [Gaussian(ADD, 9.0, 8), Gaussian(ADD, 5.0, 1)]
        assert found.payments[-1].after[0].spent == statement(events, 1e-5, Rdp()).epsilon
        assert found.payments[0].event["noise_multiplier"] == 9.0
        alone = {spend.study: spend.alone[0].spent for spend in found.studies}
        assert alone["heart"] == statement([Gaussian(ADD, 9.0, 6)], 1e-5, Rdp()).epsilon
        assert sum(alone.values()) > found.amounts[0].spent  # epsilons compose; the report must not add

    def test_what_left_is_grouped_by_how_it_is_covered(self, written: Path) -> None:
        made = report(*studies(written))
        left = {(one.name, item.site, item.exchange): item for one in made.studies for item in one.left}
        update = left["heart", "st-anna", "update"]
        assert (update.privacy, update.sums, update.paid, update.rounds, update.cohort) == (
            "paid",
            6,
            6,
            "1-6",
            (3, 3),
        )
        assert set(update.bare) == {"weight", "eval/records", "eval/loss", "eval/scores"}
        assert left["heart", "st-anna", "evaluate"].privacy == "bare"
        assert left["lung", "st-anna", "update"].sums == 2  # it left after its budget refused
        assert left["lung", "hospital-b", "update"].cohort == (2, 3)
        assert left["pilot", "st-anna", "update"].privacy == "none"

    def test_every_refusal_is_there(self, written: Path) -> None:
        found = report(*studies(written)).refusals
        assert [(item.what, item.site, item.study, item.round) for item in found] == [
            ("budget", "st-anna", "lung", 3),
            ("budget", "st-anna", "lung", 4),
            ("message", "st-anna", "lung", 3),
            ("message", "st-anna", "lung", 4),
            ("round", "", "lung", 5),
        ]
        assert "epsilon 1.6 at delta 1e-05" in found[0].reason

    def test_a_study_that_a_ledger_paid_for_and_that_is_not_here_is_named(self, written: Path) -> None:
        assert any("paid for 'elsewhere'" in note for note in report(*studies(written)).verification.notes)

    def test_json_is_the_same_facts_and_holds_no_site_value(self, written: Path) -> None:
        made = report(*studies(written))
        text = to_json(made)
        content = json.loads(text)
        assert next(iter(content)) == "schema_version"
        assert content["schema_version"] == SCHEMA_VERSION
        assert content["ledgers"][2]["amounts"][0]["spent"] == made.ledgers[2].amounts[0].spent
        assert content["verification"]["verified"] is True
        planted = site_folder(written / "heart", "st-anna") / TRANSCRIPT_FILE
        assert str(SECRET) in planted.read_text()
        assert str(SECRET) not in text

    def test_the_schema_keeps_its_keys(self, written: Path) -> None:
        content = json.loads(to_json(report(*studies(written))))
        assert set(content) == {
            "schema_version",
            "made_s",
            "secfed_version",
            "folders",
            "verification",
            "ledgers",
            "studies",
            "bare",
            "refusals",
        }
        assert set(content["ledgers"][0]["amounts"][0]) == {
            "protects",
            "limit",
            "spent",
            "left",
            "delta",
            "period_days",
            "adjacency",
            "accountant",
            "version",
            "relies_on",
        }

    def test_old_transcripts_without_settings_are_reported_as_such(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        study = Study(case, "old", "old", None)
        study.round(1, ("update/w",))
        study.close(with_ledgers=False)
        (found,) = report(tmp_path / "old").studies
        assert (found.settings_recorded, found.protection, found.privacy) == (False, None, None)
        assert {left.privacy for left in found.left} == {"unknown"}


class TestFolders:
    def test_a_ledger_found_twice_is_one(self, written: Path) -> None:
        made = report(*studies(written))
        assert [(one.site, one.dataset) for one in made.ledgers] == [(site, DATASET) for site in SITES]

    def test_a_hospitals_own_folder_is_enough(self, written: Path, tmp_path: Path) -> None:
        made = report(hospital(written, Case(written), "st-anna", tmp_path / "own"))
        assert made.verification.verified
        assert [study.name for study in made.studies] == ["heart", "lung", "pilot"]
        assert {study.parties for study in made.studies} == {("st-anna",)}
        whole = report(*studies(written))
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
        assert ("roster.json", None, "it is not a roster that you pinned") in problems(made)
        assert made.ledgers == ()  # no number from a ledger that does not verify

    def test_nothing_to_report_on_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(TranscriptError, match="neither a transcript nor a ledger"):
            report(tmp_path)
        with pytest.raises(ConfigError, match="no such folder"):
            report(tmp_path / "none")

    def test_a_pinned_roster_that_cannot_be_read_is_an_error(self, written: Path, tmp_path: Path) -> None:
        with pytest.raises(RosterError, match=r"none\.json"):
            report(written / "heart", pinned=(tmp_path / "none.json",))


def flip(path: Path, line: int) -> None:
    """Change one byte in a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    data = bytearray(lines[line - 1])
    data[len(data) // 2] ^= 1
    path.write_bytes(b"".join([*lines[: line - 1], bytes(data), *lines[line:]]))


class TestTampering:
    @pytest.mark.parametrize(
        ("name", "line"),
        [
            (f"sites/st-anna/{LEDGER}", 1),
            (f"sites/st-anna/{LEDGER}", 7),
            ("sites/st-anna/transcript.jsonl", 3),
            ("sites/hospital-b/transcript.jsonl", 1),
            ("transcript.jsonl", 4),
        ],
    )
    def test_one_changed_byte_is_found_and_named(self, root: Path, name: str, line: int) -> None:
        flip(root / "heart" / name, line)
        made = report(*studies(root))
        assert not made.verification.verified
        first = made.verification.problems[0]
        assert (first.file, first.line) == (str(root / "heart" / name), line)
        (bad,) = [item for item in made.verification.files if item.file == first.file]
        assert not bad.verified

    def test_every_byte_of_a_ledger_matters(self, root: Path) -> None:
        path = root / "lung" / "sites" / "st-anna" / LEDGER
        whole = path.read_bytes()
        for at in range(0, len(whole), 701):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            found = report(root / "lung")
            line = whole[:at].count(b"\n") + 1
            assert (str(path), line) in [(item.file, item.line) for item in found.verification.problems], at

    def test_a_changed_roster_is_found(self, root: Path) -> None:
        path = root / "heart" / ROSTER_FILE
        content = json.loads(path.read_text())
        content["sites"]["st-anna"] = "00" * 32
        path.write_text(json.dumps(content))
        made = report(root / "heart")
        assert (ROSTER_FILE, None) in [found[:2] for found in problems(made)]
        assert made.ledgers == ()

    @pytest.mark.parametrize("kept", [4, 10])
    def test_an_older_copy_of_a_ledger_is_detected_with_file_and_round(self, root: Path, kept: int) -> None:
        for study in ("heart", "lung"):
            path = root / study / "sites" / "st-anna" / LEDGER
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
        made = report(*studies(root))
        found = [why for name, _, why in problems(made) if name == LEDGER]
        assert found
        assert all("older copy or a second history" in why for why in found)
        transcript = root / "heart" / "sites" / "st-anna" / TRANSCRIPT_FILE
        assert f"{transcript}, line" in found[0]
        # Lines: opened, budgets, then two per round; the state after round 2 has 6 lines.
        assert f"(round {2 if kept == 4 else 5})" in found[0]

    def test_an_older_copy_beside_the_current_one_is_only_noted(self, root: Path) -> None:
        path = root / "heart" / "sites" / "st-anna" / LEDGER
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
        made = report(*studies(root))
        assert made.verification.verified
        assert any("is an older copy of" in note for note in made.verification.notes)
        (ledger,) = [one for one in made.ledgers if one.site == "st-anna"]
        assert len(ledger.payments) == 9

    def test_two_histories_of_one_ledger_are_found(self, root: Path, tmp_path: Path) -> None:
        other = Case(tmp_path / "second")
        other.ledger("st-anna").spend(Gaussian(ADD, 9.0, 1), study="x", round_number=1, exchange="update")
        shutil.copy(other.ledger("st-anna").path, root / "pilot")
        assert any("two histories of one ledger" in why for _, _, why in problems(report(*studies(root))))

    def test_a_missing_ledger_is_noted_and_nothing_is_promised(self, root: Path) -> None:
        for study in ("heart", "lung"):
            (root / study / "sites" / "st-anna" / LEDGER).unlink()
        made = report(*studies(root))
        assert any(
            note.startswith("st-anna, study 'heart'") and "is not among the verified files" in note
            for note in made.verification.notes
        )
        (heart, *_) = made.studies
        assert {left.privacy for left in heart.left if left.site == "st-anna"} == {"unknown"}

    def test_sites_that_recorded_other_settings_are_found(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        study = Study(case, "s", "s", None)
        study.log.append(SETTINGS, {"protection": "masked", "privacy": None})
        for site, log in study.logs.items():
            log.append(SETTINGS, {"protection": "plain" if site == "st-anna" else "masked", "privacy": None})
        study.close(with_ledgers=False)
        ((name, line, why),) = problems(report(tmp_path / "s"))
        assert (name, line) == (TRANSCRIPT_FILE, 2)
        assert "its settings differ" in why


Forgery = Callable[[dict[str, Any]], None]


def halve(body: dict[str, Any]) -> None:
    body["after"][0]["spent"]["epsilon"] /= 2


def other_relation(body: dict[str, Any]) -> None:
    body["after"][0]["spent"]["adjacency"] = "zero-out-site"


def other_accountant(body: dict[str, Any]) -> None:
    body["after"][0]["spent"]["accountant"] = "basic composition of pld and rdp"


def no_budget(body: dict[str, Any]) -> None:
    body["after"] = []


def other_limit(body: dict[str, Any]) -> None:
    body["after"][0]["epsilon"] = 100.0


def earlier(body: dict[str, Any]) -> None:
    body["time_s"] -= 10 * 86_400


def unreadable(body: dict[str, Any]) -> None:
    body["after"][0]["spent"]["epsilon"] = "small"


class TestFaultySite:
    """A site whose ledger is correctly signed and wrong."""

    @pytest.mark.parametrize(
        ("forge", "why"),
        [
            (halve, "but the events give"),
            (other_relation, "stated under zero-out-site"),
            (other_accountant, "cannot have made its epsilon"),
            (no_budget, "does not state the budgets that were in force"),
            (other_limit, "does not state the budgets that were in force"),
            (earlier, "dated before"),
            (unreadable, "cannot be read"),
        ],
    )
    def test_a_false_number_is_found_by_recomputation(self, root: Path, forge: Forgery, why: str) -> None:
        case = Case(root)
        for study in ("heart", "lung"):
            resign(case, root / study / "sites" / "st-anna" / LEDGER, 9, forge)
        made = report(root / "lung")  # heads of lung come later, so they are missing as well
        found = [item for item in problems(made) if item[:2] == (LEDGER, 9)]
        assert found
        assert why in found[0][2]

    def test_a_payment_above_the_limit_is_found(self, tmp_path: Path) -> None:
        path = tmp_path / LEDGER
        identity = Identity.from_seed("st-anna", bytes([3]) * 32)
        write_roster(tmp_path / ROSTER_FILE, Roster.of(Identity.generate("aggregator"), [identity]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger_module.Standing, "exceeded", False)
            ledger = Ledger(path, identity, DATASET, (Budget(0.5, 1e-5),), accountant=Rdp())
            ledger.spend(Gaussian(ADD, 2.0, 1), study="s", round_number=1, exchange="update")
        ((name, line, why),) = problems(report(tmp_path))
        assert (name, line) == (LEDGER, 3)
        assert "exceeds the record budget of epsilon 0.5" in why

    def test_a_sum_that_nobody_paid_for_is_noted(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        study = Study(case, "s", "s", settings(PRIVACY, 2))
        study.round(1, ("update/w",), event=Gaussian(ADD, 9.0, 1))
        study.round(2, ("update/w",))
        study.close()
        made = report(tmp_path / "s")
        assert {left.privacy for left in made.studies[0].left} == {"partly-paid"}
        assert any("no payment for 1 of 2 sums of exchange 'update'" in n for n in made.verification.notes)


def resign(case: Case, path: Path, line: int, forge: Forgery) -> None:
    """Rewrite a ledger from one line on, signed by its site, with one body changed."""
    from secfed.chain import Chain

    identity = case.identities["st-anna"]
    entries = verify(path.read_bytes().splitlines(keepends=True), identity.public_bytes)
    lines: list[bytes] = []
    chain = Chain(identity, ledger_module.LEDGER, sink=lines.append)
    for entry in entries:
        body = json.loads(json.dumps(entry.body))
        if entry.seq + 1 == line:
            forge(body)
        chain.append(entry.kind, body)
    path.write_bytes(b"".join(lines))


class TestRecomputing:
    EVENTS = (
        (PoissonSampledGaussian(ADD, 0.1, 2.0, 7),),
        (PoissonSampledGaussian(ADD, 0.1, 2.0, 7), PoissonSampledGaussian(ADD, 0.2, 3.0, 4)),
        (PoissonSampledGaussian(Adjacency.REPLACE_RECORD, 0.1, 4.0, 9),),
        (PoissonSampledGaussian(ADD, 0.1, 0.0, 1),),
        (Gaussian(ADD, 5.0, 3),),
        (Gaussian(ADD, 5.0, 3), PoissonSampledGaussian(ADD, 0.1, 2.0, 7)),
        (PoissonSampledGaussian(ADD, 1.0, 5.0, 3),),
    )

    @pytest.mark.parametrize("events", EVENTS)
    def test_remembering_changes_no_digit(self, events: tuple[Event, ...]) -> None:
        for delta in (1e-5, 1e-6):
            assert statement(events, delta, RememberingPld(1e-3)) == statement(events, delta, Pld(1e-3))

    def test_it_refuses_what_pld_refuses(self) -> None:
        mixed = [
            PoissonSampledGaussian(ADD, 0.1, 2.0, 1),
            PoissonSampledGaussian(Adjacency.REPLACE_RECORD, 0.1, 2.0, 1),
        ]
        for wrong in (mixed, []):
            with pytest.raises(ConfigError):
                RememberingPld().epsilon(wrong, 1e-5)
        with pytest.raises(ConfigError):
            RememberingPld().epsilon(mixed[:1], 0.0)

    @pytest.mark.parametrize("events", EVENTS)
    def test_an_expected_epsilon_is_accepted_only_if_it_is_right(self, events: tuple[Event, ...]) -> None:
        checker = ExpectingPld(RememberingPld(1e-3))
        right = statement(events, 1e-5, Pld(1e-3)).epsilon
        for claimed in (right, right * (1 - 1e-6), right * (1 + 1e-6), right / 2, 0.0, math.nan):
            checker.expected = claimed
            assert statement(events, 1e-5, checker).epsilon == right

    def test_a_composition_that_grows_and_shrinks_stays_right(self) -> None:
        checker = ExpectingPld(RememberingPld(1e-3))
        for first, second in ((5, 0), (10, 0), (10, 4), (15, 4), (3, 4), (10, 8), (15, 8)):
            events = [PoissonSampledGaussian(ADD, 0.1, 2.0, first)]
            events += [PoissonSampledGaussian(ADD, 0.2, 3.0, second)] if second else []
            right = statement(events, 1e-5, Pld(1e-3)).epsilon
            checker.expected = right
            assert statement(events, 1e-5, checker).epsilon == right
            composed = checker._composed(events).get_epsilon_for_delta(1e-5)
            assert composed == pytest.approx(right, rel=1e-7)

    @pytest.mark.parametrize("accountant", [Pld(1e-3), Prv(), Rdp()])
    def test_a_ledger_is_recomputed_with_the_accountant_it_names(
        self, tmp_path: Path, accountant: Pld | Prv | Rdp
    ) -> None:
        identity = Identity.from_seed("st-anna", bytes([3]) * 32)
        budgets = (Budget(50.0, 1e-5), Budget(None, 1e-6))
        ledger = Ledger(tmp_path / LEDGER, identity, DATASET, budgets, accountant=accountant)
        for number in (1, 2):
            event = PoissonSampledGaussian(ADD, 0.1, 2.0, 5)
            ledger.spend(event, study="s", round_number=number, exchange="update")
        entries = verify((tmp_path / LEDGER).read_bytes().splitlines(keepends=True), identity.public_bytes)
        recomputer = Recomputer()
        points, wrong = recomputer.ledger(entries)
        assert wrong == []
        assert recomputer.checked == 4
        assert points[-1].standings == ledger.standings()

    def test_equal_ledgers_are_computed_once(self, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[object] = []
        honest = Rdp.epsilon
        monkeypatch.setattr(
            Rdp,
            "epsilon",
            lambda self, events, delta: asked.append((tuple(events), delta)) or honest(self, events, delta),
        )
        report(*studies(written))
        assert len(asked) == len(set(asked)) > 10

    def test_a_grid_that_only_costs_memory_is_not_followed(self) -> None:
        wanted = {"accountant": "pld", "version": "dp-accounting 0, interval 1e-12"}
        (chosen,) = Recomputer().accountants_of(wanted)
        assert chosen.version == Pld().version

    def test_a_period_is_counted_as_of_each_entry(self, tmp_path: Path) -> None:
        spent = [Spent(Gaussian(ADD, 5.0, 1), 0), Spent(Gaussian(ADD, 5.0, 1), 20 * 86_400)]
        found = standing(Budget(9.0, 1e-5, period_days=10), spent, 20 * 86_400, Rdp())
        assert found.epsilon == statement([Gaussian(ADD, 5.0, 1)], 1e-5, Rdp()).epsilon
        assert replace(found, spent=None).epsilon == 0.0


def test_ranges_read_like_ranges() -> None:
    assert ranges({1, 2, 3, 7, 9, 10}) == "1-3, 7, 9-10"
    assert ranges(set()) == ""
