"""A member of a begun run is removed: the run goes on for nobody, and can be ended with the model it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.aggregator.aggregator import Aggregator, Service
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.transport.signals import Stopper
from secfed.errors import RosterError
from secfed.records.roster_file import write_roster
from secfed.records.transcript import Transcript
from secfed.runs.run_report import SilentObserver
from tests.deploy import central_case
from tests.deploy.centre_case import Centre, events, interrupted


def opened(centre: Centre, service: Service) -> Aggregator:
    """The command, before it serves anybody."""
    return Aggregator(
        centre.study,
        centre.study_file.read_text(),
        centre.consortium,
        centre.out,
        passphrase=None,
        service=service,
        observer=SilentObserver(),
        tell=lambda *_, **__: None,
        stopper=Stopper(),
    )


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


@pytest.mark.parametrize("link", ["grpc", "flower"])
def test_an_ended_run_is_served_to_those_who_are_left_whatever_carries_it(
    link: str, centre: Centre, tmp_path: Path
) -> None:
    identity = centre.consortium.aggregator_identity(None)
    sink, digest = centre.out / "transcript.jsonl", centre.roster.digest
    Transcript(identity, study=centre.central.id, roster_digest=digest, sink=sink).close()
    write_roster(centre.out / "roster.json", centre.roster)
    path = tmp_path / "s" if link == "flower" else None
    names = sorted(centre.folders)
    for gone in (1, len(names)):
        for name in names[:gone]:
            if name in centre.consortium.members().current:
                centre.consortium.remove(name, now=utc_now())
        with pytest.raises(RosterError, match="removed since") as caught:
            opened(centre, Service(flower_socket=path))
        assert "--end" in caught.value.remedy
        ending = opened(centre, Service(flower_socket=path, end=True))
        assert sorted(ending.seen()[1]) == sorted(ending._server.requests.sites) == names[gone:]


@pytest.mark.slow
def test_a_run_of_which_nobody_is_left_is_ended_and_leaves_its_model(centre: Centre) -> None:
    centre.join()
    interrupted(centre.aggregate(), '"message": "round"')
    for name in centre.folders:
        centre.consortium.remove(name, now=utc_now())
    ended = centre.aggregate("--end")
    _, log = ended.communicate(timeout=120)
    assert ended.returncode == 0, log
    (told,) = [event for event in events(log) if event["message"] == "told"]
    assert told["sites"] == told["model"] == []
    assert (centre.out / "model.safetensors").stat().st_size > 0
