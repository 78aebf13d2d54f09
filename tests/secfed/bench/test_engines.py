"""The benchmark of engines: what it reports, never how long anything takes."""

from __future__ import annotations

from itertools import count

import pytest

from secfed.bench import engines, tables


def test_it_compares_engines_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _name: None)  # neither Ray nor Flower: they take long
    monkeypatch.setattr(engines, "_REPEATS", 1)
    monkeypatch.setattr(engines, "_start", lambda _study, _options: 1.5)
    monkeypatch.setattr(engines, "_side_by_side", lambda _study, processes: [2.0 + processes] * processes)
    spent = count()
    monkeypatch.setattr(engines, "cpu_by_kind", lambda: {"driver": 4.0 * next(spent), "raylet": 1.0})
    found = engines.measure(sites=3, epochs=1, rounds=3, workers=2, progress=lambda _: None)
    assert found["equal_bytes"]
    assert set(found["speedup"]) == {"processes_2"}
    assert found["round_s"] == found["rounds_s"]["processes_2"]
    assert found["rounds_s"]["inline"] / found["round_s"] == found["speedup"]["processes_2"]
    assert found["limit"] == 2 * 3.0 / 4.0
    assert found["fraction_of_limit"]["processes_2"] == found["speedup"]["processes_2"] / found["limit"]
    # One look after each round; two rounds lie between the first look and the last.
    assert found["cpu_s"] == {name: {"driver": 4.0, "raylet": 0.0} for name in ("inline", "processes_2")}
    assert (found["flower_round_s"], found["flower_total_s"]) == (None, None)
    assert [row[0] for row in tables.engines(found).rows] == [
        "inline",
        "processes_2",
        "limit",
    ]
    assert tables.engines(found).rows[0][3:6] == ["4.00", "0.00", "0.00"]
    nothing: dict[str, dict[str, float]] = {"inline": {}, "processes_2": {}}  # where there is no /proc
    assert {len(row) for row in tables.engines({**found, "cpu_s": nothing}).rows} == {8}
    row = tables.engines({**found, "flower_round_s": 1.0, "flower_total_s": 2.0}).rows[-1]
    assert row[0].startswith("Flower")
