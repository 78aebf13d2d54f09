"""The server's half of FedCola: with S_X the sum of w * (trained - received) over X, a model moves S_X / D.

===============  =====================  ===============================  ===============================
D, n_X: sum w    ``fedavg``             ``collaborative``                ``compensated``
===============  =====================  ===============================  ===============================
attention, I     n_I                    n_(I+P)                          n_(I+P)
attention, T     n_T                    n_(T+P)                          n_(T+P)
attention, P     n_P                    image n_(I+P), text n_(T+P)      n_I + n_T + n_P
all else         n of the own group     n of the own group               as attention of the same model
===============  =====================  ===============================  ===============================

``fediot`` is ``fedavg`` for all but blocks: those of one modality move, in both groups that hold it, by the
mean update in which a site with pairs counts a hundredfold. The groups' own sums are enough for it.

With ``shared_over = "all"`` a site with pairs adds the mean of its two towers' updates to one sum of
attention layers, so that it counts as any other: n_(I+P) and n_(T+P) are then n_I + n_T + n_P, and under
``compensated`` so is every D.

Source: Sun et al., ECCV 2024, arXiv 2404.12467: collaborative aggregation and its compensation. The first
entry of the last row of the compensation matrix is misprinted there; what is used here sums to one. The
factor of ``fediot``: Zhao et al., "Multimodal Federated Learning on IoT Data", IoTDI 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import torch

from secfed.algorithms.data.transfer.base import Kind
from secfed.algorithms.fedcola.plan import MODALITIES, OTHER, FedColaPlan
from secfed.algorithms.framework.server_state import MODEL, ModelServer, copies, moved, part_of
from secfed.algorithms.metrics import transfer_scores
from secfed.algorithms.models.transfer_options import Modality, is_shared
from secfed.wire.layout import Exchange, State, Totals

Aggregation = Literal["fedavg", "fediot", "collaborative", "compensated"]

_PENDING: Final = "pending/"
_COUNT: Final = "count"
_PAIRS_COUNT: Final = 100.0  # what a site with pairs counts under fediot


class FedColaServer(ModelServer):
    """Moves every group's model once all sums of a round are there; reads totals only."""

    def __init__(self, plan: FedColaPlan, initial: Mapping[Kind, State]) -> None:
        super().__init__({f"{kind}/{name}": t for kind in plan.kinds for name, t in initial[kind].items()})
        self._plan = plan
        self._pending: dict[str, dict[str, torch.Tensor]] = {}  # totals of this round, by exchange

    def broadcast(self, round_number: int, exchange: Exchange) -> State:
        """The group's model, and for co-layers the other modality's blocks; nothing for attention layers."""
        stage = self._plan.stage(round_number, exchange)
        if stage.step == "shared":  # its sites have trained already
            return {}
        if self._plan.sends_all(stage, round_number):
            return {MODEL + name: value for name, value in self._model.items()}
        state = {MODEL + name: value for name, value in part_of(self._model, f"{stage.of}/").items()}
        if stage.step == "own" and stage.of != "pairs":
            other: Modality = "text" if stage.of == "image" else "image"
            for name in self._plan.co_layers:
                state[OTHER + name] = self._model[f"{other}/{other}.{name}"]
        return state

    def absorb(self, round_number: int, exchange: Exchange, totals: Totals) -> None:
        """Take in one exchange; the last one of training moves the models."""
        stage = self._plan.stage(round_number, exchange)
        if stage.step == "score":
            version = min(round_number, self._plan.rounds)
            self._metrics.of(version).update(transfer_scores.finish(stage.of, totals))
            return
        if totals.survivors:  # nobody only in a comparison outside the protocol
            count = totals.scalar("weight") if self._plan.weighted else float(len(totals.survivors))
            if "loss" in totals:
                self._metrics.of(round_number - 1)[f"{stage.of}_loss"] = totals.scalar("loss") / count
            updates = {name: value for name, value in totals.items() if name not in ("weight", "loss")}
            self._pending[exchange.name] = {**updates, _COUNT: torch.tensor(count, dtype=torch.float64)}
        if exchange == self._plan.training[-1].exchange:
            self.move()
            self._pending = {}

    def move(self) -> None:
        """Move every group's model by the totals of the round."""
        own = {kind: self._count(f"own-{kind}") for kind in self._plan.kinds}
        shares = self._plan.options.shares_attention
        together = self._plan.options.shares_all
        sums = {one: "attention-all" if together else f"attention-{one}" for one in MODALITIES}
        shared = {one: self._count(name) for one, name in sums.items()} if shares else {}
        aggregation, step = self._plan.options.aggregation, self._plan.options.server_step
        for kind in self._plan.kinds:
            for name in self._plan.trained(kind):
                modality: Modality | None = None
                if self._plan.shares(name):
                    modality = "image" if name.startswith("image.") else "text"
                source, summed = self._plan.shared_sum(name) or (f"own-{kind}", name)
                if aggregation == "fediot" and is_shared(name, "blocks"):
                    total, divisor = self._hundredfold(name, own)
                elif source in self._pending:
                    total = self._pending[source][f"update/{summed}"]
                    divisor = denominator(kind, modality, own, shared, aggregation, together=together)
                else:
                    continue
                place = f"{kind}/{name}"
                self._model[place] = moved(self._model[place], step * total, divisor)

    def _hundredfold(self, name: str, own: Mapping[Kind, float]) -> tuple[torch.Tensor, float]:
        """A modality's block in both groups that hold it: the sum of updates, and what it is divided by."""
        one: Kind = "image" if name.startswith("image.") else "text"
        groups: tuple[tuple[Kind, float], ...] = ((one, 1.0), ("pairs", _PAIRS_COUNT))
        there = [(kind, times) for kind, times in groups if own.get(kind)]
        totals = [times * self._pending[f"own-{kind}"][f"update/{name}"] for kind, times in there]
        return sum(totals, torch.zeros(())), sum(times * own[kind] for kind, times in there) or 1.0

    def _count(self, exchange: str) -> float:
        return float(self._pending[exchange][_COUNT]) if exchange in self._pending else 0.0

    def save(self) -> State:
        """Models, metrics, and the totals of a round that is not whole yet."""
        pending = {
            f"{_PENDING}{exchange}/{name}": value
            for exchange, totals in self._pending.items()
            for name, value in totals.items()
        }
        return {**super().save(), **copies(pending)}

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        super().load(state)
        self._pending = {}
        for path, value in part_of(state, _PENDING).items():
            exchange, name = path.split("/", 1)
            self._pending.setdefault(exchange, {})[name] = value.clone()


def denominator(
    kind: Kind,
    modality: Modality | None,
    own: Mapping[Kind, float],
    shared: Mapping[Modality, float],
    aggregation: Aggregation,
    *,
    together: bool = False,
) -> float:
    """One entry of the table above, for a group's attention layers of a modality, or with None for the rest.

    ``own`` are n_I, n_T and n_P; a group without sites is left out. ``shared`` are n_(I+P) and n_(T+P), from
    the sums of attention layers (not read without them): a site lost in between is in one of them only. With
    ``together`` both are the one sum over all.
    """
    if aggregation in ("fedavg", "fediot"):
        return own[kind]
    if aggregation == "collaborative":
        return own[kind] if modality is None else shared[modality]
    if together:
        return sum(own.values()) if modality is None else shared[modality]
    if kind != "pairs":
        return own[kind] + own["pairs"] if modality is None else shared[modality]
    if modality is None:
        return sum(own.values())
    return shared[modality] + own.get("text" if modality == "image" else "image", 0.0)
