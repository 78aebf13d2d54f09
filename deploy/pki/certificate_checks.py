"""Reading certificates: whose they are, who issued them, whether they are valid now, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self, TypeGuard, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from secfed.errors import ConfigError
from secfed.records.clock import apart, own_clock

SKEW: Final = timedelta(hours=1)  # clocks of hospitals differ
ANNOUNCED: Final = timedelta(weeks=4)
SITE_URI: Final = "secfed:site:"
AGGREGATOR_URI: Final = "secfed:aggregator"
NO_HOST: Final = "secfed.invalid"  # stands where a CA permits no host name: an empty list would permit all

_REMEDY: Final = "get a new one from the study centre"

E = TypeVar("E", bound=x509.ExtensionType)


def site_of(certificate: x509.Certificate) -> str:
    """The site that a client certificate names.

    Security: true only of a certificate that was checked against the CA, by TLS or by :func:`check_issued`.
    """
    uris = _uris(certificate)
    usages = _extension(certificate, x509.ExtendedKeyUsage)
    if usages is None or list(usages) != [ExtendedKeyUsageOID.CLIENT_AUTH]:
        raise ConfigError("the certificate is not one of a client", remedy=_REMEDY)
    if len(uris) != 1 or not uris[0].startswith(SITE_URI):
        raise ConfigError("the certificate names no site", remedy=_REMEDY)
    return uris[0].removeprefix(SITE_URI)


def is_aggregator(certificate: x509.Certificate) -> bool:
    """Whether this is the server certificate of the aggregator. Security: as for :func:`site_of`."""
    usages = _extension(certificate, x509.ExtendedKeyUsage)
    return _uris(certificate) == [AGGREGATOR_URI] and list(usages or ()) == [ExtendedKeyUsageOID.SERVER_AUTH]


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, now: datetime) -> None:
    """Check that a certificate comes from this CA and is valid now."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError("the certificate is not from this consortium's CA", remedy=_REMEDY) from None
    limits = _extension(certificate, x509.BasicConstraints)
    if limits is None or limits.ca:
        raise ConfigError("the certificate is a CA, not one of a site or aggregator", remedy=_REMEDY)
    _check_time(certificate, now, "the certificate")
    _check_time(authority, now, "the consortium's CA")


def check_authority(authority: x509.Certificate, now: datetime) -> None:
    """Check that a certificate is a CA as this module makes them."""
    try:
        authority.verify_directly_issued_by(authority)
        limits = _extension(authority, x509.BasicConstraints)
    except (InvalidSignature, ValueError, TypeError):
        limits = None
    if limits is None or not limits.ca or limits.path_length != 0 or not is_p256(authority.public_key()):
        raise ConfigError("the CA's certificate is not one of a consortium", remedy=_REMEDY)
    _check_time(authority, now, "the consortium's CA")


def signed_by(authority: x509.Certificate, signature: bytes, data: bytes) -> bool:
    """Whether :meth:`~secfed.deploy.pki.certificates.Authority.sign` of this CA made the signature."""
    public = authority.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return False
    try:
        public.verify(signature, data, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def load(pem: str | bytes, what: str) -> x509.Certificate:
    """Exactly one certificate in PEM."""
    data = pem.encode() if isinstance(pem, str) else pem
    try:
        (certificate,) = x509.load_pem_x509_certificates(data)
        certificate.extensions  # noqa: B018  # parsed lazily; better here than later
        certificate.public_key()
    except (
        ValueError,
        UnsupportedAlgorithm,
        x509.DuplicateExtension,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    ):
        raise ConfigError(f"{what}: not a certificate", remedy=_REMEDY) from None
    return certificate


def to_pem(certificate: x509.Certificate) -> str:
    """The certificate in PEM."""
    return certificate.public_bytes(Encoding.PEM).decode()


def der(certificate: x509.Certificate) -> bytes:
    """The certificate in DER: what is compared and signed."""
    return certificate.public_bytes(Encoding.DER)


def public_der(holder: x509.Certificate | ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) -> bytes:
    """The public key as SubjectPublicKeyInfo in DER: what is compared and signed."""
    public = holder if isinstance(holder, ec.EllipticCurvePublicKey) else holder.public_key()
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def p256_of(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The P-256 public key of a certificate."""
    public = certificate.public_key()
    if not is_p256(public):
        raise ConfigError("the certificate holds no P-256 key", remedy=_REMEDY)
    return public


def is_p256(public: object) -> TypeGuard[ec.EllipticCurvePublicKey]:
    """Whether this is a public key of P-256."""
    return isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1)


class Urgency(StrEnum):
    """What the owner of a certificate has to do."""

    FINE = "fine"
    SOON = "renew soon"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Expiry:
    """How long a certificate is still good for."""

    end: datetime
    days_left: int  # whole days; 0 on the last day and after
    urgency: Urgency

    @classmethod
    def of(cls, certificate: x509.Certificate, now: datetime) -> Self:
        """Announced four weeks ahead, or half a lifetime where that is shorter; ``now`` has a time zone."""
        end = certificate.not_valid_after_utc
        left = end - now
        lifetime = end - certificate.not_valid_before_utc
        urgency = Urgency.FINE
        if left <= timedelta(0):
            urgency = Urgency.EXPIRED
        elif left <= min(ANNOUNCED, lifetime / 2):
            urgency = Urgency.SOON
        return cls(end, max(0, left.days), urgency)

    def describe(self) -> str:
        """For a table: the day, and how far away it is."""
        day = self.end.strftime("%Y-%m-%d")
        if self.urgency is Urgency.EXPIRED:
            return f"expired on {day}"
        return f"until {day} ({self.days_left} {'day' if self.days_left == 1 else 'days'})"


def _uris(certificate: x509.Certificate) -> list[str]:
    names = _extension(certificate, x509.SubjectAlternativeName)
    return [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def expired(certificate: x509.Certificate, now: datetime, clock: str = "") -> str:
    """When a certificate expired, and which clock says so (this machine's); empty if it did not."""
    end = certificate.not_valid_after_utc
    if now <= end:
        return ""
    late = apart((now - end).total_seconds())
    return f"expired on {_day(end)}; {clock or own_clock()} says {_day(now)}, {late} later"


def _check_time(certificate: x509.Certificate, now: datetime, what: str) -> None:
    begin = certificate.not_valid_before_utc
    if over := expired(certificate, now):
        raise ConfigError(f"{what} {over}", remedy=f"if that clock is right, {_REMEDY}; if not, set it")
    if now + SKEW < begin:
        raise ConfigError(
            f"{what} is valid from {_day(begin)} only; {own_clock()} says {_day(now)}, "
            f"{apart((begin - now).total_seconds())} earlier",
            remedy="set that clock; if it is right, that of the study centre was ahead when the certificate "
            "was made: set that one, and make a new certificate",
        )


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
