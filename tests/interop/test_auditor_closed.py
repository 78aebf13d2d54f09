"""Records of a run with closed sums, good and tampered with, before both verifiers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secfed.audit.privacy.check import check
from secfed.crypto import labels
from secfed.crypto.codec import Buffer
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import FinalModel
from secfed.errors import LinkError
from secfed.records.roster_file import write_roster
from secfed.records.transcript import CLOSED, FOLLOWED, MODEL, SETTINGS, SUMMED, Transcript
from secfed.runs.run_folder import MODEL_FILE, RUN_FILE, TRANSCRIPT_FILE, site_folder
from secfed.server.make_run import make_run
from tests.interop.auditor_case import Body, Run, dropped, flip, load_verifier
from tests.secfed import durable_case

PEOPLE = tuple(f"hospital-{number}" for number in range(1, 5))
SITE, AWAY = PEOPLE[0], PEOPLE[3]  # the latter answers nothing while sums come about, and follows them


@dataclass
class Case:
    root: Path
    aggregator: Identity
    identities: dict[str, Identity]
    roster: Roster


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    return load_verifier()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A finished study, in a folder as ``secfed aggregate`` and the hospitals would put it together."""
    root = tmp_path_factory.mktemp("closed")
    study = durable_case.study("closed", None).replace("data.sites", len(PEOPLE))
    made, out = durable_case.Consortium(study, root / "hospitals", people=PEOPLE), root / "run"

    def deliver(stage: str, hospital: durable_case.Hospital, frame: Buffer) -> bytes:
        if hospital.identity.name == AWAY and stage == "advertise":
            raise LinkError("away", remedy="wait")
        return hospital.handle(frame)

    made.deliver = deliver
    out.mkdir()
    rules = made.rules
    opening: dict[str, Any] = {"study": rules.study, "roster_digest": rules.roster.digest}
    with Transcript(rules.identity, **opening, sink=out / TRANSCRIPT_FILE) as log:
        log.append(SETTINGS, study.settings(len(PEOPLE)))
        make_run(made.terms.algorithm, study.rounds, rules, made.ask, log, sums=root).run(
            made.outcomes.append
        )
        log.append(CLOSED, log.closing(delivered=[]))
    write_roster(out / "roster.json", rules.roster)
    rounds = [{"round": 1, "metrics": None}]  # an aggregator that reads no sums has none
    (out / RUN_FILE).write_text(json.dumps({"initial": None, "rounds": rounds, "final": {}}))
    for name, hospital in made.hospitals.items():
        assert hospital.open is not None
        hospital.open.finish()
        site_folder(out, name).mkdir(parents=True)
        for file in (TRANSCRIPT_FILE, MODEL_FILE):
            shutil.copyfile(hospital.open.folder / file, site_folder(out, name) / file)
    made.close()
    assert [outcome.survivors for outcome in made.outcomes] == [PEOPLE[:3]] * 2
    identities = {name: one.identity for name, one in made.hospitals.items()}
    return Case(root, rules.identity, identities, rules.roster)


@pytest.fixture
def run(case: Case, tmp_path: Path) -> Run:
    return Run(case, tmp_path / "run", SITE, AWAY)


def test_a_hospital_that_was_away_follows_to_the_same_model_and_all_records_verify(
    verifier: ModuleType, run: Run
) -> None:
    assert len({path.read_bytes() for path in run.path.rglob(MODEL_FILE)}) == 1
    kinds = [json.loads(line)["kind"] for line in run.other.read_bytes().splitlines()]
    assert (kinds.count(FOLLOWED), kinds.count(SUMMED), kinds.count(MODEL)) == (2, 0, 1)
    assert run.problems() == []
    assert verifier.main([str(run.path)]) == 0


def test_a_hospital_that_the_last_sums_never_reached_is_noted(run: Run) -> None:
    run.bodies(run.other, MODEL, lambda body: body.update(sums=1, sha256="88" * 32))
    (run.other.parent / MODEL_FILE).unlink()
    found = check([run.path], [], None, [])
    assert found.problems == []
    assert any("names the model after 1 sums of 2" in note for note in found.notes)


def _last(entries: list[tuple[str, Body]], kind: str) -> Body:
    return [body for one, body in entries if one == kind][-1]


def _signed(run: Run, path: Path, **changes: Any) -> None:
    """The last sum as another one that the aggregator signed."""

    def change(entries: list[tuple[str, Body]]) -> None:
        last = _last(entries, FOLLOWED if path == run.other else SUMMED)
        last.update(run.signed({**last, **changes}))

    run.resigned(path, change)


def _as_if_given(run: Run, body: Body) -> None:
    """A model that the aggregator, who cannot have one, gave to this site instead of its own."""
    study = json.loads(run.site.read_bytes().splitlines()[0])["body"]["study"]
    final = FinalModel(study, run.case.roster.digest, body["round"], body["sums"], bytes(32))
    signature = run.case.aggregator.sign(labels.SIGN_MODEL, final.body()).hex()
    body.update(sha256=bytes(32).hex(), signature=signature)
    (run.site.parent / MODEL_FILE).unlink()


TAMPERING: dict[str, Callable[[Run], object]] = {
    # By somebody without a key.
    "a byte of the aggregator's transcript": lambda run: flip(run, run.central),
    "a byte of a site's transcript": lambda run: flip(run, run.site),
    "a byte of a follower's transcript": lambda run: flip(run, run.other),
    "a byte of a site's model": lambda run: flip(run, run.site.parent / MODEL_FILE),
    "another model beside the aggregator's transcript": lambda run: (run.path / MODEL_FILE).write_bytes(b"x"),
    "metrics that the aggregator cannot have": lambda run: run.replaced(
        run.path / RUN_FILE, '"final": {}', '"final": {"accuracy": 0.99}'
    ),
    # By a site.
    "another model": lambda run: run.bodies(run.site, MODEL, lambda b: b.update(sha256="88" * 32)),
    "another sum, signed by nobody": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(totals_digest="33" * 32)
    ),
    "a sum followed that it was in": lambda run: run.resigned(
        run.other, lambda entries: entries.append((SUMMED, entries.pop(2)[1]))
    ),
    "a sum counted that is not there": lambda run: run.resigned(run.site, dropped(SUMMED, 0)),
    # By the aggregator, alone or with the site.
    "a sum of others for one site": lambda run: _signed(run, run.site, totals_digest="44" * 32),
    "other survivors for one site": lambda run: _signed(run, run.site, survivors=list(PEOPLE[:2])),
    "a sum of others for a follower": lambda run: _signed(run, run.other, spec_digest="55" * 32),
    "a sum left out": lambda run: run.resigned(run.central, dropped(SUMMED, 0)),
    "an exchange under another specification": lambda run: _signed(run, run.central, spec_digest="66" * 32),
    "a model of its own for one site": lambda run: run.bodies(
        run.site, MODEL, lambda body: _as_if_given(run, body)
    ),
    "two sums of one exchange, its own transcript withheld": lambda run: (
        run.central.unlink(),
        _signed(run, run.other, totals_digest="77" * 32),
    ),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_each_tampering_alone_is_found_by_both(verifier: ModuleType, run: Run, name: str) -> None:
    TAMPERING[name](run)
    assert run.problems()
    assert verifier.main([str(run.path)]) == 1
