"""Non-autoregressive models for inference: repeated calls on the same sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.decoding.cuda_graph_forward import CudaGraphForward
from amlp_fairseq.decoding.cuda_graphs import check_device
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
    if cuda_graphs:
        check_device(model, CudaGraphForward.supports(model.decoder), "decoders of cmlmc_transformer")
        result.decoder.forward = CudaGraphForward(result.decoder)
        return result
    for layer in result.decoder.layers:
        if isinstance(layer, ParallelDecoderLayer) and isinstance(layer.encoder_attn, MultiHeadAttention):
            layer.encoder_attn = _CachedCrossAttention(layer.encoder_attn)
    return result


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
