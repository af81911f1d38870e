"""The decoders of benchmarks/decoding.py with one interface: stock fairseq's, the plugin's, CTranslate2."""

import copy
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from fairseq.data import data_utils
from fairseq.iterative_refinement_generator import IterativeRefinementGenerator
from fairseq.models.nat import FairseqNATModel
from fairseq.sequence_generator import SequenceGenerator

from amlp_fairseq.decoding.cuda_graph_decoding import CudaGraphDecoder
from amlp_fairseq.decoding.cuda_graph_forward import CudaGraphForward
from amlp_fairseq.engine.model import RefinementOptions
from amlp_fairseq.models.interleaved_decoder import IBDecoderModel
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.drafts import SentenceDraft
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.model_drafter import ModelDrafter
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.speculative_decoding import SpeculativeDecoding
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

#: A call to time; what it returns is for its engine.
TimedCall = Callable[[], Any]


@dataclass(frozen=True)
class Batch:
    """Sentences that are decoded together.

    Attributes:
        indices: positions of these sentences in the run.
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
        #: Whether the number of a setting is its decoder calls; otherwise it is the beam.
        self.iterative = isinstance(model, FairseqNATModel)

    @classmethod
    def lacks(cls, precision: str, device: str) -> str | None:
        """The reason why the engine is not available; None if it is."""
        return None

    def numbers(self, args: Namespace) -> list[int]:
        """The beams or decoder calls of the settings that the program's options ask for."""
        return list(args.iterations if self.iterative else args.beams)

    @abstractmethod
    def call(self, batch: Batch, number: int) -> TimedCall:
        """The call to time. ``number``: the beam, or the decoder calls of iterative refinement."""

    @abstractmethod
    def read(self, result: Any) -> list[list[int]]:
        """The words of each sentence, and the end symbol, in the result of a run."""

    @abstractmethod
    def watch(self, run: TimedCall) -> tuple[Any, int]:
        """The result of a run, and how often it called the decoder."""


class _Generator(Engine):
    """Decodes with a generator of fairseq's protocol, one for all settings: it may keep weights of its own."""

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
            if self.forced:
                self.model.forced_length = batch.length  # for _force_lengths and _Refinement
            self.configure(settings)
            return self.generator.generate([self.model], sample)

        return run

    def configure(self, settings: dict[str, Any]) -> None:
        """Change options of the generator."""
        for name, value in settings.items():
            setattr(self.generator, name, value)

    def read(self, result: Any) -> list[list[int]]:
        outputs = [sentence[0]["tokens"].tolist() for sentence in result]
        start = self.task.target_dictionary.bos()
        return [tokens[1:] if tokens[0] == start else tokens for tokens in outputs]


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
    """An autoregressive model of the same sizes reranks the hypotheses; its one call is not counted."""

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

        def drafted() -> object:
            self.drafter.right = right
            self.drafting.options = replace(self.drafting.options, **limits)
            return run()

        return drafted


class _RightWords(ModelDrafter):
    """Random models do not agree. This one decodes for its time; the draft is what the verifier writes, with so many
    wrong words that a call of the verifier writes WORDS_PER_CALL words."""

    right: list[list[int]]

    def begin(self, sources: Sequence[Sequence[int]]) -> list[SentenceDraft]:
        super().begin(sources)
        return [_Draft(right, self.task.target_dictionary.unk()) for right in self.right]


class _Draft(SentenceDraft):
    def __init__(self, right: list[int], wrong: int) -> None:
        super().__init__([wrong if (i + 1) % WORDS_PER_CALL < 1 else word for i, word in enumerate(right)])

    def propose(self, words: list[int], count: int) -> list[int]:
        return self.draft[len(words) : len(words) + count]


def our_generator(model: Any, task: Any, length_beam: int, precision: str, cuda_graphs: bool) -> Any:
    """The plugin's generator for a model, in a precision."""
    choice: dict[str, Any] = {} if precision == "float32" else {"decode_dtype": precision}
    words = task.target_dictionary
    if isinstance(model, FairseqNATModel):
        return _Refinement(model, words, beam_size=length_beam, cuda_graphs=cuda_graphs, **choice)
    order = getattr(task, "order", GenerationOrder(num_directions=1))
    return MultiwordBeamSearch([model], words, order, SearchOptions(cuda_graphs=cuda_graphs, **choice))


class _Refinement(IterativeRefinement):
    """Iterative refinement whose outputs have the model's ``forced_length``, if it has one, in the engine, too."""

    def __init__(self, model: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.model = model

    def refinement_options(self) -> RefinementOptions:
        return replace(super().refinement_options(), words=getattr(self.model, "forced_length", 0))


def _force_lengths(model: Any) -> None:
    """Make the length prediction say ``model.forced_length`` words, plus start and end."""

    def forced(length_out: torch.Tensor, encoder_out: Any, tgt_tokens: Any = None) -> torch.Tensor:
        return torch.full_like(length_out[:, 0], model.forced_length + 2, dtype=torch.long)

    model.decoder.forward_length_prediction = forced


def for_inference(model: Any, device: str) -> Any:
    """The model, prepared as fairseq-generate does."""
    model.make_generation_fast_(need_attn=False)
    return model.requires_grad_(False).to(device)
