"""Transformer decoders for inference: the results of the model's forward, with less work per step.

Queries, keys and values of a layer are one matrix product; the states of the self-attentions are preallocated buffers;
the memories of the cross-attentions are made once per sentence and read by all rows of its beam. Notation:
docs/glossary.md.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import KVMemory
from amlp_fairseq.attention.softmax import SoftmaxAttention, mask_bias
from amlp_fairseq.attention.state import State, StepContext
from amlp_fairseq.compat.internals import TransformerDecoderLayerBase
from amlp_fairseq.decoding.kv_cache import KVCache, StateLayout
from amlp_fairseq.decoding.packed_linear import Map, pack, with_packed_linears
from amlp_fairseq.decoding.row_permutation import RowPermutation
from amlp_fairseq.models.interfaces import StepwiseDecoder

#: Initial slots of the buffers, which are doubled when they are full.
INITIAL_SLOTS = 64


class StepDecoder:
    """The decoder of a trained model, for steps of z slots; b sentences with B rows each are R = b·B rows.

    Args:
        decoder: the model's decoder, not changed; later changes of its weights have no effect here.
        decode_dtype: type of the weights, one of ``packed_linear.DECODE_DTYPES``; None: unchanged.

    Attributes:
        table: the input embedding (V, C).
        slots: 0, 1, 2, …: the slots for which ``encodings``, ``bias`` and ``biases`` have been made.
        encodings: position encodings of the slots, (slots, C).
        bias: 0 where a slot may attend to another and -inf elsewhere, (slots, slots).
        biases: for each step its part of ``bias``, (z, slots up to its end); None if it may attend to all of them.
    """

    def __init__(self, decoder: StepwiseDecoder, decode_dtype: str | None) -> None:
        self.decoder = with_packed_linears(decoder, decode_dtype)
        self.words_per_step = decoder.words_per_step
        self.layers = [_Layer(layer, decode_dtype) for layer in self.decoder.layers]
        self.table = self.decoder.embed_tokens.weight.detach()
        self_attentions = [layer.self_attention for layer in self.layers]
        self.state_layout = StateLayout(
            [*self_attentions, *(layer.cross_attention for layer in self.layers)], self.table
        )
        self.make_tables(INITIAL_SLOTS)

    @staticmethod
    def supports(decoder: nn.Module) -> bool:
        """True for a decoder of the plugin with Transformer layers and no dropout (``--retain-dropout``)."""
        return (
            isinstance(decoder, StepwiseDecoder)
            and decoder.adaptive_softmax is None
            and all(type(layer) is TransformerDecoderLayerBase for layer in decoder.layers)
            and not drops_out(decoder)
        )

    def other_attention(self) -> str | None:
        """The option and the value of the first attention with other states than keys and values of words, which is any
        but softmax attention; None if there is none."""
        for layer in self.layers:
            for kind, attention in (("self", layer.self_attention), ("cross", layer.cross_attention)):
                if type(attention) is not SoftmaxAttention:
                    value = getattr(attention.spec.options, f"decoder_{kind}_attention_type")
                    return f"--decoder-{kind}-attention-type {value}"
        return None

    def make_tables(self, slots: int) -> None:
        """Make the tables that depend on the slots alone: position encodings and the bias of each step."""
        table, z = self.table, self.words_per_step
        self.slots = torch.arange(slots, device=table.device)
        self.encodings = self.decoder.encode_positions(self.slots).to(table).contiguous()
        allowed = self.decoder.attention_mask(self.slots, self.slots)
        self.bias = mask_bias(~allowed, table)
        self.biases = [
            None if allowed[end - z : end, :end].all() else self.bias[end - z : end, :end]
            for end in range(z, slots + 1, z)
        ]
        self.masked = any(bias is not None for bias in self.biases)

    def project_source(self, source: Tensor, padding_mask: Tensor | None) -> list[KVMemory]:
        """The memory of a source (S, b, C) with padding mask (b, S), for each layer."""
        return [layer.cross_attention.project_source(source, padding_mask) for layer in self.layers]

    def decode(
        self,
        words: Tensor,
        context: StepContext,
        states: list[State],
        memories: list[KVMemory],
        need_attention: bool,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One step: logits of the next z words (R, z, V), and the last layer's attention over the source, averaged over
        heads (R, z, S), or None.

        Args:
            words: the z words of the previous step, initially start symbols, (R, z).
            context: slots and mask of the words.
            states: states of the layers' self-attentions, then of their cross-attentions; updated in place.
            memories: memories of the layers' cross-attentions.
            need_attention: True to return attention.
            positions: positions of the words, (R, z), if they differ from the slots.
        """
        decoder, attention = self.decoder, None
        x = self.embed(words, context.slots if positions is None else positions)
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        self_states, cross_states = states[: len(self.layers)], states[len(self.layers) :]
        for layer, self_state, cross_state, memory in zip(
            self.layers, self_states, cross_states, memories, strict=True
        ):
            cross_memory = memory | cross_state if cross_state else memory
            x, attention = layer(x, self_state, cross_memory, context, need_attention and layer is self.layers[-1])
        return self.output(x), attention

    def embed(self, words: Tensor, slots: Tensor) -> Tensor:
        """The inputs (R, z, C) of words (R, z) at slots (z,) or (R, z)."""
        return self.decoder.embed_words(words, slots) + F.embedding(slots, self.encodings)

    def output(self, x: Tensor) -> Tensor:
        """Logits (R, z, V) of the last layer's outputs (R, z, C)."""
        decoder = self.decoder
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        return decoder.output_layer(x)


class Decoding:
    """A session that decodes a batch.

    Args:
        decoder: the decoder.
        encoder_out: the encoder's output for b sentences.
        beam: B.

    Attributes:
        length: slots decoded so far.
        rows: R.
        states: states of all attentions.
        memories: memories of the cross-attentions.
    """

    def __init__(self, decoder: StepDecoder, encoder_out: dict[str, list[Tensor]], beam: int) -> None:
        self.decoder, self.beam, self.length = decoder, beam, 0
        source, padding_mask = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        self.rows = source.size(1) * beam
        self.memories = decoder.project_source(source, padding_mask if padding_mask.any() else None)
        self.states = KVCache(decoder.state_layout, self.rows, INITIAL_SLOTS, source)

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """See ``StepDecoder.decode``; also for the words of several steps, (R, k·z)."""
        decoder, start, count = self.decoder, self.length, words.size(1)
        self.length += count
        self.make_room(self.length, self.length)
        slots = decoder.slots.narrow(0, start, count)
        if count == decoder.words_per_step:
            bias = decoder.biases[start // count]
        else:
            bias = decoder.bias[start : self.length, : self.length]
        context = StepContext(slots, self.length, self.beam, bias)
        return decoder.decode(words, context, self.states.by_attention, self.memories, need_attention)

    def make_room(self, slots: int, positions: int) -> None:
        """Grow the states to at least ``slots`` slots, and the decoder's tables to at least ``positions`` positions."""
        while slots > self.states.slots:
            self.states.grow()
        while positions > len(self.decoder.slots):
            self.decoder.make_tables(2 * len(self.decoder.slots))

    def reorder(self, rows: Tensor) -> None:
        """See ``inference_model.StepwiseDecoding``."""
        permutation = RowPermutation(rows)
        for stack in self.states.written(self.length):
            permutation.apply(stack, dim=1)
        if len(rows) < self.rows:
            sentences, self.rows = RowPermutation(rows[:: self.beam] // self.beam), len(rows)
            self.memories = [{name: sentences.apply(x) for name, x in memory.items()} for memory in self.memories]
            self.states.keep_rows(self.rows)


def drops_out(module: nn.Module) -> bool:
    """True if a part of a module has dropout during inference (``--retain-dropout``)."""
    return any(isinstance(part, FairseqDropout) and part.apply_during_inference for part in module.modules())


class _Layer:
    """fairseq's decoder layer for inference."""

    def __init__(self, layer: TransformerDecoderLayerBase, decode_dtype: str | None) -> None:
        self.self_attention, self.cross_attention = layer.self_attn, layer.encoder_attn
        relu = layer.activation_fn is F.relu
        self.fc1 = pack(layer.fc1.weight, layer.fc1.bias, decode_dtype, relu=relu)
        self.activation = None if relu else layer.activation_fn
        self.fc2 = pack(layer.fc2.weight, layer.fc2.bias, decode_dtype, nonnegative=relu)
        self.norms = [layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm]
        self.norm_first = layer.normalize_before
        norms: list[Map] = [_norm(norm) for norm in self.norms]
        none: list[Map] = [_identity] * len(norms)
        self.before, self.after = (norms, none) if self.norm_first else (none, norms)

    def __call__(
        self, x: Tensor, state: State, memory: KVMemory, context: StepContext, need_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Inputs (R, z, C) to outputs (R, z, C), and attention over the source if ``need_attention``."""
        before, after = self.before, self.after
        x = after[0](x + self.self_attention.step(before[0](x), state, context)[0])
        attended, attention = self.cross_attention.step(before[1](x), memory, context, need_attention)
        x = after[1](x + attended)
        inner = self.fc1(before[2](x))
        if self.activation is not None:
            inner = self.activation(inner)
        return after[2](x + self.fc2(inner)), attention


def _norm(module: nn.LayerNorm) -> Map:
    shape, weight, bias, eps = list(module.normalized_shape), module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _identity(x: Tensor) -> Tensor:
    return x
