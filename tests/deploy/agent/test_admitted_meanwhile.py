"""A site is admitted while a run is interrupted: the run goes on with the roster that it began with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from secfed.audit.privacy import make_report
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.aggregator.aggregator import roster_of_run
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.rosters import keep_roster
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import RosterError
from secfed.records.roster_file import begun_with, read_roster, write_roster
from secfed.records.transcript import Transcript
from tests.deploy.agent_case import TOML, Agents, permit
from tests.deploy.centre_case import Centre, admit, events
from tests.deploy.simulated import model_in, simulated


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, TOML)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
def test_a_run_goes_on_with_the_roster_that_it_began_with(centre: Centre) -> None:
    for site in centre.folders.values():
        permit(site)
    with closing(Agents()) as agents:
        for site in centre.folders.values():
            agents.serve(site, poll_s=0.1, once=True, simulated_randomness=True)
        killed = centre.aggregate(crash_at="aggregate: after summed is in the transcript:1")
        _, log = killed.communicate(timeout=300)
        assert killed.returncode == -signal.SIGKILL, log
        admit(centre.consortium, SiteFolder.create(centre.folder / "hospital-4", "hospital-4", now=utc_now()))
        enrolled = centre.consortium.roster()
        assert len(enrolled.sites) == 4
        pinned = centre.folders["hospital-1"]  # the others have not heard of it yet
        pinned.trust(read_roster(centre.consortium.roster_path), utc_now())
        resumed = centre.aggregate()
        _, log = resumed.communicate(timeout=300)
        assert resumed.returncode == 0, log
        agents.ended()
        assert not agents.errors
    seen = events(log)
    assert (seen[0]["message"], seen[0]["roster"]) == ("resumed", centre.roster.digest.hex())
    assert not [event for event in seen if event["message"] == "refused"]
    assert model_in(centre.out) == simulated(centre.study, centre.folder / "simulated")
    rosters = (centre.consortium.roster_path,)
    for folder in (centre.out, pinned.state):
        assert make_report([folder], rosters).verification.verified
    next_run = centre.folder / "another-run"
    assert roster_of_run(next_run, enrolled, centre.consortium.roster_path) == enrolled


@dataclass
class Records:
    """A transcript that was begun under a roster, and the rosters that are kept."""

    folder: Path
    aggregator: Identity = field(default_factory=lambda: Identity.generate("aggregator"))
    sites: list[Identity] = field(default_factory=lambda: [Identity.generate(name) for name in "abcd"])

    @property
    def transcript(self) -> Path:
        return self.folder / "transcript.jsonl"

    @property
    def path(self) -> Path:
        return self.folder / "pinned-roster.json"

    def roster(self, names: str) -> Roster:
        return Roster.of(self.aggregator, [site for site in self.sites if site.name in names])

    def begin(self, names: str) -> Roster:
        roster = self.roster(names)
        Transcript(self.aggregator, study="heart", roster_digest=roster.digest, sink=self.transcript).close()
        write_roster(self.folder / "roster.json", roster)
        return roster


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_an_earlier_roster_counts_only_if_it_was_kept_and_all_its_members_are_still_there(
    records: Records,
) -> None:
    larger, other = records.roster("abcd"), records.roster("bcd")
    assert begun_with(records.transcript, larger, records.path) == larger  # nothing has begun
    earlier = records.begin("abc")
    assert begun_with(records.transcript, larger, records.path) == larger  # nobody here agreed to it
    keep_roster(records.path, earlier)
    assert begun_with(records.transcript, larger, records.path) == earlier
    assert begun_with(records.transcript, other, records.path) == other  # a is gone
    records.sites[0] = Identity.generate("a")
    new_key = records.roster("abcd")
    assert begun_with(records.transcript, new_key, records.path) == new_key
    records.transcript.write_bytes(b'{"body":{"roster_digest":"../../x"}}\n')
    assert begun_with(records.transcript, larger, records.path) == larger


def test_a_run_whose_member_was_removed_is_not_resumed(records: Records) -> None:
    keep_roster(records.path, records.begin("abc"))
    with pytest.raises(RosterError, match="began with a, removed since or given another key") as caught:
        roster_of_run(records.folder, records.roster("bcd"), records.path)
    assert "--end" in caught.value.remedy


def test_a_run_whose_member_was_removed_can_be_ended(records: Records) -> None:
    earlier = records.begin("abc")
    assert roster_of_run(records.folder, records.roster("bcd"), records.path, records.aggregator) == earlier


@pytest.mark.parametrize("other", ["roster", "aggregator"])
def test_a_run_is_not_ended_under_a_roster_that_it_did_not_begin_with(other: str, records: Records) -> None:
    records.begin("abc")
    enrolled = records.roster("bcd")
    if other == "roster":
        write_roster(records.folder / "roster.json", records.roster("abcd"))
    else:
        records.aggregator = Identity.generate("aggregator")
        enrolled = records.roster("bcd")
    with pytest.raises(RosterError, match="not the roster that this run began with"):
        roster_of_run(records.folder, enrolled, records.path, records.aggregator)
