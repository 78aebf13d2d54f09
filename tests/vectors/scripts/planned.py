"""The study of the scripts for a whole site: its plan, its local work, and the draws of its attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from secfed.algorithms.framework.base import Algorithm, Metrics, ServerProgram, SiteProgram
from secfed.crypto.attempt import Entropy
from secfed.errors import MalformedMessage
from secfed.site.attempt_store import NullStore
from secfed.site.journal import Journal
from secfed.wire.layout import Exchange, Field, Layout, State, Totals
from tests.vectors.primitives import Json
from tests.vectors.scripts.play import Recorded


class Planned(Algorithm):
    """The plan of the file."""

    def __init__(self, party: Json) -> None:
        self._party = party
        fields = tuple(
            Field(name, tuple(shape), float.fromhex(b), bits) for name, shape, b, bits in party["fields"]
        )
        self.layout = Layout(fields, party["layout_sites"])

    def exchanges(self, round_number: int) -> Sequence[Exchange]:
        """Of one round."""
        return [Exchange(name, "all", self.layout) for name in self._party["plan"].get(str(round_number), ())]

    def server(self) -> ServerProgram:
        """Adds the totals up."""
        return Totalling(self._party["fields"][0][1])

    def site(self, site_id: str) -> SiteProgram:
        """Adds the values of the file."""
        return Adding(self._party["values"])

    def members(self, round_number: int, exchange: Exchange, sites: Sequence[str]) -> Sequence[str]:
        """Those that the file names, or all."""
        return [name for name in sites if name in self._party.get("study_sites", sites)]

    def contributors(self, round_number: int, exchange: Exchange) -> Sequence[tuple[frozenset[str], int]]:
        """Those that the file names."""
        return [(frozenset(part), least) for part, least in self._party.get("contributors", ())]

    def model_in(self, broadcast: State) -> State:
        """All of it."""
        return broadcast

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Names and shapes."""
        if {name: list(value.shape) for name, value in broadcast.items()} != self._party["broadcast"]:
            raise MalformedMessage("other names or shapes")


class Adding(SiteProgram):
    """Always the same values."""

    def __init__(self, values: Json) -> None:
        self._values = values

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Mapping[str, Any]:
        """The values."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in self._values.items()}


class Totalling(ServerProgram):
    """A state of one tensor: the sum of all totals of the field ``weight``, in float64."""

    def __init__(self, shape: list[int]) -> None:
        self._total = torch.zeros(shape, dtype=torch.float64)

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The state."""
        return self.save()

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Add."""
        self._total = self._total + totals["weight"]

    def model(self) -> State:
        """The state."""
        return self.save()

    def metrics(self) -> Mapping[int, Metrics]:
        """None."""
        return {}

    def save(self) -> State:
        """The state."""
        return {"total": self._total}

    def load(self, state: State) -> None:
        """Put it back."""
        self._total = state["total"]


class Store(NullStore):
    """Draws as they are written down."""

    def __init__(self, journal: Journal, study: str, draws: Json) -> None:
        super().__init__(journal, study)
        self._draws = draws

    def open(self, attempt: int) -> Entropy:
        """The same for every attempt: a script goes on with one of them only."""
        return Recorded(self._draws)
