"""The multi-head attentions and gMLP against their formulas, in NumPy: a loop over sentences, from which padding is cut
out, and heads."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tolerance
import torch
from fairseq.modules import MultiheadAttention
from numpy import ndarray
from torch import Tensor

from amlp_fairseq.attention import abc, local
from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.attention.registry import ATTENTIONS
from amlp_fairseq.attention.spec import AttentionSpec

WIDTH, SOURCE_WIDTH, BATCH = 8, 6, 3
#: Padding on the left and on the right of each sentence; the target has more words than the source, fewer, or as many.
SOURCE, SELF = [(2, 0), (0, 0), (5, 0)], [(2, 0), (0, 3), (0, 0)]
TARGET, CAUSAL_TARGET = [(0, 3), (2, 0), (0, 0)], [(0, 3), (0, 2), (0, 0)]
OPTIONS = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "attention_dropout": 0.0,
    "attention_window": 5,
    "local_similarity": "dot",
    "attention_inner_dim": 3,
    "operator_backend": "auto",
    "amlp_activation": "softmax",
    "amlp_scale": None,
    "amlp_temperature": 1.0,
    "amlp_ema_beta": 0.5,
    "amlp_ema_bias_correction": False,
    "no_amlp_normalize": False,
    "no_amlp_temperature": False,
    "no_amlp_output_norm": False,
    "amlp_published_contraction": False,
    "max_source_positions": 12,
    "max_target_positions": 12,
}


def build(name: str, pattern: str, step: int = 1, heads: int = 2, width: int = WIDTH, **options: Any) -> Any:
    """An attention in evaluation mode; cross-attention has a source of another width."""
    side = "encoder" if pattern == "noncausal self" else "decoder"
    widths = {"encoder_embed_dim": SOURCE_WIDTH if side == "decoder" else width, "decoder_embed_dim": width}
    numbers = {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
    torch.manual_seed(0)
    layer = ATTENTIONS[name](
        AttentionSpec(Namespace(**{**OPTIONS, **widths, **numbers, **options}), side, 0, pattern, step)
    )
    return layer.eval()


def randomized(layer: Any) -> Any:
    """In float64, with no parameter at a trivial value."""
    for parameter in layer.double().parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return layer


def random(length: int, width: int = WIDTH) -> Tensor:
    return torch.randn(length, BATCH, width, generator=torch.Generator().manual_seed(length), dtype=torch.float64)


def mask(length: int, padding: list[tuple[int, int]]) -> Tensor:
    position = torch.arange(length)
    return torch.stack([(position < left) | (position >= length - right) for left, right in padding])


def future(length: int, step: int = 1) -> Tensor:
    """The mask of a decoder."""
    steps = torch.arange(length) // step
    return torch.zeros(length, length).masked_fill(steps > steps.unsqueeze(1), -math.inf)


# The formulas. q, k and v are those of one head, (n, d_h), (m, d_h) and (m, d_h).

Formula = Callable[[ndarray, ndarray, ndarray, AttentionSpec, dict[str, ndarray], int], ndarray]


def softmax(x: ndarray) -> ndarray:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def gelu(x: ndarray) -> ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def layer_norm(x: ndarray, p: dict[str, ndarray]) -> ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * p["norm.weight"] + p["norm.bias"]


def attend(
    q: ndarray, k: ndarray, v: ndarray, seen: Callable[[int], Iterable[int]], w_a: ndarray | None = None
) -> ndarray:
    """Query i attends to the keys ``seen(i)``; W_a is I/√d_h if it is not given."""
    w_a = np.eye(q.shape[1]) / math.sqrt(q.shape[1]) if w_a is None else w_a
    rows = ((x, list(seen(i))) for i, x in enumerate(q))
    return np.stack([softmax(k[keys] @ w_a.T @ x) @ v[keys] for x, keys in rows])


def window_matrix(spec: AttentionSpec, p: dict[str, ndarray], width: int) -> ndarray:
    """W_a of hᵀ W_a s."""
    return p["w_a.weight"].T if spec.options.local_similarity == "general" else np.eye(width) / math.sqrt(width)


def up_to(i: int, m: int, spec: AttentionSpec) -> int:
    """Number of the m keys that position i sees under the causal mask alone."""
    step = spec.words_per_step
    return min((i // step + 1) * step, m) if spec.pattern == "causal self" else m


def softmax_formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
    return attend(q, k, v, lambda i: range(up_to(i, len(k), spec)))


def similarity_formula(similarity: Callable[[ndarray, ndarray, dict[str, ndarray]], float]) -> Formula:
    """Softmax attention with the similarity sim(s, h) of key s and query h."""

    def formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
        counts = [up_to(i, len(k), spec) for i in range(len(q))]
        scores = [np.array([similarity(s, x, p) for s in k[:count]]) for x, count in zip(q, counts, strict=True)]
        return np.stack([softmax(row) @ v[: len(row)] for row in scores])

    return formula


def general(s: ndarray, h: ndarray, p: dict[str, ndarray]) -> float:
    return h @ p["w_a.weight"].T @ s


def concat(s: ndarray, h: ndarray, p: dict[str, ndarray]) -> float:
    w_a = np.concatenate([p["w_h.weight"], p["w_s.weight"]], axis=1)
    return p["v.weight"][0] @ np.tanh(w_a @ np.concatenate([h, s]))


def local_p_formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
    d, rows = (spec.options.attention_window - 1) / 2, []
    for x in q:
        centre = len(k) / (1 + math.exp(-p["v_p.weight"][0] @ np.tanh(p["w_p.weight"] @ x)))
        window = [j for j in range(1, len(k) + 1) if centre - d <= j <= centre + d]
        weights = softmax(np.array([x @ window_matrix(spec, p, len(x)) @ k[j - 1] for j in window]))
        rows.append(
            sum(a * math.exp(-2 * (j - centre) ** 2 / d**2) * v[j - 1] for a, j in zip(weights, window, strict=True))
        )
    return np.stack(rows)


def local_formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
    n, m, width, step = len(q), len(k), spec.options.attention_window, spec.words_per_step

    def window(i: int) -> Iterable[int]:
        centre = {
            "noncausal self": i,
            "noncausal cross": math.floor((i + Fraction(1, 2)) * m / n),
            "causal cross": min(i, m - 1),
        }.get(spec.pattern)
        end = i // step * step + step if centre is None else centre + width // 2 + 1
        return (j for j in range(end - width, end) if 0 <= j < m)

    return attend(q, k, v, window, window_matrix(spec, p, q.shape[1]))


def abc_formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
    def slots(x: ndarray, control: str, count: int) -> ndarray:
        phi = np.exp(x[:count] @ p[f"{control}.weight"].T)
        return (phi.T @ x[:count]) / phi.sum(axis=0)[:, None]

    rows = []
    for i, x in enumerate(q):
        count = up_to(i, len(k), spec)
        k_slots, v_slots = slots(k, "k_control", count), slots(v, "v_control", count)
        rows.append(softmax(k_slots @ x / math.sqrt(len(x))) @ v_slots)
    return np.stack(rows)


def kernel_formula(similarity: Callable[..., float]) -> Formula:
    """Σ_j s(i, j) v_j / Σ_j s(i, j)."""

    def formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
        longest = max(len(q), len(k))
        s = np.array([[similarity(x, y, (i - j) / longest, p) for j, y in enumerate(k)] for i, x in enumerate(q)])
        norm = s.sum(axis=1, keepdims=True)
        return s @ v / np.where(norm == 0, 1, norm)  # cosformer's can all be 0

    return formula


def linear_kernel(x: ndarray, y: ndarray, distance: float, p: dict[str, ndarray]) -> float:
    return sum((a + 1 if a > 0 else math.exp(a)) * (b + 1 if b > 0 else math.exp(b)) for a, b in zip(x, y, strict=True))


def performer_kernel(x: ndarray, y: ndarray, distance: float, p: dict[str, ndarray]) -> float:
    x, y = x / len(x) ** 0.25, y / len(y) ** 0.25
    features = [math.exp(w @ x - x @ x / 2) * math.exp(w @ y - y @ y / 2) for w in p["directions"]]
    return sum(features)


def cosformer_kernel(x: ndarray, y: ndarray, distance: float, p: dict[str, ndarray]) -> float:
    return np.maximum(x, 0) @ np.maximum(y, 0) * math.cos(math.pi / 2 * distance)


def covariance(x: ndarray, y: ndarray, temperature: float, normalize: bool) -> ndarray:
    """σ₂ of Eq. 9 and 10: the softmax of each row of XᵀY."""
    if normalize:
        x, y = (z / np.sqrt((z**2).sum(axis=0)) for z in (x, y))
    return softmax(temperature * (x.T @ y))


def xca_formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
    return v @ covariance(q, k, p["temperature"][h], True).T


def cov_weights(
    q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int
) -> tuple[ndarray, ndarray]:
    """Lᵀ and W of Eq. 9 and 10."""
    options = spec.options
    t = [1.0, 1.0, 1.0] if options.no_amlp_temperature else p["temperature"][:, h]
    normalize = not options.no_amlp_normalize
    l_t = p["c_q"][h] @ covariance(q, q, t[0], normalize) + p["c_k"][h] @ covariance(k, k, t[1], normalize)
    kv = covariance(k, v, t[2], normalize)
    if options.amlp_published_contraction:
        l_t = np.maximum(l_t, 0)
        return l_t, (kv @ l_t.T).T
    return l_t, l_t @ kv


def pquery_weights(
    q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int
) -> tuple[ndarray, ndarray]:
    """Lᵀ and W of Eq. 11 and 12."""
    beta, average, q_hat = spec.options.amlp_ema_beta, np.zeros(q.shape[1]), []
    for i, x in enumerate(q, start=1):
        average = beta * average + (1 - beta) * x
        q_hat.append(average / (1 - beta**i) if spec.options.amlp_ema_bias_correction else average)
    factor = 1 / math.sqrt(q.shape[1]) if spec.options.amlp_scale == "all" else 1
    from_q = softmax(factor * p["c_q"][h] @ np.stack(q_hat).T) @ np.stack(q_hat)
    from_k = softmax(factor * p["c_k"][h] @ k.T) @ k
    l_t = np.concatenate([from_q, from_k], axis=1) @ p["fuse.weight"].T + p["fuse.bias"]
    return l_t, softmax(factor * l_t @ k.T) @ v


def amlp_formula(weights: Callable[..., tuple[ndarray, ndarray]], scale: str) -> Formula:
    """Eq. 8, ``scale`` by default."""

    def formula(q: ndarray, k: ndarray, v: ndarray, spec: AttentionSpec, p: dict[str, ndarray], h: int) -> ndarray:
        if spec.causal:  # Eq. 13 and 14: with what each position sees, and nothing else; in cross-attention all keys
            whole = replace(spec, pattern=f"non{spec.pattern}")
            counts = [up_to(i, len(q), replace(spec, pattern="causal self")) for i in range(len(q))]
            keys = [len(k) if spec.cross else m for m in counts]
            rows = [formula(q[:m], k[:n], v[:n], whole, p, h) for m, n in zip(counts, keys, strict=True)]
            return np.stack([row[i] for i, row in enumerate(rows)])
        l_t, w = weights(q, k, v, spec, p, h)
        x = q @ l_t.T / (1 if (spec.options.amlp_scale or scale) == "none" else math.sqrt(q.shape[1]))
        hidden = {
            "softmax": softmax(x),
            "relu": np.maximum(x, 0),
            "sigmoid": 1 / (1 + np.exp(-x)),
            "identity": x,
        }[spec.options.amlp_activation]
        out = hidden @ w
        return out if spec.options.no_amlp_output_norm else layer_norm(out, p)

    return formula


FORMULAS: dict[str, Formula] = {
    "softmax": softmax_formula,
    "general": similarity_formula(general),
    "concat": similarity_formula(concat),
    "local": local_formula,
    "local_p": local_p_formula,
    "abc": abc_formula,
    "linear": kernel_formula(linear_kernel),
    "performer": kernel_formula(performer_kernel),
    "cosformer": kernel_formula(cosformer_kernel),
    "amlp_cov": amlp_formula(cov_weights, "sqrt"),
    "amlp_pquery": amlp_formula(pquery_weights, "none"),
    "xca": xca_formula,
}


def gmlp(x: ndarray, p: dict[str, ndarray]) -> ndarray:
    n, width = x.shape
    z = gelu(x @ p["inner.weight"].T + p["inner.bias"])
    gate = layer_norm(z[:, width:], p)
    gate = np.stack([sum(p["weight"][i, j] * gate[j] for j in range(n)) + p["bias"][i] for i in range(n)])
    return (z[:, :width] * gate) @ p["outer.weight"].T + p["outer.bias"]


def by_formula(name: str, layer: Any, x: ndarray, source: ndarray) -> ndarray:
    """The words x (n, C) of a sentence, whose keys and values are of the words ``source`` (m, C')."""
    p = {key: value.double().numpy() for key, value in layer.state_dict().items()}
    if name == "gmlp":
        return gmlp(x, p)
    projected = {
        letter: y @ p[f"{letter}_proj.weight"].T + p[f"{letter}_proj.bias"]
        for letter, y in (("q", x), ("k", source), ("v", source))
    }
    heads = []
    for h in range(layer.num_heads):
        channels = slice(h * layer.head_dim, (h + 1) * layer.head_dim)
        q, k, v = (projected[letter][:, channels] for letter in "qkv")
        heads.append(FORMULAS[name](q, k, v, layer.spec, p, h))
    return np.concatenate(heads, axis=1) @ p["out_proj.weight"].T + p["out_proj.bias"]


def check(name: str, pattern: str, step: int, padded: bool, length: int = 9, **options: Any) -> None:
    """Compare a module's output for a batch with the formula's for its sentences."""
    layer = randomized(build(name, pattern, step, **options))
    arguments: dict[str, Any] = {}
    if pattern.endswith("cross"):
        x, source = random(7), random(9, SOURCE_WIDTH)
        source_mask, x_mask = mask(9, SOURCE), mask(7, TARGET if pattern == "noncausal cross" else CAUSAL_TARGET)
        if padded:
            arguments["query_padding_mask"] = x_mask
    else:
        x = source = random(length)
        source_mask = x_mask = mask(length, SELF)
        if pattern.startswith("causal"):
            arguments["attn_mask"] = future(length, step).double()
    if padded:
        arguments["key_padding_mask"] = source_mask
    else:
        source_mask, x_mask = source_mask & False, x_mask & False
    out = layer(x, source, source, **arguments)[0].detach()
    for b in range(BATCH):
        words, source_words = ~x_mask[b], ~source_mask[b]
        expected = by_formula(name, layer, x[words, b].numpy(), source[source_words, b].numpy())
        np.testing.assert_allclose(out[words, b].numpy(), expected, rtol=1e-7, atol=1e-7)  # torch.testing's for float64


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in (*FORMULAS, "gmlp")},
    "local, window of 4": ("local", {"attention_window": 4}),
    "local, window of 20": ("local", {"attention_window": 20}),
    "local_p, window of 4": ("local_p", {"attention_window": 4}),
    "local_p, window of 20": ("local_p", {"attention_window": 20}),
    "local, general": ("local", {"local_similarity": "general"}),
    "local_p, general": ("local_p", {"local_similarity": "general"}),
    **{
        f"{name}, {activation}": (name, {"amlp_activation": activation})
        for name in ("amlp_cov", "amlp_pquery")
        for activation in ("relu", "sigmoid", "identity")
    },
    **{
        f"{name}, {option}": (name, {option: True})
        for name, options in {
            "amlp_cov": (
                "no_amlp_normalize",
                "no_amlp_temperature",
                "no_amlp_output_norm",
                "amlp_published_contraction",
            ),
            "amlp_pquery": ("no_amlp_output_norm", "amlp_ema_bias_correction"),
        }.items()
        for option in options
    },
    **{
        f"{name}, {scale}": (name, {"amlp_scale": scale})
        for name in ("amlp_cov", "amlp_pquery")
        for scale in ("none", "sqrt")
    },
    "amlp_pquery, all": ("amlp_pquery", {"amlp_scale": "all"}),
    "amlp_cov, all switches": (
        "amlp_cov",
        {
            "amlp_activation": "relu",
            "no_amlp_normalize": True,
            "no_amlp_temperature": True,
            "no_amlp_output_norm": True,
            "amlp_published_contraction": True,
        },
    ),
    "amlp_pquery, β = 0": ("amlp_pquery", {"amlp_ema_beta": 0.0}),
    "amlp_pquery, β = 0.99": ("amlp_pquery", {"amlp_ema_beta": 0.99}),
    "amlp_pquery, β = 0.99, corrected": ("amlp_pquery", {"amlp_ema_beta": 0.99, "amlp_ema_bias_correction": True}),
}
PLACES = [
    (case, pattern, step)
    for case, (name, _) in CASES.items()
    for pattern in ATTENTIONS[name].patterns
    for step in ((1, 2) if pattern == "causal self" else (1,))
]


@pytest.mark.parametrize(("case", "pattern", "step"), PLACES)
def test_the_output_is_the_formula(case: str, pattern: str, step: int) -> None:
    name, options = CASES[case]
    check(name, pattern, step, padded=True, heads=2, **options)


@pytest.mark.parametrize(
    ("name", "pattern"), [(name, pattern) for name in FORMULAS for pattern in ATTENTIONS[name].patterns]
)
def test_one_head_and_no_padding(name: str, pattern: str) -> None:
    check(name, pattern, 1, padded=False, heads=1)


def test_abc_of_a_whole_sequence_is_the_formula_however_large_its_control_is() -> None:
    q, k, v = random(9)[:, :1].reshape(1, 1, 9, WIDTH), *(80 * random(9)[:, :1].reshape(1, 1, 9, WIDTH) for _ in "kv")
    layer = randomized(build("abc", "noncausal self", heads=1))
    assert layer.k_control(k).abs().max() > 2 * abc.LIMIT
    parameters = {name: value.double().numpy() for name, value in layer.state_dict().items()}
    expected = abc_formula(*(x[0, 0].numpy() for x in (q, k, v)), layer.spec, parameters, 0)
    out = layer.attend(q, layer.make_memory(k, v, None))[0][0, 0].detach().numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-7, atol=1e-7)


def test_causal_abc_stays_finite_however_large_its_control_is() -> None:
    layer = randomized(build("abc", "causal self", heads=1))
    q, k, v = (200 * random(9)[:, :1].reshape(1, 1, 9, WIDTH) for _ in "qkv")
    assert layer.k_control(k).max() > math.log(torch.finfo(torch.float32).max)
    assert layer.attend_causally(q, k, v, None, None).isfinite().all()


def test_all_multi_head_attentions_have_formulas() -> None:
    assert {name for name, cls in ATTENTIONS.items() if issubclass(cls, MultiHeadAttention)} == set(FORMULAS)


LONG = 150  # several blocks of either
assert min(LONG // abc.BLOCK, LONG // local.BLOCK) >= 2


@pytest.mark.parametrize(
    ("name", "window", "pattern", "step", "padded"),
    [
        ("abc", 5, "noncausal self", 1, True),
        ("abc", 5, "causal self", 1, True),
        ("abc", 5, "causal self", 2, False),
        ("local", 5, "noncausal self", 1, False),
        ("local", 5, "causal self", 1, True),
        ("local", 5, "causal self", 2, True),
        ("local", 45, "noncausal self", 1, True),
        ("local", 45, "causal self", 1, False),
        ("local", 45, "causal self", 2, True),
    ],
)
def test_blocks_leave_no_trace(name: str, pattern: str, step: int, window: int, padded: bool) -> None:
    check(name, pattern, step, padded, LONG, attention_window=window)


@pytest.mark.parametrize(("step", "ends"), [(1, (1, 31, 32, 33, 64, 65, 129)), (3, (6, 63, 66, 132)), (2, (4, 140))])
@pytest.mark.parametrize(("name", "window"), [("abc", 5), ("local", 5), ("local", 45)])
def test_chunks_across_blocks_equal_the_whole(name: str, window: int, step: int, ends: tuple[int, ...]) -> None:
    layer, x = randomized(build(name, "causal self", step, attention_window=window)), random(LONG)
    state: dict[str, Any] = {}
    chunks = [x[start:end] for start, end in zip((0, *ends), (*ends, LONG), strict=True)]
    out = torch.cat([layer(chunk, chunk, chunk, incremental_state=state)[0] for chunk in chunks])
    torch.testing.assert_close(out, layer(x, x, x)[0])


#: fairseq's softmax is in float32: a sum of 9 exponentials, and the rounding of each and of the quotient.
FAIRSEQS_SOFTMAX = 12 * tolerance.UNIT[torch.float32]


def fairseq_pair(pattern: str) -> tuple[Any, MultiheadAttention]:
    """Softmax attention and fairseq's, with the same parameters."""
    cross = pattern.endswith("cross")
    theirs = MultiheadAttention(
        WIDTH,
        2,
        kdim=SOURCE_WIDTH if cross else None,
        vdim=SOURCE_WIDTH if cross else None,
        self_attention=not cross,
        encoder_decoder_attention=cross,
    )
    randomized(theirs.eval())
    ours = build("softmax", pattern).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours, theirs


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("pattern", ["noncausal self", "causal self"])
def test_softmax_self_attention_is_fairseqs(pattern: str) -> None:
    ours, theirs = fairseq_pair(pattern)
    x, padding_mask = random(9), mask(9, [(0, 2), (0, 3), (0, 0)])
    arguments = {
        "key_padding_mask": padding_mask,
        "attn_mask": future(9).double() if pattern == "causal self" else None,
    }
    torch.testing.assert_close(ours(x, x, x, **arguments)[0], theirs(x, x, x, **arguments)[0])


@pytest.mark.parametrize("pattern", ["noncausal cross", "causal cross"])
def test_softmax_cross_attention_is_fairseqs_and_so_are_its_weights(pattern: str) -> None:
    ours, theirs = fairseq_pair(pattern)
    x, source, padding_mask = random(7), random(9, SOURCE_WIDTH), mask(9, SOURCE)
    for need_weights in (False, True):
        arguments = {"key_padding_mask": padding_mask, "need_weights": need_weights}
        out, weights = ours(x, source, source, **arguments)
        expected, expected_weights = theirs(x, source, source, **arguments)
        torch.testing.assert_close(out, expected, atol=FAIRSEQS_SOFTMAX, rtol=FAIRSEQS_SOFTMAX)
        if need_weights:
            assert weights.shape == (BATCH, 7, 9)
            torch.testing.assert_close(
                weights, expected_weights.to(weights), atol=FAIRSEQS_SOFTMAX, rtol=FAIRSEQS_SOFTMAX
            )
        else:
            assert weights is None


@pytest.mark.parametrize("pattern", ["causal self", "causal cross"])
def test_incremental_softmax_attention_is_fairseqs(pattern: str) -> None:
    ours, theirs = fairseq_pair(pattern)
    x, source, padding_mask = random(7), random(9, SOURCE_WIDTH), mask(9, SOURCE)
    states: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for word in x.split(1):
        key, arguments = word, {}
        if pattern == "causal cross":
            key, arguments = source, {"key_padding_mask": padding_mask, "static_kv": True, "need_weights": True}
        (out, weights), (expected, expected_weights) = (
            attention(word, key, key, incremental_state=state, **arguments)
            for attention, state in zip((ours, theirs), states, strict=True)
        )
        torch.testing.assert_close(out, expected, atol=FAIRSEQS_SOFTMAX, rtol=FAIRSEQS_SOFTMAX)
        if pattern == "causal cross":
            torch.testing.assert_close(
                weights, expected_weights.to(weights), atol=FAIRSEQS_SOFTMAX, rtol=FAIRSEQS_SOFTMAX
            )


@pytest.mark.parametrize(
    ("name", "more"),
    {
        "amlp_pquery": 24_768,  # Table 3 of the AMLP paper: + 0.30M for 12 of them
        "amlp_cov": 2 * 8 * 16 * 64 + 3 * 8 + 2 * 64,
        "abc": 2 * 16 * 64,
        "xca": 8,
        **dict.fromkeys(("local", "linear", "performer", "cosformer"), 0),
    }.items(),
)
def test_parameters_beyond_those_of_softmax_attention(name: str, more: int) -> None:
    def count(name: str) -> int:
        layer = build(name, "noncausal self", heads=8, width=512, attention_inner_dim=16)
        return sum(parameter.numel() for parameter in layer.parameters())

    assert count("softmax") == 4 * 512 * 513
    assert count(name) - count("softmax") == more


def test_directions_of_performer_are_gaussian_orthogonal_and_kept() -> None:
    count, width = 40_000, 4
    layer = build("performer", "noncausal self", attention_inner_dim=count)
    directions = layer.state_dict()["directions"]
    assert directions.shape == (count, width)
    blocks = directions.unflatten(0, (-1, width))
    products = blocks @ blocks.mT
    squares = products.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(
        products, torch.diag_embed(squares), atol=1e-4, rtol=0
    )  # made in float32, squares up to 30
    # The features are those of the softmax kernel only if all directions are equally likely. Six standard deviations.
    torch.testing.assert_close(directions.mean(dim=0), torch.zeros(width), atol=0.03, rtol=0)
    torch.testing.assert_close(directions.T.cov(), torch.eye(width), atol=0.05, rtol=0)
    assert squares.var().item() == pytest.approx(2 * width, rel=0.1)


@pytest.mark.parametrize("pattern", ["noncausal self", "noncausal cross"])
def test_performer_with_many_features_is_near_softmax_attention(pattern: str) -> None:
    features, inputs = 16_384, 0.25  # the smaller the queries and keys, the fewer features it takes
    layers = {name: build(name, pattern, attention_inner_dim=features).double() for name in ("performer", "softmax")}
    with torch.no_grad():
        for projection in (layers["softmax"].q_proj, layers["softmax"].k_proj):
            projection.weight *= inputs
    layers["performer"].load_state_dict(layers["softmax"].state_dict(), strict=False)
    x = random(9)
    source = random(7, SOURCE_WIDTH) if pattern == "noncausal cross" else x
    outputs = {name: layer(x, source, source)[0] for name, layer in layers.items()}
    expected = outputs["softmax"]
    average = layers["softmax"].out_proj(layers["softmax"].v_proj(source).mean(dim=0))
    assert (average - expected).norm() > 0.05 * expected.norm()  # it is no mere average
    assert (outputs["performer"] - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize(
    ("name", "plain", "pattern"),
    [
        (name, plain, pattern)
        for name, plain in (("general", "softmax"), ("local", "local"), ("local_p", "local_p"))
        for pattern in ATTENTIONS[name].patterns
    ],
)
def test_general_starts_as_the_scaled_dot_product(name: str, plain: str, pattern: str) -> None:
    ours, theirs = build(name, pattern, local_similarity="general").double(), build(plain, pattern).double()
    x, source = random(7), random(9, SOURCE_WIDTH) if pattern.endswith("cross") else random(7)
    theirs.load_state_dict({name: value for name, value in ours.state_dict().items() if name != "w_a.weight"})
    torch.testing.assert_close(ours(x, source, source)[0], theirs(x, source, source)[0])


@pytest.mark.parametrize("name", ["concat", "general", "local_p"])
def test_weights_are_those_of_the_output(name: str) -> None:
    """With one head, values that are the identity, and no output projection."""
    layer = randomized(build(name, "causal cross", heads=1, encoder_embed_dim=WIDTH, attention_window=4))
    x = random(5)
    for projection in (layer.v_proj, layer.out_proj):
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    source = torch.eye(WIDTH, dtype=torch.float64).unsqueeze(1).repeat(1, BATCH, 1)
    out, weights = layer(x, source, source, need_weights=True)
    torch.testing.assert_close(weights.transpose(0, 1), out)
    torch.testing.assert_close(layer(x, source, source)[0], out)
