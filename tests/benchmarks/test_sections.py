"""Tracked pages change only on request."""

from __future__ import annotations

from pathlib import Path

import pytest
import sections


@pytest.mark.parametrize("update", [False, True])
def test_a_tracked_page_is_rewritten_only_on_request(
    update: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text("# Benchmarks\n")
    for name, value in (("ROOT", tmp_path), ("PAGE", page), ("COPIES", tmp_path / "runs" / "bench")):
        monkeypatch.setattr(sections, name, value)
    monkeypatch.setattr(sections, "UPDATE_DOCS", update)
    sections.write("masked", "Masked", "a table")
    copy = tmp_path / "runs" / "bench" / "docs" / "benchmarks.md"
    assert ("a table" in page.read_text(), copy.exists()) == (update, not update)
    if not update:
        assert copy.read_text().startswith("# Benchmarks")
