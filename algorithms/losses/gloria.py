"""GLoRIA: global and local contrast; locally, the words of a report look for the regions of an image.

Source: Huang, Shen, Lungren, Yeung, "GLoRIA: A Multimodal Global-Local Representation Learning Framework
for Label-efficient Medical Image Recognition", ICCV 2021, with the constants of its published training.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.linalg import vector_norm
from torch.utils.checkpoint import checkpoint

from secfed.algorithms.losses.features import Aligned
from secfed.algorithms.losses.objective import Objective, both_ways
from secfed.errors import ConfigError

AT_ONCE = 1 << 22
"""Numbers that one step of the loop over reports may make in one tensor (16 MiB in float32)."""
KEPT = 1 << 27
"""Numbers per tensor that may wait for the backward pass; larger batches compute them a second time."""

NO_LENGTH = 1e-8
"""Least product of the lengths of a word and its context; below, their cosine tends to 0."""


class Gloria(Objective):
    """Global cosine contrast plus word-region contrast, each the sum of its two directions.

    The global term has a scale of its own; the study's temperature is that of ``ObjectiveValue.infonce``
    alone. A report of one token has no words: its pair takes no part in the local term.

    ``continuations`` are ids of tokens that continue the word before them ("##ing"): the embeddings of a
    word's parts are summed before they meet the regions. Without them, or without ``Aligned.tokens``, every
    token is a word of its own. The scales are t1 (sharpness of a word's attention over regions), t2 (of the
    sum over words), and what multiplies the cosines and the matches of images and reports.
    """

    def __init__(
        self,
        temperature: float,
        *,
        continuations: Iterable[int] = (),
        weights: tuple[float, float] = (1.0, 1.0),
        global_scale: float = 10.0,
        attention_scale: float = 4.0,
        match_scale: float = 5.0,
        local_scale: float = 10.0,
    ) -> None:
        super().__init__(temperature)
        self.weights = weights
        self.global_scale = global_scale
        self.attention_scale = attention_scale
        self.match_scale = match_scale
        self.local_scale = local_scale
        self.continues: torch.Tensor | None
        # A constant that follows the module to its device; not persistent, so it is not part of the model.
        self.register_buffer("continues", _table(continuations), persistent=False)

    def total(self, aligned: Aligned, plain: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Global plus local contrast."""
        words, is_word = aligned.words, aligned.is_word
        if self.continues is not None and aligned.tokens is not None:
            starts = word_starts(aligned.tokens[:, 1:], self.continues)
            words, is_word = merge_words(words, is_word, starts)
        matches = match_reports(
            aligned.patches,
            words,
            is_word,
            attention_scale=self.attention_scale,
            match_scale=self.match_scale,
        )
        whole = both_ways(self.global_scale * (aligned.image @ aligned.text.T))
        local = _among(self.local_scale * matches, is_word.any(dim=1))
        return self.weights[0] * whole + self.weights[1] * local


def word_starts(tokens: torch.Tensor, continues: torch.Tensor) -> torch.Tensor:
    """Which of [B, T] int64 tokens begin a word: bool.

    ``continues`` is [V] bool: whether a token id continues a word; ids from V - 1 on are looked up there.
    """
    return ~continues[tokens.clamp(max=len(continues) - 1)]


def merge_words(
    words: torch.Tensor, is_word: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the embeddings of the parts of every word.

    ``words`` are [B, T, d], one row per token; ``is_word`` is [B, T] bool, False for padding, and ``starts``
    [B, T] bool, True where a token begins a word, as the first of a report always does. Gives [B, T, d], the
    words of a report first and zeros after them, and [B, T] bool, where there is a word.
    """
    begins = starts & is_word
    # Counted from 0 whether or not the first token begins a word: a report cut inside a word starts with
    # what is left of it, and that counts as a word.
    number = begins.cumsum(dim=1) - begins[:, :1].long()
    length = words.shape[1]
    place = torch.arange(length, device=words.device)
    # part[b, w, t] = 1 where token t belongs to word w: a product instead of a scattered sum, because
    # scattered sums on a GPU add in an order that changes from run to run.
    part = (number.unsqueeze(1) == place[:, None]) & is_word.unsqueeze(1)
    real_words = words.masked_fill(~is_word.unsqueeze(2), 0.0)
    return part.to(words.dtype) @ real_words, part.any(dim=2)


def match_reports(
    patches: torch.Tensor,
    words: torch.Tensor,
    is_word: torch.Tensor,
    *,
    attention_scale: float,
    match_scale: float,
) -> torch.Tensor:
    """How well the words of each report find what they say among the regions of each image.

    For every word w of report k and region p of image i, with s_pw = <p, w>: a softmax of s over the words
    of the report, times t1, and a softmax of that over the regions give the attention a_wp; c_w =
    sum_p a_wp p; and the match is log sum_w exp( t2 cos(w, c_w) ). Padding takes no part in any of it.

    [B, P, d] patches and [R, T, d] words give [B, R], images by reports, with t1 ``attention_scale`` and t2
    ``match_scale``. The column of a report without words is finite and means nothing.
    """
    # An empty report would make softmax and logsumexp of nothing; the caller leaves its column out.
    real = is_word | ~is_word.any(dim=1, keepdim=True)
    words = words.masked_fill(~is_word.unsqueeze(2), 0.0)
    reports, length, width = words.shape
    each = len(patches) * length * max(patches.shape[1], width)
    step = max(1, AT_ONCE // max(1, each))
    again = torch.is_grad_enabled() and reports * each > KEPT
    columns = []
    for start in range(0, reports, step):
        some = (patches, words[start : start + step], real[start : start + step])
        if again:
            matched = checkpoint(
                _match, *some, attention_scale, match_scale, use_reentrant=False, preserve_rng_state=False
            )
        else:
            matched = _match(*some, attention_scale, match_scale)
        columns.append(matched)
    return torch.cat(columns).T


def _match(
    patches: torch.Tensor, words: torch.Tensor, real: torch.Tensor, attention_scale: float, match_scale: float
) -> torch.Tensor:
    similar = torch.einsum("bpd,rtd->rbpt", patches, words)
    shared = similar.masked_fill(~real[:, None, None, :], -torch.inf).softmax(dim=3)
    attention = (attention_scale * shared).softmax(dim=2)
    # <w, c_w> = sum_p a_wp s_pw: contexts, the largest tensor by far, are needed for their lengths alone.
    product = (attention * similar).sum(dim=2)
    context = torch.einsum("rbpt,bpd->rbtd", attention, patches)
    lengths = vector_norm(context, dim=3) * vector_norm(words, dim=2).unsqueeze(1)
    matched: torch.Tensor = match_scale * product / lengths.clamp(min=NO_LENGTH)
    return matched.masked_fill(~real.unsqueeze(1), -torch.inf).logsumexp(dim=2)


def _among(logits: torch.Tensor, takes_part: torch.Tensor) -> torch.Tensor:
    """Cross entropy both ways among those of the [B, B] pairs that take part; 0 where none does."""
    both = takes_part[:, None] & takes_part
    # A pair that is left out keeps its own diagonal element alone, whose cross entropy is 0: shapes do
    # not depend on the records, and no row is empty.
    alone = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    inside = logits.masked_fill(~both, 0.0).masked_fill(~both & ~alone, -torch.inf)
    return both_ways(inside) * len(logits) / takes_part.sum().clamp(min=1)


def _table(ids: Iterable[int]) -> torch.Tensor | None:
    """[V] bool, True at these ids and False in the last place; None without ids."""
    continuing = sorted(set(ids))
    if not continuing:
        return None
    if continuing[0] < 1:
        raise ConfigError("gloria: a continuation is not a token id", remedy="ids are above 0; 0 is padding")
    table = torch.zeros(continuing[-1] + 2, dtype=torch.bool)
    table[continuing] = True
    return table
