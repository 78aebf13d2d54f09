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
:mod:`secfed.algorithms.fedcola.aggregation`.

Source: Sun et al., "Towards Multi-modal Transformers in Federated Learning", ECCV 2024, arXiv 2404.12467.
What is different from it: updates are summed at once (not models mixed one after the other), no count or
loss of one site leaves, and all towers start from one draw.

Security: which site holds what is public, and so is who trains in which round. A sum over the table of
words shows which words no site of the sum uses (``train_tokens = false`` keeps it out), and one over the
head which classes.
"""

from __future__ import annotations

from secfed.algorithms.fedcola.options import FedColaOptions
from secfed.algorithms.fedcola.server import FedColaServer
from secfed.algorithms.fedcola.setup import FedColaSetup
from secfed.algorithms.fedcola.site import FedColaSite, score
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.registry import register
from secfed.algorithms.framework.server_state import part_of
from secfed.algorithms.metrics import transfer_scores
from secfed.dp.training.plain_loop import choose_device
from secfed.wire.layout import State


@register("fedcola", options=FedColaOptions)
class FedCola(FedColaSetup):
    """FedCola, bound to one study.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.

    Attributes:
        private_units: what local training can protect; see :mod:`secfed.algorithms.fedcola.privacy`.

    Raises:
        ConfigError: a model, data set, ``[privacy]`` or number of sites that this algorithm cannot work
        with.
    """

    def server(self) -> FedColaServer:
        """A fresh server program."""
        return FedColaServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> FedColaSite:
        """One site's program, bound to that site's records.

        Raises:
            DataError: records that cannot be used.
        """
        return FedColaSite(self, site_id)

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
