"""Decoding steps captured as CUDA graphs, see ``cuda_graphs.py``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.registry import ATTENTIONS, supporting
from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.decoding.step_decoder import SLOTS, Memory, StepDecoder


class Shape(NamedTuple):
    """What a graph is captured for."""

    sentences: int
    beam: int
    source: int
    slots: int
    need_attention: bool


def capturable() -> dict[str, Any]:
    """The decoder's self-attentions for which buffers can be made, by name: of keys and values, or of a state whose
    shapes do not change."""
    found = {name: ATTENTIONS[name] for name in supporting("causal self")}
    return {name: cls for name, cls in found.items() if cls is SoftmaxAttention or cls.fixed_state}


class CapturedDecoder:
    """A decoder and the graphs of its steps."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder = decoder
        self.graphs = cuda_graphs.Graphs()

    @staticmethod
    def supports(decoder: nn.Module) -> bool:
        """Whether it has ``capturable`` self-attentions, and softmax cross-attentions."""
        able = tuple(capturable().values())
        return StepDecoder.supports(decoder) and all(
            isinstance(layer.self_attn, able) and isinstance(layer.encoder_attn, SoftmaxAttention)
            for layer in decoder.layers  # type: ignore[union-attr]
        )


class CapturedDecoding:
    """A batch in the middle of decoding: ``step_decoder.Decoding`` for a captured decoder."""

    def __init__(self, captured: CapturedDecoder, encoder_out: dict[str, list[Tensor]], beam: int) -> None:
        self.captured, self.beam, self.length = captured, beam, 0
        source, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        self.source, self.sentences = source.size(0), source.size(1)
        self.memories = [layer.cross_attention.remember(source, padding) for layer in captured.decoder.layers]
        _, heads, _, head_dim = self.memories[0][0].shape
        self.cache = source.new_empty(len(captured.decoder.cached), 2, self.sentences * beam, heads, 0, head_dim)
        self.state: dict[str, Any] = {}
        self.graph: _Graph | None = None

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """See ``StepDecoder.decode``. The logits are overwritten by the next step."""
        start = self.length
        self.length += words.size(1)
        shape = Shape(
            sentences=cuda_graphs.power_of_two(self.sentences),
            beam=self.beam,
            source=cuda_graphs.rounded(self.source),
            slots=max(SLOTS, cuda_graphs.power_of_two(self.length)),
            need_attention=need_attention,
        )
        if self.graph is None or self.graph.shape != shape:
            if self.graph is not None:
                self.memories, self.cache, self.state = self.graph.contents(self.sentences, self.source, start)
            self.graph = self.captured.graphs.get(shape, lambda: _Graph(self.captured.decoder, shape, self.memories))
            self.graph.begin(self.memories, self.cache, self.state)
        logits, attention = self.graph.step(words)
        return logits, None if attention is None else attention[..., : self.source].clone()

    def reorder(self, rows: Tensor) -> None:
        """Go on with the rows (R'), B of each sentence; sentences that have none are finished, and the others may then
        change their order."""
        assert self.graph is not None
        if len(rows) < self.sentences * self.beam:
            self.sentences = len(rows) // self.beam
            self.graph.keep_sentences(rows[:: self.beam] // self.beam)
        self.graph.origins[: len(rows)].copy_(rows)


class _Graph:
    """One step on buffers of one shape, captured; a ``step_decoder.Run``.

    Attributes:
        words: of the step before, (R, z).
        origins: the row that each row goes on with, (R,).
        slots: where the step's words stand, (z,).
        cache: keys and values of the words, (layers, 2, R, H, slots, d_h).
        memories: what the cross-attentions keep of the sources: keys and values (b, H, S, d_h), and 0 or -inf
            (b, 1, 1, S).
        kept: fairseq's decoding state of the self-attentions that are not softmax.
        bias: of the running step (z, slots).
        state: ``kept`` while a step runs.
    """

    length = 0

    def __init__(self, decoder: StepDecoder, shape: Shape, memories: list[Memory]) -> None:
        self.decoder, self.shape, self.beam = decoder, shape, shape.beam
        if shape.slots > len(decoder.slots):
            decoder.prepare(shape.slots)
        # A graph keeps no memory alive: these are what it reads, also after the decoder has prepared more slots.
        self.tables = decoder.encodings, decoder.bias
        (keys, _, hidden), z, rows = memories[0], decoder.words_per_step, shape.sentences * shape.beam
        _, heads, _, head_dim = keys.shape
        self.own, self.first = decoder.slots.new_tensor(range(rows)), decoder.slots[:z].clone()
        self.words, self.origins, self.slots = decoder.slots.new_zeros(rows, z), self.own.clone(), self.first.clone()
        self.cache = keys.new_zeros(len(decoder.cached), 2, rows, heads, shape.slots, head_dim)
        source = keys.new_zeros(len(memories), 2, shape.sentences, heads, shape.source, head_dim)
        self.hidden = hidden.new_zeros(shape.sentences, 1, 1, shape.source)
        self.memories: list[Memory] = [(*kv, self.hidden) for kv in source]
        self.bias: Tensor | None = None
        self.kept: dict[str, dict[str, Tensor]] = {}
        self._run()  # shows what is kept
        self.kept = _zeros(self.state)
        self.replay, (self.logits, self.attention) = cuda_graphs.capture(self._run)

    def _run(self) -> tuple[Tensor, Tensor | None]:
        self.cache.copy_(self.cache.index_select(2, self.origins))
        self.state = self._reordered(self.kept, self.origins)
        self.origins.copy_(self.own)
        self.bias = self.tables[1].index_select(0, self.slots)[:, : self.shape.slots]
        result = self.decoder.decode(self.words, self.slots, self, self.shape.need_attention)
        self._fill_kept(self.state)
        return result

    def _reordered(self, state: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        state = {key: dict(entry) for key, entry in state.items()}
        self.decoder.reorder_state(state, rows)
        return state

    def _fill_kept(self, state: dict[str, Any]) -> None:
        for key, entry in self.kept.items():
            for name, buffer in entry.items():
                buffer.copy_(state[key][name])

    def keep(self, number: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.cache[number].index_copy_(3, self.slots, kv)
        return keys, values

    def step(self, words: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and attention of the first rows; ``words`` (R', z)."""
        self.words[: len(words)].copy_(words)
        self.replay()
        self.slots.add_(len(self.slots))
        return self.logits[: len(words)], None if self.attention is None else self.attention[: len(words)]

    def begin(self, memories: list[Memory], cache: Tensor, state: dict[str, Any]) -> None:
        """Go on with sentences (n, …), keys and values of their words (layers, 2, n·B, H, slots, d_h), and the state of
        the other self-attentions, empty at first."""
        self.origins.copy_(self.own)
        self.slots.copy_(self.first + cache.size(4))
        self.cache.zero_()[:, :, : cache.size(2), :, : cache.size(4)].copy_(cache)
        rows = self.own.clamp(max=cache.size(2) - 1)
        self._fill_kept(self._reordered(state, rows) if state else _zeros(self.kept))
        for own, memory in zip(self.memories, memories, strict=True):
            for buffer, part in zip(own[:2], memory[:2], strict=True):
                buffer[: len(part), :, : part.size(2)].copy_(part)
        hidden = memories[0][2]
        self.hidden.zero_()[: len(hidden)].fill_(-math.inf)[..., : hidden.size(3)].copy_(hidden)

    def contents(self, sentences: int, source: int, slots: int) -> tuple[list[Memory], Tensor, dict[str, Any]]:
        """What ``begin`` takes, of the first sentences with so many source positions and slots."""
        rows = self.origins[: sentences * self.shape.beam]
        memories: list[Memory] = [
            (k[:sentences, :, :source], v[:sentences, :, :source], hidden[:sentences, ..., :source])
            for k, v, hidden in self.memories
        ]
        cache = self.cache[:, :, :, :, :slots].index_select(2, rows)
        return memories, cache, self._reordered(self.kept, rows)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with these (n,), as the first ones."""
        for table in [part for memory in self.memories for part in memory[:2]] + [self.hidden]:
            table[: len(sentences)].copy_(table.index_select(0, sentences))


def _zeros(state: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Of the same shapes."""
    return {key: {name: torch.zeros_like(part) for name, part in entry.items()} for key, entry in state.items()}
