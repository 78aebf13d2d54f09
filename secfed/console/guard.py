"""Who may see a page of the console, and which form may change something.

1. The Host header is 127.0.0.1 with the console's port: another name that leads here (DNS rebinding) is
   refused, and so is `localhost`, which may be [::1], where another account can listen at the same port.
2. A token from the terminal is exchanged, once, for a cookie; without it there is no page. Every page is
   below a path that is not printed and cannot be guessed, and the cookie is sent there alone: browsers do not
   keep ports apart, and a server of another account on this machine, at another port, would be sent it too.
3. A form changes something only with the cookie, a token that the page itself holds (CSRF), and an Origin
   header that names this console.
4. No page loads anything from elsewhere, runs a script, or is shown inside another page.
5. Where people sign in, the identity provider leads them back to a port that it must know beforehand. Whoever
   served that port earlier can have left a service worker in the browser, which reads everything there: so
   there is one page, which says nothing but to go back. The console's own pages, at a port that nobody knows
   beforehand, take what has landed (sign_in.py).

Security: whoever reads this account's memory, files or terminal is not kept out; they could use the command
line as well.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secfed.audit.languages import LANGUAGES, say, speaking
from secfed.console.sign_in import LOOPBACK, SIGNED_IN, SignIn

ENTER: Final = "/enter"
_MOST_BYTES: Final = 1 << 16  # of a form
_MOST_FIELDS: Final = 50
_SAFE: Final = ("GET", "HEAD")
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer", under which browsers send forms with "Origin: null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_ENTRY: Final = (
    "This page is for the person who started the console. Open the address that the terminal printed; it "
    "works once. For a new one, end the console and start it again."
)

# Not a redirect: where the address was clicked on a page of another site, a redirect counts as coming from
# there, and is asked for without the cookie.
_ONWARDS: Final = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>secfed console</title>'
    '<meta http-equiv="refresh" content="0; url={address}"></head>'
    '<body><p><a href="{address}">Open the console</a></p></body></html>'
)
_NOT_ASKED: Final = (
    "This answers no sign-in that waits here. Go back to the tab with the console, and sign in again."
)
_GO_BACK: Final = "The answer has arrived. Go back to the tab with the console; you can close this one."


class Guard:
    """ASGI middleware in front of every page.

    Args:
        app: the pages; a form is in ``scope["state"]["form"]``, the token for forms in ``["csrf"]``.
        port: that the console listens on.
        sign_in: takes what an identity provider leads back with, at a port of its own.

    Attributes:
        base: the path that all pages are below; pages find it in ``scope["root_path"]``.
    """

    def __init__(self, app: ASGIApp, port: int, sign_in: SignIn | None = None) -> None:
        self._app, self._sign_in = app, sign_in
        self._host = f"{LOOPBACK}:{port}"
        self._cookie = f"secfed_console_{port}"  # two consoles in one browser
        self._session = secrets.token_urlsafe(32)
        self.base = f"/{secrets.token_hex(16)}"
        self.token: str | None = secrets.token_urlsafe(32)  # None once it was used
        self.csrf = hmac.new(self._session.encode(), b"forms of the console", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on what is permitted."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # no page opens a WebSocket
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = await self._refusal(scope, receive)
        await (refusal or self._app)(scope, receive, guarded)

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        """The answer instead of the page; None for what may go on."""
        headers = Headers(scope=scope)
        method = scope["method"]
        if self._sign_in is not None and headers.getlist("host") == [f"{LOOPBACK}:{self._sign_in.port}"]:
            return self._land(scope, self._sign_in)
        if headers.getlist("host") != [self._host]:
            return _text(
                "The console answers under the address that the terminal printed, and no other.", 403
            )
        if method not in (*_SAFE, "POST"):
            return _text("The console does not know this method.", 405)
        if scope["path"] == ENTER:
            return self._enter(scope)
        if not self._is_below_base(scope["path"]):
            return _text(_NO_ENTRY, 403)
        scope["root_path"] = self.base
        if not self._has_cookie(headers):
            return _text(_NO_ENTRY, 403)
        scope.setdefault("state", {})["csrf"] = self.csrf
        if method in _SAFE:
            return None
        if headers.getlist("origin") != [f"http://{self._host}"]:
            return _text("This form does not come from the console. Nothing was changed.", 403)
        form = await _form(receive)
        if form is None:
            return _text("This is not a form of the console. Nothing was changed.", 400)
        if not secrets.compare_digest(form.get("csrf", "").encode(), self.csrf.encode()):
            return _text(
                "This form is from an earlier console. Load the page again. Nothing was changed.", 403
            )
        scope["state"]["form"] = form
        return None

    def _land(self, scope: Scope, sign_in: SignIn) -> Response:
        """All that there is at the port that the provider knows; nothing secret, whatever comes."""
        if scope["method"] != "GET" or scope["path"] != SIGNED_IN:
            return _text(_NO_ENTRY, 403)
        if not sign_in.landed(scope["query_string"].decode("latin-1")):
            return _text(_NOT_ASKED, 403)
        return HTMLResponse(_landed_page())

    def _enter(self, scope: Scope) -> Response:
        given = scope["query_string"].decode("latin-1").removeprefix("token=")
        if scope["method"] != "GET" or self.token is None:
            return _text(_NO_ENTRY, 403)
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return _text(_NO_ENTRY, 403)
        self.token = None
        response = HTMLResponse(_ONWARDS.format(address=f"{self.base}/"))
        response.set_cookie(
            self._cookie, self._session, httponly=True, samesite="strict", path=f"{self.base}/"
        )
        return response

    def _is_below_base(self, path: str) -> bool:
        below = f"{self.base}/".encode()
        return secrets.compare_digest(path.encode()[: len(below)], below)

    def _has_cookie(self, headers: Headers) -> bool:
        # Any port of this machine can add cookies, of this name too and of no form: they must not hide ours.
        ours = f"{self._cookie}={self._session}".encode()
        sent = ";".join(headers.getlist("cookie")).split(";")
        return any(secrets.compare_digest(one.strip().encode(), ours) for one in sent)


async def _form(receive: Receive) -> dict[str, str] | None:
    """The fields of a form, each once; None for anything that is not one."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > _MOST_BYTES:
            return None
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None
    return {name: values[0] for name, values in fields.items() if len(values) == 1}


def _landed_page() -> str:
    """In every language: which one the person reads is a cookie of the pages, and does not come here."""
    said = []
    for code in LANGUAGES:
        with speaking(code):
            said.append(f'<p lang="{code}">{escape(say(_GO_BACK))}</p>')
    head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>secfed console</title></head>'
    return f"{head}<body>{''.join(said)}</body></html>"


def _text(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, media_type="text/plain")
