"""Studies of canonical clustering that take well under a second: clusters seen in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from secfed.algorithms.canonical.algorithm import Canonical
from secfed.algorithms.data.multiview.base import ViewRecords, ViewSites
from secfed.study.build import build
from secfed.study.study import Study

torch.set_num_threads(1)

SIZES = (12, 9, 7)

TINY = """
[study]
name = "canonical-tiny"
rounds = 1
seed = 5
[algorithm]
name = "canonical"
restarts = 4
kmeans_iterations = 4
[model]
name = "none"
[data]
name = "tests.algorithms.canonical_case:blobs"
holds = [-1, -1, -1, 0, 0, 1]
[protection]
name = "plain"
colluders = 1
"""


def pool(records: int, views: int = 2, clusters: int = 3, noise: float = 0.4, seed: int = 3) -> ViewRecords:
    """Gaussian clusters: what the views share is the cluster, everything else is noise of each view's own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, clusters, records)
    seen = tuple(
        (rng.normal(0, 1, (clusters, size))[labels] + rng.normal(0, noise, (records, size))).astype(
            np.float32
        )
        for size in SIZES[:views]
    )
    return ViewRecords(seen, labels.astype(np.int64))


def species(records: int, clusters: int, *, latent: int, spread: float, seed: int) -> ViewRecords:
    """Many clusters, three views of as many latent numbers: what varies inside clusters is shared, too."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(records) % clusters
    seen = rng.normal(size=(clusters, latent))[labels] + rng.normal(0, spread, (records, latent))
    views = tuple(
        (seen @ rng.normal(size=(latent, size)) / latent**0.5 + rng.normal(0, 0.6, (records, size))).astype(
            np.float32
        )
        for size in (64, 48, 40)
    )
    return ViewRecords(views, labels.astype(np.int64))


def held_by(
    records: ViewRecords, holds: Sequence[int], shares: Sequence[Any], clusters: int = 3
) -> ViewSites:
    """These records at as many sites as ``holds``: each one's view or -1 for all, and its rows."""
    sites = [f"hospital-{at + 1}" for at in range(len(holds))]
    return ViewSites(
        lambda site, _held: records.take(np.asarray(shares[sites.index(site)])),
        view_of=dict(zip(sites, [None if view < 0 else view for view in holds], strict=True)),
        view_sizes=tuple(view.shape[1] for view in records.views if view is not None),
        classes=clusters,
    )


def blobs(
    holds: tuple[int, ...], per_site: int = 30, views: int = 2, clusters: int = 3, noise: float = 0.4
) -> ViewSites:
    """Equal shares of :func:`pool`."""
    records = pool(per_site * len(holds), views, clusters, noise)
    shares = [np.arange(per_site) + at * per_site for at in range(len(holds))]
    return held_by(records, holds, shares, clusters)


def study(**changes: object) -> Study:
    """The tiny study; keys are written ``algorithm__maps``."""
    made = Study.parse(TINY)
    for key, value in changes.items():
        made = made.replace(key.replace("__", "."), value)
    return made


def tiny(**changes: object) -> Canonical:
    """Its algorithm."""
    made: Canonical = build(study(**changes))
    return made


def on(data: ViewSites, **changes: object) -> Canonical:
    """The tiny study's algorithm on other records."""
    from secfed.algorithms.framework.setting import Setting

    made = study(**changes)
    return Canonical(Setting(made, data, lambda: None), made.algorithm)
