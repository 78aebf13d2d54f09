"""The limit of the link: the same bytes over bare TLS 1.3 sockets, without frames, hashes or names."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from secfed.bench.processes import HOST, other_process
from secfed.deploy.transport.grpc.peer import TlsFiles

_CHUNK = 1 << 20


def _context(purpose: ssl.Purpose, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cadata=files.authority.decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pair.pem"
        path.touch(0o600)
        path.write_bytes(files.certificate + files.private_key)
        context.load_cert_chain(path)
    return context


def _bare_sites(pipe: Connection, port: int, sites: Sequence[TlsFiles], size_bytes: int, trips: int) -> None:
    def one(files: TlsFiles) -> None:
        context = _context(ssl.Purpose.SERVER_AUTH, files)
        with (
            socket.create_connection((HOST, port)) as raw,
            context.wrap_socket(raw, server_hostname=HOST) as secured,
        ):
            secured.recv(1)
            for _ in range(trips):
                _carry(secured, size_bytes, receive_first=True)

    threads = [threading.Thread(target=one, args=(files,)) for files in sites]
    for thread in threads:
        thread.start()
    pipe.recv()


def bare_tls(
    aggregator: TlsFiles, sites: dict[str, TlsFiles], size_bytes: int, trips: int, count: int
) -> float:
    """Seconds for ``trips`` of a frame there and back over TLS sockets, ``count`` sites at once.

    An empty frame is a byte on the socket.
    """
    context = _context(ssl.Purpose.CLIENT_AUTH, aggregator)
    chosen = list(sites.values())[:count]
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with other_process(_bare_sites, port, chosen, size_bytes, trips):
            peers = [context.wrap_socket(listener.accept()[0], server_side=True) for _ in chosen]

            def one(peer: ssl.SSLSocket) -> None:
                peer.send(b"x")
                for _ in range(trips):
                    _carry(peer, size_bytes, receive_first=False)

            threads = [threading.Thread(target=one, args=(peer,)) for peer in peers]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            taken = time.perf_counter() - start
            for peer in peers:
                peer.close()
            return taken


def _carry(peer: ssl.SSLSocket, size_bytes: int, *, receive_first: bool) -> None:
    """One frame in, one out, in this order or the other."""
    buffer = memoryview(bytearray(_CHUNK))
    for receive in (receive_first, not receive_first):
        left = max(1, size_bytes)
        while left:
            piece = buffer[: min(left, _CHUNK)]
            left -= peer.recv_into(piece) if receive else peer.send(piece)
