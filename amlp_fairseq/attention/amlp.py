"""AMLP: attentive multi-layer perceptron (Jiang et al. 2023), attention at linear cost.

Per head, with Q (n, d_h) and K, V (m, d_h):

    AMLP(Q; K, V) = σ₁(Q L) W                                      (8)

with the adaptive weights L (d_h, c) and W (c, d_h), which ``AMLPCov`` and ``AMLPPQuery`` compute.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.running_sums import RunningSums
from amlp_fairseq.attention.shared_options import InnerDimOptions, OperatorOptions
from amlp_fairseq.attention.softmax import attend, padding_bias, with_bias
from amlp_fairseq.attention.spec import PATTERNS, AttentionSpec
from amlp_fairseq.attention.state import State, overwrite
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.ops.amlp_cov.op import cross_covariance
from amlp_fairseq.ops.amlp_cov.shared import EPS
from amlp_fairseq.ops.ema import exponential_moving_average
from amlp_fairseq.ops.precision import sum_dtype

#: σ₁ of Eq. 8; softmax is over the c inner dimensions.
ACTIVATIONS = {
    "softmax": lambda x: x.softmax(dim=-1, dtype=sum_dtype(x)).to(x),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}

#: Values of ``--amlp-scale``: 1/√d_h scales nothing, the argument of σ₁, or the arguments of σ₁ and σ₂.
SCALES = ("none", "sqrt", "all")
#: Number of queries per pass through Eq. 8, which bounds the memory of its intermediate results: few on a CPU, to fit
#: its caches; many on other devices, for few kernel launches.
CPU_CHUNK, CHUNK = 256, 4096
#: Number of decoder steps whose covariances are in memory at the same time, in causal attention.
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
            "help": "division by √d_h: 'none' (default of 'amlp_pquery'), 'sqrt': the argument of AMLP's activation "
            "(default of 'amlp_cov'), 'all': those of the softmaxes of 'amlp_pquery' as well"
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

    ``--amlp-scale sqrt`` divides the argument of σ₁ by √d_h, as the authors' code does in AMLP-Cov; Eq. 8 and their
    AMLP-PQuery do not. A LayerNorm normalises each head's output, as in their code (``--no-amlp-output-norm`` omits
    it). Time and memory are linear in n and m.

    Raises:
        ValueError: if the subclass does not support the value of ``--amlp-scale``.
    """

    patterns: tuple[str, ...] = ("noncausal self", "noncausal cross")
    #: Supported values of ``--amlp-scale``; the first is the default.
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

    def describe(self) -> dict[str, Any]:
        if self.spec.causal:
            raise UnsupportedError(f"the attention {self.name} as {self.spec.pattern} attention")
        if self.activation is not ACTIVATIONS["softmax"]:
            raise UnsupportedError("--amlp-activation other than softmax")
        return {
            "kind": self.name,
            "heads": self.num_heads,
            "inner_width": self.c_q.size(1),
            "scale": self.scaling,
            "output_norm": self.norm is not None,
        }

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        weights = self.prepare_weights(*self.adaptive_weights(q, memory, padding_mask), q)
        # Positions are the outermost axis in memory: joining the heads then needs no copy.
        chunks = q.split(CPU_CHUNK if q.device.type == "cpu" else CHUNK, dim=2)
        outputs = [self.perceptron(chunk, *weights).permute(2, 0, 1, 3) for chunk in chunks]
        return torch.cat(outputs).permute(1, 2, 0, 3), None

    def prepare_weights(self, l_t: Tensor, w: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Arguments of ``perceptron`` in the dtype of q: scaled L (…, d_h, c) and W (…, c, d_h) from Lᵀ and W, both
        (…, c, d_h)."""
        if self.norm is not None:
            # LayerNorm subtracts the mean of the output. Subtracting it from W gives the same result, and before W is
            # rounded to half precision.
            w = w - w.mean(dim=-1, keepdim=True)
        return (l_t * self.scaling).mT.to(q), w.to(q)

    def perceptron(self, q: Tensor, weight_1: Tensor, weight_2: Tensor) -> Tensor:
        """Equation 8 for queries (…, n, d_h), with the weights of ``prepare_weights``."""
        out = self.dropout_module(self.activation(q @ weight_1)) @ weight_2
        return out if self.norm is None else self.norm(out)

    def adaptive_weights(self, q: Tensor, memory: KVMemory, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Lᵀ and W, both (B, H, c, d_h).

        Args:
            q: queries (B, H, n, d_h).
            memory: result of ``make_memory``.
            padding_mask: True at padding queries, (B, n).
        """
        raise NotImplementedError


@register_attention("amlp_cov", options=AMLPOptions)
class AMLPCov(RunningSums, AMLP):
    """Cross-covariance (Section 2.3.1):

        Lᵀ = C_q softmax(QᵀQ) + C_k softmax(KᵀK)                   (9)
        W  = Lᵀ softmax(KᵀV)                                       (10)

    As in the authors' code, the channels are normalised over the sequence (``--no-amlp-normalize`` omits this) and each
    covariance has a learned temperature per head (``--no-amlp-temperature`` omits it), initialised to
    ``--amlp-temperature``: with 1 the softmaxes of correlations are nearly uniform, so that Lᵀ and W hardly depend on
    the sentence. ``--amlp-published-contraction`` uses two more details of their code: relu(Lᵀ), and in Eq. 10 the
    transposed covariance, W = Lᵀ softmax(KᵀV)ᵀ.

    The causal form has separate covariances and channel norms at every position, over the positions visible from there
    (Eq. 13 and 14): d_h² numbers per position, head and covariance, which training recomputes instead of storing
    (gradient checkpointing). In causal cross-attention K and V are the whole source; only S^Q_t is a running sum.
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

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "temperatures": self.temperature is not None,
            "normalize": self.normalize,
            "published_contraction": self.published,
        }

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
        """softmax(KᵀK) as ``k`` and softmax(KᵀV) as ``v``, both (B, H, d_h, d_h)."""
        return {"k": self._covariance(1, k, k, padding_mask), "v": self._covariance(2, k, v, padding_mask)}

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``MultiHeadAttention.attend``. Adds causal queries to the ``row_state`` in the memory, if there is
        one."""
        if not self.spec.causal:
            return super().attend(q, memory, padding_mask, positions, need_weights)
        count = q.size(2) if positions is None else len(positions)
        sentences, rows = len(q), q.size(2) // count
        cov_kk, cov_kv = (memory[name].repeat_interleave(rows, dim=0).unsqueeze(2) for name in ("k", "v"))
        q = q.unflatten(2, (rows, count)).transpose(1, 2).flatten(0, 1)
        if padding_mask is not None:
            q = q.masked_fill(padding_mask[:, None, :, None], 0)
        sums = {"qq": memory["qq"]} if "qq" in memory else self.row_state(len(q), q)
        out, sums = self._by_blocks(partial(self._cross_block, cov_kk, cov_kv), (q,), sums)
        if "qq" in memory:
            overwrite(memory, sums)
        return out.unflatten(0, (sentences, rows)).transpose(1, 2).flatten(2, 3), None

    def row_state(self, rows: int, like: Tensor) -> State:
        """S^Q of Eq. 13 before the first position, for causal cross-attention: zeros."""
        return self._zeros(rows, like, "qq")

    def adaptive_weights(self, q: Tensor, memory: KVMemory, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        cov_qq = self._covariance(0, q, q, padding_mask)
        with torch.autocast(q.device.type, enabled=False):  # cheap products, kept in float32 or float64
            return self._weights_from_covariances(self.c_q, self.c_k, cov_qq, memory["k"], memory["v"])

    def _covariance(self, index: int, x: Tensor, y: Tensor, padding_mask: Tensor | None) -> Tensor:
        """softmax(XᵀY) with the temperatures ``temperature[index]``."""
        temperature = None if self.temperature is None else self.temperature[index]
        backend = self.spec.options.operator_backend
        return cross_covariance(x, y, temperature, padding_mask, normalize=self.normalize, backend=backend)

    def _weights_from_covariances(
        self, c_q: Tensor, c_k: Tensor, cov_qq: Tensor, cov_kk: Tensor, cov_kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Lᵀ and W (…, c, d_h) of Eq. 9 and 10, or 13 and 14, from the softmaxes of the covariances (…, d_h, d_h)."""
        l_t = c_q.to(cov_qq) @ cov_qq + c_k.to(cov_kk) @ cov_kk
        if self.published:
            l_t, cov_kv = l_t.relu(), cov_kv.mT
        return l_t, l_t @ cov_kv

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        """S^Q, S^K and z of Eq. 13 and 14 and the squared norms of the values' channels before the first position:
        zeros."""
        return self._zeros(rows, like, "qq", "kk", "kv", "vv")

    def _zeros(self, rows: int, like: Tensor, *names: str) -> State:
        """Zero sums (R, H, d_h, d_h) by these names; the squared norms ``vv`` are (R, H, d_h)."""
        square, dtype = (self.head_dim, self.head_dim), sum_dtype(like)
        shapes = {name: square[:1] if name == "vv" else square for name in names}
        return {name: like.new_zeros(rows, self.num_heads, *shape, dtype=dtype) for name, shape in shapes.items()}

    def continue_sums(
        self, q: Tensor, k: Tensor, v: Tensor, sums: State, padding_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        if padding_mask is not None:
            q, k, v = (x.masked_fill(padding_mask[:, None, :, None], 0) for x in (q, k, v))
        return self._by_blocks(self._self_block, (q, k, v), sums)

    def _by_blocks(
        self, function: Callable[..., tuple[Tensor, State]], inputs: tuple[Tensor, ...], sums: State
    ) -> tuple[Tensor, State]:
        """Apply ``function`` to ``BLOCK`` steps at a time.

        Args:
            function: maps inputs (B, H, steps, z, d_h) and the sums before these steps to outputs of the same shape and
                the sums after these steps.
            inputs: (B, H, T, d_h) each.
            sums: before the first position.

        Returns:
            Outputs (B, H, T, d_h), and the sums after the last position.
        """
        z, length = self.spec.words_per_step, inputs[0].size(2)
        inputs = tuple(F.pad(x, (0, 0, 0, -length % z)).unflatten(2, (-1, z)) for x in inputs)
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
        """Self-attention of a block of steps: outputs (B, H, steps, z, d_h), and the sums after the block."""
        wide_q, wide_k, wide_v = (x.to(sums["qq"]) for x in (q, k, v))
        new = {"qq": wide_q.mT @ wide_q, "kk": wide_k.mT @ wide_k, "kv": wide_k.mT @ wide_v}
        new["vv"] = wide_v.square().sum(dim=3)
        running = {name: sums[name].unsqueeze(2) + x.cumsum(dim=2) for name, x in new.items()}
        squares = {"v": running["vv"]} | {x: running[x + x].diagonal(dim1=-2, dim2=-1) for x in "qk"}
        covariances = [
            self._covariance_from_sums(index, running[x + y], squares[x], squares[y])
            for index, (x, y) in enumerate((("q", "q"), ("k", "k"), ("k", "v")))
        ]
        return self._perceptron_from_covariances(q, *covariances), _last(running)

    def _cross_block(self, cov_kk: Tensor, cov_kv: Tensor, q: Tensor, sums: State) -> tuple[Tensor, State]:
        """Cross-attention of a block of steps, as ``_self_block``, with the source's covariances (B, H, 1, d_h,
        d_h)."""
        wide_q = q.to(sums["qq"])
        running = sums["qq"].unsqueeze(2) + (wide_q.mT @ wide_q).cumsum(dim=2)
        square = running.diagonal(dim1=-2, dim2=-1)
        cov_qq = self._covariance_from_sums(0, running, square, square)
        return self._perceptron_from_covariances(q, cov_qq, cov_kk, cov_kv), _last({"qq": running})

    def _covariance_from_sums(self, index: int, scores: Tensor, square_x: Tensor, square_y: Tensor) -> Tensor:
        """``_covariance`` from XᵀY (…, d_h, d_h) and the squared norms of the channels (…, d_h)."""
        if self.normalize:
            norm_x, norm_y = (square.clamp(min=EPS**2).sqrt() for square in (square_x, square_y))
            scores = scores / (norm_x.unsqueeze(-1) * norm_y.unsqueeze(-2))
        if self.temperature is not None:
            scores = self.temperature[index].to(scores)[:, None, None, None] * scores
        return scores.softmax(dim=-1)

    def _perceptron_from_covariances(self, q: Tensor, *covariances: Tensor) -> Tensor:
        """Equation 8 with the weights computed from each step's covariances (B, H, steps, d_h, d_h)."""
        weights = self._weights_from_covariances(self.c_q.unsqueeze(1), self.c_k.unsqueeze(1), *covariances)
        return self.perceptron(q, *self.prepare_weights(*weights, q))


def _last(running: State) -> State:
    """Sums after the last step, from the sums after each step."""
    return {name: value[:, :, -1].clone() for name, value in running.items()}


@register_attention("amlp_pquery", options=AMLPOptions)
class AMLPPQuery(AMLP):
    """Pseudo-queries (Section 2.3.2):

        q̂_i = β q̂_{i-1} + (1 - β) q_i
        Lᵀ  = [softmax(C_q Q̂ᵀ) Q̂ ; softmax(C_k Kᵀ) K] W_o + b       (11)
        W   = softmax(Lᵀ Kᵀ) V                                      (12)

    The heads share W_o: 2 d_h → d_h and a bias b, which the paper omits. β is ``--amlp-ema-beta``;
    ``--amlp-ema-bias-correction`` divides q̂_i by 1 - β^i, because the recursion starts at zero. ``--amlp-scale all``
    also divides the arguments of the softmaxes by √d_h: otherwise they saturate on small data, and all c pseudo-queries
    attend to the same few keys.
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

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "pool_scale": self.pool_scaling,
            "beta": self.beta,
            "bias_correction": self.bias_correction,
        }

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
        return with_bias(k, v, padding_mask)

    def adaptive_weights(self, q: Tensor, memory: KVMemory, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
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
        """softmax(queries · Kᵀ) V for queries (B, H, c, d_h): (B, H, c, d_h)."""
        return attend(queries, k, v, bias, self.pool_scaling)

    def _corrections(self, q: Tensor, padding_mask: Tensor | None) -> Tensor:
        """1 - β^i for the i-th word of a sentence, (1 or B, 1, n, 1)."""
        if padding_mask is None:
            words = torch.arange(1, q.size(2) + 1, device=q.device).unsqueeze(0)
        else:
            words = (~padding_mask).cumsum(dim=1).clamp(min=1)
        return (1 - self.beta ** words.to(sum_dtype(q)))[:, None, :, None]
