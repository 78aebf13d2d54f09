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
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secfed.audit.privacy.check import check
from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.crypto.identity import Identity
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
from secfed.dp.ledger.ledger import SPENT
from secfed.records import decision_state, hash_chain, transcript
from secfed.records.decision_log import DECISIONS
from secfed.records.hash_chain import OPENED, canonical_json
from secfed.records.transcript import CLOSED, MODEL, RELEASED, SUMMED, TRANSCRIPT
from tests.dp.report_case import ADD, LEDGER, PRIVACY, UPDATE, Case, Study, settings
from tests.interop.auditor_case import (
    HERE,
    OTHER,
    SITE,
    Body,
    Run,
    dropped,
    entries_of,
    flip,
    load_verifier,
    write,
)

EVENTS: tuple[Event, ...] = (Gaussian(ADD, 9.0, 1), UnitSkellam(ADD, 1e4, 1e5, 1e10, 1))
MODEL_BYTES = b"the model"
NOISE = {"noise_multiplier"}


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


def _roster(run: Run, **changes: Any) -> None:
    path = run.path / "roster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _spent(run: Run, change: Callable[[Body], object]) -> None:
    run.bodies(run.ledger, SPENT, change)


def _statement(change: Callable[[Body], object]) -> Callable[[Run], None]:
    return lambda run: _spent(run, lambda body: [change(one["spent"]) for one in body["after"]])


def _event(**changes: Any) -> Callable[[Run], None]:
    return lambda run: _spent(run, lambda body: body["event"].update(changes))


def _again(run: Run, path: Path, **changes: Any) -> None:
    def more(entries: list[tuple[str, Body]]) -> None:
        last = [body for kind, body in entries if kind == SUMMED][-1]
        entries.append((SUMMED, run.signed({**last, **changes})))

    run.resigned(path, more)


TAMPERING: dict[str, Callable[[Run], object]] = {
    # Bytes, by somebody without a key.
    "a byte of the aggregator's transcript": lambda run: flip(run, run.central),
    "a byte of a site's transcript": lambda run: flip(run, run.site),
    "a byte of a ledger": lambda run: flip(run, run.ledger),
    "a line removed": lambda run: run.lines(run.site, lambda x: [*x[:3], *x[4:]]),
    "a line repeated": lambda run: run.lines(run.site, lambda x: [*x[:3], x[2], *x[3:]]),
    "lines exchanged": lambda run: run.lines(run.ledger, lambda x: [x[0], x[2], x[1], *x[3:]]),
    "the first line removed": lambda run: run.lines(run.central, lambda x: x[1:]),
    "half of the last line": lambda run: run.lines(run.site, lambda x: [*x[:-1], x[-1][:50]]),
    "the last newline removed": lambda run: run.lines(run.ledger, lambda x: [*x[:-1], x[-1][:-1]]),
    "an empty line": lambda run: run.lines(run.site, lambda x: [*x, b"\n"]),
    "an empty file": lambda run: run.site.write_bytes(b""),
    "text behind the end": lambda run: run.lines(run.central, lambda x: [*x, b"{}\n"]),
    "a space in a line": lambda run: run.replaced(run.site, '{"body":', '{"body": '),
    "keys in another order": lambda run: run.lines(
        run.site, lambda x: [json.dumps(dict(reversed(json.loads(x[0]).items()))).encode() + b"\n", *x[1:]]
    ),
    "another spelling of a number": lambda run: run.replaced(run.ledger, '"seq":1,', '"seq":1.0,'),
    "upper-case hexadecimal": lambda run: run.lines(
        run.site, lambda x: [x[0].replace(*_hash_of(x[0])), *x[1:]]
    ),
    "carriage returns": lambda run: run.lines(run.site, lambda x: [y[:-1] + b"\r\n" for y in x]),
    "another site's transcript": lambda run: shutil.copy(
        run.path / "sites" / "st-anna" / "transcript.jsonl", run.site
    ),
    "a ledger's line in a transcript": lambda run: run.lines(
        run.site, lambda x: [*x, run.ledger.read_bytes().splitlines(keepends=True)[-1]]
    ),
    "the end of a site's transcript": lambda run: run.lines(run.other, lambda x: x[:-2]),
    "the end of a site's transcript, and the aggregator closes again": lambda run: (
        run.resigned(run.central, lambda x: x.append((CLOSED, {**x[-1][1], "delivered": []}))),
        run.lines(run.other, lambda x: x[:-2]),
    ),
    "the end of the aggregator's transcript": lambda run: run.lines(run.central, lambda x: x[:-2]),
    "an older copy of a ledger": lambda run: run.lines(run.ledger, lambda x: x[:-1]),
    "a folder of a stranger": lambda run: shutil.copytree(
        run.site.parent, run.path / "sites" / "somebody-else"
    ),
    "the roster's digest": lambda run: _roster(run, digest="00" * 32),
    "the roster's aggregator": lambda run: _roster(run, aggregator="11" * 32),
    "a key of the roster": lambda run: run.replaced(
        run.path / "roster.json", run.case.roster.public(SITE).hex(), "22" * 32
    ),
    "two sites with one key": lambda run: _one_key(run),
    "one key more in an entry": lambda run: run.lines(
        run.site, lambda x: [_with(json.loads(x[0]), zero=0), *x[1:]]
    ),
    "a byte of the model": lambda run: flip(run, run.path / "model.safetensors"),
    "a byte of a site's model": lambda run: flip(run, run.site.parent / "model.safetensors"),
    "the end of the model": lambda run: (run.path / "model.safetensors").write_bytes(MODEL_BYTES[:-1]),
    "a metric in run.json": lambda run: run.replaced(run.path / "run.json", "0.75", "0.99"),
    # A transcript, by the site that signs it.
    "survivors at a site": lambda run: run.bodies(
        run.site, SUMMED, lambda body: body.update(survivors=body["survivors"][:2])
    ),
    "totals at a site": lambda run: run.bodies(run.site, SUMMED, lambda b: b.update(totals_digest="33" * 32)),
    "the round at a site": lambda run: run.bodies(run.site, SUMMED, lambda b: b.update(round=b["round"] + 5)),
    "the attempt at a site": lambda run: run.bodies(run.site, SUMMED, lambda b: b.update(attempt=3)),
    "the specification at a site": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(spec_digest="44" * 32)
    ),
    "the result's signature": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(result_signature="55" * 64)
    ),
    "a sum that never was": lambda run: _again(run, run.site, round=7, spec_digest="66" * 32),
    "a sum of others as one's own": lambda run: _again(run, run.site, survivors=["hospital-c", "st-anna"]),
    "a sum without its totals": lambda run: run.bodies(run.site, SUMMED, lambda b: b.pop("totals_digest")),
    "other settings": lambda run: run.bodies(run.site, "settings", lambda b: b.update(rounds=9)),
    "another study": lambda run: run.bodies(run.site, OPENED, lambda b: b.update(study="other")),
    "another roster": lambda run: run.bodies(run.site, OPENED, lambda b: b.update(roster_digest="77" * 32)),
    "another owner": lambda run: run.bodies(run.site, OPENED, lambda b: b.update(owner="st-anna")),
    "closed after more sums": lambda run: run.bodies(run.site, CLOSED, lambda b: b.update(sums=3)),
    "the exchange index at a site": lambda run: run.bodies(
        run.site, SUMMED, lambda b: b.update(exchange_index=1)
    ),
    "another model": lambda run: run.bodies(run.site, MODEL, lambda b: b.update(sha256="88" * 32)),
    "a model that was not given": lambda run: run.bodies(
        run.site, MODEL, lambda b: b.update(signature="99" * 64)
    ),
    "a head that no ledger had": lambda run: run.bodies(
        run.site, RELEASED, lambda b: b.update(ledgers={"wards": "aa" * 32})
    ),
    "a number left out in the count": lambda run: _skipping(run),
    "a line that is too long": lambda run: _too_long(run),
    # A ledger and the heads in its transcript, by the site that signs both.
    "a smaller epsilon": _statement(lambda s: s.update(epsilon=0.5 * s["epsilon"])),
    "a larger epsilon": _statement(lambda s: s.update(epsilon=1.5 * s["epsilon"])),
    "another relation": _statement(lambda s: s.update(adjacency="replace-record")),
    "more noise than there was": lambda run: _spent(
        run, lambda body: body["event"].update(dict.fromkeys(NOISE & set(body["event"]), 20.0))
    ),
    "an event that did not happen": _event(count=0),
    "an event that happened twice": lambda run: _spent(
        run, lambda body: body["event"].update(count=1 + (body["round"] == 2))
    ),
    "an unknown event": _event(event="nothing/1"),
    "an event with one field more": _event(more=1),
    "a payment removed": lambda run: run.resigned(run.ledger, dropped(SPENT, 0)),
    "a payment dated back": lambda run: _spent(run, lambda body: body.update(time_s=1)),
    "a budget raised afterwards": lambda run: _spent(
        run, lambda body: body["after"][0].update(epsilon=100.0)
    ),
    "a budget left out": lambda run: _spent(run, lambda body: body.update(after=body["after"][:1])),
    "more spent than allowed": lambda run: run.resigned(
        run.ledger, lambda entries: _limits(entries, epsilon=0.1)
    ),
    "no date": lambda run: _spent(run, lambda body: body.pop("time_s")),
    # One wrong thing and nothing else, by whoever would have to do it.
    "the hash of the last line": lambda run: run.lines(
        run.site, lambda x: [*x[:-1], _with(json.loads(x[-1]), hash="ee" * 32)]
    ),
    "a chain under a stranger's key": lambda run: write(
        run.site, Identity.from_seed(SITE, bytes([77]) * 32), TRANSCRIPT, entries_of(run.site)
    ),
    "another study, without a model": lambda run: run.resigned(
        run.site, lambda entries: (dropped(MODEL, 0)(entries), entries[0][1].update(study="other"))
    ),
    "two models, both signed": lambda run: run.bodies(run.site, MODEL, lambda b: _other_model(run, b)),
    "a stranger in a sum, no sites": lambda run: _alone(
        run, survivors=["nobody", SITE], cohort=["nobody", SITE]
    ),
    "two results of one exchange, no aggregator": lambda run: (
        run.central.unlink(),
        run.resigned(run.other, lambda entries: _other_result(run, entries)),
    ),
    "an exchange twice, no sites": lambda run: _alone(run, round=1),
    "a model after more sums, no sites": lambda run: (
        shutil.rmtree(run.path / "sites"),
        run.bodies(run.central, MODEL, lambda b: b.update(sums=3)),
    ),
    "a sum that the site is not in": lambda run: _not_in(run),
    # The aggregator's transcript, by the aggregator.
    "an exchange summed twice": lambda run: _again(run, run.central, spec_digest="bb" * 32),
    "a sum left out": lambda run: run.resigned(run.central, dropped(SUMMED, 0)),
    "a survivor who is a stranger": lambda run: _again(
        run, run.central, round=9, spec_digest="cc" * 32, survivors=["nobody", SITE]
    ),
    "a model after more sums": lambda run: run.bodies(run.central, MODEL, lambda b: b.update(sums=3)),
    "other metrics": lambda run: run.bodies(run.central, MODEL, lambda b: b.update(metrics="dd" * 32)),
}

# What the auditor's verifier looks at, and ours does not: the aggregator states it, beside the specification.
MORE: dict[str, Callable[[Run], object]] = {
    "a survivor from outside the cohort": lambda run: _alone(run, cohort=["hospital-c", "st-anna"]),
    "fewer survivors than the threshold": lambda run: _alone(run, threshold=9),
}

# What a record cannot show by itself, and who notices.
UNSEEN: dict[str, Callable[[Run], object]] = {
    # Only a head that was written down earlier shows it: the test below.
    "the ends of all records of a run that names no model": lambda run: [
        run.lines(path, lambda x: x[:2]) for path in (run.central, *run.path.glob("sites/*/transcript.jsonl"))
    ],
    # It is noted: the reader sees which hospitals are absent.
    "all records of a site": lambda run: shutil.rmtree(run.site.parent),
    # A site that was in a sum may not have got its result; it is noted.
    "a sum that a site leaves out": lambda run: run.resigned(
        run.site, lambda entries: (dropped(SUMMED, 0)(entries), entries[-1][1].update(sums=1))
    ),
}


def _with(entry: Body, **more: Any) -> bytes:
    return canonical_json({**entry, **more}) + b"\n"


def _one_key(run: Run) -> None:
    """With the digest that such a roster would have."""
    keys = {name: key.hex() for name, key in run.case.roster.members}
    keys["hospital-c"] = keys[SITE]
    members = b"".join(
        len(name).to_bytes(4, "big") + name.encode() + bytes.fromhex(keys[name]) for name in sorted(keys)
    )
    data = run.case.roster.aggregator + len(keys).to_bytes(4, "big") + members
    _roster(run, sites=keys, digest=digest(labels.ROSTER_DIGEST, data).hex())


def _skipping(run: Run) -> None:
    """The last line of a site's transcript, signed as if one stood before it."""
    lines = [json.loads(line) for line in run.site.read_bytes().splitlines()]
    last, owner = lines[-1], run.case.identities[SITE]
    last["seq"] += 1
    content = {"seq": last["seq"], "kind": last["kind"], "body": last["body"], "owner": SITE}
    last["hash"] = digest(labels.TRANSCRIPT_CHAIN, bytes.fromhex(last["prev"]), canonical_json(content)).hex()
    last["signature"] = owner.sign(labels.SIGN_TRANSCRIPT, bytes.fromhex(last["hash"])).hex()
    run.site.write_bytes(b"".join(_with(line) for line in lines))


def _too_long(run: Run) -> None:
    before, hash_chain.MAX_LINE_BYTES = hash_chain.MAX_LINE_BYTES, 1 << 22
    try:
        run.bodies(run.site, MODEL, lambda body: body.update(more="x" * (1 << 20)))
    finally:
        hash_chain.MAX_LINE_BYTES = before


def _other_model(run: Run, body: Body) -> None:
    """The aggregator gave this site another model than the others."""
    other = hashlib.sha256(b"another").digest()
    about = FinalModel("audited", run.case.roster.digest, 2, 2, other).body()
    signature = run.case.aggregator.sign(labels.SIGN_MODEL, about).hex()
    body.update(sha256=other.hex(), signature=signature)
    (run.site.parent / "model.safetensors").unlink(missing_ok=True)


def _more(run: Run, entries: list[tuple[str, Body]], **changes: Any) -> Body:
    """One more sum before the model, which counts it."""
    at = next(number for number, (kind, _) in enumerate(entries) if kind == MODEL)
    last = [body for kind, body in entries if kind == SUMMED][-1]
    made = run.signed({**last, "round": 3, "spec_digest": "bb" * 32, **changes})
    entries.insert(at, (SUMMED, made))
    for _, body in entries[at + 1 :]:
        body["sums"] += 1
    return made


def _alone(run: Run, **changes: Any) -> None:
    shutil.rmtree(run.path / "sites")
    run.resigned(run.central, lambda entries: _more(run, entries, **changes))


def _not_in(run: Run) -> None:
    """A sum of two others, in the transcripts of the aggregator and of this site; no models."""
    others: Body = {"survivors": ["hospital-c", "st-anna"]}
    for path in (run.central, run.site):
        run.resigned(path, lambda entries: (_more(run, entries, **others), dropped(MODEL, 0)(entries)))


def _other_result(run: Run, entries: list[tuple[str, Body]]) -> None:
    """The aggregator told this site of a sum over others."""
    last = [body for kind, body in entries if kind == SUMMED][-1]
    last.update(run.signed({**last, "spec_digest": "bb" * 32, "survivors": [OTHER, "st-anna"]}))


def _closed_early(entries: list[tuple[str, Body]]) -> None:
    """A run that was gone on with after its end, and not closed again."""
    closing = entries.pop()
    entries.insert([kind for kind, _ in entries].index(SUMMED) + 1, (CLOSED, {**closing[1], "sums": 1}))


def _hash_of(line: bytes) -> tuple[bytes, bytes]:
    text = json.loads(line)["hash"].encode()
    return text, text.upper()


def _limits(entries: list[tuple[str, Body]], epsilon: float) -> None:
    for kind, body in entries:
        for one in body.get("budgets" if kind == "budgets" else "after", []):
            one["epsilon"] = epsilon


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


CUT: dict[str, Callable[[Run], object]] = {
    "the closing entry of a site": lambda run: run.lines(run.site, lambda x: x[:-1]),
    "the closing entry of the aggregator": lambda run: run.lines(run.central, lambda x: x[:-1]),
    "the closing entries of all, as older versions had none": lambda run: [
        run.lines(path, lambda x: x[:-1])
        for path in (run.central, *run.path.glob("sites/*/transcript.jsonl"))
    ],
    "a closing entry before the last sum": lambda run: run.resigned(run.central, _closed_early),
}


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
