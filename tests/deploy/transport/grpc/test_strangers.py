"""Who is let in: TLS 1.3, a certificate of the consortium, of a site, in the roster, for this study."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from secfed.deploy.transport.client import CallFailed
from secfed.deploy.transport.grpc.peer import PeerAuthenticator, TlsFiles
from secfed.deploy.transport.grpc.service import SERVICE
from secfed.errors import PolicyRefused
from tests.deploy.hostile_case import shake, unaffected
from tests.deploy.link_case import AUTHORITY, SITES, Authority, consortium

OTHER = Authority()  # another CA of the same name
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


def uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


STRANGERS = {
    "another CA": OTHER.site(SITES[0]),
    "expired": AUTHORITY.site(SITES[0], days=-1.0),
    "the aggregator's own": AUTHORITY.aggregator(),
    "a client's without a name": AUTHORITY.issue([], CLIENT),
    "a client's with another name": AUTHORITY.issue([uri("secfed:aggregator")], CLIENT),
    "a client's with two names": AUTHORITY.issue(
        [uri(f"secfed:site:{SITES[0]}"), uri(f"secfed:site:{SITES[1]}")], CLIENT
    ),
    "a site's name as host name": AUTHORITY.issue([x509.DNSName(f"secfed:site:{SITES[0]}")], CLIENT),
    "a site that is not in the roster": AUTHORITY.site("hospital-9"),
}


def test_a_stranger_gets_nothing_whatever_its_certificate():
    with consortium() as c, unaffected(c):
        for what, tls in STRANGERS.items():
            good_ca = TlsFiles(AUTHORITY.pem, tls.certificate, tls.private_key)
            link = c.dial(good_ca)
            for call in (link.hello, link.next, lambda link=link: link.answer(os.urandom(16), b"x")):
                with pytest.raises(CallFailed) as caught:
                    call()
                refused = "permission denied" in caught.value.message
                assert (
                    refused
                    or "handshake" in caught.value.message.lower()
                    or "unavailable" in (caught.value.message)
                ), what
        assert {site for site, seen in c.server.presence().items() if seen.silent_s is not None} == set(
            SITES[1:]
        )


def test_a_member_of_the_ca_that_is_not_in_the_roster_is_told_so():
    with consortium() as c:
        with pytest.raises(CallFailed, match="'hospital-9' is not in the roster") as caught:
            c.dial("hospital-9").hello()
        assert caught.value.lasting


def test_a_site_that_was_removed_is_told_so():
    with consortium(removed=["hospital-9", SITES[0]]) as c:
        with pytest.raises(CallFailed, match="'hospital-9' was removed from the roster") as caught:
            c.dial("hospital-9").hello()
        assert caught.value.lasting
        c.dial(SITES[0]).hello()  # which was admitted anew


def test_nothing_is_read_from_a_stranger_not_even_when_it_sends_nothing():
    with consortium() as c, unaffected(c):
        link = c.dial("hospital-9")
        asked = threading.Event()

        def silent() -> Iterator[bytes]:
            asked.wait(60)
            yield b""

        call = link._channel.stream_unary(f"/{SERVICE}/Hello").future(silent())
        assert call.exception(timeout=60).code() is grpc.StatusCode.PERMISSION_DENIED  # before any message
        asked.set()


def test_a_connection_without_a_certificate_is_refused():
    with consortium() as c, unaffected(c):
        credentials = grpc.ssl_channel_credentials(AUTHORITY.pem)
        with grpc.secure_channel(c.address, credentials) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Hello")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_aggregator_speaks_tls_1_3_only(tmp_path):
    # In a process of its own: another test may have imported gRPC before the link could say how.
    tls = AUTHORITY.aggregator()
    (tmp_path / "tls.json").write_text(
        json.dumps([part.decode() for part in (tls.authority, tls.certificate, tls.private_key)])
    )
    code = f"""
import json, sys
from secfed.deploy.transport.grpc.service import Offer
from secfed.deploy.transport.grpc.server import LinkServer, TlsFiles
tls = TlsFiles(*(part.encode() for part in json.load(open({str(tmp_path / "tls.json")!r}))))
server = LinkServer("localhost:0", tls, {SITES!r}, Offer("study", b"", 1000))
print(server.start(), flush=True)
sys.stdin.read()
server.stop()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        try:
            port = int(process.stdout.readline())
            assert shake(port, ssl.TLSVersion.TLSv1_3, tmp_path) == "TLSv1.3"
            assert shake(port, ssl.TLSVersion.TLSv1_2, tmp_path) is None
        finally:
            process.communicate("", timeout=60)
    assert process.returncode == 0


def test_a_call_over_tls_1_2_would_be_refused_too():
    pem = AUTHORITY.site(SITES[0]).certificate
    door = PeerAuthenticator(SITES)
    good = {"ssl_tls_version": [b"TLSv1.3"], "x509_pem_cert": [pem]}
    assert door.caller(good) == SITES[0]
    for changed in (
        {"ssl_tls_version": [b"TLSv1.2"]},
        {"ssl_tls_version": []},
        {"x509_pem_cert": []},
        {"x509_pem_cert": [b"not PEM"]},
    ):
        with pytest.raises(PolicyRefused):
            door.caller({**good, **changed})
    with pytest.raises(PolicyRefused):
        door.caller({})


def test_a_certificate_that_expires_while_its_connection_lives_is_refused_from_then_on():
    now = datetime.now(UTC)
    door = PeerAuthenticator(SITES, lambda: now)
    connection = {
        "ssl_tls_version": [b"TLSv1.3"],
        "x509_pem_cert": [AUTHORITY.site(SITES[0], days=2.0).certificate],
    }
    assert door.caller(connection) == SITES[0]
    now += timedelta(days=3)
    with pytest.raises(PolicyRefused, match=r"expired on .* the study centre's machine says .* 1 day"):
        door.caller(connection)


def test_a_site_does_not_talk_to_an_aggregator_of_another_ca_or_another_name():
    with consortium() as c:
        mine = AUTHORITY.site(SITES[0])
        trusts_other = TlsFiles(OTHER.pem, mine.certificate, mine.private_key)
        with pytest.raises(CallFailed, match="unavailable"):
            c.dial(trusts_other).hello()
        with pytest.raises(CallFailed, match="unavailable"):
            c.dial(mine, address=f"127.0.0.1:{c.server.port}").hello()  # not in its certificate


def test_another_study_is_refused():
    with consortium() as c, unaffected(c):
        link = c.dial(SITES[0], study="another-study")
        for call in (link.hello, link.next, lambda: link.answer(os.urandom(16), b"x")):
            with pytest.raises(CallFailed, match="another study") as caught:
                call()
            assert caught.value.lasting
