"""Closed sums: nothing to read for the aggregator, and no single hospital even with the group key."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from secfed.crypto.codec import Buffer
from secfed.crypto.masked.server import MaskedServer
from secfed.simulation import simulate as simulation
from secfed.site.opening_session import OpeningSession
from tests.secfed.site.closed_case import SITE, Seen, run, study, watch


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a run takes longer than running it."""
    monkeypatch.setattr(simulation, "write_run", lambda *_: None)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return watch(monkeypatch)


def _held(root: object) -> Iterator[bytes]:
    """The bytes of everything that can be reached from an object, code, links and clocks aside."""
    left, known = [root], set[int]()
    while left:
        one = left.pop()
        if id(one) in known or isinstance(one, type | ModuleType | FunctionType | MethodType):
            continue
        known.add(id(one))
        if isinstance(one, np.ndarray):
            yield one.tobytes()
        elif isinstance(one, torch.Tensor):
            yield one.detach().numpy().tobytes()
        elif isinstance(one, bytes | bytearray | memoryview):
            yield bytes(one)
        left.extend(gc.get_referents(one))


def _needles(seen: Seen) -> list[bytes]:
    """Pieces of all totals: as ring integers, in 20-bit lanes, as numbers, and of the models they lead to."""
    found = []
    for runs in seen.totals:
        for lanes in runs:
            wide = lanes.astype(np.int64)
            signed = np.where(wide >= 1 << 19, wide - (1 << 20), wide) if lanes.dtype == np.uint32 else wide
            for kind in (lanes, signed, signed.astype(np.float64), signed.astype(np.float32)):
                found.append(kind.tobytes()[: 8 * kind.itemsize])
    for model in seen.models:
        for tensor in model.values():
            for kind in (torch.float32, torch.float64):
                found.append(tensor.to(kind).numpy().tobytes()[:16])
    return list({needle for needle in found if len(set(needle)) > 4})


def _holds(haystack: list[bytes], needles: list[bytes]) -> bool:
    whole = b"".join(haystack)
    return any(needle in whole for needle in needles)


def test_nothing_that_the_aggregator_ever_held_is_a_total(seen: Seen) -> None:
    run(study(), None)
    seen.models = [site.replica.model() for site in seen.sites.values()]
    needles = _needles(seen)
    assert len(needles) > 20
    roots = [*vars(seen.rounds[0]).items()]
    memory = [
        piece for name, value in roots if name not in ("ask", "_log", "_algorithm") for piece in _held(value)
    ]
    for session in seen.sessions:
        memory.extend(_held(session))
    secret = seen.sites[SITE]._keys.required.secret_key
    for haystack in (memory, seen.passed, seen.stored):
        assert sum(map(len, haystack)) > 10_000
        assert not _holds(haystack, [*needles, secret])
    # The search itself finds what is there: at a site, and in the sum that the aggregator closed.
    assert _holds([*_held(seen.sites[SITE].replica)], needles)
    assert _holds(memory, [bytes(seen.sums[-1].vector)[-64:]])


def test_an_aggregator_with_the_group_key_learns_sums_and_no_single_hospital(seen: Seen) -> None:
    """A site that helps it gives the key away; masks then protect as they do where sums are open."""
    lanes: dict[str, list[bytes]] = {}
    fill = OpeningSession._contribution

    def noted(self: OpeningSession, pending: Any, *rest: Any) -> Any:
        made = fill(self, pending, *rest)
        again = self._local.source(pending)
        runs = []
        for one in made.shape.runs:
            out = np.empty(one.count, one.dtype)
            again.fill(one, out)
            runs.append((out & np.uint32((1 << one.bits) - 1) if one.bits < 32 else out).tobytes())
        lanes.setdefault(self._identity.name, []).append(b"".join(runs))
        return made

    uploads: list[tuple[Any, str, memoryview]] = []
    receive = MaskedServer.receive

    def kept(self: MaskedServer, site: str, reply: Buffer) -> None:
        if self.stage == "mask":
            from secfed.crypto.messages import Upload

            uploads.append((self, site, Upload.decode(bytes(reply)).vector))
        receive(self, site, reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpeningSession, "_contribution", noted)
        patch.setattr(MaskedServer, "receive", kept)
        run(study(1), None)
    from secfed.crypto.masked import masks
    from secfed.crypto.masked.closing import Closing

    key = seen.sites[SITE]._keys.required.secret_key
    single = [piece[:40] for pieces in lanes.values() for piece in pieces]
    for session, site, vector in uploads:
        spec = session._attempt.spec
        closing = Closing(key, spec.digest, session.adverts_digest)
        context = masks.MaskContext(spec.digest, spec.broadcast_digest, session.shape)
        stripped = masks.Accumulator(session.shape)
        stripped.add(vector)
        stripped.apply([closing.stream(site, -1)], context)
        *runs, tags = stripped.reduced()
        assert not _holds([one.tobytes() for one in runs], single)
        own = closing.tags()
        for one, found in zip(session.shape.runs, runs, strict=False):
            own.add(one, found)
        assert not np.any(own.value == tags)  # no single tag is visible either
    for relayed, session in zip(seen.sums, seen.sessions, strict=True):  # the sum is
        exchange_runs = Closing(key, relayed.spec.digest, relayed.adverts_digest)
        shape = replace(session.shape, runs=session.shape.runs[:-1])
        survivors, broadcast = relayed.result.survivors, relayed.spec.broadcast_digest
        found = exchange_runs.opened(relayed.vector, survivors, broadcast, shape)
        assert any(all(map(np.array_equal, found, total)) for total in seen.totals)
