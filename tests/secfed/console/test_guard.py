"""Nobody but the person who started the console sees a page, and no page from elsewhere changes anything."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from secfed.console.guard import Guard
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from tests.secfed.console.console_case import BASE, DIGEST, PORT, WAITING, Opened

DECIDE = f"/studies/{DIGEST}/decide"
COOKIE = f"secfed_console_{PORT}"
OTHER = f"127.0.0.1:{PORT + 1}"
PAGES = (
    "/",
    "/studies",
    f"/studies/{DIGEST}",
    "/records",
    "/records/report.json",
    "/static/console.css",
    "/x",
)


def state(opened: Opened) -> ApprovalState | None:
    return Approvals(opened.site.approvals_path).state(WAITING.digest())


def test_the_token_is_exchanged_once_for_a_cookie_that_scripts_and_other_pages_do_not_get(
    opened: Opened,
) -> None:
    client, token = opened.client(), opened.guard.token
    for below in ("", opened.guard.base, f"/{'0' * 32}"):
        assert [client.get(below + page).status_code for page in PAGES] == [403] * len(PAGES)
    assert client.get("/enter?token=wrong").status_code == 403
    assert client.get("/enter").status_code == 403
    assert client.post(f"/enter?token={token}", headers={"Origin": BASE}).status_code == 403
    answer = client.get(f"/enter?token={token}")
    home = f"{opened.guard.base}/"
    assert answer.status_code == 200
    # No redirect: to the browser it would come from the page on which the address was clicked.
    assert f'content="0; url={home}"' in answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert token not in cookie
    assert client.get(home).status_code == 200
    again = opened.client()  # somebody who read the token in the terminal later
    assert again.get(f"/enter?token={token}").status_code == 403
    assert again.get(home).status_code == 403


def test_the_cookie_stays_below_a_path_that_nobody_can_guess(opened: Opened) -> None:
    """Browsers send cookies to every port of a machine, where servers of other accounts may listen."""
    client = opened.client()
    answer = client.get(f"/enter?token={opened.guard.token}")
    assert f"path={opened.guard.base}/;" in answer.headers["set-cookie"].lower()
    assert len(opened.guard.base) == 1 + 32
    assert Guard(opened.console, PORT).base != opened.guard.base  # type: ignore[arg-type]
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    for page in PAGES:
        assert opened.client().get(page, headers=cookie).status_code == 403
        assert opened.client().get(f"/{'0' * 32}{page}", headers=cookie).status_code == 403
    assert opened.client().get(f"{opened.guard.base}/", headers=cookie).status_code == 200


def test_every_address_on_a_page_is_below_that_path(opened: Opened) -> None:
    client = opened.entered()
    for page in ("/", "/studies", f"/studies/{DIGEST}", "/records", "/left", "/x"):
        found = re.findall(r'(?:href|action|src)="(/[^"]*)"', client.get(page).text)
        assert found
        assert all(address.startswith(f"{opened.guard.base}/") for address in found)
    assert 'aria-current="page">Studies' in client.get("/studies").text


@pytest.mark.parametrize("query", ["a&b&c&d&e&f&g", "%ff", "token", "token=%", "token=&token="])
def test_another_way_to_enter_opens_nothing_and_uses_nothing_up(opened: Opened, query: str) -> None:
    assert opened.client().get(f"/enter?{query}").status_code == 403
    opened.entered()


@pytest.mark.parametrize("other", [f"{COOKIE}=x", f"{COOKIE}=", "a b=1", "a[b]=1", 'c="x', "\xe4", ""])
def test_a_cookie_of_another_port_does_not_hide_that_of_the_console(opened: Opened, other: str) -> None:
    client = opened.client()
    own = client.get(f"/enter?token={opened.guard.token}").headers["set-cookie"].partition(";")[0]
    for cookies in (f"{other}; {own}", f"{own}; {other}", f"{other};{own};{other}"):
        headers = {"Cookie": cookies.encode("latin-1")}
        assert opened.client().get(f"{opened.guard.base}/", headers=headers).status_code == 200


@pytest.mark.parametrize("cookie", ["x", '"', f"{COOKIE}=", f"{COOKIE}=x", "a=b; ;"])
def test_another_cookie_opens_nothing(opened: Opened, cookie: str) -> None:
    below = opened.guard.base
    assert opened.client().get(f"{below}/", headers={"Cookie": cookie}).status_code == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"0.0.0.0:{PORT}", "",
     f"localhost:{PORT}", f"[::1]:{PORT}"],  # there another account can listen at the same port
)  # fmt: skip
def test_another_name_that_leads_here_is_refused_even_with_the_cookie(opened: Opened, host: str) -> None:
    client = opened.entered()
    assert client.get("/", headers={"Host": host}).status_code == 403
    assert client.post(DECIDE, headers={"Host": host, "Origin": f"http://{host}"}).status_code == 403
    assert client.get("/", headers={"Host": f"127.0.0.1:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", f"http://{OTHER}", f"https://127.0.0.1:{PORT}"]
)
def test_a_form_of_another_page_changes_nothing(opened: Opened, origin: str | None) -> None:
    client = opened.entered()
    assert opened.post(client, DECIDE, origin, decision="approve") == 403
    assert state(opened) is ApprovalState.HELD


def test_a_form_without_the_token_of_the_page_changes_nothing(opened: Opened) -> None:
    client = opened.entered()
    for csrf in ("", "0" * 64, "ä"):
        assert opened.post(client, DECIDE, decision="approve", csrf=csrf) == 403
    assert state(opened) is ApprovalState.HELD
    below = opened.guard.base
    assert opened.post(opened.client(), below + DECIDE, decision="approve") == 403  # no cookie


@pytest.mark.parametrize("body", [b"\xff", b"x" * (1 << 17), b"&".join(b"a=b" for _ in range(100))])
def test_what_is_no_form_is_refused(opened: Opened, body: bytes) -> None:
    answer = opened.entered().post(DECIDE, content=body, headers={"Origin": BASE})
    assert answer.status_code == 400
    assert state(opened) is ApprovalState.HELD


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(opened: Opened, method: str) -> None:
    assert opened.entered().request(method, "/").status_code == 405


def test_no_answer_may_load_run_or_be_framed(opened: Opened) -> None:
    client = opened.entered()
    for page in PAGES:
        headers = client.get(page).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "script-src" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
    assert client.get("/records/report.html").headers["content-security-policy"] == (
        "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
    )
    refused = opened.client().get("/")
    assert refused.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../site.toml", "/static/%2e%2e/identity.key", "/static/..%2fpolicy.toml", "/identity.key",
        "/records/../../etc/passwd", "/studies/..%2f..%2fidentity.key", "/studies/%00", "//etc/passwd",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(opened: Opened, path: str) -> None:
    answer = opened.entered().get(path)
    assert answer.status_code in (403, 404)  # what leads up leads out of the console
    assert "PRIVATE" not in answer.text


def test_a_web_socket_is_not_opened(opened: Opened) -> None:
    client: TestClient = opened.entered()
    with pytest.raises(Exception), client.websocket_connect("/"):  # noqa: B017 - any refusal will do
        pass
