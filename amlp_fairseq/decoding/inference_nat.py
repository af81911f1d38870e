"""Non-autoregressive models for inference: repeated calls on the same sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.nat import FairseqNATDecoder
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.softmax import padding_bias
from amlp_fairseq.decoding.compiled_attentions import LINEAR, CompiledMemory
from amlp_fairseq.decoding.cuda_graph_forward import CudaGraphForward
from amlp_fairseq.decoding.cuda_graphs import check_device
from amlp_fairseq.decoding.fused_layers import full_layers, join_encoder_layers
from amlp_fairseq.decoding.packed_linear import in_decode_dtype, with_packed_linears
from amlp_fairseq.models.interfaces import ParallelDecoderLayer

NATOrRerankingModel = TypeVar("NATOrRerankingModel", bound=FairseqEncoderDecoderModel)


def inference_nat(
    model: NATOrRerankingModel, decode_dtype: str | None, cuda_graphs: bool = False
) -> NATOrRerankingModel:
    """A copy of the model with packed weights, whose cross-attentions, if they are the plugin's, project a source once.

    Args:
        model: a model of fairseq's NAT classes, or the reranking model of their outputs; it is not changed.
        decode_dtype: ``--decode-dtype``; None: the weights' type.
        cuda_graphs: ``--cuda-graphs``; every call then projects the source again.

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
            layer.encoder_attn = _CachedCrossAttention(layer.encoder_attn)
    return result


def join_decoder_layers(decoder: FairseqNATDecoder, decode_dtype: str | None) -> bool:
    """Replace a decoder's layers by ``FullLayers``.

    Args:
        decoder: has packed linear maps; it is changed.

    Returns:
        False for layers other than ``ParallelDecoderLayer`` with ReLU and softmax attention, or attentions of linear
        cost that are compiled.
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


class _SourceCache:
    """Caches the memory that an attention's ``project_source`` makes of the last source (S, B, C) and its padding mask
    (B, S)."""

    def __init__(self, project_source: Callable[[Tensor, Tensor | None], KVMemory]) -> None:
        self.project_source = project_source
        self.source: Tensor | None = None
        self.memory: KVMemory = {}

    def __call__(self, source: Tensor, padding_mask: Tensor | None) -> KVMemory:
        if source is not self.source:
            self.source, self.memory = source, self.project_source(source, padding_mask)
        return self.memory


class _CachedCrossAttention(nn.Module):
    """A cross-attention with a ``_SourceCache``, called as fairseq calls an attention."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention, self.memory_of = attention, _SourceCache(attention.project_source)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        return self.attention.cross_attend(query, self.memory_of(key, key_padding_mask), query_padding_mask), None


class _NATLayers(nn.Module):
    """``FullLayers``, called as fairseq calls a layer of a non-autoregressive decoder.

    Args:
        layers: ``FullLayers.forward``.
        attentions: the cross-attentions.
        masked: True if a second self-attention needs a mask to be causal.
    """

    def __init__(self, layers: Callable[..., Tensor], attentions: Sequence[MultiHeadAttention], masked: bool) -> None:
        super().__init__()
        self.layers, self.masked = layers, masked
        projected = (
            CompiledMemory(attention) if isinstance(attention, LINEAR) else attention for attention in attentions
        )
        self.caches = [_SourceCache(attention.project_source) for attention in projected]

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        self_attn_mask: None,
        self_attn_padding_mask: Tensor,
    ) -> tuple[Tensor, None, None]:
        memories = [memory_of(encoder_out, encoder_padding_mask) for memory_of in self.caches]
        ks, vs = ([memory[name] for memory in memories] for name in ("k", "v"))
        bias, future = padding_bias(self_attn_padding_mask, x), None
        if self.masked:
            future = bias + torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1)
        x = self.layers(x.transpose(0, 1), bias, future, ks, vs, memories[0].get("bias"))
        return x.transpose(0, 1), None, None
