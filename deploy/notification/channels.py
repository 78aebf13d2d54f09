"""Webhook and e-mail: one attempt to deliver one message, or why it failed.

Security: to the configured server only (no redirect is followed), and under a verified certificate unless
that is this machine itself. A failure is told without the words of the server, paths and secrets.
"""

from __future__ import annotations

import os
import smtplib
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from secfed.deploy.notification.message import MEDIA_TYPE, Event, Message
from secfed.deploy.notification.settings import (
    EmailSection,
    NotificationsSection,
    Secrets,
    WebhookSection,
    is_loopback,
    read_secrets,
    tls_context,
)
from secfed.errors import ConfigError, LinkError

TIMEOUT_S: Final = 10.0  # for each answer of a server

_REMEDY: Final = "check address, secrets and firewall, then: secfed agent notify --test"

# What comes of networks, TLS and SMTP (an OSError, each), and of answers that are none.
FAILURES: Final = (OSError, HTTPException, ValueError, EOFError)


class DeliveryFailed(LinkError):
    """A message that a server did not take."""


class Channel(Protocol):
    """A way to people."""

    @property
    def name(self) -> str:
        """As the outbox calls it."""

    @property
    def where(self) -> str:
        """The server, for the log."""

    def deliver(self, message: Message) -> str:
        """Deliver a message; what the server said, in a word. ``DeliveryFailed`` if it did not take it."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is a failure: what is sent is for the configured server."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Nowhere: urllib raises the answer as an error."""
        return


@dataclass(frozen=True)
class Webhook:
    """POSTs CloudEvents."""

    url: str = field(repr=False)
    token: str | None = field(repr=False)
    context: ssl.SSLContext = field(repr=False)
    name: str = "webhook"

    @property
    def where(self) -> str:
        """The server, without the path, which may hold a secret of its own."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def deliver(self, message: Message) -> str:
        """One POST."""
        headers = {"Content-Type": MEDIA_TYPE, "User-Agent": "secfed"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url, message.as_cloud_event(), headers)  # noqa: S310 - checked
        here = is_loopback(urlsplit(self.url).hostname or "")
        proxies = urllib.request.ProxyHandler({} if here else None)  # else those of the environment
        https = urllib.request.HTTPSHandler(context=self.context)
        opener = urllib.request.build_opener(proxies, https, NoRedirect())
        try:
            with opener.open(request, timeout=TIMEOUT_S) as reply:
                return f"HTTP {reply.status}"
        except urllib.error.HTTPError as error:
            error.close()
            more = "; redirects are not followed" if 300 <= error.code < 400 else ""
            raise DeliveryFailed(f"{self.where}: HTTP {error.code}{more}", remedy=_REMEDY) from None
        except FAILURES as error:
            raise DeliveryFailed(f"{self.where}: {why_it_failed(error)}", remedy=_REMEDY) from None


@dataclass(frozen=True)
class Email:
    """Sends plain text through one mail server."""

    settings: EmailSection
    password: str | None = field(repr=False)
    context: ssl.SSLContext = field(repr=False)
    name: str = "email"

    @property
    def where(self) -> str:
        """The server."""
        return f"smtp://{self.settings.host}:{self.settings.port}"

    def deliver(self, message: Message) -> str:
        """One mail to all recipients."""
        settings = self.settings
        mail = message.as_email(settings.sender or "", settings.to)
        try:
            with smtplib.SMTP(settings.host or "", settings.port, timeout=TIMEOUT_S) as server:
                if settings.starttls:
                    server.starttls(context=self.context)
                if settings.user is not None:
                    server.login(settings.user, self.password or "")
                refused = server.send_message(mail)
        except FAILURES as error:
            raise DeliveryFailed(f"{self.where}: {why_it_failed(error)}", remedy=_REMEDY) from None
        taken = f"taken for {len(settings.to) - len(refused)} of {len(settings.to)}"
        codes = sorted({code for code, _ in refused.values()})
        return taken + (f"; SMTP {', '.join(map(str, codes))} for the others" if codes else "")


def channels_of(
    folder: Path, notifications: NotificationsSection, webhook: WebhookSection, email: EmailSection
) -> tuple[Channel, ...]:
    """What the settings of a folder name; empty where nobody wants to be told.

    Raises:
        ConfigError: the secrets file or a file of certificates cannot be used.
    """
    secrets = Secrets() if notifications.secrets is None else read_secrets(folder / notifications.secrets)
    found: list[Channel] = []
    if webhook.url is not None:
        found.append(
            Webhook(webhook.url, secrets.webhook_token, _context(folder, webhook.ca_file, "webhook"))
        )
    if email.host is not None:
        if email.user is not None and secrets.smtp_password is None:
            raise ConfigError(
                "email.user: has no password",
                remedy="write smtp_password into the file that notifications.secrets names, mode 0600",
            )
        found.append(Email(email, secrets.smtp_password, _context(folder, email.ca_file, "email")))
    return tuple(found)


def try_all(
    channels: Sequence[Channel], source: str, now: datetime
) -> Iterator[tuple[Channel, str | DeliveryFailed]]:
    """Send a test message by each channel; what its server said, or why it failed."""
    event = Event("test", "test", "this is a test: messages of secfed arrive here", "nothing")
    for channel in channels:
        try:
            yield channel, channel.deliver(Message.of(event, source, now))
        except DeliveryFailed as error:
            yield channel, error


def _context(folder: Path, ca_file: str | None, section: str) -> ssl.SSLContext:
    return tls_context(None if ca_file is None else folder / ca_file, f"{section}.ca_file")


def why_it_failed(error: Exception) -> str:
    """A failure in a few words, none of them the server's."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = sorted({code for code, _ in error.recipients.values()})
        return f"SMTP {', '.join(map(str, codes))} for every recipient"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"SMTP {error.smtp_code}"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return "the server offers no STARTTLS, or no way to log in"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {reason.verify_message}"
    if isinstance(reason, socket.gaierror):
        return "the name is not known"
    if isinstance(reason, TimeoutError):
        return f"no answer in {TIMEOUT_S:g} s"
    if isinstance(reason, OSError) and reason.errno:
        return os.strerror(reason.errno) if reason.errno > 0 else type(reason).__name__
    return type(reason).__name__
