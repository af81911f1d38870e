"""A Transformer decoder made ready to write: the numbers of the model's own forward, with less work per step.

Queries, keys and values of a layer are one product; keys and values of the words go into buffers that are there
before; those of the source are made once per sentence and read by all rows of its beam.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.decoding.packed_linear import Map, pack, with_packed_linears
from amlp_fairseq.models.plugin_transformer import PluginDecoder

Memory = tuple[Any, ...]

#: Slots that the buffers have at first; they are doubled when they are full.
SLOTS = 64


class StepDecoder:
    """The decoder of a trained model, for steps of z slots; b sentences with B rows each are R = b·B rows.

    Args:
        decoder: the model's. It stays as it is; if its weights change, this does not follow.
        decode_dtype: of the weights, one of ``packed_linear.DECODE_DTYPES``; None: as they are.
    """

    def __init__(self, decoder: PluginDecoder, decode_dtype: str | None) -> None:
        self.decoder: Any = with_packed_linears(decoder, decode_dtype)
        self.words_per_step = decoder.words_per_step
        self.layers = [_Layer(layer, decode_dtype) for layer in self.decoder.layers]
        attentions = [each for layer in self.layers for each in (layer.self_attention, layer.cross_attention)]
        self.cached = [each for each in attentions if isinstance(each, _SelfAttention)]
        for number, each in enumerate(self.cached):
            each.number = number
        others = [each.attention for each in attentions if isinstance(each, _OtherAttention)]
        parts: list[Any] = [part for each in others for part in each.modules()]
        self.stateful = [part for part in parts if hasattr(part, "reorder_incremental_state")]
        self.prepare(SLOTS)

    @staticmethod
    def supports(decoder: nn.Module) -> bool:
        """Whether it is a decoder of the plugin with Transformer layers and no dropout (``--retain-dropout``)."""
        return (
            isinstance(decoder, PluginDecoder)
            and decoder.adaptive_softmax is None
            and all(type(layer) is TransformerDecoderLayerBase for layer in decoder.layers)
            and not any(isinstance(part, FairseqDropout) and part.apply_during_inference for part in decoder.modules())
        )

    def prepare(self, slots: int) -> None:
        """Make what depends on the slots alone: their encodings (slots, C), and what each step may not see."""
        weight, z = self.decoder.embed_tokens.weight, self.words_per_step
        self.slots = torch.arange(slots, device=weight.device)
        self.encodings = self.decoder.encode_positions(self.slots).to(weight)
        allowed = self.decoder.attention_mask(self.slots, self.slots)
        #: 0 or -inf (slots, slots): for what each slot may not see, later steps included.
        self.bias = weight.new_zeros(allowed.shape).masked_fill(~allowed, -math.inf)
        #: Of each step its part of it (z, slots up to its end); None where it sees all of them.
        self.biases = [
            None if allowed[end - z : end, :end].all() else self.bias[end - z : end, :end]
            for end in range(z, slots + 1, z)
        ]

    def decode(self, words: Tensor, slots: Tensor, run: Run, need_attention: bool) -> tuple[Tensor, Tensor | None]:
        """One step: logits of the next z words (R, z, V), and the last layer's attention over the source, averaged over
        heads (R, z, S), or None.

        Args:
            words: the z words of the step before, at first start symbols, (R, z).
            slots: where they stand, (z,).
            run: what is known of the sentences.
            need_attention: whether attention is wanted.
        """
        decoder, attention = self.decoder, None
        x = decoder.embed_words(words, slots) + self.encodings.index_select(0, slots)
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        for layer, memory in zip(self.layers, run.memories, strict=True):
            x, attention = layer(x, run, memory, need_attention and layer is self.layers[-1])
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        return decoder.output_layer(x), attention

    def reorder_state(self, state: dict[str, Any], rows: Tensor) -> None:
        """Go on with these rows of what the attentions that are not softmax keep."""
        for part in self.stateful:
            part.reorder_incremental_state(state, rows)


class Run(Protocol):
    """What a step's layers read of a batch, and where they keep what is new.

    Attributes:
        beam: B.
        length: slots decoded so far, those of the running step included.
        bias: 0 or -inf for what the running step may not see of the words' keys, (z, keys), or None.
        memories: what each layer's cross-attention keeps of the source, tensors with the sentences as first axis.
        state: fairseq's decoding state of the attentions that are not softmax.
    """

    beam: int
    length: int
    bias: Tensor | None
    memories: list[Memory]
    state: dict[str, Any]

    def keep(self, number: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the step's keys and values (2, R, H, z, d_h) of the self-attention of this number; all of its keys and
        values (R, H, keys, d_h)."""


class Decoding:
    """A batch in the middle of decoding.

    Args:
        decoder: what decodes.
        encoder_out: of b sentences.
        beam: B.

    Attributes:
        cache: keys and values of the words, (self-attentions with softmax, 2, R, H, slots, d_h).
        written: the part of it up to the running step: keys and values (R, H, length, d_h) of each self-attention.
        new: the running step's part of it, (2, R, H, z, d_h) of each self-attention.
    """

    def __init__(self, decoder: StepDecoder, encoder_out: dict[str, list[Tensor]], beam: int) -> None:
        self.decoder, self.beam, self.length = decoder, beam, 0
        source, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        hidden = padding if padding.any() else None
        self.rows = source.size(1) * beam
        self.memories = [layer.cross_attention.remember(source, hidden) for layer in decoder.layers]
        self.state: dict[str, Any] = {}
        heads, head_dim = (decoder.cached[0].heads, decoder.cached[0].head_dim) if decoder.cached else (1, 1)
        self.cache = source.new_empty(len(decoder.cached), 2, self.rows, heads, SLOTS, head_dim)

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """See ``StepDecoder.decode``."""
        decoder, start = self.decoder, self.length
        self.length += decoder.words_per_step
        if self.length > self.cache.size(4):
            self.cache = torch.cat([self.cache, torch.empty_like(self.cache)], dim=4)
        if self.length > len(decoder.slots):
            decoder.prepare(2 * len(decoder.slots))
        self.bias = decoder.biases[start // decoder.words_per_step]
        keys, values = self.cache[..., : self.length, :].unbind(1)
        self.written = list(zip(keys, values, strict=True))
        self.new = self.cache[..., start : self.length, :].unbind()
        return decoder.decode(words, decoder.slots[start : self.length], self, need_attention)

    def keep(self, number: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        self.new[number].copy_(kv)
        return self.written[number]

    def reorder(self, rows: Tensor) -> None:
        """Go on with the rows (R'), B of each sentence; sentences that have none are finished, and the others may then
        change their order."""
        places = _Places(rows)
        places.move(self.cache[..., : self.length, :], dim=2)
        if len(rows) < self.rows:
            sentences = _Places(rows[:: self.beam] // self.beam)
            self.cache = self.cache[:, :, : len(rows)]
            self.memories = [
                tuple(None if part is None else sentences.move(part) for part in memory) for memory in self.memories
            ]
            self.rows = len(rows)
        self.decoder.reorder_state(self.state, rows)


class _Places:
    """New first rows of tables: the row ``origins`` (n,) of each."""

    def __init__(self, origins: Tensor) -> None:
        self.origins = origins
        if not origins.is_cuda:
            self.moving = (origins != torch.arange(len(origins))).nonzero().squeeze(1)

    def move(self, table: Tensor, dim: int = 0) -> Tensor:
        """Move the rows of a table in place; returns the n of them."""
        result = table.narrow(dim, 0, len(self.origins))
        if table.is_cuda:
            return result.copy_(table.index_select(dim, self.origins))
        # Row by row: to assign to an index of several takes four times as long on a CPU.
        moved = table.index_select(dim, self.origins[self.moving]).unbind(dim)
        for place, row in zip(self.moving.tolist(), moved, strict=True):
            result.select(dim, place).copy_(row)
        return result


class _Layer:
    """fairseq's decoder layer."""

    def __init__(self, layer: TransformerDecoderLayerBase, decode_dtype: str | None) -> None:
        own, cross = layer.self_attn, layer.encoder_attn
        softmax = isinstance(own, SoftmaxAttention)
        self.self_attention = _SelfAttention(own, decode_dtype) if softmax else _OtherAttention(own)
        softmax = isinstance(cross, SoftmaxAttention)
        self.cross_attention = _CrossAttention(cross, decode_dtype) if softmax else _OtherAttention(cross)
        relu = layer.activation_fn is F.relu
        self.fc1 = pack(layer.fc1.weight, layer.fc1.bias, decode_dtype, relu=relu)
        self.activation = None if relu else layer.activation_fn
        self.fc2 = pack(layer.fc2.weight, layer.fc2.bias, decode_dtype, nonnegative=relu)
        norms: list[Map] = [
            _norm(each) for each in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
        ]
        none: list[Map] = [_identity] * len(norms)
        self.before, self.after = (norms, none) if layer.normalize_before else (none, norms)

    def __call__(self, x: Tensor, run: Run, memory: Memory, need_attention: bool) -> tuple[Tensor, Tensor | None]:
        """(R, z, C) to (R, z, C), and attention over the source if it is wanted."""
        before, after = self.before, self.after
        x = after[0](x + self.self_attention.over_words(before[0](x), run))
        read, attention = self.cross_attention.over_source(before[1](x), run, memory, need_attention)
        x = after[1](x + read)
        hidden = self.fc1(before[2](x))
        if self.activation is not None:
            hidden = self.activation(hidden)
        return after[2](x + self.fc2(hidden)), attention


def _norm(module: nn.LayerNorm) -> Map:
    shape, weight, bias, eps = list(module.normalized_shape), module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _identity(x: Tensor) -> Tensor:
    return x


class _SelfAttention:
    """Causal softmax self-attention (``attention/softmax.py``); ``number`` is its place in the cache."""

    number: int

    def __init__(self, attention: SoftmaxAttention, decode_dtype: str | None) -> None:
        self.heads, self.head_dim = attention.num_heads, attention.head_dim
        self.qkv = _pack_together([_queries(attention), attention.k_proj, attention.v_proj], decode_dtype)
        self.out = pack(attention.out_proj.weight, attention.out_proj.bias, decode_dtype)

    def over_words(self, x: Tensor, run: Run) -> Tensor:
        """What the new slots (R, z, C) take from all slots so far, (R, z, C)."""
        rows, z, _ = x.shape
        qkv = self.qkv(x).view(rows, z, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        out = _attend(qkv[0], *run.keep(self.number, qkv[1:]), run.bias)
        return self.out(out.transpose(1, 2).reshape(x.shape))


class _CrossAttention:
    """Softmax attention over the source, its keys and values made once per sentence."""

    def __init__(self, attention: SoftmaxAttention, decode_dtype: str | None) -> None:
        self.heads, self.head_dim = attention.num_heads, attention.head_dim
        self.q = _pack_together([_queries(attention)], decode_dtype)
        self.out = pack(attention.out_proj.weight, attention.out_proj.bias, decode_dtype)
        self.kv = _pack_together([attention.k_proj, attention.v_proj], decode_dtype)

    def remember(self, source: Tensor, hidden: Tensor | None) -> Memory:
        """Of the source (S, b, C), with padding where ``hidden`` (b, S): keys and values (b, H, S, d_h), and 0 or -inf
        (b, 1, 1, S) or None."""
        kv = self.kv(source).unflatten(2, (2, self.heads, self.head_dim)).permute(2, 1, 3, 0, 4).contiguous()
        if hidden is None:
            return *kv.unbind(), None
        return *kv.unbind(), torch.zeros_like(hidden, dtype=kv.dtype).masked_fill(hidden, -math.inf)[:, None, None]

    def over_source(self, x: Tensor, run: Run, memory: Memory, need_attention: bool) -> tuple[Tensor, Tensor | None]:
        """What the new slots (R, z, C) take from the source, and the weights (R, z, S) if they are wanted: the slots of
        all rows of a sentence are queries to the same keys."""
        k, v, bias = memory
        q = self.q(x).view(len(k), -1, self.heads, self.head_dim).transpose(1, 2)
        out, weights = _attend(q, k, v, bias), None
        if need_attention:
            scores = q @ k.transpose(2, 3)
            scores = scores if bias is None else scores + bias
            weights = scores.softmax(dim=-1).mean(dim=1).view(len(x), x.size(1), -1)
        return self.out(out.transpose(1, 2).reshape(x.shape)), weights


class _OtherAttention:
    """Any other attention of the registry, through its own decoding state."""

    def __init__(self, attention: nn.Module) -> None:
        self.attention = attention

    def remember(self, source: Tensor, hidden: Tensor | None) -> Memory:
        """The source (b, S, C) and where it is padding (b, S) or None, until the first step has read them."""
        return source.transpose(0, 1), hidden

    def over_words(self, x: Tensor, run: Run) -> Tensor:
        x = x.transpose(0, 1)
        out, _ = self.attention(x, x, x, incremental_state=run.state, attn_mask=run.bias)
        return out.transpose(0, 1)

    def over_source(self, x: Tensor, run: Run, memory: Memory, need_attention: bool) -> tuple[Tensor, Tensor | None]:
        source, hidden = memory
        if run.length == x.size(1):  # afterwards it keeps what it has made of them, for all rows
            source, hidden = (
                None if part is None else part.repeat_interleave(run.beam, dim=0) for part in (source, hidden)
            )
        source = source.transpose(0, 1)
        out, weights = self.attention(
            x.transpose(0, 1), source, source, hidden, run.state, need_weights=need_attention, static_kv=True
        )
        return out.transpose(0, 1), weights


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ + bias) V for q (B, H, n, d_h), which has 1/√d_h in it, and k, v (B, H, m, d_h): (B, H, n, d_h)."""
    batch, heads, n, dim = q.shape
    if n == 1 or q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    # On a CPU this takes half as long as the fused operator when the queries are few (1 to 4 rows, 2 to 4 slots each).
    scores = torch.bmm(q.reshape(-1, n, dim), k.flatten(0, 1).transpose(1, 2))
    if bias is not None:
        scores = (scores.view(batch, heads, n, -1) + bias).flatten(0, 1)
    return torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1)).view(batch, heads, n, dim)


def _queries(attention: SoftmaxAttention) -> nn.Linear:
    """The projection to the queries, with 1/√d_h in it."""
    scaled = copy.deepcopy(attention.q_proj)
    for parameter in scaled.parameters():
        parameter.data.mul_(attention.scaling)
    return scaled


def _pack_together(linears: list[nn.Linear], decode_dtype: str | None) -> Map:
    """One map whose outputs are those of all, one after the other."""
    weights, biases = zip(*((linear.weight, linear.bias) for linear in linears), strict=True)
    return pack(torch.cat(weights), torch.cat(biases), decode_dtype)
