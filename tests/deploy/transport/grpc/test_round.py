"""Whole studies over the link: the same model bytes as in a simulation; dropouts; a proxy on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from safetensors.torch import load_file, save

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.client import CallFailed
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.errors import LinkError
from secfed.protection.registry import make_protection
from secfed.runs.run_folder import prepare
from secfed.runs.run_report import SilentObserver
from secfed.simulation import simulate as simulation
from secfed.simulation.dropouts import Dropout
from secfed.simulation.transport import SimulatedTransport
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.transport import OnReply
from tests.deploy.central_case import TOML
from tests.deploy.link_case import AUTHORITY, SITES, Consortium, Watched, consortium, echo
from tests.deploy.relay_case import Proxy

MIB = 1 << 20
SPARSE = 'masked"\ngraph = "sparse'  # as the study file has it


def over_the_link(c: Consortium, longest: list[list[int]]) -> type[SimulatedTransport]:
    """A carrier for ``simulate`` whose sites are threads at the other end of real connections.

    ``longest`` gains a pair per study: bytes of the longest request and reply.
    """

    class Carrier(SimulatedTransport):
        def connect(self, sites: Mapping[str, Any]) -> None:
            for name, handle in sites.items():
                c.run(name, lambda request, handle=handle: handle(request.frame))
            self.watched = Watched()
            self.longest = [0, 0]
            longest.append(self.longest)
            self.grpc = c.link(seconds=30.0, watcher=self.watched)

        def ask(self, stage: str, requests: Mapping[str, Buffer], on_reply: OnReply) -> None:
            for drop in self._drops:
                if drop.stage == stage and drop.round == self.round:
                    self.gone[drop.site] = stage
            left = {site: frame for site, frame in requests.items() if site not in self.gone}
            if stage == "train":
                self.asked.extend(left)

            def measured(site: str, reply: Buffer) -> None:
                self.longest[1] = max(self.longest[1], len(reply))
                on_reply(site, reply)

            self.longest[0] = max([self.longest[0], *(len(frame) for frame in left.values())])
            self.grpc.ask(stage, left, measured)

    return Carrier


def caps_of(protection: str, sites: int) -> FrameCaps:
    study = Study.parse(TOML.format(rounds=2, protection=protection, sites=sites))
    algorithm = build(study)
    names = [f"hospital-{index}" for index in range(1, sites + 1)]
    return FrameCaps.of(algorithm, 2, sites, make_protection(study.protection, algorithm, 2, names))


def run(tmp_path, name: str, protection: str, drops: Sequence[Dropout]) -> tuple[bytes, Any]:
    study = Study.parse(TOML.format(rounds=2, protection=protection, sites=4 if drops else 3))
    out = tmp_path / name
    prepare(out, overwrite=False)
    report = simulation.simulate(study, out=out, drops=drops, observer=SilentObserver())
    return save(load_file(out / "model.safetensors")), report


@pytest.mark.parametrize(
    ("protection", "drops"),
    [
        ("plain", ()),
        ("masked", ()),
        ("masked", (Dropout("hospital-2", "consistency", 1),)),
        (SPARSE, ()),
        ('masked"\nreveal = "sites', (Dropout("hospital-2", "consistency", 1),)),
        ("encrypted", ()),
    ],
    ids=["plain", "masked", "masked with a dropout", "sparse", "closed with a dropout", "encrypted"],
)
def test_a_study_over_the_link_gives_the_bytes_of_a_simulation(tmp_path, monkeypatch, protection, drops):
    if protection == "encrypted":
        pytest.importorskip("tenseal")
    expected, told = run(tmp_path, "simulated", protection, drops)
    names = tuple(f"hospital-{index}" for index in range(1, 5 if drops else 4))
    with consortium(sites=names) as c:
        longest: list[list[int]] = []
        monkeypatch.setattr(simulation, "SimulatedTransport", over_the_link(c, longest))
        carried, report = run(tmp_path, "carried", protection, drops)
        assert not c.failures
        up, down = c.server.take_counts()
        assert all(up.values())
        assert all(down.values())
    assert carried == expected
    assert [row.survivors for row in report.rounds] == [row.survivors for row in told.rounds]
    caps = caps_of(protection, len(names))
    ((request_bytes, answer_bytes),) = longest
    assert request_bytes <= caps.request_bytes <= request_bytes + 12 * MIB
    assert answer_bytes <= caps.answer_bytes <= answer_bytes + 12 * MIB


def test_a_proxy_of_the_sites_settings_is_used():
    with consortium() as c, Proxy("secret") as proxy:
        address = f"http://user:secret@localhost:{proxy.port}"
        c.run(SITES[0], echo, proxy=address)
        assert c.collect({SITES[0]: bytes(3_000_000)}) == {SITES[0]: bytes(3_000_000)}
        assert proxy.connected == [c.address]


def test_a_proxy_of_the_environment_is_used_and_no_proxy_is_respected(monkeypatch):
    for name in ("grpc_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with consortium() as c, Proxy() as proxy:
        monkeypatch.setenv("https_proxy", f"http://localhost:{proxy.port}")
        c.dial(SITES[0]).hello()
        assert proxy.connected == [c.address]
        monkeypatch.setenv("no_proxy", "localhost")
        c.dial(SITES[1]).hello()
        assert proxy.connected == [c.address]


def test_a_proxy_that_refuses_is_a_link_error_without_its_password():
    with consortium() as c, Proxy("secret") as proxy:
        link = c.dial(SITES[0], proxy=f"http://user:wrong-word@localhost:{proxy.port}")
        with pytest.raises(LinkError) as caught:
            link.hello()
        assert isinstance(caught.value, CallFailed)
        assert "proxy" in caught.value.remedy
        assert "wrong-word" not in str(caught.value)


def test_the_private_key_is_not_shown():
    tls = AUTHORITY.site(SITES[0])
    assert "PRIVATE" in tls.private_key.decode()
    assert "PRIVATE" not in repr(tls)
