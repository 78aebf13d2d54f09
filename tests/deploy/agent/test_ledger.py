"""A running agent whose ledger lacks what was recorded of it refuses the study until the ledger is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.agent.status import STATUS_FILE
from secfed.records.transcript import SUMMED, Transcript
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file, study_folder
from tests.deploy.agent_case import BUDGETED, NAMES, PRIVATE, Centre, status
from tests.deploy.link_case import wait_until


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, PRIVATE, policy=BUDGETED)
    yield made
    made.close()


def test_a_study_is_refused_until_the_ledger_has_what_the_transcripts_recorded_of_it(centre: Centre) -> None:
    folder = centre.folders[NAMES[0]]
    identity = folder.identity(None)
    ledger = ledger_file(folder.state, "wards")
    # An earlier study's transcript, and the ledger that it saw is gone.
    earlier = study_folder(folder.state, "earlier-" + 64 * "0") / TRANSCRIPT_FILE
    digest = centre.roster.digest
    with Transcript(identity, study="earlier", roster_digest=digest, sink=earlier) as transcript:
        transcript.append(SUMMED, {"round": 1, "ledgers": {"wards": 64 * "a"}})

    centre.start(NAMES[0])
    wait_until(centre.declined)
    assert status(folder)["state"] == "failed"
    said = status(folder)["last_error"]["text"]
    assert str(ledger) in said
    assert f"{earlier}, line 2 (round 1)" in said
    assert "put its newest copy back" in said
    assert str(folder.state) not in centre.declined()  # paths are nobody else's business
    assert not ledger.exists()

    earlier.unlink()
    wait_until(lambda: '"serving"' in (folder.state / STATUS_FILE).read_text(), 60.0)
    assert ledger.exists()
    assert not centre.errors
