"""Certificates say who may do what, and a real TLS 1.3 handshake believes them."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from secfed.deploy.pki import certificate_checks as checks
from secfed.deploy.pki.certificate_checks import Expiry, Urgency
from secfed.deploy.pki.certificates import Authority
from secfed.deploy.pki.key_files import new_tls_key
from secfed.errors import ConfigError
from secfed.records.clock import own_clock
from tests.deploy.enrol_case import DAY, NOW

HOSTS = ("fl.example.org", "192.0.2.10")


def authority(hosts: tuple[str, ...] = HOSTS, now: datetime = NOW, name: str = "Heart study") -> Authority:
    return Authority.create(new_tls_key(), name, hosts, now)


def a_site(ca: Authority, name: str = "charite", now: datetime = NOW, days: int = 90) -> x509.Certificate:
    return ca.issue_site(name, new_tls_key().public_key(), now, days)


class TestContent:
    def test_a_site_is_a_client_and_nothing_else(self) -> None:
        certificate = a_site(authority())
        assert checks.site_of(certificate) == "charite"
        assert not checks.is_aggregator(certificate)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        assert usage.critical
        assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [item.value for item in names] == ["secfed:site:charite"]

    def test_the_aggregator_is_a_server_at_its_hosts(self) -> None:
        certificate = authority().issue_aggregator(HOSTS, new_tls_key().public_key(), NOW, 90)
        assert checks.is_aggregator(certificate)
        with pytest.raises(ConfigError, match="not one of a client"):
            checks.site_of(certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
        assert [str(item) for item in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.10"]

    def test_lifetimes_allow_for_clocks_that_differ(self) -> None:
        certificate = a_site(authority(), days=90)
        assert certificate.not_valid_before_utc == NOW - timedelta(hours=1)
        assert certificate.not_valid_after_utc == NOW + 90 * DAY

    def test_no_certificate_outlives_its_ca(self) -> None:
        ca = authority()
        certificate = a_site(ca, now=NOW + 3640 * DAY)
        assert certificate.not_valid_after_utc == ca.certificate.not_valid_after_utc
        with pytest.raises(ConfigError, match="CA has expired"):
            a_site(ca, now=NOW + 3651 * DAY)

    def test_the_ca_key_is_not_printed(self) -> None:
        assert "EllipticCurve" not in repr(authority())


class TestChecks:
    def test_a_good_certificate_passes(self) -> None:
        ca = authority()
        checks.check_authority(ca.certificate, NOW)
        checks.check_issued(a_site(ca), ca.certificate, NOW)

    def test_another_ca_of_the_same_name_is_another_ca(self) -> None:
        with pytest.raises(ConfigError, match="not from this consortium's CA"):
            checks.check_issued(a_site(authority()), authority().certificate, NOW)

    @pytest.mark.parametrize(
        ("moment", "problem"),
        [
            (NOW + 90 * DAY, None),
            (NOW + 90 * DAY + timedelta(seconds=1), "expired on 2026-05-31"),
            (NOW - timedelta(hours=2), None),
            (NOW - timedelta(hours=2, seconds=1), "is valid from"),
        ],
    )
    def test_time_limits(self, moment: datetime, problem: str | None) -> None:
        ca = authority(now=NOW - DAY)
        certificate = a_site(ca)
        if problem is None:
            checks.check_issued(certificate, ca.certificate, moment)
        else:
            with pytest.raises(ConfigError, match=problem):
                checks.check_issued(certificate, ca.certificate, moment)

    def test_the_clock_is_named_with_what_it_says_and_by_how_much_it_differs(self) -> None:
        ca = authority(now=NOW - DAY)
        certificate, own = a_site(ca), re.escape(own_clock())
        late, early = NOW + 93 * DAY, NOW - 3 * DAY
        with pytest.raises(
            ConfigError, match=rf"expired on .*; {own} says {late:%Y-%m-%d}.*, 3 days"
        ) as told:
            checks.check_issued(certificate, ca.certificate, late)
        assert told.value.remedy.startswith("if that clock is right, ")
        with pytest.raises(
            ConfigError, match=rf"valid from .*; {own} says {early:%Y-%m-%d}.* earlier"
        ) as told:
            checks.check_issued(certificate, ca.certificate, early)
        assert told.value.remedy.startswith("set that clock")
        said = checks.expired(certificate, late, "the clock of the study centre's machine")
        assert "this machine" not in said
        assert checks.expired(certificate, NOW) == ""

    def test_an_expired_ca_takes_its_certificates_with_it(self) -> None:
        ca = authority(now=NOW - 3650 * DAY)
        with pytest.raises(ConfigError, match="CA expired"):
            checks.check_authority(ca.certificate, NOW + DAY)

    def test_a_ca_is_not_accepted_as_a_site_nor_a_site_as_a_ca(self) -> None:
        ca = authority()
        with pytest.raises(ConfigError, match="is a CA"):
            checks.check_issued(ca.certificate, ca.certificate, NOW)
        with pytest.raises(ConfigError, match="not one of a consortium"):
            checks.check_authority(a_site(ca), NOW)

    def test_a_signature_of_the_ca_is_for_exactly_these_bytes(self) -> None:
        ca = authority()
        signature = ca.sign(b"reply")
        assert checks.signed_by(ca.certificate, signature, b"reply")
        assert not checks.signed_by(ca.certificate, signature, b"replY")
        assert not checks.signed_by(authority().certificate, signature, b"reply")
        assert not checks.signed_by(ca.certificate, b"\x00" * 70, b"reply")

    def test_anything_but_one_certificate_is_refused(self) -> None:
        one = checks.to_pem(a_site(authority()))
        for pem in ("", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", one + one):
            with pytest.raises(ConfigError, match="reply: not a certificate"):
                checks.load(pem, "reply")

    @pytest.mark.parametrize("at", ["a003020102", "06072a8648ce3d0201"])  # the version; the type of the key
    def test_a_certificate_whose_version_or_key_nobody_knows_is_refused(self, at: str) -> None:
        data = bytearray(checks.der(a_site(authority())))
        data[data.index(bytes.fromhex(at)) + len(at) // 2 - 1] ^= 1
        body = base64.encodebytes(data).decode()
        with pytest.raises(ConfigError, match="reply: not a certificate"):
            checks.load(f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n", "reply")


class TestExpiry:
    def test_it_is_announced_four_weeks_ahead(self) -> None:
        certificate = a_site(authority(), days=90)
        seen = [Expiry.of(certificate, NOW + day * DAY) for day in range(93)]
        assert [item.urgency for item in seen] == (
            [Urgency.FINE] * 62 + [Urgency.SOON] * 28 + [Urgency.EXPIRED] * 3
        )
        assert [item.days_left for item in seen[:3]] == [90, 89, 88]
        assert seen[61].describe() == "until 2026-05-31 (29 days)"
        assert seen[92].describe() == "expired on 2026-05-31"

    def test_a_very_short_certificate_is_not_due_from_its_first_day(self) -> None:
        certificate = a_site(authority(), days=14)
        assert Expiry.of(certificate, NOW).urgency is Urgency.FINE
        assert Expiry.of(certificate, NOW + 8 * DAY).urgency is Urgency.SOON


# A real handshake, in memory. The TLS library has its own clock, so these certificates are issued now.


def party(folder: Path, name: str, issue: Callable[..., x509.Certificate]) -> Path:
    """A file with a new key and the certificate that was issued to it."""
    key = new_tls_key()
    path = folder / name
    path.write_bytes(in_pem(key) + checks.to_pem(issue(key.public_key())).encode())
    return path


def in_pem(key: Any) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def context(side: int, ca: Authority, own: Path | None) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=checks.to_pem(ca.certificate))
    if own is not None:
        made.load_cert_chain(own)
    return made


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run both sides to the end; raises what the first side to refuse raises."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    dials = client.wrap_bio(down, up, server_hostname=host)
    serves = server.wrap_bio(up, down, server_side=True)
    waiting = [dials, serves]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            # With TLS 1.3 a client learns only afterwards that it was refused.
            serves.write(b"hello")
            assert dials.read(5) == b"hello"
            return dials, serves
    raise AssertionError("the handshake does not end")


@pytest.fixture
def real() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def contexts(
    folder: Path,
    real: datetime,
    *,
    site: str = "charite",
    site_ca: Authority | None = None,
    site_age: int = 0,
    server_age: int = 0,
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
    constrained: tuple[str, ...] | None = None,
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Both sides of a connection; ages of certificates in days."""
    ca = authority(constrained or hosts, now=real - 400 * DAY)
    issued = real - site_age * DAY
    client = party(folder, "site", lambda key: (site_ca or ca).issue_site(site, key, issued, 90))
    started = real - server_age * DAY
    server = party(folder, "server", lambda key: ca.issue_aggregator(hosts, key, started, 90))
    return context(ssl.PROTOCOL_TLS_CLIENT, ca, client), context(ssl.PROTOCOL_TLS_SERVER, ca, server)


class TestHandshake:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
    @pytest.mark.parametrize("site", ["charite", "uk.hd"])  # a dot does not make it a host
    def test_site_and_aggregator_meet(self, tmp_path: Path, real: datetime, host: str, site: str) -> None:
        dials, serves = handshake(*contexts(tmp_path, real, site=site), host)
        assert dials.version() == "TLSv1.3"
        der = serves.getpeercert(binary_form=True)
        assert checks.site_of(x509.load_der_x509_certificate(der)) == site

    @pytest.mark.parametrize(
        ("host", "more", "why"),
        [
            ("fl.example.org", {}, "Hostname mismatch"),
            ("localhost", {"site_ca": authority()}, r"self.signed|unable to get|signature failure"),
            ("localhost", {"site_age": 91}, "expired"),
            ("localhost", {"server_age": 91}, "expired"),
            # A stolen CA key opens no host outside its limits.
            ("localhost", {"hosts": ("localhost",), "constrained": ("fl.example.org",)}, "(?i)subtree"),
            ("localhost", {"hosts": ("localhost",), "constrained": ("192.0.2.1",)}, "(?i)subtree"),
            ("localhost", {"hosts": ("localhost",), "constrained": HOSTS}, "(?i)subtree"),
            ("127.0.0.1", {"hosts": ("127.0.0.1",), "constrained": ("fl.example.org",)}, "(?i)subtree"),
        ],
    )
    def test_another_party_is_refused(
        self, tmp_path: Path, real: datetime, host: str, more: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(ssl.SSLError, match=why):
            handshake(*contexts(tmp_path, real, **more), host)

    def test_nobody_connects_without_a_certificate_or_with_that_of_the_other_role(
        self, tmp_path: Path, real: datetime
    ) -> None:
        ca = authority(("localhost",), now=real)
        site = party(tmp_path, "site", lambda key: ca.issue_site("charite", key, real, 90))
        server = party(tmp_path, "server", lambda key: ca.issue_aggregator(("localhost",), key, real, 90))
        for dials, serves, why in (
            (None, server, r"(?i)peer did not return a certificate"),
            (site, site, r"(?i)unsuitable|purpose|mismatch"),
            (server, server, r"(?i)unsuitable|purpose"),
        ):
            client = context(ssl.PROTOCOL_TLS_CLIENT, ca, dials)
            with pytest.raises(ssl.SSLError, match=why):
                handshake(client, context(ssl.PROTOCOL_TLS_SERVER, ca, serves), "localhost")


class TestGrpc:
    """BoringSSL, which gRPC brings along, is stricter than the ssl module in other places."""

    def ask(self, ca: Authority, hosts: tuple[str, ...], real: datetime, site: Authority, days: int) -> str:
        """What a site that calls is told: the study, or why not."""
        pytest.importorskip("grpc")
        from secfed.deploy.transport.client import CallFailed
        from secfed.deploy.transport.grpc.client import GrpcSiteConnection
        from secfed.deploy.transport.grpc.server import LinkServer, TlsFiles
        from secfed.deploy.transport.study_server import Offer

        root, served, called = checks.to_pem(ca.certificate), new_tls_key(), new_tls_key()
        chain = checks.to_pem(ca.issue_aggregator(hosts, served.public_key(), real, 90))
        issued = checks.to_pem(site.issue_site("uk.hd", called.public_key(), real - 50 * DAY, days))
        serving = TlsFiles(root.encode(), chain.encode(), in_pem(served))
        calling = TlsFiles(root.encode(), issued.encode(), in_pem(called))
        server = LinkServer("127.0.0.1:0", serving, ("uk.hd",), Offer("heart", b"", 1))
        link = GrpcSiteConnection(f"{hosts[0]}:{server.start()}", calling)
        try:
            return link.hello().study
        except CallFailed as error:
            return error.message.partition(":")[0]
        finally:
            link.close()
            server.stop()

    @pytest.mark.parametrize("hosts", [("localhost",), ("127.0.0.1",), ("localhost", "127.0.0.1")])
    def test_site_and_aggregator_meet(self, real: datetime, hosts: tuple[str, ...]) -> None:
        ca = authority(hosts, now=real - 100 * DAY)
        assert self.ask(ca, hosts, real, ca, 90) == "heart"

    def test_another_ca_and_an_expired_certificate_are_refused(self, real: datetime) -> None:
        ca, other = (authority(("localhost",), now=real - 100 * DAY) for _ in range(2))
        for site, days in ((other, 90), (ca, 30)):
            assert self.ask(ca, ("localhost",), real, site, days) == "unavailable"

    def test_a_stolen_ca_key_opens_no_host_outside_its_limits(self, real: datetime) -> None:
        for hosts in (("localhost",), ("127.0.0.1",)):
            ca = authority(("fl.example.org",), now=real - 100 * DAY)
            assert self.ask(ca, hosts, real, ca, 90) == "unavailable"
