"""Federated vision-language pre-training, written against sums: what its algorithms have in common.

A round is a short list of *stages*, each one secure sum. In a training stage some parameters of the dual
encoder move at every site, and each site adds

    local - received   for every parameter that the stage sums

The server moves the model by the total divided by the number of survivors: a plain mean, as the papers
have it. A stage may also sum what the sites' robust weights are made from
(:mod:`secfed.algorithms.dro.rule`);
the answer travels with every later broadcast. What evaluating the received model gave rides with the first
stage of a round; round ``rounds + 1`` only evaluates.

An algorithm gives its rounds (:meth:`VlpAlgorithm.round_stages`) and, where it trains in its own way, a
site program (:class:`~secfed.algorithms.vision_language.site.VlpSite`). The server program is the same for
all.
"""

from __future__ import annotations

from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.vision_language.plan import ALIGN, EVALUATE, EVERYONE, JOINT, LOSS, Measures, Stage
from secfed.algorithms.vision_language.server import VlpServer
from secfed.algorithms.vision_language.setup import VlpSetup
from secfed.algorithms.vision_language.site import VlpSite

__all__ = ["ALIGN", "EVALUATE", "EVERYONE", "JOINT", "LOSS", "Measures", "Stage", "VlpAlgorithm"]


class VlpAlgorithm(VlpSetup):
    """One algorithm of vision-language pre-training, bound to one study. Subclasses say what a round is.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.
        rule: how robust weights come about; None for an algorithm without them.

    Attributes:
        private_units: what local training can protect; see :mod:`secfed.algorithms.vision_language.privacy`.
        shapes: the network without storage, for names and shapes.

    Raises:
        ConfigError: a model, data set, ``[privacy]`` or number of sites that this algorithm cannot work with.
    """

    site_program: type[VlpSite] = VlpSite

    def server(self) -> VlpServer:
        """A fresh server program."""
        return VlpServer(self.initial, self.stage, self.rule)

    def site(self, site_id: SiteId) -> VlpSite:
        """One site's program, bound to that site's pairs.

        Raises:
            DataError: pairs that cannot be used.
        """
        return self.site_program(self, site_id)
