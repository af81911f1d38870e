"""A trained non-autoregressive model made ready for repeated calls on the same sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import Memory, MultiHeadAttention
from amlp_fairseq.attention.softmax import padding_bias
from amlp_fairseq.decoding.compiled_attentions import LINEAR, CompiledMemory
from amlp_fairseq.decoding.cuda_graph_forward import CudaGraphForward
from amlp_fairseq.decoding.cuda_graphs import check_device
from amlp_fairseq.decoding.fused_layers import full_layers, join_encoder_layers
from amlp_fairseq.decoding.packed_linear import in_decode_dtype, with_packed_linears
from amlp_fairseq.models.interfaces import ParallelDecoderLayer


def inference_nat(model: Any, decode_dtype: str | None, cuda_graphs: bool = False) -> Any:
    """A copy of the model with packed weights, in which the plugin's cross-attentions make the memory of a source once.

    Args:
        model: a model of fairseq's NAT classes, or the reranking model of their outputs; it is not changed.
        decode_dtype: ``--decode-dtype``; None: the weights' own.
        cuda_graphs: ``--cuda-graphs``; every pass then makes the memory anew.

    Raises:
        ValueError: if the device does not support this type, or the decoder cannot be captured.
    """
    model, decode_dtype = in_decode_dtype(model, decode_dtype)
    result = with_packed_linears(model, decode_dtype)
    join_encoder_layers(result.encoder, decode_dtype)
    if cuda_graphs:
        check_device(model, CudaGraphForward.supports(model.decoder), "decoders of cmlmc_transformer")
        result.decoder.forward = CudaGraphForward(result.decoder)
        return result
    if join_decoder_layers(result.decoder, decode_dtype):
        return result
    for layer in result.decoder.layers:
        if isinstance(layer, ParallelDecoderLayer) and isinstance(layer.encoder_attn, MultiHeadAttention):
            layer.encoder_attn = _OneSource(layer.encoder_attn)
    return result


def join_decoder_layers(decoder: Any, decode_dtype: str | None) -> bool:
    """Replace a decoder's layers by ``FullLayers``; returns False if it cannot, because they are not
    ``ParallelDecoderLayer`` with ReLU and softmax attention, or attentions of linear cost that are in C++.

    Args:
        decoder: has packed linear maps; it is changed.
    """
    layers = [*decoder.layers]
    if not all(isinstance(layer, ParallelDecoderLayer) for layer in layers) or not layers:
        return False
    blocks = [layer.attention_blocks() for layer in layers]
    fused = full_layers(decoder, blocks, decode_dtype)
    if fused is None:
        return False
    masked = any(attention.spec.causal and attention.takes_mask for attention, _ in blocks[0])
    decoder.layers = nn.ModuleList([_NATLayers(fused, [layer.encoder_attn for layer in layers], masked)])
    return True


class _OneSource(nn.Module):
    """A cross-attention that keeps the memory of a source for as long as it is called with the same one."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention
        self.source: Tensor | None = None
        self.memory: Memory = {}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        return self.attention.cross_attend(query, self.project_source(key, key_padding_mask), query_padding_mask), None

    def project_source(self, source: Tensor, padding_mask: Tensor | None) -> Memory:
        """The attention's memory of a source (S, B, C) with its padding mask (B, S)."""
        if source is not self.source:
            self.source, self.memory = source, self.attention.project_source(source, padding_mask)
        return self.memory


class _NATLayers(nn.Module):
    """``FullLayers``, called as fairseq calls a layer of a non-autoregressive decoder.

    Args:
        layers: ``FullLayers.forward``.
        attentions: the cross-attentions.
        masked: whether a self-attention follows the other one that needs a mask to be causal.
    """

    def __init__(self, layers: Any, attentions: Sequence[MultiHeadAttention], masked: bool) -> None:
        super().__init__()
        self.layers, self.masked = layers, masked
        readers = (CompiledMemory(each) if isinstance(each, LINEAR) else each for each in attentions)
        self.attentions = [*map(_OneSource, readers)]

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        self_attn_mask: None,
        self_attn_padding_mask: Tensor,
    ) -> tuple[Tensor, None, None]:
        memories = [each.project_source(encoder_out, encoder_padding_mask) for each in self.attentions]
        ks, vs = ([memory[name] for memory in memories] for name in ("k", "v"))
        bias, future = padding_bias(self_attn_padding_mask, x), None
        if self.masked:
            future = bias + torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1)
        x = self.layers(x.transpose(0, 1), bias, future, ks, vs, memories[0].get("bias"))
        return x.transpose(0, 1), None, None
