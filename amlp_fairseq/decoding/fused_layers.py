"""All layers in one call, without Python between operators.

The outputs are equal to the outputs of the layers of ``step_decoder.py`` and of fairseq's encoder, on CPUs and without
attention weights. For small models, most of the time was Python overhead. Layers with softmax attention are defined
here, in TorchScript; after ``amlp-fairseq compile``, ``ops/cpu_layers`` computes them in C++, and layers with some
other attentions. Notation: docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from fairseq.models.nat import FairseqNATDecoder
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.attention.softmax import SMALL_QUERY, SoftmaxAttention, attend_small_query, padding_bias
from amlp_fairseq.compat.internals import TransformerEncoderLayerBase
from amlp_fairseq.decoding.compiled_attentions import (
    LINEAR,
    LinearAttention,
    compiled_linear_attention,
    compiled_self_attention,
)
from amlp_fairseq.decoding.packed_linear import (
    CompiledMap,
    Int8Map,
    Map,
    OneDnnMap,
    Packed,
    int8_product,
    one_dnn_product,
    pack,
    scripted,
)
from amlp_fairseq.ops.cpu_layers import compiled_layers


class FusedLayers(NamedTuple):
    """All layers of a decoder or encoder.

    Attributes:
        forward: ``StepLayers.forward`` or ``FullLayers.forward``.
        compiled: the layers in C++; None for TorchScript.
    """

    forward: Callable[..., Tensor]
    compiled: Any = None


class DecoderLayer(Protocol):
    """A decoder layer with packed maps.

    Attributes:
        self_attention, cross_attention: the attentions.
        fc1, fc2: maps of the feed-forward network, ReLU included.
        activation: None for ReLU.
        norms: of the blocks.
        norm_first: see ``SoftmaxLayers``.
    """

    self_attention: Attention
    cross_attention: Attention
    fc1: Map
    fc2: Map
    activation: Callable[[Tensor], Tensor] | None
    norms: list[nn.LayerNorm]
    norm_first: bool


def decoder_layers(layers: Sequence[DecoderLayer]) -> FusedLayers | None:
    """Fuses the layers of a decoder with softmax cross-attention, and as self-attention softmax attention, or in C++
    average attention or convolutions. Returns None if a layer has another attention or activation, or unsupported
    linear maps."""
    if any(type(layer.cross_attention) is not SoftmaxAttention or layer.activation is not None for layer in layers):
        return None
    self_attentions = [layer.self_attention for layer in layers]
    all_softmax = all(type(attention) is SoftmaxAttention for attention in self_attentions)
    maps: list[Map | None] = []
    for layer in layers:
        if all_softmax:
            maps += _attention_maps(layer.self_attention)
        maps += [*_attention_maps(layer.cross_attention), layer.fc1, layer.fc2]
    norms = [norm for layer in layers for norm in layer.norms]
    heads, norm_first = layers[0].cross_attention.num_heads, layers[0].norm_first
    if all_softmax:
        return _fused((_Int8Steps, _OneDnnSteps), maps, norms, heads, norm_first)
    compiled = _compiled(self_attentions, maps, norms, heads, norm_first)
    return None if compiled is None else FusedLayers(compiled.step, compiled)


def _attention_maps(attention: Attention) -> list[Map | None]:
    """The packed maps of queries, with keys and values in self-attention, and of outputs."""
    packed = attention.packed if isinstance(attention, MultiHeadAttention) else {}
    return [packed.get("qkv", packed.get("q")), packed.get("out")]


def _compiled(
    self_attentions: Sequence[Attention],
    maps: Sequence[Map | None],
    norms: Sequence[nn.LayerNorm],
    heads: int,
    norm_first: bool,
) -> Any:
    """Layers in C++ with self-attentions other than softmax attention; None if a part is not compiled."""
    compiled_maps = [part.compiled for part in maps if isinstance(part, CompiledMap)]
    if len(compiled_maps) < len(maps):
        return None
    compiled_attentions = (compiled_self_attention(attention) for attention in self_attentions)
    attentions = [compiled for compiled in compiled_attentions if compiled is not None]
    if len(attentions) < len(self_attentions):
        return None
    return compiled_layers(compiled_maps, norms, heads, norm_first, attentions)


def join_encoder_layers(encoder: TransformerEncoderBase, decode_dtype: str | None) -> None:
    """Replace an encoder's layers by ``EncoderLayers``, if they are fairseq's with softmax attention and ReLU.

    Args:
        encoder: has packed linear maps; it is changed.
    """
    layers = [*getattr(encoder, "layers", ())]
    if any(type(layer) is not TransformerEncoderLayerBase for layer in layers) or not layers:
        return
    blocks = [[(layer.self_attn, layer.self_attn_layer_norm)] for layer in layers]
    forward = full_layers(encoder, blocks, decode_dtype)
    if forward is not None:
        encoder.layers = nn.ModuleList([EncoderLayers(forward)])


def full_layers(
    module: TransformerEncoderBase | FairseqNATDecoder,
    blocks: Sequence[Sequence[tuple[Attention, nn.LayerNorm]]],
    decode_dtype: str | None,
) -> Callable[..., Tensor] | None:
    """``FullLayers.forward`` of an encoder's or decoder's layers, in C++ also with attentions of linear cost, and with
    average attention or convolutions as an encoder's self-attentions. Returns None if a layer has another attention or
    activation, dropout, or unsupported linear maps.

    Args:
        module: has the layers.
        blocks: for each layer its attentions and their norms.
        decode_dtype: type of the weights, see ``pack``.
    """
    with_maps = (SoftmaxAttention, *LINEAR)
    self_attentions = [attention for layer in blocks for attention, _ in layer if type(attention) not in with_maps]
    if self_attentions and len(self_attentions) < sum(map(len, blocks)):
        return None
    if any(layer.activation_fn is not F.relu for layer in module.layers) or drops_out(module):
        return None
    maps: list[Map | None] = []
    norms: list[nn.LayerNorm] = []
    linear: dict[int, LinearAttention] = {}
    for layer, attentions in zip(module.layers, blocks, strict=True):
        for attention, norm in attentions:
            if not self_attentions:
                maps += _attention_maps(attention)
            if isinstance(attention, LINEAR):
                linear[len(norms)] = attention
            norms.append(norm)
        fc1 = pack(layer.fc1.weight, layer.fc1.bias, decode_dtype, relu=True)
        fc2 = pack(layer.fc2.weight, layer.fc2.bias, decode_dtype, nonnegative=True)
        maps += [fc1, fc2]
        norms.append(layer.final_layer_norm)
    first = module.layers[0]
    if self_attentions:
        compiled = _compiled(self_attentions, maps, norms, 1, first.normalize_before)
        return None if compiled is None else compiled.forward_full
    heads, norm_first = first.self_attn.num_heads, first.normalize_before
    fused = _fused((_Int8Full, _OneDnnFull), maps, norms, heads, norm_first, linear)
    return None if fused is None else fused.forward


class EncoderLayers(nn.Module):
    """``FullLayers``, called as fairseq calls a layer of an encoder."""

    def __init__(self, layers: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None) -> Tensor:
        bias = None if encoder_padding_mask is None else padding_bias(encoder_padding_mask, x)
        out: Tensor = self.layers(x.transpose(0, 1), bias, None, [], [], None).transpose(0, 1)
        return out


def drops_out(module: nn.Module) -> bool:
    """True if a part of a module has dropout during inference (``--retain-dropout``)."""
    return any(isinstance(part, FairseqDropout) and part.apply_during_inference for part in module.modules())


def _fused(
    classes: tuple[type[_Int8], type[_OneDnn]],
    maps: Sequence[Map | None],
    norms: Sequence[nn.LayerNorm],
    heads: int,
    norm_first: bool,
    linear: Mapping[int, LinearAttention] = MappingProxyType({}),
) -> FusedLayers | None:
    """The fused layers: in C++ if compiled, else in TorchScript for int8 or oneDNN maps. Returns None for other maps,
    and for attentions of linear cost that are not compiled.

    Args:
        classes: for int8 and for oneDNN maps.
        linear: attentions of linear cost by the indices of their blocks.
    """
    compiled_maps = [part.compiled for part in maps if isinstance(part, CompiledMap)]
    if len(compiled_maps) == len(maps):
        attentions = {block: compiled_linear_attention(attention) for block, attention in linear.items()}
        if all(attention is not None for attention in attentions.values()):
            layers = compiled_layers(compiled_maps, norms, heads, norm_first, linear=attentions)
            if layers is not None:
                return FusedLayers(layers.step if issubclass(classes[0], StepLayers) else layers.forward_full, layers)
    int8_maps = [part for part in maps if isinstance(part, Int8Map) and part.bias is not None]
    one_dnn_maps = [part for part in maps if isinstance(part, OneDnnMap) and part.bias is not None]
    if not linear and len(int8_maps) == len(maps):
        return FusedLayers(scripted(classes[0](int8_maps, norms, heads, norm_first)).forward)
    if not linear and len(one_dnn_maps) == len(maps):
        return FusedLayers(scripted(classes[1](one_dnn_maps, norms, heads, norm_first)).forward)
    return None


class SoftmaxLayers(nn.Module):
    """The base class of all layers in TorchScript. A layer has blocks: attentions and, last, a feed-forward network,
    with two maps and a norm each; block i has the maps 2 i and 2 i + 1. Subclasses implement ``product`` for one kind
    of maps.

    Args:
        norms: layer norms of all blocks.
        heads: H.
        norm_first: True if norms come before the blocks, False if after.
    """

    def __init__(self, norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_weights = torch.jit.Attribute([norm.weight.detach() for norm in norms], list[Tensor])
        self.norm_biases = torch.jit.Attribute([norm.bias.detach() for norm in norms], list[Tensor])
        self.eps, self.heads, self.norm_first, self.small_query = norms[0].eps, heads, norm_first, SMALL_QUERY

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        """Map number ``index`` of inputs (n, in): (n, out)."""
        raise NotImplementedError

    def before(self, x: Tensor, norm: int) -> Tensor:
        return self.normalized(x, norm) if self.norm_first else x

    def after(self, x: Tensor, norm: int) -> Tensor:
        return x if self.norm_first else self.normalized(x, norm)

    def normalized(self, x: Tensor, norm: int) -> Tensor:
        return torch.layer_norm(x, [x.size(-1)], self.norm_weights[norm], self.norm_biases[norm], self.eps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """See ``SoftmaxAttention._attend``."""
        if q.size(2) == 1 or q.size(2) > self.small_query:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return attend_small_query(q, k, v, bias)

    def cross_attention(self, x: Tensor, block: int, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Cross-attention of inputs (R, C), R a multiple of b, to keys and values (b, H, S, d_h)."""
        q = self.product(self.before(x, block), 2 * block, False)
        q = q.view(k.size(0), x.size(0) // k.size(0), self.heads, -1).transpose(1, 2)
        return self.added(x, block, self.attend(q, k, v, bias))

    def added(self, x: Tensor, block: int, attended: Tensor) -> Tensor:
        """Adds the output map of an attention's result (b, H, n, d_h) to its inputs (b n, C)."""
        attended = attended.transpose(1, 2).reshape(x.size(0), x.size(1))
        return self.after(x + self.product(attended, 2 * block + 1, False), block)

    def feed_forward(self, x: Tensor, block: int) -> Tensor:
        inner = self.product(self.before(x, block), 2 * block, True)
        return self.after(x + self.product(inner, 2 * block + 1, False), block)


class StepLayers(SoftmaxLayers):
    """All layers of a stepwise decoder, of three blocks each."""

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
            kvs: for each layer the state of its self-attention, (R, H, 2, slots, d_h); updated in place.
            ks, vs: for each layer keys and values of the source, (b, H, S, d_h).
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
    """All layers of an encoder or of a non-autoregressive decoder, over all positions."""

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
            ks, vs: for each layer keys and values of the source, (b, H, S, d_h), if it has cross-attention.
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
        self.packed = torch.jit.Attribute([part.packed for part in maps], list[Packed])
        self.biases = torch.jit.Attribute([part.bias for part in maps], list[Tensor])
        self.step_sizes = torch.jit.Attribute([part.step_size for part in maps], list[float])
        self.zero_points = torch.jit.Attribute([part.zero_point for part in maps], list[int])

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        step_size, zero_point = self.step_sizes[index], self.zero_points[index]
        return int8_product(x, self.packed[index], self.biases[index], step_size, zero_point, relu)


class _OneDnn(SoftmaxLayers):
    def __init__(self, maps: Sequence[OneDnnMap], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__(norms, heads, norm_first)
        self.packed = torch.jit.Attribute([part.packed for part in maps], list[Tensor])
        self.plain = torch.jit.Attribute([part.plain for part in maps], list[Tensor])
        self.biases = torch.jit.Attribute([part.bias for part in maps], list[Tensor])
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
