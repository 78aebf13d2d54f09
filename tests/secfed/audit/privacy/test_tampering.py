"""What an audit finds: changed, old and missing records, and a site whose signed ledger is wrong."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from secfed.audit.privacy import to_json
from secfed.audit.privacy.data_protection import build
from secfed.audit.privacy.evidence import Report
from secfed.crypto.identity import Identity, Roster
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.interface import Rdp
from secfed.dp.ledger import ledger as ledger_module
from secfed.dp.ledger.ledger import Ledger, verify
from secfed.records.hash_chain import Chain, ChainType, Entry, verify_chain
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.records.transcript import SETTINGS, SUMMED, TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE
from tests.dp.report_case import (
    ADD,
    DATASET,
    DAY_S,
    LEDGER,
    PRIVACY,
    Case,
    Study,
    problems,
    report,
    settings,
    studies,
)

ANNA = Identity.from_seed("st-anna", bytes([3]) * 32)


def resign(
    path: Path,
    identity: Identity,
    entries: Sequence[Entry],
    forge: Callable[[Entry, dict[str, Any]], None],
    kind: ChainType = ledger_module.LEDGER,
) -> None:
    """Write a chain anew, signed by its owner, with bodies changed."""
    lines: list[bytes] = []
    chain = Chain(identity, kind, sink=lines.append)
    for entry in entries:
        body = json.loads(json.dumps(entry.body))
        forge(entry, body)
        chain.append(entry.kind, body)
    path.write_bytes(b"".join(lines))


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


def spent(**changes: Any) -> Forgery:
    """Change what the first budget's standing says."""
    return lambda body: body["after"][0]["spent"].update(changes)


def halve(body: dict[str, Any]) -> None:
    body["after"][0]["spent"]["epsilon"] /= 2


def earlier(body: dict[str, Any]) -> None:
    body["time_s"] -= 10 * DAY_S


class TestFaultySite:
    """A site whose ledger is correctly signed and wrong."""

    @pytest.mark.parametrize(
        ("forge", "why"),
        [
            (halve, "but the events give"),
            (spent(adjacency="zero-out-site"), "stated under zero-out-site"),
            (spent(accountant="basic composition of pld and rdp"), "cannot have made its epsilon"),
            (lambda body: body.update(after=[]), "does not state the budgets that were in force"),
            (lambda body: body["after"][0].update(epsilon=100.0), "does not state the budgets that were in"),
            (earlier, "dated before"),
            (spent(epsilon="small"), "cannot be read"),
        ],
    )
    def test_a_false_number_is_found_by_recomputation(self, root: Path, forge: Forgery, why: str) -> None:
        for study in ("heart", "lung"):
            path = root / study / "sites" / "st-anna" / LEDGER
            entries = verify(path.read_bytes().splitlines(keepends=True), ANNA.public_bytes)
            resign(path, ANNA, entries, lambda entry, body: forge(body) if entry.seq == 8 else None)
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


# (kind, key, value) -> a correctly signed ledger of one payment with that in its entries of that kind
ODD: list[tuple[str, str, Any]] = [
    ("opened", "dataset", ["wards"]),
    ("budgets", "budgets", 5),
    ("budgets", "budgets", [5]),
    ("budgets", "time_s", 1 << 50),
    ("spent", "after", None),
    ("spent", "after", [1]),
    ("spent", "after", [{"spent": 3}]),
    ("spent", "round", [1]),
    ("spent", "exchange", ["update"]),
    ("spent", "time_s", -(1 << 50)),
    ("unprotected", "fields", 5),
    ("unprotected", "round", [1]),
]
SUM_EVENT = {"adjacency": "zero-out-site", "l2": 1.0, "l1": 1.0, "count": 1}
STEPS: dict[str, Any] = {
    "event": "poisson-sampled-gaussian/1",
    "adjacency": str(ADD),
    "sampling_rate": 0.1,
    "noise_multiplier": 1.0,
    "steps": 1,
}
EXTREME: list[dict[str, Any]] = [
    {**SUM_EVENT, "event": "skellam/1", "l2": 1e200, "variance": 10.0},
    {**SUM_EVENT, "event": "distributed-discrete-gaussian/1", "sigma": 1e200, "shares": 3, "dimension": 4},
    {**SUM_EVENT, "event": "distributed-discrete-gaussian/1", "sigma": 3.0, "shares": -3, "dimension": 4},
    # These could be computed, in minutes and gigabytes.
    {**SUM_EVENT, "event": "distributed-discrete-gaussian/1", "sigma": 3.0, "shares": 2**31, "dimension": 4},
    {**STEPS, "noise_multiplier": 1e-3},
    {**STEPS, "steps": 2**40},
]


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Entry, ...]:
    path = tmp_path_factory.mktemp("odd") / LEDGER
    ledger = Ledger(path, ANNA, DATASET, (Budget(5.0, 1e-5),), accountant=Rdp())
    ledger.spend(Gaussian(ADD, 9.0, 1), study="s", round_number=1, exchange="update")
    ledger.note_unprotected(("eval/loss",), study="s", round_number=1, exchange="update")
    return verify(path.read_bytes().splitlines(keepends=True), ANNA.public_bytes)


class TestOddSite:
    """Entries that verify and that no ledger writes: a finding about one site, not the end of the report."""

    @staticmethod
    def written(
        entries: tuple[Entry, ...], folder: Path, forge: Callable[[str, dict[str, Any]], None]
    ) -> Report:
        write_roster(folder / ROSTER_FILE, Roster.of(Identity.generate("aggregator"), [ANNA]))
        resign(folder / LEDGER, ANNA, entries, lambda entry, body: forge(entry.kind, body))
        return report(folder)

    @pytest.mark.parametrize(("kind", "key", "value"), ODD)
    def test_the_entry_is_named(
        self, entries: tuple[Entry, ...], tmp_path: Path, kind: str, key: str, value: object
    ) -> None:
        def forge(of: str, body: dict[str, Any]) -> None:
            if of == kind:
                body[key] = value

        made = self.written(entries, tmp_path, forge)
        line = next(entry.seq + 1 for entry in entries if entry.kind == kind)
        assert problems(made) == [(LEDGER, line, "correctly signed, but not what a ledger writes")]
        assert made.ledgers == ()
        assert "DOES NOT VERIFY" in build(made).verdict

    @pytest.mark.parametrize("event", EXTREME)
    def test_events_that_nothing_can_compute_with_bound_nothing(
        self, entries: tuple[Entry, ...], tmp_path: Path, event: dict[str, Any]
    ) -> None:
        def forge(kind: str, body: dict[str, Any]) -> None:
            if kind == "spent":
                body["event"] = event

        made = self.written(entries, tmp_path, forge)
        assert problems(made) == [(LEDGER, 3, "its record of what was spent cannot be read")]
        assert [amount.spent for amount in made.ledgers[0].amounts] == [math.inf]
        assert '"unbounded"' in to_json(made)
        build(made)

    def test_a_transcript_whose_fields_are_no_list(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        study = Study(case, "s", "s", None)
        study.round(1, ("update/w",))
        study.close(with_ledgers=False)
        path = tmp_path / "s" / "sites" / "st-anna" / TRANSCRIPT_FILE
        anna = case.identities["st-anna"]
        recorded = verify_chain(path.read_bytes().splitlines(keepends=True), anna.public_bytes, TRANSCRIPT)

        def forge(entry: Entry, body: dict[str, Any]) -> None:
            if entry.kind == SUMMED:
                body["fields"] = 5

        resign(path, anna, recorded, forge, TRANSCRIPT)
        (made,) = report(tmp_path / "s").studies
        assert [left.fields for left in made.left if left.site == "st-anna"] == [()]
