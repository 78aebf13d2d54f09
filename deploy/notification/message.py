"""One message: what happened, what to do, and its two forms, a CloudEvent and an e-mail.

Security: facts that the receiving party may read anyway. No key, no loss, nothing about a single record.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from pydantic import Field

from secfed.config.schema import Strict
from secfed.storage import private_files

Fact = str | int | float | None

MEDIA_TYPE: Final = "application/cloudevents+json; charset=utf-8"

_LONGEST: Final = 600  # characters of one text: an outbox of such messages stays a small file


@dataclass(frozen=True)
class Event:
    """Something that people should know. Texts come from studies, too: :meth:`Message.of` cleans them."""

    kind: str  # such as "study.held"
    subject: str  # what it is about: a study, a data set ...
    text: str  # one sentence
    remedy: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


class Message(Strict):
    """An event on its way, as the outbox keeps it."""

    id: str = Field(pattern=r"^[0-9a-f]{32}$", description="32 hexadecimal digits")
    time_s: int = Field(ge=0, lt=private_files.LATEST_S, description="seconds since 1970")
    source: str = Field(description="who tells it, as a URI")
    kind: str = Field(description="the kind of the event")
    subject: str = Field(description="what it is about")
    text: str = Field(description="what happened")
    remedy: str = Field(description="what to do")
    facts: dict[str, Fact] = Field(description="a table")

    @classmethod
    def of(cls, event: Event, source: str, now: datetime) -> Message:
        """A message with an id of its own, which stays the same however often it is sent."""
        return cls(
            id=secrets.token_hex(16),
            time_s=int(now.timestamp()),
            source=source,
            kind=event.kind,
            subject=_clean(event.subject),
            text=_clean(event.text),
            remedy=_clean(event.remedy),
            facts={name: _clean(it) if isinstance(it, str) else it for name, it in event.facts.items()},
        )

    @property
    def time(self) -> datetime:
        """When it happened."""
        return datetime.fromtimestamp(self.time_s, UTC)

    def as_cloud_event(self) -> bytes:
        """As a body in CloudEvents' structured mode.

        Source: CloudEvents 1.0.2, sections 3.1 (attributes), and its JSON format, section 3.
        """
        content = {
            "specversion": "1.0",
            "id": self.id,
            "source": self.source,
            "type": f"secfed.{self.kind}",
            "subject": self.subject,
            "time": self.time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "datacontenttype": "application/json",
            "data": {"text": self.text, "remedy": self.remedy, **self.facts},
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()

    def as_email(self, sender: str, to: tuple[str, ...]) -> EmailMessage:
        """As plain text; a mail server can tell by its id that it had it before."""
        mail = EmailMessage()
        mail["From"], mail["To"] = sender, ", ".join(to)
        mail["Subject"] = f"[secfed] {self.source.rpartition(':')[2]}: {self.text}"[:200]
        mail["Date"] = format_datetime(self.time)
        mail["Message-ID"] = f"<{self.id}@{sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answering machine replies
        lines = [self.text, *([f"What to do: {self.remedy}"] if self.remedy else []), ""]
        lines += [f"{name}: {value}" for name, value in self.facts.items() if value is not None]
        lines += ["", f"secfed.{self.kind}, {self.time:%Y-%m-%d %H:%M} UTC, {self.source}, {self.id}"]
        mail.set_content("\n".join(lines))
        return mail


def _clean(text: str) -> str:
    """One line without control characters, of bounded length."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)[:_LONGEST]
