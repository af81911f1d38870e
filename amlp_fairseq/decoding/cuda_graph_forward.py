"""A non-autoregressive decoder's forward by CUDA graphs, see ``cuda_graphs.py``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.models.interfaces import ParallelDecoder


class CudaGraphForward:
    """A replacement of a decoder's ``forward``, with the same arguments and result.

    Args:
        decoder: reads sources (S, B, C) and targets (B, T).
    """

    def __init__(self, decoder: ParallelDecoder) -> None:
        self.decoder, self.forward = decoder, decoder.forward
        self.graphs = cuda_graphs.Graphs[_Graph](next(decoder.parameters()).device)

    @staticmethod
    def supports(decoder: nn.Module) -> bool:
        """True for decoders that mask padding."""
        return isinstance(decoder, ParallelDecoder)

    def __call__(self, normalize: bool, prev_output_tokens: Tensor, encoder_out: dict[str, Any]) -> Tensor:
        """Log-probabilities, or logits unless ``normalize``, (B, T, V), overwritten by the next call."""
        source, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        sentences, positions = prev_output_tokens.shape
        shape = (
            cuda_graphs.power_of_two(sentences),
            min(cuda_graphs.rounded(positions), self.decoder.max_positions()),
            cuda_graphs.rounded(source.size(0)),
            *source.shape[2:],
            normalize,
        )
        graph = self.graphs.get(shape, lambda: _Graph(self, shape, prev_output_tokens, source))
        graph.tokens.fill_(self.decoder.padding_idx)[:sentences, :positions].copy_(prev_output_tokens)
        if graph.loaded_source is not source:
            graph.loaded_source = source
            graph.source[: source.size(0), :sentences].copy_(source)
            graph.padding.fill_(True)[:sentences, : source.size(0)].copy_(padding)
        graph.replay()
        return graph.scores[:sentences, :positions]


class _Graph:
    """Buffers of one shape, and the captured forward over them.

    Attributes:
        loaded_source: the source in the buffers.
    """

    loaded_source: Tensor | None = None

    def __init__(self, owner: CudaGraphForward, shape: tuple[Any, ...], tokens: Tensor, source: Tensor) -> None:
        sentences, positions, sources, *rest, normalize = shape
        self.tokens = tokens.new_full((sentences, positions), owner.decoder.padding_idx)
        self.source = source.new_zeros(sources, sentences, *rest)
        self.padding = tokens.new_ones(sentences, sources).bool()
        encoder_out = {"encoder_out": [self.source], "encoder_padding_mask": [self.padding]}
        self.replay, self.scores = owner.graphs.capture(
            lambda: owner.forward(normalize=normalize, prev_output_tokens=self.tokens, encoder_out=encoder_out)
        )
