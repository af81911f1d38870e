"""Raw text in, translations out, for every system of the plugin and fairseq's Transformers."""

from __future__ import annotations

import copy
import heapq
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from numbers import Integral
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from fairseq import checkpoint_utils, utils

from amlp_fairseq.common.arguments import refuse_unknown
from amlp_fairseq.common.renamed_options import with_present_names
from amlp_fairseq.compat.tasks import with_steps
from amlp_fairseq.model_folder.format import read_config, splits_sentences
from amlp_fairseq.text import sentences
from amlp_fairseq.text.languages import writes_spaces
from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.options import CallOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from amlp_fairseq.translator.options import Options

#: Continuations of decoding that are kept, of those that calls have asked for.
MOST_SEARCHES = 16
#: What generators share: inference models, and the auxiliary ones.
SHARED = frozenset({"inference_models", "reranker", "reranking_model", "drafter"})


@dataclass(frozen=True)
class Part:
    """A sentence of a text, or a part of one that is too long: what was translated by itself.

    Attributes:
        source: its text.
        cut: True if the sentence goes on after it.

    The others are those of :class:`Translation`.
    """

    source: str
    text: str
    score: float = 0.0
    calls: int = 0
    alternatives: tuple[tuple[str, float], ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    source_pieces: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class Translation:
    """What became of a text.

    Attributes:
        text: the translation.
        score: what it was chosen by: the log-probability divided by the length penalty, in nats (fairseq-generate has
            bits); the mean over parts; 0 for an empty text.
        calls: decoder calls, summed over parts.
        alternatives: further texts with their scores, best first (``nbest``); of several parts the best combinations of
            what was found for each.
        alignment: pairs of a source and a target piece, counted from 0 over all parts (``print_alignment``).
        source_pieces, pieces: what the model read and wrote, part after part.
        cuts: places where a sentence was cut, because it is too long for the model.
        parts: what was translated by itself, in order; empty where that is the whole text.
    """

    text: str
    score: float = 0.0
    calls: int = 0
    alternatives: tuple[tuple[str, float], ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    source_pieces: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    cuts: int = 0
    parts: tuple[Part, ...] = ()


class _Search(NamedTuple):
    """A model, a generator of fairseq's interface for it, and how many of its hypotheses are wanted."""

    model: Any
    generator: Any
    nbest: int


@dataclass(frozen=True)
class _Source:
    """A part of a text, with the white space after it; it has no pieces where there is nothing to translate."""

    text: str
    pieces: str
    space: str
    cut: bool = False


class Translator:
    """A model folder, loaded. Threads may share it; they decode one after the other. ``with`` closes it at the end.

    Args:
        folder: made by ``amlp-fairseq package``.
        device: ``cpu``, ``cuda``, ``cuda:1``, …
        max_tokens: source pieces of a batch, padding included.
        split_sentences: translate the sentences of a text one by one, and keep its line feeds. Otherwise a text is read
            as a whole, its line feeds as spaces. By default as the folder says: models that translate split, models
            that summarise do not.
        long: what to do with a sentence (or whole text) that is too long for the model: ``split`` it between words,
            ``truncate`` it (the rest is not read), or ``refuse`` it. ``Translation.cuts`` says where that happened.
        max_length: the most source pieces that are not too long; by default what the folder says, which
            ``amlp-fairseq package`` has from the training.
        options: decoding options that win over those of the folder, by the names of fairseq-generate's and the task's
            flags: ``beam=4``, ``lenpen=0.6``, ``nbest=3``, ``decode_dtype="int8"``, ``iter_decode_max_iter=4``, …
            (``options.Options`` has all of them). Weights that are stored as int8 decode in int8 where the device can,
            unless ``decode_dtype`` is given.

    Raises:
        ValueError: for a folder that is not a model or is damaged, and for an argument outside its range.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "cpu",
        max_tokens: int = 4000,
        split_sentences: bool | None = None,
        long: str = "split",
        max_length: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        if long not in sentences.LONG:
            raise ValueError(f"long={long!r}: choose one of {', '.join(sentences.LONG)}")
        if split_sentences not in (None, True, False):
            raise ValueError(f"split_sentences={split_sentences!r}: True or False is needed")
        _check_counts(max_tokens=max_tokens, **({} if max_length is None else {"max_length": max_length}))
        self.folder, self.long, self.max_tokens = Path(folder), long, max_tokens
        config, overrides = read_config(self.folder), with_present_names(options)
        self.split_sentences = splits_sentences(config) if split_sentences is None else split_sentences
        self.languages: tuple[str, str] = (config["languages"][0], config["languages"][1])
        decoding_options.check({**config["decoding"], **overrides}, config["task"]["_name"])
        self.text = TextPipeline.of(self.folder, self.languages, config["text"])
        (self.model,), self.cfg, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [str(self.folder)], arg_overrides=overrides
        )
        refuse_unknown(overrides, sorted(decoding_options.known(config["task"]["_name"])), "Translator")
        self.nbest = _nbest(self.cfg.generation)
        self.device = _device(device)
        self.cfg.generation.no_beamable_mm = True  # fconv would take the beam of all calls for granted
        self.model.prepare_for_inference_(self.cfg)
        self.model.to(self.device)
        decoding_options.set_decode_dtype(self.task, self.model, config["weights"])
        generator = self.task.build_generator([self.model], self.cfg.generation)
        self._own: _Search | None = _Search(self.model, generator, self.nbest)
        self._others: dict[str, _Search] = {}
        limit, _ = utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions())
        limit -= 2  # two symbols may be added
        if max_length is not None and max_length > limit:
            raise ValueError(f"max_length={max_length}: {self.folder} has positions for at most {limit} pieces")
        self.max_length = max_length or min(config["longest_source"] or limit, limit)
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        state = self.device if self._own else "closed"
        return f"<Translator {self.folder}: {' to '.join(self.languages)}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model; what other threads are translating is finished."""
        with self._lock:
            self.model = self._own = None
            self._others.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Translator cannot be copied or pickled: make another one, Translator(folder)")

    def translate(self, lines: Sequence[str], **options: Unpack[CallOptions]) -> list[str]:
        """The translations of texts, in their order. ``options`` are decoding options for this call alone."""
        return [translation.text for translation in self.translations(lines, **options)]

    def translations(self, lines: Sequence[str], **options: Unpack[CallOptions]) -> list[Translation]:
        """The same with scores, decoder calls and what the decoding options ask for.

        Raises:
            TypeError: for a single string, and for what is not one.
            ValueError: for half a surrogate pair, which is not text; for an option outside its range, or which must be
                given when the model is loaded.
            RuntimeError: after :meth:`close`.
            sentences.TooLong: for the first input that is too long, with ``long="refuse"``, or has a character that
                is too long itself.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        alignment = options.get("print_alignment", self.cfg.generation.print_alignment)
        if alignment not in (None, "hard"):
            raise ValueError(f"print_alignment={alignment!r}: {decoding_options.PAIRS}")
        search = self._search(with_present_names(options))
        sources = [list(self._parts(line, number)) for number, line in enumerate(lines, 1)]
        decoded = iter(self._decode([part for line in sources for part in line if part.pieces], search))
        return [
            self._joined([(part, next(decoded) if part.pieces else None) for part in line], search.nbest)
            for line in sources
        ]

    def check(self, line: str) -> None:
        """Read a text without translating it.

        Raises:
            sentences.TooLong: as :meth:`translations` does; its number is 1.
        """
        for _ in self._parts(line, 1):
            pass

    def _parts(self, line: str, number: int) -> Iterator[_Source]:
        """What is translated by itself: sentences, and the parts of those that are too long."""
        _check_text(line, number)
        whole = [(" ".join(line.split()), "")]
        for text, space in sentences.split(line, self.languages[0]) if self.split_sentences else whole:
            pieces = self.text.encode(text)
            count = len(pieces.split())
            if count <= self.max_length:
                yield _Source(text, pieces, space)
                continue
            if self.long == "refuse":
                most = f"at most {self.max_length} are allowed: --long split, or a larger --max-length"
                raise sentences.TooLong(number, f"{count} pieces, {most}")
            yield from self._cut(text, space, number)

    def _cut(self, text: str, space: str, number: int) -> Iterator[_Source]:
        def fits(part: str) -> bool:
            return len(self.text.encode(part).split()) <= self.max_length

        whole_sentences = self.long == "split" and not self.split_sentences
        parts = sentences.cut(text, self.languages[0], fits, at_sentences=whole_sentences)
        try:
            part, following = next(parts)
            if self.long == "split":
                for another, space_after in parts:
                    yield _Source(part, self.text.encode(part), following, cut=True)
                    part, following = another, space_after
            yield _Source(part, self.text.encode(part), space, cut=self.long == "truncate")
        except ValueError as error:
            raise sentences.TooLong(number, str(error)) from None

    def _joined(self, line: list[tuple[_Source, Part | None]], nbest: int) -> Translation:
        """The translation of a text from those of its parts."""
        parts = [part for _, part in line if part is not None]
        spaces = [source.space for source, _ in line]

        def text(parts_of_text: Iterator[str]) -> str:
            return self._text([next(parts_of_text) if part else "" for _, part in line], spaces)

        result = Translation(text(iter([part.text for part in parts])))
        if not parts:
            return result
        found = _best_combinations([[(part.text, part.score), *part.alternatives] for part in parts], nbest)
        sources = accumulate((len(part.source_pieces) for part in parts), initial=0)
        targets = accumulate((len(part.pieces) for part in parts), initial=0)
        return replace(
            result,
            score=sum(part.score for part in parts) / len(parts),
            calls=sum(part.calls for part in parts),
            alternatives=tuple((text(iter(texts)), score / len(parts)) for texts, score in found),
            alignment=tuple(
                (source + first, target + second)
                for part, first, second in zip(parts, sources, targets, strict=False)
                for source, target in part.alignment
            ),
            source_pieces=tuple(piece for part in parts for piece in part.source_pieces),
            pieces=tuple(piece for part in parts for piece in part.pieces),
            cuts=sum(part.cut for part in parts),
            parts=tuple(parts) if len(parts) > 1 else (),
        )

    def _text(self, texts: Sequence[str], spaces: Sequence[str]) -> str:
        """Translations of parts as one text. Between them stand the line feeds of the source, with the spaces around
        them, or what the target language writes; nothing where a word was cut."""
        result, between = "", ""
        for text, space in zip(texts, spaces, strict=True):
            if text:
                result, between = result + between + text, ""
            if "\n" in space:
                result, between = result + space, ""
            elif text:
                in_word = not space and writes_spaces(self.languages[0])
                between = "" if in_word or not writes_spaces(self.languages[1]) else " "
        return result

    def _decode(self, parts: list[_Source], search: _Search) -> list[Part]:
        found = self.hypotheses([part.pieces for part in parts], search)
        return [self._part(part, each[: search.nbest]) for part, each in zip(parts, found, strict=True)]

    def _search(self, options: dict[str, Any]) -> _Search:
        """The way of decoding with options of a call."""
        if self._process != os.getpid():  # it would wait for threads that a fork does not copy
            raise RuntimeError("this Translator is of another process: make one in each, or start them with spawn")
        with self._lock:
            if self._own is None:
                raise RuntimeError(f"{self!r}: make another one, Translator(folder)")
            if not options:
                return self._own
            key = repr(sorted(options.items()))
            if key not in self._others:
                search = self._new_search(self._own, options)
                if len(self._others) == MOST_SEARCHES:
                    del self._others[next(iter(self._others))]
                self._others[key] = search
            return self._others[key]

    def _new_search(self, own: _Search, options: dict[str, Any]) -> _Search:
        name = self.task.cfg._name
        known = decoding_options.known(name)
        refuse_unknown(options, sorted(known), "translate")
        if of_all := sorted(options.keys() - CallOptions.__annotations__.keys()):
            raise ValueError(
                f"{of_all[0]} cannot be given for one call: Translator({str(self.folder)!r}, {of_all[0]}=…)"
            )
        decoding_options.check(options, name)
        cfg, task = copy.deepcopy(self.cfg.generation), copy.copy(self.task)
        task.cfg = copy.deepcopy(task.cfg)
        for option, value in options.items():
            setattr(cfg if option in cfg else task.cfg, option, value)
        nbest = _nbest(cfg)
        generator = task.build_generator([own.model], cfg)
        for shared in SHARED & vars(generator).keys():
            setattr(generator, shared, getattr(own.generator, shared))
        return _Search(own.model, generator, nbest)

    def hypotheses(self, sources: list[str], search: _Search | None = None) -> list[list[dict[str, Any]]]:
        """What fairseq's generators find for sentences, given as pieces: the best hypothesis of each first. Batches are
        made of sentences of similar length."""
        model, generator, _ = search or self._search({})
        if not sources:
            return []
        index, eos = self.task.source_dictionary.index, self.task.source_dictionary.eos()
        tokens = [torch.tensor([*map(index, each.split()), eos]) for each in sources]
        lengths = [len(each) for each in tokens]
        dataset = self.task.build_dataset_for_inference(tokens, lengths)
        by_length, most = np.argsort(lengths, kind="stable"), max(self.max_tokens, max(lengths) + 1)
        found: dict[int, list[dict[str, Any]]] = {}
        for rows in dataset.batch_by_size(by_length, max_tokens=most) if len(tokens) > 1 else [[0]]:
            batch = dataset.collater([dataset[row] for row in rows])
            with self._lock:
                moved = utils.move_to_cuda(batch, self.device) if self.device.type == "cuda" else batch
                hypotheses = with_steps(self.task.inference_step(generator, [model], moved))
            found.update(zip(batch["id"].tolist(), hypotheses, strict=True))
        return [found[row] for row in range(len(sources))]

    def _part(self, source: _Source, hypotheses: list[dict[str, Any]]) -> Part:
        best, *others = hypotheses
        pieces = self._pieces(best)
        alignment = best["alignment"] if best["alignment"] is not None else ()
        return Part(
            source=source.text,
            text=self.text.decode(pieces),
            score=float(best["score"]),
            calls=int(best["steps"]),
            alternatives=tuple((self.text.decode(self._pieces(each)), float(each["score"])) for each in others),
            alignment=tuple((int(pair[0]), int(pair[1])) for pair in alignment) if len(alignment) else (),
            source_pieces=tuple(source.pieces.split()),
            pieces=tuple(pieces.split()),
            cut=source.cut,
        )

    def _pieces(self, hypothesis: dict[str, Any]) -> str:
        return str(self.task.target_dictionary.string(hypothesis["tokens"].tolist()))


def _nbest(generation: Any) -> int:
    """How many hypotheses are asked for.

    Raises:
        ValueError: for more than the beam finds.
    """
    beam, nbest = generation.beam, generation.nbest
    _check_counts(beam=beam, nbest=nbest)
    if nbest > beam:
        raise ValueError(f"nbest={nbest} is more than beam={beam} finds: raise beam, or lower nbest")
    return int(nbest)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={value!r}: a whole number from 1 is needed")


def _check_text(line: str, number: int) -> None:
    if not isinstance(line, str):
        raise TypeError(f"text {number} is of type {type(line).__name__}: a string is needed")
    try:
        line.encode()
    except UnicodeEncodeError as error:
        found = f"{line[error.start]!r} at character {error.start}"
        raise ValueError(f"text {number} has half a surrogate pair, {found}: it is not text") from None


def _device(name: str) -> torch.device:
    try:
        torch.empty(0, device=name).tolist()
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def _best_combinations(found: Sequence[Sequence[tuple[str, float]]], count: int) -> list[tuple[tuple[str, ...], float]]:
    """After the best one, the best combinations of what was found for each part, with the sums of their scores.

    Args:
        found: for each part texts with their scores, best first.
        count: of combinations, with the best one.
    """
    best: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for part in found if count > 1 else ():
        longer = (((*ranks, rank), total + score) for ranks, total in best for rank, (_, score) in enumerate(part))
        best = heapq.nlargest(count, longer, key=itemgetter(1))
    others = [(ranks, total) for ranks, total in best if any(ranks)][: count - 1]
    return [(tuple(part[rank][0] for part, rank in zip(found, ranks, strict=True)), total) for ranks, total in others]
