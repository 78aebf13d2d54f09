"""`secfed site check`: what it concludes, what it finds, and that it leaves no trace."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from secfed.cli.app import app
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.agent import training
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Gaussian
from secfed.dp.accounting.unit import Adjacency
from secfed.dp.ledger.ledger import Ledger
from secfed.errors import LinkError
from secfed.runs.run_folder import ledger_file
from secfed.site.journal import Journal
from secfed.site.lost_memory import note_loss
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.frames import encode_state
from tests.deploy.agent_case import NAMES, POLICY, TOML, Centre, permit
from tests.deploy.centre_case import found_consortium
from tests.deploy.link_case import Authority, wait_until
from tests.deploy.relay_case import Proxy
from tests.forks import Fork

PRIVATE = (
    TOML.replace("test_fraction = 0.25", 'standardize = "public"').replace(
        "learning_rate = 0.1", 'learning_rate = 0.1\nweighting = "equal"'
    )
    + '[privacy]\nunit = "record"\nepsilon = 2.0\ndelta = 1e-5\n'
)
BUDGETED = POLICY.replace("require = false", "max_epsilon = 3.0\nmax_delta = 1e-5") + (
    "[[data.budget]]\nepsilon = {limit}\ndelta = 1e-5\n"
)


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.subprocess, "Popen", Fork)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def trace(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file below a folder: bytes, mode, and when it was changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns) for path in files}


def check(site: SiteFolder, *more: object) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit code, and the lines by name; nothing in the folder may have changed."""
    before = trace(site.folder)
    words = ["site", "check", "--dir", str(site.folder), "--json", *map(str, more)]
    result = CliRunner().invoke(app, words)
    assert trace(site.folder) == before
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in json.loads(result.stdout):
        lines.setdefault(line["name"], []).append(line)
    return result.exit_code, lines


def only(lines: dict[str, list[dict[str, Any]]], name: str) -> dict[str, Any]:
    (line,) = lines[name]
    return line


# --- a whole site -----------------------------------------------------------------------------------------


def test_all_is_well_and_nobody_has_seen_it(tmp_path: Path) -> None:
    centre = Centre(tmp_path)
    study = tmp_path / "study.toml"
    study.write_text(TOML, encoding="utf-8")
    site = centre.folders[NAMES[0]]
    Journal(site.state / "journal.sqlite").close()
    try:
        code, lines = check(site, study)
        assert [line for each in lines.values() for line in each if not line["ok"]] == []
        assert code == 0
        assert "TLSv1.3" in only(lines, "TLS")["detail"]
        assert "loaded and checked" in only(lines, "data")["detail"]
        assert "GB free" in only(lines, "disk")["detail"]
        assert "GB free" in only(lines, "room for it")["detail"]
        assert not site.approvals_path.exists()
        assert centre.server.presence()[site.name].silent_s is None
        centre.server.finish()
        _, lines = check(site)
        assert "finished" in only(lines, "served")["detail"]
        assert centre.server.informed() == frozenset()
    finally:
        centre.close()
    code, lines = check(site)
    assert code == LinkError.exit_code
    assert "nothing listens there now" in only(lines, "connection")["detail"]
    assert "ask the study centre" in only(lines, "connection")["remedy"]
    assert only(lines, "TLS")["ok"] is None
    assert check(site, "--offline")[0] == 0


def test_an_agent_that_is_there_stays_there(tmp_path: Path) -> None:
    centre = Centre(tmp_path)
    site = centre.folders[NAMES[0]]
    try:
        permit(site, "manual")
        centre.start(site.name)
        wait_until(lambda: centre.server.presence()[site.name].declined is not None)
        before = centre.server.presence()[site.name]
        words = ["site", "check", "--dir", str(site.folder)]
        assert CliRunner().invoke(app, words).exit_code == 0
        assert centre.server.presence()[site.name].declined == before.declined
    finally:
        centre.close()


@contextmanager
def tls_server(certificate: bytes, private_key: bytes, folder: Path) -> Iterator[int]:
    """Somebody who answers TLS connections with this certificate; the port."""
    path = folder / "server.pem"
    path.write_bytes(certificate + private_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("localhost", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    near, _ = listening.accept()
                except OSError:
                    return
                with near, suppress(OSError), context.wrap_socket(near, server_side=True) as secured:
                    secured.recv(1)

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def dial(site: SiteFolder, address: str, proxy: str = "") -> SiteFolder:
    """The same folder with another address in its settings."""
    path = site.folder / "site.toml"
    text = path.read_text(encoding="utf-8").partition("[aggregator]")[0]
    text += f'[aggregator]\naddress = "{address}"\n' + (f'proxy = "{proxy}"\n' if proxy else "")
    path.write_text(text, encoding="utf-8")
    return SiteFolder(site.folder)


def test_a_proxy_that_opens_tls_is_named_by_its_issuer(tmp_path: Path) -> None:
    _, sites = found_consortium(tmp_path, NAMES)
    opened = Authority("Hospital web gateway").issue(
        [x509.DNSName("localhost")], ExtendedKeyUsageOID.SERVER_AUTH
    )
    with tls_server(opened.certificate, opened.private_key, tmp_path) as port:
        code, lines = check(dial(sites[NAMES[0]], f"localhost:{port}"))
    assert code == LinkError.exit_code
    assert only(lines, "TLS")["detail"] == "a proxy opens TLS (issuer CN=Hospital web gateway)"
    assert "ask for an exception" in only(lines, "TLS")["remedy"]
    assert only(lines, "membership")["ok"] is None


def test_what_does_not_speak_tls_is_told(tmp_path: Path) -> None:
    _, sites = found_consortium(tmp_path, NAMES)
    with socket.create_server(("localhost", 0)) as listening:

        def portal() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listening.accept()
                    with near:
                        near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=portal, daemon=True).start()
        code, lines = check(dial(sites[NAMES[0]], f"localhost:{listening.getsockname()[1]}"))
        listening.shutdown(socket.SHUT_RDWR)
    assert code == LinkError.exit_code
    assert "does not speak TLS" in only(lines, "TLS")["detail"]


def test_the_way_leads_over_the_proxy_as_the_agents_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre = Centre(tmp_path)
    site = centre.folders[NAMES[0]]
    try:
        with Proxy("secret") as proxy:
            monkeypatch.setenv("https_proxy", f"http://user:wrong@localhost:{proxy.port}")
            code, lines = check(site)
            assert code == LinkError.exit_code
            assert "407" in only(lines, "connection")["detail"]
            assert "wrong" not in json.dumps(lines)
            monkeypatch.setenv("https_proxy", f"http://user:secret@localhost:{proxy.port}")
            code, lines = check(site)
            assert code == 0
            assert "over the proxy" in only(lines, "connection")["detail"]
            assert len(set(proxy.connected)) == 1
    finally:
        centre.close()


def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    _, sites = found_consortium(tmp_path, NAMES)
    code, lines = check(dial(sites[NAMES[0]], "no-such-host.invalid:8443"))
    assert code == LinkError.exit_code
    assert "does not resolve" in only(lines, "name")["detail"]


def test_keys_that_others_can_read_fail_offline_too(tmp_path: Path) -> None:
    _, sites = found_consortium(tmp_path, NAMES)
    site = sites[NAMES[0]]
    (site.folder / "tls.key").chmod(0o640)
    code, lines = check(site, "--offline")
    assert code == 2
    assert "other users" in only(lines, "keys")["detail"]
    assert "connection" not in lines


# --- a study ----------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    _, sites = found_consortium(tmp_path, NAMES)
    permit(sites[NAMES[0]])
    return sites[NAMES[0]]


def written(site: SiteFolder, text: str) -> Path:
    path = site.folder.parent / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_reason_of_the_policy_is_listed_and_the_data_left_alone(site: SiteFolder) -> None:
    text = TOML.replace("local_epochs = 1", "local_epochs = 9").replace("batch_size = 64", "batch_size = 999")
    code, lines = check(site, "--offline", written(site, text.replace('"tiny"', '"large"')))
    assert code == 22
    keys = [line["detail"].partition(":")[0] for line in lines["permission"]]
    assert keys == ["study.name", "algorithm.local_epochs", "algorithm.batch_size"]
    assert only(lines, "data")["ok"] is None


def test_a_study_outside_the_hours_waits_and_is_not_wrong(site: SiteFolder) -> None:
    now = utc_now().astimezone()
    day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(now.weekday() + 3) % 7]
    hours = f'[[hours]]\ndays = ["{day}"]\nstart = "10:00"\nend = "11:00"\n'
    site.policy_path.write_text(f"{site.policy_path.read_text()}\n{hours}")
    _, lines = check(site, "--offline", written(site, TOML.replace("sites = 3", "sites = 4")))
    line = only(lines, "permission")
    assert (line["ok"], line["detail"].partition(":")[0]) == (True, "hours")
    assert line["remedy"].startswith("wait")


def test_a_study_that_cannot_be_read_or_names_others(site: SiteFolder) -> None:
    code, lines = check(site, "--offline", written(site, TOML.replace("rounds = 1", "rounds = -1")))
    assert code == 2
    assert "rounds" in only(lines, "study")["detail"]
    code, lines = check(site, "--offline", written(site, TOML.replace("sites = 3", "sites = 4")))
    assert code == 22
    assert "hospital-4" in only(lines, "sites")["detail"]


def test_what_a_person_decides_is_read_and_not_noted(site: SiteFolder) -> None:
    permit(site, "manual")
    # A study that names a stranger spares the loading of data, which has a test of its own.
    study = written(site, TOML.replace("sites = 3", "sites = 4"))
    digest, approvals = Study.load(study).digest(), Approvals(site.approvals_path)
    line = only(check(site, "--offline", study)[1], "approval")
    assert line["ok"]
    assert digest.hex()[:16] in line["remedy"]
    permit(site, "automatic")
    assert "policy alone" in only(check(site, "--offline", study)[1], "approval")["detail"]
    note_loss(site.state, utc_now())
    assert digest.hex()[:16] in only(check(site, "--offline", study)[1], "approval")["remedy"]
    approvals.hold("tiny", digest, utc_now())
    line = only(check(site, "--offline", study)[1], "approval")
    assert (line["ok"], line["exit_code"]) == (False, 22)
    assert f"--dir {site.folder}" in line["remedy"]
    approvals.record("tiny", digest, utc_now())
    approvals.approve_what(digest.hex(), utc_now())
    assert only(check(site, "--offline", study)[1], "approval")["ok"]
    policy = site.policy_path.read_text()
    site.policy_path.write_text("four_eyes = true\n" + policy.replace("automatic", "manual"))
    line = only(check(site, "--offline", study)[1], "approval")
    assert (line["ok"], line["detail"]) == (False, "one person approved it, and two have to")
    site.policy_path.write_text(policy)
    approvals.refuse_what("tiny", utc_now())
    line = only(check(site, "--offline", study)[1], "approval")
    assert (line["ok"], line["exit_code"]) == (False, 22)


def test_data_that_is_not_as_the_study_says_fails_as_in_training(site: SiteFolder) -> None:
    table = site.folder / "heart.csv"
    table.write_text("site,age,num\nhospital-1,50,1\nhospital-1,old,0\n", encoding="utf-8")
    data = """
[data]
name = "csv"
path = "wards.csv"
site_column = "site"
sites = ["hospital-1", "hospital-2", "hospital-3"]
label_column = "num"
label_above = 0
feature_columns = ["age"]
"""
    policy = POLICY.replace('source = "breast-cancer"', 'source = "csv"\npath = "heart.csv"')
    permit(site, policy=policy.replace("options", 'study_path = "wards.csv"\noptions'))
    begin, end = TOML.index("[data]"), TOML.index("[protection]")
    study = written(site, TOML[:begin] + data + TOML[end:])
    code, lines = check(site, "--offline", study)
    assert code == 3, lines
    assert only(lines, "data")["exit_code"] == 3
    assert not (site.state / "training.log").exists()
    table.unlink()
    code, lines = check(site, "--offline", study)
    assert "is not there" in only(lines, "data")["detail"]


def test_the_model_that_an_encrypted_study_begins_with_has_to_be_here(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tenseal")
    monkeypatch.setattr("secfed.deploy.preflight.study_check.TrainingProcess.start", lambda _: None)
    plain = Study.parse(TOML)
    data = encode_state(build(plain).server().model())
    start = f'start = "x.safetensors"\nstart_sha256 = "{hashlib.sha256(data).hexdigest()}"'
    text = TOML.replace('"logistic-regression"', f'"logistic-regression"\n{start}').replace(
        "masked", "encrypted"
    )
    study = written(site, text)
    code, lines = check(site, "--offline", study)
    assert code == 22  # the policy has no rule for it
    assert "begins with model" in only(lines, "study")["detail"]
    permit(
        site,
        policy=POLICY.replace(
            "[models.logistic-regression]", '[models.logistic-regression]\nstart_sha256 = "any"'
        ),
    )
    code, lines = check(site, "--offline", study)
    assert (code, only(lines, "start")["ok"]) == (2, False)
    (site.state / "models").mkdir()
    (site.state / "models" / "x.safetensors").write_bytes(data)
    code, lines = check(site, "--offline", study)
    assert (code, only(lines, "start")["ok"]) == (0, True)


@pytest.mark.parametrize(("limit", "code", "says"), [(10.0, 0, "left"), (0.05, 21, "0.000 left")])
def test_the_budget_is_read_from_the_ledger_and_not_reserved(
    site: SiteFolder, limit: float, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secfed.deploy.preflight.study_check.TrainingProcess.start", lambda _: None)
    permit(site, policy=BUDGETED.replace("{limit}", str(limit)))
    ledger = Ledger(ledger_file(site.state, "wards"), site.identity(None), "wards", [Budget(10.0, 1e-5)])
    event = Gaussian(Adjacency.ADD_OR_REMOVE_RECORD, 3.0, 1)
    ledger.spend(event, study="earlier", round_number=1, exchange="update")
    with ledger_file(site.state, "wards").open("ab") as torn:  # the power went off in the next payment
        torn.write(b'{"body":{"data"')
    study = written(site, PRIVATE.replace("epsilon = 2.0", f"epsilon = {min(2.0, limit)}"))
    found, lines = check(site, "--offline", study)
    line = only(lines, "budget")
    assert says in line["detail"]
    assert "at most epsilon" in line["detail"]
    bad = [line for each in lines.values() for line in each if not line["ok"]]
    assert (found, line["exit_code"]) == (code, code), bad
