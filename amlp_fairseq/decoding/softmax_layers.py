"""The layers of a decoder whose attentions are all softmax attention, in TorchScript: no Python between operators.

They give what the layers of ``step_decoder.py`` give, for CPUs and without attention weights; of a step with a model of
the embedded corpus' size Python took most of the time. Notation: docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.softmax import FEW, SoftmaxAttention, attend_few
from amlp_fairseq.decoding.packed_linear import Int8Map, OneDnnMap, Packed, int8_product, one_dnn_product, scripted


def softmax_layers(layers: Sequence[Any]) -> Any:
    """The ``SoftmaxLayers`` of ``step_decoder``'s layers in TorchScript; None where a layer has another attention or
    activation, or its linear maps are of a kind that TorchScript cannot call."""
    attentions = [each for layer in layers for each in (layer.self_attention, layer.cross_attention)]
    if any(type(each) is not SoftmaxAttention for each in attentions):
        return None
    maps = [each for layer in layers for each in _maps(layer)]
    for kind, scriptable in ((Int8Map, _Int8Layers), (OneDnnMap, _OneDnnLayers)):
        if all(isinstance(each, kind) and each.bias is not None for each in maps):
            if any(layer.activation is not None for layer in layers):
                return None
            norms = [norm for layer in layers for norm in layer.norms]
            return scripted(scriptable(maps, norms, attentions[0].num_heads, layers[0].norm_first))
    return None


def _maps(layer: Any) -> list[Any]:
    """The linear maps of a layer, in the order in which ``SoftmaxLayers`` uses them."""
    own, cross = layer.self_attention.packed, layer.cross_attention.packed
    return [own.get("qkv"), own.get("out"), cross.get("q"), cross.get("out"), layer.fc1, layer.fc2]


class SoftmaxLayers(nn.Module):
    """All layers. A subclass implements ``product`` for its kind of maps.

    Args:
        norms: layer norms, three for each layer.
        heads: H.
        norm_first: whether they are in front of the blocks, or behind.
    """

    def __init__(self, norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_weights = torch.jit.Attribute([norm.weight.detach() for norm in norms], list[Tensor])
        self.norm_biases = torch.jit.Attribute([norm.bias.detach() for norm in norms], list[Tensor])
        self.eps, self.heads, self.norm_first, self.few = norms[0].eps, heads, norm_first, FEW

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

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        """The map ``index`` of inputs (n, in), (n, out)."""
        raise NotImplementedError

    def before(self, x: Tensor, norm: int) -> Tensor:
        return self.normalized(x, norm) if self.norm_first else x

    def after(self, x: Tensor, norm: int) -> Tensor:
        return x if self.norm_first else self.normalized(x, norm)

    def normalized(self, x: Tensor, norm: int) -> Tensor:
        return torch.layer_norm(x, [x.size(-1)], self.norm_weights[norm], self.norm_biases[norm], self.eps)

    def write(self, buffer: Tensor, new: Tensor, slots: Tensor, end: int) -> Tensor:
        """See ``StepContext.write``."""
        written = buffer.narrow(-2, 0, end)
        if slots.dim() == 1:
            written.narrow(-2, end - new.size(-2), new.size(-2)).copy_(new)
        else:
            buffer.scatter_(-2, slots.view(slots.size(0), 1, 1, -1, 1).expand_as(new), new)
        return written

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """See ``SoftmaxAttention._attend``."""
        if q.size(2) == 1 or q.size(2) > self.few:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return attend_few(q, k, v, bias)


class _Int8Layers(SoftmaxLayers):
    def __init__(self, maps: Sequence[Int8Map], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__(norms, heads, norm_first)
        self.packed = torch.jit.Attribute([each.packed for each in maps], list[Packed])
        self.biases = torch.jit.Attribute([each.bias for each in maps], list[Tensor])
        self.steps = torch.jit.Attribute([each.step for each in maps], list[float])
        self.zeros = torch.jit.Attribute([each.zero for each in maps], list[int])

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        return int8_product(x, self.packed[index], self.biases[index], self.steps[index], self.zeros[index], relu)


class _OneDnnLayers(SoftmaxLayers):
    def __init__(self, maps: Sequence[OneDnnMap], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> None:
        super().__init__(norms, heads, norm_first)
        self.packed = torch.jit.Attribute([each.packed for each in maps], list[Tensor])
        self.plain = torch.jit.Attribute([each.plain for each in maps], list[Tensor])
        self.biases = torch.jit.Attribute([each.bias for each in maps], list[Tensor])
        self.dtype = maps[0].dtype

    def product(self, x: Tensor, index: int, relu: bool) -> Tensor:
        packed, plain, bias = self.packed[index], self.plain[index], self.biases[index]
        return one_dnn_product(x.to(self.dtype), packed, plain, bias, relu).to(x.dtype)
