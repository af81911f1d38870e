"""Layers whose attentions are all softmax attention, in TorchScript: no Python between operators.

They give what the layers of ``step_decoder.py`` and of fairseq's encoder give, for CPUs and without attention weights;
of a sentence with a model of the embedded corpus' size Python took most of the time. Notation: docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.softmax import FEW, SoftmaxAttention, attend_few, padding_bias
from amlp_fairseq.compat.internals import TransformerEncoderLayerBase
from amlp_fairseq.decoding.packed_linear import (
    Int8Map,
    OneDnnMap,
    Packed,
    drops_out,
    int8_product,
    one_dnn_product,
    pack,
    scripted,
    with_packed_linears,
)


def decoder_layers(layers: Sequence[Any]) -> Any:
    """The ``DecoderLayers`` of ``step_decoder``'s layers in TorchScript; None where a layer has another attention or
    activation, or its linear maps are of a kind that TorchScript cannot call."""
    attentions = [each for layer in layers for each in (layer.self_attention, layer.cross_attention)]
    if any(type(each) is not SoftmaxAttention for each in attentions):
        return None
    if any(layer.activation is not None for layer in layers):
        return None
    maps = []
    for layer in layers:
        own, cross = layer.self_attention.packed, layer.cross_attention.packed
        maps += [own.get("qkv"), own.get("out"), cross.get("q"), cross.get("out"), layer.fc1, layer.fc2]
    norms = [norm for layer in layers for norm in layer.norms]
    return _scripted((_Int8Decoder, _OneDnnDecoder), maps, norms, attentions[0].num_heads, layers[0].norm_first)


def ready_encoder(encoder: Any, decode_dtype: str | None) -> Any:
    """A copy of an encoder with packed linear maps, and with ``EncoderLayers`` in TorchScript in the place of its
    layers where they are fairseq's with softmax attention and ReLU."""
    encoder = with_packed_linears(encoder, decode_dtype)
    layers = [*getattr(encoder, "layers", ())]
    if any(type(layer) is not TransformerEncoderLayerBase for layer in layers) or not layers:
        return encoder
    if any(type(layer.self_attn) is not SoftmaxAttention or layer.activation_fn is not F.relu for layer in layers):
        return encoder
    if drops_out(encoder):
        return encoder
    maps: list[Any] = []
    for layer in layers:
        fc1 = pack(layer.fc1.weight, layer.fc1.bias, decode_dtype, relu=True)
        fc2 = pack(layer.fc2.weight, layer.fc2.bias, decode_dtype, nonnegative=True)
        maps += [layer.self_attn.packed.get("qkv"), layer.self_attn.packed.get("out"), fc1, fc2]
    norms = [norm for layer in layers for norm in (layer.self_attn_layer_norm, layer.final_layer_norm)]
    first = layers[0]
    every = _scripted((_Int8Encoder, _OneDnnEncoder), maps, norms, first.self_attn.num_heads, first.normalize_before)
    if every is not None:
        encoder.layers = nn.ModuleList([_OneLayer(every)])
    return encoder


class _OneLayer(nn.Module):
    """``EncoderLayers``, called as fairseq calls a layer."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None) -> Tensor:
        bias = None if encoder_padding_mask is None else padding_bias(encoder_padding_mask, x)
        out: Tensor = self.layers.forward(x.transpose(0, 1), bias).transpose(0, 1)
        return out


def _scripted(
    kinds: tuple[Any, Any], maps: Sequence[Any], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool
) -> Any:
    """Layers of the first or the second kind, for int8 or oneDNN; None if the maps are of neither."""
    for kind, of in ((kinds[0], Int8Map), (kinds[1], OneDnnMap)):
        if all(isinstance(each, of) and each.bias is not None for each in maps):
            return scripted(kind(maps, norms, heads, norm_first))
    return None


class SoftmaxLayers(nn.Module):
    """What both sides' layers share. A subclass implements ``product`` for its kind of maps.

    Args:
        norms: layer norms, of all layers.
        heads: H.
        norm_first: whether they are in front of the blocks, or behind.
    """

    def __init__(self, norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_weights = torch.jit.Attribute([norm.weight.detach() for norm in norms], list[Tensor])
        self.norm_biases = torch.jit.Attribute([norm.bias.detach() for norm in norms], list[Tensor])
        self.eps, self.heads, self.norm_first, self.few = norms[0].eps, heads, norm_first, FEW

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        """The map ``index`` of inputs (n, in), (n, out)."""
        raise NotImplementedError

    def before(self, x: Tensor, norm: int) -> Tensor:
        return self.normalized(x, norm) if self.norm_first else x

    def after(self, x: Tensor, norm: int) -> Tensor:
        return x if self.norm_first else self.normalized(x, norm)

    def normalized(self, x: Tensor, norm: int) -> Tensor:
        return torch.layer_norm(x, [x.size(-1)], self.norm_weights[norm], self.norm_biases[norm], self.eps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """See ``SoftmaxAttention._attend``."""
        if q.size(2) == 1 or q.size(2) > self.few:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return attend_few(q, k, v, bias)


class DecoderLayers(SoftmaxLayers):
    """All layers of a decoder: six maps and three norms for each."""

    def forward(
        self,
        x: Tensor,
        slots: Tensor,
        end: int,
        beam: int,
        bias: Tensor | None,
        kvs: list[Tensor],
        ks: list[Tensor],
        vs: list[Tensor],
        source_bias: Tensor | None,
    ) -> Tensor:
        """Inputs (R, n, C) to outputs (R, n, C).

        Args:
            slots, end, beam, bias: see ``StepContext``; slots (R, n) as in ``RowContext``.
            kvs: of each layer the state of its self-attention, (R, H, 2, slots, d_h); updated in place.
            ks, vs: of each layer keys and values of the source, (b, H, S, d_h).
            source_bias: 0 or, for padding, -inf, (b, 1, 1, S).
        """
        rows, count, width = x.size(0), x.size(1), x.size(2)
        x = x.view(rows * count, width)
        for layer in range(len(kvs)):
            first, norm = 6 * layer, 3 * layer
            qkv = self.product(self.before(x, norm), first, False)
            qkv = qkv.view(rows, count, 3, self.heads, -1).permute(0, 3, 2, 1, 4)
            kv = self.write(kvs[layer], qkv.narrow(2, 1, 2), slots, end)
            read = self.attend(qkv.select(2, 0), kv.select(2, 0), kv.select(2, 1), bias)
            read = read.transpose(1, 2).reshape(rows * count, width)
            x = self.after(x + self.product(read, first + 1, False), norm)

            q = self.product(self.before(x, norm + 1), first + 2, False)
            q = q.view(rows // beam, beam * count, self.heads, -1).transpose(1, 2)
            read = self.attend(q, ks[layer], vs[layer], source_bias)
            read = read.transpose(1, 2).reshape(rows * count, width)
            x = self.after(x + self.product(read, first + 3, False), norm + 1)

            inner = self.product(self.before(x, norm + 2), first + 4, True)
            x = self.after(x + self.product(inner, first + 5, False), norm + 2)
        return x.view(rows, count, width)

    def write(self, buffer: Tensor, new: Tensor, slots: Tensor, end: int) -> Tensor:
        """See ``StepContext.write``."""
        written = buffer.narrow(-2, 0, end)
        if slots.dim() == 1:
            written.narrow(-2, end - new.size(-2), new.size(-2)).copy_(new)
        else:
            buffer.scatter_(-2, slots.view(slots.size(0), 1, 1, -1, 1).expand_as(new), new)
        return written


class EncoderLayers(SoftmaxLayers):
    """All layers of an encoder: four maps and two norms for each."""

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Inputs (b, S, C) to outputs (b, S, C). ``bias``: 0 or, for padding, -inf, (b, 1, 1, S)."""
        rows, count, width = x.size(0), x.size(1), x.size(2)
        x = x.reshape(rows * count, width)
        for layer in range(len(self.norm_weights) // 2):
            first, norm = 4 * layer, 2 * layer
            qkv = self.product(self.before(x, norm), first, False)
            qkv = qkv.view(rows, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            read = self.attend(qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2), bias)
            read = read.transpose(1, 2).reshape(rows * count, width)
            x = self.after(x + self.product(read, first + 1, False), norm)

            inner = self.product(self.before(x, norm + 1), first + 2, True)
            x = self.after(x + self.product(inner, first + 3, False), norm + 1)
        return x.view(rows, count, width)


class _Int8(SoftmaxLayers):
    def __init__(self, maps: Sequence[Int8Map], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__(norms, heads, norm_first)
        self.packed = torch.jit.Attribute([each.packed for each in maps], list[Packed])
        self.biases = torch.jit.Attribute([each.bias for each in maps], list[Tensor])
        self.steps = torch.jit.Attribute([each.step for each in maps], list[float])
        self.zeros = torch.jit.Attribute([each.zero for each in maps], list[int])

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        return int8_product(x, self.packed[index], self.biases[index], self.steps[index], self.zeros[index], relu)


class _OneDnn(SoftmaxLayers):
    def __init__(self, maps: Sequence[OneDnnMap], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__(norms, heads, norm_first)
        self.packed = torch.jit.Attribute([each.packed for each in maps], list[Tensor])
        self.plain = torch.jit.Attribute([each.plain for each in maps], list[Tensor])
        self.biases = torch.jit.Attribute([each.bias for each in maps], list[Tensor])
        self.dtype = maps[0].dtype

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        packed, plain, bias = self.packed[index], self.plain[index], self.biases[index]
        return one_dnn_product(x.to(self.dtype), packed, plain, bias, relu).to(x.dtype)


class _Int8Decoder(_Int8, DecoderLayers):
    pass


class _OneDnnDecoder(_OneDnn, DecoderLayers):
    pass


class _Int8Encoder(_Int8, EncoderLayers):
    pass


class _OneDnnEncoder(_OneDnn, EncoderLayers):
    pass
