"""The benchmark of closed sums measures what it says, on a vector that is too small to be timed."""

from __future__ import annotations

from importlib.util import find_spec

from secfed.bench.masked import measure


def test_closed_sums_are_measured_beside_their_limits_and_encryption() -> None:
    result = measure(parameters=3000, sites=3, repeats=1, with_flower=False, reveal="sites")
    assert {"client_protect", "site_open"} <= set(result["fraction_of_limit"])
    assert ("speedup_vs_encrypted_symmetric" in result) == (find_spec("tenseal") is not None)
    opened = measure(parameters=3000, sites=3, repeats=1, with_flower=False)
    # Twelve tags of eight bytes; nothing else is longer.
    assert round(3000 * (result["bytes_per_param"] - opened["bytes_per_param"])) == 96
    assert "site_open" not in opened["fraction_of_limit"]
