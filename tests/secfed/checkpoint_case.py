"""Three sites that answer what they are told to, and a power cut: for tests of resumed runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SITES = ("a", "b", "c")


class Crash(BaseException):
    """The power goes off."""


def answers(reply: Mapping[str, bytes], calls: list[Any] | None = None) -> Any:
    def ask(stage: str, requests: Mapping[str, Any], on_reply: Any) -> None:
        if calls is not None:
            calls.append((stage, sorted(requests)))
        for site in requests:
            if site in reply:
                on_reply(site, reply[site])

    return ask
