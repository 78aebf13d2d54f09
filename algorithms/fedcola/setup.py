"""FedCola in one study: its plan, networks and records, for both programs."""

from __future__ import annotations

from functools import cached_property

import torch

from secfed.algorithms.data.transfer.base import Kind, TransferData, TransferSite, check_transfer
from secfed.algorithms.fedcola.options import FedColaOptions
from secfed.algorithms.fedcola.plan import KINDS, OTHER, FedColaPlan, FedColaStage
from secfed.algorithms.fedcola.privacy import check_privacy
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.datasets import check_pairs
from secfed.algorithms.framework.parameters import check_shapes, write_parameters
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.server_state import MODEL
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.models.transfer_options import Modality, TransferFacts, TransferTransformerOptions
from secfed.algorithms.models.transfer_transformer import Classifier, PairEncoder, build, initial, shapes
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State


class FedColaSetup(PlannedStages[FedColaStage]):
    """FedColaSetup, bound to one study.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.

    Attributes:
        private_units: what local training can protect; see :mod:`secfed.algorithms.fedcola.privacy`.

    Raises:
        ConfigError: a model, data set, ``[privacy]`` or number of sites that this algorithm cannot work
        with.
    """

    private_units = ("group", "site")

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
        self.plan: FedColaPlan = FedColaPlan(
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

    def site_data(self, site_id: SiteId) -> TransferSite:
        """One site's checked records.

        Raises:
            DataError: records that cannot be used, or one pair only.
        """
        data = check_transfer(site_id, self.data.site(site_id), self.data)
        if data.kind == "pairs":
            check_pairs(site_id, len(data.train))
        return data
