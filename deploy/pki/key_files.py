"""Private keys in files: PKCS #8, for the owner only, optionally under a passphrase.

PKCS #8 as ``cryptography`` writes it stretches a passphrase too little (PBKDF2, 2,048 rounds), so it goes
through scrypt first; the line above the PEM block holds the salt. It protects a copied disk, not a machine
that somebody else controls. Source: RFC 7914 (scrypt), RFC 5958 (PKCS #8).
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secfed.crypto.identity import Identity
from secfed.errors import ConfigError
from secfed.storage import private_files

PASSPHRASE_FILE: Final = "SECFED_PASSPHRASE_FILE"  # noqa: S105 - the name of a variable
LEAST_PASSPHRASE: Final = 12  # characters

_SCRYPT: Final = {"n": 1 << 16, "r": 8, "p": 2}  # 64 MiB
_MAX_MEMORY_BYTES: Final = 96 << 20
_SALT_LINE: Final = re.compile(rb"secfed-scrypt-salt: ([0-9a-f]{32})\n")

PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key: what every TLS library accepts in a certificate."""
    return ec.generate_private_key(ec.SECP256R1())


def create_key(path: Path, private_key: PrivateKey, passphrase: str | None) -> None:
    """Write a new key file, mode 0600."""
    head = b""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        check_passphrase(passphrase)
        salt = secrets.token_bytes(16)
        encryption = serialization.BestAvailableEncryption(_stretched(passphrase, salt))
        head = b"secfed-scrypt-salt: " + salt.hex().encode() + b"\n"
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private_files.create(path, head + private_key.private_bytes(pem, pkcs8, encryption))


def is_encrypted(path: Path) -> bool:
    """Whether a key file needs a passphrase."""
    return b"BEGIN ENCRYPTED PRIVATE KEY" in private_files.read(path, "a private key")


def read_identity(path: Path, name: str, passphrase: str | None) -> Identity:
    """The signing key in a file."""
    private_key = _read(path, passphrase)
    if not isinstance(private_key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: not an identity key", remedy="restore the file from your backup")
    return Identity.from_seed(name, private_key.private_bytes_raw())


def read_tls_key(path: Path, passphrase: str | None) -> ec.EllipticCurvePrivateKey:
    """The P-256 key in a file."""
    private_key = _read(path, passphrase)
    if not isinstance(private_key, ec.EllipticCurvePrivateKey) or private_key.curve.name != ec.SECP256R1.name:
        raise ConfigError(f"{path}: not a P-256 key", remedy="restore the file from your backup")
    return private_key


def check_passphrase(passphrase: str) -> str:
    """Refuse a passphrase that can be guessed."""
    if len(passphrase) < LEAST_PASSPHRASE:
        raise ConfigError(
            f"the passphrase has fewer than {LEAST_PASSPHRASE} characters", remedy="choose a longer one"
        )
    return passphrase


def passphrase_from_file(environment: Mapping[str, str] = os.environ) -> str | None:
    """The passphrase in the file that ``SECFED_PASSPHRASE_FILE`` names, or None if it names none.

    One newline at the end is not part of it. A service gets the file from its supervisor (systemd:
    ``LoadCredentialEncrypted=``).
    """
    name = environment.get(PASSPHRASE_FILE)
    if not name:
        return None
    path = Path(name)
    # What systemd hands to a service is private to it, whatever an access list makes of its mode bits.
    if path.parent != Path(environment.get("CREDENTIALS_DIRECTORY", "/nonexistent")):
        private_files.check_private(path)
    try:
        text = private_files.read(path, "a passphrase").decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text", remedy="write the passphrase as one line") from None
    if not text:
        raise ConfigError(f"{path}: holds no passphrase", remedy="write the passphrase as one line")
    return text


def passphrase_for(
    *paths: Path, ask: Callable[[str], str] | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The passphrase of existing keys, or None if none needs one; ``ask`` asks a person."""
    encrypted = [path for path in paths if is_encrypted(path)]
    if not encrypted:
        return None
    if (found := passphrase_from_file(environment)) is not None:
        return found
    if ask is None:
        raise _needs_passphrase(encrypted[0])
    return ask(f"Passphrase of {encrypted[0].parent}")


def _read(path: Path, passphrase: str | None) -> object:
    private_files.check_private(path)
    data = private_files.read(path, "a private key")
    salt = _SALT_LINE.match(data)
    password = None
    if salt:
        if passphrase is None:
            raise _needs_passphrase(path)
        password = _stretched(passphrase, bytes.fromhex(salt[1].decode()))
    try:
        return serialization.load_pem_private_key(data[salt.end() if salt else 0 :], password)
    except (ValueError, TypeError):  # the library's words could quote the file
        why = "the passphrase is wrong, or the file is damaged" if salt else "not a private key"
        raise ConfigError(f"{path}: {why}", remedy="try again, or restore it from your backup") from None


def _needs_passphrase(path: Path) -> ConfigError:
    remedy = f"set {PASSPHRASE_FILE} to the file that holds it"
    return ConfigError(f"{path}: needs a passphrase", remedy=remedy)


def _stretched(passphrase: str, salt: bytes) -> bytes:
    raw = hashlib.scrypt(passphrase.encode(), salt=salt, maxmem=3 * _MAX_MEMORY_BYTES, dklen=32, **_SCRYPT)
    return raw.hex().encode()
