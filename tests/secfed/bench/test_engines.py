"""The benchmark of engines: what it reports, never how long anything takes."""

from __future__ import annotations

import pytest

from secfed.bench import engines, tables


def test_it_compares_engines_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _name: None)  # neither Ray nor Flower: they take long
    found = engines.measure(sites=3, epochs=1, rounds=3, workers=2, progress=lambda _: None)
    assert found["equal_bytes"]
    assert set(found["speedup"]) == {"processes_2"}
    assert (found["flower_round_s"], found["flower_total_s"]) == (None, None)
    assert [row[0] for row in tables.engines(found).rows] == ["inline", "processes_2"]
    row = tables.engines({**found, "flower_round_s": 1.0, "flower_total_s": 2.0}).rows[-1]
    assert row[0].startswith("Flower")
