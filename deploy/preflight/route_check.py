"""The way from a hospital to the aggregator: which one the agent takes, and who is at its end.

Pure functions; the probing is in ``network_probe.py``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import unquote, urlsplit

from cryptography import x509

from secfed.deploy.pki import certificate_checks
from secfed.deploy.pki.certificate_checks import Expiry, Urgency
from secfed.deploy.preflight.checks import PreflightCheck, failed, passed
from secfed.deploy.transport.study_server import printable
from secfed.errors import ConfigError, LinkError

_SCHEME: Final = "http"


@dataclass(frozen=True, repr=False)
class Proxy:
    """An HTTP proxy on the way out."""

    host: str
    port: int
    source: str  # the setting that names it
    credentials: str = ""  # user:password. Security: never shown
    scheme: str = _SCHEME  # gRPC passes over every other

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port}, {self.source})"


@dataclass(frozen=True)
class Route:
    """Where the agent dials, and through what."""

    host: str
    port: int
    proxy: Proxy | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the aggregator."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, address: str, proxy: str | None, environment: Mapping[str, str]) -> Route:
        """The way that the agent takes, found as gRPC finds it."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        named = {"aggregator.proxy of site.toml": proxy}
        named |= {name: environment.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")}
        source, url = next(((name, value) for name, value in named.items() if value), ("", ""))
        excepted = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
        if not url or _excepted(host, excepted):
            return cls(host, int(port))
        return cls(host, int(port), _proxy(url, source))


def _proxy(url: str, source: str) -> Proxy:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 80
    credentials = unquote(parts.netloc.rpartition("@")[0])
    return Proxy(parts.hostname or "", port, source, credentials, parts.scheme)


def _excepted(host: str, listed: str) -> bool:
    for item in (entry.strip() for entry in listed.split(",")):
        name = item.lstrip(".")
        if name and (host == name or host.endswith(f".{name}")):
            return True
        try:
            if name and ipaddress.ip_address(host) in ipaddress.ip_network(item, strict=False):
                return True
        except ValueError:
            continue  # names are not addresses
    return False


def proxy_check(route: Route, environment: Mapping[str, str]) -> PreflightCheck:
    """Which way out is taken, and whether somebody meant another."""
    proxy = route.proxy
    if proxy is not None and proxy.scheme != _SCHEME:
        detail = f"{proxy.source} begins with {proxy.scheme}://, which gRPC passes over: it dials directly"
        remedy = f"write http://{proxy.host}:{proxy.port}; what goes through it is encrypted all the same"
        return failed("proxy", detail, remedy)
    if proxy is not None:
        return passed("proxy", f"{proxy.host}:{proxy.port}, from {proxy.source}")
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        if environment.get(name):
            detail = f"none; {name} is set, and only names in lower case count"
            remedy = (
                f"if there is no way out without it: set {name.lower()}, or aggregator.proxy in site.toml"
            )
            return passed("proxy", detail, remedy)
    return passed("proxy", "none")


@dataclass(frozen=True)
class Shown:
    """What the other side showed in a TLS handshake."""

    certificate: x509.Certificate | None  # None if there was no handshake at all
    version: str = ""
    verified: bool = False  # whether it came about as the agent wants it: TLS 1.3, the CA, the name
    http2: bool = False
    why: str = ""  # the TLS library's words, if it was not verified


def tls_check(route: Route, shown: Shown, authority: x509.Certificate, now: datetime) -> PreflightCheck:
    """Whether the aggregator is at the other end, and nobody in between."""
    found = shown.certificate
    if found is None:
        detail = f"what answers at {route.address} does not speak TLS{f' ({shown.why})' if shown.why else ''}"
        remedy = "check the port; a load balancer must pass TCP through; a portal may want a log-in first"
        return failed("TLS", detail, remedy, LinkError)
    if not _issued(found, authority):
        return failed("TLS", *_somebody_else(route, found), LinkError)
    try:
        certificate_checks.check_issued(found, authority, now)
    except ConfigError as error:
        remedy = "is this machine's date right? then the study centre renews: "
        return failed("TLS", error.message, remedy + "secfed consortium renew aggregator", LinkError)
    if shown.verified and shown.http2:
        expiry = Expiry.of(found, now)
        soon = expiry.urgency is not Urgency.FINE
        remedy = "the study centre renews its certificate before that day" if soon else ""
        detail = f"{shown.version}, certificate of this consortium for {route.host}, {expiry.describe()}"
        return passed("TLS", detail, remedy)
    names = _names(found)
    if not shown.verified and route.host not in names:
        detail = f"the aggregator's certificate is for {', '.join(names) or 'no name'}, not for {route.host}"
        return failed("TLS", detail, "dial one of these names: aggregator.address in site.toml", LinkError)
    what = shown.why or f"{shown.version or 'no version'} without HTTP/2"
    remedy = "what is in between must pass TCP through unchanged; else update secfed on both sides"
    return failed("TLS", f"no connection over TLS 1.3 and HTTP/2: {what}", remedy, LinkError)


def _somebody_else(route: Route, found: x509.Certificate) -> tuple[str, str]:
    """Who answers instead of the aggregator, and the remedy."""
    issuer = printable(found.issuer.rfc4514_string())[:200] or "without a name"
    if certificate_checks.is_aggregator(found):
        remedy = (
            "check name and port; a consortium that was founded anew needs a new folder: secfed site init"
        )
        return f"the aggregator of another consortium answers (issuer {issuer})", remedy
    remedy = f"ask for an exception: connections to {route.address} must not be opened"
    return f"a proxy opens TLS (issuer {issuer})", remedy


def _issued(found: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        found.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - whatever a stranger's certificate makes the library say, it is not ours
        return False
    return True


def _names(found: x509.Certificate) -> list[str]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    listed = [*names.get_values_for_type(x509.DNSName)]
    return listed + [str(address) for address in names.get_values_for_type(x509.IPAddress)]
