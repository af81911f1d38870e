"""A trained non-autoregressive model made ready for repeated calls on the same sources."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from amlp_fairseq.attention.multihead import Memory, MultiHeadAttention
from amlp_fairseq.decoding.captured_pass import CapturedPass
from amlp_fairseq.decoding.cuda_graphs import check_device
from amlp_fairseq.decoding.packed_linear import in_decode_dtype, with_packed_linears
from amlp_fairseq.decoding.softmax_layers import ready_encoder, ready_nat_decoder


def ready_nat(model: Any, decode_dtype: str | None, cuda_graphs: bool = False) -> Any:
    """A copy of the model with packed weights, in which the plugin's cross-attentions make the memory of a source once.

    Args:
        model: a model of fairseq's NAT classes, or the reranker of their outputs; it is not changed.
        decode_dtype: ``--decode-dtype``; None: the weights' own.
        cuda_graphs: ``--cuda-graphs``; every pass then makes the memory anew.

    Raises:
        ValueError: if the device does not support this type, or the decoder cannot be captured.
    """
    model, decode_dtype = in_decode_dtype(model, decode_dtype)
    result = with_packed_linears(model, decode_dtype)
    result.encoder = ready_encoder(model.encoder, decode_dtype)
    if cuda_graphs:
        check_device(model, CapturedPass.supports(model.decoder), "decoders of cmlmc_transformer")
        result.decoder.forward = CapturedPass(result.decoder)
        return result
    if ready_nat_decoder(result.decoder, decode_dtype):
        return result
    for layer in result.decoder.layers:
        if isinstance(layer.encoder_attn, MultiHeadAttention):
            layer.encoder_attn = _OneSource(layer.encoder_attn)
    return result


class _OneSource(nn.Module):
    """A cross-attention that keeps the memory of a source for as long as it is called with the same one."""

    def __init__(self, attention: MultiHeadAttention) -> None:
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
        if key is not self.source:
            self.source, self.memory = key, self.attention.remember(key, key_padding_mask)
        return self.attention.attend(query, self.memory, query_padding_mask), None
