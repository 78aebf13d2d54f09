"""What tests of a hostile network share: nobody else notices, and memory stays where it is."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secfed.deploy.transport.grpc.peer import TlsFiles
from tests.deploy.link_case import AUTHORITY, SITES, Consortium, unlike

MIB = 1 << 20


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def unaffected(c: Consortium, grows_bytes: int = 64 * MIB, *, impatient: bool = False) -> Iterator[None]:
    """Two honest sites are served before, while and after the attack; memory does not follow its size.

    A server that is ``impatient`` for the test's sake may, on a busy machine, cut off an honest call too; the
    site calls again.
    """
    if not c.threads:
        c.run_all(sites=SITES[1:])
    honest = dict.fromkeys(SITES[1:], os.urandom(2 * MIB))
    assert unlike(c.collect(honest), honest) == []
    before = rss_bytes()
    failures = len(c.failures)
    yield
    assert unlike(c.collect(honest), honest) == []
    assert rss_bytes() - before < grows_bytes
    assert impatient or len(c.failures) == failures


def tls_context(version: ssl.TLSVersion, files: TlsFiles, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    (folder / "site.pem").write_bytes(files.certificate + files.private_key)
    context.load_cert_chain(folder / "site.pem")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    return context


def shake(port: int, version: ssl.TLSVersion, folder: Path) -> str | None:
    """The TLS version of a connection of a good site that offers only this one; None if it is refused."""
    context = tls_context(version, AUTHORITY.site(SITES[0]), folder)
    with socket.create_connection(("localhost", port), timeout=60) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as secured:
                return secured.version()
        except OSError:
            return None
