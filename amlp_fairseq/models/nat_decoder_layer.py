"""Decoder layer of non-autoregressive models: attentions of the registry with all padding masks, and RePos."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from torch import Tensor, nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.registry import build_attention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.models.interfaces import ParallelDecoderLayer


class NATDecoderLayer(ParallelDecoderLayer):
    """fairseq's decoder layer with self-attention over all positions and with CMLMC's RePos.

    Args:
        cfg: configuration of the Transformer, with the model's options in ``cfg.options``.
        index: index of the layer, from 0.
        repos: add a causal self-attention of ``--repos-attention-type`` after the unmasked self-attention (CMLMC).
    """

    self_attn: Attention
    causal_attn: Attention
    encoder_attn: Attention

    def __init__(self, cfg: TransformerConfig, index: int, repos: bool) -> None:
        super().__init__(cfg)
        self.self_attn = build_attention(AttentionSpec(cfg.options, "decoder", index, "noncausal self"))
        self.encoder_attn = build_attention(AttentionSpec(cfg.options, "decoder", index, "noncausal cross"))
        self.repos = repos
        if repos:
            self.causal_attn = build_attention(
                AttentionSpec(cfg.options, "decoder", index, "causal self"), "repos_attention_type"
            )
            self.causal_attn_layer_norm = LayerNorm(self.embed_dim)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        self_attn_mask: None = None,
        self_attn_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None, None]:
        """Outputs (T, B, C) for inputs (T, B, C), the encoder's output (S, B, C') and the padding masks (B, S) and (B,
        T)."""
        padding_mask = self_attn_padding_mask
        x = self._sublayer(
            x, self.self_attn_layer_norm, lambda y: self.self_attn(y, y, y, key_padding_mask=padding_mask)[0]
        )
        if self.repos:
            future = None
            if self.causal_attn.takes_mask:
                future = torch.full((len(x), len(x)), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
            x = self._sublayer(
                x,
                self.causal_attn_layer_norm,
                lambda y: self.causal_attn(y, y, y, key_padding_mask=padding_mask, attn_mask=future)[0],
            )
        x = self._sublayer(
            x,
            self.encoder_attn_layer_norm,
            lambda y: self.encoder_attn(
                y, encoder_out, encoder_out, key_padding_mask=encoder_padding_mask, query_padding_mask=padding_mask
            )[0],
        )
        x = self._sublayer(
            x,
            self.final_layer_norm,
            lambda y: self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(y)))),
        )
        return x, None, None

    def attention_blocks(self) -> list[tuple[Attention, nn.LayerNorm]]:
        blocks = [(self.self_attn, self.self_attn_layer_norm), (self.encoder_attn, self.encoder_attn_layer_norm)]
        if self.repos:
            blocks.insert(1, (self.causal_attn, self.causal_attn_layer_norm))
        return blocks

    def _sublayer(self, x: Tensor, norm: nn.LayerNorm, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``function`` with dropout, residual connection, and the norm before ``function`` or after the sum."""
        y = self.dropout_module(function(norm(x) if self.normalize_before else x))
        return x + y if self.normalize_before else norm(x + y)
