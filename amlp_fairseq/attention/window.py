"""Convolutions along a sequence, with an exact decoding state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.base import SelfAttention
from amlp_fairseq.attention.registry import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext


class WindowedLayer(nn.Module):
    """A layer whose outputs see k inputs each: a centred window, or the last k inputs where it is causal.

    With z words per step, the window of a causal position ends with the last position of its step (IBDecoder,
    Eq. 4).

    Args:
        spec: that of the attention; gives k and z.
        channels: C, of inputs and outputs.
    """

    def __init__(self, spec: AttentionSpec, channels: int) -> None:
        super().__init__()
        self.kernel_size, self.channels = spec.kernel_size, channels
        self.words_per_step = spec.words_per_step
        #: Inputs to the left of the first position of a step; as fairseq's lightconv for even k.
        self.padding_l = self.kernel_size - self.words_per_step if spec.causal else (self.kernel_size - 1) // 2

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        """Outputs (T, B, C) for the positions ``x`` (T, B, C); the window of the first step begins at
        ``inputs[-padding_l]`` of the inputs (S, B, C), zero outside."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C) to (T, B, C)."""
        return self.convolve(x, x, self.padding_l)

    def step(self, x: Tensor, history: Tensor) -> Tensor:
        """(R, n, C) to (R, n, C) for whole steps that follow the inputs ``history`` (R, max(k - z, 0), C), which is
        updated in place."""
        size = history.size(1)
        inputs = torch.cat([history, x], dim=1)
        history.copy_(inputs[:, inputs.size(1) - size :])
        return self.convolve(x.transpose(0, 1), inputs.transpose(0, 1), self.padding_l - size).transpose(0, 1)


class WindowedAttention(SelfAttention):
    """A ``WindowedLayer`` as self-attention; subclasses add what comes before and after it. The decoding state is its
    last k - z inputs."""

    conv: WindowedLayer

    def before(self, x: Tensor) -> Tensor:
        """What comes before the layer, (…, C) to (…, its channels)."""
        return x

    def behind(self, x: Tensor) -> Tensor:
        """What comes after the layer, (…, its channels) to (…, C)."""
        return x

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        x = self.before(x)
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.t().unsqueeze(2), 0)
        return self.behind(self.conv(x))

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        return {"inputs": like.new_zeros(rows, max(self.conv.padding_l, 0), self.conv.channels)}

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        return self.behind(self.conv.step(self.before(x), state["inputs"])), None
