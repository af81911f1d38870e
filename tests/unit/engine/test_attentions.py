"""The engine's attentions, each by itself and in models, beside PyTorch."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_parallel_decoder
import tolerance
import torch
import toy
from fairseq.dataclass import ChoiceEnum
from test_engine import SOURCES, WORDS, built, near, reference, settings
from torch import Tensor, nn

from amlp_fairseq.attention.registry import ATTENTIONS, attention_options
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.engine import isa
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.model import RefinementOptions
from amlp_fairseq.models.description import describe, describe_attention

#: Widths that are no whole vectors.
WIDTH, SOURCE_WIDTH, HEADS = 24, 20, 4
LENGTHS, SOURCE_LENGTHS = [7, 1, 12, 3], [5, 9]
#: Of each decoding step the rows which its rows continue.
PARENTS = [[0, 0, 0], [0, 0, 2, 1], [3, 1], [0, 0, 1], [2, 2, 0, 1], [3]]
#: Options besides the defaults.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "average": [{"no_average_ffn": True}, {"no_average_gate": True}, {"no_average_ffn": True, "no_average_gate": True}],
    "light_conv": [
        {"encoder_glu": 0, "decoder_glu": 0, "encoder_conv_dim": 28, "decoder_conv_dim": 18, "decoder_conv_heads": 3}
    ],
    "dynamic_conv": [
        {"encoder_glu": 0, "decoder_glu": 0, "encoder_kernel_size_list": [4], "decoder_kernel_size_list": [2]},
        *(
            {"weight_normalization": name}
            for name in ("none", "sigmoid", "tanh", "l1", "l2", "power", "abs", "abs-l1", "abs-l2")
        ),
    ],
    "local": [{"attention_window": 4}, {"attention_window": 2}, {"local_similarity": "general"}],
    "amlp_cov": [
        {"amlp_scale": "none", "no_amlp_normalize": True, "no_amlp_output_norm": True},
        {"amlp_published_contraction": True, "no_amlp_temperature": True},
        {"amlp_activation": "relu"},
    ],
    "amlp_pquery": [
        {"amlp_scale": "all", "amlp_ema_bias_correction": True, "no_amlp_output_norm": True},
        {"amlp_scale": "sqrt"},
    ],
    "ssru": [{"one_direction": False}],
}
#: What the engine has, but for some patterns.
HERE = {"softmax", "average", "light_conv", "dynamic_conv", "abc", "local", "amlp_cov", "amlp_pquery", "ssru"}
NOT_HERE = {("amlp_cov", "causal self"), ("amlp_cov", "causal cross"), ("local", "causal cross")}
CASES = [
    (name, pattern, options)
    for name, attention in ATTENTIONS.items()
    for pattern in attention.patterns
    for options in [{}, *VARIANTS.get(name, [])]
]
INT8_CASES = [
    (name, pattern)
    for name, pattern, options in CASES
    if not options and name in HERE and (name, pattern) not in NOT_HERE
]


def layer_of(name: str, pattern: str, words: int = 1, one_direction: bool = True, **options: Any) -> Any:
    """A random attention in eval mode; the words of a step are of one direction, or each is of its own."""
    sizes = {"ffn_embed_dim": 40, "attention_heads": HEADS, "layers": 1, "kernel_size_list": [5]}
    side = "encoder" if pattern == "noncausal self" else "decoder"
    given: dict[str, Any] = {
        **{name: value for encoder in (True, False) for name, value in vars(attention_options(encoder)()).items()},
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()},
        "encoder_embed_dim": WIDTH if side == "encoder" else SOURCE_WIDTH,
        "decoder_embed_dim": WIDTH,
        "activation_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_inner_dim": 3,
        "amlp_ema_beta": 0.5,
        "max_source_positions": 64,
        "max_target_positions": 64,
    }
    torch.manual_seed(1)
    layer = ATTENTIONS[name](
        AttentionSpec(Namespace(**given | options), side, 0, pattern, words, 1 if one_direction else words)
    ).eval()
    for parameter_name, parameter in layer.named_parameters():  # biases, norms and temperatures are otherwise 0 and 1
        if parameter.dim() < 2 or parameter_name == "temperature":
            nn.init.uniform_(parameter, 0.5, 2.0)
    return layer


def arguments(layer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the engine takes for a layer; raises UnsupportedError."""
    return describe_attention(layer), {f"x.{name}": weight.numpy() for name, weight in layer.state_dict().items()}


def rows(count: int, width: int = WIDTH, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def starts(lengths: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()]


class Attention:
    """An attention, in the engine and in PyTorch, on texts of several lengths."""

    def __init__(self, name: str, pattern: str, words: int, options: dict[str, Any]) -> None:
        self.layer = layer_of(name, pattern, words, **options)
        self.pattern, self.words = pattern, words
        self.described = arguments(self.layer)
        self.texts = rows(sum(LENGTHS)).split(LENGTHS)
        self.sources = rows(sum(SOURCE_LENGTHS), SOURCE_WIDTH, 1).split(SOURCE_LENGTHS)
        self.steps = [rows(len(parents) * words, seed=2 + step) for step, parents in enumerate(PARENTS)]

    def engine(self, library: ModuleType, int8: bool = False, threads: int = 1) -> np.ndarray[Any, Any]:
        """All outputs, (…, C)."""
        if self.pattern == "causal self":
            inputs = [step.numpy() for step in self.steps]
            found = library.attention_steps(*self.described, int8, inputs, PARENTS, self.words, threads)
            return np.concatenate(found)
        texts = torch.cat(self.texts).numpy()
        if self.pattern == "noncausal self":
            return library.full_attention(*self.described, int8, texts, starts(LENGTHS), False, threads)
        sources = torch.cat(self.sources).numpy(), starts(SOURCE_LENGTHS)
        return library.cross_attention(*self.described, int8, texts, starts(LENGTHS), *sources, threads)

    @torch.no_grad()
    def pytorch(self, layer: Any) -> Tensor:
        """The same of a copy of the layer, one text at a time."""
        kind = next(layer.parameters(), torch.empty(0)).dtype
        if self.pattern == "causal self":
            return torch.cat([self.decoded(layer, path.to(kind))[-self.words :] for path in self._paths()])
        if self.pattern == "noncausal self":
            results = [layer(x, x, x)[0] for x in (text.unsqueeze(1).to(kind) for text in self.texts)]
        else:
            each = len(LENGTHS) // len(SOURCE_LENGTHS)
            pairs = [(text, self.sources[index // each]) for index, text in enumerate(self.texts)]
            results = [
                layer(x, source, source)[0]
                for x, source in ((text.unsqueeze(1).to(kind), source.unsqueeze(1).to(kind)) for text, source in pairs)
            ]
        return torch.cat(results).squeeze(1)

    def alone(self, library: ModuleType, int8: bool) -> np.ndarray[Any, Any]:
        """The engine's outputs, one text at a time, or one hypothesis."""
        if self.pattern == "causal self":
            results = []
            for path in self._paths():
                steps = [step.numpy() for step in path.split(self.words)]
                parents = [[0]] * len(steps)
                results.append(library.attention_steps(*self.described, int8, steps, parents, self.words, 1)[-1])
            return np.concatenate(results)
        results = []
        each = len(LENGTHS) // len(SOURCE_LENGTHS)
        for index, text in enumerate(self.texts):
            x, span = text.numpy(), [0, len(text)]
            source = self.sources[index // each]
            if self.pattern == "noncausal self":
                results.append(library.full_attention(*self.described, int8, x, span, False, 1))
            else:
                pair = source.numpy(), [0, len(source)]
                results.append(library.cross_attention(*self.described, int8, x, span, *pair, 1))
        return np.concatenate(results)

    def _paths(self) -> list[Tensor]:
        """The inputs of each row of each step, from the first step on."""
        paths: list[Tensor] = []
        last: list[Tensor] = []
        for step, (inputs, parents) in enumerate(zip(self.steps, PARENTS, strict=True)):
            new = inputs.split(self.words)
            last = [
                torch.cat([*(last[parent : parent + 1] if step else []), x])
                for parent, x in zip(parents, new, strict=True)
            ]
            paths += last
        return paths

    def decoded(self, layer: Any, path: Tensor) -> Tensor:
        """The outputs of causal attention."""
        x, steps = path.unsqueeze(1), torch.arange(len(path)) // self.words
        bias = torch.zeros(len(path), len(path), dtype=path.dtype).masked_fill(steps > steps.unsqueeze(1), -torch.inf)
        result: Tensor = layer(x, x, x, attn_mask=bias)[0].squeeze(1)
        return result


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
def test_an_attention_is_pytorchs_or_not_there(
    name: str, pattern: str, options: dict[str, Any], library: ModuleType
) -> None:
    """And does not depend on what is beside it, or on threads."""
    for words in (1, 2, 3) if pattern == "causal self" and name != "cnn" else (1,):
        try:
            attention = Attention(name, pattern, words, options)
        except UnsupportedError:
            assert options or name not in HERE or (name, pattern) in NOT_HERE
            return
        assert name in HERE
        bound = tolerance.measured(attention.layer, attention.pytorch)
        found = attention.engine(library)
        torch.testing.assert_close(torch.from_numpy(found), attention.pytorch(attention.layer), atol=bound, rtol=0)
        for int8 in (False, True):
            found = attention.engine(library, int8)
            assert (found == attention.engine(library, int8, threads=3)).all()
            assert (found == attention.alone(library, int8)).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name, pattern, options in CASES if pattern == "causal self" and name in HERE and not options],
)
def test_causal_attention_of_whole_texts(name: str, options: dict[str, Any], library: ModuleType) -> None:
    """RePos, in decoders that write all words at a time."""
    if (name, "causal self") in NOT_HERE:
        return
    attention = Attention(name, "causal self", 1, options)
    texts = torch.cat(attention.texts).numpy(), starts(LENGTHS)

    @torch.no_grad()
    def pytorch(layer: Any) -> Tensor:
        kind = next(layer.parameters()).dtype
        return torch.cat([attention.decoded(layer, text.to(kind)) for text in attention.texts])

    found = library.full_attention(*attention.described, False, *texts, True, 1)
    bound = tolerance.measured(attention.layer, pytorch)
    torch.testing.assert_close(torch.from_numpy(found), pytorch(attention.layer), atol=bound, rtol=0)
    for int8 in (False, True):
        found = library.full_attention(*attention.described, int8, *texts, True, 3)
        alone = [
            library.full_attention(*attention.described, int8, text.numpy(), [0, len(text)], True, 1)
            for text in attention.texts
        ]
        assert (found == np.concatenate(alone)).all()


class Int8(nn.Module):
    """A linear map as the engine computes it: weights and inputs are rounded to steps of the rows' largest magnitudes.

    Args:
        linear: in float32.
        steps: of the inputs from 0 to the largest magnitude.
        shift: how far a rounding may be off, in steps.
    """

    def __init__(self, linear: nn.Linear, steps: int, shift: int) -> None:
        super().__init__()
        scales = linear.weight.abs().amax(dim=1, keepdim=True) / 127
        self.weight = nn.Parameter((linear.weight / scales).round() * scales)
        self.bias, self.steps, self.shift = linear.bias, steps, shift

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(dim=-1, keepdim=True)
        units = (x / largest * self.steps).round() + torch.randint(-self.shift, self.shift + 1, x.shape)
        result: Tensor = nn.functional.linear(units * largest / self.steps, self.weight, self.bias)
        return result


def int8(layer: Any, library: ModuleType, shift: int = 0) -> Any:
    """The attention with ``Int8`` as its maps."""
    torch.manual_seed(shift)
    for name, module in [*layer.named_modules()]:
        if isinstance(module, nn.Linear) and name not in ("k_control", "v_control"):  # of ABC, which stay float32
            parent = layer.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], Int8(module, library.INT8_INPUT_STEPS // 2, shift))
    return layer


@pytest.mark.parametrize(("name", "pattern"), INT8_CASES)
def test_int8_is_as_near_as_its_steps(name: str, pattern: str, library: ModuleType) -> None:
    """Inputs of a second map differ in their last bits, so that some are rounded to the next step: less than where
    every input may be."""
    attention = Attention(name, pattern, 2 if pattern == "causal self" else 1, {})
    expected = attention.pytorch(int8(copy.deepcopy(attention.layer), library))
    shifted = [attention.pytorch(int8(copy.deepcopy(attention.layer), library, shift=1)) for _ in range(3)]
    bound = float(max((each - expected).abs().max() for each in shifted))
    found = torch.from_numpy(attention.engine(library, int8=True))
    torch.testing.assert_close(found, expected, atol=bound, rtol=0)


@pytest.mark.parametrize(("name", "pattern"), INT8_CASES)
def test_weights_of_another_size_or_missing(name: str, pattern: str) -> None:
    attention = Attention(name, pattern, 1, {})
    description, weights = attention.described
    for weight in weights:
        for others in (
            {**weights, weight: weights[weight][:-1]},
            {key: weights[key] for key in weights if key != weight},
        ):
            if weight not in others and weight.endswith("bias") and "norm" not in weight:
                continue  # maps may do without
            attention.described = description, others
            with pytest.raises(ValueError, match=r"another size|has no weights named"):
                attention.engine(isa.library())


@pytest.mark.parametrize(("name", "pattern"), INT8_CASES)
def test_descriptions_that_are_wrong(name: str, pattern: str) -> None:
    attention = Attention(name, pattern, 1, {})
    description, weights = attention.described
    for key, value in description.items():
        for wrong in {int: ("x", None, -1, 2**62, 2**70), bool: ("x", [])}.get(type(value), ("x", None)):
            attention.described = {**description, key: wrong}, weights
            with pytest.raises(ValueError, match=r"wrong value|unknown|an attention with"):
                attention.engine(isa.library())
        attention.described = {other: value for other, value in description.items() if other != key}, weights
        with pytest.raises(ValueError, match=f"there is no {key}"):
            attention.engine(isa.library())


def test_a_decoder_does_not_see_words_that_it_has_not_written() -> None:
    task = toy.task(WORDS)
    model = toy.model(task, decoder_self_attention_type="local", decoder_kernel_size_list=[5])
    description, other = describe(model), layer_of("amlp_cov", "noncausal self")
    layer = description["decoder"]["layers"][1]
    layer["self_attention"] = {**describe_attention(other), "heads": 2}
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    sizes = {"c_q": (2, 3, 8), "c_k": (2, 3, 8), "temperature": (3, 2), "norm.weight": (8,), "norm.bias": (8,)}
    weights |= {f"decoder.layers.1.self_attn.{name}": np.ones(size, np.float32) for name, size in sizes.items()}
    with pytest.raises(ValueError, match="step by step"):
        isa.library().Engine(description, weights, False)


MODELS: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((1, 1), {"decoder_self_attention_type": "average", "encoder_self_attention_type": "average"}),
    ((2, 1), {"decoder_self_attention_type": "average", "no_average_ffn": True}),
    ((2, 1), {"decoder_self_attention_type": "light_conv", "encoder_self_attention_type": "light_conv"}),
    ((2, 2), {"decoder_self_attention_type": "dynamic_conv", "encoder_self_attention_type": "dynamic_conv"}),
    ((2, 1), {f"{place}_attention_type": "abc" for place in ("encoder_self", "decoder_self", "decoder_cross")}),
    ((1, 1), {"decoder_self_attention_type": "local", "encoder_self_attention_type": "local"}),
    *((order, {"decoder_self_attention_type": "ssru"}) for order in ((1, 1), (2, 2), (4, 1))),
    ((1, 1), {"encoder_self_attention_type": "amlp_cov"}),
    ((4, 1), {"encoder_self_attention_type": "amlp_pquery", "decoder_self_attention_type": "local"}),
]


@pytest.mark.parametrize(("order", "options"), MODELS)
def test_models_search_as_in_pytorch(order: tuple[int, int], options: dict[str, Any]) -> None:
    """Hypotheses move while they are written."""
    task = toy.task(WORDS, num_directions=order[0], words_per_direction=order[1])
    sizes = {"encoder_kernel_size_list": [5], "decoder_kernel_size_list": [5]}
    network = toy.model(task, seed=sum(order), **sizes, **options)
    chosen = settings()
    found = built(isa.library(), network).search(SOURCES, chosen, 1)
    near(found, reference(network, task, chosen))


PLACES = [f"{place}_attention_type" for place in ("encoder_self", "decoder_self", "decoder_cross", "repos")]
PARALLEL: list[dict[str, Any]] = [
    dict.fromkeys(PLACES, "abc"),
    {**dict.fromkeys(PLACES[:3], "amlp_pquery"), "repos_attention_type": "abc"},
    {**dict.fromkeys(PLACES[:3], "amlp_cov"), "repos_attention_type": "average"},
    {**dict.fromkeys(PLACES, "local"), "attention_window": 5},
]


@pytest.mark.parametrize("options", PARALLEL)
def test_models_that_write_all_words_at_a_time(options: dict[str, Any]) -> None:
    """Candidates of several lengths attend to their source each by itself."""
    network, chosen = test_parallel_decoder.model(1, **options), RefinementOptions(4, 3)
    found = test_parallel_decoder.built(isa.library(), network).refine(test_parallel_decoder.SOURCES, vars(chosen), 1)
    expected = test_parallel_decoder.reference(network, chosen)
    assert [each.tokens for each in found] == [each["tokens"].tolist() for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(float(other["score"]), abs=20 * 2**-24 * 100)


def test_options_of_a_command_line_are_enums() -> None:
    """fairseq reads choices as an Enum; a description is JSON data."""
    choice = ChoiceEnum(["softmax", "none"])
    given = {"decoder_self_attention_type": "dynamic_conv", "weight_normalization": choice("softmax")}
    kernels = {"decoder_kernel_size_list": [3], "encoder_kernel_size_list": [3]}
    model = toy.model(toy.task(WORDS), **given, **kernels)
    assert json.loads(json.dumps(describe(model))) == describe(model)
