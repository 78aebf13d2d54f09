"""What stands between a site and the aggregator: a relay that cuts connections, and an HTTP proxy."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self


class _Listening:
    """Takes connections at a port of this machine, each in a thread."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("localhost", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                threading.Thread(target=self.take, args=(near,), daemon=True).start()

    def take(self, near: socket.socket) -> None:
        raise NotImplementedError


def join(near: socket.socket, far: socket.socket, passes: Callable[[int], bool] = lambda _: True) -> None:
    """Carry bytes both ways, until an end hangs up or ``passes`` says no to so many more."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and passes(len(data)):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=pump, args=(far, near), daemon=True)
    back.start()
    pump(near, far)
    back.join()


class Relay(_Listening):
    """Passes TCP on, and cuts the n-th connection after so many bytes from the site or to it."""

    def __init__(self, target: int, cut_after: list[int]) -> None:
        self._target, self._plan, self.cut = target, list(cut_after), 0
        super().__init__()

    def take(self, near: socket.socket) -> None:
        left = self._plan.pop(0) if self._plan else None

        def passes(size: int) -> bool:
            nonlocal left
            if left is None:
                return True
            cut = left >= 0 > left - size
            left -= size
            self.cut += cut
            return left >= 0

        # Who retries may come once more after the server is gone: refused there, the connection ends here.
        with near, suppress(OSError), socket.create_connection(("localhost", self._target)) as far:
            join(near, far, passes)


class Proxy(_Listening):
    """An HTTP proxy that can CONNECT, and wants a password if it has one."""

    def __init__(self, password: str | None = None) -> None:
        self._password = password
        self.connected: list[str] = []
        super().__init__()

    def take(self, near: socket.socket) -> None:
        head = b""
        with near, suppress(OSError):
            while b"\r\n\r\n" not in head:
                head += near.recv(4096)
            line, *headers = head.decode().split("\r\n")
            token = base64.b64encode(f"user:{self._password}".encode()).decode()
            if self._password and not any(token in header for header in headers):
                near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
            target = line.split()[1]
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                self.connected.append(target)
                near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                join(near, far)
