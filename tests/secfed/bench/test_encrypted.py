"""`secfed bench encrypted`: its measurements in processes of their own come back, or say that one died."""

from __future__ import annotations

import pytest

from secfed.bench import encrypted

pytest.importorskip("tenseal", reason="tenseal is not installed")


@pytest.fixture(scope="module")
def study() -> encrypted._Study:
    return encrypted._Study(500, 3, 18, "symmetric", "bfv")


def test_peaks_are_those_of_a_site_and_of_the_aggregator(study: encrypted._Study) -> None:
    peaks = encrypted._peaks(study, processes=1)
    assert set(peaks) == {"site", "aggregator"}
    assert all(10 < mib < 100_000 for mib in peaks.values())  # of MiB: an interpreter alone has more than 10
