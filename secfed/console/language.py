"""In which language a person reads the pages: as chosen at the foot of a page, or as the browser asks."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secfed.audit.languages import ENGLISH, LANGUAGES, speaking

PARAMETER: Final = "language"  # of an address, and the cookie that keeps the choice


class Speaking:
    """ASGI middleware around the pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in the language of this person."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        chosen = request.query_params.get(PARAMETER)

        async def remembering(message: Message) -> None:
            if message["type"] == "http.response.start" and chosen in LANGUAGES:
                path = f"{scope.get('root_path', '')}/"
                cookie = f"{PARAMETER}={chosen}; Path={path}; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        with speaking(_language(request, chosen)):
            await self._app(scope, receive, remembering)


def _language(request: Request, chosen: str | None) -> str:
    asked = request.headers.get("accept-language", "").split(",")
    wishes = [chosen, request.cookies.get(PARAMETER), *(one.strip()[:2].lower() for one in asked)]
    return next((one for one in wishes if one is not None and one in LANGUAGES), ENGLISH)
