"""Softmax attention within a window.

Sources: "self-attention baseline (k=3,7,15,31x3)" of Wu et al. (2019), Table 3; "local" of the AMLP paper, Table 3;
"local-m" of Luong et al. (2015). Notation: docs/glossary.md.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from amlp_fairseq.attention.general import general_map
from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.shared_options import KernelSizeOptions
from amlp_fairseq.attention.spec import PATTERNS, AttentionSpec
from amlp_fairseq.attention.state import State, StepContext
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.ops.precision import at_least_float32

#: Minimum number of queries in a block.
BLOCK = 32
SIMILARITIES = ("dot", "general")


@dataclass
class LocalOptions(KernelSizeOptions):
    """Options of 'local' and 'local_p'."""

    attention_window: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={"help": "width of the windows of 'local' and 'local_p' (default: the kernel size lists)"},
    )
    local_similarity: ChoiceEnum(SIMILARITIES) = field(  # type: ignore[valid-type]
        default="dot",
        metadata={
            "help": "similarity in 'local' and 'local_p': a dot product, or one with a learned matrix ('general')"
        },
    )


class LocalSoftmaxAttention(MultiHeadAttention):
    """Base class of 'local' and 'local_p': the similarity of queries h and keys s, hᵀ s / √d_h or hᵀ W_a s. The heads
    share W_a (d_h, d_h)."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.w_a = general_map(self.head_dim) if spec.options.local_similarity == "general" else None

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores (…, T, S) in float32 at least, of queries (…, T, d_h) and keys (…, d_h, S)."""
        return at_least_float32((q * self.scaling if self.w_a is None else self.w_a(q)) @ k)


@register_attention("local", options=LocalOptions)
class LocalAttention(LocalSoftmaxAttention):
    """Softmax attention over k positions, with time and memory usage linear in the length.

    k is ``--attention-window``, by default the layer's entry in the kernel size list.

    - noncausal self: a window centred on the position;
    - causal self: the last k positions, counted from the end of the step if a step has several words. The decoding
      state is the last k - z keys and values;
    - noncausal cross: centred on the source position at the same relative position as the query, ⌊(i + ½) m/n⌋ for
      query i of n and m source positions;
    - causal cross: centred on source position i, or on the last position of a shorter source, because n is not known
      yet ("local-m" of Luong et al.).
    """

    patterns = PATTERNS

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        k = spec.count("attention_window") or spec.kernel_size
        if spec.pattern == "causal cross" and spec.words_per_step > 1:
            raise ValueError(
                f"--{spec.side}-cross-attention-type local follows the source from left to right: it cannot write "
                f"{spec.words_per_step} words per step"
            )
        self.left, self.right = (k - 1, 0) if spec.pattern == "causal self" else ((k - 1) // 2, k // 2)

    def describe(self) -> dict[str, Any]:
        if self.spec.pattern == "causal cross":
            raise UnsupportedError("the attention local as causal cross attention")
        if self.w_a is not None:
            raise UnsupportedError("--local-similarity general")
        return {"kind": "local", "heads": self.num_heads, "left": self.left, "right": self.right}

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v, key_padding_mask = memory["k"], memory["v"], memory.get("padding_mask")
        if not self.spec.cross:
            return self._windows(q, k, v, key_padding_mask), None
        return self._aligned(q, k, v, key_padding_mask, padding_mask, positions), None

    def attend_causally(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        return self._windows(q, k, v, padding_mask)

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        length = max(self.left + 1 - self.spec.words_per_step, 0)
        return {"kv": like.new_zeros(rows, self.num_heads, 2, length, self.head_dim)}

    def step_causally(self, q: Tensor, kv: Tensor, state: State, context: StepContext) -> Tensor:
        history, new_words = state["kv"], q.size(2)
        kv = torch.cat([history, kv], dim=3)
        history.copy_(kv[:, :, :, new_words:])
        (k, v), history_length = kv.unbind(2), history.size(3)
        return self._windows(q, k, v, None, history_length, history_length - (context.end - new_words))

    def _windows(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding_mask: Tensor | None,
        history: int = 0,
        first: int | Tensor = 0,
    ) -> Tensor:
        """Self-attention within windows, computed in blocks of queries, each with the span of keys in its windows.

        Args:
            q: queries (B, H, T, d_h).
            k: keys (B, H, S, d_h).
            v: values (B, H, S, d_h).
            padding_mask: True at padding keys, (B, S).
            history: index of the key at the first query's position.
            first: index of the first key that is not masked.

        Returns:
            (B, H, T, d_h).
        """
        length, keys, device, z = q.size(2), k.size(2), q.device, self.spec.words_per_step
        reach = self.right + z - 1  # from a query to the right
        block = min(max(BLOCK, self.left + reach), length)
        blocks = -(-length // block)
        span = block + self.left + reach
        padding_l, padding_r = self.left - history, blocks * block - length + reach

        def spans(x: Tensor) -> Tensor:
            """Spans of keys or values: (B, H, S, …) to (B, H, blocks, …, span)."""
            x = x[:, :, max(-padding_l, 0) :]
            return F.pad(x, [0, 0] * (x.dim() - 3) + [max(padding_l, 0), padding_r]).unfold(2, span, block)

        query = torch.arange(blocks * block, device=device).view(blocks, block, 1)
        end = query // z * z + z - 1 + history
        key = query[:, :1] + history - self.left + torch.arange(span, device=device)
        allowed = (key >= end - self.left) & (key <= end + self.right) & (key >= 0) & (key >= first) & (key < keys)
        if padding_mask is not None:
            allowed = allowed & spans(~padding_mask[:, None])[:, :, :, None]
        q = F.pad(q, [0, 0, 0, blocks * block - length]).unflatten(2, (blocks, block))
        out = self._attend(q, spans(k), spans(v).transpose(3, 4), allowed)
        return out.flatten(2, 3)[:, :, :length]

    def _aligned(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_padding_mask: Tensor | None,
        padding_mask: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """Cross-attention of queries (B, H, T, d_h) within windows of the source; arguments as in ``attend``."""
        (batch, heads, length, width), source = q.shape, k.size(2)
        first, m = _extent(key_padding_mask, batch, source, q.device)
        i = torch.arange(length, device=q.device) if positions is None else positions.repeat(length // len(positions))
        if self.spec.causal:
            centre = torch.minimum(i, m - 1)
        else:
            first_query, n = _extent(padding_mask, batch, length, q.device)
            centre = (2 * (i - first_query) + 1) * m // (2 * n)
        window = centre.unsqueeze(2) + torch.arange(-self.left, self.right + 1, device=q.device)  # (B, T, k)
        allowed = (window >= 0) & (window < m.unsqueeze(2))
        index = (window + first.unsqueeze(2)).clamp(0, source - 1).view(batch, 1, -1, 1)

        def windows(x: Tensor) -> Tensor:
            """Windows of keys or values: (B, H, S, d_h) to (B, H, T, k, d_h)."""
            return x.gather(2, index.expand(batch, heads, -1, width)).unflatten(2, (length, -1))

        out = self._attend(q.unsqueeze(3), windows(k).transpose(3, 4), windows(v), allowed[:, None, :, None])
        return out.squeeze(3)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        """Softmax attention of (…, T, d_h) over keys (…, d_h, S) and values (…, S, d_h)."""
        scores = self.similarity(q, k)
        # Not -inf: a window may contain only padding, where softmax would be undefined.
        return self.dropout_module(scores.masked_fill(~allowed, -1e4).softmax(dim=-1).to(q)) @ v


def _extent(padding_mask: Tensor | None, batch: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Index of the first position that is not padding, and the number of such positions, at least 1: (B, 1) each."""
    if padding_mask is None:
        return torch.zeros(batch, 1, dtype=torch.long, device=device), torch.full((batch, 1), length, device=device)
    return (~padding_mask).int().argmax(dim=1, keepdim=True), (~padding_mask).sum(dim=1, keepdim=True).clamp(min=1)
