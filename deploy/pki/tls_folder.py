"""A party's TLS key and certificate in its folder, and their renewal without a moment in between.

``tls.key`` is in use, ``tls-next.key`` that of a renewal, ``tls.pem`` the certificate in use. It is replaced
first and the key renamed after it; in between, and after a crash there, it belongs to ``tls-next.key``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from secfed.deploy.pki import certificate_checks, key_files
from secfed.errors import ConfigError
from secfed.storage import private_files


@dataclass(frozen=True)
class TlsFiles:
    """What a TLS library is given, in PEM. Security: holds the private key in clear; keep it in memory.

    ``authority`` is the certificate of the consortium's CA; no other is trusted.
    """

    authority: bytes
    certificate: bytes
    private_key: bytes = field(repr=False)


class TlsFolder:
    """The TLS files of one party."""

    def __init__(self, folder: Path) -> None:
        self._key, self._next_key = folder / "tls.key", folder / "tls-next.key"
        self._certificate = folder / "tls.pem"

    @property
    def key_paths(self) -> tuple[Path, ...]:
        """The private keys that are there."""
        return tuple(path for path in (self._key, self._next_key) if path.exists())

    def certificate(self) -> x509.Certificate | None:
        """The certificate in use, or None before the first."""
        if not self._certificate.exists():
            return None
        pem = private_files.read(self._certificate, "a certificate")
        return certificate_checks.load(pem, str(self._certificate))

    def new_key(self, passphrase: str | None) -> EllipticCurvePrivateKey:
        """The key to ask a certificate for: the first one, or the next one. An unused one is not replaced."""
        self.settle(passphrase)
        path = self._next_key if self._key.exists() else self._key
        if not path.exists():
            key_files.create_key(path, key_files.new_tls_key(), passphrase)
        return key_files.read_tls_key(path, passphrase)

    def install(self, certificate: x509.Certificate, passphrase: str | None) -> None:
        """Use a new certificate from now on, with the key that it belongs to."""
        self.check_new(certificate, passphrase)
        pem = certificate_checks.to_pem(certificate).encode()
        private_files.replace(self._certificate, pem, mode=0o644)
        self.settle(passphrase)

    def settle(self, passphrase: str | None) -> None:
        """Finish a renewal that a crash interrupted."""
        certificate = self.certificate()
        if certificate is None or not self._next_key.exists():
            return
        if self._key_of(certificate, passphrase) == self._next_key:
            private_files.rename(self._next_key, self._key)

    def load(self, ca_path: Path, passphrase: str | None) -> TlsFiles:
        """Key, certificate and CA for the TLS library."""
        certificate = self.certificate()
        if certificate is None:
            raise ConfigError(
                f"{self._certificate}: there is no certificate yet", remedy="join the consortium first"
            )
        private_key = key_files.read_tls_key(self.key_in_use(certificate, passphrase), passphrase)
        return TlsFiles(
            private_files.read(ca_path, "a certificate"),
            certificate_checks.to_pem(certificate).encode(),
            private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def check_new(self, certificate: x509.Certificate, passphrase: str | None) -> None:
        """Refuse a new certificate that is for no key here."""
        if self._key_of(certificate, passphrase) is None:
            raise ConfigError(
                "the certificate does not belong to a TLS key in this folder",
                remedy="give the study centre this folder's latest request.json",
            )

    def key_in_use(self, certificate: x509.Certificate, passphrase: str | None) -> Path:
        """The key here that the certificate in use is for."""
        path = self._key_of(certificate, passphrase)
        if path is None:
            raise ConfigError(
                f"{self._key}: missing, or not the key of the certificate in use",
                remedy="restore it from your backup, or renew the certificate",
            )
        return path

    def _key_of(self, certificate: x509.Certificate, passphrase: str | None) -> Path | None:
        wanted = certificate_checks.public_der(certificate)
        for path in self.key_paths:
            if certificate_checks.public_der(key_files.read_tls_key(path, passphrase)) == wanted:
                return path
        return None
