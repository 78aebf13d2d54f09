"""A socket of this machine: who may reach it, what a killed process leaves, how much is read."""

from __future__ import annotations

import errno
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.preflight.folder_check import flower_check
from secfed.deploy.transport.flower import unix_socket
from secfed.deploy.transport.flower.unix_socket import UnixSocketListener
from secfed.errors import ConfigError, LinkError, MalformedMessage
from tests.deploy.link_case import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="secfed-"))  # a socket's path is short
    yield made
    shutil.rmtree(made)


def echo(connection: socket.socket) -> None:
    unix_socket.send(connection, unix_socket.receive(connection, 100))


def said(path: Path, words: bytes) -> bytes:
    with unix_socket.connect(path, 10.0) as connection:
        unix_socket.send(connection, words)
        return bytes(unix_socket.receive(connection, 100))


def test_bytes_go_there_and_back_and_the_socket_is_for_owner_and_group(folder):
    path = folder / "new" / "a.sock"
    listener = UnixSocketListener(path, echo, most=2)
    try:
        assert said(path, b"words") == b"words"
        assert said(path, b"") == b""
        assert path.stat().st_mode & 0o777 == 0o660
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert flower_check(path).ok is True
        with pytest.raises(ConfigError, match="somebody listens there already"):
            UnixSocketListener(path, echo, most=1)
    finally:
        listener.close()
    assert not path.exists()
    assert flower_check(path).ok is None
    with pytest.raises(LinkError, match="nobody can be reached"):
        unix_socket.connect(path, 1.0)


def test_a_listener_without_descriptors_waits_for_some(folder, monkeypatch):
    listener = UnixSocketListener(folder / "a.sock", echo, most=1)
    tried: list[None] = []

    class Full:
        def accept(self) -> None:
            tried.append(None)
            raise OSError(errno.EMFILE, "too many open files")

        def close(self) -> None:
            real.close()

    real, listener._socket = listener._socket, Full()
    time.sleep(1.0)
    listener.close()
    assert 1 <= len(tried) <= 6  # about five a second, not as many as a processor can


def test_a_folder_that_is_open_to_every_account_is_refused(folder):
    folder.chmod(0o711)
    with pytest.raises(ConfigError, match="is open to every account of this machine"):
        UnixSocketListener(folder / "a.sock", echo, most=1)
    assert flower_check(folder / "a.sock").ok is False
    folder.chmod(0o750)
    UnixSocketListener(folder / "a.sock", echo, most=1).close()


def test_the_socket_of_a_killed_process_is_replaced_and_other_files_are_not(folder):
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    UnixSocketListener(path, echo, most=1).close()
    path.write_bytes(b"not a socket")
    with pytest.raises(ConfigError, match="is not a socket"):
        UnixSocketListener(path, echo, most=1)
    assert path.read_bytes() == b"not a socket"


def test_a_path_that_is_too_long_is_named(folder):
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        UnixSocketListener(folder / ("x" * 108), echo, most=1)


def test_a_length_above_the_cap_is_not_allocated(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((1 << 60).to_bytes(8, "big"))
        with pytest.raises(MalformedMessage, match=f"{1 << 60} bytes were announced on a socket"):
            unix_socket.receive(ours, 100)


def test_more_connections_than_permitted_are_closed_at_once(folder):
    path = folder / "a.sock"
    listener = UnixSocketListener(path, echo, most=1)

    def served() -> bool:
        try:
            return said(path, b"words") == b"words"
        except LinkError:
            return False

    try:
        with unix_socket.connect(path, 10.0):
            wait_until(lambda: not served())
        wait_until(served)
    finally:
        listener.close()
