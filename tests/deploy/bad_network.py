"""Hosts on one machine with a bad network between them: a network namespace each, and a switch that we are.

Every namespace has one interface, a TAP device. Its frames come to a thread here, which loses some, delays
the rest and hands them on. (``tc netem`` would do the same, but many kernels are built without it.)
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

SUBNET: Final = "10.203.77"  # inside the namespaces only
TUN_DEVICE: Final = Path("/dev/net/tun")

_TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES: Final = 65536
_QUEUE_FRAMES: Final = 4000  # what a real switch would drop, too


def ip(*arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class BadNetwork:
    """Namespaces joined by a switch.

    Args:
        parties: names of the hosts; the first has the address ``.1``, the next ``.2``.
        delay_s: of every frame, in each direction.
        loss: share of frames that are lost.

    Attributes:
        delivered, lost: frames so far.
    """

    def __init__(self, parties: Sequence[str], *, delay_s: float, loss: float) -> None:
        self._parties, self._delay_s, self._loss = tuple(parties), delay_s, loss
        self._ports: list[int] = []
        self._cut: set[int] = set()
        self._random = random.Random(1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._switch, name="switch", daemon=True)
        self.delivered = self.lost = 0

    def within(self, party: str) -> list[str]:
        """What to put before a command of this party."""
        return ["ip", "netns", "exec", self._namespace(party)]

    def address(self, party: str) -> str:
        """IPv4 address of a party."""
        return f"{SUBNET}.{self._parties.index(party) + 1}"

    def __enter__(self) -> BadNetwork:
        try:
            for party in self._parties:
                self._ports.append(self._new_host(party))
        except BaseException:
            self.__exit__()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for party in self._parties:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", self._namespace(party))
        for port in self._ports:
            os.close(port)
        self._ports = []

    def plug(self, party: str, *, connected: bool) -> None:
        """Pull this party's cable out of the switch, or put it back."""
        port = self._ports[self._parties.index(party)]
        self._cut = self._cut - {port} if connected else self._cut | {port}

    def _namespace(self, party: str) -> str:
        return f"secfed{os.getpid()}-{party}"

    def _new_host(self, party: str) -> int:
        """A namespace and its TAP device; the device follows its descriptor into the namespace."""
        there, device = self._namespace(party), f"sf{os.getpid() % 100_000}-{len(self._ports)}"
        port = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
            ip("netns", "add", there)
            ip("link", "set", device, "netns", there)
            ip("-n", there, "link", "set", "lo", "up")
            ip("-n", there, "address", "add", f"{self.address(party)}/24", "dev", device)
            ip("-n", there, "link", "set", device, "up")
        except BaseException:
            os.close(port)
            raise
        return port

    def _switch(self) -> None:
        """Until the end: take frames, lose some, hand on the rest when their time has come."""
        waiting: list[tuple[float, int, int, bytes]] = []  # when, a counter, from, frame
        order, homes = count(), dict[bytes, int]()  # hardware address -> port
        with selectors.DefaultSelector() as selector:
            for port in self._ports:
                selector.register(port, selectors.EVENT_READ)
            while not self._stopped.is_set():
                until_s = waiting[0][0] - time.monotonic() if waiting else 0.2
                for key, _ in selector.select(max(0.0, min(0.2, until_s))):
                    port = int(key.fd)
                    with suppress(BlockingIOError):
                        frame = os.read(port, _FRAME_BYTES)
                        homes[frame[6:12]] = port
                        if port in self._cut or len(waiting) >= _QUEUE_FRAMES:
                            continue
                        if self._random.random() < self._loss:
                            self.lost += 1
                            continue
                        due = time.monotonic() + self._delay_s
                        heapq.heappush(waiting, (due, next(order), port, frame))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, port, frame = heapq.heappop(waiting)
                    self._hand_on(port, homes.get(frame[:6]), frame)

    def _hand_on(self, source: int, target: int | None, frame: bytes) -> None:
        for port in self._ports if target is None else (target,):
            if port != source and port not in self._cut and source not in self._cut:
                with suppress(OSError):  # a device that is not up yet, or a full queue
                    os.write(port, frame)
                    self.delivered += 1
