"""`secfed bench encrypted`: its measurements in processes of their own come back, or say that one died."""

from __future__ import annotations

import pytest

from secfed.bench import encrypted

pytest.importorskip("tenseal", reason="tenseal is not installed")


@pytest.fixture(scope="module")
def study() -> encrypted._Study:
    return encrypted._Study(500, 3, 18, "symmetric", "bfv")


def test_processes_that_share_nothing_are_timed_as_one_group(study: encrypted._Study) -> None:
    assert encrypted._independently(study, processes=2, repeats=2) > 0


def test_a_process_that_dies_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = encrypted._Study(500, 3, 18, "symmetric", "bfv")
    monkeypatch.setattr(broken, "keys", None)
    with pytest.raises(SystemExit, match="died"):
        encrypted._independently(broken, processes=1, repeats=1)


def test_peaks_are_those_of_a_site_and_of_the_aggregator(study: encrypted._Study) -> None:
    peaks = encrypted._peaks(study, processes=1)
    assert set(peaks) == {"site", "aggregator"}
    assert all(10 < mib < 100_000 for mib in peaks.values())  # of MiB: an interpreter alone has more than 10
