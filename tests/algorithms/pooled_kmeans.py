"""The baseline that federated multi-view clustering has to beat: k-means on the views side by side.

It reads the records of all sites at once, so it exists in simulation only.
"""

from __future__ import annotations

import torch

from secfed.algorithms.data.multiview.base import MultiviewData, MultiviewSite
from secfed.algorithms.framework.randomness import derive_seed
from secfed.algorithms.metrics.clustering import contingency, scores


def pooled_kmeans(data: MultiviewData, clusters: int, seed: int) -> dict[str, float]:
    """ACC, NMI and ARI of k-means on all records, views concatenated, missing views as zeros.

    Args:
        data: every site's records must be readable here.
        clusters: K.
        seed: of the ten k-means++ starts.

    Raises:
        DataError: records that cannot be used.

    Security: pools the records of all sites; never part of a study between hospitals.
    """
    sites = [data.site(site_id) for site_id in data.sites]
    records = torch.cat([concatenated(site, data.view_sizes) for site in sites])
    return scores(
        contingency(
            _cluster(records, clusters, seed),
            torch.cat([site.labels for site in sites]),
            clusters,
            data.classes,
        )
    )


def concatenated(site: MultiviewSite, view_sizes: tuple[int, ...]) -> torch.Tensor:
    """One site's views side by side, zeros where it holds none: [n, sum of D_v] float32."""
    records = len(site.labels)
    views = [
        torch.zeros(records, size) if view is None else view
        for view, size in zip(site.views, view_sizes, strict=True)
    ]
    return torch.cat(views, dim=1)


def _cluster(records: torch.Tensor, clusters: int, seed: int) -> torch.Tensor:
    from sklearn.cluster import KMeans  # a slow import that only this baseline needs

    method = KMeans(clusters, n_init=10, random_state=derive_seed(seed, "pooled k-means") & 0xFFFFFFFF)
    return torch.from_numpy(method.fit_predict(records.numpy())).to(torch.int64)
