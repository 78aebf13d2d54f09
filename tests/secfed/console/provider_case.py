"""An identity provider on this machine: what Keycloak or Entra ID would answer, or something wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from secfed.deploy.notification.channels import NoRedirect

CLIENT: Final = "secfed-console"
SECRET: Final = "s3cret/+~of=the&client"
WEISS: Final = {
    "sub": "5f0c-77",
    "email": "dr.weiss@uk.example",
    "email_verified": True,
    "preferred_username": "weiss",
}
BRAUN: Final = {**WEISS, "sub": "81aa-02", "email": "it.braun@uk.example", "preferred_username": "braun"}

LOGIN: Final = (
    '<!DOCTYPE html><title>Login</title><form method="post"><button>Log in as Weiss</button></form>'
)

Claims = dict[str, Any]


def key(kid: str, kind: str = "EC") -> Any:
    parameters = {"kid": kid, "use": "sig"}
    return RSAKey.generate_key(2048, parameters) if kind == "RSA" else ECKey.generate_key("P-256", parameters)


def jwks(*keys: Any) -> dict[str, Any]:
    return {"keys": [one.as_dict(private=False) for one in keys]}


def signed(claims: Mapping[str, Any], by: Any, alg: str = "ES256") -> str:
    return str(
        jwt.encode(
            {"alg": alg, "kid": by.kid, "x5t": "a parameter of its own"}, dict(claims), by, algorithms=[alg]
        )
    )


class Provider:
    """One provider; every attribute may be changed between two sign-ins.

    Attributes:
        who: claims of the person who signs in next.
        public: whether the client needs no secret.
        forms: what the token endpoint was sent.
        asks_person: whether there is a page with a button, as in a browser.
    """

    def __init__(self, address: str) -> None:
        self.issuer = address
        self.key = key("one")
        self.begin_anew()

    def begin_anew(self) -> None:
        """As it was made."""
        self.who: Claims = dict(WEISS)
        self.public = True
        self.client = CLIENT
        self.error = ""
        self.extra: dict[str, Any] = {}  # over the metadata
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}  # by path, instead of the right ones
        self.changed: Callable[[Claims], Claims] = lambda claims: claims
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[dict[str, str]] = []
        self.forms: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.asks_person = False
        self.referrers: list[str] = []

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?tenant=1",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "code_challenge_methods_supported": ["plain", "S256"],
            **self.extra,
        }

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser is led after the person signed in."""
        self.asked.append(asked)
        back = {"state": asked["state"], "iss": self.issuer}
        if self.error:
            return f"{asked['redirect_uri']}?{urlencode({**back, 'error': self.error})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({**back, 'code': code})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """What RFC 6749, section 4.1.4, and RFC 7636, section 4.6, say."""
        self.forms.append(form)
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if (
            asked is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != asked["redirect_uri"]
            or asked.get("code_challenge_method") != "S256"
            or base64.urlsafe_b64encode(challenge).decode().rstrip("=") != asked.get("code_challenge")
        ):
            return 400, {"error": "invalid_grant", "error_description": "the provider's own words"}
        basic = base64.b64encode(f"{self.client}:{SECRET}".encode()).decode()
        known = form.get("client_secret") == SECRET or authorization == f"Basic {basic}"
        named = form.get("client_id", self.client) == self.client
        if not named or (not known and not self.public):
            return 401, {"error": "invalid_client"}
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": self.client,
            "iat": now,
            "exp": now + 300,
            "auth_time": now,
            "nonce": asked["nonce"],
            **self.who,
        }
        token = signed(self.changed(claims), self.key)
        return 200, {"access_token": "unused", "token_type": "Bearer", "id_token": token, "expires_in": 300}

    def leads_to(self, address: str) -> str:
        """Follow an address as a browser does, and log in; to where it is led."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect())
        try:
            opener.open(address, data=b"" if self.asks_person else None, timeout=30)
        except urllib.error.HTTPError as error:
            with error:
                return str(error.headers["Location"])
        raise AssertionError("not led on")


@contextmanager
def provider(tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    """A provider that answers as long as this lasts, over https with ``tls``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            made.referrers += self.headers.get_all("Referer", [])
            if parts.path == "/authorize" and made.asks_person:
                self.reply(200, {"Content-Type": "text/html"}, LOGIN.encode())
            elif parts.path == "/authorize":
                self.reply(302, {"Location": made.authorize(dict(parse_qsl(parts.query)))})
            elif parts.path == "/keys":
                self.reply_json(200, jwks(made.key))
            else:
                self.reply_json(200, made.metadata())

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                self.reply(302, {"Location": made.authorize(dict(parse_qsl(parts.query)))})
                return
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.reply_json(*made.token(dict(parse_qsl(form)), self.headers.get("Authorization", "")))

        def reply_json(self, status: int, content: Mapping[str, Any]) -> None:
            self.reply(status, {"Content-Type": "application/json"}, json.dumps(content).encode())

        def reply(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
            path = urlsplit(self.path).path
            made.paths.append(path)
            status, headers, body = made.answers.get(path, (status, headers, body))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Provider(f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}")
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
