"""Identity providers that are down, wrong or wrongly set; nothing secret is told of any."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("authlib", reason="needs the extra oidc")

from secfed.console import provider as asking
from secfed.console import serve
from secfed.console.guard import Guard
from secfed.console.provider import Provider
from secfed.deploy.enrolment.sign_in_settings import OidcSection
from secfed.errors import ConfigError, LinkError
from tests.deploy.agent_case import NAMES
from tests.deploy.notify_case import tls_of
from tests.ports import free_port
from tests.secfed.console import provider_case
from tests.secfed.console.provider_case import CLIENT, SECRET
from tests.secfed.console.sign_in_case import READ, STUDY, Case, said
from tests.secfed.run_case import secfed

METADATA = "/.well-known/openid-configuration"


class TestTheProvider:
    def test_one_that_is_down_is_one_sentence_and_reading_goes_on(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        with provider_case.provider() as gone:
            case = Case(folder, gone)
            address = gone.leads_to(case.leave())
        assert "Connection refused" in said(case.answered(address))
        assert f"{gone.issuer}: Connection refused" in said(case.opened.answer(case.client, "/sign-in"))
        for page in READ:
            assert case.client.get(page).status_code == 200
        assert case.decide() == 409

    @pytest.mark.parametrize(
        ("path", "answer", "told"),
        [
            (METADATA, (302, {"Location": "/keys"}, b""), "redirects are not followed"),
            (METADATA, (500, {}, b""), "HTTP 500"),
            (METADATA, (200, {}, b"<html>"), "something else than JSON"),
            (METADATA, (200, {}, b"[]"), "something else than JSON"),
            (METADATA, (200, {}, b"{}"), "by another name"),
            (METADATA, (200, {}, b"[" * 100_000), "something else than JSON"),
            (METADATA, (200, {}, b" " * 1_100_000), "more than 1048576 bytes"),
            ("/token", (307, {"Location": "/keys"}, b""), "redirects are not followed"),
            ("/token", (503, {}, b"{}"), "HTTP 503"),
            ("/token", (200, {}, b"secret <html>"), "cannot be read"),
            ("/token", (200, {}, b'{"access_token": "a", "token_type": "Bearer"}'), "gave no ID token"),
            ("/token", (200, {}, b'{"id_token": "x", "expires_in": "soon"}'), "cannot be read"),
            ("/token", (200, {}, b'{"id_token": "x", "expires_in": 1e999}'), "cannot be read"),
            ("/token", (200, {}, b"[" * 100_000), "cannot be read"),
            ("/token", (400, {}, b'{"error": "<b>words</b>"}'), "refuses the code"),
            ("/keys", (302, {"Location": "/"}, b""), "redirects are not followed"),
            ("/keys", (200, {}, b"{}"), "no valid signature"),
        ],
    )  # fmt: skip
    def test_one_that_answers_with_something_else(
        self, case: Case, path: str, answer: tuple[int, dict[str, str], bytes], told: str
    ) -> None:
        case.provider.answers = {path: answer}
        if path == METADATA:
            page = case.opened.answer(case.client, "/sign-in")
        else:
            page = case.answered(case.provider.leads_to(case.leave()))
        text = said(page)
        assert told in text
        assert "words" not in text
        assert "secret" not in text
        assert case.sign_in.person is None

    @pytest.mark.parametrize(
        ("extra", "told"),
        [
            ({"issuer": "https://login.evil.example"}, "by another name"),
            (
                {"token_endpoint": "http://login.uk.example/token"},
                "token_endpoint: begins with neither https",
            ),
            ({"jwks_uri": None}, "jwks_uri: is"),
            ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint: is not an address"),
            ({"authorization_endpoint": 'https://x/"><script>'}, ""),
            ({"code_challenge_methods_supported": ["plain"]}, "does not offer PKCE"),
        ],
    )
    def test_metadata_that_cannot_be_used(self, case: Case, extra: dict[str, Any], told: str) -> None:
        case.provider.extra = extra
        page = case.opened.answer(case.client, "/sign-in")
        assert "<script" not in page.text
        if told:
            assert told in said(page)

    def test_a_provider_with_tls_has_no_address_without(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        issuer = "https://login.uk.example"
        right = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), f"{issuer}/x")
        asks = Provider(OidcSection(issuer=issuer, client_id=CLIENT), folder)
        for key in right:
            wrong = {"issuer": issuer, **right, key: "http://127.0.0.1:1234/x"}
            monkeypatch.setattr(asks._http, "get", lambda _url, wrong=wrong: wrong)
            with pytest.raises(LinkError, match=f"{key}: does not begin with https"):
                asks.metadata()
        monkeypatch.setattr(asks._http, "get", lambda _url: {"issuer": issuer, **right})
        assert asks.metadata()

    def test_a_provider_on_this_machine_is_asked_without_a_proxy(
        self, case: Case, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        case.sign_in._provider = Provider(case.section, case.opened.site.folder)
        assert case.enter().status_code == 303

    @pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
    def test_one_that_answers_without_end_is_given_up(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
    ) -> None:
        """A byte now and then, before or in its answer, so that no single step takes too long."""
        monkeypatch.setattr(asking, "_LONGEST_S", 0.2)
        done = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(begun)
                for _ in range(100):
                    if done.wait(0.05):
                        break
                    connection.sendall(b"H")

        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=drip, daemon=True)
            thread.start()
            section = OidcSection(issuer=f"http://127.0.0.1:{listening.getsockname()[1]}", client_id=CLIENT)
            with pytest.raises(LinkError, match=r"no whole answer in 0\.2 s"):
                Provider(section, folder).metadata()
            done.set()
            thread.join(30)

    def test_addresses_end_with_or_without_a_slash(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        case = Case(folder, provider)
        case.sign_in._provider = Provider(OidcSection(issuer=f"{provider.issuer}/", client_id=CLIENT), folder)
        provider.extra = {"issuer": f"{provider.issuer}/"}
        case.leave()
        assert provider.paths == [METADATA]

    def test_tls_is_checked(self, folder: Path) -> None:
        context, trusted = tls_of(folder)
        with provider_case.provider(context) as over_tls:
            over_tls.leads_to = lambda address: over_tls.authorize(dict(parse_qsl(urlsplit(address).query)))  # type: ignore[method-assign]
            assert Case(folder, over_tls, ca_file=trusted.name).enter().status_code == 303
            answer = (case := Case(folder, over_tls)).opened.answer(case.client, "/sign-in")
            assert "its certificate is not valid" in said(answer)
        context, trusted = tls_of(folder, "127.0.0.2")
        with provider_case.provider(context) as elsewhere:
            answer = (case := Case(folder, elsewhere, ca_file=trusted.name)).opened.answer(
                case.client, "/sign-in"
            )
            assert "its certificate is not valid" in said(answer)

    def test_no_code_token_or_secret_is_told(
        self, folder: Path, provider: provider_case.Provider, caplog: pytest.LogCaptureFixture
    ) -> None:
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o600)
        provider.public = False
        caplog.set_level(logging.DEBUG)
        case = Case(folder, provider, client_secret_file="secret")
        pages = [case.enter().text, case.client.get(STUDY).text]
        provider.changed = lambda claims: {**claims, "exp": 1}
        pages += [case.enter().text, case.client.get("/").text]
        own = [
            one for one in caplog.records if not one.name.startswith("http")
        ]  # not the client's of this test
        told = "".join([one.getMessage() for one in own] + pages) + repr(case.sign_in.__dict__)
        case.back(case.provider.leads_to(case.leave()))  # and while a sign-in is under way
        told += repr(case.sign_in._underway)
        code = next(iter(provider.codes))
        assert code not in told
        underway = case.sign_in._underway
        assert underway is not None
        assert underway.asked.verifier not in told
        for form in provider.forms:
            for name in ("code", "code_verifier", "client_secret"):
                assert form.get(name, SECRET) not in told
        assert all(asked["state"] not in told and asked["nonce"] not in told for asked in provider.asked)


def test_a_link_error_says_where_and_what_to_do(folder: Path) -> None:
    section = OidcSection(issuer="http://127.0.0.1:9/realms/uk", client_id=CLIENT)
    with pytest.raises(LinkError, match=r"^http://127\.0\.0\.1:9: .*reading goes on without it"):
        Provider(section, folder).metadata()


@contextmanager
def monkeypatched_server() -> Iterator[list[tuple[Guard, list[socket.socket]]]]:
    """Nothing is served; gives the guards that would be, and where."""
    served: list[tuple[Guard, list[socket.socket]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            serve.uvicorn.Server, "run", lambda self, sockets: served.append((self.config.app, sockets))
        )
        yield served


class TestSettings:
    """What ``secfed console`` makes of ``[oidc]`` in site.toml."""

    @staticmethod
    def write(folder: Path, text: str = "", issuer: str = "https://login.uk.example") -> Path:
        site = folder / NAMES[0]
        with (site / "site.toml").open("a") as file:
            file.write(f'\nissuer = "{issuer}"\nclient_id = "{CLIENT}"\n{text}')
        return site

    def test_a_hospital_that_names_a_provider_has_a_sign_in(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        site = self.write(folder, f"max_age_s = 60\nport = {free_port()}", provider.issuer)
        console = serve.opened([site])
        assert console.sign_in is not None
        assert console.person is None
        told: list[str] = []
        with monkeypatched_server() as served:
            serve.serve(console, 0, told.append)
        ((guard, sockets),) = served
        assert f":{console.sign_in.port}/" not in told[0]
        assert guard._sign_in is console.sign_in
        assert len(sockets) == 2

    def test_a_port_that_is_taken_is_one_clear_error(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            console = serve.opened([self.write(folder, f"port = {port}", provider.issuer)])
            with monkeypatched_server() as served, pytest.raises(ConfigError) as caught:
                serve.serve(console, 0, lambda _address: None)
        assert caught.value.message == f"oidc.port {port}: Address already in use"
        assert "at the identity provider" in caught.value.remedy
        assert not served

    def test_pages_where_people_sign_in_have_no_port_that_others_know(
        self, folder: Path, provider: provider_case.Provider
    ) -> None:
        console = serve.opened([self.write(folder, f"port = {free_port()}", provider.issuer)])
        with monkeypatched_server() as served, pytest.raises(ConfigError, match="no port that others know"):
            serve.serve(console, free_port(), lambda _address: None)
        assert not served

    def test_a_secret_that_others_can_read_is_refused(self, folder: Path) -> None:
        site = self.write(folder, 'client_secret_file = "secret"')
        for mode, content, told in (
            (0o644, SECRET, "secret"),
            (0o600, "", "holds something else than one secret"),
            (0o600, f"{SECRET} {SECRET}", "holds something else than one secret"),
        ):
            (site / "secret").write_text(content)
            (site / "secret").chmod(mode)
            with pytest.raises(ConfigError, match=told) as caught:
                serve.opened([site])
            assert SECRET not in str(caught.value)
        (site / "secret").unlink()
        with pytest.raises(ConfigError, match="secret"):
            serve.opened([site])

    def test_certificates_that_are_none(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"^oidc\.ca_file: "):
            serve.opened([self.write(folder, 'ca_file = "policy.toml"')])

    def test_a_missing_extra_is_one_line(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        site = self.write(folder)
        for name in [one for one in sys.modules if one.startswith(("authlib", "secfed.console.provider"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "authlib", None)
        done = secfed("console", site)
        assert done.exit_code == 2
        assert "needs the package authlib" in done.output
        assert ".[oidc]" in done.output
