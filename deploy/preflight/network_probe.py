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
from secfed.deploy.preflight.checks import (
    PreflightCheck,
    membership_check,
    served_check,
    served_roster_check,
    skipped,
)
from secfed.deploy.preflight.route_check import (
    Proxy,
    Route,
    Shown,
    Trouble,
    connection_check,
    name_check,
    proxy_check,
    tls_check,
)
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.messages import HelloReply
from secfed.errors import LinkError

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
    pinned: bytes = b"",
    environment: Mapping[str, str] = os.environ,
    patience_s: float = _PATIENCE_S,
) -> list[PreflightCheck]:
    """Everything from the name to what is served; what comes after a failure is not looked at."""
    route = Route.of(address, proxy, environment)
    steps: dict[str, Callable[[], PreflightCheck]] = {
        "proxy": lambda: proxy_check(route, environment),
        "name": lambda: _resolve(route),
        "connection": lambda: connection_check(route, *_connect(route, patience_s)),
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
    checks += [membership_check(answer), served_check(answer, wanted), served_roster_check(answer, pinned)]
    return checks


def _resolve(route: Route) -> PreflightCheck:
    host, port = (route.host, route.port) if route.proxy is None else (route.proxy.host, route.proxy.port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return name_check(host, (), error.strerror or "")
    except UnicodeError:  # an empty or overlong label
        return name_check(host, ())
    return name_check(host, (str(entry[4][0]) for entry in found))


class _Denied(Exception):
    """The proxy does not open the way."""

    def __init__(self, trouble: Trouble, detail: str) -> None:
        self.trouble, self.detail = trouble, detail


def _dial(route: Route, patience_s: float) -> socket.socket:
    """A connection to the aggregator, over the proxy if there is one."""
    proxy = route.proxy
    where = (route.host, route.port) if proxy is None else (proxy.host, proxy.port)
    with ExitStack() as unless_done:
        made = unless_done.enter_context(socket.create_connection(where, timeout=patience_s))
        if proxy is not None:
            _tunnel(made, route, proxy)
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
        raise _Denied(Trouble.PROXY_LOGIN, "")
    if not (len(status) == 3 and status.startswith("2")):
        raise _Denied(Trouble.PROXY_DENIES, f"HTTP {status}" if status.isdigit() else "no HTTP proxy there")


def _connect(route: Route, patience_s: float) -> tuple[Trouble | None, str]:
    try:
        _dial(route, patience_s).close()
    except _Denied as denied:
        return denied.trouble, denied.detail
    except TimeoutError:
        return Trouble.SILENT, ""
    except ConnectionRefusedError:
        # A proxy that refuses is not an aggregator that is away.
        return (Trouble.REFUSED, "") if route.proxy is None else (Trouble.PROXY_DENIES, "it refuses")
    except OSError as error:
        if error.errno in _UNREACHABLE:
            return Trouble.UNREACHABLE, os.strerror(error.errno)
        return Trouble.SILENT, "" if error.errno is None else os.strerror(error.errno)
    return None, ""


def _shake_hands(route: Route, authority: x509.Certificate, patience_s: float) -> Shown:
    """The handshake as the agent wants it; where it fails, once more without demands, to see who is there."""
    strict = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    strict.minimum_version = ssl.TLSVersion.TLSv1_3
    strict.load_verify_locations(cadata=certificate_checks.to_pem(authority))
    try:
        return replace(_handshake(strict, route, patience_s), verified=True)
    except (OSError, _Denied, ValueError) as error:
        why = _why(error)
    curious = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    curious.check_hostname, curious.verify_mode = False, ssl.CERT_NONE  # nothing is said over it
    try:
        return replace(_handshake(curious, route, patience_s), why=why)
    except (OSError, _Denied, ValueError):
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
