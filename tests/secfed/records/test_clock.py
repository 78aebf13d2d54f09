"""Messages about clocks say which machine's, and by how much."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from secfed.errors import TranscriptError
from secfed.records.clock import apart, checked_s, own_clock


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (-61, "1 minute, 1 second"),
        (3600, "1 hour"),
        (90_061, "1 day, 1 hour"),
        (400 * 86_400 + 59, "400 days, 59 seconds"),
    ],
)
def test_how_far_two_clocks_differ(seconds: float, text: str) -> None:
    assert apart(seconds) == text


def test_a_clock_is_named_by_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "ward-7")
    with pytest.raises(TranscriptError, match=r"the clock of this machine \(ward-7\) says -1 s"):
        checked_s(tmp_path / "ledger", -1.0)
    monkeypatch.setattr(platform, "node", lambda: "")
    assert own_clock() == "the clock of this machine (without a name)"
