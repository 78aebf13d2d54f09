"""A member of a begun run is removed: the run goes on for nobody, and can be ended with the model it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.enrolment.messages import utc_now
from tests.deploy import central_case
from tests.deploy.centre_case import Centre, events, interrupted


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, central_case.TOML.format(rounds=50, sites=4, protection="masked"))
    yield made
    made.close()


@pytest.mark.slow
def test_a_run_whose_member_was_removed_is_ended_and_the_others_get_its_model(centre: Centre) -> None:
    centre.join()
    interrupted(centre.aggregate(), '"message": "round"')
    gone, *others = sorted(centre.folders)
    centre.consortium.remove(gone, now=utc_now())
    refused = centre.aggregate()
    _, log = refused.communicate(timeout=120)
    assert refused.returncode == 13, log
    assert "--end" in log

    ended = centre.aggregate("--end", "--farewell", "60")
    _, log = ended.communicate(timeout=120)
    assert ended.returncode == 0, log
    (told,) = [event for event in events(log) if event["message"] == "told"]
    assert told["sites"] == told["model"] == others
    removed = centre.hospitals[list(centre.folders).index(gone)]
    assert removed.failures, "it was served nothing; whether it called in time to be told why is chance"
