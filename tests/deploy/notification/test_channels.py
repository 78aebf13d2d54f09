"""Messages on their way: CloudEvents by HTTP, plain text by SMTP, and what a failure says."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from secfed.deploy.notification.channels import DeliveryFailed, Email, Webhook, channels_of, try_all
from secfed.deploy.notification.message import Event, Message
from secfed.deploy.notification.settings import EmailSection, NotificationsSection, WebhookSection
from secfed.errors import ConfigError
from tests.deploy.notify_case import NOW, MailServer, WebServer, free_port, served, tls_of

EVENT = Event("study.held", "heart-1", "study heart-1 waits", "approve it", {"near_twins": 2, "end": None})
MESSAGE = Message.of(EVENT, "secfed:site:charite", NOW)
PLAIN = ssl.create_default_context()
PEOPLE = ("it@uk.example", "dpo@uk.example")


@pytest.fixture
def web() -> Iterator[WebServer]:
    with served(WebServer()) as server:
        yield server


def email(server: MailServer, **more: object) -> EmailSection:
    facts = {"host": "127.0.0.1", "port": server.port, "sender": "secfed@uk.example", "to": PEOPLE}
    return EmailSection.model_validate({**facts, **more})


def test_a_webhook_is_a_cloud_event_in_structured_mode(web: WebServer) -> None:
    assert Webhook(web.url, "s3cret", PLAIN).deliver(MESSAGE) == "HTTP 204"
    ((path, headers, _),) = web.asked
    assert path == "/hook"
    assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert headers["Authorization"] == "Bearer s3cret"
    assert web.events == [
        {
            "specversion": "1.0",
            "id": MESSAGE.id,
            "source": "secfed:site:charite",
            "type": "secfed.study.held",
            "subject": "heart-1",
            "time": "2026-03-02T12:00:00Z",
            "datacontenttype": "application/json",
            "data": {
                "text": "study heart-1 waits",
                "remedy": "approve it",
                "near_twins": 2,
                "end": None,
            },
        }
    ]


def test_https_needs_a_certificate_that_is_valid_for_the_server(web: WebServer, tmp_path: Path) -> None:
    context, trusted = tls_of(tmp_path)
    web.socket = context.wrap_socket(web.socket, server_side=True)
    url = web.url.replace("http:", "https:")
    with pytest.raises(DeliveryFailed, match="certificate is not valid"):
        Webhook(url, "s3cret", PLAIN).deliver(MESSAGE)
    assert web.asked == []
    (known,) = channels_of(
        tmp_path, NotificationsSection(), WebhookSection(url=url, ca_file=trusted.name), EmailSection()
    )
    assert known.deliver(MESSAGE) == "HTTP 204"


def test_no_redirect_is_followed_and_no_proxy_asked_for_this_machine(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with served(WebServer()) as other:
        web.status, web.location = 302, other.url
        with pytest.raises(DeliveryFailed, match="HTTP 302; redirects are not followed"):
            Webhook(web.url, "s3cret", PLAIN).deliver(MESSAGE)
        assert other.asked == []
    assert len(web.asked) == 1


@pytest.mark.parametrize("status", [400, 410, 429, 500])
def test_a_server_that_takes_nothing_is_named_without_its_path(web: WebServer, status: int) -> None:
    web.status = status
    with pytest.raises(DeliveryFailed) as caught:
        Webhook(web.url, None, PLAIN).deliver(MESSAGE)
    assert caught.value.message == f"http://127.0.0.1:{web.server_port}: HTTP {status}"


def test_a_mail_goes_out_under_tls_with_a_login(tmp_path: Path) -> None:
    context, trusted = tls_of(tmp_path)
    secrets = tmp_path / "secrets.toml"
    secrets.write_text('smtp_password = "s3cret"\n')
    secrets.chmod(0o600)
    with served(MailServer(context)) as server:
        (way,) = channels_of(
            tmp_path,
            NotificationsSection(secrets="secrets.toml"),
            WebhookSection(),
            email(server, user="secfed", ca_file=str(trusted)),
        )
        assert way.deliver(MESSAGE) == "taken for 2 of 2"
    (mail,) = server.mails
    assert [line.split()[0].upper() for line in server.said].count("RCPT") == 2
    assert set(server.in_the_clear) == {"EHLO", "STARTTLS"}
    assert mail["Subject"] == "[secfed] charite: study heart-1 waits"
    assert mail["To"] == ", ".join(PEOPLE)
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"] == f"<{MESSAGE.id}@uk.example>"
    assert mail.get_content_type() == "text/plain"
    assert "What to do: approve it\r\n" in mail.get_content()
    assert "near_twins: 2\r\n" in mail.get_content()
    assert "s3cret" not in repr(way)


def test_without_tls_nothing_is_said_to_a_mail_server(tmp_path: Path) -> None:
    context, _ = tls_of(tmp_path)
    with served(MailServer()) as old, served(MailServer(context)) as unknown:
        with pytest.raises(DeliveryFailed, match="no STARTTLS"):
            Email(email(old, user="secfed"), "s3cret", PLAIN).deliver(MESSAGE)
        with pytest.raises(DeliveryFailed, match="certificate is not valid"):
            Email(email(unknown, user="secfed"), "s3cret", PLAIN).deliver(MESSAGE)
        local = email(old, starttls=False)
        assert Email(local, None, PLAIN).deliver(MESSAGE) == "taken for 2 of 2"
    assert not {"AUTH", "MAIL", "DATA"} & set(unknown.in_the_clear)
    assert len(old.mails) == 1


def test_what_a_server_says_is_not_repeated(tmp_path: Path) -> None:
    with served(MailServer()) as server:
        for verb, code in (("AUTH", 535), ("MAIL", 451), ("RCPT", 550), ("DATA", 554)):
            server.refuse = {verb: code}
            section = email(server, starttls=False, user="secfed")
            with pytest.raises(DeliveryFailed) as caught:
                Email(section, "s3cret", PLAIN).deliver(MESSAGE)
            assert f"SMTP {code}" in str(caught.value)
            assert "4711" not in str(caught.value)


def test_nobody_there_is_a_failure_with_a_remedy(tmp_path: Path) -> None:
    port = free_port()
    ways = (
        Webhook(f"http://127.0.0.1:{port}/", None, PLAIN),
        Email(
            EmailSection(host="127.0.0.1", port=port, sender=PEOPLE[0], to=PEOPLE[:1], starttls=False),
            None,
            PLAIN,
        ),
    )
    for _, said in try_all(ways, "secfed:site:charite", NOW):
        assert isinstance(said, DeliveryFailed)
        assert "refused" in said.message
        assert "secfed agent notify --test" in said.remedy


def test_texts_cannot_write_headers_or_lines_of_their_own() -> None:
    event = Event(
        "study.refused", "x\r\nBcc: all", "a\nBcc: b@c.example", facts={"why": "\x1b[31m" + "y" * 9999}
    )
    message = Message.of(event, "secfed:site:charite", NOW)
    mail = message.as_email(PEOPLE[0], PEOPLE)
    assert "Bcc" not in mail
    assert "\n" not in message.subject + message.text
    assert "\x1b" not in mail.as_string()
    assert len(str(message.facts["why"])) == 600


def test_an_unusable_file_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for name in ("empty.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=rf"webhook\.ca_file: .*{name}"):
            channels_of(
                tmp_path,
                NotificationsSection(),
                WebhookSection(url="https://a.example/", ca_file=name),
                EmailSection(),
            )
