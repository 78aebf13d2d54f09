"""What a hospital answers, writes and pays never depends on its records, whatever it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.algorithms.registry import ALGORITHMS
from tests.properties.readiness_case import BROADCASTS, OF_PAIRS, Broadcast, play, tiny

CASES = [
    *((name, "", unit) for name in ("fedavg", "fedprox") for unit in ("none", "record", "group", "site")),
    *(("fmcsc", variant, unit) for variant in ("", "one-view") for unit in ("none", "group", "site")),
    *(("fedcola", "", unit) for unit in ("none", "group", "site")),
    *((name, "", unit) for name in OF_PAIRS for unit in ("none", "group", "site")),
]


def test_every_algorithm_is_played() -> None:
    assert {name for name, _, _ in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize("broadcast", BROADCASTS, ids=lambda one: one.name)
@pytest.mark.parametrize(("algorithm", "variant", "unit"), CASES, ids=lambda part: str(part) or "-")
def test_a_record_changes_no_answer_no_payment_and_no_entry(
    algorithm: str, variant: str, unit: str, broadcast: Broadcast, tmp_path: Path
) -> None:
    study = tiny(algorithm, unit, variant=variant)
    without = play(study, broadcast, tmp_path / "without", damaged=False)
    with_it = play(study, broadcast, tmp_path / "with", damaged=True)
    assert with_it.replies == without.replies
    assert with_it.written == without.written
    assert with_it.paid == without.paid
    assert with_it.finite
    assert without.finite
    ready = broadcast.name in ("honest", "denormal", "large", "trap")
    assert all((reply is True) == ready for _, _, reply, _ in with_it.replies)
