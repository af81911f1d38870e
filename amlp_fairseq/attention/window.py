"""Convolutions along a sequence, with an exact decoding state."""

from __future__ import annotations

from typing import Any

import torch
from fairseq import utils
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

from amlp_fairseq.attention.registry import Place, check_whole_steps


class WindowedLayer(FairseqIncrementalState, nn.Module):
    """A layer whose outputs see k inputs each: a centred window, or the last k inputs where it is causal.

    With z words per step, the window of a causal position ends with the last position of its step (IBDecoder,
    Eq. 4). The decoding state are the last k - z inputs, whatever the number of new ones per call.

    Args:
        place: where it stands; gives k and z.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.kernel_size = place.kernel_size
        self.step = place.words_per_step
        #: Inputs to the left of the first position of a step; as fairseq's lightconv for even k.
        self.padding_l = self.kernel_size - self.step if place.causal else (self.kernel_size - 1) // 2

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        """Outputs (T, B, C) for the positions ``x`` (T, B, C); the window of the first step begins at
        ``inputs[-padding_l]`` of the inputs (S, B, C), zero outside."""
        raise NotImplementedError

    def forward(self, x: Tensor, incremental_state: dict[str, Any] | None = None) -> Tensor:
        """(T, B, C) to (T, B, C); with a decoding state, ``x`` are the new inputs, in whole steps.

        Raises:
            ValueError: if the new inputs are not whole steps.
        """
        if incremental_state is None:
            return self.convolve(x, x, self.padding_l)
        check_whole_steps(len(x), self.step)
        size = max(self.padding_l, 0)
        state = utils.get_incremental_state(self, incremental_state, "window")
        history = x.new_zeros(size, *x.shape[1:]) if state is None else state["inputs"]
        inputs = torch.cat([history, x])
        utils.set_incremental_state(self, incremental_state, "window", {"inputs": inputs[len(inputs) - size :].clone()})
        return self.convolve(x, inputs, self.padding_l - size)

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Follow the beam."""
        state = utils.get_incremental_state(self, incremental_state, "window")
        if state is not None:
            state["inputs"] = state["inputs"].index_select(1, new_order)
