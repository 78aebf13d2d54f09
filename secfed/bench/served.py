"""An aggregator in this process and all sites as threads of another one, over mutual TLS on one machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
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
