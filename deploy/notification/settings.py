"""The sections ``[notifications]``, ``[webhook]`` and ``[email]``, and the file with their secrets.

They stand in a file of the party that is told: a study cannot set them.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from secfed.config.schema import Strict, suggestion
from secfed.config.toml_file import read_tables
from secfed.errors import ConfigError
from secfed.storage import private_files

_HOST: Final = r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?$"
_ADDRESS: Final = r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$"
_CA_FILE: Final = (
    "a file of PEM certificates that the server's is issued under; without it, the machine's own"
)
_SECRET: Final = re.compile(r"[\x20-\x7e]{1,4096}")  # it becomes part of a header or a command


class NotificationsSection(Strict):
    """``[notifications]``: what a party of either kind sets."""

    secrets: str | None = Field(
        default=None,
        min_length=1,
        description="a TOML file with smtp_password and webhook_token, mode 0600, relative to the folder",
    )


class SiteNotifications(NotificationsSection):
    """``[notifications]`` of a hospital."""

    silent_s: float = Field(
        default=3600.0,
        ge=1,
        le=30 * 86_400,
        description="seconds without the aggregator before it is called silent, from 1 to 2592000",
    )
    low_budget: float = Field(
        default=0.2, gt=0, lt=1, description="the share of a budget below which it is called low, as 0.2"
    )


class WebhookSection(Strict):
    """``[webhook]``: events as JSON by HTTP POST; without ``url``, none."""

    url: str | None = Field(
        default=None,
        max_length=2000,
        description='"https://..."; "http://..." only to this machine itself',
    )
    ca_file: str | None = Field(default=None, min_length=1, description=_CA_FILE)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url is not None:
            check_url(self.url, "webhook.url", "a bearer token is webhook_token of notifications.secrets")
        return self


class EmailSection(Strict):
    """``[email]``: plain text by SMTP; without ``host``, none."""

    host: str | None = Field(default=None, pattern=_HOST, description="the name of a mail server")
    port: int = Field(default=587, ge=1, le=65535, description="the mail server's port, from 1 to 65535")
    starttls: bool = Field(
        default=True, description="true; false only for a mail server on this machine itself"
    )
    user: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]{1,320}$",
        description="the name to log in with; its password is smtp_password of notifications.secrets",
    )
    sender: str | None = Field(
        default=None, pattern=_ADDRESS, description='an address, as "secfed@uk.example"'
    )
    to: tuple[str, ...] = Field(default=(), max_length=20, description="an array of one to twenty addresses")
    ca_file: str | None = Field(default=None, min_length=1, description=_CA_FILE)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host is None:
            return self
        if self.sender is None or not self.to:
            raise ConfigError(
                f"email.{'sender' if self.sender is None else 'to'}: is missing",
                remedy="add email.sender and email.to, or remove email.host",
            )
        for at, address in enumerate(self.to):
            if not re.fullmatch(_ADDRESS, address):
                raise ConfigError(f"email.to[{at}]: is not an address", remedy='write "name@host"')
        if not self.starttls and not is_loopback(self.host):
            raise ConfigError(
                "email.starttls: is false, and the mail server is another machine",
                remedy="use true; what is told is for your people alone",
            )
        return self


@dataclass(frozen=True)
class Secrets:
    """What the secrets file holds."""

    smtp_password: str | None = field(default=None, repr=False)
    webhook_token: str | None = field(default=None, repr=False)


def read_secrets(path: Path) -> Secrets:
    """Read the secrets file.

    Raises:
        ConfigError: missing, open to others, or not as it should be. Security: it never quotes a value.
    """
    private_files.check_private(path)
    tables = read_tables(path, "secrets of notifications")
    known = Secrets.__dataclass_fields__
    for name, value in tables.items():
        if name not in known:
            raise ConfigError(f"{path}: {name}: unknown key", remedy=suggestion(name, known, "known keys: "))
        if not isinstance(value, str) or not _SECRET.fullmatch(value):
            raise ConfigError(
                f"{path}: {name}: is not a text of printable ASCII characters", remedy="write it in quotes"
            )
    return Secrets(**tables)


def tls_context(ca_file: Path | None, key: str) -> ssl.SSLContext:
    """What a server's certificate is checked with; ``ConfigError`` names the key of an unusable file."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"{key}: {ca_file}: {error.strerror or 'holds no certificates'}", remedy="name a file in PEM"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether a host name or address stands for this machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(url: str, key: str, instead: str) -> None:
    """Refuse an address that would send in the clear, or that holds a password; it is not quoted.

    ``instead`` says what stands for a user name and password in the address of this ``key``.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or not re.fullmatch(r"[\x21-\x7e]+", url):
        raise ConfigError(f"{key}: is not an address", remedy='write "https://host/path"')
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ConfigError(
            f"{key}: begins with neither https:// nor http://localhost",
            remedy="use https; what is told is for your people alone",
        )
    if "@" in parts.netloc or parts.fragment:
        raise ConfigError(f"{key}: holds a user name or a fragment", remedy=f"remove it; {instead}")
