"""Mail and web servers of this machine, which keep what they are given, or fail as they are told."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from secfed.deploy.enrolment.site_folder import SiteFolder

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class WebServer(ThreadingHTTPServer):
    """Keeps POSTs; answers them with ``status``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.status, self.location = 204, ""
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.asked]


class _Post(BaseHTTPRequestHandler):
    server: WebServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def do_GET(self) -> None:  # what a redirect would become
        self.server.asked.append((self.path, dict(self.headers), b"{}"))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


class MailServer(socketserver.ThreadingTCPServer):
    """Just enough of SMTP: EHLO, STARTTLS, AUTH PLAIN, MAIL, RCPT, DATA; ``refuse`` are codes by verb."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.tls, self.port = tls, self.server_address[1]
        self.refuse: dict[str, int] = {}
        self.mails: list[EmailMessage] = []
        self.said: list[str] = []
        self.in_the_clear: list[str] = []


class _Smtp(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        with self.request.makefile("rwb") as stream:
            self._say(stream, "220 here")
            if not self._talk(stream, is_open=True):
                return
        assert self.server.tls is not None
        try:
            wrapped = self.server.tls.wrap_socket(self.request, server_side=True)
        except OSError:  # the client does not trust it
            return
        with wrapped, wrapped.makefile("rwb") as stream:
            self._talk(stream, is_open=False)

    def _talk(self, stream: Any, *, is_open: bool) -> bool:
        """Until the client leaves, or (true) asks for TLS."""
        server = self.server
        while line := stream.readline().decode().strip():
            verb = line.partition(" ")[0].upper()
            server.said.append(line)
            if is_open:
                server.in_the_clear.append(verb)
            if verb in server.refuse:
                self._say(stream, f"{server.refuse[verb]} no, patient 4711")
            elif verb == "EHLO":
                more = ["STARTTLS"] if server.tls is not None and is_open else []
                names = ["here", *more, "AUTH PLAIN"]
                for name in names[:-1]:
                    self._say(stream, f"250-{name}")
                self._say(stream, f"250 {names[-1]}")
            elif verb == "STARTTLS" and server.tls is not None:
                self._say(stream, "220 go ahead")
                return True
            elif verb == "DATA":
                self._say(stream, "354 go on")
                data = b""
                while (part := stream.readline()) not in (b".\r\n", b""):
                    data += part
                mail = message_from_bytes(data, policy=policy.default)
                assert isinstance(mail, EmailMessage)
                server.mails.append(mail)
                self._say(stream, "250 taken")
            elif verb == "QUIT":
                self._say(stream, "221 bye")
                return False
            else:
                self._say(stream, "235 welcome" if verb == "AUTH" else "250 fine")
        return False

    def _say(self, stream: Any, text: str) -> None:
        stream.write(f"{text}\r\n".encode())
        stream.flush()


@contextmanager
def served(server: Any) -> Iterator[Any]:
    """A server at work."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tls_of(folder: Path, name: str = "127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for an address of this machine, and the file that its clients trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(name))]), critical=False)
        .sign(key, SHA256())
    )
    trusted, private = folder / f"{name}.pem", folder / f"{name}-key.pem"
    trusted.write_bytes(certificate.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, private)
    return context, trusted


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def configure(site: SiteFolder, text: str) -> SiteFolder:
    """The site with these sections instead of what it had."""
    path = site.folder / "site.toml"
    kept = re.split(r"(?m)^\[(?:notifications|webhook|email)\]", path.read_text())[0]
    path.write_text(kept + text)
    return SiteFolder(site.folder)


def mailing(server: MailServer) -> str:
    """``[email]`` of this server."""
    return (
        f'[email]\nhost = "127.0.0.1"\nport = {server.port}\nstarttls = false\n'
        'sender = "secfed@uk.example"\nto = ["it@uk.example"]\n'
    )
