"""Stages compose in the order in which they are listed, and backwards on the total."""

from __future__ import annotations

import pytest
import torch

from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.crypto.lanes import VectorSource
from secfed.errors import RangeError
from secfed.pipeline.stage import Pipeline, RingStage, Stage
from secfed.wire.layout import Exchange, Field, Layout, Summands, Totals

EXCHANGE = Exchange("update", "all", Layout((Field("x", (3,), 8.0, 32),), sites=3))
ONES = {"x": torch.ones(3)}


class Plus(Stage):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def at_site(self, exchange: Exchange, summands: Summands) -> Summands:
        self.seen.append(self.name)
        return {"x": torch.as_tensor(summands["x"]) * 2 + 1}

    def on_total(self, exchange: Exchange, totals: Totals) -> Totals:
        self.seen.append(self.name)
        return Totals({"x": (totals["x"] - len(totals.survivors)) / 2}, totals.survivors)


class Ring(RingStage):
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def at_site(self, exchange: Exchange, source: VectorSource, noise_key: bytes) -> VectorSource:
        self.seen.append(noise_key.decode())
        return source

    def on_total(self, exchange: Exchange, totals: Totals) -> Totals:
        if float(totals["x"].max()) > 100:
            raise RangeError("too large")
        return super().on_total(exchange, totals)


def test_stages_run_in_order_at_the_site_and_backwards_on_the_total() -> None:
    seen: list[str] = []
    pipeline = Pipeline(before=(Plus("a", seen), Plus("b", seen)), after=(Ring(seen),))
    contributed = pipeline.at_site(EXCHANGE, ONES)
    assert torch.equal(torch.as_tensor(contributed["x"]), torch.full((3,), 7.0))
    assert seen == ["a", "b"]
    stream = rounding_stream_for_simulation(1, "site", "1", "0")
    pipeline.source(EXCHANGE, contributed, stream, b"key")
    assert seen == ["a", "b", "key"]
    totals = pipeline.on_total(EXCHANGE, Totals({"x": torch.full((3,), 14.0)}, ("s1", "s2")))
    assert seen[3:] == ["b", "a"]
    assert torch.equal(totals["x"], torch.full((3,), 2.0))
    with pytest.raises(RangeError):
        pipeline.on_total(EXCHANGE, Totals({"x": torch.full((3,), 101.0)}, ("s1", "s2")))


def test_a_watching_stage_comes_first_and_changes_nothing() -> None:
    seen: list[str] = []
    watched = Pipeline(before=(Plus("a", seen),)).watched(Stage())
    assert len(watched.before) == 2
    assert torch.equal(torch.as_tensor(watched.at_site(EXCHANGE, ONES)["x"]), torch.full((3,), 3.0))
