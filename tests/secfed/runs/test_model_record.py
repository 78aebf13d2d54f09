"""The finished model in the record: what was replaced is found, and the right model is named."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from secfed.audit.privacy import make_report, to_json
from secfed.audit.render.html import to_html
from secfed.cli.app import app
from secfed.errors import TranscriptError
from secfed.records.hash_chain import Entry
from secfed.records.transcript import MODEL, SUMMED, Transcript
from secfed.runs.model_record import ModelRecord, metrics_digest, run_metrics_digest
from secfed.runs.run_folder import MODEL_FILE, RUN_FILE, TRANSCRIPT_FILE, site_folder
from tests.secfed.cli.test_transcript import AGGREGATOR, ROSTER, SITES, STUDY, a_sum, problems, verify, write

RUN: dict[str, Any] = {
    "rounds": [{"round": 1, "metrics": {}}, {"round": 2, "metrics": {"loss": 0.5, "roc_auc": None}}],
    "final": {"loss": 0.25},
    "initial": {"loss": 1.0},
}


def named(model: bytes, *, sums: int = 3, metrics: bytes = b"") -> ModelRecord:
    return ModelRecord(sums - 1, sums, hashlib.sha256(model).digest(), len(model), metrics)


def append(folder: Path, owner: str, record: ModelRecord) -> None:
    path = (site_folder(folder, owner) if owner else folder) / TRANSCRIPT_FILE
    identity = SITES[owner] if owner else AGGREGATOR
    with Transcript(identity, study=STUDY, roster_digest=ROSTER.digest, sink=path) as log:
        log.append(MODEL, record.to_body())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write(tmp_path / "run")
    (folder / MODEL_FILE).write_bytes(b"the model")
    (folder / RUN_FILE).write_text(json.dumps(RUN))
    append(folder, "", named(b"the model", metrics=run_metrics_digest(RUN)))
    return folder


def audit(*arguments: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["audit", *map(str, arguments)])
    return result.exit_code, result.stdout


def check_both(folder: Path, code: int, says: str) -> None:
    """The command for one run and that for audits end so, and say this."""
    for found, out in (verify(folder)[:2], audit("verify", folder)):
        assert found == code
        assert says in out


def test_the_right_model_is_named_with_its_study_and_round(run: Path) -> None:
    check_both(run, 0, f"{run / MODEL_FILE}: is the model of study '{STUDY}', after round 2.")


def test_a_model_that_was_replaced_is_found(run: Path) -> None:
    (run / MODEL_FILE).write_bytes(b"another model")
    why = f"{run / MODEL_FILE}: is not the model that the transcript names"
    check_both(run, 24, why)
    _, out, err = verify(run)
    assert why in err
    assert "is the model of study" not in out


def test_metrics_that_were_replaced_are_found(run: Path) -> None:
    for change in ({"final": {"loss": 0.1}}, {"initial": {"loss": 2.0}}, {"rounds": RUN["rounds"][:1]}):
        (run / RUN_FILE).write_text(json.dumps({**RUN, **change}))
        assert problems(run) == [(RUN_FILE, None, "its metrics are not those that the transcript names")]
    (run / RUN_FILE).write_text(json.dumps({**RUN, "aggregator_saw": "a sentence"}))
    assert problems(run) == []
    for broken in ("{", "[]", '{"rounds": [1]}', '{"rounds": [], "final": {"loss": NaN}}'):
        (run / RUN_FILE).write_text(broken)
        assert problems(run) == [(RUN_FILE, None, "cannot be read")]
    assert audit("verify", run)[0] == 24


def test_a_transcript_that_names_no_model_gives_a_note(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert "no transcript here names a model" not in verify(folder)[1]
    (folder / MODEL_FILE).write_bytes(b"a model")
    check_both(folder, 0, f"{folder / MODEL_FILE}: no transcript here names a model")


def test_a_model_that_is_elsewhere_is_told_by_its_digest(run: Path) -> None:
    (run / MODEL_FILE).unlink()
    check_both(run, 0, hashlib.sha256(b"the model").hexdigest())


def test_a_site_that_names_another_model_than_the_aggregator_is_found(run: Path) -> None:
    append(run, "a", named(b"the model"))
    assert problems(run) == []
    append(run, "b", named(b"another"))
    assert problems(run) == [
        ("sites/b/transcript.jsonl", 5, "names another model than line 5 of the aggregator's transcript")
    ]


def test_without_the_aggregators_word_sites_are_compared_after_as_many_sums(tmp_path: Path) -> None:
    """Encrypted protection: d missed the last sum, so its model is an older one, and that is no problem."""
    folder = write(tmp_path)
    (folder / MODEL_FILE).write_bytes(b"newest")
    for site in "ab":
        append(folder, site, named(b"newest"))
    append(folder, "d", named(b"older", sums=2))
    assert problems(folder) == []
    (site_folder(folder, "d") / MODEL_FILE).write_bytes(b"newest")  # not what d has written down
    assert problems(folder) == [(f"sites/d/{MODEL_FILE}", None, "is not the model that the transcript names")]
    (site_folder(folder, "d") / MODEL_FILE).write_bytes(b"older")
    append(folder, "c", named(b"other"))
    assert problems(folder) == [
        ("sites/c/transcript.jsonl", 5, "names another model than line 5 of a's transcript")
    ]


def test_metrics_that_only_sites_know_are_not_missed_and_others_are_found(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for site in "ab":
        append(folder, site, named(b"newest", metrics=run_metrics_digest(RUN)))
    (folder / RUN_FILE).write_text(json.dumps({"rounds": [], "final": {}}))
    assert problems(folder) == []
    (folder / RUN_FILE).write_text(json.dumps({**RUN, "final": {"loss": 0.1}}))
    assert problems(folder) == [(RUN_FILE, None, "its metrics are not those that the transcript names")]


def test_a_model_that_the_aggregator_names_before_its_last_sum_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path, sums=(a_sum(1), a_sum(2)))
    append(folder, "", named(b"early", sums=1))
    assert problems(folder) == [
        ("transcript.jsonl", 4, "names a model after 1 sums, and the transcript has 2")
    ]


@pytest.mark.parametrize(
    "change", [{"sha256": "00"}, {"sha256": None}, {"round": -1}, {"sums": True}, {"metrics": "zz"}]
)
def test_an_entry_that_no_party_writes_is_found(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write(tmp_path)
    path = folder / TRANSCRIPT_FILE
    with Transcript(AGGREGATOR, study=STUDY, roster_digest=ROSTER.digest, sink=path) as log:
        log.append(MODEL, {**named(b"the model").to_body(), **change})
    ((name, line, why),) = problems(folder)
    assert (name, line) == ("transcript.jsonl", 5)
    assert why.startswith("an entry about a model")


def test_the_audit_report_says_which_model_was_released_and_who_says_so(run: Path) -> None:
    append(run, "a", named(b"the model"))
    made = make_report([run])
    (study,) = made.studies
    (model,) = study.models
    digest = hashlib.sha256(b"the model").hexdigest()
    assert (model.sha256, model.round, model.sums) == (digest, 2, 3)
    assert model.recorded_by == ("aggregator", "a")
    assert model.files == (str(run / MODEL_FILE),)
    assert digest in to_json(made)
    page = to_html(made)
    assert digest in page
    assert "aggregator, a" in page
    (file,) = [item for item in made.verification.files if item.kind == "model"]
    assert (file.owner, file.sha256, file.verified) == ("aggregator", digest, True)
    assert "No transcript here names the model" not in page
    assert "No transcript here names the model" in to_html(make_report([write(run.parent / "old")]))


def test_a_hospitals_own_folder_is_checked_too(tmp_path: Path) -> None:
    folder = site_folder(write(tmp_path / "run"), "a")
    append(tmp_path / "run", "a", named(b"the model"))
    (folder / MODEL_FILE).write_bytes(b"the model")
    roster = tmp_path / "run" / "roster.json"
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in folder.iterdir():
        (alone / path.name).write_bytes(path.read_bytes())
    code, out = audit("verify", alone, "--roster", roster)
    assert code == 0
    assert f"{alone / MODEL_FILE}: is the model of study '{STUDY}', after round 2." in out
    (alone / MODEL_FILE).write_bytes(b"another")
    code, out = audit("verify", alone, "--roster", roster)
    assert code == 24
    assert "is not the model that the transcript names" in out


def test_the_digest_of_metrics_is_one_from_memory_and_from_the_file() -> None:
    versions = {0: {"loss": 1.0}, 1: {}, 2: {"loss": 0.5, "roc_auc": math.nan}}
    content = {**RUN, "final": {"loss": 0.5, "roc_auc": None}}
    assert metrics_digest(versions, 2) == run_metrics_digest(content) != b""
    assert metrics_digest({}, 2) == run_metrics_digest({"rounds": [], "final": {}}) == b""
    with pytest.raises(TranscriptError):
        run_metrics_digest({"rounds": 3})


def test_a_record_counts_sums_and_names_the_last_training_round() -> None:
    entries = [
        Entry(number, bytes(32), SUMMED, a_sum(number).to_body(), bytes(32), bytes(64))
        for number in (1, 2, 3)
    ]
    record = ModelRecord.of(entries, b"data", rounds=2)  # round 3 is the closing evaluation
    assert (record.round, record.sums, record.size_bytes) == (2, 3, 4)
    assert ModelRecord.of(entries, b"data", rounds=2, sums=1).round == 1
    assert ModelRecord.of([], b"data", rounds=2).round == 0
    assert ModelRecord.from_body(record.to_body()) == record
