"""X.509 for the links of one consortium: its own CA, one server certificate, one client certificate a site.

A certificate opens a connection and nothing else. Who a site *is* for the protocol is its identity key in
the pinned roster; the link compares the site named in the certificate with that roster, so removing a
site from the roster is what revokes it. Certificates are short-lived for the same reason.

==========  ==================  ====================  ============================================
owner       extended key usage  name (URI)            limits
==========  ==================  ====================  ============================================
CA          none                none                  no CA below it; only the aggregator's hosts
aggregator  serverAuth          secfed:aggregator     and its host names and addresses
site        clientAuth          secfed:site:<name>    no host name: it cannot pose as a server
==========  ==================  ====================  ============================================

Source: RFC 5280 (sections 4.2.1.3, .6, .9, .10, .12).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secfed.deploy.pki.certificate_checks import AGGREGATOR_URI, NO_HOST, SITE_URI, SKEW
from secfed.deploy.pki.names import ip_address
from secfed.errors import ConfigError

DEFAULT_DAYS: Final = 90
MAX_DAYS: Final = 397
CA_DAYS: Final = 3650


@dataclass(frozen=True)
class Authority:
    """The consortium's CA. Security: who holds it can admit sites to the *link*, never to the roster."""

    certificate: x509.Certificate
    _ca_key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(
        cls, ca_key: ec.EllipticCurvePrivateKey, consortium: str, hosts: Sequence[str], now: datetime
    ) -> Authority:
        """A new CA that can vouch for these hosts, and no others."""
        name = _name(consortium, "secfed CA")
        limits = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(name, name, ca_key.public_key(), now, now + timedelta(days=CA_DAYS), limits)
        builder = builder.add_extension(_only(hosts), critical=True)
        return cls(builder.sign(ca_key, SHA256()), ca_key)

    def issue_site(
        self, site: str, tls_key: ec.EllipticCurvePublicKey, now: datetime, days: int
    ) -> x509.Certificate:
        """A client certificate for a site."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(SITE_URI + site)]
        # The words around the name keep TLS libraries from taking it for a host name.
        return self._issue(f"secfed site {site}", names, ExtendedKeyUsageOID.CLIENT_AUTH, tls_key, now, days)

    def issue_aggregator(
        self, hosts: Sequence[str], tls_key: ec.EllipticCurvePublicKey, now: datetime, days: int
    ) -> x509.Certificate:
        """The server certificate of the aggregator."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(AGGREGATOR_URI)]
        for host in hosts:
            address = ip_address(host)
            names.append(x509.DNSName(host) if address is None else x509.IPAddress(address))
        return self._issue("secfed aggregator", names, ExtendedKeyUsageOID.SERVER_AUTH, tls_key, now, days)

    def sign(self, data: bytes) -> bytes:
        """ECDSA signature over what the study centre hands out (``certificate_checks.signed_by``)."""
        return self._ca_key.sign(data, ec.ECDSA(SHA256()))

    def _issue(
        self,
        common_name: str,
        names: list[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        tls_key: ec.EllipticCurvePublicKey,
        now: datetime,
        days: int,
    ) -> x509.Certificate:
        end = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        if end <= now:
            raise ConfigError("the consortium's CA has expired", remedy="found a new consortium")
        issuer = self.certificate.subject
        consortium = str(issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)
        key_id = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        limits = x509.BasicConstraints(ca=False, path_length=None)
        signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id)
        builder = (
            _builder(_name(consortium, common_name), issuer, tls_key, now, end, limits)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(signer, critical=False)
        )
        return builder.sign(self._ca_key, SHA256())


def _only(hosts: Sequence[str]) -> x509.NameConstraints:
    """These host names and no others: somebody who installs the CA elsewhere opens nothing else to it.

    Addresses are either forbidden altogether or, where the aggregator has one, not limited: BoringSSL,
    which gRPC uses, refuses every certificate with an address under a CA that limits addresses.
    """
    names = [host for host in hosts if ip_address(host) is None] or [NO_HOST]
    everything = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
    has_address = any(ip_address(host) is not None for host in hosts)
    excluded = None if has_address else [x509.IPAddress(network) for network in everything]
    return x509.NameConstraints([x509.DNSName(name) for name in names], excluded)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    end: datetime,
    limits: x509.BasicConstraints,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=limits.ca,
        crl_sign=limits.ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(end)
        .add_extension(limits, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(consortium: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, consortium),
            # An upper bound of X.509; the URI holds the whole name.
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),
        ]
    )
