"""Contrastive losses between the common semantics of records and the features of their views.

``eq5`` and ``ntxent`` compare every record with all others of the batch: their value is one number for the
batch, and it does not decompose over records. ``model_contrast`` compares a record with itself only.

Source: Chen et al., "Bridging Gaps: Federated Multi-View Clustering in Heterogeneous Hybrid Views",
NeurIPS 2024, equations (5) and (7). NT-Xent: Chen, Kornblith, Norouzi, Hinton, "A Simple Framework for
Contrastive Learning of Visual Representations", ICML 2020, equation (1).
"""

from __future__ import annotations

import torch
from torch.nn.functional import cosine_similarity, cross_entropy, normalize, softplus


def eq5(common: torch.Tensor, view: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Cosine contrast with anchors h_i; the positive pair is not in the denominator.

    -(1/n) sum_i log[ exp(s_ii / t) / sum_{j != i} exp(s_ij / t) ],  s_ij = cos(h_i, r_j)

    ``common`` is h, ``view`` the r of one view, both [n, k]. The scalar can be negative; it is 0 for a single
    record, which has nothing to be compared with.
    """
    if len(common) < 2:
        return (common.sum() + view.sum()) * 0.0
    similar = normalize(common, dim=1) @ normalize(view, dim=1).T / temperature
    own = similar.diagonal()
    others = similar.masked_fill(torch.eye(len(similar), dtype=torch.bool, device=similar.device), -torch.inf)
    return (others.logsumexp(dim=1) - own).mean()


def ntxent(common: torch.Tensor, view: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """NT-Xent over the 2n stacked rows, with dot products instead of cosines (h is unit, r is not).

    Every row is an anchor, its partner from the other kind is the positive, all other rows are negatives,
    and the denominator holds both. Shapes as for :func:`eq5`; 0 for a single record.
    """
    count = len(common)
    rows = torch.cat([view, common])
    logits = rows @ rows.T / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=rows.device)
    partner = torch.arange(2 * count, device=rows.device).roll(count)
    return cross_entropy(logits.masked_fill(itself, -torch.inf), partner)


def model_contrast(
    common: torch.Tensor, reference: torch.Tensor, low: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """Two-way contrast: a record's h should resemble the global model's h rather than its own z.

    -log[ e^{cos(h, h^g)/t} / (e^{cos(h, h^g)/t} + e^{cos(h, z)/t}) ] of every record: [n]

    ``common`` is h and ``low`` z of the local model, ``reference`` h^g, which gets no gradient; all [n, k].
    """
    near = cosine_similarity(common, reference.detach(), dim=1)
    far = cosine_similarity(common, low, dim=1)
    return softplus((far - near) / temperature)
