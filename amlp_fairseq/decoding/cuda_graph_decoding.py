"""Decoding steps by CUDA graphs, see ``cuda_graphs.py``. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import KVMemory
from amlp_fairseq.attention.state import StepContext
from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.decoding.kv_cache import KVCache, fill
from amlp_fairseq.decoding.row_permutation import RowPermutation
from amlp_fairseq.decoding.step_decoder import INITIAL_SLOTS, StepDecoder


class Shape(NamedTuple):
    """The sizes of a graph: sentences, rows of each, source tokens, slots; and whether it returns attention."""

    sentences: int
    beam: int
    source: int
    slots: int
    need_attention: bool


class CudaGraphDecoder:
    """A decoder and the graphs of its steps."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder = decoder
        self.graphs = cuda_graphs.Graphs[_Graph](decoder.slots.device)

    @staticmethod
    def supports(decoder: nn.Module) -> bool:
        """True if the decoder's steps can be captured: with every attention."""
        return StepDecoder.supports(decoder)


class CudaGraphDecoding:
    """A session with steps by CUDA graphs, like ``step_decoder.Decoding``.

    Attributes:
        source: number of source positions.
        sentences: number of unfinished sentences.
    """

    def __init__(self, decoder: CudaGraphDecoder, encoder_out: dict[str, list[Tensor]], beam: int) -> None:
        self.decoder, self.beam, self.length = decoder, beam, 0
        source, padding_mask = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        self.source, self.sentences = source.size(0), source.size(1)
        padding = cuda_graphs.rounded(self.source) - self.source
        self.memories = decoder.decoder.project_source(
            F.pad(source, (0, 0, 0, 0, 0, padding)), F.pad(padding_mask, (0, padding), value=True)
        )
        self.states: list[Tensor] = []
        self.graph: _Graph | None = None

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """See ``StepDecoder.decode``. The logits are overwritten by the next step."""
        start = self.length
        self.length += words.size(1)
        shape = Shape(
            sentences=cuda_graphs.power_of_two(self.sentences),
            beam=self.beam,
            source=cuda_graphs.rounded(self.source),
            slots=max(INITIAL_SLOTS, cuda_graphs.power_of_two(self.length)),
            need_attention=need_attention,
        )
        if self.graph is None or self.graph.shape != shape:
            if self.graph is not None:
                self.memories, self.states = self.graph.contents(self.sentences, start)
            self.graph = self.decoder.graphs.get(shape, lambda: _Graph(self.decoder, shape, self.memories))
            self.graph.begin(self.memories, self.states, start)
        logits, attention = self.graph.step(words)
        return logits, None if attention is None else attention[..., : self.source].clone()

    def reorder(self, rows: Tensor) -> None:
        """See ``inference_model.StepwiseDecoding``."""
        assert self.graph is not None
        # Not captured: no copy after a step that moves no row, and never of empty slots.
        permutation = RowPermutation(rows)
        for stack in self.graph.states.written(self.length):
            permutation.apply(stack, dim=1)
        if len(rows) < self.sentences * self.beam:
            self.sentences = len(rows) // self.beam
            self.graph.keep_sentences(rows[:: self.beam] // self.beam)


class _CudaGraphContext(StepContext):
    """The context of a captured step: reads its slots from device memory and sees all slots of the buffers; ``bias``
    masks the slots that are not written yet."""

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        return buffer.index_copy_(-2, self.slots, new)


class _Graph:
    """One step on buffers of one shape, captured.

    Attributes:
        words: the words of the previous step, (R, z).
        slots: the slots of ``words``, (z,).
        states: states of the self-attentions.
        memories: memories of the cross-attentions; not used beyond the batch's sentences.
    """

    def __init__(self, graph_decoder: CudaGraphDecoder, shape: Shape, memories: list[KVMemory]) -> None:
        decoder = graph_decoder.decoder
        self.decoder, self.shape = decoder, shape
        if shape.slots > len(decoder.slots):
            decoder.make_tables(shape.slots)
        # A graph does not keep its inputs alive, and the decoder may replace these tables by larger ones.
        self.tables = decoder.encodings, decoder.bias
        z, rows = decoder.words_per_step, shape.sentences * shape.beam
        self.first = decoder.slots[:z].clone()
        self.words, self.slots = decoder.slots.new_zeros(rows, z), self.first.clone()
        self.states = KVCache(decoder.state_layout, rows, shape.slots, decoder.encodings)
        self.memories = [
            {name: x.new_zeros(shape.sentences, *x.shape[1:]) for name, x in memory.items()} for memory in memories
        ]
        self.replay, (self.logits, self.attention) = graph_decoder.graphs.capture(self._step)

    def _step(self) -> tuple[Tensor, Tensor | None]:
        bias = self.tables[1].index_select(0, self.slots)[:, : self.shape.slots]
        context = _CudaGraphContext(self.slots, self.slots[-1] + 1, self.shape.beam, bias)
        return self.decoder.decode(
            self.words, context, self.states.by_attention, self.memories, self.shape.need_attention
        )

    def step(self, words: Tensor) -> tuple[Tensor, Tensor | None]:
        """Replay the graph for ``words`` (R', z): logits and attention of the first R' rows."""
        self.words[: len(words)].copy_(words)
        self.replay()
        self.slots.add_(len(self.slots))
        return self.logits[: len(words)], None if self.attention is None else self.attention[: len(words)]

    def begin(self, memories: list[KVMemory], states: list[Tensor], start: int) -> None:
        """Load the memories (n, …) and states of a session that is at slot ``start``; ``states`` are stacks
        (members, n·B, …), or none at first."""
        self.slots.copy_(self.first + start)
        for stack in self.states.stacks:
            stack.zero_()
        for stack, content in zip(self.states.stacks, states, strict=len(states) > 0):
            fill(stack, content)
        for buffers, memory in zip(self.memories, memories, strict=True):
            for name, content in memory.items():
                fill(buffers[name], content)

    def contents(self, sentences: int, slots: int) -> tuple[list[KVMemory], list[Tensor]]:
        """Memories and states of the first ``sentences`` sentences and ``slots`` slots, as ``begin`` takes them."""
        memories = [{name: x[:sentences] for name, x in memory.items()} for memory in self.memories]
        return memories, [stack[:, : sentences * self.shape.beam] for stack in self.states.written(slots)]

    def keep_sentences(self, sentences: Tensor) -> None:
        """Move the memories of these sentences (n,) to the front."""
        for memory in self.memories:
            for table in memory.values():
                table[: len(sentences)].copy_(table.index_select(0, sentences))
