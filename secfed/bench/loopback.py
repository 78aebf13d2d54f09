"""An aggregator in this process and all sites as threads of another one, over mutual TLS on one machine.

The limit of this link is the same bytes over bare TLS 1.3 sockets, without frames, hashes or names.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from secfed.bench.processes import HOST, other_process
from secfed.crypto.codec import Buffer
from secfed.deploy.pki.certificates import Authority
from secfed.deploy.transport.client import LinkRequest
from secfed.deploy.transport.dispatch import StageDispatcher
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.grpc.peer import TlsFiles
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.study_server import Offer

_STUDY = "bench"
_WAIT_S = 1800.0

Handler = Callable[[LinkRequest], Buffer]


class TlsConsortium:
    """Certificates of one aggregator and some sites."""

    def __init__(self, sites: Sequence[str]) -> None:
        now = datetime.now(UTC)
        authority = Authority.create(ec.generate_private_key(ec.SECP256R1()), "bench", [HOST], now)
        ca = authority.certificate.public_bytes(Encoding.PEM)

        def files(issue: Callable[[ec.EllipticCurvePublicKey], Any]) -> TlsFiles:
            tls_key = ec.generate_private_key(ec.SECP256R1())
            private = tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            return TlsFiles(ca, issue(tls_key.public_key()).public_bytes(Encoding.PEM), private)

        self.aggregator = files(lambda public: authority.issue_aggregator([HOST], public, now, 1))
        self.sites = {
            name: files(lambda public, name=name: authority.issue_site(name, public, now, 1))  # type: ignore[misc]
            for name in sites
        }


def same_answers(names: tuple[str, ...], reply_bytes: int) -> Mapping[str, Handler]:
    """Sites that answer everything alike; here, so that their process need not import torch."""
    reply = bytes(reply_bytes)
    return {name: lambda _request: reply for name in names}


@contextmanager
def served(
    aggregator: TlsFiles,
    sites: Mapping[str, TlsFiles],
    longest: int,
    handlers: Callable[..., Mapping[str, Handler]],
    *arguments: Any,
    room: int = 1 << 30,
) -> Iterator[StageDispatcher]:
    """A link to all sites, whose handlers the other process makes with these arguments.

    ``longest`` is the largest frame, ``room`` the bytes of answers that are in memory at once.
    """
    offer = Offer(_STUDY, b"", longest)
    server = LinkServer(f"{HOST}:0", aggregator, tuple(sites), offer, ServerLimits(answers_bytes=room))
    port = server.start()
    try:
        with other_process(_serve, f"{HOST}:{port}", sites, longest, handlers, arguments):
            link = StageDispatcher(server, lambda _stage: _WAIT_S)
            link.wait_for(tuple(sites), len(sites), _WAIT_S)
            yield link
    finally:
        server.stop()


def _serve(
    pipe: Connection,
    address: str,
    sites: Mapping[str, TlsFiles],
    longest: int,
    handlers: Callable[..., Mapping[str, Handler]],
    arguments: tuple[Any, ...],
) -> None:
    links = []
    for name, handle in handlers(*arguments).items():
        links.append(GrpcSiteConnection(address, sites[name], study=_STUDY, max_frame_bytes=longest))
        threading.Thread(target=links[-1].serve, args=(handle,), daemon=True).start()
    pipe.recv()
    for link in links:
        link.close()


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
