"""An aggregator that asks for refused work again and again does not fill a hospital's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.crypto.codec import Buffer
from secfed.dp.accounting.budget import Budget
from secfed.errors import BudgetExceeded, SecfedError
from secfed.runs.run_folder import TRANSCRIPT_FILE, ledger_file
from secfed.wire.frames import Notice, Task, decode
from tests.secfed.durable_case import VICTIM, Consortium, Hospital, Killed, study


@pytest.mark.parametrize("unit", ["record", "site"])
def test_a_refused_task_between_other_frames_leaves_one_line(tmp_path: Path, unit: str) -> None:
    consortium = Consortium(study("masked", unit), tmp_path / "x", simulated=False)
    hospital, tasks = consortium.hospitals[VICTIM], []

    def deliver(_stage: str, one: Hospital, frame: Buffer) -> bytes:
        if one is hospital and isinstance(decode(frame), Task):
            tasks.append(bytes(frame))
            raise Killed
        return one.handle(frame)

    consortium.deliver = deliver
    with pytest.raises(Killed):
        consortium.run()

    def ask() -> tuple[int, int]:
        """Sizes of ledger and transcript after the task and something else."""
        assert hospital.open is not None
        assert hospital.open.privacy is not None
        hospital.open.privacy.ledger.budgets = (
            Budget(1e-3, 1e-4, protects=hospital.open.privacy.settings.budgeted),
        )
        with pytest.raises(BudgetExceeded):
            hospital.handle(tasks[0])
        with pytest.raises(SecfedError):
            hospital.handle(Notice(b"something else").encode())
        transcript = hospital.open.folder / TRANSCRIPT_FILE
        return ledger_file(hospital.state, "wards").stat().st_size, transcript.stat().st_size

    first = ask()
    assert [ask() for _ in range(3)] == [first] * 3
    consortium.close()
