"""Folders of three studies at three hospitals, written with the real transcripts and ledgers.

heart   record-level privacy; metrics and weights leave without noise; 6 rounds and a closing evaluation
lung    record-level privacy on the same data sets; st-anna's budget refuses round 3, so it drops out
pilot   no privacy, two rounds, plain
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from secfed.audit.privacy import make_report
from secfed.audit.privacy.evidence import Report
from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import Result, Specification
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event, Gaussian
from secfed.dp.accounting.interface import Accountant, Rdp
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import BudgetExceeded
from secfed.records.roster_file import ROSTER_FILE, write_roster
from secfed.records.transcript import ABORTED, REFUSED, RELEASED, SETTINGS, SUMMED, SumRecord, Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder

ADD = Adjacency.ADD_OR_REMOVE_RECORD
START_S = 1_800_000_000
DAY_S = 86_400
NOW_S = START_S + 40 * DAY_S
DATASET = "wards"
LEDGER = f"ledger-{DATASET}.jsonl"
SITES = ("hospital-b", "hospital-c", "st-anna")
UPDATE = tuple(f"update/{layer}.{part}" for layer in (1, 3) for part in ("weight", "bias"))
EVALUATION = ("eval/records", "eval/loss", "eval/scores")
PRIVACY = {"unit": "record", "epsilon": 3.0, "delta": 1e-5, "clip_norm": 1.0, "accountant": "pld"}
SECRET = 0.735190628  # stands for a value of one hospital; planted where a report must not look


@dataclass
class Case:
    """Identities, ledgers and folders of the example."""

    root: Path
    sites: Sequence[str] = SITES
    accountant: Accountant = field(default_factory=Rdp)
    epsilon: float = 1.6

    def __post_init__(self) -> None:
        self.now_s = START_S
        self.aggregator = Identity.from_seed("aggregator", bytes([9]) * 32)
        self.identities = {
            name: Identity.from_seed(name, bytes([number]) * 32) for number, name in enumerate(self.sites, 1)
        }
        self.roster = Roster.of(self.aggregator, list(self.identities.values()))
        self.ledgers: dict[str, Ledger] = {}

    def ledger(self, site: str) -> Ledger:
        """The site's one ledger, whichever study asks."""
        if site not in self.ledgers:
            folder = self.root / "ledgers" / str(self.sites.index(site))
            folder.mkdir(parents=True, exist_ok=True)
            self.ledgers[site] = Ledger(
                folder / f"ledger-{DATASET}.jsonl",
                self.identities[site],
                DATASET,
                (Budget(self.epsilon, 1e-5), Budget(2.5 * self.epsilon, 1e-5, period_days=365)),
                accountant=self.accountant,
                clock=lambda: float(self.now_s),
            )
        return self.ledgers[site]

    def signed(self, spec: Specification, survivors: tuple[str, ...]) -> SumRecord:
        result = Result(spec.digest, survivors, bytes([spec.round]) * 32)
        signature = self.aggregator.sign(labels.SIGN_RESULT, result.body())
        return SumRecord.of(spec, replace(result, signature=signature))


@dataclass
class Study:
    """Writes one study's transcripts, and what its sites spend."""

    case: Case
    name: str
    folder: str
    settings: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        self.path = self.case.root / self.folder
        self.path.mkdir(parents=True)
        write_roster(self.path / ROSTER_FILE, self.case.roster)
        self.log = self._open(self.case.aggregator, self.path)
        self.logs = {
            site: self._open(identity, site_folder(self.path, site))
            for site, identity in self.case.identities.items()
        }
        for log in (self.log, *self.logs.values()):
            if self.settings is not None:
                log.append(SETTINGS, self.settings)

    def _open(self, identity: Identity, folder: Path) -> Transcript:
        digest = self.case.roster.digest
        return Transcript(identity, study=self.name, roster_digest=digest, sink=folder / TRANSCRIPT_FILE)

    def round(
        self,
        number: int,
        fields: Sequence[str],
        *,
        event: Event | None = None,
        unprotected: Sequence[str] = (),
        exchange: str = "update",
    ) -> None:
        """Every site pays and contributes; whom its budget refuses is no survivor."""
        self.case.now_s += DAY_S
        survivors = []
        for site in self.case.sites:
            try:
                self._pay(site, number, exchange, event, unprotected)
                survivors.append(site)
            except BudgetExceeded:
                reason = {"round": number, "site": site, "stage": "train", "reason": "BudgetExceeded"}
                self.log.append(REFUSED, reason)
        spec = Specification(
            self.name,
            number,
            0,
            exchange,
            0,
            tuple(self.case.sites),
            2,
            self.case.roster.digest,
            bytes(32),
            bytes([number]) * 32,
        )
        record = self.case.signed(spec, tuple(survivors))
        self.log.append(SUMMED, {**record.to_body(), "cohort": list(self.case.sites), "totals": [SECRET]})
        for site in survivors:
            where = {"round": number, "exchange": exchange, "attempt": 0, "survivors": survivors}
            self.logs[site].append(RELEASED, where)
            body = {**record.to_body(), "layout": "00" * 32, "fields": list(fields), "values": [SECRET]}
            if event is not None or unprotected:
                body["ledgers"] = {DATASET: self.case.ledger(site).head.hex()}
            self.logs[site].append(SUMMED, body)

    def _pay(
        self, site: str, number: int, exchange: str, event: Event | None, unprotected: Sequence[str]
    ) -> None:
        ledger = self.case.ledger(site)
        where: dict[str, Any] = {"study": self.name, "round_number": number, "exchange": exchange}
        if event is not None:
            ledger.spend(event, **where)
        if unprotected:
            ledger.note_unprotected(unprotected, **where)

    def close(self, *, with_ledgers: bool = True) -> Path:
        """Close the transcripts, and put each site's ledger beside its transcript."""
        for site, log in self.logs.items():
            log.close()
            if with_ledgers:
                shutil.copy(self.case.ledger(site).path, site_folder(self.path, site))
        self.log.close()
        return self.path


def settings(privacy: Mapping[str, Any] | None, rounds: int, protection: str = "masked") -> dict[str, Any]:
    return {
        "algorithm": "fedavg",
        "protection": protection,
        "rounds": rounds,
        "sites": len(SITES),
        "privacy": None if privacy is None else dict(privacy),
    }


def write_case(
    root: Path, case: Case | None = None, *, names: Sequence[str] = ("heart", "lung", "pilot")
) -> Case:
    """Three studies under ``root``: ``heart/``, ``lung/`` and ``pilot/``."""
    case = case or Case(root)
    privacy = {**PRIVACY, "metrics": "unprotected", "weights": "unprotected"}
    heart = Study(case, names[0], "heart", settings(privacy, 6))
    bare = (*EVALUATION, "weight")
    for number in range(1, 7):
        event = Gaussian(ADD, 9.0, 1)
        heart.round(number, (*UPDATE, "weight", *EVALUATION), event=event, unprotected=bare)
    heart.round(7, EVALUATION, unprotected=EVALUATION, exchange="evaluate")
    heart.close(with_ledgers=False)
    lung = Study(case, names[1], "lung", settings({**PRIVACY, "metrics": "withheld"}, 4))
    for number in range(1, 5):
        if number == 3:  # one more study at st-anna uses up what is left
            case.ledger(case.sites[-1]).spend(
                Gaussian(ADD, 5.0, 1), study="elsewhere", round_number=1, exchange="update"
            )
        lung.round(number, (*UPDATE, "weight"), event=Gaussian(ADD, 9.0, 1))
    lung.log.append(ABORTED, {"round": 5, "reason": "round 5, exchange 'update': too few sites."})
    lung.close()
    for site in case.sites:
        shutil.copy(case.ledger(site).path, site_folder(heart.path, site))
    pilot = Study(case, names[2], "pilot", settings(None, 2, "plain"))
    for number in (1, 2):
        pilot.round(number, (*UPDATE, "weight", "train_loss"))
    pilot.close(with_ledgers=False)
    return case


def studies(root: Path) -> list[Path]:
    """The folders that are audited."""
    return [root / name for name in ("heart", "lung", "pilot")]


def hospital(root: Path, case: Case, site: str, out: Path, *, ledger: bool = True) -> Path:
    """What one hospital itself keeps: a folder per study, and its one ledger."""
    for study in studies(root):
        (out / study.name).mkdir(parents=True)
        shutil.copy(study / ROSTER_FILE, out / study.name)
        shutil.copy(site_folder(study, site) / TRANSCRIPT_FILE, out / study.name)
    if ledger:
        shutil.copy(case.ledger(site).path, out)
    return out


def report(*folders: Path, pinned: tuple[Path, ...] = ()) -> Report:
    """The report on some folders, made at the example's last day."""
    return make_report(folders, pinned, clock=lambda: NOW_S)


def problems(made: Report) -> list[tuple[str, int | None, str]]:
    """File name, line and reason of everything that did not verify."""
    return [(Path(item.file).name, item.line, item.why) for item in made.verification.problems]


HOSTILE = (
    "st\N{RIGHT-TO-LEFT OVERRIDE}<script>alert(1)</script>",
    "b\"'&<img src=http://evil.example/x>",
    "_$x^2$",
)
HOSTILE_STUDIES = ("</title><script>1</script>", "--><svg onload=x()>", "${7*7}{{7*7}}")


def hostile_report(root: Path) -> Report:
    write_case(root, Case(root, sites=sorted(HOSTILE)), names=HOSTILE_STUDIES)
    return make_report(studies(root), clock=lambda: NOW_S)


def keep(data: bytes, name: str) -> None:
    """Leave a file for people to look at, if a folder is named."""
    folder = os.environ.get("SECFED_TEST_OUTPUT")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_bytes(data)
