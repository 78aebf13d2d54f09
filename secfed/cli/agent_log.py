"""What ``secfed agent run`` says on a terminal; elsewhere its log is JSON (json_log.py of the transport)."""

from __future__ import annotations

import json
import logging
from datetime import datetime

from secfed.deploy.transport.json_log import JsonFormatter
from secfed.terminal.consoles import plain_text


class PersonFormatter(JsonFormatter):
    """One line per record: the time of this machine, what happened, and to which study.

    Security: as :class:`JsonFormatter`; characters that could act on the terminal are replaced.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        content = json.loads(super().format(record))
        level = "" if record.levelno < logging.WARNING else f"{content['level']}: "
        name, _, digest = str(content.get("study", "")).rpartition("-")
        study = f" ({name} {digest[:16]})" if name and name not in content["message"] else ""
        at = datetime.fromtimestamp(record.created).astimezone()
        return plain_text(f"{at:%H:%M:%S} {level}{content['message']}{study}")
