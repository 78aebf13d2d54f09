"""The hospital's identity provider: authorization code flow with PKCE, over Authlib.

Metadata and keys are asked for anew with every sign-in, once an hour or so; nothing of them is kept.

Security: asked over TLS under the machine's certificates (or ``oidc.ca_file``), a provider on this machine
itself excepted; no redirect is followed. Codes, tokens, verifiers and secrets are in no message and no log.
Source: OpenID Connect Core 1.0, section 3.1; Discovery 1.0, section 4; RFC 7636; RFC 9700, section 2.1.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.client import OAuth2Client

from secfed.console.id_token import UNREADABLE, person_of, refused
from secfed.console.sign_in import Asked, error_code
from secfed.deploy.admission.person import Person
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.deploy.notification.channels import FAILURES, TIMEOUT_S, NoRedirect, why_it_failed
from secfed.deploy.notification.settings import check_url, is_loopback, tls_context
from secfed.errors import ConfigError, LinkError
from secfed.storage import private_files

_METADATA: Final = "/.well-known/openid-configuration"
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_MOST_BYTES: Final = 1 << 20
_LONGEST_S: Final = 20.0  # that one answer may take, from the first byte to the last
_SECRET: Final = re.compile(rb"[\x21-\x7e]{1,4096}")
_SCOPES: Final = {"email": "openid email", "preferred_username": "openid profile", "sub": "openid"}
_REMEDY: Final = (
    "try again later; reading goes on without it. If it stays so: check oidc in site.toml, certificates "
    "and firewall"
)


@dataclass(frozen=True)
class _Answer:
    """What Authlib wants of an HTTP client's answer."""

    where: str
    status_code: int
    body: bytes = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.body)

    def raise_for_status(self) -> None:
        if self.status_code >= 300:
            more = "; redirects are not followed" if self.status_code < 400 else ""
            raise LinkError(f"{self.where}: HTTP {self.status_code}{more}", remedy=_REMEDY)


class _Http:
    """GET and POST, without redirects, and with a limit on what comes back."""

    def __init__(self, settings: OidcSection, folder: Path) -> None:
        ca_file = None if settings.ca_file is None else folder / settings.ca_file
        https = urllib.request.HTTPSHandler(context=tls_context(ca_file, "oidc.ca_file"))
        self._far = urllib.request.build_opener(https, NoRedirect())  # by the proxies of the environment
        self._near = urllib.request.build_opener(urllib.request.ProxyHandler({}), https, NoRedirect())

    def get(self, url: str) -> dict[str, Any]:
        """A JSON object. ``LinkError``: there is none."""
        answer = self._ask(urllib.request.Request(url))  # noqa: S310 - checked
        answer.raise_for_status()
        try:
            found = answer.json()
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise LinkError(f"{answer.where}: answers with something else than JSON", remedy=_REMEDY)
        return found

    def post(self, url: str, data: Mapping[str, str], headers: Mapping[str, str], auth: Any) -> _Answer:
        """A form, as Authlib sends it."""
        # A copy of the headers: Authlib's are shared, and a secret would stay in them.
        address, own, body = auth.prepare("POST", url, dict(headers), urlencode(data))
        return self._ask(urllib.request.Request(address, body.encode(), own))  # noqa: S310 - checked

    def _ask(self, request: urllib.request.Request) -> _Answer:
        parts = urlsplit(request.full_url)
        where = f"{parts.scheme}://{parts.netloc}"
        until, answer = time.monotonic() + _LONGEST_S, Future[_Answer]()

        def ask() -> None:
            try:
                answer.set_result(_Answer(where, *self._read(request, until)))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                answer.set_exception(error)

        # A thread: each step has a limit of its own, and a server can make endlessly many of them.
        Thread(target=ask, daemon=True).start()
        try:
            found = answer.result(_LONGEST_S)
        except FAILURES as error:
            slow = isinstance(error, TimeoutError)  # of one step, or of all together
            why = f"no whole answer in {_LONGEST_S:g} s" if slow else why_it_failed(error)
            raise LinkError(f"{where}: {why}", remedy=_REMEDY) from None
        if len(found.body) > _MOST_BYTES:
            raise LinkError(f"{where}: answers with more than {_MOST_BYTES} bytes", remedy=_REMEDY)
        return found

    def _read(self, request: urllib.request.Request, until: float) -> tuple[int, bytes]:
        """Status and body, of which nothing is read after ``until``, of the monotonic clock."""
        opener = self._near if is_loopback(urlsplit(request.full_url).hostname or "") else self._far
        try:
            reply = opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            reply = error  # an answer as well: the token endpoint says in it what was wrong
        body = b""
        with reply:
            while len(body) <= _MOST_BYTES and (piece := reply.read1(_MOST_BYTES)):
                body += piece
                if time.monotonic() > until:
                    raise TimeoutError
        return reply.status, body


class Provider:
    """The provider that ``[oidc]`` names. ``ConfigError``: secret or certificates cannot be read."""

    def __init__(self, settings: OidcSection, folder: Path) -> None:
        self._settings = settings
        self._http = _Http(settings, folder)
        self._secret = _secret(folder / settings.client_secret_file) if settings.client_secret_file else None

    @property
    def name(self) -> str:
        """Its address."""
        return str(self._settings.issuer)

    def metadata(self) -> dict[str, Any]:
        """What the provider says of itself. ``LinkError``: it does not, or not what is needed."""
        found = self._http.get(self.name.removesuffix("/") + _METADATA)
        if found.get("issuer") != self.name:
            raise LinkError(
                f"{self.name}: calls itself by another name", remedy="write oidc.issuer as it does"
            )
        for key in _ENDPOINTS:
            address = str(found.get(key))
            try:
                check_url(address, key, "it has none")
            except ConfigError as error:
                raise LinkError(f"{self.name}: {error.message}", remedy=_REMEDY) from None
            if self.name.startswith("https:") and not address.startswith("https:"):
                raise LinkError(f"{self.name}: {key}: does not begin with https", remedy=_REMEDY)
        methods = found.get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" not in methods:
            raise LinkError(
                f"{self.name}: does not offer PKCE with S256", remedy="let the provider permit it"
            )
        return found

    def address(self, asked: Asked) -> str:
        """Where the person's browser goes."""
        more: dict[str, Any] = {"nonce": asked.nonce, "code_verifier": asked.verifier}
        if self._settings.reauthenticate:
            more |= {"prompt": "login", "max_age": self._settings.max_age_s}
        client = self._client(asked)
        address, _ = client.create_authorization_url(
            asked.metadata["authorization_endpoint"], state=asked.state, **more
        )
        return str(address)

    def person(self, asked: Asked, code: str) -> Person:
        """Who signed in. ``PolicyRefused``: nobody, or nobody who may decide. ``LinkError``: no answer."""
        client = self._client(asked)
        try:
            answer = client.fetch_token(
                asked.metadata["token_endpoint"], code=code, code_verifier=asked.verifier
            )
            token = answer.get("id_token")
        except AuthlibBaseError as error:
            raise refused(f"the identity provider refuses the code{error_code(error.error)}") from None
        except UNREADABLE:
            raise refused("the identity provider's answer to the code cannot be read") from None
        if not isinstance(token, str):
            raise refused("the identity provider gave no ID token")
        keys = self._http.get(asked.metadata["jwks_uri"])
        return person_of(
            token, keys, self._settings, nonce=asked.nonce, begun_s=asked.begun_s, now_s=time.time()
        )

    def _client(self, asked: Asked) -> Any:
        # In the body where that is offered: Authlib does not encode what it puts into the header.
        methods = asked.metadata.get("token_endpoint_auth_methods_supported")
        in_body = isinstance(methods, list) and "client_secret_post" in methods
        return OAuth2Client(
            session=self._http,
            client_id=self._settings.client_id,
            client_secret=self._secret,
            token_endpoint_auth_method="client_secret_post" if self._secret and in_body else None,
            scope=_SCOPES[self._settings.claim],
            redirect_uri=asked.redirect_uri,
            code_challenge_method="S256",
        )


def _secret(path: Path) -> str:
    private_files.check_private(path)
    text = private_files.read(path, "a client's secret").strip()
    if not _SECRET.fullmatch(text):
        raise ConfigError(
            f"{path}: holds something else than one secret of printable ASCII characters",
            remedy="write the secret that the identity provider shows into it, and nothing more",
        )
    return text.decode("ascii")
