"""FedCola, written against sums: image-text retrieval from sites with images, with texts and with pairs.

The server keeps a model per group: a classifier of images, one of texts, and an encoder of pairs with a
tower for each. All towers have transformer blocks of one shape and one start. A site trains its group's
model and adds

    w * (trained - received)   for every parameter

Attention layers of one modality are summed over *all* sites that hold it, image and pairs sites together,
text and pairs sites together, because both models that have them need only that sum; everything else is
summed within the group. So three groups learn from each other, and no sum is smaller than a group. Sites
with one modality also learn from the other's layers (co-layers): every linear layer of a block becomes W +
g * A with A the same layer of the other modality's model and a gate g that starts at 0; before anything
leaves, W becomes W + g * A, so an update looks as without them. What totals are divided by:
:mod:`secfed.algorithms.fedcola_aggregation`.

Source: Sun et al., "Towards Multi-modal Transformers in Federated Learning", ECCV 2024, arXiv 2404.12467.
What is different from it: updates are summed at once (not models mixed one after the other), no count or
loss of one site leaves, and all towers start from one draw.

Security: which site holds what is public, and so is who trains in which round. A sum over the table of
words shows which words no site of the sum uses (``train_tokens = false`` keeps it out), and one over the
head which classes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import torch

from secfed.algorithms.base import SiteId
from secfed.algorithms.data.base import check_pairs
from secfed.algorithms.data.transfer import Kind, TransferData, TransferSite, check_transfer
from secfed.algorithms.fedcola_options import FedColaOptions
from secfed.algorithms.fedcola_plan import KINDS, Plan, Stage
from secfed.algorithms.fedcola_privacy import check_privacy
from secfed.algorithms.fedcola_server import OTHER, FedColaServer
from secfed.algorithms.fedcola_site import FedColaSite, score
from secfed.algorithms.metrics import transfer_scores
from secfed.algorithms.models.transfer_options import Modality
from secfed.algorithms.models.transfer_transformer import (
    Classifier,
    PairEncoder,
    TransferFacts,
    TransferTransformerOptions,
    build,
    initial,
    shapes,
)
from secfed.algorithms.parameters import check_shapes, write_parameters
from secfed.algorithms.randomness import seeded
from secfed.algorithms.server_state import MODEL, part_of
from secfed.algorithms.setting import Setting
from secfed.algorithms.staged import PlannedStages
from secfed.algorithms.training import choose_device
from secfed.errors import ConfigError
from secfed.vector import Exchange, State


class FedCola(PlannedStages[Stage]):
    """FedCola, bound to one study.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.

    Attributes:
        private_units: what local training can protect; see :mod:`secfed.algorithms.fedcola_privacy`.

    Raises:
        ConfigError: a model, data set, ``[privacy]`` or number of sites that this algorithm cannot work
        with.
    """

    private_units: Final = ("group",)

    def __init__(self, setting: Setting, options: FedColaOptions) -> None:
        study = setting.study
        check_privacy(options, study.privacy)
        if not isinstance(setting.data, TransferData):
            raise ConfigError(
                "data.name: fedcola needs sites with images, with texts and with pairs, which "
                f"{study.data.name} does not give",
                remedy="use scenes, or transfer-files for records of your own",
            )
        if not isinstance(study.model, TransferTransformerOptions):
            raise ConfigError(
                "model.name: fedcola trains transformers whose layers three models have in common",
                remedy='set model.name = "transfer-transformer"',
            )
        self.setting, self.options, self.data = setting, options, setting.data
        self.model_options: TransferTransformerOptions = study.model
        self.plan: Plan = Plan(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            kind_of=setting.data.kind_of,
            depth=study.model.depth,
            shapes={kind: shapes(kind, self.facts, study.model) for kind in KINDS},
            privacy=study.privacy,
        )

    @cached_property
    def facts(self) -> TransferFacts:
        """What is public about the records."""
        data = self.data
        return TransferFacts(
            data.image_shape, data.text_length, data.vocabulary, data.image_classes, data.text_classes
        )

    @cached_property
    def initial(self) -> dict[Kind, State]:
        """The first model of every group; blocks of all towers are equal."""
        return dict(initial(self.setting.study.seed, self.facts, self.model_options))

    def network(self, kind: Kind, parameters: State, device: torch.device) -> Classifier | PairEncoder:
        """A group's network with these parameters.

        Raises:
            MalformedMessage: parameters of another model.
        """
        with seeded(0):  # about to be overwritten
            made = build(kind, self.facts, self.model_options)
        write_parameters(made, parameters)
        return made.to(device)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than :meth:`FedColaServer.broadcast` gives.

        Raises:
            MalformedMessage: it is not one of this study and exchange.
            WrongState: the study has no such exchange.
        """
        stage, plan = self.stage(round_number, exchange), self.plan
        expected: dict[str, tuple[int, ...]] = {}
        if stage.step != "attention":
            expected = {MODEL + name: tuple(shape) for name, shape in plan.shapes[stage.of].items()}
        if stage.step == "own" and stage.of != "pairs":
            other: Modality = "text" if stage.of == "image" else "image"
            for name in plan.co_layers:
                expected[OTHER + name] = tuple(plan.shapes[other][f"{other}.{name}"])
        check_shapes(broadcast, expected)

    def server(self) -> FedColaServer:
        """A fresh server program."""
        return FedColaServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> FedColaSite:
        """One site's program, bound to that site's records.

        Raises:
            DataError: records that cannot be used.
        """
        return FedColaSite(self, site_id)

    def site_data(self, site_id: SiteId) -> TransferSite:
        """One site's checked records.

        Raises:
            DataError: records that cannot be used, or one pair only.
        """
        data = check_transfer(site_id, self.data.site(site_id), self.data)
        if data.kind == "pairs":
            check_pairs(site_id, len(data.train))
        return data

    def per_site(self, model: State) -> dict[SiteId, dict[str, float]]:
        """Scores at every site. Simulation only: in a study nobody has two sites' records.

        Args:
            model: as the server program gives it.

        Raises:
            MalformedMessage: parameters of another model.
        """
        device = choose_device(self.options.device)
        networks = {kind: self.network(kind, part_of(model, f"{kind}/"), device) for kind in self.plan.kinds}
        found = {}
        for site, kind in self.plan.kind_of.items():
            sums = score(networks[kind], self.site_data(site).test, self.options.gallery, device)
            found[site] = transfer_scores.finish(kind, sums)
        return found
