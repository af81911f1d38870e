"""AMLP: attentive multi-layer perceptron (Jiang et al. 2023), attention at linear cost.

Per head, with Q (n, d_h) and K, V (m, d_h):

    AMLP(Q; K, V) = σ₁(Q L) W                                      (8)

with the adaptive weights L (d_h, c) and W (c, d_h); ``AMLPCov`` and ``AMLPPQuery`` are two ways to compute them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from amlp_fairseq.attention.multihead import Memory, MultiHeadAttention
from amlp_fairseq.attention.registry import PATTERNS, AttentionSpec, register_attention
from amlp_fairseq.attention.running_sums import RunningSums
from amlp_fairseq.attention.shared_options import InnerDimOptions, OperatorOptions
from amlp_fairseq.attention.softmax import attend, padding_bias, with_bias
from amlp_fairseq.attention.state import State, overwrite
from amlp_fairseq.ops.amlp_cov.op import cross_covariance
from amlp_fairseq.ops.amlp_cov.shared import EPS
from amlp_fairseq.ops.ema import exponential_moving_average

#: σ₁ of Eq. 8; softmax is over the c inner dimensions.
ACTIVATIONS = {
    "softmax": lambda x: x.softmax(dim=-1, dtype=torch.float32).to(x),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}

#: Values of ``--amlp-scale``: 1/√d_h scales nothing, the argument of σ₁, or those of σ₂ as well.
SCALES = ("none", "sqrt", "all")
#: Queries of one pass through Eq. 8, so that its intermediate results never exist for all of a long sequence at once:
#: few on a CPU, for its caches; on other devices many, for few launches.
CPU_CHUNK, CHUNK = 256, 4096
#: Steps of a causal decoder whose covariances exist at the same time.
BLOCK = 16


@dataclass
class AMLPOptions(InnerDimOptions, OperatorOptions):
    """Options of 'amlp_cov' and 'amlp_pquery'."""

    amlp_activation: ChoiceEnum(list(ACTIVATIONS)) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "activation of AMLP's inner layer"}
    )
    amlp_scale: Optional[ChoiceEnum(list(SCALES))] = field(  # type: ignore[valid-type]  # noqa: UP045
        default=None,
        metadata={
            "help": "what AMLP divides by √d_h: 'none': nothing (default of 'amlp_pquery'), 'sqrt': the argument of "
            "its activation (default of 'amlp_cov'), 'all': those of the softmaxes of 'amlp_pquery' as well"
        },
    )
    amlp_ema_beta: float = field(default=0.99, metadata={"help": "β of the moving average of 'amlp_pquery'"})
    amlp_ema_bias_correction: bool = field(
        default=False, metadata={"help": "divide the moving average by 1 - β^i, because it starts at 0"}
    )
    no_amlp_normalize: bool = field(
        default=False, metadata={"help": "do not normalise the channels before the covariances of 'amlp_cov'"}
    )
    no_amlp_temperature: bool = field(
        default=False, metadata={"help": "no learned temperatures of the covariances of 'amlp_cov'"}
    )
    amlp_temperature: float = field(default=1.0, metadata={"help": "initial value of the temperatures of 'amlp_cov'"})
    no_amlp_output_norm: bool = field(default=False, metadata={"help": "no layer norm after the heads of AMLP"})
    amlp_published_contraction: bool = field(
        default=False, metadata={"help": "'amlp_cov' with relu(L) and the axis of KᵀV that the authors' code sums over"}
    )


class AMLP(MultiHeadAttention):
    """Equation 8; c is ``--attention-inner-dim``, σ₁ ``--amlp-activation``.

    ``--amlp-scale sqrt`` divides the argument of σ₁ by √d_h, as the authors' code does in AMLP-Cov; Eq. 8 does not, nor
    does their code in AMLP-PQuery. The output is normalised for each head, as in that code (LayerNorm; left out by
    ``--no-amlp-output-norm``). Nothing of size n·m or n² is computed.

    Raises:
        ValueError: for a scale that the subclass does not have.
    """

    patterns: tuple[str, ...] = ("noncausal self", "noncausal cross")
    #: Possible values of ``--amlp-scale``; the first is the default.
    scales: tuple[str, ...]

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        options, c = spec.options, spec.count("attention_inner_dim")
        self.scale = options.amlp_scale or self.scales[0]
        if self.scale not in self.scales:
            raise ValueError(f"--amlp-scale {self.scale} is not for {type(self).__name__}: {', '.join(self.scales)}")
        if self.scale == "none":
            self.scaling = 1.0
        self.activation = ACTIVATIONS[options.amlp_activation]
        self.c_q = nn.Parameter(torch.empty(self.num_heads, c, self.head_dim))
        self.c_k = nn.Parameter(torch.empty(self.num_heads, c, self.head_dim))
        for head in (*self.c_q, *self.c_k):
            nn.init.xavier_normal_(head, gain=2**-0.5)
        self.norm = None if options.no_amlp_output_norm else nn.LayerNorm(self.head_dim)

    def attend(
        self,
        q: Tensor,
        memory: Memory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        weights = self.ready_weights(*self.adaptive_weights(q, memory, padding_mask), q)
        # Positions outermost, the layout in which the heads are joined.
        chunks = q.split(CPU_CHUNK if q.device.type == "cpu" else CHUNK, dim=2)
        outputs = [self.perceptron(chunk, *weights).permute(2, 0, 1, 3) for chunk in chunks]
        return torch.cat(outputs).permute(1, 2, 0, 3), None

    def ready_weights(self, l_t: Tensor, w: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Lᵀ and W (…, c, d_h) as ``perceptron`` takes them: L (…, d_h, c) with its scale, and W, in the type of q."""
        if self.norm is not None:
            # The norm subtracts the mean from the output anyway: subtract it from W, before half precision rounds it.
            w = w - w.mean(dim=-1, keepdim=True)
        return (l_t * self.scaling).mT.to(q), w.to(q)

    def perceptron(self, q: Tensor, weight_1: Tensor, weight_2: Tensor) -> Tensor:
        """Equation 8 for queries (…, n, d_h), with given weights."""
        out = self.dropout_module(self.activation(q @ weight_1)) @ weight_2
        return out if self.norm is None else self.norm(out)

    def adaptive_weights(self, q: Tensor, memory: Memory, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Lᵀ and W, both (B, H, c, d_h), from queries (B, H, n, d_h) with padding mask (B, n), and the memory of keys
        and values."""
        raise NotImplementedError


@register_attention("amlp_cov", options=AMLPOptions)
class AMLPCov(RunningSums, AMLP):
    """Cross-covariance (Section 2.3.1):

        Lᵀ = C_q softmax(QᵀQ) + C_k softmax(KᵀK)                   (9)
        W  = Lᵀ softmax(KᵀV)                                       (10)

    As in the authors' code the channels are normalised over the sequence (left out by ``--no-amlp-normalize``) and each
    covariance has a learned temperature per head (``--no-amlp-temperature``), which is ``--amlp-temperature`` at first:
    with 1 the softmaxes of correlations are nearly uniform, so that Lᵀ and W hardly depend on the sentence.
    ``--amlp-published-contraction`` also takes from that code relu(Lᵀ), and the other axis of the covariance in Eq. 10:
    W = Lᵀ softmax(KᵀV)ᵀ.

    In the causal form every position has its own covariances and channel norms, of the positions that it sees (Eq. 13
    and 14): d_h² numbers for every position, head and covariance, which training computes twice instead of keeping.
    In causal cross-attention K and V are the whole source, so that only S^Q_t runs.
    """

    patterns = PATTERNS
    scales = ("sqrt", "none")

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        options = spec.options
        self.normalize = not options.no_amlp_normalize
        self.published = options.amlp_published_contraction
        temperatures = torch.full((3, self.num_heads), float(options.amlp_temperature))
        self.temperature = None if options.no_amlp_temperature else nn.Parameter(temperatures)

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Memory:
        """``k``: softmax(KᵀK), ``v``: softmax(KᵀV), both (B, H, d_h, d_h)."""
        return {"k": self._covariance(1, k, k, padding_mask), "v": self._covariance(2, k, v, padding_mask)}

    def attend(
        self,
        q: Tensor,
        memory: Memory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``MultiHeadAttention.read``. Causal queries are added to the ``row_state`` in the memory, if any."""
        if not self.spec.causal:
            return super().attend(q, memory, padding_mask, positions, need_weights)
        count = q.size(2) if positions is None else len(positions)
        sentences, rows = len(q), q.size(2) // count
        of_k, of_v = (memory[name].repeat_interleave(rows, dim=0).unsqueeze(2) for name in ("k", "v"))
        q = q.unflatten(2, (rows, count)).transpose(1, 2).flatten(0, 1)
        if padding_mask is not None:
            q = q.masked_fill(padding_mask[:, None, :, None], 0)
        before = {"qq": memory["qq"]} if "qq" in memory else self.row_state(len(q), q)
        out, sums = self._in_blocks(partial(self._cross_block, of_k, of_v), (q,), before)
        if "qq" in memory:
            overwrite(memory, sums)
        return out.unflatten(0, (sentences, rows)).transpose(1, 2).flatten(2, 3), None

    def row_state(self, rows: int, like: Tensor) -> State:
        """S^Q of Eq. 13 before the first position, for causal cross-attention."""
        return self._zeros(rows, like, "qq")

    def adaptive_weights(self, q: Tensor, memory: Memory, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        of_q = self._covariance(0, q, q, padding_mask)
        with torch.autocast(q.device.type, enabled=False):  # small, and in float32 at least
            return self._from_covariances(self.c_q, self.c_k, of_q, memory["k"], memory["v"])

    def _covariance(self, number: int, x: Tensor, y: Tensor, padding_mask: Tensor | None) -> Tensor:
        """softmax(XᵀY), with the temperatures of this number."""
        temperature = None if self.temperature is None else self.temperature[number]
        backend = self.spec.options.operator_backend
        return cross_covariance(x, y, temperature, padding_mask, normalize=self.normalize, backend=backend)

    def _from_covariances(
        self, c_q: Tensor, c_k: Tensor, of_q: Tensor, of_k: Tensor, of_kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Equations 9 and 10, or 13 and 14: Lᵀ and W (…, c, d_h) from σ₂(…) of the covariances (…, d_h, d_h)."""
        l_t = c_q.to(of_q) @ of_q + c_k.to(of_k) @ of_k
        if self.published:
            l_t, of_kv = l_t.relu(), of_kv.mT
        return l_t, l_t @ of_kv

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        """S^Q, S^K and z of Eq. 13 and 14 before the first position, and the squared norms of the values' channels."""
        return self._zeros(rows, like, "qq", "kk", "kv", "vv")

    def _zeros(self, rows: int, like: Tensor, *names: str) -> State:
        """Sums of no position: (R, H, d_h, d_h), the squared norms ``vv`` (R, H, d_h)."""
        square, dtype = (self.head_dim, self.head_dim), torch.promote_types(like.dtype, torch.float32)
        shapes = {name: square[:1] if name == "vv" else square for name in names}
        return {name: like.new_zeros(rows, self.num_heads, *shape, dtype=dtype) for name, shape in shapes.items()}

    def continue_sums(
        self, q: Tensor, k: Tensor, v: Tensor, sums: State, padding_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        if padding_mask is not None:
            q, k, v = (x.masked_fill(padding_mask[:, None, :, None], 0) for x in (q, k, v))
        return self._in_blocks(self._self_block, (q, k, v), sums)

    def _in_blocks(
        self, function: Callable[..., tuple[Tensor, State]], inputs: tuple[Tensor, ...], sums: State
    ) -> tuple[Tensor, State]:
        """Outputs (B, H, T, d_h) for inputs of this shape, and the sums after them, by a function of some steps (B, H,
        steps, z, d_h) at a time."""
        step, length = self.spec.words_per_step, inputs[0].size(2)
        inputs = tuple(F.pad(x, (0, 0, 0, -length % step)).unflatten(2, (-1, step)) for x in inputs)
        outputs = []
        for start in range(0, inputs[0].size(2), BLOCK):
            block = [x[:, :, start : start + BLOCK] for x in inputs]
            with torch.autocast(inputs[0].device.type, enabled=False):
                if torch.is_grad_enabled():
                    out, sums = checkpoint(function, *block, sums, use_reentrant=False)
                else:
                    out, sums = function(*block, sums)
            outputs.append(out)
        return torch.cat(outputs, dim=2).flatten(2, 3)[:, :, :length], sums

    def _self_block(self, q: Tensor, k: Tensor, v: Tensor, sums: State) -> tuple[Tensor, State]:
        """Outputs (B, H, steps, z, d_h) of some steps, and the sums after them."""
        wide_q, wide_k, wide_v = (x.to(sums["qq"]) for x in (q, k, v))
        new = {"qq": wide_q.mT @ wide_q, "kk": wide_k.mT @ wide_k, "kv": wide_k.mT @ wide_v}
        new["vv"] = wide_v.square().sum(dim=3)
        running = {name: sums[name].unsqueeze(2) + x.cumsum(dim=2) for name, x in new.items()}
        squares = {"v": running["vv"]} | {x: running[x + x].diagonal(dim1=-2, dim2=-1) for x in "qk"}
        covariances = [
            self._of_sums(number, running[x + y], squares[x], squares[y])
            for number, (x, y) in enumerate((("q", "q"), ("k", "k"), ("k", "v")))
        ]
        return self._perceptron_of(q, *covariances), _last(running)

    def _cross_block(self, of_k: Tensor, of_v: Tensor, q: Tensor, sums: State) -> tuple[Tensor, State]:
        """The same of queries, with what ``make_memory`` has of the source, (B, H, 1, d_h, d_h)."""
        wide_q = q.to(sums["qq"])
        running = sums["qq"].unsqueeze(2) + (wide_q.mT @ wide_q).cumsum(dim=2)
        square = running.diagonal(dim1=-2, dim2=-1)
        return self._perceptron_of(q, self._of_sums(0, running, square, square), of_k, of_v), _last({"qq": running})

    def _of_sums(self, number: int, scores: Tensor, square_x: Tensor, square_y: Tensor) -> Tensor:
        """``_covariance`` from XᵀY (…, d_h, d_h) and the squared norms of the channels (…, d_h)."""
        if self.normalize:
            norm_x, norm_y = (square.clamp(min=EPS**2).sqrt() for square in (square_x, square_y))
            scores = scores / (norm_x.unsqueeze(-1) * norm_y.unsqueeze(-2))
        if self.temperature is not None:
            scores = self.temperature[number].to(scores)[:, None, None, None] * scores
        return scores.softmax(dim=-1)

    def _perceptron_of(self, q: Tensor, *covariances: Tensor) -> Tensor:
        """Equation 8 with the weights that each step's covariances (B, H, steps, d_h, d_h) give."""
        weights = self._from_covariances(self.c_q.unsqueeze(1), self.c_k.unsqueeze(1), *covariances)
        return self.perceptron(q, *self.ready_weights(*weights, q))


def _last(running: State) -> State:
    """The sums after the last step, of those after each."""
    return {name: value[:, :, -1].clone() for name, value in running.items()}


@register_attention("amlp_pquery", options=AMLPOptions)
class AMLPPQuery(AMLP):
    """Pseudo-queries (Section 2.3.2):

        q̂_i = β q̂_{i-1} + (1 - β) q_i
        Lᵀ  = [softmax(C_q Q̂ᵀ) Q̂ ; softmax(C_k Kᵀ) K] W_o + b       (11)
        W   = softmax(Lᵀ Kᵀ) V                                      (12)

    with W_o: 2 d_h → d_h for all heads, and a bias b that the paper does not write. β is ``--amlp-ema-beta``;
    ``--amlp-ema-bias-correction`` divides q̂_i by 1 - β^i, because the recursion starts with zero. ``--amlp-scale all``
    also divides the arguments of the softmaxes by √d_h: otherwise they saturate on small data, and the c pseudo-queries
    read the same few keys.
    """

    scales = SCALES

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.beta = spec.options.amlp_ema_beta
        if not 0 <= self.beta < 1:
            raise ValueError(f"--amlp-ema-beta {self.beta} must be at least 0 and less than 1")
        self.bias_correction = spec.options.amlp_ema_bias_correction
        self.pool_scaling = self.scaling if self.scale == "all" else 1.0
        self.fuse = nn.Linear(2 * self.head_dim, self.head_dim)

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Memory:
        return with_bias(k, v, padding_mask)

    def adaptive_weights(self, q: Tensor, memory: Memory, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q_hat = exponential_moving_average(q, self.beta, padding_mask)
        if self.bias_correction:
            q_hat = q_hat / self._corrections(q, padding_mask).to(q)
        k, v, bias = memory["k"], memory["v"], memory.get("bias")
        q_bias = None if padding_mask is None else padding_bias(padding_mask, q)
        from_q = self._pool(self.c_q.expand(len(q), -1, -1, -1), q_hat, q_hat, q_bias)
        from_k = self._pool(self.c_k.expand(len(k), -1, -1, -1), k, k, bias)
        l_t = self.fuse(torch.cat([from_q, from_k], dim=-1))
        return l_t, self._pool(l_t, k, v, bias)

    def _pool(self, queries: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """softmax(queries · Kᵀ) V: (B, H, c, d_h)."""
        return attend(queries, k, v, bias, self.pool_scaling)

    def _corrections(self, q: Tensor, padding_mask: Tensor | None) -> Tensor:
        """1 - β^i for the i-th word, (1 or B, 1, n, 1)."""
        if padding_mask is None:
            words = torch.arange(1, q.size(2) + 1, device=q.device).unsqueeze(0)
        else:
            words = (~padding_mask).cumsum(dim=1).clamp(min=1)
        return (1 - self.beta ** words.float())[:, None, :, None]
