"""Study centre and hospitals on hosts of their own: network namespaces, with a bad network between them.

200 ms there and 200 ms back, every fiftieth packet lost, and one hospital whose cable is pulled in the
middle of a round.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.bad_network import TUN_DEVICE, BadNetwork
from tests.deploy.deployment_case import STUDY, Deployment

DELAY_S: Final = 0.2
LOSS: Final = 0.02
NAMES: Final = tuple(f"hospital-{number}" for number in range(1, 5))  # three are enough for a sum
LOST: Final = NAMES[1]
ROUNDS: Final = 16


def missing() -> str | None:
    """Why this cannot run here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, for network namespaces"
    if shutil.which("ip") is None:
        return "needs ip, which is part of iproute2"
    if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        return f"needs {TUN_DEVICE}"
    try:
        with BadNetwork(["probe"], delay_s=0, loss=0):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces or TAP devices here: {error}"


@pytest.fixture
def network() -> Iterator[BadNetwork]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with BadNetwork(["centre", *NAMES], delay_s=DELAY_S, loss=LOSS) as made:
        yield made


@pytest.fixture
def deployment(tmp_path: Path, network: BadNetwork) -> Deployment:
    return Deployment(
        tmp_path,
        STUDY.format(rounds=ROUNDS, sites=len(NAMES)),
        sites=len(NAMES),
        quorum=3,
        host=network.address("centre"),
        listen="0.0.0.0",
        options=["--silent", "60", "--farewell", "300"],
        within=network.within,
    )


@pytest.mark.slow
def test_a_study_survives_loss_latency_and_a_host_that_is_cut_off(
    deployment: Deployment, network: BadNetwork
) -> None:
    history: list[str] = []

    def meanwhile() -> None:
        """Pull the cable when the second round has begun; put it back after a sum without the site."""
        sums = deployment.sums()
        if not history and sums:
            network.plug(LOST, connected=False)
            history.append("pulled")
        elif history == ["pulled"] and any(LOST not in survivors for *_, survivors in sums):
            network.plug(LOST, connected=True)
            history.append("back")

    deployment.run(meanwhile)
    assert history == ["pulled", "back"]
    assert network.lost > 0
    sums = deployment.sums()
    assert [number for number, *_ in sums] == list(range(1, ROUNDS + 2))  # the last one only evaluates
    survivors = [found for *_, found in sums]
    assert tuple(name for name in NAMES if name != LOST) in survivors
    assert survivors[-1] == NAMES
    assert all(len(found) >= 3 for found in survivors)
    deployment.verify()
