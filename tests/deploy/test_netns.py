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


PROBE: Final = """\
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2]))
except OSError as error:
    print(type(error).__name__, time.monotonic() - began)
"""


def probe(network: BadNetwork, party: str, timeout_s: float) -> tuple[str, float]:
    """Knock at a closed port of the study centre: what came of it, and after how many seconds."""
    command = [*network.within(party), sys.executable, "-c", PROBE, network.address("centre"), str(timeout_s)]
    name, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return name, float(seconds)


def test_the_network_is_as_slow_as_it_says(network: BadNetwork) -> None:
    answer, seconds = probe(network, LOST, 30.0)
    assert answer == "ConnectionRefusedError"
    assert seconds >= 2 * DELAY_S  # of the network, which can only be slower


def test_a_pulled_cable_carries_nothing_until_it_is_back(network: BadNetwork) -> None:
    network.plug(LOST, connected=False)
    answer, _ = probe(network, LOST, 1.5)
    assert answer in ("TimeoutError", "OSError")  # OSError: no route, once ARP has given up
    network.plug(LOST, connected=True)
    assert probe(network, LOST, 30.0)[0] == "ConnectionRefusedError"


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
