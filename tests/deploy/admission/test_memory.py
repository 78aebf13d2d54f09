"""A hospital that lost its memory: in whatever order it is copied, lost and restored, persons decide then."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.crypto.attempt import AttemptId
from secfed.deploy.admission import memory
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.backup import back_up, restore
from secfed.deploy.admission.memory import notice_loss
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import ConfigError, PolicyRefused, Replay, TranscriptError
from secfed.runs.run_folder import FROM_BACKUP, ledger_file, study_folder
from secfed.site.journal import Journal
from secfed.site.lost_memory import (
    asks_person,
    check_ledger,
    confirm_data_set,
    copies,
    keep_copy,
    let_policy_decide,
    lost_memory,
    note_loss,
)
from secfed.site.runtime import recorded_heads
from secfed.storage import private_files

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DATA_SETS = ("heart", "lung")
STUDIES = {f"study-{digit}": bytes.fromhex(digit * 64) for digit in "123456789abc"}


def as_begun(study: str) -> bytes:
    table = {"study": study, "data_set": "", "sites": [], "tables": {}, "begun_s": 0}
    return private_files.to_json(table)


class Hospital:
    """One that works as its policy alone decides, and its person, who knows everything and says the truth.

    Attributes:
        paid: every payment of a data set since a person confirmed what is left of its budget.
        used: every attempt that was begun.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.backups, self.copies = folder / "site", folder / "backups", 0
        self.backups.mkdir()
        self.site = SiteFolder.create(self.folder, "charite", now=NOW)
        self.identity = self.site.identity(None)
        make_state_folder(self.site.state)
        self.paid: dict[str, list[str]] = {name: [] for name in DATA_SETS}
        self.newest: dict[str, bytes] = {}
        self.used: set[tuple[str, int]] = set()
        self.withdrawn: set[str] = set()
        self.worked = self.waited = 0

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            *[self.works] * 8,
            *[self.approves] * 4,
            *[self.confirms] * 2,
            self.copied,
            self.copied,
            self.loses_state,
            self.loses_a_file,
            self.loses_a_ledger_and_is_restored,
            self.loses_all,
            self.disk_away_or_back,
            self.restored,
            self.withdraws,
            self.finds_newest_ledger,
        ]
        self.random.choice(steps)()

    def works(self) -> None:
        if not self.folder.exists():
            return
        make_state_folder(self.site.state)
        notice_loss(self.site, NOW)
        name, dataset = self.random.choice(list(STUDIES)), self.random.choice(DATA_SETS)
        approvals, digest = Approvals(self.site.approvals_path), STUDIES[name]
        try:
            approvals.require(name, digest, NOW, manual=asks_person(self.site.state))
            approvals.record(name, digest, NOW)
            study = f"{name}-{digest.hex()}"
            begun = study_folder(self.site.state, study) / "settings.json"
            begun.parent.mkdir(parents=True, exist_ok=True)
            begun.write_bytes(as_begun(study))
            heads = recorded_heads(self.site.state, dataset)
            path = ledger_file(self.site.state, dataset)
            ledger = Ledger(path, self.identity, dataset, [Budget(None, 1e-5)], recorded=heads)
        except (PolicyRefused, TranscriptError):
            self.waited += 1
            return
        known = path.read_text()
        assert all(payment in known for payment in self.paid[dataset]), "a payment is forgotten"
        assert name not in self.withdrawn, "a study that was withdrawn works"
        payment = f"{self.random.getrandbits(256):064x}"
        self.paid[dataset].append(payment)
        ledger.note_unprotected(["loss"], study=name, round_number=1, exchange="sum", release=payment)
        self.newest[dataset] = path.read_bytes()
        with closing(Journal(self.site.state / "journal.sqlite")) as journal:
            for attempt in range(1, 100):
                try:
                    journal.begin(name, AttemptId(1, 0, attempt))
                except Replay:
                    continue
                assert (name, attempt) not in self.used, "an attempt is begun twice"
                self.used.add((name, attempt))
                break
        self.worked += 1

    def copied(self) -> None:
        if self.folder.exists():
            self.copies += 1
            back_up(self.site, self.backups / f"{self.copies}.tar.gz", NOW, keys=True)

    def loses_state(self) -> None:
        shutil.rmtree(self.site.state, ignore_errors=True)

    def loses_a_file(self) -> None:
        """One whose loss the agent notices, or for which the rest makes up."""
        lost = [("journal.sqlite",), ("studies/*/settings.json", "state-id.json")]
        for pattern in self.random.choice(lost):
            for path in self.site.state.glob(pattern):
                path.unlink()

    def loses_a_ledger_and_is_restored(self) -> None:
        last = self.backups / f"{self.copies}.tar.gz"
        path = ledger_file(self.site.state, self.random.choice(DATA_SETS))
        if self.folder.exists() and last.exists() and path.exists():
            (self.site.state / "state-id.json").unlink(missing_ok=True)  # the disk was damaged
            path.unlink()
            restore(last, self.folder, NOW)

    def disk_away_or_back(self) -> None:
        """What an agent did meanwhile, the disk does not have."""
        away = self.folder.with_name("away")
        if away.exists() and self.folder.exists():
            shutil.rmtree(self.site.state, ignore_errors=True)
            away.rename(self.site.state)
        elif not away.exists() and self.site.state.exists():
            self.site.state.rename(away)

    def loses_all(self) -> None:
        if self.copies:
            shutil.rmtree(self.folder, ignore_errors=True)

    def restored(self) -> None:
        if self.copies:
            restore(self.backups / f"{self.random.randint(1, self.copies)}.tar.gz", self.folder, NOW)

    def approves(self) -> None:
        """What never worked here."""
        for name in STUDIES:
            if self.folder.exists() and name not in {used for used, _ in self.used} | self.withdrawn:
                approvals = Approvals(self.site.approvals_path)
                if approvals.state(STUDIES[name]) is ApprovalState.HELD:
                    approvals.approve_what(name, NOW)

    def withdraws(self) -> None:
        name = self.random.choice(list(STUDIES))
        if self.folder.exists() and self.random.random() < 0.2:
            Approvals(self.site.approvals_path).refuse_what(name, NOW)
            self.withdrawn.add(name)

    def confirms(self) -> None:
        """With what is left of the budget, in the policy; the ledger that is here, if any, goes on."""
        dataset = self.random.choice(DATA_SETS)
        if self.folder.exists():
            try:
                confirm_data_set(self.site.state, dataset)
            except ConfigError:
                return
            self.paid[dataset] = []

    def finds_newest_ledger(self) -> None:
        dataset = self.random.choice(DATA_SETS)
        if self.folder.exists() and self.site.state.exists() and dataset in self.newest:
            ledger_file(self.site.state, dataset).write_bytes(self.newest[dataset])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))])
def test_in_any_order_no_payment_is_forgotten_and_no_attempt_used_twice(tmp_path: Path, seed: int) -> None:
    hospital = Hospital(tmp_path, seed)
    for taken in range(500):
        if taken >= 50 and hospital.worked:  # some lost their memory before they first worked
            break
        hospital.step()
    assert hospital.worked


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    made = SiteFolder.create(tmp_path / "site", "charite", now=NOW)
    make_state_folder(made.state)
    return made


@pytest.mark.parametrize("writes", range(4))
def test_a_first_start_that_is_cut_off_is_no_loss_and_a_loss_stays_one(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    def cut_off_after(writes: int) -> None:
        left = [None] * writes

        def write(*given: object, **more: object) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            real(*given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(private_files, "replace", write)
        monkeypatch.setattr(memory, "Journal", lambda path: (write(path, b""), path.open("ab"))[1])
        with suppress(KeyboardInterrupt):
            notice_loss(site, NOW)
        monkeypatch.undo()

    real = private_files.replace
    cut_off_after(writes)
    assert not notice_loss(site, NOW)
    shutil.rmtree(site.state)
    make_state_folder(site.state)
    cut_off_after(writes)
    notice_loss(site, NOW)
    assert asks_person(site.state)


def test_an_agent_in_another_state_folder_than_before_knows_that_it_knows_nothing(site: SiteFolder) -> None:
    for _ in range(2):
        assert not notice_loss(site, NOW)
    approvals = Approvals(site.approvals_path)
    approvals.hold("heart", bytes(32), NOW)
    approvals.approve_what("heart", NOW)
    moved = site.state.rename(site.state.with_name("elsewhere"))
    make_state_folder(site.state)
    assert notice_loss(site, NOW)
    assert approvals.state(bytes(32)) is ApprovalState.HELD
    assert asks_person(site.state)
    with pytest.raises(TranscriptError, match=r"nothing shows what was paid.*secfed site confirm heart"):
        check_ledger(site.state, "heart")
    assert not notice_loss(site, NOW)  # once
    shutil.rmtree(site.state)
    moved.rename(site.state)  # the disk is back, without what was done meanwhile
    assert notice_loss(site, NOW)
    assert asks_person(site.state)


@pytest.mark.parametrize("worked", ["ledger", "study", "attempt"])
def test_a_state_folder_that_worked_is_not_the_newest_because_the_site_has_no_mark(
    site: SiteFolder, worked: str
) -> None:
    """As when a snapshot of it is put back, and the site's folder from a backup, which has no mark."""
    notice_loss(site, NOW)
    if worked == "ledger":
        Ledger(ledger_file(site.state, "heart"), site.identity(None), "heart", [Budget(None, 1e-5)])
    elif worked == "study":
        study_folder(site.state, f"heart-{'5' * 64}").mkdir(parents=True)
    else:
        with closing(Journal(site.state / "journal.sqlite")) as journal:
            journal.begin("heart", AttemptId(1, 0, 1))
    (site.folder / memory.ID_FILE).unlink()
    assert notice_loss(site, NOW)
    assert asks_person(site.state)
    assert not notice_loss(site, NOW)


def test_without_its_journal_every_study_that_was_begun_is_refused(site: SiteFolder) -> None:
    notice_loss(site, NOW)
    study = f"heart-{'5' * 64}"
    path = study_folder(site.state, study) / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(as_begun(study))
    (site.state / "journal.sqlite").unlink()
    assert notice_loss(site, NOW)
    assert Approvals(site.approvals_path).state(b"\x55" * 32) is ApprovalState.WITHDRAWN


def test_an_agent_looks_before_it_works(site: SiteFolder) -> None:
    notice_loss(site, NOW)
    shutil.rmtree(site.state)
    done = CliRunner().invoke(app, ["agent", "run", str(site.folder)])
    assert "no roster is pinned" in done.output
    assert asks_person(site.state)


def test_what_a_person_confirms_counts_until_memory_is_lost_again(site: SiteFolder) -> None:
    with pytest.raises(ConfigError, match="has lost nothing"):
        confirm_data_set(site.state, "heart")
    note_loss(site.state, NOW)
    confirm_data_set(site.state, "heart")
    let_policy_decide(site.state)
    check_ledger(site.state, "heart")
    assert not asks_person(site.state)
    with pytest.raises(TranscriptError):
        check_ledger(site.state, "lung")
    note_loss(site.state, NOW)
    assert asks_person(site.state)
    with pytest.raises(TranscriptError):
        check_ledger(site.state, "heart")


def test_a_mark_that_cannot_be_read_permits_nothing(site: SiteFolder) -> None:
    note_loss(site.state, NOW)
    (site.state / FROM_BACKUP / "lost.json").write_text("{")
    for use in (lost_memory, asks_person, lambda state: check_ledger(state, "heart")):
        with pytest.raises(ConfigError):
            use(site.state)


def test_of_one_history_the_longer_copy_is_kept_and_of_two_both(site: SiteFolder) -> None:
    name = "ledger-heart.jsonl"
    for data in (b"a\n", b"a\nb\n", b"a\n", b"c\n", b"c\nd\n", b"a\nb\n"):
        keep_copy(site.state, name, data)
    assert [path.read_bytes() for path in copies(site.state, "heart")] == [b"c\nd\n", b"a\nb\n"]
    note_loss(site.state, NOW)
    check_ledger(site.state, "heart")  # it is refused by whoever opens it, unless it goes on from both
    assert len(list(recorded_heads(site.state, "heart"))) == 2
    with pytest.raises(ConfigError, match="that must go on"):
        confirm_data_set(site.state, "heart")
