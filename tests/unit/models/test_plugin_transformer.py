"""Every option of fairseq's Transformer gives fairseq's results in ``plugin_transformer``, or is refused by name."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import pytest
import tolerance
import torch
import toy
from fairseq import utils
from fairseq.models import build_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.modules import FairseqDropout
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.decoding.step_decoder import Decoding
from amlp_fairseq.models.plugin_transformer import (
    PluginTransformerConfig,
    PluginTransformerModel,
    transformer_config,
)

pytestmark = pytest.mark.usefixtures("float64")

WORDS, LENGTH = 8, 6
BOTH = ("encoder", "decoder")
flags, rates, widths = st.booleans(), st.sampled_from([0.0, 0.25]), st.sampled_from([8, 12])
#: The options of fairseq's Transformer: those that are honoured and some of their values, …
HONOURED = {
    **{f"{side}_{name}": flags for side in BOTH for name in ("normalize_before", "learned_pos", "embed_path")},
    **{f"{side}_{name}": widths for side in BOTH for name in ("embed_dim", "ffn_embed_dim")},
    **{f"{side}_layers": st.integers(1, 2) for side in BOTH},
    **{f"{side}_attention_heads": st.sampled_from([1, 2, 4]) for side in BOTH},
    **dict.fromkeys(["dropout", "attention_dropout", "activation_dropout", "relu_dropout"], rates),
    **dict.fromkeys(["share_all_embeddings", "share_decoder_input_output_embed", "no_decoder_final_norm"], flags),
    **dict.fromkeys(["no_token_positional_embeddings", "no_scale_embedding", "layernorm_embedding"], flags),
    **dict.fromkeys(["max_source_positions", "max_target_positions"], st.sampled_from([12, 70])),
    "activation_fn": st.sampled_from(utils.get_available_activation_fns()),
    "decoder_output_dim": widths,
}
#: … those that change no result of fairseq's either, …
HARMLESS = {
    **dict.fromkeys(["checkpoint_activations", "offload_activations", "export", "tie_adaptive_proj"], flags),
    **dict.fromkeys(["decoder_input_dim", "min_params_to_wrap", "quant_noise_pq_block_size"], st.integers(1, 9)),
    **dict.fromkeys(["base_sublayers", "base_shuffle"], st.integers(0, 3)),
    **dict.fromkeys(["adaptive_softmax_dropout", "adaptive_softmax_factor"], st.sampled_from([0.5, 2.0])),
}
#: … and those that are refused: a value, and the only one that is not.
REFUSED: dict[str, tuple[Any, Any]] = {
    **{f"{side}_layerdrop": (0.1, 0) for side in BOTH},
    **{f"{side}_layers_to_keep": ("0,1", None) for side in BOTH},
    **{f"{side}_xformers_att_config": ("{}", None) for side in BOTH},
    **{f"quant_noise_{name}": (0.2, 0.0) for name in ("pq", "scalar")},
    **dict.fromkeys(["no_cross_attention", "cross_self_attention", "char_inputs"], (True, False)),
    **dict.fromkeys(["merge_src_tgt_embed", "adaptive_input", "tie_adaptive_weights"], (True, False)),
    "adaptive_softmax_cutoff": ([5, 9], None),
    "base_layers": (1, 0),
}
#: What fairseq's models read and TransformerConfig does not have; the last one is how hydra can have its options.
OTHERS: dict[str, tuple[Any, Any]] = {
    **{"alignment_heads": (1, None), "alignment_layer": (4, None)},
    **dict.fromkeys(["full_context_alignment", "src_embedding_copy"], (True, False)),
    **dict.fromkeys(["scale_attn", "scale_fc", "scale_heads", "scale_resids"], (True, False)),
    "encoder": ({"embed_dim": 8}, None),
}


def task() -> Any:
    return toy.task(WORDS, num_directions=1)


def refusal(name: str) -> str:
    value, only = {**REFUSED, **OTHERS}[name]
    return f"--{name.replace('_', '-')} {value} is not supported (only {only})"


def test_every_option_of_fairseqs_transformer_is_known() -> None:
    names = []
    for option in fields(TransformerConfig):
        parts = fields(option.type) if is_dataclass(option.type) else ()
        names += [f"{option.name}_{part.name}" for part in parts if part.name != "_name"] or [option.name]
    names.remove("_name")
    assert sorted([*HONOURED, *HARMLESS, *REFUSED]) == sorted(names)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Files with vectors of the words, by width."""
    folder = tmp_path_factory.mktemp("vectors")
    for width in (8, 12):
        lines = [f"w{i} " + " ".join(str(i + j / 16) for j in range(width)) for i in range(WORDS)]
        (folder / str(width)).write_text("\n".join([f"{WORDS} {width}", *lines]))
    return {width: str(folder / str(width)) for width in (8, 12)}


def possible(options: dict[str, Any], vectors: dict[int, str]) -> dict[str, Any]:
    """The options, changed where fairseq's Transformer fails with them."""
    if options["share_all_embeddings"]:
        options["decoder_embed_dim"] = options["encoder_embed_dim"]
        options["decoder_embed_path"] = False
    if options["share_all_embeddings"] or options["share_decoder_input_output_embed"]:
        options["decoder_output_dim"] = options["decoder_embed_dim"]
    for side in BOTH:
        options[f"{side}_embed_path"] = vectors[options[f"{side}_embed_dim"]] if options[f"{side}_embed_path"] else None
    return options


def stock_and_ours(options: dict[str, Any]) -> tuple[Any, Any]:
    """fairseq's Transformer and ours with the same random parameters, from what a checkpoint keeps of the options."""
    args = Namespace(**options)
    stock = TransformerModel.build_model(args, task()).eval()
    args._name = "plugin_transformer"
    ours = build_model(args, task()).eval()
    assert type(ours) is PluginTransformerModel
    for side in BOTH:
        if options[f"{side}_embed_path"]:
            mine, theirs = (getattr(model, side).embed_tokens.weight[4:] for model in (ours, stock))
            assert torch.equal(mine, theirs)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter.dim() == 1))
    ours.load_state_dict(stock.state_dict())
    return stock, ours


@torch.no_grad()
def assert_same_results(stock: Any, ours: Any) -> None:
    """Logits of whole targets, of the model's own steps and of the search's; and what is dropped in training."""
    words = torch.randint(4, 4 + WORDS, (3, LENGTH - 1), generator=torch.Generator().manual_seed(3))
    tokens = torch.cat([torch.full((3, 1), 2), words], dim=1)
    sources = toy.batch(toy.random_sources(3, WORDS), toy.dictionary(WORDS))["net_input"]
    padded = tokens.clone()
    padded[0, 3:] = 1
    one, other = (model(**sources, prev_output_tokens=padded)[0] for model in (ours, stock))
    torch.testing.assert_close(one, other, **tolerance.FLOAT32)
    expected, _ = stock(**sources, prev_output_tokens=tokens)
    encoder_out, state = ours.encoder(**sources), dict[str, Any]()
    run = InferenceModel(ours, None).begin(**sources, beam=1)
    assert isinstance(run, Decoding)
    for i in range(LENGTH):
        own, _ = ours.decoder(tokens[:, : i + 1], encoder_out=encoder_out, incremental_state=state)
        torch.testing.assert_close(own, expected[:, i : i + 1], **tolerance.FLOAT32)
        ready, _ = run.step(tokens[:, i : i + 1])
        torch.testing.assert_close(ready, expected[:, i : i + 1], **tolerance.FLOAT32)
    mine, theirs = (
        {name: part.p for name, part in model.named_modules() if isinstance(part, FairseqDropout)}
        for model in (ours, stock)
    )
    assert mine == theirs


@settings(deadline=None, max_examples=60)
@given(options=st.fixed_dictionaries({**HONOURED, **HARMLESS}))
def test_logits_are_stocks(options: dict[str, Any], vectors: dict[int, str]) -> None:
    assert_same_results(*stock_and_ours(possible(options, vectors)))


@settings(deadline=None)
@given(
    options=st.fixed_dictionaries({}, optional={**HONOURED, **HARMLESS}),
    names=st.lists(st.sampled_from([*REFUSED, *OTHERS]), min_size=1, unique=True),
)
def test_what_would_be_ignored_is_refused_by_name(options: dict[str, Any], names: list[str]) -> None:
    options |= {name: {**REFUSED, **OTHERS}[name][0] for name in names}
    for build in (build_model, PluginTransformerModel.build_model):
        with pytest.raises(ValueError, match="is not supported") as error:
            build(Namespace(_name="plugin_transformer", **options), task())
        assert sorted(str(error.value).split("; ")) == sorted(map(refusal, names))


def test_joined_projections_of_old_checkpoints_are_split() -> None:
    """As fairseq does: the oldest checkpoints have one ``in_proj_weight`` for queries, keys and values."""
    model, other = (
        toy.left_to_right(task(), PluginTransformerModel, PluginTransformerConfig, seed=seed) for seed in (1, 2)
    )
    state = model.state_dict()
    old = dict(state)
    for name in [name for name in state if ".q_proj." in name]:
        module, _, kind = name.split(".q_proj.")[0], *name.rpartition(".")[1:]
        parts = [old.pop(f"{module}.{projection}_proj.{kind}") for projection in "qkv"]
        old[f"{module}.in_proj_{kind}"] = torch.cat(parts)
    assert len(old) < len(state)
    other.load_state_dict(old)
    for name, value in other.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_checkpoint_from_before_an_option_has_its_default() -> None:
    """fairseq gives what a checkpoint holds, without what has come since."""
    values = {name: value for name, value in asdict(PluginTransformerConfig()).items() if name != "amlp_temperature"}
    saved = OmegaConf.create(values | {"max_source_positions": 9, "max_target_positions": 9})
    OmegaConf.set_struct(saved, True)
    assert transformer_config(saved, PluginTransformerConfig).options.amlp_temperature == 1.0
