"""A model folder in the engine: Transformers, IBDecoders and CMLMC on a CPU, without PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.isa import library_isa
from amlp_fairseq.engine.model import (
    DECODE_DTYPES,
    EngineModel,
    Hypothesis,
    Model,
    ParallelModel,
    RefinementOptions,
    SearchOptions,
    Watch,
)
from amlp_fairseq.engine.order import Prefix, shifted
from amlp_fairseq.engine.shortlist import FILE, Shortlist
from amlp_fairseq.model_folder.config import DISABLED, read_config
from amlp_fairseq.model_folder.language_tokens import KEY
from amlp_fairseq.search.drafts import Drafter, SentenceDraft, SourceDrafter, TranslationMemoryDrafter
from amlp_fairseq.text.dictionary import BOS, EOS, PAD
from amlp_fairseq.text.sentences import TooLong
from amlp_fairseq.text.unknown_words import read_translations, replaced
from amlp_fairseq.translator import backend as backends
from amlp_fairseq.translator.backend import Found, Scored
from amlp_fairseq.translator.engine_folder import EngineFolder, Surroundings
from amlp_fairseq.translator.given import Given, Prefixes, shown
from amlp_fairseq.translator.suppressed import Suppressor

#: Sentences of a batch: more do not fit into the caches of a processor.
MAX_SENTENCES = 32
#: Larger beams are PyTorch's, which knows what memory there is.
MAX_BEAM = 256


def _whole(value: object, at_least: int = 0) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= at_least


def _finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < 1e9


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


#: The decoding options that the engine knows for models that write step by step, and the values that it takes: of those
#: that it lacks the value that turns them off. With any other PyTorch decodes, or says what is wrong.
STEPWISE_OPTIONS: dict[str, Callable[[Any], bool]] = {
    "beam": lambda value: _whole(value, 1) and value <= MAX_BEAM,
    "nbest": lambda value: _whole(value, 1),
    "lenpen": lambda value: _finite(value) and abs(value) <= 10,
    "length_penalty": _one_of("fairseq", "gnmt"),
    "unnormalized": _one_of(False, True),
    "max_len_a": lambda value: _finite(value) and value >= 0,
    "max_len_b": _whole,
    "min_len": _whole,
    "unkpen": _finite,
    "temperature": lambda value: _finite(value) and value > 0,
    "words_after_end": _one_of("ignore", "count"),
    "finished": _one_of("best", "all"),
    "decode_dtype": _one_of(None, *DECODE_DTYPES),
    **dict.fromkeys(("sampling", "alternatives"), _one_of(False, True)),
    "sampling_topk": lambda value: _whole(value, -1) and value != 0,
    "seed": lambda value: _whole(value) and value < 2**31,
    "sampling_topp": lambda value: _finite(value) and (value == -1 or 0 < value <= 1),
    **dict.fromkeys(("match_source_len", "retain_dropout", "cuda_graphs"), _one_of(False)),
    **dict.fromkeys(("no_repeat_ngram_size", "deduplicate_ngrams"), _whole),
    "repetition_penalty": lambda value: _finite(value) and value > 0,
    "suppress": lambda value: isinstance(value, list) and all(isinstance(each, str) and each.strip() for each in value),
    **dict.fromkeys(("sampling_minp", "min_alternative_prob"), lambda value: _finite(value) and 0 <= value <= 1),
    **dict.fromkeys(
        ("rescore_path", "draft_path", "draft_file", "shortlist"),
        lambda value: isinstance(value, str | None),
    ),
    "replace_unk": lambda value: True,  # read_translations says what is wrong
    **dict.fromkeys(("no_beamable_mm", "no_seed_provided"), _one_of(False, True)),  # of no effect here
    "draft": _one_of(None, "none", "source"),
    "draft_words": lambda value: _whole(value, 1),
    "print_alignment": _one_of(None, "hard", "soft"),
}
#: The same for models that write all words at a time.
PARALLEL_OPTIONS: dict[str, Callable[[Any], bool]] = {
    "iter_decode_max_iter": lambda value: _whole(value) and value < 1e6,
    "iter_decode_with_beam": lambda value: _whole(value, 1) and value <= MAX_BEAM,
    "iter_decode_force_max_iter": _one_of(False, True),
    "iter_decode_eos_penalty": lambda value: _finite(value) and value == 0,
    "nbest": lambda value: _whole(value, 1) and value == 1,
    "decode_dtype": _one_of(None, *DECODE_DTYPES),
    "cuda_graphs": _one_of(False),
    "rescore_path": _one_of(None, ""),
    "shortlist": lambda value: isinstance(value, str | None),
    # of no effect here
    **dict.fromkeys(("retain_iter_history", "no_beamable_mm", "no_seed_provided"), _one_of(False, True)),
}
#: Decoding options that are numbers of the search, with their names in ``SearchOptions``, which has their defaults.
SEARCH_OPTIONS = {
    **{name: name for name in ("beam", "max_len_a", "max_len_b", "min_len", "temperature")},
    **{"lenpen": "length_penalty", "unkpen": "unk_penalty"},
    **{"no_repeat_ngram_size": "no_repeat_ngram", "deduplicate_ngrams": "deduplicate"},
    **{name: name for name in ("repetition_penalty", "alternatives", "min_alternative_prob")},
    **{name: name for name in ("sampling", "sampling_minp", "seed")},
}
#: Options of the task, by whose configuration a folder may have them, too.
TASK_OPTIONS = (
    *("length_penalty", "words_after_end", "finished", "deduplicate_ngrams", "repetition_penalty", "decode_dtype"),
    *("cuda_graphs", "rescore_path", "draft_path", "draft", "draft_file", "draft_words", "shortlist"),
)
#: What the values of options are that the engine alone has.
OWN_VALUES = {
    "suppress": "a list of texts that are not empty",
    "sampling_minp": "a share from 0 to 1",
    "min_alternative_prob": "a probability from 0 to 1",
}
#: The options without which others have no effect.
NEEDED = {
    **dict.fromkeys(("sampling_topk", "sampling_topp", "sampling_minp", "seed"), "sampling"),
    "min_alternative_prob": "alternatives",
}
#: The default of ``draft_words``.
DRAFT_WORDS = 8


def check_own(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a wrong value of an option that the engine alone has; names both."""
    for name, needed in OWN_VALUES.items():
        if name in options and not STEPWISE_OPTIONS[name](options[name]):
            raise ValueError(f"{name}={options[name]!r}: {needed} is needed")


def _search_options(given: Mapping[str, Any]) -> SearchOptions:
    if given.get("alternatives"):
        given = {**given, "beam": given.get("nbest", 1)}
    return SearchOptions(
        sampling_topk=max(given.get("sampling_topk", 0), 0),
        sampling_topp=max(given.get("sampling_topp", 0.0), 0.0),
        normalize=not given.get("unnormalized", False),
        gnmt=given.get("length_penalty") == "gnmt",
        count_after_end=given.get("words_after_end") == "count",
        keep_all=given.get("finished") == "all",
        align=any(given.get(name) is not None for name in ("print_alignment", "replace_unk")),
        **{field: given[name] for name, field in SEARCH_OPTIONS.items() if name in given},
    )


def _refinement_options(given: Mapping[str, Any]) -> RefinementOptions:
    fields = {"iter_decode_max_iter": "max_iter", "iter_decode_with_beam": "beam"}
    return RefinementOptions(
        adaptive=not given.get("iter_decode_force_max_iter", False),
        **{field: given[name] for name, field in fields.items() if name in given},
    )


@dataclass(frozen=True)
class Kind:
    """The decoding of a task's models in the engine.

    Attributes:
        model: their class.
        options: see ``STEPWISE_OPTIONS``.
        search_options: from decoding options to those of the search.
    """

    model: type[EngineModel]
    options: Mapping[str, Callable[[Any], bool]]
    search_options: Callable[[Mapping[str, Any]], Any]

    def lacks(self, options: Mapping[str, Any]) -> str | None:
        """The first of some decoding options with which the engine does not decode; None if it does with all."""
        for name, value in options.items():
            if name not in self.options or not self.options[name](value):
                return f"--{name.replace('_', '-')} {value}"
        nbest = options.get("nbest", 1)
        found = options.get("beam", SearchOptions.beam)
        return f"--nbest {nbest}" if nbest > found and not options.get("alternatives") else None


#: By the name of the task.
KINDS = {
    "translation_interleaved": Kind(Model, STEPWISE_OPTIONS, _search_options),
    "translation_cmlmc": Kind(ParallelModel, PARALLEL_OPTIONS, _refinement_options),
}


def kind_of(config: Mapping[str, Any]) -> Kind:
    """The decoding of a model in the engine, by its ``config.json``.

    Raises:
        UnsupportedError: for a task that it does not have.
    """
    name = "translation_interleaved" if KEY in config else config["task"]["_name"]
    if name not in KINDS:
        raise UnsupportedError(f"--task {name}")
    return KINDS[name]


def folder_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The decoding options of a model folder."""
    return {**{name: config["task"][name] for name in TASK_OPTIONS if name in config["task"]}, **config["decoding"]}


class EngineBackend:
    """A model that decodes in the engine. Threads may share it.

    Args:
        folder: of the model.
        config: its ``config.json``.
        max_tokens: source pieces of a batch.
        options: decoding options that win over the folder's.
        inter_threads, intra_threads: batches at a time, and threads of each; see :func:`shared_out`.
        others: folders of further models, which decode with this one as one.

    Attributes:
        max_pieces: of a source, by the model's positions.
        drafter: makes drafts, which the model verifies; None without one.
        reranker: reranks the hypotheses; None without one.
        shortlist: of the words that translations may have; None without one.

    Raises:
        UnsupportedError: for a model or an option that the engine does not have.
        ValueError: for a damaged folder.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        max_tokens: int,
        options: Mapping[str, Any],
        inter_threads: int | None = None,
        intra_threads: int | None = None,
        others: Sequence[Path] = (),
    ) -> None:
        self.kind = kind_of(config)
        self.options: dict[str, Any] = {**folder_options(config), **options}
        if option := self.kind.lacks(self.options):
            raise UnsupportedError(option)
        self.own = EngineFolder(self.kind.model, folder, config, self.options.get("decode_dtype"))
        models = [self.own.model, *(self._member(other).model for other in others)]
        try:
            self.model = self.kind.model.ensemble(models) if others else self.own.model
        except UnsupportedError:
            raise
        except ValueError as error:
            raise ValueError(f"{':'.join(map(str, (folder, *others)))}: {error}") from None
        self.shortlist = self._shortlist()
        self.reranker = self._reranker()
        self.drafter = self._drafter()
        positions = (config["task"].get("max_source_positions") or 1024, self.model.max_source_positions)
        around = 2 if self.own.tokens is None else max(2, self.own.tokens.around_source)  # as PyTorchBackend has it
        self.max_pieces = min(*positions, self.model.max_positions) - around
        self.max_tokens, self.inter_threads, self.intra_threads = max_tokens, inter_threads, intra_threads

    def _shortlist(self) -> Shortlist | None:
        """That of the options, or else of the folder."""
        path = self._named("shortlist")
        if self.options.get("shortlist") is None and (own := self.own.folder / FILE).is_file():
            path = str(own)
        if path is None:
            return None
        return Shortlist.open(Path(path), self.own.source.symbols, self.own.target.symbols)

    def _reranker(self) -> Model | None:
        auxiliary = self._auxiliary("rescore_path")
        if auxiliary is None:
            return None
        if not isinstance(auxiliary.model, Model) or not auxiliary.model.takes_words_back:
            raise UnsupportedError(f"--rescore-path {auxiliary.folder}: its texts are not read from left to right")
        return auxiliary.model

    def _drafter(self) -> Drafter | None:
        given = [name for name in ("draft_path", "draft", "draft_file") if self._named(name) is not None]
        if not given:
            return None
        if len(given) > 1 or not self.model.takes_words_back:
            raise UnsupportedError(f"--{given[-1].replace('_', '-')} {self.options[given[-1]]} here")
        source, target = self.own.source.symbols, self.own.target.symbols
        if given == ["draft"]:
            return SourceDrafter(source, target)
        if given == ["draft_file"]:
            return TranslationMemoryDrafter(self.options["draft_file"], target)
        auxiliary = self._auxiliary("draft_path")
        assert auxiliary is not None
        of_task = {name: value for name, value in folder_options(auxiliary.config).items() if name in TASK_OPTIONS}
        fastest = kind_of(auxiliary.config).search_options({**of_task, "beam": 1, "iter_decode_max_iter": 0})
        return EngineDrafter(auxiliary.model, fastest, self.shortlist)

    def _named(self, option: str) -> str | None:
        """The value of an option of ``DISABLED``; None if it is turned off."""
        value: str | None = self.options.get(option)
        return None if value == DISABLED[option] else value

    def _auxiliary(self, option: str) -> EngineFolder | None:
        """The folder of an option, decoding in the same type; PyTorch says what is wrong with it."""
        if (path := self._named(option)) is None:
            return None
        try:
            return self._member(Path(path))
        except (ValueError, OSError) as error:
            raise UnsupportedError(f"--{option.replace('_', '-')} {path}: {error}") from None

    def _member(self, path: Path) -> EngineFolder:
        """A folder with the same dictionaries, in the same type."""
        config = read_config(path)
        folder = EngineFolder(kind_of(config).model, path, config, self.own.model.decode_dtype)
        for own, other in ((self.own.source, folder.source), (self.own.target, folder.target)):
            if own.symbols != other.symbols:
                raise ValueError(f"{other.path} is another dictionary than {own.path}")
        return folder

    @cached_property
    def prefixes(self) -> Prefixes:
        """The maker of prefixes.

        Raises:
            ValueError: for a model that writes all words at a time.
        """
        if not isinstance(self.model, Model):
            raise ValueError(f"--target-prefix: {self.own.folder} writes all words at a time: none can be given before")
        return Prefixes(self.own.target, self.model.order, self.own.config["text"].get("post_process"))

    @cached_property
    def suppressor(self) -> Suppressor:
        return Suppressor(self.own.target, self.own.config["text"].get("post_process"))

    @property
    def aligns(self) -> bool:
        """True if searches have alignments."""
        return bool(self.model.aligns) and "print_alignment" in self.kind.options

    def __str__(self) -> str:
        return f"the engine decodes ({library_isa()}, {self.model.decode_dtype})"

    def search(self, options: Mapping[str, Any], languages: tuple[str, str]) -> EngineSearch:
        """The search with the options and the languages of a call.

        Raises:
            UnsupportedError: for an option that the engine does not have, or for its value.
        """
        merged = {**self.options, **options}
        if option := self.kind.lacks(merged):
            raise UnsupportedError(option)
        beam, alone = merged.get("beam", SearchOptions.beam), merged.get("sampling", False)
        for name, other in NEEDED.items():
            given = name in merged if name == "seed" else merged.get(name, -1) > 0
            if given and not merged.get(other, False):
                raise ValueError(f"--{name.replace('_', '-')} {merged[name]} needs --{other}")
        if merged.get("alternatives") and merged.get("nbest", 1) > MAX_BEAM:
            raise ValueError(f"--nbest {merged['nbest']}: at most {MAX_BEAM} alternatives are found")
        if alone and merged.get("alternatives"):
            raise ValueError("--sampling and --alternatives cannot be given together")
        for option, refused in (
            (f"a draft with --beam {beam}", self.drafter is not None and beam > 1),
            ("a draft of samples or alternatives", self.drafter is not None and (alone or merged.get("alternatives"))),
            (f"--rescore-path with --beam {beam}", self.reranker is not None and beam < 2),
            ("--print-alignment for this cross-attention", merged.get("print_alignment") and not self.model.aligns),
            ("--replace-unk for this cross-attention", merged.get("replace_unk") is not None and not self.model.aligns),
        ):
            if refused:
                raise UnsupportedError(option)
        options_of_search, draft_words = self.kind.search_options(merged), merged.get("draft_words", DRAFT_WORDS)
        if merged.get("suppress"):
            options_of_search = replace(options_of_search, suppressed=self.suppressor(merged["suppress"]))
        around = self.own.surroundings(languages)
        if self.own.tokens is not None:
            options_of_search = replace(options_of_search, start=around.start, end=around.end)
        translations, shown_alignment = read_translations(merged.get("replace_unk")), merged.get("print_alignment")
        nbest = merged.get("nbest", 1)
        return EngineSearch(self, options_of_search, nbest, draft_words, around, shown_alignment, translations)


@dataclass(frozen=True)
class EngineSearch:
    """A model with the options of its search.

    Attributes:
        nbest: how many translations are wanted.
        draft_words: the most words of a draft that a call checks.
        around: what stands around the words.
        alignment: what translations have: ``hard`` or ``soft`` alignments, or none.
        translations: of words of the source, which come in the place of unknown ones; None: these stay.
    """

    backend: EngineBackend
    options: Any
    nbest: int
    draft_words: int
    around: Surroundings
    alignment: str | None = None
    translations: Mapping[str, str] | None = None

    def __call__(self, sources: Sequence[str], given: Sequence[Given] = ()) -> list[list[Found]]:
        """At most ``nbest`` translations of each source, best first. Batches are of sentences of similar length; the
        longest come first, so that the last ones end at about the same time.

        Raises:
            ValueError: for given words at an end that the model does not write first, or that are too many.
        """
        backend = self.backend
        prefixes = self._prefixes(given, len(sources))
        tokens = [self._source(source) for source in sources]
        batches = _batches([len(source) for source in tokens], backend.max_tokens)[::-1]

        def found(batch: list[int], threads: int) -> list[list[Hypothesis]]:
            begun = [prefixes[index] for index in batch] if prefixes else []
            try:
                return self._hypotheses([tokens[index] for index in batch], begun, threads)
            except TooLong as error:
                raise TooLong(batch[error.number - 1] + 1, str(error)) from None

        results: dict[int, list[Found]] = {}
        for batch, hypotheses in zip(batches, self._side_by_side(batches, found), strict=True):
            for index, each in zip(batch, hypotheses, strict=True):
                results[index] = self._best(each, given[index] if given else Given(), sources[index])
        return [results[index] for index in range(len(sources))]

    def watched(self, source: str, given: Given, watch: backends.Watch) -> list[Found]:
        backend = self.backend

        def told(_: int, written: list[int]) -> None:
            runs = [self._pieces(run).split() for run in backend.model.runs(written)]
            runs[0] = shown(runs[0], replace(given, last=()))
            runs[-1] = shown(runs[-1], Given(last=given.last[max(len(given.last) - len(runs[-1]), 0) :]))
            watch([" ".join(run) for run in runs])

        _, threads = shared_out(1, backend.inter_threads, backend.intra_threads)
        hypotheses = self._hypotheses([self._source(source)], self._prefixes([given], 1), threads, told)
        return self._best(hypotheses[0], given, source)

    def _best(self, hypotheses: list[Hypothesis], given: Given, source: str) -> list[Found]:
        if not hypotheses:
            raise ValueError(
                f"a sentence has no translation ({source}): no word has a finite probability, or --min-len, "
                "--no-repeat-ngram-size and --suppress leave none"
            )
        return [self._found(each, given, source) for each in hypotheses[: self.nbest]]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Scored]:
        """The scores of translations that are given, as pieces.

        Raises:
            ValueError: for a model that writes all words at a time, and a translation that is too long.
        """
        backend = self.backend
        if not isinstance(backend.model, Model):
            raise ValueError(f"{backend.own.folder} writes all words at a time: it has no scores of given texts")
        begun = [*self.around.given]
        pairs = [
            (self._source(source), begun + backend.own.target.encode(target)[:-1])
            for source, target in zip(sources, targets, strict=True)
        ]
        for number, (_, target) in enumerate(pairs, 1):
            if len(target) >= backend.model.max_positions:
                raise TooLong(
                    number,
                    f"a translation has {len(target)} pieces, {backend.own.folder} writes at most "
                    f"{backend.model.max_positions - 1}",
                )
        batches = _batches([len(source) + len(target) for source, target in pairs], backend.max_tokens)[::-1]

        def scored(batch: list[int], threads: int) -> list[list[Hypothesis]]:
            assert isinstance(backend.model, Model)
            of_batch, texts = zip(*(pairs[index] for index in batch), strict=True)
            return backend.model.score(of_batch, [[text] for text in texts], self.options, threads)

        results: dict[int, Scored] = {}
        for batch, found in zip(batches, self._side_by_side(batches, scored), strict=True):
            results |= {
                index: Scored(each.score, tuple(each.token_scores[len(begun) :]))
                for index, (each,) in zip(batch, found, strict=True)
            }
        return [results[index] for index in range(len(pairs))]

    def _source(self, pieces: str) -> list[int]:
        """The tokens of a source with those around them."""
        return [*self.around.before, *self.backend.own.source.encode(pieces)[:-1], *self.around.after]

    def _prefixes(self, given: Sequence[Given], count: int) -> list[Prefix]:
        """The prefixes of so many translations, after the words that come first in this language; empty without any."""
        own: Prefix = [{token: place + 1} for place, token in enumerate(self.around.given)]
        if not any(given):
            return [own] * count if own else []
        return [own + shifted(self.backend.prefixes(each, self.around.end), len(own)) for each in given]

    def _side_by_side(
        self, batches: list[list[int]], work: Callable[[list[int], int], list[list[Hypothesis]]]
    ) -> list[list[list[Hypothesis]]]:
        """The results of batches, with the threads of each as the second argument of ``work``."""
        workers, threads = shared_out(len(batches), self.backend.inter_threads, self.backend.intra_threads)
        if workers == 1:
            return [work(batch, threads) for batch in batches]
        from concurrent.futures import ThreadPoolExecutor  # one line needs none of it

        with ThreadPoolExecutor(workers) as executor:
            return list(executor.map(lambda batch: work(batch, threads), batches))

    def _hypotheses(
        self, sources: list[list[int]], begun: list[Prefix], threads: int, watch: Watch | None = None
    ) -> list[list[Hypothesis]]:
        """watch: is told of each step, unless drafts are verified."""
        backend, options, drafter = self.backend, self.options, self.backend.drafter
        if drafter is not None:
            if begun:
                raise ValueError("--target-prefix: a draft cannot be given, too (--draft none)")
            drafter = replace(drafter, threads=threads) if isinstance(drafter, EngineDrafter) else drafter
            drafts = drafter.begin(sources)

            def propose(number: int, words: list[int], most: int) -> list[int]:
                return drafts[number].propose(words, most)

            assert isinstance(backend.model, Model)
            words = self.draft_words
            return backend.model.search(sources, options, threads, propose, words, shortlist=backend.shortlist)
        more: dict[str, Any] = {"shortlist": backend.shortlist, **({"prefixes": begun} if begun else {})}
        if backend.reranker is None:
            return backend.model.search(sources, options, threads, **more, watch=watch)
        options = replace(options, max_len=backend.reranker.max_positions - 1)
        hypotheses = backend.model.search(sources, options, threads, **more, watch=watch)
        return self._reranked(backend.reranker, sources, hypotheses, threads)

    def _reranked(
        self, reranker: Model, sources: list[list[int]], hypotheses: list[list[Hypothesis]], threads: int
    ) -> list[list[Hypothesis]]:
        """Hypotheses with another model's scores, best first; those of sources without words stay as they are."""
        chosen = [index for index, of_source in enumerate(hypotheses) if any(each.steps for each in of_source)]
        texts = [[each.tokens for each in hypotheses[index]] for index in chosen]
        scores = reranker.score([sources[index] for index in chosen], texts, self.options, threads)
        results = [*hypotheses]
        for index, scored in zip(chosen, scores, strict=True):
            found = [
                replace(each, token_scores=new.token_scores, score=new.score)
                for each, new in zip(hypotheses[index], scored, strict=True)
            ]
            results[index] = sorted(found, key=lambda each: -each.score)
        return results

    def _found(self, hypothesis: Hypothesis, given: Given, source: str) -> Found:
        """Without the tokens of languages, as fairseq has it."""
        symbols = self._symbols
        kept = [place for place, token in enumerate(hypothesis.tokens) if token not in symbols]
        pieces = shown(self._pieces(hypothesis.tokens).split(), given)
        found = Found(" ".join(pieces), hypothesis.score, hypothesis.steps)
        return self._aligned(found, hypothesis, kept, source.split()) if hypothesis.alignment else found

    def _aligned(self, found: Found, hypothesis: Hypothesis, kept: list[int], source: list[str]) -> Found:
        """With what the options say of the alignment of the tokens that are kept: with words of the source, not with
        its symbols and tokens of languages."""
        tokens, before = self.backend.own.source.encode(" ".join(source))[:-1], len(self.around.before)
        words = [place for place, token in enumerate(tokens) if token not in (PAD, EOS)]
        rows = [hypothesis.attention[place][before : before + len(source)] for place in kept]
        alignment = tuple((max(words, key=row.__getitem__), index) for index, row in enumerate(rows) if words)
        if self.translations is not None:
            pieces = replaced(found.pieces.split(), source, alignment, self.translations)
            found = replace(found, pieces=" ".join(pieces))
        if self.alignment == "soft":
            return replace(found, attention=tuple(map(tuple, rows)))
        return replace(found, alignment=alignment) if self.alignment else found

    @property
    def _symbols(self) -> set[int]:
        """The tokens that are not of a translation."""
        return {*self.around.given, self.around.start, self.around.end, BOS, EOS}

    def _pieces(self, tokens: Sequence[int]) -> str:
        symbols = self._symbols
        return self.backend.own.target.decode(token for token in tokens if token not in symbols)


@dataclass(frozen=True)
class EngineDrafter:
    """Drafts whole sentences with a model.

    Attributes:
        options: of its fastest search.
        shortlist: of the words that drafts may have.
        threads: that it works with.
    """

    model: EngineModel
    options: Any
    shortlist: Shortlist | None = None
    threads: int = 1

    def begin(self, sources: Sequence[Sequence[int]]) -> list[SentenceDraft]:
        found = self.model.search(sources, self.options, self.threads, shortlist=self.shortlist)
        return [SentenceDraft(hypotheses[0].tokens if hypotheses else []) for hypotheses in found]


def shared_out(batches: int, inter_threads: int | None = None, intra_threads: int | None = None) -> tuple[int, int]:
    """The number of searches at a time, and of threads of each. Unless both are given, all of them together are
    ``OMP_NUM_THREADS``, or as many as there are processors that this process may use. Searches of one thread wait for
    nothing: there are as many as batches allow.

    Args:
        batches: to search.
        inter_threads: searches at a time.
        intra_threads: threads of each.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    total = int(given) if given.isdecimal() and int(given) > 0 else len(os.sched_getaffinity(0))
    searches = max(1, min(batches, inter_threads or total // (intra_threads or 1)))
    return searches, intra_threads or max(1, total // searches)


def _batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The indices of sentences in batches of similar length: of at most ``max_tokens``, unless one alone has more."""
    batches: list[list[int]] = []
    size = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or len(batches[-1]) == MAX_SENTENCES or size + lengths[index] > max_tokens:
            batches.append([])
            size = 0
        batches[-1].append(index)
        size += lengths[index]
    return batches
