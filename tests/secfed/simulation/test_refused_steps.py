"""A first step that is not the aggregator's: refused by its number, and nothing else ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secfed.crypto.codec import Buffer
from secfed.crypto.messages import Survivors
from secfed.runs.run_report import RunReport
from secfed.simulation.transport import SimulatedTransport
from secfed.study.study import Study
from secfed.wire.frames import Step, decode
from secfed.wire.transport import OnReply
from tests.secfed.simulation.simulate_case import run, study


def run_with_another_step(out: Path, plan: Study, **changes: Any) -> RunReport:
    """A run in whose second round hospital-2 is sent another first step than the aggregator's."""
    original = SimulatedTransport.ask

    def changed(
        self: SimulatedTransport, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply
    ) -> None:
        opening = "mask" if plan.protection.name == "plain" else "advertise"
        if stage == opening and self.round == 2 and "hospital-2" in requests:
            step = decode(requests["hospital-2"])
            assert isinstance(step, Step)
            requests = {**requests, "hospital-2": replace(step, **changes).encode()}
        original(self, stage, requests, on_reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedTransport, "ask", changed)
        return run(plan, out)


@pytest.mark.parametrize(
    ("message", "number"),
    [(Survivors(("hospital-1",)).encode(), 2), (b"garbage", 1), (Survivors(()).encode()[:9], 1)],
    ids=["another type", "garbage", "a header cut off"],
)
@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_what_opens_an_attempt_without_being_a_specification_is_refused_by_its_number(
    protection: str, message: bytes, number: int, tmp_path: Path
) -> None:
    run_with_another_step(tmp_path / "out", study(protection), message=message)
    assert f"refusal {number}: " in (tmp_path / "out" / "transcript.jsonl").read_text()


def test_a_step_whose_attempt_is_not_the_signed_one_is_refused_and_ends_nothing(tmp_path: Path) -> None:
    report = run_with_another_step(tmp_path / "out", study(), attempt=1)
    assert "hospital-2" not in report.rounds[1].survivors
    assert "hospital-2" in report.rounds[2].survivors
    assert "refusal 10" in (tmp_path / "out" / "transcript.jsonl").read_text()
