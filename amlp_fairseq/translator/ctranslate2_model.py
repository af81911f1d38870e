"""Autoregressive Transformers as models of CTranslate2."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2.converters.fairseq as fairseq_converter
import torch
from ctranslate2.converters import Converter
from ctranslate2.specs.transformer_spec import TransformerSpec
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask

from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY, GenerationConfig
from amlp_fairseq.model_folder.config import DISABLED, read_config
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.translator import Translator

#: Its activations, by fairseq's names.
ACTIVATIONS = fairseq_converter._SUPPORTED_ACTIVATIONS
#: The only attention that CTranslate2 has.
SOFTMAX = "softmax"


class InMemory(Converter):
    """CTranslate2's converter for fairseq's Transformers, for one that is loaded.

    Args:
        model: a Transformer of fairseq, or ``plugin_transformer`` with softmax attention, on the CPU.
        task: its translation task.

    Raises:
        ValueError: for a model that CTranslate2 has not; says why.
    """

    def __init__(self, model: BaseFairseqModel, task: FairseqTask) -> None:
        if not isinstance(model, TransformerModelBase) or hasattr(model, "initialize_output_tokens"):
            raise ValueError(f"CTranslate2 has no {type(model).__name__}: only autoregressive Transformers")
        cfg = model.cfg
        kinds = [str(getattr(cfg, f"{name}_attention_type", None) or SOFTMAX) for name in _ATTENTIONS]
        order = getattr(task, "order", None)
        if order is not None and not order.left_to_right:
            raise ValueError("CTranslate2 writes from left to right, one word a step; this model does not")
        if set(kinds) != {SOFTMAX}:
            raise ValueError(f"CTranslate2 has softmax attention only; this model has {', '.join(kinds)}")
        if lacking := _lacking(model):
            raise ValueError(f"CTranslate2 has nothing for {', '.join(lacking)}")
        first = [side.layers[0] for side in (model.encoder, model.decoder)]
        if len({(layer.normalize_before, layer.self_attn.num_heads) for layer in first}) > 1:
            raise ValueError(
                "CTranslate2 needs encoder and decoder to have the same normalize-before and attention-heads"
            )
        self.model, self.task = model, task

    def _load(self) -> Any:
        model, cfg = self.model, self.model.cfg
        layer = model.encoder.layers[0]
        spec = TransformerSpec.from_config(
            (len(model.encoder.layers), len(model.decoder.layers)),
            layer.self_attn.num_heads,
            pre_norm=layer.normalize_before,
            activation=ACTIVATIONS[str(cfg.activation_fn)],
            layernorm_embedding=cfg.layernorm_embedding,
        )
        fairseq_converter.set_transformer_encoder(spec.encoder, model.encoder)
        fairseq_converter.set_transformer_decoder(spec.decoder, model.decoder)
        spec.register_source_vocabulary(fairseq_converter._get_vocab(self.task.source_dictionary))
        spec.register_target_vocabulary(fairseq_converter._get_vocab(self.task.target_dictionary))
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec


_ATTENTIONS = ("encoder_self", "decoder_self", "decoder_cross")


def _lacking(model: BaseFairseqModel) -> list[str]:
    """Options with which a Transformer is another one than CTranslate2's."""
    cfg, decoder, activation = model.cfg, model.decoder, str(model.cfg.activation_fn)
    options = {
        f"--activation-fn {activation} (it has {', '.join(ACTIVATIONS)})": activation not in ACTIVATIONS,
        "--encoder-layers 0": not len(model.encoder.layers),
        "--decoder-layers 0": not len(decoder.layers),
        "--decoder-output-dim that is not --decoder-embed-dim": decoder.project_out_dim is not None,
        "--no-token-positional-embeddings": decoder.embed_positions is None,
        "--no-decoder-final-norm": decoder.layer_norm is None and any(each.normalize_before for each in decoder.layers),
        "--adaptive-softmax-cutoff": decoder.adaptive_softmax is not None,
        "--no-cross-attention": getattr(cfg, "no_cross_attention", False),
        "--cross-self-attention": getattr(cfg, "cross_self_attention", False),
        "--quant-noise-pq": decoder.quant_noise is not None,
    }
    return [option for option, given in options.items() if given]


def convert(model: BaseFairseqModel, task: FairseqTask, out: Path, quantization: str | None = None) -> None:
    """Write a model of CTranslate2, with the vocabulary map of the task's shortlist, if it has one; see
    :class:`InMemory`."""
    shortlist = task.shortlist() if has_shortlist(task) else None
    with torch.no_grad(), TemporaryDirectory() as work:
        vmap = Path(work, "vmap.txt")
        if shortlist is not None:
            shortlist.write_vmap(vmap, task.source_dictionary.symbols, task.target_dictionary.symbols)
        of_list = {} if shortlist is None else {"vmap": str(vmap)}
        InMemory(model, task).convert(str(out), quantization=quantization, **of_list)


def has_shortlist(task: FairseqTask) -> bool:
    return getattr(task.cfg, "shortlist", None) is not None


#: Decoding options that its search obeys as the plugin's does, and those that do not change the best words.
OBEYED = frozenset(
    "beam lenpen unnormalized length_penalty max_len_b nbest print_alignment decode_dtype cuda_graphs draft draft_path "
    "draft_file draft_words words_after_end no_seed_provided no_beamable_mm "
    "repetition_penalty shortlist".split()
)
#: Further ones where only the likeliest word matters: CTranslate2 divides the probability of words that may not be
#: written among the others.
OBEYED_GREEDILY = frozenset({"min_len", "no_repeat_ngram_size", "temperature", "finished"})
#: With a length penalty of 0 its search ends earlier than the plugin's.
NO_PENALTY = 1e-6
#: Factor of GNMT's exponent: ((5 + n) / 6)^a grows as n^(a n / (5 + n)), with some 20 pieces as n^(0.8 a).
GNMT_SHARE = 0.8


def search_options(translator: Translator) -> dict[str, Any]:
    """The settings with which ``exported_program.py`` writes the words that a model folder writes: among them the
    options of ``translate_batch``.

    Raises:
        ValueError: for decoding options that CTranslate2 lacks.
    """
    generation, task = translator.pytorch().cfg.generation, translator.pytorch().task.cfg
    of_task = TASK_DATACLASS_REGISTRY[task._name].__dataclass_fields__
    obeyed = OBEYED | (OBEYED_GREEDILY if generation.beam == 1 else frozenset())
    lacking = {}
    for name in sorted(decoding_options.known(task._name) - decoding_options.OWN - obeyed):
        config, fields = (task, of_task) if name in of_task else (generation, GenerationConfig.__dataclass_fields__)
        value, default = getattr(config, name), fields[name].default
        if value != default:
            lacking[f"--{name.replace('_', '-')}"] = (value, DISABLED.get(name, default))
    if lacking:
        raise ValueError(
            f"CTranslate2 would not write the same words with {_words(lacking, 0)}: make a folder without "
            f"(amlp-fairseq package {translator.folder} --out DIR {_words(lacking, 1)})"
        )
    greedy, gnmt = generation.beam == 1, str(getattr(task, "length_penalty", "fairseq")) == "gnmt"
    penalty = 0.0 if generation.unnormalized else float(generation.lenpen)
    gnmt = gnmt and penalty != 0 and not greedy
    return {
        "languages": translator.languages,
        "text": read_config(translator.folder)["text"],
        "longest_source": translator.max_length,
        "gnmt_penalty": penalty if gnmt else None,
        "translate_batch": {
            "beam_size": generation.beam,
            "length_penalty": (GNMT_SHARE * penalty if gnmt else penalty) or NO_PENALTY,
            "num_hypotheses": generation.beam if gnmt else 1,
            "return_scores": gnmt,
            "min_decoding_length": generation.min_len,
            "max_decoding_length": min(generation.max_len_b, translator.pytorch().model.max_decoder_positions() - 1)
            + 1,
            "no_repeat_ngram_size": generation.no_repeat_ngram_size,
            "repetition_penalty": float(getattr(task, "repetition_penalty", 1.0)),
            "max_input_length": 0,
            "max_batch_size": translator.max_tokens,
            "batch_type": "tokens",
            "use_vmap": has_shortlist(translator.pytorch().task),
        },
    }


def _words(options: Mapping[str, tuple[Any, Any]], which: int) -> str:
    return " ".join(f"{flag} {shlex.quote(str(values[which]))}" for flag, values in options.items())
