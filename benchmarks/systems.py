"""The systems of benchmarks/decoding.py: models with random weights as fairseq-train builds them, and their engines."""

import warnings
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.nat import FairseqNATModel
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from torch import nn

from amlp_fairseq.models.cmlmc import CMLMCTransformerModel
from amlp_fairseq.models.interleaved_decoder import IBDecoderModel
from amlp_fairseq.models.plugin_transformer import PluginTransformerModel
from amlp_fairseq.models.signed_positions import SignedSinusoidalPositionalEmbedding
from benchmarks.ctranslate2_engine import CTranslate
from benchmarks.engines import Drafts, Engine, Ours, Rescored, Stock, for_inference


@dataclass(frozen=True)
class System:
    """A model with random weights.

    Attributes:
        engine: its decoder.
        arch: its architecture.
        options: of fairseq-train, besides the sizes; ``{kernels}`` becomes a list with a width for each layer.
        encoder_depth: layers of the encoder, in multiples of ``--layers``.
        decoder_layers: of the decoder, if not ``--layers``.
        like: the stock system whose weights and depth it has.
    """

    engine: type[Engine]
    arch: str = "transformer_wmt_en_de"
    options: str = ""
    encoder_depth: int = 1
    decoder_layers: int | None = None
    like: str | None = None


def _interleaved(h: int, c: int, engine: type[Engine] = Ours, options: str = "", **depth: Any) -> System:
    given = f"--num-directions {h} --words-per-direction {c} {options}"
    return System(engine, "ibdecoder_wmt_en_de", given.strip(), **depth)


def _ssru(**depth: Any) -> System:
    return System(Ours, "plugin_transformer_wmt_en_de", SSRU, **depth)


SSRU = "--decoder-self-attention-type ssru"


#: student: a decoder of 2 layers; tiny: of 1; deep: 12 layers in the encoder and 1 in the decoder, where --layers is 6.
SYSTEMS = {
    "transformer": System(Stock),
    "transformer-student": System(Stock, decoder_layers=2),
    "transformer-deep": System(Stock, encoder_depth=2, decoder_layers=1),
    "ctranslate2": System(CTranslate, like="transformer"),
    "ctranslate2-student": System(CTranslate, like="transformer-student"),
    "ctranslate2-deep": System(CTranslate, like="transformer-deep"),
    "ar": _interleaved(1, 1, like="transformer"),
    "ar-student": _interleaved(1, 1, like="transformer-student"),
    "ar-deep": _interleaved(1, 1, like="transformer-deep"),
    "ibdecoder": _interleaved(2, 1),
    "ibdecoder-student": _interleaved(2, 1, decoder_layers=2),
    "ibdecoder-sa": _interleaved(2, 2),
    "ibdecoder-rescored": _interleaved(2, 1, Rescored),
    "ibdecoder-sa-rescored": _interleaved(2, 2, Rescored),
    "ibdecoder-sa-student": _interleaved(2, 2, decoder_layers=2),
    "cmlm": System(Stock, "cmlm_transformer_wmt_en_de"),
    "cmlmc": System(Ours, "cmlmc_transformer_wmt_en_de"),
    "cmlmc-amlp": System(Ours, "cmlmc_amlp_wmt_en_de"),
    "ar-drafts": System(Drafts, "ibdecoder_wmt_en_de", "--num-directions 1", like="transformer"),
    "aan": System(Ours, "aan_transformer_wmt_en_de"),
    "aan-no-ffn": System(Ours, "aan_transformer_wmt_en_de", "--no-average-ffn"),
    "ssru": _ssru(),
    "ssru-student": _ssru(decoder_layers=2),
    "ssru-tiny": _ssru(decoder_layers=1),
    "ibdecoder-ssru-student": _interleaved(2, 1, options=SSRU, decoder_layers=2),
    "dynamicconv": System(
        Ours, "triton_dynamicconv", "--encoder-kernel-size-list {kernels} --decoder-kernel-size-list {kernels}"
    ),
}


def engine_of(model: type) -> type[Engine]:
    """The engine for a class of models, apart from CTranslate2."""
    return Ours if issubclass(model, (PluginTransformerModel, CMLMCTransformerModel)) else Stock


def task_of(model: type) -> str:
    """The task that trains a class of models."""
    if issubclass(model, IBDecoderModel):
        return "translation_interleaved"
    if issubclass(model, FairseqNATModel):
        return "translation_cmlmc" if issubclass(model, CMLMCTransformerModel) else "translation_lev"
    return "translation"


class Built(NamedTuple):
    """A model and its task; ``cfg`` are the options of fairseq-train."""

    model: Any
    task: Any
    cfg: Any = None


class Workshop:
    """Builds the models of systems, each once; systems that are ``like`` another get its weights.

    Args:
        args: sizes and device.
        source: source dictionary.
        target: target dictionary.
        systems: by name.
    """

    def __init__(
        self, args: Namespace, source: Dictionary, target: Dictionary, systems: Mapping[str, System] = SYSTEMS
    ) -> None:
        self.args, self.source, self.target, self.systems = args, source, target, systems
        self.models: dict[str, Built] = {}

    def words(self, system: System) -> list[str]:
        """The options of fairseq-train."""
        args, depth = self.args, self.systems[system.like] if system.like else system
        kernels = str([*[3, 7, 15][: args.layers], *[31] * (args.layers - 3)]).replace(" ", "")
        words = ["DATA", "--task", task_of(ARCH_MODEL_REGISTRY[system.arch]), "--arch", system.arch]
        words += ["--criterion", "label_smoothed_cross_entropy", *system.options.format(kernels=kernels).split()]
        layers = {"encoder": args.layers * depth.encoder_depth, "decoder": depth.decoder_layers or args.layers}
        for side, count in layers.items():
            words += [f"--{side}-layers", str(count), f"--{side}-attention-heads", str(args.heads)]
            words += [f"--{side}-embed-dim", str(args.embed_dim), f"--{side}-ffn-embed-dim", str(args.ffn_embed_dim)]
        # The architectures' own dropout differs; it counts in training.
        return [*words, "--dropout", "0.1", "--attention-dropout", "0.1"]

    def new(self, name: str) -> Built:
        """A model in the state in which fairseq-train starts to train it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hydra's
            parsed = options.parse_args_and_arch(options.get_training_parser(), self.words(self.systems[name]))
            cfg = convert_namespace_to_omegaconf(parsed)
        task = TASK_REGISTRY[cfg.task._name](cfg.task, self.source, self.target)
        torch.manual_seed(1)
        return Built(task.build_model(cfg.model), task, cfg)

    def built(self, name: str) -> Built:
        """A model prepared for inference."""
        system = self.systems[name]
        if name not in self.models and system.engine is CTranslate:
            assert system.like is not None
            self.models[name] = self.built(system.like)
        elif name not in self.models:
            model, task, _ = self.new(name)
            self.untrained(model)
            if system.like is not None:
                order = {"decoder.interleaving": model.decoder.interleaving}
                model.load_state_dict({**self.built(system.like).model.state_dict(), **order})
            self.models[name] = Built(for_inference(model, self.args.device), task)
        return self.models[name]

    @torch.no_grad()
    def untrained(self, model: Any) -> None:
        """Make an untrained model write words that differ, and no special symbols."""
        words, projection = self.target, model.decoder.output_projection.weight
        nn.init.normal_(projection, std=3 * projection.size(1) ** -0.5)
        projection[: words.nspecial] = 0
        if type(model) is TransformerModel:  # stock: starts as an ibdecoder does, with nothing, at position 0
            model.decoder.embed_tokens.weight[words.eos()] = 0
            table = model.decoder.embed_positions.weights[words.pad() + 1 :]
            table.copy_(SignedSinusoidalPositionalEmbedding(table.size(1))(torch.arange(len(table))))


def random_words(count: int, words: Dictionary) -> list[int]:
    """Ids of so many words."""
    return torch.randint(words.nspecial, len(words), (count,)).tolist()
