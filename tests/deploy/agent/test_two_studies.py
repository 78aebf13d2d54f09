"""Two studies between the same hospitals and one aggregator, one of them paused and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from secfed.audit.privacy import make_report
from secfed.study.study import Study
from tests.deploy.agent_case import POLICY, TOML, Agents, permit
from tests.deploy.centre_case import Centre, events
from tests.deploy.link_case import wait_until
from tests.deploy.simulated import model_in, simulated

FIRST = TOML.replace('name = "tiny"\nrounds = 1', 'name = "first"\nrounds = 3')
SECOND = TOML.replace('name = "tiny"', 'name = "second"')


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, FIRST)
    studies = tmp_path / "studies"
    studies.mkdir()
    made.study_file.rename(studies / "first.toml")
    (studies / "second.toml").write_text(SECOND, encoding="utf-8")
    made.study_file, made.out = studies, tmp_path / "runs"
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
def test_the_second_has_its_turn_while_the_first_is_paused(centre: Centre) -> None:
    for site in centre.folders.values():
        permit(site, policy=POLICY.replace('["tiny"]', '["first", "second"]\nnear_twins = "permit"'))
    second, first = centre.out / "second", centre.out / "first"
    with closing(Agents()) as agents:
        for site in centre.folders.values():
            agents.serve(site, poll_s=0.1, simulated_randomness=True)
        process = centre.aggregate("--farewell", "30")
        try:
            sums = lambda: (first / "transcript.jsonl").read_text(encoding="utf-8").count('"summed"')  # noqa: E731
            wait_until(lambda: (first / "transcript.jsonl").exists() and sums() >= 1, 120.0)
            centre.consortium.pause("first")
            wait_until(lambda: (second / "run.json").exists(), 120.0)
            assert sums() < 4
            assert not (first / "run.json").exists()
            centre.consortium.resume("first")
            _, log = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 0, log
        assert not agents.errors
    told = [(event["message"], event.get("study", "")) for event in events(log)]
    turns = [study for message, study in told if message == "turn"]
    assert turns == ["first", "second", "first"]
    assert [study.rpartition("-")[0] for message, study in told if message == "resumed"] == ["first"]
    assert not [message for message, _ in told if message in ("missing", "failed")]
    for text, out in ((FIRST, first), (SECOND, second)):
        assert model_in(out) == simulated(Study.parse(text), centre.folder / f"simulated-{out.name}")
        assert make_report([out], [centre.consortium.roster_path]).verification.verified
    for site in centre.folders.values():
        models = sorted(path.parent.name[:5] for path in site.state.glob("studies/*/model.safetensors"))
        assert models == ["first", "secon"]
