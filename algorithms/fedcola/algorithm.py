"""FedCola, written against sums: image-text retrieval from sites with images, with texts and with pairs.

The server keeps a model per group: a classifier of images, one of texts, and an encoder of pairs with a tower
for each; all towers have blocks of one shape and one start. A site adds w * (trained - received) for every
parameter of its group's model. Attention layers of one modality are summed over *all* sites that hold it,
everything else within the group, so no sum is smaller than a group. Co-layers let sites with one modality
learn from the other: a linear layer becomes W + g * A with A the same layer of the other modality's model and
a gate g from 0, and is merged before anything leaves. Divisors: :mod:`secfed.algorithms.fedcola.server`.

Source: Sun et al., "Towards Multi-modal Transformers in Federated Learning", ECCV 2024, arXiv 2404.12467.
What is different from it: updates are summed at once (not models mixed one after the other), no count or
loss of one site leaves, and all towers start from one draw.

Security: who holds what and who trains when is public. A sum over the table of words shows which words no
site of the sum uses (``train_tokens = false`` keeps it out), and one over the head which classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from secfed.algorithms.data.transfer.base import Kind, TransferData, TransferSite, check_transfer
from secfed.algorithms.fedcola.options import FedColaOptions, check_privacy
from secfed.algorithms.fedcola.plan import OTHER, FedColaPlan, FedColaStage
from secfed.algorithms.fedcola.server import FedColaServer
from secfed.algorithms.fedcola.site import FedColaSite
from secfed.algorithms.framework.base import Metrics, SiteId
from secfed.algorithms.framework.datasets import check_pairs
from secfed.algorithms.framework.parameters import check_shapes
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.server_state import MODEL, part_of
from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.staged import PlannedStages
from secfed.algorithms.metrics import transfer_scores
from secfed.algorithms.models import transfer_transformer
from secfed.algorithms.models.transfer_options import Modality, TransferFacts, TransferTransformerOptions
from secfed.dp.training.plain_loop import choose_device
from secfed.errors import ConfigError
from secfed.wire.layout import Exchange, State


@register("fedcola", options=FedColaOptions)
class FedCola(PlannedStages[FedColaStage]):
    """FedCola, bound to one study."""

    private_units: ClassVar[tuple[str, ...]] = ("group", "site")
    warm_start = True
    noised_fields = ("update",)
    plan_type: ClassVar[type[FedColaPlan]] = FedColaPlan

    def __init__(self, setting: Setting, options: FedColaOptions) -> None:
        study, data = setting.study, setting.data
        check_privacy(options, study.privacy)
        if not isinstance(data, TransferData):
            raise ConfigError(
                f"data.name: {study.algorithm.name} needs sites with images, with texts and with pairs, "
                f"which {study.data.name} does not give",
                remedy="use scenes, or transfer-files for records of your own",
            )
        if not isinstance(study.model, TransferTransformerOptions):
            name = study.algorithm.name
            message = f"model.name: {name} trains transformers whose layers three models have in common"
            raise ConfigError(message, remedy='set model.name = "transfer-transformer"')
        self.setting, self.options, self.data = setting, options, data
        self.plan: FedColaPlan = self.plan_type(
            options=options,
            protection=study.protection,
            rounds=study.rounds,
            seed=study.seed,
            kind_of=data.kind_of,
            model=study.model,
            facts=TransferFacts(
                data.image_shape, data.text_length, data.vocabulary, data.image_classes, data.text_classes
            ),
            privacy=study.privacy,
            starts=study.model.start is not None,
        )

    @cached_property
    def initial(self) -> Mapping[Kind, State]:
        """The first model of every group; blocks of all towers are equal."""
        plan, folder = self.plan, self.setting.study.folder
        return transfer_transformer.initial(plan.seed, plan.facts, plan.model, folder)

    def check_broadcast(self, round_number: int, exchange: Exchange, broadcast: State) -> None:
        """Refuse a broadcast with other names or shapes than :meth:`FedColaServer.broadcast` gives."""
        check_shapes(broadcast, self.broadcast_shapes(round_number, self.stage(round_number, exchange)))

    def broadcast_shapes(self, round_number: int, stage: FedColaStage) -> dict[str, tuple[int, ...]]:
        """What the server sends before an exchange, by name."""
        plan = self.plan
        expected: dict[str, tuple[int, ...]] = {}
        if plan.sends_all(stage, round_number):
            shapes = plan.shapes
            expected = {f"{MODEL}{k}/{name}": one for k in plan.kinds for name, one in shapes[k].items()}
        elif stage.step != "shared":
            expected = {MODEL + name: shape for name, shape in plan.shapes[stage.of].items()}
        if stage.step == "own" and stage.of != "pairs" and not plan.sends_all(stage, round_number):
            other: Modality = "text" if stage.of == "image" else "image"
            for name in plan.co_layers:
                expected[OTHER + name] = plan.shapes[other][f"{other}.{name}"]
        return expected

    def model_in(self, broadcast: State) -> State:
        """The models of all groups, which round 1 of a study with ``model.start`` sends everybody."""
        return part_of(broadcast, MODEL)

    def server(self) -> FedColaServer:
        """A fresh server program."""
        return FedColaServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> FedColaSite:
        """One site's program, bound to that site's records."""
        return FedColaSite(self.setting, self.plan, site_id, self.site_data(site_id))

    def site_data(self, site_id: SiteId) -> TransferSite:
        """One site's checked records."""
        data = check_transfer(site_id, self.data.site(site_id), self.data)
        if data.kind == "pairs":
            check_pairs(site_id, len(data.train))
        return data

    def per_site(self, model: State) -> Mapping[SiteId, Metrics]:
        """Scores at every site. Simulation only: in a study nobody has two sites' records."""
        device, plan = choose_device(self.options.device), self.plan
        networks = {kind: plan.network(kind, part_of(model, f"{kind}/"), device) for kind in plan.kinds}
        scores = {}
        for site, kind in plan.kind_of.items():
            held_out, gallery = self.site_data(site).test, self.options.gallery
            sums = transfer_scores.score(networks[kind], held_out, gallery, device)
            scores[site] = transfer_scores.finish(kind, sums)
        return scores
