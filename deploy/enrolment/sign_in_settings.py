"""The section ``[oidc]`` of ``site.toml``: who signs in to the console with OpenID Connect, and where."""

from __future__ import annotations

import re
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from secfed.config.schema import Strict
from secfed.deploy.notification.settings import check_url
from secfed.errors import ConfigError

# No comma and no bracket: they stand between names, and around issuers, in the decision log.
_ISSUER: Final = re.compile(r"[^\x00-\x20(),\x7f-\U0010ffff]{1,200}")


_ALLOWED: Final = re.compile(r"[^\s,()]{1,200}")  # as names are in ID tokens


class OidcSection(Strict):
    """``[oidc]``; without ``issuer``, nobody signs in."""

    issuer: str | None = Field(
        default=None,
        description='the address of the identity provider, as "https://login.uk.example/realms/uk"',
    )
    client_id: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="the name under which the identity provider knows the console",
    )
    client_secret_file: str | None = Field(
        default=None,
        min_length=1,
        description="a file with nothing but the client's secret, mode 0600, relative to the site's folder; "
        "without it the client is a public one",
    )
    port: int = Field(
        default=8600,
        ge=1024,
        le=65535,
        description="of this machine, that the provider leads back to: http://127.0.0.1:PORT/signed-in",
    )
    claim: Literal["email", "preferred_username", "sub"] = Field(
        default="email",
        description='"email", "preferred_username" or "sub": what the decision log calls a person',
    )
    allowed: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="an array of those who may decide, by that claim; without it, all who can sign in",
    )
    max_age_s: int = Field(
        default=3600, ge=60, le=43_200, description="seconds that a sign-in lasts, from 60 to 43200"
    )
    reauthenticate: bool = Field(
        default=True,
        description="true: the provider asks for the password with every sign-in; false: it need not",
    )
    ca_file: str | None = Field(
        default=None,
        min_length=1,
        description="PEM certificates that the provider's is issued under; without it, the machine's own",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.issuer is None:
            if self.model_fields_set:
                raise ConfigError(
                    "oidc.issuer: is missing, so that nobody would have to sign in",
                    remedy="add it, or remove the section [oidc]",
                )
            return self
        if self.client_id is None:
            raise ConfigError(
                "oidc.client_id: is missing",
                remedy="add it: the name that the identity provider gave the console",
            )
        check_url(self.issuer, "oidc.issuer", "the client's secret is in oidc.client_secret_file")
        if not _ISSUER.fullmatch(self.issuer) or urlsplit(self.issuer).query:
            raise ConfigError(
                "oidc.issuer: is longer than 200 characters, or holds a query, a comma or a bracket",
                remedy="write it as the provider's metadata have it",
            )
        for at, name in enumerate(self.allowed or ()):
            if not _ALLOWED.fullmatch(name):
                raise ConfigError(
                    f"oidc.allowed[{at}]: is empty or too long, or holds a blank, a comma or a bracket",
                    remedy="write the claim as the provider does, letter for letter",
                )
        return self
