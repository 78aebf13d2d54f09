"""Closed sums before an aggregator whom sites help: all that they can compute is sums over honest sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

from secfed.attack.scene import Attempt, SimulatedConsortium
from secfed.crypto.masked import masks
from secfed.crypto.masked.closing import Closing, closed_shape
from secfed.crypto.masked.masks import Accumulator, MaskContext, MaskStream
from tests.crypto.masked.sparse_case import Few
from tests.ring import RingVector
from tests.simulator import TINY, SeededEntropy

GROUP_KEY = bytes(range(32))


@dataclass
class Coalition:
    """An aggregator and sites that help it, after an attempt, with all that they hold.

    Attributes:
        known: secrets of all streams that they can compute.
    """

    consortium: SimulatedConsortium
    helpers: frozenset[str]
    silent: dict[str, str] = field(default_factory=dict)
    round: int = 1
    known: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        consortium = self.consortium
        self.shape = closed_shape(consortium.shape)
        written: list[Sequence[MaskStream]] = []
        write = masks.write_masked

        def noted(source: Any, streams: Sequence[MaskStream], *rest: Any) -> bytes:
            written.append(streams)
            return write(source, streams, *rest)

        own = {
            name: {"group_key": GROUP_KEY, "entropy": SeededEntropy(self.round, name)}
            for name in consortium.names
        }
        spec = consortium.specification(round=self.round)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masks, "write_masked", noted)
            self.attempt = Attempt(consortium, spec, contributions=own, silent=self.silent, shape=self.shape)
            self.attempt.run(until="result")
        sites = [site for stage, site, _ in self.attempt.replies if stage == "mask"]
        self.streams = dict(zip(sites, written, strict=True))
        server = self.attempt.server
        self.honest = tuple(name for name in server.survivors if name not in self.helpers)
        self.closing = Closing(GROUP_KEY, spec.digest, server.adverts_digest)
        times = Counter(one.secret for streams in written for one in streams)
        for site, streams in self.streams.items():
            for one in streams:
                # A helper's own; self masks and closing streams of survivors; masks with sites that dropped.
                if site in self.helpers or times[one.secret] == 1:
                    self.known.add(one.secret)

    def stripped(self, sites: Iterable[str]) -> RingVector:
        """The sum of these uploads, lanes and tags, without everything that the coalition can take off."""
        return self._sum(self._residues[site] for site in sites)

    def true(self, sites: Iterable[str]) -> RingVector:
        """What it would be worth to know: the sum of these sites' updates, and their tags."""
        return self._sum(self._updates[site] for site in sites)

    def learns(self, sites: Sequence[str]) -> bool:
        """Whether it has the sum, or the tags, of these sites' updates."""
        known = list(map(np.array_equal, self.stripped(sites), self.true(sites)))
        assert len(set(known)) == 1  # tags of a sum are known with the sum, and no earlier
        return known[0]

    @cached_property
    def _residues(self) -> dict[str, RingVector]:
        found, spec = {}, self.attempt.spec
        context = MaskContext(spec.digest, spec.broadcast_digest, self.shape)
        for site in self.honest:
            one = Accumulator(self.shape)
            one.add(self.attempt.uploaded(site).vector)
            known = [stream for stream in self.streams[site] if stream.secret in self.known]
            one.apply([replace(stream, sign=-stream.sign) for stream in known], context)
            found[site] = one.reduced()
        return found

    @cached_property
    def _updates(self) -> dict[str, RingVector]:
        found = {}
        for site in self.honest:
            tags, update = self.closing.tags(), self.consortium.updates[site]
            for run, lanes in zip(self.consortium.shape.runs, update, strict=True):
                tags.add(run, lanes)
            found[site] = (*update, tags.value)
        return found

    def _sum(self, vectors: Iterable[RingVector]) -> RingVector:
        summed = [np.add.reduce(lanes) for lanes in zip(*vectors, strict=True)]
        return tuple(
            lanes & run.dtype.type((1 << run.bits) - 1)
            for run, lanes in zip(self.shape.runs, summed, strict=True)
        )

    def parts(self) -> list[frozenset[str]]:
        """Honest sites that masks unknown to the coalition hold together."""
        found: list[frozenset[str]] = []
        for site in self.honest:
            own = {one.secret for one in self.streams[site]} - self.known
            linked = {x for x in self.honest if own & ({one.secret for one in self.streams[x]} - self.known)}
            joined = [part for part in found if part & (linked | {site})]
            found = [part for part in found if part not in joined]
            found.append(frozenset({site}).union(*joined))
        return found


def _subsets(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1))


@pytest.mark.parametrize(
    ("helpers", "silent"),
    [(1, {}), (2, {}), (2, {"hospital-5": "mask"}), (2, {"hospital-5": "consistency"})],
)
def test_of_one_exchange_a_coalition_learns_the_sum_over_all_honest_survivors_and_no_other(
    helpers: int, silent: dict[str, str]
) -> None:
    consortium = SimulatedConsortium(7, runs=TINY)
    made = Coalition(consortium, frozenset(consortium.names[:helpers]), silent)
    assert len(made.honest) == 7 - helpers - (silent == {"hospital-5": "mask"})
    assert [sites for sites in _subsets(made.honest) if made.learns(sites)] == [made.honest]


@pytest.mark.parametrize("draw", range(1, 3))
def test_in_a_sparse_graph_it_is_the_sum_over_what_unknown_masks_hold_together(draw: int) -> None:
    consortium = SimulatedConsortium(9, runs=TINY, graph=Few(), threshold=6)
    made = Coalition(consortium, frozenset(consortium.names[:2]), round=draw)
    parts = made.parts()
    learnt = {frozenset(sites) for sites in _subsets(made.honest) if made.learns(sites)}
    assert learnt == {frozenset().union(*some) for some in _subsets(parts)}  # type: ignore[arg-type]
    assert all(len(part) > 1 for part in parts)


def test_over_two_exchanges_it_learns_the_one_that_was_missing_as_documented_and_no_other() -> None:
    """Docs/protocol.md 13.4, "Differences between sums": the same state is summed again without one."""
    consortium = SimulatedConsortium(7, runs=TINY)
    helpers, missing = frozenset(consortium.names[:2]), "hospital-5"
    whole = Coalition(consortium, helpers)
    fewer = Coalition(consortium, helpers, {missing: "advertise"}, round=2)
    difference = consortium.minus(whole.stripped(whole.honest)[:-1], fewer.stripped(fewer.honest)[:-1])
    assert all(map(np.array_equal, difference, consortium.updates[missing]))
    # Every other single hospital is no combination of the sums.
    sums = np.array([[site in one.honest for site in consortium.names] for one in (whole, fewer)], float)
    for index, site in enumerate(consortium.names):
        wanted = np.eye(len(consortium.names))[index]
        solution = np.linalg.lstsq(sums.T, wanted, rcond=None)[0]
        assert np.allclose(solution @ sums, wanted) == (site == missing)
