"""FedLDAWA for vision-language pre-training: every layer counts as much as it agrees with the received model.

After some warm-up rounds of plain averaging, the new model is, for every parameter tensor l,

    W^l = (1/n) sum_k c_k^l W_k^l,   c_k^l = cos(W_k^l, W_g^l)

with W_g the received and W_k the locally trained model. A site knows both, so it computes c itself and sends
c W_k - W_g: the server moves its model by the mean of what was sent, and learns no c.

Source: Rehman et al., "L-DAWA: Layer-wise Divergence Aware Weight Aggregation in Federated Self-Supervised
Visual Representation Learning", ICCV 2023; a layer is a parameter tensor here.
"""

from __future__ import annotations

from pydantic import Field

from secfed.algorithms.framework.parameters import read_parameters
from secfed.algorithms.framework.registry import register
from secfed.algorithms.losses.vlp import ldawa_cosines
from secfed.algorithms.vision_language.averaging import VlpFedAvg, VlpFedAvgOptions
from secfed.algorithms.vision_language.plan import Stage
from secfed.algorithms.vision_language.site import VlpSite
from secfed.wire.layout import State


class VlpLdawaOptions(VlpFedAvgOptions):
    """Options of ``vlp-fedldawa``: those of ``vlp-fedavg`` and ``warmup_rounds``."""

    warmup_rounds: int = Field(
        default=2, ge=0, description="first rounds, of study.rounds, that are averaged plainly"
    )


class VlpLdawaSite(VlpSite):
    """A site that sends of each of its layers as much as agrees with the received one."""

    options: VlpLdawaOptions

    def train(self, round_number: int, stage: Stage, received: State) -> tuple[State, float]:
        """As for federated averaging, then scaled layer by layer."""
        update, loss = super().train(round_number, stage, received)
        if round_number <= self.options.warmup_rounds:
            return update, loss
        local = read_parameters(self.network)
        cosines = ldawa_cosines(local, received)
        return {name: cosines[name] * local[name] - received[name] for name in stage.summed}, loss


@register("vlp-fedldawa", options=VlpLdawaOptions)
class VlpLdawa(VlpFedAvg):
    """FedLDAWA, bound to one study."""

    site_program = VlpLdawaSite
