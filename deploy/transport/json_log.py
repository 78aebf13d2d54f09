"""Logs for journald: one JSON object a line on standard output."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

_EXTRA: Final = "facts"  # logger.info("...", extra={"facts": {...}})


class JsonFormatter(logging.Formatter):
    """One line per record: time, level, logger, message, and facts.

    Security: no traceback, because its last line can hold anything; only the kind of an exception.
    """

    def __init__(self, words: Callable[[str], str] = str) -> None:
        super().__init__()
        self._words = words

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._words(record.getMessage()),
        }
        facts = getattr(record, _EXTRA, None)
        if isinstance(facts, dict):
            content.update({key: value for key, value in facts.items() if key not in content})
        if record.exc_info is not None and record.exc_info[0] is not None:
            content["exception"] = record.exc_info[0].__name__
        return json.dumps(content, ensure_ascii=False, default=str)


def log_as_json(
    level: str, stream: TextIO | None = None, *, words: Callable[[str], str] = str
) -> logging.Handler:
    """Let all loggers of secfed write JSON lines; other libraries' warnings too."""
    handler = logging.StreamHandler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonFormatter(words))
    root = logging.getLogger()
    for other in root.handlers[:]:  # a library that was imported before may have added one, with tracebacks
        if type(other) is logging.StreamHandler:
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("secfed").setLevel(level.upper())
    return handler
