"""The text encoder: Hugging Face's BERT without pooler, with positions and padding given explicitly.

BERT as it comes looks the positions up once for the whole batch. Private training with hooks needs every
input to have a row per record, so the ids are made here, contiguous; the numbers are the same.

Source: Devlin, Chang, Lee, Toutanova, "BERT", NAACL 2019.
"""

from __future__ import annotations

import torch
from torch import nn

from secfed.algorithms.models.dual_encoder_options import Size
from secfed.algorithms.models.encoder_libraries import bert_classes
from secfed.algorithms.models.vision_encoder import run_layers


class TextEncoder(nn.Module):
    """BERT; names of parameters are those of ``BertModel``. Token 0 is padding.

    The position table has exactly ``length`` rows and there is one token type, so every row is used:
    a row without a gradient would only carry noise and decay. ``checkpointing`` is that of
    :func:`~secfed.algorithms.models.vision_encoder.run_layers`.
    """

    def __init__(self, length: int, vocabulary: int, size: Size, *, checkpointing: bool = False) -> None:
        super().__init__()
        config_class, model_class = bert_classes()
        config = config_class(
            vocab_size=vocabulary,
            hidden_size=size.text_width,
            num_hidden_layers=size.text_depth,
            num_attention_heads=size.text_heads,
            intermediate_size=size.text_hidden,
            max_position_embeddings=length,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        body = model_class(config, add_pooling_layer=False)
        self.embeddings, self.encoder = body.embeddings, body.encoder
        for name in ("position_ids", "token_type_ids"):
            if hasattr(self.embeddings, name):  # ids for calls without ids, which are not made here
                delattr(self.embeddings, name)
        self.checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """[B, L] int64 tokens, and [B, L] bool, False for padding, to [B, L, d_t]; padding means nothing."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1).contiguous()
        embedded = self.embeddings(
            input_ids=tokens, position_ids=places, token_type_ids=torch.zeros_like(tokens)
        )
        return run_layers(self.encoder.layer, embedded, words[:, None, None, :], again=self.checkpointing)
