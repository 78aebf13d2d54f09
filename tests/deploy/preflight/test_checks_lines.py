"""`secfed site check`: what each line concludes from what was found."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from secfed.deploy.preflight import checks, folder_check, network_probe, route_check
from secfed.deploy.preflight.route_check import Route, Shown
from secfed.deploy.preflight.study_check import budget_check
from secfed.deploy.transport.messages import HelloReply
from secfed.dp.accounting.budget import Budget, Standing
from secfed.dp.accounting.interface import Statement
from secfed.dp.accounting.unit import Adjacency
from secfed.errors import LinkError
from tests.deploy.link_case import AUTHORITY, Authority

NOW = datetime.now(UTC)
HOST = Route("localhost", 8443)


def shown(names: list[x509.GeneralName], *, days: float = 30.0, **more: Any) -> Shown:
    files = AUTHORITY.issue(names, ExtendedKeyUsageOID.SERVER_AUTH, days=days)
    return Shown(x509.load_pem_x509_certificate(files.certificate), "TLSv1.3", http2=True, **more)


LOCAL = [x509.DNSName("localhost")]


@pytest.mark.parametrize(
    ("found", "detail", "remedy"),
    [
        (shown([x509.DNSName("fl.example.org")]), "is for fl.example.org", "aggregator.address"),
        (shown(LOCAL, days=-1), "expired on", "date"),
        (shown(LOCAL, why="tlsv1 alert"), "no connection over TLS 1.3", "TCP through"),
        (Shown(None), "does not speak TLS", "port"),
    ],
)
def test_why_a_handshake_fails(found: Shown, detail: str, remedy: str) -> None:
    line = route_check.tls_check(HOST, found, AUTHORITY.certificate, NOW)
    assert (line.ok, line.exit_code) == (False, 23)
    assert detail in line.detail
    assert remedy in line.remedy


def test_a_good_handshake_warns_before_the_certificate_ends() -> None:
    found = shown(LOCAL, verified=True)
    assert route_check.tls_check(HOST, found, AUTHORITY.certificate, NOW).ok
    late = route_check.tls_check(HOST, found, AUTHORITY.certificate, NOW + timedelta(days=28))
    assert late.ok
    assert "renews" in late.remedy


def test_the_aggregator_of_another_consortium_is_no_proxy() -> None:
    files = Authority("other").aggregator()
    found = Shown(x509.load_pem_x509_certificate(files.certificate), "TLSv1.3")
    line = route_check.tls_check(HOST, found, AUTHORITY.certificate, NOW)
    assert "another consortium" in line.detail


@pytest.mark.parametrize(
    ("proxy", "environment", "expected"),
    [
        (None, {}, None),
        ("http://p:1", {"https_proxy": "http://q:2"}, ("p", 1)),
        (None, {"https_proxy": "http://u:w@q:2"}, ("q", 2)),
        (None, {"HTTPS_PROXY": "http://q:2"}, None),
        (None, {"https_proxy": "http://q:2", "no_proxy": "x, .example.org"}, None),
        ("http://p:1", {"no_proxy": "fl.example.org"}, None),
        (None, {"https_proxy": "http://q:2", "no_proxy": "ample.org"}, ("q", 2)),
    ],
)
def test_the_proxy_is_the_one_that_grpc_takes(
    proxy: str | None, environment: dict[str, str], expected: tuple[str, int] | None
) -> None:
    route = Route.of("fl.example.org:8443", proxy, environment)
    found = route.proxy
    assert (None if found is None else (found.host, found.port)) == expected
    assert "w@" not in repr(route)


def test_a_proxy_that_grpc_passes_over_is_told() -> None:
    route = Route.of("fl.example.org:8443", None, {"https_proxy": "https://p:1"})
    assert route_check.proxy_check(route, {}).exit_code == 2
    direct = Route.of("fl.example.org:8443", None, {})
    assert "lower case" in route_check.proxy_check(direct, {"HTTPS_PROXY": "http://q:2"}).detail


def test_what_is_served_is_compared_with_the_file() -> None:
    mine, other = f"tiny-{'a' * 64}", f"tiny-{'b' * 64}"
    assert network_probe.served_check(HelloReply(mine, b"", 1), mine).ok
    assert network_probe.served_check(HelloReply(other, b"", 1), mine).ok is False
    assert network_probe.served_check(HelloReply(f"large-{'b' * 64}", b"", 1), mine).ok
    refused = LinkError("permission denied: site 'x' is not in the roster")
    assert network_probe.membership_check(refused).exit_code == 13


def test_a_budget_that_may_not_last_is_a_warning_and_a_spent_one_fails() -> None:
    assert budget_check("heart", Budget(None, 1e-5), 9.0, 3.0, 1e-5).ok
    short = budget_check("heart", Budget(10.0, 1e-5), 8.0, 3.0, 1e-5)
    assert short.ok
    assert "may not last" in short.remedy
    assert budget_check("heart", Budget(10.0, 1e-5), 10.0, 3.0, 1e-5).exit_code == 21


@pytest.mark.parametrize(("spent", "code"), [(10.0, 0), (10.1, 21), (math.inf, 21)])
def test_a_budget_that_does_not_carry_the_whole_study_fails(spent: float, code: int) -> None:
    budget = Budget(10.0, 1e-5)
    whole = Standing(budget, Statement(spent, 1e-5, Adjacency.ADD_OR_REMOVE_RECORD, "pld", "1"))
    found = budget_check("heart", budget, 8.0, 3.0, 1e-5, whole)
    assert found.exit_code == code
    assert "when it is over" in found.detail
    assert "may not last" not in found.remedy


def test_the_exit_code_is_that_of_the_first_failure() -> None:
    well, away = checks.passed("a", ""), checks.skipped("b", "")
    assert checks.exit_code([well, away]) == 0
    broken = [well, checks.failed("c", "", "", LinkError), checks.failed("d", "", "")]
    assert checks.exit_code(broken) == 23


def test_a_full_or_foreign_disk_and_a_missing_package_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = SimpleNamespace(state=tmp_path / "state")
    assert folder_check.disk_check(site, 1).ok
    assert folder_check.disk_check(site, 1 << 80).ok is False
    monkeypatch.setattr(folder_check.os, "access", lambda *_: False)
    assert folder_check.disk_check(site, 1).ok is False
    monkeypatch.setattr(folder_check, "_PACKAGES", ("no-such-package",))
    assert folder_check.versions_check().exit_code == 2
