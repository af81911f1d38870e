"""The systems of benchmarks/decoding.py: models as fairseq-train builds them, and one interface to all decoders."""

import copy
import json
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import sacremoses
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.iterative_refinement_generator import IterativeRefinementGenerator
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.nat import FairseqNATModel
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu import BLEU
from torch import nn

from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.decoding.cuda_graph_decoding import CudaGraphDecoder
from amlp_fairseq.decoding.cuda_graph_forward import CudaGraphForward
from amlp_fairseq.models.cmlmc import CMLMCTransformerModel
from amlp_fairseq.models.interleaved_decoder import IBDecoderModel
from amlp_fairseq.models.plugin_transformer import PluginTransformerModel
from amlp_fairseq.models.signed_positions import SignedSinusoidalPositionalEmbedding
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.drafts import ModelDrafter
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.speculative_decoding import SpeculativeDecoding
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask
from amlp_fairseq.training.data_folder import text_settings

TimedCall = Callable[[], Any]


@dataclass(frozen=True)
class Batch:
    """Sentences that are decoded together.

    Attributes:
        indices: which of the run's sentences these are.
        sources: the ids of their words.
        length: words that each is translated into where lengths are forced.
    """

    indices: list[int]
    sources: list[list[int]]
    length: int


class Engine(ABC):
    """A model in one precision with its decoding.

    Args:
        model: ready for inference, in float32.
        task: its dictionaries and order of generation.
        precision: one of PRECISIONS[device].
        args: device, threads, candidates of different lengths, and whether to use CUDA graphs where supported.
        forced: whether it writes as many words as the batch says, without candidates of different lengths; otherwise it
            decides on lengths itself.
    """

    #: Precisions by device.
    PRECISIONS: ClassVar[dict[str, tuple[str, ...]]]
    #: The beams at which stock fairseq finds the same words with the same weights.
    EXACT_BEAMS: ClassVar[tuple[int, ...]] = ()

    def __init__(self, model: Any, task: Any, precision: str, args: Namespace, forced: bool) -> None:
        self.model, self.task, self.precision, self.forced = model, task, precision, forced
        self.device = args.device
        #: Whether the number of a way of decoding is its decoder calls; otherwise it is the beam.
        self.iterative = isinstance(model, FairseqNATModel)

    @classmethod
    def lacks(cls, precision: str, device: str) -> str | None:
        """Why the engine is not available; None if it is."""
        return None

    def numbers(self, args: Namespace) -> list[int]:
        """Of the ways of decoding that the program's options ask for."""
        return list(args.iterations if self.iterative else args.beams)

    @abstractmethod
    def call(self, batch: Batch, number: int) -> TimedCall:
        """The call to time. ``number``: the beam, or the decoder calls of iterative refinement."""

    @abstractmethod
    def read(self, result: Any) -> list[list[int]]:
        """The words of each sentence, and the end symbol, in what a run has returned."""

    @abstractmethod
    def watch(self, run: TimedCall) -> tuple[Any, int]:
        """What a run returns, and how often it called the decoder."""


class _Generator(Engine):
    """Decodes with a generator of fairseq's protocol, one for all ways of decoding: it may keep weights of its own."""

    def __init__(self, model: Any, task: Any, precision: str, args: Namespace, forced: bool) -> None:
        super().__init__(model, task, precision, args, forced)
        if forced and self.iterative:
            _force_lengths(model)
        self.generator = self.new_generator(1 if forced else args.length_beam)

    @abstractmethod
    def new_generator(self, length_beam: int) -> Any: ...

    def sample(self, batch: Batch) -> dict[str, Any]:
        """The batch as the task makes it."""
        words = self.task.source_dictionary
        start = [words.bos()] if self.iterative else []
        rows = [torch.tensor([*start, *source, words.eos()]) for source in batch.sources]
        tokens = data_utils.collate_tokens(rows, words.pad(), left_pad=True).to(self.device)
        return {"net_input": {"src_tokens": tokens, "src_lengths": tokens.ne(words.pad()).sum(dim=1)}}

    def call(self, batch: Batch, number: int) -> TimedCall:
        settings = {"max_iter": number - 1} if self.iterative else {"beam_size": number}
        if self.forced:
            limits = {"adaptive": False} if self.iterative else {"min_len": batch.length, "max_len_b": batch.length}
            settings |= limits
        sample = self.sample(batch)

        def run() -> Any:
            self.model.forced_length = batch.length  # for _force_lengths
            self.configure(settings)
            return self.generator.generate([self.model], sample)

        return run

    def configure(self, settings: dict[str, Any]) -> None:
        """Change options of the generator."""
        for name, value in settings.items():
            setattr(self.generator, name, value)

    def read(self, result: Any) -> list[list[int]]:
        found = [sentence[0]["tokens"].tolist() for sentence in result]
        start = self.task.target_dictionary.bos()
        return [tokens[1:] if tokens[0] == start else tokens for tokens in found]


class Stock(_Generator):
    """fairseq's own generators, as fairseq-generate uses them."""

    PRECISIONS: ClassVar = {"cpu": ("float32",), "cuda": ("float32", "float16", "bfloat16")}

    def __init__(self, model: Any, task: Any, precision: str, args: Namespace, forced: bool) -> None:
        if precision != "float32":
            model = copy.deepcopy(model).to(getattr(torch, precision))
        super().__init__(model, task, precision, args, forced)

    def new_generator(self, length_beam: int) -> Any:
        words = self.task.target_dictionary
        if self.iterative:
            return IterativeRefinementGenerator(words, beam_size=length_beam)
        return SequenceGenerator([self.model], words)

    def watch(self, run: TimedCall) -> tuple[Any, int]:
        decoder, calls = self.model.decoder, 0
        forward = decoder.forward

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return forward(*arguments, **options)

        decoder.forward = counted
        try:
            return run(), calls
        finally:
            del decoder.forward


class Ours(_Generator):
    """The plugin's generators."""

    PRECISIONS: ClassVar = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "float16", "bfloat16")}
    EXACT_BEAMS: ClassVar[tuple[int, ...]] = (1, 4)

    def __init__(self, model: Any, task: Any, precision: str, args: Namespace, forced: bool) -> None:
        able = CudaGraphForward.supports(model.decoder) or CudaGraphDecoder.supports(model.decoder)
        self.cuda_graphs = args.cuda_graphs and able
        super().__init__(model, task, precision, args, forced)

    def new_generator(self, length_beam: int) -> Any:
        return our_generator(self.model, self.task, length_beam, self.precision, self.cuda_graphs)

    def configure(self, settings: dict[str, Any]) -> None:
        if self.iterative:
            super().configure(settings)
        else:
            self.generator.options = replace(self.generator.options, **settings)

    def watch(self, run: TimedCall) -> tuple[Any, int]:
        result = run()
        return result, max(hypothesis["steps"] for sentence in result for hypothesis in sentence)


class Rescored(Ours):
    """An autoregressive model of the same sizes chooses among the hypotheses; its one call is not counted."""

    def new_generator(self, length_beam: int) -> Any:
        generator = super().new_generator(length_beam)
        words, config = self.task.target_dictionary, TranslationInterleavedConfig(num_directions=1)
        task = TranslationInterleavedTask(config, self.task.source_dictionary, words)
        generator.reranking_model = for_inference(IBDecoderModel.build_model(self.model.cfg, task), self.device)
        return generator

    def numbers(self, args: Namespace) -> list[int]:
        return [beam for beam in args.beams if beam > 1]


#: Words that a call of ``ar-drafts`` writes; those of ``ar`` with ``ibdecoder_sa`` to draft, of examples/models: 4.9.
WORDS_PER_CALL = 4.5


class Drafts(Ours):
    """An autoregressive model whose words an ibdecoder-sa-student drafts greedily, with the same encoder."""

    EXACT_BEAMS: ClassVar[tuple[int, ...]] = (1,)

    def new_generator(self, length_beam: int) -> Any:
        words, args = self.task.target_dictionary, copy.deepcopy(self.model.cfg)
        args.decoder_layers = 2
        config = TranslationInterleavedConfig(num_directions=2, words_per_direction=2)
        task = TranslationInterleavedTask(config, self.task.source_dictionary, words)
        drafting = for_inference(IBDecoderModel.build_model(args, task), self.device)
        drafting.encoder.load_state_dict(self.model.encoder.state_dict())
        self.greedy = our_generator(self.model, self.task, 1, self.precision, False)
        self.drafting = our_generator(drafting, task, 1, self.precision, False)
        self.drafter = _RightWords(task, drafting, self.drafting)
        options = replace(self.greedy.options, beam_size=1)
        return SpeculativeDecoding([self.model], words, self.task.order, options, self.drafter, 8)

    def numbers(self, args: Namespace) -> list[int]:
        return [1]

    def call(self, batch: Batch, number: int) -> TimedCall:
        limits = {"beam_size": 1, "min_len": batch.length, "max_len_b": batch.length}
        self.greedy.options = replace(self.greedy.options, **limits)
        right = self.read(self.greedy.generate([self.model], self.sample(batch)))
        run = super().call(batch, 1)

        def drafted() -> Any:
            self.drafter.right = right
            self.drafting.options = replace(self.drafting.options, **limits)
            return run()

        return drafted


class _RightWords(ModelDrafter):
    """Random models do not agree. This one decodes for its time, and what is drafted are the right words, each at its
    place, of which so many are wrong that a call of the verifier writes WORDS_PER_CALL words."""

    right: list[list[int]]

    def begin(self, net_input: dict[str, torch.Tensor], sentences: list[int]) -> list["_WordsInPlace"]:
        super().begin(net_input, sentences)
        return [_WordsInPlace(self.right[row], self.task.target_dictionary.unk()) for row in sentences]


class _WordsInPlace:
    def __init__(self, right: list[int], wrong: int) -> None:
        self.draft = [wrong if (i + 1) % WORDS_PER_CALL < 1 else word for i, word in enumerate(right)]

    def propose(self, words: list[int], count: int) -> list[int]:
        return self.draft[len(words) : len(words) + count]


def our_generator(model: Any, task: Any, length_beam: int, precision: str, cuda_graphs: bool) -> Any:
    """The plugin's generator for a model, in a precision."""
    choice: dict[str, Any] = {} if precision == "float32" else {"decode_dtype": precision}
    words = task.target_dictionary
    if isinstance(model, FairseqNATModel):
        return IterativeRefinement(words, beam_size=length_beam, cuda_graphs=cuda_graphs, **choice)
    order = getattr(task, "order", GenerationOrder(num_directions=1))
    return MultiwordBeamSearch([model], words, order, SearchOptions(cuda_graphs=cuda_graphs, **choice))


def _force_lengths(model: Any) -> None:
    """Make the length prediction say ``model.forced_length`` words, plus start and end."""

    def forced(length_out: torch.Tensor, encoder_out: Any, tgt_tokens: Any = None) -> torch.Tensor:
        return torch.full_like(length_out[:, 0], model.forced_length + 2, dtype=torch.long)

    model.decoder.forward_length_prediction = forced


class CTranslate(Engine):
    """CTranslate2, with the weights of a stock Transformer, in another process.

    With forced lengths it writes one word more than the others and no end symbol, because CTranslate2 stops at the
    maximum length without one; so it makes as many decoder calls as the others.
    """

    PRECISIONS: ClassVar = {"cpu": ("float32", "int8"), "cuda": ("float32", "float16", "int8")}
    EXACT_BEAMS = (1,)  # with forced lengths its beam search ends with another word

    def __init__(self, model: Any, task: Any, precision: str, args: Namespace, forced: bool) -> None:
        super().__init__(model, task, precision, args, forced)
        with tempfile.TemporaryDirectory() as folder:
            from amlp_fairseq.translator.ctranslate2_model import convert  # needs ctranslate2

            convert(copy.deepcopy(model).cpu(), task, Path(folder, "model"))
            workers = [_Worker(f"{folder}/model", args.device, precision, count) for count in {1, args.threads}]
        sources = [[task.source_dictionary[task.source_dictionary.nspecial]] * 20]
        trial = json.dumps([sources, {"min_decoding_length": 20, "max_decoding_length": 20}])
        #: The worker with the fastest number of threads: int8 may be slower with two than with one.
        self.worker = min(workers, key=lambda worker: min(worker.seconds(trial) for _ in range(5)))

    @classmethod
    def lacks(cls, precision: str, device: str) -> str | None:
        if find_spec("ctranslate2") is None:
            return "ctranslate2 is not installed"
        import ctranslate2

        if device == "cuda" and ctranslate2.get_cuda_device_count() == 0:
            return "this ctranslate2 sees no CUDA device"
        if precision not in ctranslate2.get_supported_compute_types(device):
            return f"ctranslate2 has no {precision} on this device"
        return None

    def call(self, batch: Batch, number: int) -> TimedCall:
        words = self.task.source_dictionary
        sources = [[words[word] for word in source] for source in batch.sources]
        limits = {"max_decoding_length": 201}  # 200 words and the end symbol, fairseq's default
        if self.forced:
            limits = dict.fromkeys(("min_decoding_length", "max_decoding_length"), batch.length + 1)
        request = json.dumps([sources, {"beam_size": number, "return_end_token": True, **limits}])

        return partial(self.worker.ask, request)

    def read(self, result: Any) -> list[list[int]]:
        words = self.task.target_dictionary
        return [[words.index(token) for token in sentence] for sentence in result]

    def watch(self, run: TimedCall) -> tuple[Any, int]:
        result = run()
        return result, max(map(len, result))


class _Worker:
    """A process of ctranslate2_worker.py; it ends with this object."""

    def __init__(self, model: str, device: str, precision: str, threads: int) -> None:
        self.threads = threads
        script = Path(__file__).with_name("ctranslate2_worker.py")
        command = [sys.executable, str(script), model, device, precision, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        weakref.finalize(self, self.process.communicate)
        if self._answer() != "ready\n":
            raise RuntimeError(f"{' '.join(command)}: ended before it was ready")

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, request: str) -> list[list[str]]:
        """The tokens of the best outputs."""
        print(request, file=self.process.stdin, flush=True)
        return list(json.loads(self._answer()))

    def seconds(self, request: str) -> float:
        start = time.perf_counter()
        self.ask(request)
        return time.perf_counter() - start


@dataclass(frozen=True)
class System:
    """A model with random weights.

    Attributes:
        engine: how it is decoded.
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


def _interleaved(h: int, c: int, engine: type[Engine] = Ours, **depth: Any) -> System:
    return System(engine, "ibdecoder_wmt_en_de", f"--num-directions {h} --words-per-direction {c}", **depth)


#: student: a decoder of 2 layers; deep: 12 layers in the encoder and 1 in the decoder, where --layers is 6.
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
        self.ready: dict[str, Built] = {}

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
        """A model that is ready for inference."""
        system = self.systems[name]
        if name not in self.ready and system.engine is CTranslate:
            assert system.like is not None
            self.ready[name] = self.built(system.like)
        elif name not in self.ready:
            model, task, _ = self.new(name)
            self.untrained(model)
            if system.like is not None:
                own = {"decoder.interleaving": model.decoder.interleaving}
                model.load_state_dict({**self.built(system.like).model.state_dict(), **own})
            self.ready[name] = Built(for_inference(model, self.args.device), task)
        return self.ready[name]

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


def for_inference(model: Any, device: str) -> Any:
    """The model, made ready as fairseq-generate does."""
    model.make_generation_fast_(need_attn=False)
    return model.requires_grad_(False).to(device)


def load(path: str, data: str, device: str) -> Built:
    """A checkpoint, with the task that its model was trained for, on a data folder."""
    changes = {"data": data, "eval_bleu": False}  # which would build a generator
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=changes)
    return Built(for_inference(models[0], device), task)


class TestSet:
    """The test set of a folder of amlp-fairseq prepare.

    Args:
        data: the folder.
        tasks: those of the checkpoints, which determine the languages.
        sentences: how many of the first to take; None for all.

    Attributes:
        sources: the ids of each sentence's words.
        lengths: how many words each reference has.
        references: their raw texts.

    Raises:
        ValueError: if the checkpoints do not translate in the same direction.
    """

    def __init__(self, data: str, tasks: list[Any], sentences: int | None) -> None:
        self.settings = text_settings(Path(data))
        directions = {(task.cfg.source_lang, task.cfg.target_lang) for task in tasks}
        if len(directions) > 1:
            raise ValueError(f"the checkpoints translate in different directions: {directions}")
        source, self.language = next(iter(directions), self.settings["languages"])
        self.task = TranslationTask.setup_task(
            TranslationConfig(data=data, source_lang=source, target_lang=self.language, dataset_impl=None)
        )
        self.source, self.target = self.task.source_dictionary, self.task.target_dictionary
        self.task.load_dataset("test")
        pairs = self.task.dataset("test")
        count = min(sentences or len(pairs), len(pairs))
        self.sources = [pairs[i]["source"][:-1].tolist() for i in range(count)]
        self.lengths = [len(pairs[i]["target"]) - 1 for i in range(count)]
        self.references = read_references(Path(data, "raw", f"test.{self.language}"))[:count]

    def text(self, tokens: list[int]) -> str:
        """The detokenised text of a sentence."""
        line = self.target.string(torch.tensor(tokens), self.settings["post_process"])
        if self.settings["tokenizer"] is None:
            return str(line)
        return str(sacremoses.MosesDetokenizer(lang=self.language).detokenize(line.split()))

    def bleu(self, outputs: dict[int, list[int]], bins: dict[str, list[int]]) -> dict[str, Any]:
        """sacreBLEU of the outputs of all sentences and of those in each bin of sources' lengths, and its signature."""
        metric = BLEU()
        texts = [self.text(outputs[i]) for i in range(len(self.references))]

        def score(chosen: Iterable[int]) -> float:
            pairs = [(texts[i], self.references[i]) for i in chosen]
            hypotheses, references = map(list, zip(*pairs, strict=True))
            return float(metric.corpus_score(hypotheses, [references]).score)

        by_length = {name: score(chosen) for name, chosen in bins.items()}
        scores = {"bleu": score(range(len(texts))), "bleu_by_source_length": by_length}
        return scores | {"bleu_signature": str(metric.get_signature())}
