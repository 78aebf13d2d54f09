"""FMCSC, written against sums: one clustering over sites with all views of their records and sites with one.

The server keeps a model per group (``full``, and one per view). A site with all views trains the full
model, and teaches what it learnt to a copy of each view's model; a site with one view trains a model of its
own that is drawn towards its view's. For every group a site adds

    w * (local - received)   for every parameter,      w      and      w * (mean training loss)

where w comes from mutual information that only the site knows. The groups start from one model that is
pre-trained by secure averaging, never from one hospital's. Clusters are found by k-means on the common
semantics h, whose every step is a secure sum, and are scored by one summed contingency table.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views",
NeurIPS 2024. What is different from it: its pre-training hands one client's autoencoder to the others, and
its k-means sends one client's centres to all; here both are sums over sites.

Security: with public view types the cohorts say which hospital holds which view. With hidden ones every
hospital contributes to every group, zeros where it has nothing; how many sites a group has is summed, how
long a hospital takes to answer is not hidden, and neither is what the study file itself says about views.
"""

from __future__ import annotations

from secfed.algorithms.fmcsc.options import FmcscOptions
from secfed.algorithms.fmcsc.server import FmcscServer
from secfed.algorithms.fmcsc.setup import FmcscSetup
from secfed.algorithms.fmcsc.site import FmcscSite
from secfed.algorithms.framework.base import SiteId
from secfed.algorithms.framework.registry import register


@register("fmcsc", options=FmcscOptions)
class Fmcsc(FmcscSetup):
    """FMCSC, bound to one study.

    Args:
        setting: study, data set and model.
        options: the ``[algorithm]`` table.

    Attributes:
        private_units: what local training can protect; see :mod:`secfed.algorithms.fmcsc.privacy`.

    Raises:
        ConfigError: a model, data set, ``[privacy]`` or number of sites that this algorithm cannot work with.
    """

    def server(self) -> FmcscServer:
        """A fresh server program."""
        return FmcscServer(self.plan, self.initial)

    def site(self, site_id: SiteId) -> FmcscSite:
        """One site's program, bound to that site's records.

        Raises:
            DataError: records that cannot be used.
        """
        return FmcscSite(self, site_id)
