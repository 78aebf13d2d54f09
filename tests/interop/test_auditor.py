"""The auditor's own verifier beside ``secfed audit verify``: on good records, and on records tampered with.

It shares no code with secfed; docs/records.md is all that both have in common.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import pytest

from secfed.audit.privacy.check import check
from secfed.crypto import labels
from secfed.crypto.identity import Roster
from secfed.crypto.messages import FinalModel
from secfed.dp.accounting.events import (
    _KINDS,
    Event,
    Gaussian,
    PoissonSampledGaussian,
    UnitDiscreteGaussian,
    UnitSkellam,
    compose,
    to_value,
)
from secfed.dp.accounting.interface import accountant
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger import ledger
from secfed.dp.ledger.ledger import LEDGER as LEDGER_CHAIN
from secfed.records import decision_state, transcript
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import OPENED, canonical_json
from secfed.records.roster_file import kept_roster, write_roster
from secfed.records.transcript import CLOSED, MODEL, TRANSCRIPT
from tests.dp.report_case import ADD, LEDGER, PRIVACY, UPDATE, Case, Study, settings
from tests.interop.auditor_case import (
    HERE,
    OTHER,
    SITE,
    Body,
    Run,
    load_verifier,
)
from tests.interop.tampering import CUT, MODEL_BYTES, MORE, TAMPERING, UNSEEN

EVENTS: tuple[Event, ...] = (Gaussian(ADD, 9.0, 1), UnitSkellam(ADD, 1e4, 1e5, 1e10, 1))


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    return load_verifier()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A finished private run: two sums, a payment for each, and a model that everyone names."""
    made = Case(tmp_path_factory.mktemp("auditor"), accountant=accountant("pld"))
    study = Study(made, "audited", "run", settings(PRIVACY, 2))
    for number, event in enumerate(EVENTS, start=1):
        study.round(number, UPDATE, event=event)
    run = {"rounds": [{"round": 1, "metrics": {"auc": 0.5}}], "final": {"auc": 0.75}, "initial": None}
    measured = {"initial": None, "rounds": {"1": {"auc": 0.5}}, "final": {"auc": 0.75}}
    (study.path / "run.json").write_text(json.dumps(run))
    sha256 = hashlib.sha256(MODEL_BYTES)
    body: Body = {"file": "model.safetensors", "sha256": sha256.hexdigest(), "bytes": len(MODEL_BYTES)}
    body |= {"round": 2, "sums": 2}
    metrics = hashlib.sha256(canonical_json(measured)).hexdigest()
    study.log.append(MODEL, {**body, "metrics": metrics})
    about = FinalModel("audited", made.roster.digest, 2, 2, sha256.digest()).body()
    signature = made.aggregator.sign(labels.SIGN_MODEL, about).hex()
    for log in study.logs.values():
        log.append(MODEL, {**body, "signature": signature})
    study.log.append(CLOSED, study.log.closing(delivered=[OTHER]))
    for log in study.logs.values():
        log.append(CLOSED, log.closing())
    for folder in (study.path, study.path / "sites" / SITE):
        (folder / "model.safetensors").write_bytes(MODEL_BYTES)
    study.close()
    return made


def test_good_records_verify(verifier: ModuleType, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    digest = case.roster.digest.hex()
    assert verifier.main([str(case.root / "run"), "--digest", digest]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "verified"
    assert "12 epsilons" in said


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_found_by_both(verifier: ModuleType, case: Case, tmp_path: Path, name: str) -> None:
    run = Run(case, tmp_path / "run")
    TAMPERING[name](run)
    assert verifier.main([str(run.path)]) == 1
    assert run.problems()


@pytest.mark.parametrize("name", CUT)
def test_a_transcript_without_its_end_is_said_to_be_open(
    verifier: ModuleType, case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Nothing contradicts it: the study may go on, or an older version may have written it."""
    run = Run(case, tmp_path / "run")
    CUT[name](run)
    assert verifier.main([str(run.path)]) == 0
    assert "transcript.jsonl: open: no closing entry" in capsys.readouterr().out
    found = check([run.path], [], None, [])
    assert not found.problems
    assert any(note.startswith("open, without a closing entry: ") for note in found.notes)


@pytest.mark.parametrize("name", MORE)
def test_cohorts_and_thresholds_are_held_against_survivors(
    verifier: ModuleType, case: Case, tmp_path: Path, name: str
) -> None:
    run = Run(case, tmp_path / "run")
    MORE[name](run)
    assert verifier.main([str(run.path)]) == 1


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_record_shows_by_itself(verifier: ModuleType, case: Case, tmp_path: Path, name: str) -> None:
    run = Run(case, tmp_path / "run")
    UNSEEN[name](run)
    for kept in run.path.rglob(LEDGER):  # what is left of it must be consistent
        if name.startswith("the ends"):
            run.lines(kept, lambda x: x[:2])
    for model in run.path.rglob("model.safetensors"):
        if name.startswith("the ends"):
            model.unlink()
    assert verifier.main([str(run.path)]) == 0
    assert not run.problems()


def test_whose_records_are_not_here_is_said(
    verifier: ModuleType, case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing contradicts records that are not there; an agent's own folder is all that it is meant to be."""
    run = Run(case, tmp_path / "run")
    shutil.rmtree(run.other.parent)
    run.ledger.unlink()
    assert verifier.main([str(run.path)]) == 0
    said = capsys.readouterr().out
    assert f"not here, or not verified: the transcripts of {OTHER}\n" in said
    assert f"{run.site}: its ledger 'wards' is not here, or not verified\n" in said
    notes = check([run.path], [], None, []).notes
    assert any(f"no transcript is here of {OTHER}, which" in note for note in notes)
    assert any("the ledger of data set 'wards' is not among" in note for note in notes)
    own = tmp_path / "state"
    shutil.copytree(run.site.parent, own / "studies" / "audited")
    shutil.copy(run.path / "roster.json", own)
    verifier.main([str(own)])
    assert "the transcripts of" not in capsys.readouterr().out
    assert not any("no transcript" in note for note in check([own], [], None, []).notes)


def test_a_head_that_was_shown_earlier_shows_a_cut_end(
    verifier: ModuleType, case: Case, tmp_path: Path
) -> None:
    run = Run(case, tmp_path / "run")
    head = json.loads(run.ledger.read_bytes().splitlines()[-1])["hash"]
    assert verifier.main([str(run.path), "--seen", head]) == 0
    shutil.rmtree(run.site.parent)
    assert verifier.main([str(run.path), "--seen", head]) == 1


def test_another_roster_than_the_pinned_one_is_refused(verifier: ModuleType, case: Case) -> None:
    assert verifier.main([str(case.root / "run"), "--digest", "00" * 32]) == 1


def test_a_record_counts_under_the_roster_that_it_was_made_under(
    verifier: ModuleType, case: Case, tmp_path: Path
) -> None:
    newer = Roster(case.roster.aggregator, case.roster.members[1:])
    write_roster(tmp_path / "pinned-roster.json", newer)
    arguments = [str(case.root / "run"), "--roster", str(tmp_path / "pinned-roster.json")]
    assert verifier.main(arguments) == 1
    kept = kept_roster(tmp_path / "pinned-roster.json", case.roster)
    kept.parent.mkdir()
    write_roster(kept, case.roster)
    assert verifier.main(arguments) == 0
    told = [["--digest", roster.digest.hex()] for roster in (newer, case.roster)]
    assert verifier.main([*arguments, *told[1]]) == 1  # what was read is the newest
    assert verifier.main([*arguments, *told[0]]) == 1  # and the earlier one is none that was told
    assert verifier.main([*arguments, *told[0], *told[1]]) == 0


def test_an_earlier_roster_does_not_count_because_it_was_handed_over(
    verifier: ModuleType, case: Case, tmp_path: Path
) -> None:
    """Else whoever hands the folder over could make all of it with keys of their own."""
    run = shutil.copytree(case.root / "run", tmp_path / "run")
    true = Roster(case.roster.aggregator, case.roster.members[1:])
    write_roster(run / "roster.json", true)
    kept = kept_roster(run / "roster.json", case.roster)
    kept.parent.mkdir()
    write_roster(kept, case.roster)
    told = ["--digest", true.digest.hex()]
    assert verifier.main([str(run)]) == 1
    assert verifier.main([str(run), *told]) == 1
    assert verifier.main([str(run), "--roster", str(run / "roster.json"), *told]) == 1
    assert verifier.main([str(run), *told, "--digest", case.roster.digest.hex()]) == 0


def test_it_runs_alone(case: Case) -> None:
    """Nothing of secfed is imported, and nothing but ``cryptography`` beside the standard library."""
    command = "import sys, runpy; sys.argv[1:] = {!r}; sys.path.insert(0, {!r})\n"
    command += "try: runpy.run_path({!r}, run_name='__main__')\nexcept SystemExit as end: status = end.code\n"
    command += "loaded = {{name.split('.')[0] for name in sys.modules}}\n"
    command += "print(status, loaded & {{'secfed', 'numpy', 'scipy', 'torch', 'dp_accounting'}})"
    script = command.format([str(case.root / "run")], str(HERE), str(HERE / "verify.py"))
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 set()"


def test_it_stays_short_enough_to_read() -> None:
    assert len((HERE / "verify.py").read_text().splitlines()) <= 400


class TestThePage:
    PAGE = (HERE.parents[1] / "docs" / "records.md").read_text()

    def section(self, number: int) -> str:
        return self.PAGE.split(f"\n## {number}. ")[1].split("\n## ")[0]

    @pytest.mark.parametrize(("module", "section"), [(transcript, 3), (ledger, 4), (decision_state, 6)])
    def test_it_names_every_kind_of_entry(self, module: ModuleType, section: int) -> None:
        names = [name for name in vars(module) if name.isupper() and not name.startswith("_")]
        kinds = {value for name in names if isinstance(value := getattr(module, name), str)}
        named = set(re.findall(r"`([^`]+)`", self.section(section)))
        assert kinds - {OPENED} <= named

    def test_it_gives_the_fields_of_every_event(self) -> None:
        rows = [row.split("|") for row in self.section(4).splitlines() if "/1`" in row]
        stated = {
            event: set(re.findall(r"`([^`]+)`", row[2]))
            for row in rows
            for event in re.findall(r"`([^`]+)`", row[1])
        }
        assert stated == {
            name: {field.name for field in fields(kind)} - {"adjacency"} for name, kind in _KINDS.items()
        }

    def test_it_gives_the_labels(self) -> None:
        for kind in (TRANSCRIPT, LEDGER_CHAIN, DECISIONS):
            for label in (kind.chain_label, kind.sign_label):
                assert f"`{label.decode().removeprefix('secfed/v1 ')}`" in self.section(1)


REPLACE = Adjacency.REPLACE_RECORD
COMPOSITIONS: list[tuple[str, Event, ...]] = [
    ("pld", PoissonSampledGaussian(ADD, 0.1, 2.0, 300)),
    ("pld", PoissonSampledGaussian(REPLACE, 0.02, 0.6, 50)),
    ("pld", PoissonSampledGaussian(ADD, 0.1, 2.0, 100), Gaussian(ADD, 20.0, 5)),
    ("pld", Gaussian(REPLACE, 4.0, 5)),
    ("rdp", PoissonSampledGaussian(ADD, 0.01, 1.0, 1000)),
    ("rdp", UnitSkellam(ADD, 1000.0, 5000.0, 1e7, 50)),
    ("rdp", UnitDiscreteGaussian(Adjacency.REPLACE_SITE, 100.0, 1000.0, 200.0, 5, 1000, 50)),
]


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=str)
def test_its_epsilons_are_those_of_the_libraries(
    verifier: ModuleType, composition: tuple[str, Event, ...]
) -> None:
    name, *events = composition
    counts = []
    for event in compose(events):
        value = to_value(replace(event))
        del value["adjacency"]
        times = value.pop("steps" if "steps" in value else "count")
        counts.append((json.dumps(value, sort_keys=True), times))
    known = accountant(name).epsilon(events, 1e-6)
    low, high = sys.modules["epsilon"].epsilons(
        tuple(sorted(counts)), events[0].adjacency.factor == 2, 1e-6, (name,)
    )
    assert low <= known <= high
    assert high < 1.1 * low + 0.01
