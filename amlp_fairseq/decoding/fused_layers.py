"""Layers whose attentions are all softmax attention as one call, without Python between operators.

They give what the layers of ``step_decoder.py`` and of fairseq's encoder give, for CPUs and without attention weights;
of a sentence with a model of the embedded corpus' size Python took most of the time. What they compute is defined here,
in TorchScript; where ``amlp-fairseq compile`` has been called, ``ops/cpu_layers`` computes it. Notation:
docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.softmax import SMALL_QUERY, SoftmaxAttention, attend_small_query, padding_bias
from amlp_fairseq.compat.internals import TransformerEncoderLayerBase
from amlp_fairseq.decoding.compiled_attentions import LINEAR, compiled_linear_attention, compiled_self_attention
from amlp_fairseq.decoding.packed_linear import (
    CompiledMap,
    Int8Map,
    OneDnnMap,
    Packed,
    int8_product,
    one_dnn_product,
    pack,
    scripted,
)
from amlp_fairseq.ops.cpu_layers import compiled_layers


def decoder_layers(layers: Sequence[Any]) -> Any:
    """``StepLayers.forward`` of ``step_decoder``'s layers, in C++ also with average attention or convolutions in the
    place of the self-attention; None where a layer has another attention or activation, or its linear maps are of a
    kind that cannot be called."""
    if any(type(layer.cross_attention) is not SoftmaxAttention or layer.activation is not None for layer in layers):
        return None
    own, maps = [layer.self_attention for layer in layers], []
    all_softmax = all(type(each) is SoftmaxAttention for each in own)
    for layer in layers:
        if all_softmax:
            maps += [layer.self_attention.packed.get("qkv"), layer.self_attention.packed.get("out")]
        cross = layer.cross_attention.packed
        maps += [cross.get("q"), cross.get("out"), layer.fc1, layer.fc2]
    norms = [norm for layer in layers for norm in layer.norms]
    heads, norm_first = layers[0].cross_attention.num_heads, layers[0].norm_first
    if all_softmax:
        return _fused((_Int8Steps, _OneDnnSteps), maps, norms, heads, norm_first)
    compiled = _with_others(own, maps, norms, heads, norm_first)
    return None if compiled is None else compiled.step


def _with_others(
    attentions: Sequence[Any], maps: Sequence[Any], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool
) -> Any:
    """Layers in C++ with these self-attentions, which are not softmax attention; None where a part is not compiled."""
    if not all(isinstance(each, CompiledMap) for each in maps):
        return None
    others = [compiled_self_attention(each) for each in attentions]
    if any(each is None for each in others):
        return None
    return compiled_layers([each.compiled for each in maps], norms, heads, norm_first, others)


def join_encoder_layers(encoder: Any, decode_dtype: str | None) -> None:
    """Put ``EncoderLayers`` in the place of an encoder's layers, if they are fairseq's with softmax attention and ReLU.

    Args:
        encoder: has packed linear maps; it is changed.
    """
    layers = [*getattr(encoder, "layers", ())]
    if any(type(layer) is not TransformerEncoderLayerBase for layer in layers) or not layers:
        return
    blocks = [[(layer.self_attn, layer.self_attn_layer_norm)] for layer in layers]
    every = full_layers(encoder, blocks, decode_dtype)
    if every is not None:
        encoder.layers = nn.ModuleList([EncoderLayers(every)])


def full_layers(module: Any, blocks: Sequence[Sequence[tuple[Any, nn.LayerNorm]]], decode_dtype: str | None) -> Any:
    """``FullLayers.forward`` of an encoder's or decoder's layers, with the attentions of each and their norms, in
    C++ also with attentions of linear cost, and with average attention or convolutions as an encoder's self-attentions;
    None where one has another attention or activation, or drops out, or its maps are of no kind for that."""
    usual = (SoftmaxAttention, *LINEAR)
    others = [attention for layer in blocks for attention, _ in layer if type(attention) not in usual]
    if others and len(others) < sum(map(len, blocks)):
        return None
    if any(layer.activation_fn is not F.relu for layer in module.layers) or drops_out(module):
        return None
    maps: list[Any] = []
    norms: list[nn.LayerNorm] = []
    linear: dict[int, Any] = {}
    for layer, attentions in zip(module.layers, blocks, strict=True):
        for attention, norm in attentions:
            if not others:
                maps += [attention.packed.get("qkv", attention.packed.get("q")), attention.packed.get("out")]
            if type(attention) in LINEAR:
                linear[len(norms)] = attention
            norms.append(norm)
        fc1 = pack(layer.fc1.weight, layer.fc1.bias, decode_dtype, relu=True)
        fc2 = pack(layer.fc2.weight, layer.fc2.bias, decode_dtype, nonnegative=True)
        maps += [fc1, fc2]
        norms.append(layer.final_layer_norm)
    first = module.layers[0]
    if others:
        compiled = _with_others(others, maps, norms, 1, first.normalize_before)
        return None if compiled is None else compiled.forward_full
    heads, norm_first = first.self_attn.num_heads, first.normalize_before
    return _fused((_Int8Full, _OneDnnFull), maps, norms, heads, norm_first, linear)


class EncoderLayers(nn.Module):
    """``FullLayers``, called as fairseq calls a layer of an encoder."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None) -> Tensor:
        bias = None if encoder_padding_mask is None else padding_bias(encoder_padding_mask, x)
        out: Tensor = self.layers(x.transpose(0, 1), bias, None, [], [], None).transpose(0, 1)
        return out


def drops_out(module: nn.Module) -> bool:
    """Whether a part of it has dropout while it decodes (``--retain-dropout``)."""
    return any(isinstance(part, FairseqDropout) and part.apply_during_inference for part in module.modules())


def _fused(
    kinds: tuple[Any, Any],
    maps: Sequence[Any],
    norms: Sequence[nn.LayerNorm],
    heads: int,
    norm_first: bool,
    linear: Mapping[int, Any] = MappingProxyType({}),
) -> Any:
    """``forward`` of the first or the second kind, for int8 or oneDNN, in C++ if that has been compiled and otherwise
    in TorchScript; None if the maps are of neither, or if they are not in C++ and there are attentions of linear cost.

    Args:
        linear: these attentions by the numbers of their blocks.
    """
    if all(isinstance(each, CompiledMap) for each in maps):
        compiled = {block: compiled_linear_attention(each) for block, each in linear.items()}
        if all(each is not None for each in compiled.values()):
            layers = compiled_layers([each.compiled for each in maps], norms, heads, norm_first, linear=compiled)
            if layers is not None:
                return layers.step if issubclass(kinds[0], StepLayers) else layers.forward_full
    for kind, of in ((kinds[0], Int8Map), (kinds[1], OneDnnMap)):
        if not linear and all(isinstance(each, of) and each.bias is not None for each in maps):
            return scripted(kind(maps, norms, heads, norm_first)).forward
    return None


class SoftmaxLayers(nn.Module):
    """What all layers share. A layer has blocks: attentions and, last, a feed-forward network, with two maps and a norm
    each; block i has the maps 2 i and 2 i + 1. A subclass implements ``product`` for its kind of maps.

    Args:
        norms: layer norms, of all blocks.
        heads: H.
        norm_first: whether they are in front of the blocks, or behind.
    """

    def __init__(self, norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_weights = torch.jit.Attribute([norm.weight.detach() for norm in norms], list[Tensor])
        self.norm_biases = torch.jit.Attribute([norm.bias.detach() for norm in norms], list[Tensor])
        self.eps, self.heads, self.norm_first, self.few = norms[0].eps, heads, norm_first, SMALL_QUERY

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
        return attend_small_query(q, k, v, bias)

    def cross_attention(self, x: Tensor, block: int, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Cross-attention of inputs (R, C), R a multiple of b, to keys and values (b, H, S, d_h)."""
        q = self.product(self.before(x, block), 2 * block, False)
        q = q.view(k.size(0), x.size(0) // k.size(0), self.heads, -1).transpose(1, 2)
        return self.added(x, block, self.attend(q, k, v, bias))

    def added(self, x: Tensor, block: int, read: Tensor) -> Tensor:
        """What an attention has read, (b, H, n, d_h), is mapped and added to its inputs (b n, C)."""
        read = read.transpose(1, 2).reshape(x.size(0), x.size(1))
        return self.after(x + self.product(read, 2 * block + 1, False), block)

    def feed_forward(self, x: Tensor, block: int) -> Tensor:
        inner = self.product(self.before(x, block), 2 * block, True)
        return self.after(x + self.product(inner, 2 * block + 1, False), block)


class StepLayers(SoftmaxLayers):
    """All layers of a decoder that writes from step to step, of three blocks each."""

    def forward(
        self,
        x: Tensor,
        slots: Tensor,
        end: int,
        bias: Tensor | None,
        kvs: list[Tensor],
        ks: list[Tensor],
        vs: list[Tensor],
        source_bias: Tensor | None,
    ) -> Tensor:
        """Inputs (R, n, C) to outputs (R, n, C).

        Args:
            slots, end, bias: see ``StepContext``; slots (R, n) as in ``RowContext``.
            kvs: of each layer the state of its self-attention, (R, H, 2, slots, d_h); updated in place.
            ks, vs: of each layer keys and values of the source, (b, H, S, d_h).
            source_bias: 0 or, for padding, -inf, (b, 1, 1, S).
        """
        rows, count, width = x.size(0), x.size(1), x.size(2)
        x = x.view(rows * count, width)
        for layer in range(len(kvs)):
            block = 3 * layer
            qkv = self.product(self.before(x, block), 2 * block, False)
            qkv = qkv.view(rows, count, 3, self.heads, -1).permute(0, 3, 2, 1, 4)
            kv = self.write(kvs[layer], qkv.narrow(2, 1, 2), slots, end)
            x = self.added(x, block, self.attend(qkv.select(2, 0), kv.select(2, 0), kv.select(2, 1), bias))
            x = self.cross_attention(x, block + 1, ks[layer], vs[layer], source_bias)
            x = self.feed_forward(x, block + 2)
        return x.view(rows, count, width)

    def write(self, buffer: Tensor, new: Tensor, slots: Tensor, end: int) -> Tensor:
        """See ``StepContext.write``."""
        written = buffer.narrow(-2, 0, end)
        if slots.dim() == 1:
            written.narrow(-2, end - new.size(-2), new.size(-2)).copy_(new)
        else:
            buffer.scatter_(-2, slots.view(slots.size(0), 1, 1, -1, 1).expand_as(new), new)
        return written


class FullLayers(SoftmaxLayers):
    """All layers of an encoder or of a non-autoregressive decoder, which see all positions at once."""

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None,
        future: Tensor | None,
        ks: list[Tensor],
        vs: list[Tensor],
        source_bias: Tensor | None,
    ) -> Tensor:
        """Inputs (b, n, C) to outputs (b, n, C).

        Args:
            bias: 0 or, for padding, -inf, (b, 1, 1, n).
            future: the same, and -inf for positions ahead, (b, 1, n, n), where layers have a causal softmax attention.
            ks, vs: of each layer keys and values of the source, (b, H, S, d_h), if they have cross-attention.
            source_bias: as ``bias``, (b, 1, 1, S).
        """
        rows, count, width = x.size(0), x.size(1), x.size(2)
        x, block, layer = x.reshape(rows * count, width), 0, 0
        while block < len(self.norm_weights):
            x, block = self.self_attention(x, block, rows, bias), block + 1
            if future is not None:
                x, block = self.self_attention(x, block, rows, future), block + 1
            if len(ks) > 0:
                x, block = self.cross_attention(x, block, ks[layer], vs[layer], source_bias), block + 1
            x, block, layer = self.feed_forward(x, block), block + 1, layer + 1
        return x.view(rows, count, width)

    def self_attention(self, x: Tensor, block: int, rows: int, bias: Tensor | None) -> Tensor:
        """Self-attention of inputs (b n, C), ``rows`` = b."""
        qkv = self.product(self.before(x, block), 2 * block, False)
        qkv = qkv.view(rows, x.size(0) // rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.added(x, block, self.attend(qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2), bias))


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


class _Int8Steps(_Int8, StepLayers):
    pass


class _OneDnnSteps(_OneDnn, StepLayers):
    pass


class _Int8Full(_Int8, FullLayers):
    pass


class _OneDnnFull(_OneDnn, FullLayers):
    pass
