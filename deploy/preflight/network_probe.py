"""What `secfed site check` finds out on the network: a name, a connection, a handshake, one question.

Every step opens a connection of its own and closes it. The handshake is made without the site's certificate:
in TLS 1.3 the server's comes first. The question is asked as the agent asks it, with the site's certificate
and with ``looks`` set, so that the aggregator does not take this site for being there.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from cryptography import x509

from secfed import __version__
from secfed.deploy.pki import certificate_checks
from secfed.deploy.pki.tls_folder import TlsFiles
from secfed.deploy.preflight.checks import PreflightCheck, failed, passed, skipped
from secfed.deploy.preflight.route_check import Proxy, Route, Shown, proxy_check, tls_check
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.messages import HelloReply
from secfed.deploy.transport.study_server import printable
from secfed.errors import LinkError, RosterError

_PATIENCE_S: Final = 10.0
_MAX_HEAD_BYTES: Final = 1 << 14
_UNREACHABLE: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM)


def network_checks(
    address: str,
    proxy: str | None,
    authority: x509.Certificate,
    material: TlsFiles | None,
    now: datetime,
    *,
    wanted: str = "",
    roster_of: Callable[[str], bytes] = lambda _study: b"",
    environment: Mapping[str, str] = os.environ,
    patience_s: float = _PATIENCE_S,
) -> list[PreflightCheck]:
    """Everything from the name to what is served; what comes after a failure is not looked at."""
    route = Route.of(address, proxy, environment)
    steps: dict[str, Callable[[], PreflightCheck]] = {
        "proxy": lambda: proxy_check(route, environment),
        "name": lambda: _name_check(route),
        "connection": lambda: _connection_check(route, patience_s),
        "TLS": lambda: tls_check(route, _shake_hands(route, authority, patience_s), authority, now),
    }
    checks: list[PreflightCheck] = []
    why = ""
    for name, step in steps.items():
        checks.append(skipped(name, why) if why else step())
        if checks[-1].ok is False:
            why = f"{name} failed"
    if why or material is None:
        why = why or "the site's TLS key cannot be used"
        return checks + [skipped(name, why) for name in ("membership", "served", "served roster")]
    answer = _ask(address, proxy, material, patience_s)
    checks += [membership_check(answer), served_check(answer, wanted), served_roster_check(answer, roster_of)]
    return checks


def _name_check(route: Route) -> PreflightCheck:
    """Whether the name of what is dialled first resolves."""
    first = route.proxy or route
    try:
        found = socket.getaddrinfo(first.host, first.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # of Unicode: an empty or overlong label
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        remedy = "check the spelling, this machine's DNS, and aggregator in site.toml"
        return failed("name", f"{first.host}: does not resolve{why}", remedy, LinkError)
    addresses = sorted({str(entry[4][0]) for entry in found})
    return passed("name", f"{first.host} is {', '.join(addresses[:4])}")


def _dial(route: Route, patience_s: float) -> socket.socket:
    """A connection to the aggregator, over the proxy if there is one; ``LinkError`` if that denies it."""
    first = route.proxy or route
    with ExitStack() as unless_done:
        made = unless_done.enter_context(
            socket.create_connection((first.host, first.port), timeout=patience_s)
        )
        if route.proxy is not None:
            _tunnel(made, route, route.proxy)
        unless_done.pop_all()
        return made


def _tunnel(made: socket.socket, route: Route, proxy: Proxy) -> None:
    login = ""
    if proxy.credentials:
        login = f"Proxy-Authorization: Basic {base64.b64encode(proxy.credentials.encode()).decode()}\r\n"
    made.sendall(f"CONNECT {route.address} HTTP/1.1\r\nHost: {route.address}\r\n{login}\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        more = made.recv(1)  # not one byte of what comes after the head
        if not more or len(head) > _MAX_HEAD_BYTES:
            break
        head += more
    answer = re.match(rb"HTTP/[^ \r\n]* ([^ \r\n]*)", head)
    status = answer[1].decode("latin-1") if answer else ""
    if status == "407":
        remedy = "put user:password@ into https_proxy, or ask for a rule without a password"
        raise LinkError("the proxy wants a name and password (407)", remedy=remedy)
    if not (len(status) == 3 and status.startswith("2")):
        raise _denied(route, f"HTTP {status}" if status.isdigit() else "no HTTP proxy there")


def _denied(route: Route, why: str) -> LinkError:
    remedy = f"ask for a rule of the proxy: CONNECT {route.address}"
    return LinkError(f"the proxy does not let it through ({why})", remedy=remedy)


def _connection_check(route: Route, patience_s: float) -> PreflightCheck:
    """Whether TCP comes through, over the proxy if there is one."""
    proxy, way = route.proxy, route.address
    if proxy is not None:
        way += f" over the proxy {proxy.host}:{proxy.port}"
    try:
        _dial(route, patience_s).close()
    except OSError as error:
        trouble = _trouble(error, route)
    except LinkError as error:
        trouble = error
    else:
        return passed("connection", way)
    return failed("connection", f"{way}: {trouble.message}", trouble.remedy, LinkError)


def _trouble(error: OSError, route: Route) -> LinkError:
    """Why no connection came about."""
    known_port = f"to {route.host}, TCP port {route.port}, outgoing"
    if isinstance(error, ConnectionRefusedError):
        if route.proxy is not None:  # a proxy that refuses is not an aggregator that is away
            return _denied(route, "it refuses")
        remedy = "no study is served now, or the port is wrong: ask the study centre"
        return LinkError("nothing listens there now", remedy=remedy)
    why = f" ({os.strerror(error.errno)})" if error.errno and not isinstance(error, TimeoutError) else ""
    if error.errno in _UNREACHABLE:
        remedy = f"check this machine's network and routes; it must come {known_port}"
        return LinkError(f"no way there{why}", remedy=remedy)
    return LinkError(f"no answer{why}", remedy=f"ask for a rule of the firewall: {known_port}")


def _shake_hands(route: Route, authority: x509.Certificate, patience_s: float) -> Shown:
    """The handshake as the agent wants it; where it fails, once more without demands, to see who is there."""
    strict = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    strict.minimum_version = ssl.TLSVersion.TLSv1_3
    strict.load_verify_locations(cadata=certificate_checks.to_pem(authority))
    try:
        return replace(_handshake(strict, route, patience_s), verified=True)
    except (OSError, LinkError, ValueError) as error:
        why = _why(error)
    curious = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    curious.check_hostname, curious.verify_mode = False, ssl.CERT_NONE  # nothing is said over it
    try:
        return replace(_handshake(curious, route, patience_s), why=why)
    except (OSError, LinkError, ValueError):
        return Shown(None, why=why)


def _handshake(context: ssl.SSLContext, route: Route, patience_s: float) -> Shown:
    context.set_alpn_protocols(["h2"])
    with _dial(route, patience_s) as plain, context.wrap_socket(plain, server_hostname=route.host) as secured:
        certificate = None
        with suppress(ValueError):  # a stranger's certificate can be anything
            certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        http2 = secured.selected_alpn_protocol() == "h2"
        return Shown(certificate, secured.version() or "", http2=http2)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or "").lower().replace("_", " ")
    return "no answer" if isinstance(error, TimeoutError) else ""


def _ask(address: str, proxy: str | None, material: TlsFiles, patience_s: float) -> HelloReply | LinkError:
    limits = ClientLimits(call_s=patience_s)
    link = GrpcSiteConnection(address, material, proxy=proxy, software=f"secfed {__version__}", limits=limits)
    with closing(link):
        try:
            return link.hello(looks=True)
        except LinkError as error:
            return error


def membership_check(answer: HelloReply | LinkError) -> PreflightCheck:
    """Whether the aggregator takes this site for a member."""
    if isinstance(answer, HelloReply):
        return passed("membership", "the aggregator knows this site's certificate and has it in its roster")
    kind = RosterError if answer.message.startswith("permission denied") else LinkError
    return failed("membership", answer.message, answer.remedy, kind)


def served_check(answer: HelloReply | LinkError, wanted: str = "") -> PreflightCheck:
    """What is served now; ``wanted`` is the id of the study that the administrator asks about, or empty."""
    if isinstance(answer, LinkError):
        return skipped("served", "the aggregator did not say")
    study, digest = _split(answer.study)
    what = f"{study}, digest {digest[:16]}{', which is finished' if answer.finished else ''}"
    if not wanted or answer.study == wanted:
        return passed("served", what)
    name, version = _split(wanted)
    if name != study:
        return passed("served", f"{what}; {name} is not served now")
    detail = f"{what}: another version than this file, {version[:16]}"
    return failed("served", detail, "ask the study centre for the file as it is served")


def served_roster_check(answer: HelloReply | LinkError, roster_of: Callable[[str], bytes]) -> PreflightCheck:
    """Whether the aggregator uses the roster that this site uses for the study; empty if none is pinned."""
    name = "served roster"
    if isinstance(answer, LinkError):
        return skipped(name, "the aggregator did not say")
    pinned = roster_of(answer.study)
    if not pinned:
        return skipped(name, "no roster is pinned here")
    if answer.finished:
        return skipped(name, "the study is over")
    if answer.roster == pinned:
        return passed(name, f"the aggregator uses the pinned one, digest {pinned.hex()[:16]}")
    if not answer.roster:
        remedy = "all parties of a study run the same version of secfed"
        return failed(name, "the aggregator does not say which roster it uses", remedy, RosterError)
    return failed(
        name,
        f"the aggregator uses {answer.roster.hex()[:16]}, and {pinned.hex()[:16]} is pinned here; the agent "
        "refuses the study",
        "get the new roster from the study centre, compare its digest and pin it: secfed site trust ROSTER",
        RosterError,
    )


def _split(study: str) -> tuple[str, str]:
    name, _, digest = study.rpartition("-")
    return printable(name)[:200], printable(digest)[:200]
