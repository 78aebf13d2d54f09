"""The two files of an enrolment, as values: a site's request and the study centre's reply.

A request has the site's name and public keys, signed with both private keys; a reply has its certificate, the
CA and the aggregator's facts, signed by the CA. Neither holds a secret, so any channel will do. What makes it
safe is that people compare fingerprints: the site's at the study centre, the roster's digest at every site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key
from pydantic import AfterValidator, Field

from secfed.config.schema import Strict, checked
from secfed.crypto.codec import Writer, digest
from secfed.crypto.identity import PUBLIC_BYTES, Identity, fingerprint, verify
from secfed.deploy.pki import certificate_checks, names
from secfed.errors import BadSignature, ConfigError

# Labels of enrolment; those of the protocol are in crypto/labels.py.
SIGN_REQUEST: Final = b"secfed/v1 sign enrolment request"
PROVE_TLS_KEY: Final = b"secfed/v1 prove possession of TLS key"
SIGN_REPLY: Final = b"secfed/v1 sign enrolment reply"

_HEX: Final = r"^([0-9a-f]{2})+$"
_KEY: Final = Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits")
_MAX_TIME_S: Final = 1 << 40


class AggregatorFacts(Strict):
    """What a site needs to know about the aggregator, and the keys by which files say it."""

    aggregator_key: str = _KEY  # of its identity, which is also in every roster
    hosts: tuple[Annotated[str, AfterValidator(names.check_host)], ...] = Field(
        min_length=1, max_length=32, description="an array of host names, of which the first is dialled"
    )
    port: int = Field(ge=1, le=65535, description="1 to 65535")

    @property
    def aggregator(self) -> AggregatorFacts:
        """These keys alone, of a file that has more."""
        return AggregatorFacts(aggregator_key=self.aggregator_key, hosts=self.hosts, port=self.port)

    @property
    def identity_key(self) -> bytes:
        """The public key that it signs with."""
        return bytes.fromhex(self.aggregator_key)

    @property
    def address(self) -> str:
        """``host:port``, as a client dials it."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class _RequestFile(Strict):
    kind: Literal["secfed enrolment request"] = Field(description='"secfed enrolment request"')
    version: Literal[1] = Field(description="1")
    site: str = Field(pattern=names.SITE_PATTERN, description="the site's name")
    identity_key: str = _KEY
    tls_key: str = Field(pattern=_HEX, max_length=400, description="a public key in DER, hexadecimal")
    made_s: int = Field(ge=0, lt=_MAX_TIME_S, description="seconds since 1970")
    identity_signature: str = Field(pattern=_HEX, max_length=128, description="128 hexadecimal digits")
    tls_signature: str = Field(pattern=_HEX, max_length=200, description="a signature, hexadecimal")


class _ReplyFile(AggregatorFacts):
    kind: Literal["secfed enrolment reply"] = Field(description='"secfed enrolment reply"')
    version: Literal[1] = Field(description="1")
    consortium: str = Field(pattern=names.CONSORTIUM_PATTERN, description="the consortium's name")
    site: str = Field(pattern=names.SITE_PATTERN, description="the site's name")
    certificate: str = Field(max_length=8192, description="a certificate in PEM")
    ca: str = Field(max_length=8192, description="a certificate in PEM")
    signature: str = Field(pattern=_HEX, max_length=200, description="a signature, hexadecimal")


@dataclass(frozen=True)
class Request:
    """A site's wish to be admitted, or to have its certificate renewed."""

    site: str
    identity_key: bytes
    tls_key: ec.EllipticCurvePublicKey
    made_s: int  # seconds since 1970; a renewal must be newer than what it renews

    @property
    def fingerprint(self) -> str:
        """Of the identity key: what the site's administrator reads to the study centre."""
        return fingerprint(self.identity_key)

    @property
    def body(self) -> bytes:
        """What both keys sign."""
        spki = certificate_checks.public_der(self.tls_key)
        writer = Writer().text(self.site).fixed(self.identity_key, PUBLIC_BYTES).blob(spki)
        return writer.uint(self.made_s, 8).done()

    @classmethod
    def sign(cls, identity: Identity, tls_key: ec.EllipticCurvePrivateKey, now: datetime) -> dict[str, Any]:
        """The content of a new request file, signed with both keys of the site."""
        names.check_site_name(identity.name)
        made = cls(identity.name, identity.public_bytes, tls_key.public_key(), int(now.timestamp()))
        return {
            "kind": "secfed enrolment request",
            "version": 1,
            "site": made.site,
            "identity_key": made.identity_key.hex(),
            "tls_key": certificate_checks.public_der(made.tls_key).hex(),
            "made_s": made.made_s,
            "identity_signature": identity.sign(SIGN_REQUEST, made.body).hex(),
            "tls_signature": tls_key.sign(digest(PROVE_TLS_KEY, made.body), ec.ECDSA(SHA256())).hex(),
        }

    @classmethod
    def verified(cls, content: Mapping[str, Any], where: str) -> Self:
        """Read a request and check that its maker holds both private keys."""
        if _is_another_file(content, _RequestFile):
            raise ConfigError(f"{where}: not a request", remedy="name the request.json of a site")
        file = checked(_RequestFile, content, where)
        tls_key = _p256(file.tls_key, where)
        request = cls(
            names.check_site_name(file.site), bytes.fromhex(file.identity_key), tls_key, file.made_s
        )
        signature = bytes.fromhex(file.identity_signature)
        verify(request.identity_key, signature, SIGN_REQUEST, request.body, who=request.site)
        try:
            signed = digest(PROVE_TLS_KEY, request.body)
            request.tls_key.verify(bytes.fromhex(file.tls_signature), signed, ec.ECDSA(SHA256()))
        except InvalidSignature:
            raise BadSignature(
                f"{where}: the maker of the request does not hold its TLS key",
                remedy="ask the site for a new request",
            ) from None
        return request


@dataclass(frozen=True)
class Reply:
    """The study centre's answer to a request."""

    consortium: str
    site: str
    certificate: x509.Certificate
    ca: x509.Certificate
    aggregator: AggregatorFacts

    @property
    def body(self) -> bytes:
        """What the CA signs, after its label."""
        writer = Writer().text(self.consortium).text(self.site)
        writer.blob(certificate_checks.der(self.certificate)).blob(certificate_checks.der(self.ca))
        writer.fixed(self.aggregator.identity_key, PUBLIC_BYTES)
        writer.many(self.aggregator.hosts, lambda w, host: w.text(host))
        return digest(SIGN_REPLY, writer.uint(self.aggregator.port, 2).done())

    def to_content(self, signature: bytes) -> dict[str, Any]:
        """The content of the file, with the CA's signature over :attr:`body`."""
        return {
            "kind": "secfed enrolment reply",
            "version": 1,
            "consortium": self.consortium,
            "site": self.site,
            "certificate": certificate_checks.to_pem(self.certificate),
            "ca": certificate_checks.to_pem(self.ca),
            **self.aggregator.model_dump(),
            "signature": signature.hex(),
        }

    @classmethod
    def verified(cls, content: Mapping[str, Any], where: str, now: datetime) -> Self:
        """Read a reply and check it against the CA that it names.

        Security: this shows only that the file is consistent. A site that has joined before compares the
            CA with the one it has; the first time, the aggregator's fingerprint and the roster's digest
            are compared by people.
        """
        if _is_another_file(content, _ReplyFile):
            raise ConfigError(f"{where}: not a reply", remedy="name the file that the study centre returned")
        file = checked(_ReplyFile, content, where)
        reply = cls(
            names.check_consortium_name(file.consortium),
            names.check_site_name(file.site),
            certificate_checks.load(file.certificate, f"{where}: certificate"),
            certificate_checks.load(file.ca, f"{where}: ca"),
            file.aggregator,
        )
        certificate_checks.check_authority(reply.ca, now)
        if not certificate_checks.signed_by(reply.ca, bytes.fromhex(file.signature), reply.body):
            raise BadSignature(
                f"{where}: was changed after the study centre made it", remedy="ask for the file again"
            )
        certificate_checks.check_issued(reply.certificate, reply.ca, now)
        if certificate_checks.site_of(reply.certificate) != reply.site:
            raise ConfigError(f"{where}: its certificate is for another site", remedy="ask for a new one")
        return reply


def utc_now() -> datetime:
    """The machine's clock, with its time zone."""
    return datetime.now(UTC)


def _p256(spki_hex: str, where: str) -> ec.EllipticCurvePublicKey:
    try:
        public = load_der_public_key(bytes.fromhex(spki_hex))
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not certificate_checks.is_p256(public):
        raise ConfigError(f"{where}.tls_key: not a P-256 public key", remedy="ask the site for a new request")
    return public


def _is_another_file(content: Mapping[str, Any], kind: type[Strict]) -> bool:
    """Whether a file lacks most of the keys: then its keys are not what is wrong."""
    return 2 * len(kind.model_fields.keys() & content.keys()) < len(kind.model_fields)
