"""A model folder in the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from amlp_fairseq.engine import description as descriptions
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.isa import library
from amlp_fairseq.engine.lengths import exceeding, most_words
from amlp_fairseq.engine.order import Order, Prefix, shortest
from amlp_fairseq.engine.repetitions import deduplicate_ngrams
from amlp_fairseq.engine.safetensors import Tensors
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.text.dictionary import BOS, EOS
from amlp_fairseq.text.sentences import TooLong

if TYPE_CHECKING:
    from typing_extensions import Self

#: Values of ``decode_dtype`` here; bfloat16 needs a processor that has it.
DECODE_DTYPES = ("float32", "bfloat16", "int8")
#: At most so many words that may follow the words of a source's translation, by the number of the source.
Propose: TypeAlias = Callable[[int, list[int], int], list[int]]
#: Is told the words of a source's best translation so far, by the number of the source, after each step but the last.
Watch: TypeAlias = Callable[[int, list[int]], None]
#: A text that must not be written, however it is cut up: tokens that lead from one of its characters to another, as
#: (from, to, token).
Suppressed: TypeAlias = tuple[tuple[int, int, int], ...]
#: The suffix of the name of an int8 matrix' scales.
_SCALES = ":scales"


@dataclass(frozen=True)
class SearchOptions:
    """The settings of the beam search; see ``search/options.py``, where the same have the same names as here or as
    fairseq's. Without a beam search: ``alternatives``: the best ``beam`` words after the prefix, each continued by
    greedy search, the best word first, and further ones if they have ``min_alternative_prob``; ``sampling``: ``beam``
    samples, of the best ``sampling_topk`` words, or those whose probabilities sum to ``sampling_topp``, or are a share
    ``sampling_minp`` of the best one's; 0: of all. Samples depend on ``seed`` and the source alone. ``align``:
    hypotheses have alignments and attention. ``start`` and ``end`` are the tokens with which the decoder begins and
    ends."""

    beam: int = 5
    max_len_a: float = 0.0
    max_len_b: int = 200
    max_len: int = 1 << 30
    min_len: int = 1
    normalize: bool = True
    gnmt: bool = False
    length_penalty: float = 1.0
    unk_penalty: float = 0.0
    temperature: float = 1.0
    count_after_end: bool = False
    keep_all: bool = False
    no_repeat_ngram: int = 0
    deduplicate: int = 0
    repetition_penalty: float = 1.0
    suppressed: tuple[Suppressed, ...] = ()
    align: bool = False
    alternatives: bool = False
    min_alternative_prob: float = 0.0
    sampling: bool = False
    sampling_topk: int = 0
    sampling_topp: float = 0.0
    sampling_minp: float = 0.0
    seed: int = 1
    start: int = EOS
    end: int = EOS


@dataclass(frozen=True)
class RefinementOptions:
    """The settings of mask-predict; see ``search/iterative_refinement.py``, where they have the same names. ``words``
    is the length of every output, for benchmarks; 0: as the model predicts."""

    max_iter: int = 10
    beam: int = 1
    adaptive: bool = True
    words: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
        tokens: in reading order, without the end symbol.
        token_scores: log-probabilities of the tokens and of the end symbol, in nats.
        score: the sum of the log-probabilities of all that was written divided by the length penalty, in nats.
        steps: decoder calls.
        alignment: pairs of a word of the source, without end symbols, and of a token, from 0; empty unless asked for.
        attention: of the tokens and the end symbol, over the source with its symbols; the same.
    """

    tokens: list[int]
    token_scores: list[float]
    score: float
    steps: int
    alignment: list[tuple[int, int]]
    attention: Sequence[Sequence[float]] = ()

    @classmethod
    def of(cls, found: Any, deduplicate: int) -> Hypothesis:
        """The hypothesis that the library has found, without immediate repetitions of up to so many tokens."""
        *tokens, _ = found.tokens
        kept = deduplicate_ngrams(tokens, deduplicate) if deduplicate else range(len(tokens))
        return cls(
            [tokens[index] for index in kept],
            [found.token_scores[index] for index in (*kept, -1)],
            found.score,
            found.steps,
            [(found.alignment[index], place) for place, index in enumerate(kept)] if found.alignment else [],
            [attention[index] for index in (*kept, -1)] if (attention := found.attention) else (),
        )


def _in_library(shortlist: Shortlist | None) -> Any:
    return None if shortlist is None else shortlist.in_library


class EngineModel(ABC):
    """A model that decodes on a CPU. Several threads may call it at a time; they share its weights.

    Args:
        description: of ``models/description.py``.
        weights: by name, float32 arrays, or pairs of an int8 matrix and the scales of its rows.
        decode_dtype: one of ``DECODE_DTYPES``.

    Attributes:
        decode_dtype: of the linear maps.
        max_positions: of the decoder.
        max_source_positions: of the encoder.
        vocabularies: the numbers of source and target tokens.
        aligns: True if alignments can be read off the weights of the last layer's cross-attention.
        takes_words_back: True if it can verify drafts and score texts that are given: it writes from left to right,
            with softmax attention.

    Raises:
        UnsupportedError: for a type that the engine does not have.
        ValueError: for weights that are not those of the description.
        ImportError: if the engine has not been compiled.
    """

    #: The class in ``engine/src/module.h``.
    ENGINE: ClassVar[str]
    aligns = takes_words_back = False

    def __init__(self, description: Mapping[str, Any], weights: Mapping[str, Any], decode_dtype: str) -> None:
        lacks_bfloat16 = decode_dtype == "bfloat16" and not hasattr(library(), "bfloat16_linear")
        if decode_dtype not in DECODE_DTYPES or lacks_bfloat16:
            raise UnsupportedError(f"--decode-dtype {decode_dtype}")
        engine = getattr(library(), self.ENGINE)
        self._engine = engine(description, weights, decode_dtype == "int8", decode_dtype == "bfloat16")
        self.max_positions = description["decoder"]["max_positions"]
        self.max_source_positions = description["encoder"]["max_positions"]
        self.decode_dtype = decode_dtype
        self.vocabularies = description["encoder"]["vocabulary"], description["decoder"]["vocabulary"]

    @classmethod
    def ensemble(cls, models: Sequence[Self]) -> Self:
        """Models that decode as one."""
        raise UnsupportedError("several models that write all words at a time")

    @abstractmethod
    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: Any,
        threads: int = 1,
        *,
        watch: Watch | None = None,
        shortlist: Shortlist | None = None,
    ) -> list[list[Hypothesis]]:
        """Translations of each source, best first; none if none has a finite probability.

        Args:
            sources: tokens with the end symbol.
            options: of the search.
            threads: how many work on this call.
            watch: is told of each step; what it raises ends the search.
            shortlist: of the words that the translations may have, and those that a prefix gives.
        """

    @abstractmethod
    def runs(self, written: Sequence[int]) -> list[list[int]]:
        """The words of which ``watch`` is told, in reading order, cut where words are missing; the first run begins
        the text, and the last one ends it: both may be empty."""

    @classmethod
    def of_folder(cls, folder: Path, config: Mapping[str, Any], decode_dtype: str | None = None) -> Self:
        """The model of a folder.

        Args:
            folder: of ``amlp-fairseq package``.
            config: its ``config.json``.
            decode_dtype: None: int8 for weights that are stored in int8, else float32.

        Raises:
            UnsupportedError: for a model that the engine does not have.
            ValueError: if the folder is damaged.
        """
        description, path = descriptions.read(config), folder / "model.safetensors"
        library()  # what is wrong with it is no damage of the folder
        tensors = Tensors(path)
        dtype = decode_dtype or ("int8" if config["weights"] == "int8" else "float32")
        try:
            return cls(description, _StoredWeights(tensors, config["shared_weights"]), dtype)
        except UnsupportedError:
            raise
        except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


class _StoredWeights(Mapping[str, Any]):
    """The weights of a model in its folder, as ``EngineModel`` takes them.

    Args:
        tensors: of the file.
        shared: names of tensors, by names of later ones that are the same.
    """

    def __init__(self, tensors: Tensors, shared: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._stored = {name: name for name in tensors if not name.endswith(_SCALES)}
        self._stored |= {name: self._stored[other] for name, other in shared.items()}

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __getitem__(self, name: str) -> Any:
        stored = self._stored[name]
        scales = self._tensors.get(stored + _SCALES)
        return self._tensors[stored] if scales is None else (self._tensors[stored], scales)


class Model(EngineModel):
    """A model that writes a number of words a step."""

    ENGINE = "Engine"

    def __init__(self, description: Mapping[str, Any], weights: Mapping[str, Any], decode_dtype: str) -> None:
        super().__init__(description, weights, decode_dtype)
        layers, order = description["decoder"]["layers"], description["order"]
        self.aligns = layers[-1]["cross_attention"]["kind"] == "softmax"
        softmax = all(layer["self_attention"]["kind"] == "softmax" for layer in layers)
        self.order = Order(order["num_directions"], description["decoder"]["words_per_step"], order["middle_to_side"])
        self.takes_words_back = softmax and self.order.left_to_right and self.order.words_per_step == 1

    @classmethod
    def ensemble(cls, models: Sequence[Self]) -> Self:
        """Models that decode as one, with the mean of their probabilities, as in fairseq. The weights stay those of
        the models.

        Raises:
            ValueError: for models with other vocabularies or another order of words.
        """
        if not all(isinstance(model, cls) for model in models):
            raise ValueError("models of an ensemble write in one way: some of these write all words at a time")
        result = copy(models[0])
        for name in ("order", "vocabularies", "decode_dtype"):
            if len(found := {getattr(model, name) for model in models}) > 1:
                raise ValueError(f"models of an ensemble have one {name.replace('_', ' ')}, not {len(found)}")
        result._engine = type(models[0]._engine)([model._engine for model in models])
        result.max_positions = min(model.max_positions for model in models)
        result.max_source_positions = min(model.max_source_positions for model in models)
        result.aligns = all(model.aligns for model in models)
        result.takes_words_back = all(model.takes_words_back for model in models)
        return result

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        threads: int = 1,
        propose: Propose | None = None,
        draft_words: int = 0,
        prefixes: Sequence[Prefix] = (),
        *,
        watch: Watch | None = None,
        shortlist: Shortlist | None = None,
    ) -> list[list[Hypothesis]]:
        """At most ``options.beam`` translations of each source; see ``EngineModel``.

        Args:
            sources, options, threads, watch, shortlist: see there.
            propose: drafts of the sources, for a model that takes words back and greedy search: the same translations
                in fewer decoder calls.
            draft_words: the most words of a draft that a call checks.
            prefixes: of each source, or none.

        Raises:
            ValueError: if ``min_len`` exceeds what the lengths allow.
            TooLong: if a prefix does, with the number of its source, from 1.
        """
        with_words = [index for index, source in enumerate(sources) if any(token != EOS for token in source)]
        results = [[Hypothesis([], [0.0], 0.0, 0, [])] for _ in sources]
        if not with_words:
            return results
        for index in with_words:
            most = min(most_words(options, len(sources[index]), self.max_positions), options.max_len)
            if options.min_len > most:
                raise ValueError(exceeding(f"--min-len {options.min_len}", most))
            if prefixes and (length := shortest(prefixes[index], options.end)) > most:
                name = f"--target-prefix, --target-suffix: a prefix of {length} words"
                raise TooLong(index + 1, exceeding(name, most))
        arguments, words = ([sources[index] for index in with_words], asdict(options)), _in_library(shortlist)
        if propose is None:
            begun = [prefixes[index] for index in with_words] if prefixes else []
            found = self._engine.search(*arguments, threads, begun, _of_numbers(with_words, watch), words)
        else:

            def proposal(number: int, words: list[int], count: int) -> list[int]:
                return propose(with_words[number], words, count)

            found = self._engine.search_drafted(*arguments, proposal, draft_words, threads, words)
        for index, hypotheses in zip(with_words, found, strict=True):
            results[index] = [Hypothesis.of(each, options.deduplicate) for each in hypotheses]
        return results

    def runs(self, written: Sequence[int]) -> list[list[int]]:
        return self.order.runs(written)

    def score(
        self,
        sources: Sequence[Sequence[int]],
        texts: Sequence[Sequence[Sequence[int]]],
        options: SearchOptions,
        threads: int = 1,
    ) -> list[list[Hypothesis]]:
        """Texts of each source with the scores that a search would give them, without the words after the end in its
        step; ``steps`` is 0.

        Args:
            sources: tokens with the end symbol. Start symbols are left out: this model was trained without them.
            texts: of each source, without end symbols.
            options: of the search, whose length penalty it is.
            threads: how many work on this call.
        """
        read = [[token for token in source if token != BOS] for source in sources]
        if not self.takes_words_back:
            return self._searched(read, texts, options, threads)
        complete = [[[*text, options.end] for text in of_source] for of_source in texts]
        found = self._engine.score(read, complete, asdict(options), threads)
        return [[Hypothesis.of(each, 0) for each in of_source] for of_source in found]

    def _searched(
        self,
        sources: Sequence[Sequence[int]],
        texts: Sequence[Sequence[Sequence[int]]],
        options: SearchOptions,
        threads: int,
    ) -> list[list[Hypothesis]]:
        """The scores of texts, each found by a search that allows no other."""
        pairs = [(source, text) for source, of_source in zip(sources, texts, strict=True) for text in of_source]
        longest = max((len(text) for _, text in pairs), default=0)
        kept = {name: getattr(options, name) for name in ("normalize", "gnmt", "length_penalty", "start", "end")}
        chains = [self.order.whole(text, options.end) for _, text in pairs]
        of_search = SearchOptions(beam=1, max_len_b=longest, min_len=0, **kept)
        found = iter(self.search([source for source, _ in pairs], of_search, threads, prefixes=chains))
        return [[replace(next(found)[0], steps=0) for _ in of_source] for of_source in texts]


class ParallelModel(EngineModel):
    """A model that writes all words of a sentence at a time."""

    ENGINE = "ParallelEngine"

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: RefinementOptions,
        threads: int = 1,
        *,
        watch: Watch | None = None,
        shortlist: Shortlist | None = None,
    ) -> list[list[Hypothesis]]:
        """A translation of each source by mask-predict; see ``EngineModel``."""
        begun = [[BOS, *source] for source in sources]
        found = self._engine.refine(begun, asdict(options), threads, watch, _in_library(shortlist))
        return [[Hypothesis.of(each, 0)] if isfinite(each.score) else [] for each in found]

    def runs(self, written: Sequence[int]) -> list[list[int]]:
        return [[*written]]


def _of_numbers(numbers: Sequence[int], watch: Watch | None) -> Watch | None:
    """For sources that have other numbers."""
    return None if watch is None else lambda number, written: watch(numbers[number], written)
