"""MGCA: contrast of whole pairs, of the tokens inside a pair, and of assignments to shared prototypes.

Source: Wang, Zhou, Wang, Vardhanabhuti, Yu, "Multi-Granularity Cross-modal Alignment for Generalized
Medical Visual Representation Learning", NeurIPS 2022; Sinkhorn codes: Caron et al.,
"Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (SwAV), NeurIPS 2020,
section 3.1.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import log_softmax, normalize

from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.objective import Objective


class Mgca(Objective):
    """Instance, token and prototype alignment: w1 L_ITA + w2 L_CTA + w3 L_CPA.

    The instance term is the sum of both directions of the InfoNCE at the study's temperature. A report of
    one token has no words: its pair takes no part in the token term.

    The prototypes are the only parameters. They are used with rows of L2 norm 1, but never overwritten
    with them: what is trained, averaged and sent is the parameter itself. While they are not trained, codes
    and predictions are used all the same.

    Codes spread thinner than one pair each unless ``prototypes`` is below the batch size; ``smoothing`` is
    the epsilon of Sinkhorn's algorithm, and ``sinkhorn_rounds`` how often it balances the codes.
    """

    def __init__(
        self,
        temperature: float,
        *,
        embedding: int,
        prototypes: int = 500,
        weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
        local_temperature: float = 0.1,
        prototype_temperature: float = 0.2,
        smoothing: float = 0.05,
        sinkhorn_rounds: int = 3,
    ) -> None:
        super().__init__(temperature)
        self.weights = weights
        self.local_temperature = local_temperature
        self.prototype_temperature = prototype_temperature
        self.smoothing = smoothing
        self.sinkhorn_rounds = sinkhorn_rounds
        self.prototypes = nn.Parameter(normalize(torch.randn(prototypes, embedding), dim=1))

    def total(self, aligned: Aligned, plain: torch.Tensor) -> torch.Tensor:
        """The weighted sum of the three terms."""
        instance, token, prototype = self.weights
        tokens = token_loss(aligned, temperature=self.local_temperature)
        return instance * 2 * plain + token * tokens + prototype * self.prototype_loss(aligned)

    def prototype_loss(self, aligned: Aligned) -> torch.Tensor:
        """L_CPA: each modality predicts the other's code, averaged over both."""
        centres = normalize(self.prototypes.to(aligned.image.dtype), dim=1)
        scores = aligned.image @ centres.T, aligned.text @ centres.T
        codes = [sinkhorn(score, smoothing=self.smoothing, rounds=self.sinkhorn_rounds) for score in scores]
        guesses = [log_softmax(score / self.prototype_temperature, dim=1) for score in scores]
        swapped = codes[0] * guesses[1] + codes[1] * guesses[0]
        return -swapped.sum(dim=1).mean() / 2


def token_loss(aligned: Aligned, *, temperature: float) -> torch.Tensor:
    """L_CTA: inside each pair, words against patches plus patches against words; mean of those with words."""
    is_word = aligned.is_word
    has_words = is_word.any(dim=1)
    # A pair without words would take a softmax over nothing; it is computed as if padding were words and
    # then weighs nothing.
    real = is_word | ~has_words.unsqueeze(1)
    patches = normalize(aligned.patches, dim=2)
    words = normalize(aligned.words.masked_fill(~is_word.unsqueeze(2), 0.0), dim=2)
    is_patch = torch.ones(patches.shape[:2], dtype=torch.bool, device=patches.device)
    of_words = token_weights(aligned.word_weights, real).to(words.dtype)
    of_patches = token_weights(aligned.patch_weights, is_patch).to(words.dtype)
    each = _token_contrast(words, real, of_words, patches, is_patch, temperature)
    each = each + _token_contrast(patches, is_patch, of_patches, words, real, temperature)
    return each.masked_fill(~has_words, 0.0).sum() / has_words.sum().clamp(min=1)


def _token_contrast(
    queries: torch.Tensor,
    is_query: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    is_key: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """[B]: does each query recognise the context that its own attention over the keys collects?

    Queries [B, T, d] and keys [B, S, d] have rows of L2 norm 1; every pair has a key. The weights, [B, T],
    sum to 1 per pair and are 0 where there is no query.
    """
    sought = (queries @ keys.mT / temperature).masked_fill(~is_key.unsqueeze(1), -torch.inf)
    context = normalize(sought.softmax(dim=2) @ keys, dim=2)
    logits = queries @ context.mT / temperature
    both = is_query.unsqueeze(1) & is_query.unsqueeze(2)
    alone = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
    inside = logits.masked_fill(~both, 0.0).masked_fill(~both & ~alone, -torch.inf)
    own = inside.diagonal(dim1=1, dim2=2)
    crossed = (inside.logsumexp(dim=2) + inside.logsumexp(dim=1)) / 2 - own
    return (crossed * weights).sum(dim=1)


@torch.no_grad()
def token_weights(attention: torch.Tensor | None, real: torch.Tensor) -> torch.Tensor:
    """Weights of a pair's [B, T] tokens: attention between its 10 and 90 percent quantiles, scaled to sum 1.

    0 where there is no token; equal ones without attention, or where all of a pair's attention is 0.
    """
    counts = real.sum(dim=1, keepdim=True)
    equal = real / counts.clamp(min=1)
    if attention is None:
        return equal
    ordered = attention.masked_fill(~real, torch.inf).sort(dim=1).values
    low, high = _quantile(ordered, counts, 0.1), _quantile(ordered, counts, 0.9)
    clipped = attention.clamp(low, high).masked_fill(~real, 0.0)
    sums = clipped.sum(dim=1, keepdim=True)
    return torch.where(sums > 0, clipped / sums, equal)


def _quantile(ordered: torch.Tensor, counts: torch.Tensor, share: float) -> torch.Tensor:
    """[B, 1]: quantile with linear interpolation among the first ``counts`` of each ascending row."""
    place = share * (counts - 1).clamp(min=0).to(ordered.dtype)
    below, above = ordered.gather(1, place.floor().long()), ordered.gather(1, place.ceil().long())
    return below + (above - below) * place.frac()


@torch.no_grad()
def sinkhorn(scores: torch.Tensor, *, smoothing: float, rounds: int) -> torch.Tensor:
    """Soft assignments of records to prototypes: [B, K], rows summing to 1, columns to about B / K.

    exp(scores / epsilon) is scaled in turn so that every prototype has mass 1/K and every record 1/B, and
    at the end every record 1. Computed on logarithms: at a small epsilon the exponentials of float32
    overflow.
    """
    records, prototypes = scores.shape
    mass = scores / smoothing
    for _ in range(rounds):
        mass = mass - mass.logsumexp(dim=0, keepdim=True) - math.log(prototypes)
        mass = mass - mass.logsumexp(dim=1, keepdim=True) - math.log(records)
    return mass.softmax(dim=1)
