"""A non-autoregressive decoder's pass over all positions, captured as a CUDA graph, see ``cuda_graphs.py``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.models.interfaces import ParallelDecoder


class CudaGraphForward:
    """A replacement of a decoder's ``forward``, with the same arguments and result.

    Args:
        decoder: of sources (S, B, C) and targets (B, T).
    """

    def __init__(self, decoder: ParallelDecoder) -> None:
        self.decoder, self.forward = decoder, decoder.forward
        self.graphs = cuda_graphs.Graphs(next(decoder.parameters()).device)

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
        if graph.given is not source:
            graph.given = source
            graph.source[: source.size(0), :sentences].copy_(source)
            graph.padding.fill_(True)[:sentences, : source.size(0)].copy_(padding)
        graph.replay()
        return graph.scores[:sentences, :positions]


class _Graph:
    """Buffers of one shape, and the captured pass over them.

    Attributes:
        given: the source that the buffers hold.
    """

    given: Tensor | None = None

    def __init__(self, captured: CudaGraphForward, shape: tuple[Any, ...], tokens: Tensor, source: Tensor) -> None:
        sentences, positions, sources, *rest, normalize = shape
        self.tokens = tokens.new_full((sentences, positions), captured.decoder.padding_idx)
        self.source = source.new_zeros(sources, sentences, *rest)
        self.padding = tokens.new_ones(sentences, sources).bool()
        encoder_out = {"encoder_out": [self.source], "encoder_padding_mask": [self.padding]}
        self.replay, self.scores = captured.graphs.capture(
            lambda: captured.forward(normalize=normalize, prev_output_tokens=self.tokens, encoder_out=encoder_out)
        )
