"""Byte strings over a Unix-domain socket of this machine: who may connect is a matter of file permissions.

Each byte string is preceded by its length, 8 bytes, big-endian; the length is checked against a cap before
anything is allocated. This file needs the standard library only: a courier starts a process per message.
"""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from secfed.errors import ConfigError, LinkError, MalformedMessage

Bytes = bytes | bytearray | memoryview

_LENGTH_BYTES: Final = 8
_PIECE_BYTES: Final = 1 << 20
_MAX_PATH_BYTES: Final = 107  # of sockaddr_un on Linux, without its end
_LOOK_S: Final = 0.2  # how soon a closed listener is noticed
_FAREWELL_S: Final = 2.0


def send(connection: socket.socket, *parts: Bytes) -> None:
    """Send byte strings."""
    try:
        for data in parts:
            view = memoryview(data).cast("B")
            connection.sendall(len(view).to_bytes(_LENGTH_BYTES, "big"))
            if view:  # or the other side, which has all there is, may have answered and gone
                connection.sendall(view)
    except OSError as error:
        raise _broken(error) from None


def announced(connection: socket.socket) -> int:
    """The length of the byte string that comes next; its bytes are still to be read."""
    return int.from_bytes(read(connection, _LENGTH_BYTES), "big")


def read(connection: socket.socket, size_bytes: int) -> bytearray:
    """The bytes of an announced byte string; the caller has checked the length."""
    data = bytearray(size_bytes)
    view = memoryview(data)
    at = 0
    try:
        while at < size_bytes:
            got = connection.recv_into(view[at:], min(size_bytes - at, _PIECE_BYTES))
            if not got:
                raise LinkError("the other side of a socket hung up")
            at += got
    except OSError as error:
        raise _broken(error) from None
    return data


def skip(connection: socket.socket, size_bytes: int) -> None:
    """Read an announced byte string and keep nothing of it."""
    while size_bytes > 0:
        size_bytes -= len(read(connection, min(size_bytes, _PIECE_BYTES)))


def receive(connection: socket.socket, cap_bytes: int) -> bytearray:
    """One byte string of at most so many bytes."""
    size = announced(connection)
    if size > cap_bytes:
        raise MalformedMessage(f"{size} bytes were announced on a socket; {cap_bytes} are permitted")
    return read(connection, size)


def connect(path: Path, timeout_s: float | None) -> socket.socket:
    """A connection to whoever listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise LinkError(
            f"{path}: nobody can be reached at this socket: {error.strerror or error}",
            remedy="start what listens there, and let this account's group into the socket's folder",
        ) from None
    return connection


class UnixSocketListener:
    """Listens at a socket, with a thread per connection, ``most`` of them at a time; more are closed at once.

    The socket's folder is made for this account alone; one that exists must be closed to others. ``serve`` is
    called with each connection, which is closed afterwards, also where it raises :class:`LinkError` or
    :class:`MalformedMessage`.
    """

    def __init__(self, path: Path, serve: Callable[[socket.socket], None], *, most: int) -> None:
        self._path, self._serve = path, serve
        self._places = threading.BoundedSemaphore(most)
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        _make_way(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            path.chmod(0o660)
            self._socket.listen(most)
        except OSError as error:
            self._socket.close()
            raise _unusable(path, error) from None
        self._socket.settimeout(_LOOK_S)
        self._thread = threading.Thread(target=self._accept, name="secfed-socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections; an answer that is on its way is given a moment."""
        self._closed.set()
        self._thread.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)
        end = time.monotonic() + _FAREWELL_S
        while self._open and time.monotonic() < end:
            time.sleep(0.01)
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # no descriptors, for example: without a pause a processor would be kept busy
                self._closed.wait(_LOOK_S)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            with suppress(LinkError, MalformedMessage):  # the other side's fault, and it is gone
                self._serve(connection)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
            self._places.release()


def check_place(path: Path) -> None:
    """Check that only accounts of a group can reach a socket there; changes nothing."""
    if len(str(path).encode()) > _MAX_PATH_BYTES:
        raise ConfigError(
            f"{path}: the path of a socket has at most {_MAX_PATH_BYTES} bytes", remedy="name a shorter one"
        )
    folder = path.parent
    try:
        if folder.exists() and stat.S_IMODE(folder.stat().st_mode) & stat.S_IRWXO:
            raise ConfigError(
                f"{folder}: is open to every account of this machine, and a socket in it would be, too",
                remedy=f"run: chmod o= {folder}",
            )
        if path.exists() and not path.is_socket():
            raise ConfigError(f"{path}: is there, and is not a socket", remedy="name another path")
    except OSError as error:
        raise _unusable(path, error) from None


def _make_way(path: Path) -> None:
    """Make the socket's folder, and remove a socket that a killed process left."""
    check_place(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket():
            with suppress(LinkError):
                connect(path, 1.0).close()
                raise ConfigError(f"{path}: somebody listens there already", remedy="name another socket")
            path.unlink()
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError) -> ConfigError:
    reason = error.strerror or error
    return ConfigError(f"{path}: no socket can be there: {reason}", remedy="name another socket")


def _broken(error: OSError) -> LinkError:
    return LinkError(f"a socket failed: {error.strerror or error}")
