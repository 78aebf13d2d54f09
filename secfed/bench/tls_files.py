"""Certificates of one aggregator and some sites, for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from secfed.bench.processes import HOST
from secfed.deploy.pki.certificates import Authority
from secfed.deploy.transport.grpc.peer import TlsFiles


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
