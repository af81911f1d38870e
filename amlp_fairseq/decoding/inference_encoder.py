"""Encoders for inference. Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor

from amlp_fairseq.attention.softmax import padding_bias
from amlp_fairseq.decoding.fused_layers import EncoderLayers, join_encoder_layers
from amlp_fairseq.decoding.packed_linear import with_packed_linears
from amlp_fairseq.ops.cpu_layers import compiled_embedding


def inference_encoder(encoder: TransformerEncoderBase, decode_dtype: str | None) -> TransformerEncoderBase:
    """A copy of an encoder with packed linear maps; fairseq's with softmax attention and ReLU run in fewer calls."""
    encoder = with_packed_linears(encoder, decode_dtype)
    join_encoder_layers(encoder, decode_dtype)
    if _FusedEncoderForward.supports(encoder):
        encoder.forward_torchscript = _FusedEncoderForward(encoder)
    return encoder


class _FusedEncoderForward:
    """``forward_torchscript`` of fairseq's encoder with ``EncoderLayers``: one operator makes the inputs, and masks
    without padding are skipped.

    Args:
        encoder: the encoder.

    Attributes:
        encodings: position encodings of the first positions, (positions, C).
    """

    def __init__(self, encoder: TransformerEncoderBase) -> None:
        self.encoder = encoder
        self.table = encoder.embed_tokens.weight.detach()
        self.embed = compiled_embedding(self.table)
        self.encodings = self.table.new_empty(0, 0)

    @staticmethod
    def supports(encoder: TransformerEncoderBase) -> bool:
        """True if the encoder has such layers, nothing between them and the embedding, and the operator is compiled."""
        if [type(layer) for layer in getattr(encoder, "layers", ())] != [EncoderLayers]:
            return False
        plain = encoder.layernorm_embedding is None and encoder.quant_noise is None
        embedded = compiled_embedding(encoder.embed_tokens.weight.detach()) is not None
        return plain and embedded and encoder.embed_positions is not None

    def __call__(self, net_input: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """The encoder's output for sources (b, S), with the entries that decoding uses."""
        encoder, tokens = self.encoder, net_input["src_tokens"]
        if tokens.size(1) > len(self.encodings):
            self.make_encodings(tokens.size(1))
        mask = tokens.eq(encoder.padding_idx)
        padded = bool(mask.any())
        slots = (~mask).cumsum(1).sub_(1).clamp_(min=0) if padded else torch.arange(tokens.size(1))
        x = self.embed(tokens, slots, self.table, encoder.embed_scale, self.encodings, 0)
        if padded:
            x.masked_fill_(mask.unsqueeze(2), 0)
        x = encoder.layers[0].layers(x, padding_bias(mask, x) if padded else None, None, [], [], None)
        if encoder.layer_norm is not None:
            x = encoder.layer_norm(x)
        unused = ("encoder_embedding", "encoder_states", "fc_results", "src_tokens", "src_lengths")
        return {"encoder_out": [x.transpose(0, 1)], "encoder_padding_mask": [mask], **{name: [] for name in unused}}

    def make_encodings(self, positions: int) -> None:
        """Make the encodings of twice as many positions, if the encoder has as many."""
        positions = min(2 * positions, self.encoder.embed_positions.max_positions)
        words = torch.full((1, positions), self.encoder.padding_idx + 1)
        self.encodings = self.encoder.embed_positions(words)[0].to(self.table).contiguous()
