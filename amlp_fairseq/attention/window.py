"""Base classes of the convolutions along a sequence, with an exact decoding state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.base import SelfAttention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext


class WindowedLayer(nn.Module):
    """Layer whose outputs depend on k inputs each: on a centred window, or in the causal form on the last k inputs.

    With z words per step, the window of a causal position ends with the last position of its step (IBDecoder,
    Eq. 4).

    Args:
        spec: spec of the attention, with k and z.
        channels: C, number of channels of inputs and outputs.
    """

    def __init__(self, spec: AttentionSpec, channels: int) -> None:
        super().__init__()
        self.kernel_size, self.channels = spec.kernel_size, channels
        self.words_per_step = spec.words_per_step
        #: Number of inputs to the left of a step's first position; for even k as in fairseq's lightconv.
        self.padding_l = self.kernel_size - self.words_per_step if spec.causal else (self.kernel_size - 1) // 2

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        """Convolution at the positions of ``x``.

        Args:
            x: (T, B, C).
            inputs: (S, B, C), zero outside.
            padding_l: the window of the first step begins at ``inputs[-padding_l]``.

        Returns:
            (T, B, C).
        """
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Convolution of whole sequences (T, B, C) to (T, B, C)."""
        return self.convolve(x, x, self.padding_l)

    def step(self, x: Tensor, history: Tensor) -> Tensor:
        """Convolution of whole steps (R, n, C) to (R, n, C) that follow the inputs ``history`` (R, max(k - z, 0), C);
        ``history`` is updated in place."""
        size = history.size(1)
        inputs = torch.cat([history, x], dim=1)
        history.copy_(inputs[:, inputs.size(1) - size :])
        return self.convolve(x.transpose(0, 1), inputs.transpose(0, 1), self.padding_l - size).transpose(0, 1)


class WindowedAttention(SelfAttention):
    """Self-attention by a ``WindowedLayer`` between two maps of a subclass. The decoding state is the layer's last k -
    z inputs."""

    conv: WindowedLayer

    def project_in(self, x: Tensor) -> Tensor:
        """Map before the layer, (…, C) to (…, channels of the layer)."""
        return x

    def project_out(self, x: Tensor) -> Tensor:
        """Map after the layer, (…, channels of the layer) to (…, C)."""
        return x

    def forward_full(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        x = self.project_in(x)
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.t().unsqueeze(2), 0)
        return self.project_out(self.conv(x))

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        return {"inputs": like.new_zeros(rows, max(self.conv.padding_l, 0), self.conv.channels)}

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        return self.project_out(self.conv.step(self.project_in(x), state["inputs"])), None
