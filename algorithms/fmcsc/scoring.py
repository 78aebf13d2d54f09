"""Clusters and their scores, found by secure sums: the two halves of FMCSC's evaluation.

1. Sites with all views sum mean and covariance of h, draw restarts of k-means from them, and run Lloyd's
   algorithm, every restart in one sum; the lowest inertia is kept.
2. Every one-view group moves those centres to its own records: cluster numbers stay aligned. Groups too small
   for a sum of their own keep the centres.
3. Every site whose kind is large enough counts its records by cluster and class; accuracy, NMI and ARI
   follow from the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from secfed.algorithms.fmcsc import divisive, kmeans
from secfed.algorithms.fmcsc.plan import FULL, FmcscPlan, FmcscStage
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.framework.server_state import copies, model_of
from secfed.algorithms.metrics.clustering import contingency, scores
from secfed.errors import MalformedMessage, WrongState
from secfed.wire.layout import State, Summands, Totals


def saved_pair(name: str, pair: tuple[int, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """A round number and a tensor that belongs to it, by name; empty for None."""
    return {} if pair is None else {f"{name}/round": torch.tensor(pair[0]), f"{name}/value": pair[1].cpu()}


def loaded_pair(name: str, state: State) -> tuple[int, torch.Tensor] | None:
    """Inverse of :func:`saved_pair`."""
    if f"{name}/value" not in state:
        return None
    return int(state[f"{name}/round"]), state[f"{name}/value"].clone()


class SiteScoring:
    """One site's half; the model of ``group`` gives its features. Labels are only counted, in step 4."""

    def __init__(self, plan: FmcscPlan, group: int, site_id: SiteId, labels: torch.Tensor) -> None:
        self._plan, self._group, self._site_id, self._labels = plan, group, site_id, labels
        self._features: tuple[int, torch.Tensor] | None = None

    def remember(self, round_number: int, features: torch.Tensor) -> None:
        """Keep h of the site's records, [n, features], for the rest of the round."""
        self._features = (round_number, features)

    def save(self) -> dict[str, torch.Tensor]:
        """What :meth:`remember` keeps."""
        return saved_pair("features", self._features)

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        self._features = loaded_pair("features", state)

    def contribute(self, round_number: int, stage: FmcscStage, broadcast: State) -> Summands:
        """One step, but for counts of records and sites; zeros where it is another group's."""
        if stage.kind != "table" and stage.group != self._group:
            return self._nothing(stage)
        if self._features is None or self._features[0] != round_number:
            message = f"site {self._site_id!r} has no features of the model of round {round_number}"
            raise WrongState(message, remedy="it takes part again in the next scoring")
        features = self._features[1]
        if stage.kind == "moments":
            total, outer, _ = kmeans.moments(features)
            return {**self._nothing(stage), "sum": total, "outer": outer}
        centres = self._centres(stage, broadcast)
        if stage.kind == "table":
            return self._table(stage, features, centres[self._group])
        if "active" in broadcast and not bool(broadcast["active"]):
            return self._nothing(stage)
        if stage.kind == "split":
            parts = divisive.parts_at(stage.iteration, self._plan.classes)
            return vars(divisive.part_moments(features, centres[0], parts))
        sums, counts, inertia = kmeans.local_sums(features, centres)
        return {"sums": sums, "counts": counts, "inertia": inertia}

    @staticmethod
    def _centres(stage: FmcscStage, broadcast: State) -> torch.Tensor:
        centres = broadcast["centres"]
        if not bool(torch.isfinite(centres).all()):
            message = f"the broadcast for {stage.exchange.name!r} holds centres with NaN or Inf"
            raise MalformedMessage(message, remedy="lower algorithm.learning_rate; training has diverged")
        return centres

    def _table(self, stage: FmcscStage, features: torch.Tensor, centres: torch.Tensor) -> Summands:
        classes = self._plan.classes
        assigned = kmeans.assign(features, centres)
        counted = "table/others" if self._site_id in self._plan.scored_apart else "table"
        return {**self._nothing(stage), counted: contingency(assigned, self._labels, classes, classes)}

    def _nothing(self, stage: FmcscStage) -> dict[str, torch.Tensor | float]:
        return {field.name: torch.zeros(field.shape) for field in stage.exchange.layout.fields}


class ServerScoring:
    """The server's half: centres, and how far each group has come."""

    def __init__(self, plan: FmcscPlan) -> None:
        self._plan = plan
        size = (plan.classes, plan.features)
        self.centres = torch.zeros(plan.runs(FULL), *size, dtype=torch.float64)  # of the running k-means
        self.group_centres = torch.zeros(len(plan.groups), *size, dtype=torch.float64)  # of every group
        self.active = torch.ones(len(plan.groups), dtype=torch.bool)

    def broadcast(self, stage: FmcscStage) -> dict[str, torch.Tensor]:
        """What a step needs beside models."""
        if stage.kind == "moments":
            return {}
        if stage.kind == "table":
            return {"centres": self.group_centres.clone()}
        if stage.kind == "split":
            centres = self.centres[:1]
        else:
            centres = (
                self.centres if stage.group == FULL else self.group_centres[stage.group : stage.group + 1]
            )
        return {"centres": centres.clone(), "active": self.active[stage.group].clone()}

    def absorb(self, round_number: int, stage: FmcscStage, totals: Totals) -> Mapping[str, float]:
        """Take one step's totals; metrics, once there are any."""
        if stage.kind == "moments":
            self._start(round_number, totals)
        elif stage.kind == "split":
            self._split(stage, totals)
        elif stage.kind == "kmeans":
            self._move(stage, totals)
        else:
            return self._scores(totals)
        return {}

    def _start(self, round_number: int, totals: Totals) -> None:
        plan = self._plan
        self.active = torch.ones_like(self.active)
        for group, name in enumerate(plan.groups):
            if f"sites/{name}" in totals:
                self.active[group] = totals.scalar(f"sites/{name}") > plan.options.min_group - 0.5
        if totals.scalar("records") < 0.5 or not bool(self.active[FULL]):
            self.active = torch.zeros_like(self.active)  # nothing to start from: no group is scored
            return
        count = totals.scalar("records")
        mean, covariance = kmeans.mean_and_covariance(totals["sum"], totals["outer"], count)
        seed = derive_seed(plan.seed, "k-means", round_number)
        starts = kmeans.starts(mean, covariance, plan.runs(FULL), plan.classes, seed)
        self.centres = self._kind(starts)
        if plan.splits:
            everyone = torch.tensor([count], dtype=torch.float64)
            whole = divisive.PartMoments(totals["outer"][None], totals["sum"][None], everyone)
            self._place(divisive.split(whole, divisive.parts_at(1, plan.classes)))

    def _split(self, stage: FmcscStage, totals: Totals) -> None:
        plan = self._plan
        if not bool(self.active[FULL]) or len(totals.survivors) < plan.options.min_group:
            return
        before, after = (divisive.parts_at(stage.iteration + more, plan.classes) for more in (0, 1))
        found = divisive.PartMoments(*(totals[name][:before] for name in ("outer", "sums", "counts")))
        self._place(divisive.split(found, after) if before < after else divisive.mended(found))

    def _place(self, parts: torch.Tensor) -> None:
        """These are the first centres of the first restart."""
        self.centres = self.centres.clone()
        self.centres[0, : len(parts)] = self._kind(parts)

    def _move(self, stage: FmcscStage, totals: Totals) -> None:
        plan, group = self._plan, stage.group
        if not bool(self.active[group]) or len(totals.survivors) < plan.options.min_group:
            return
        if group == FULL:
            self.centres = self._kind(kmeans.next_centres(self.centres, totals["sums"], totals["counts"]))
            if stage.iteration == plan.options.kmeans_iterations:
                best = self.centres[kmeans.best(totals["inertia"])]
                self.group_centres = best.repeat(len(plan.groups), 1, 1)
        else:
            moved = kmeans.next_centres(self.group_centres[group], totals["sums"][0], totals["counts"][0])
            self.group_centres = self.group_centres.clone()
            self.group_centres[group] = self._kind(moved)

    def _kind(self, centres: torch.Tensor) -> torch.Tensor:
        """Centres of the study's kind of k-means: sites need not know which it is."""
        return kmeans.on_sphere(centres) if self._plan.options.clustering == "spherical" else centres

    def _scores(self, totals: Totals) -> Mapping[str, float]:
        table = totals["table"]
        if not bool(self.active[FULL]):
            return {}
        if "table/others" not in totals:
            return scores(table)
        others = totals["table/others"]
        parts = {"": table + others, "participating_": table, "others_": others}
        return {start + name: value for start, part in parts.items() for name, value in scores(part).items()}

    def save(self) -> dict[str, torch.Tensor]:
        """Everything needed to continue."""
        return copies({"centres": self.centres, "found": self.group_centres, "active": self.active})

    def load(self, state: State) -> None:
        """Continue from :meth:`save`."""
        saved = model_of(state, self.save(), "")
        self.centres, self.group_centres, self.active = saved["centres"], saved["found"], saved["active"]
