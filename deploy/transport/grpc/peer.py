"""Who is calling, and over what: read from the TLS connection before anything of the call is parsed.

gRPC's core verifies the certificate's chain and dates when a connection is made. Here every call is checked
again: TLS 1.3, one certificate of a *site*, in the roster of this study, not expired since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

# Read by gRPC's core when it is first imported, so every module of the link takes `grpc` from here. Python
# reaches no switch for the least TLS version; but this list governs TLS 1.2 only, and a cipher for
# pre-shared keys, of which there are none, leaves TLS 1.2 nothing to agree on. Where something else has
# imported gRPC before, TLS 1.2 connects, and `PeerAuthenticator.caller` refuses every call over it.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
# Every failed handshake would be a line on stderr, written by whoever cares to knock.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from secfed.deploy.pki.certificate_checks import expired, load, site_of
from secfed.deploy.pki.tls_folder import TlsFiles
from secfed.deploy.policy.absence import REMOVED_TEXT
from secfed.errors import ConfigError, PolicyRefused

__all__ = ["PeerAuthenticator", "TlsFiles", "channel_credentials", "grpc", "readable", "server_credentials"]

AuthContext = Mapping[str, Sequence[bytes]]


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """For the aggregator: a client without a certificate of this CA gets no connection."""
    pair = [(tls.private_key, tls.certificate)]
    return grpc.ssl_server_credentials(pair, tls.authority, require_client_auth=True)


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """For a site."""
    return grpc.ssl_channel_credentials(tls.authority, tls.private_key, tls.certificate)


def readable(text: str) -> str:
    """What gRPC says, with IPv6 addresses as people write them: it gives ``%5B::1%5D`` for ``[::1]``."""
    return text.replace("%5B", "[").replace("%5D", "]")


class PeerAuthenticator:
    """Tells the site behind a call."""

    def __init__(
        self,
        sites: Collection[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        removed: Collection[str] = (),
    ) -> None:
        self._sites, self._now, self._removed = frozenset(sites), now, frozenset(removed)

    def caller(self, connection: AuthContext) -> str:
        """The site at the other end of a connection, or ``PolicyRefused``."""
        if connection.get("ssl_tls_version") != [b"TLSv1.3"]:
            raise PolicyRefused("the connection is not TLS 1.3", remedy="use a current grpcio on both sides")
        pems = connection.get("x509_pem_cert") or []
        if len(pems) != 1:
            raise PolicyRefused("the connection has no client certificate")
        try:
            certificate = load(pems[0], "the client certificate")
            site = site_of(certificate)
        except ConfigError as error:
            raise PolicyRefused(error.message, remedy=error.remedy) from None
        # The site reads this: to it, the clock is not that of "this machine".
        if over := expired(certificate, self._now(), "the clock of the study centre's machine"):
            raise PolicyRefused(f"the certificate of site {site!r} {over}", remedy="renew it")
        if site in self._removed - self._sites:
            raise PolicyRefused(f"site {site!r} {REMOVED_TEXT}", remedy="ask the study centre")
        if site not in self._sites:
            raise PolicyRefused(
                f"site {site!r} is not in the roster of the study that is served", remedy="have it admitted"
            )
        return site
