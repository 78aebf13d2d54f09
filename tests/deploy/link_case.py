"""A small consortium for tests of the link: certificates of every kind, a server, sites in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.client import CallFailed, LinkRequest, SiteConnection
from secfed.deploy.transport.dispatch import StageDispatcher, Watcher
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.grpc.peer import TlsFiles
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ClientLimits, ServerLimits
from secfed.deploy.transport.study_server import Offer, StudyServer

STUDY = "breast-cancer-0123"
CAP = 8 << 20
SITES = ("hospital-1", "hospital-2", "hospital-3")
FAST = ClientLimits(backoff_s=0.01, backoff_cap_s=0.05)


def echo(request: LinkRequest) -> Buffer:
    return bytes(request.frame)


_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A CA that signs whatever it is told to."""

    def __init__(self, name: str = "test CA") -> None:
        self._ca_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(
            self._name, self._ca_key, [], (x509.BasicConstraints(ca=True, path_length=0), _SIGNS), 30.0
        )

    @cached_property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def site(self, name: str, *, days: float = 30.0) -> TlsFiles:
        names = [x509.UniformResourceIdentifier(f"secfed:site:{name}")]
        return self.issue(names, ExtendedKeyUsageOID.CLIENT_AUTH, days=days)

    def aggregator(self) -> TlsFiles:
        names = [x509.DNSName("localhost"), x509.UniformResourceIdentifier("secfed:aggregator")]
        return self.issue(names, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue(
        self, names: Sequence[x509.GeneralName], usage: x509.ObjectIdentifier, *, days: float = 30.0
    ) -> TlsFiles:
        """A negative number of days is a certificate that expired so long ago."""
        tls_key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a party")])
        extensions = (
            x509.BasicConstraints(ca=False, path_length=None),
            x509.ExtendedKeyUsage([usage]),
        )
        certificate = self._sign(subject, tls_key, names, extensions, days)
        private = tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return TlsFiles(self.pem, certificate.public_bytes(Encoding.PEM), private)

    def _sign(
        self,
        subject: x509.Name,
        owner: ec.EllipticCurvePrivateKey,
        names: Sequence[x509.GeneralName],
        extensions: Sequence[x509.ExtensionType],
        days: float,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(owner.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        # Python 3.13 wants both identifiers, as RFC 5280 does.
        subject_id = x509.SubjectKeyIdentifier.from_public_key(owner.public_key())
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key())
        builder = builder.add_extension(subject_id, critical=False).add_extension(issuer_id, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._ca_key, SHA256())


AUTHORITY = Authority()


@dataclass
class Watched(Watcher):
    """A watcher that remembers."""

    refusals: list[tuple[str, str, str, str]] = field(default_factory=list)
    missed: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[str, int, int]] = field(default_factory=list)

    def progress(self, stage: str, done: int, asked: int) -> None:
        self.steps.append((stage, done, asked))

    def refused(self, stage: str, site: str, kind: str, reason: str) -> None:
        self.refusals.append((stage, site, kind, reason))

    def missing(self, stage: str, site: str) -> None:
        self.missed.append((stage, site))


@dataclass
class Consortium:
    """A running server, and what is needed to dial it."""

    server: LinkServer
    links: list[GrpcSiteConnection] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[CallFailed] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"localhost:{self.server.port}"

    def dial(
        self,
        tls: TlsFiles | str,
        *,
        study: str = STUDY,
        cap: int = CAP,
        limits: ClientLimits = FAST,
        proxy: str | None = None,
        address: str | None = None,
    ) -> GrpcSiteConnection:
        """A site's link; a name stands for a good certificate of that site."""
        files = AUTHORITY.site(tls) if isinstance(tls, str) else tls
        link = GrpcSiteConnection(
            address or self.address, files, study=study, max_frame_bytes=cap, proxy=proxy, limits=limits
        )
        self.links.append(link)
        return link

    def run(
        self, site: str, handle: Callable[[LinkRequest], Buffer], **options: object
    ) -> GrpcSiteConnection:
        """Serve requests as this site, in a thread."""
        link = self.dial(site, **options)  # type: ignore[arg-type]
        self.threads.append(serving(link, handle, self.failures))
        return link

    def run_all(self, handle: Callable[[LinkRequest], Buffer] = echo, sites: Sequence[str] = SITES) -> None:
        """Serve requests as each of these sites."""
        for site in sites:
            self.run(site, handle)

    def link(self, seconds: float = 120.0, **options: object) -> StageDispatcher:
        """The aggregator's link with one deadline for all stages."""
        return StageDispatcher(self.server, lambda _stage: seconds, **options)  # type: ignore[arg-type]

    def collect(self, requests: dict[str, Buffer], **options: Any) -> dict[str, bytes]:
        return collect(self.server, requests, **options)


def collect(
    server: StudyServer,
    requests: dict[str, Buffer],
    *,
    stage: str = "train",
    seconds: float = 600.0,  # of a machine that is very busy
    watcher: Watcher | None = None,
) -> dict[str, bytes]:
    """Ask, and copy the replies."""
    replies: dict[str, bytes] = {}

    def on_reply(site: str, reply: Buffer) -> None:
        assert site not in replies
        replies[site] = bytes(reply)

    StageDispatcher(server, lambda _stage: seconds, watcher=watcher).ask(stage, requests, on_reply)
    return replies


def unlike(replies: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Sites whose reply is wrong or missing; of the frames themselves pytest would print megabytes."""
    sites = sorted({*replies, *expected})
    return [site for site in sites if replies.get(site) != expected.get(site)]


def serving(
    link: SiteConnection, handle: Callable[[LinkRequest], Buffer], failures: list[CallFailed]
) -> threading.Thread:
    """A thread in which this site answers."""
    options = {"failed": failures.append}
    thread = threading.Thread(target=link.serve, args=(handle,), kwargs=options, daemon=True)
    thread.start()
    return thread


@contextmanager
def consortium(
    *,
    sites: Sequence[str] = SITES,
    cap: int = CAP,
    settings: bytes = b"[study]\n",
    limits: ServerLimits | None = None,
    port: int = 0,
    removed: Sequence[str] = (),
) -> Iterator[Consortium]:
    """A server with the sites in its roster; everything is closed at the end."""
    offer = Offer(STUDY, settings, cap)
    server = LinkServer(f"localhost:{port}", AUTHORITY.aggregator(), sites, offer, limits, removed=removed)
    server.start()
    made = Consortium(server)
    try:
        yield made
    finally:
        for link in made.links:
            link.close()
        for thread in made.threads:
            thread.join(60)
            assert not thread.is_alive()
        made.server.stop()


def wait_until(condition, seconds=300.0):  # of a machine that is very busy
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def asking(
    c: Consortium, requests, seconds=20.0, **options
) -> tuple[threading.Thread, dict[str, bytes], Watched]:
    """An ask in another thread, so that the test can play the sites by hand."""
    replies: dict[str, bytes] = {}
    watched = Watched()
    link = c.link(seconds, watcher=watched, **options)

    def on_reply(site, reply):
        replies[site] = bytes(reply)

    thread = threading.Thread(target=link.ask, args=("mask", requests, on_reply), daemon=True)
    thread.start()
    return thread, replies, watched


def fetch(link) -> LinkRequest:
    """Poll until there is a request."""
    while True:
        request = link.next()
        if request is not None:
            return request
