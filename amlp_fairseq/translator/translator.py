"""Raw text in, translations out, for every system of the plugin and fairseq's Transformers."""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from amlp_fairseq.common.renamed_options import with_present_names
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.model_folder.config import members, read_config, splits_sentences
from amlp_fairseq.text import sentences
from amlp_fairseq.text.languages import writes_spaces
from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.translator.backend import Backend, Found, Search, check_counts
from amlp_fairseq.translator.engine_backend import EngineBackend
from amlp_fairseq.translator.given import Given
from amlp_fairseq.translator.options import CallOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from amlp_fairseq.translator.options import Options
    from amlp_fairseq.translator.pytorch_backend import PyTorchBackend

logger = logging.getLogger(__name__)

#: What precedes a reason for PyTorch.
LACKS = "the engine does not have"


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
    """The translation of a text.

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


@dataclass(frozen=True)
class Score:
    """The score of a translation that was given.

    Attributes:
        score: see :class:`Translation`.
        pieces: of the translation.
        of_pieces: the log-probability of each, and of the end, in nats.
    """

    score: float
    pieces: tuple[str, ...]
    of_pieces: tuple[float, ...]


@dataclass(frozen=True)
class _Source:
    """A part of a text, with the white space after it; it has no pieces where there is nothing to translate."""

    text: str
    pieces: str
    space: str
    cut: bool = False


class Translator:
    """A model folder, loaded. Threads may share it: the engine serves them side by side, PyTorch one after the other.
    ``with`` closes it at the end.

    Args:
        folder: made by ``amlp-fairseq package``; several folders, or ``"A:B"``: models that decode as one, with the
            mean of their probabilities (an ensemble).
        device: ``cpu``, ``cuda``, ``cuda:1``, …
        max_tokens: source pieces of a batch, padding included.
        split_sentences: translate the sentences of a text one by one, and keep its line feeds. Otherwise a text is read
            as a whole, its line feeds as spaces. By default as the folder says: models that translate split, models
            that summarise do not.
        long: what to do with a sentence (or whole text) that is too long for the model: ``split`` it between words,
            ``truncate`` it (the rest is not read), or ``refuse`` it. ``Translation.cuts`` says where that happened.
        max_length: the most source pieces that are not too long; by default what the folder says, which
            ``amlp-fairseq package`` has from the training.
        backend: what decodes: the ``engine`` in C++, or ``pytorch``. By default the engine, where it has the model, the
            device is ``cpu`` and it has the decoding options, and PyTorch elsewhere.
        inter_threads: batches that the engine searches at a time. By default as many as there are batches and threads.
        intra_threads: threads of each. By default those of ``OMP_NUM_THREADS``, or the processors, shared out.
        options: decoding options that win over those of the folder, by the names of fairseq-generate's and the task's
            flags: ``beam=4``, ``lenpen=0.6``, ``nbest=3``, ``decode_dtype="int8"``, ``iter_decode_max_iter=4``, …
            (``options.Options`` has all of them). Weights that are stored as int8 decode in int8 where the device can,
            unless ``decode_dtype`` is given.

    Attributes:
        why_pytorch: why PyTorch decodes with the options of the folder and those above; empty if the engine does. The
            log says it, too, and the same of calls with options of their own.

    Raises:
        ValueError: for a folder that is not a model or is damaged, and for an argument outside its range.
    """

    def __init__(
        self,
        folder: str | Path | Sequence[str | Path],
        *,
        device: str = "cpu",
        max_tokens: int = 4000,
        split_sentences: bool | None = None,
        long: str = "split",
        max_length: int | None = None,
        backend: Literal["engine", "pytorch"] | None = None,
        inter_threads: int | None = None,
        intra_threads: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        if long not in sentences.LONG:
            raise ValueError(f"long={long!r}: choose one of {', '.join(sentences.LONG)}")
        if split_sentences not in (None, True, False):
            raise ValueError(f"split_sentences={split_sentences!r}: True or False is needed")
        counts = {"max_length": max_length, "inter_threads": inter_threads, "intra_threads": intra_threads}
        check_counts(max_tokens=max_tokens, **{name: value for name, value in counts.items() if value is not None})
        self.folders, self.long, self.max_tokens, self.device = members(folder), long, max_tokens, device
        self.folder = self.folders[0]
        self.config, self._options = read_config(self.folder), with_present_names(options)
        config = self.config
        _check_alike(self.folders)
        self.split_sentences = splits_sentences(config) if split_sentences is None else split_sentences
        self.languages: tuple[str, str] = (config["languages"][0], config["languages"][1])
        self.text = TextPipeline.of(self.folder, self.languages, config["text"])
        self._lock, self._process, self._closed = threading.Lock(), os.getpid(), False
        self.why_pytorch = "" if device == "cpu" else f"{LACKS} the device {device}"
        if backend == "pytorch":
            self.why_pytorch = "backend='pytorch'"
        self._reported: str | None = None
        self._engine: EngineBackend | None = None
        self._pytorch: PyTorchBackend | None = None
        if not self.why_pytorch:
            try:
                threads = inter_threads, intra_threads
                engine = EngineBackend(self.folder, config, max_tokens, self._options, *threads, self.folders[1:])
                engine.search({})  # refuses options that do not go together
                self._engine = engine
            except UnsupportedError as error:
                self.why_pytorch = f"{LACKS} {error}"
            except ImportError as error:
                self.why_pytorch = str(error)
        if backend == "engine" and self._engine is None:
            raise ValueError(f"backend='engine': {self.why_pytorch}")
        self._report(self.why_pytorch)
        loaded: Backend = self._engine or self.pytorch()
        self.nbest, limit = loaded.search({}).nbest, loaded.max_pieces
        if max_length is not None and max_length > limit:
            raise ValueError(f"max_length={max_length}: {self.folder} has positions for at most {limit} pieces")
        self.max_length = max_length or min(config["longest_source"] or limit, limit)

    def pytorch(self) -> PyTorchBackend:
        """The model in PyTorch, which is loaded by the first call that needs it.

        Raises:
            ValueError: for a decoding option outside its range.
        """
        try:
            from amlp_fairseq.translator.pytorch_backend import PyTorchBackend  # takes seconds
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "fairseq", "omegaconf"):
                raise
            raise ValueError(
                f"{self.folder}: this needs PyTorch and fairseq, which are not installed: "
                'pip install "amlp-fairseq[train]"'
            ) from None
        with self._lock:
            if self._pytorch is None:
                self._pytorch = PyTorchBackend(self.folders, self.config, self.device, self.max_tokens, self._options)
            return self._pytorch

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.device
        folders = ":".join(map(str, self.folders))
        return f"<Translator {folders}: {' to '.join(self.languages)}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model; what other threads are translating is finished."""
        with self._lock:
            self._engine = self._pytorch = None
            self._closed = True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Translator cannot be copied or pickled: make another one, Translator(folder)")

    def translate(self, lines: Sequence[str], **options: Unpack[CallOptions]) -> list[str]:
        """The translations of texts, in their order. ``options`` are decoding options for this call alone."""
        return [translation.text for translation in self.translations(lines, **options)]

    def translations(
        self,
        lines: Sequence[str],
        *,
        target_prefixes: Sequence[str] | None = None,
        target_suffixes: Sequence[str] | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Translation]:
        """The same with scores, decoder calls and what the decoding options ask for.

        Args:
            lines: texts.
            target_prefixes: what the translation of each text must begin with. Sentences of a prefix belong to those of
                the text, one by one. The last word may go on, unless a space follows it.
            target_suffixes: what each must end with, for models that write from both ends.
            options: decoding options for this call alone.

        Raises:
            TypeError: for a single string, and for what is not one.
            ValueError: for half a surrogate pair, which is not text; for an option outside its range, or which must be
                given when the model is loaded; for a prefix or suffix of an empty text, of another number of texts, or
                that the model does not write first.
            RuntimeError: after :meth:`close`.
            sentences.TooLong: for the first input that is too long, with ``long="refuse"``, or has a character that
                is too long itself.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        search = self._search(with_present_names(options))
        sources = [list(self._parts(line, number)) for number, line in enumerate(lines, 1)]
        given = self._given(sources, target_prefixes, target_suffixes)
        decoded = iter(self._decode([part for line in sources for part in line if part.pieces], given, search))
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
        """Parts of a text that are translated one by one: sentences, and parts of sentences that are too long."""
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

    def _given(
        self, sources: list[list[_Source]], prefixes: Sequence[str] | None, suffixes: Sequence[str] | None
    ) -> list[Given]:
        """What is given of the translation of each part; empty if nothing is."""
        if prefixes is None and suffixes is None:
            return []
        result: list[Given] = []
        begins, ends = (_of_texts(texts, len(sources)) for texts in (prefixes, suffixes))
        for number, (line, begin, end) in enumerate(zip(sources, begins, ends, strict=True), 1):
            parts = sum(bool(part.pieces) for part in line)
            if not parts and (begin.strip() or end.strip()):
                raise ValueError(f"text {number} is empty, its target prefix or suffix is not: {begin or end!r}")
            result += self._given_of_text(parts, begin, end)
        return result

    def _given_of_text(self, parts: int, begin: str, end: str) -> Iterator[Given]:
        """The sentences before the last that is given are whole."""
        split = sentences.split(begin, self.languages[1]) if parts > 1 else [(begin, "")]
        found = [sentence for sentence, _ in split if sentence.strip()]
        found[parts - 1 :] = [" ".join(found[parts - 1 :])] if len(found) >= parts else []
        for index in range(parts):
            first = found[index] if index < len(found) else ""
            yield Given(
                first=tuple(self.text.encode(first, side=1).split()),
                last=tuple(self.text.encode(end, side=1).split()) if index == parts - 1 else (),
                goes_on=index == len(found) - 1 and not begin[-1].isspace(),
                is_whole=index < len(found) - 1,
            )

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        """Scores of translations that are given: the log-probabilities of their pieces. A text and its translation are
        read as wholes; by models that write word by word.

        Raises:
            ValueError: for another number of translations, what is too long, and a model that the engine does not have.
        """
        search = self._search({})
        if len(sources) != len(targets):
            raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets")
        pairs = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
            for text in (source, target):
                _check_text(text, number)
            pieces = self.text.encode(source), self.text.encode(target, side=1)
            if (count := len(pieces[0].split())) > self.max_length:
                raise sentences.TooLong(number, f"{count} pieces, at most {self.max_length} are allowed")
            pairs.append(pieces)
        found = search.score([source for source, _ in pairs], [target for _, target in pairs])
        return [
            Score(each.score, tuple(target.split()), each.of_pieces)
            for each, (_, target) in zip(found, pairs, strict=True)
        ]

    def _decode(self, sources: list[_Source], given: list[Given], search: Search) -> list[Part]:
        found = search([source.pieces for source in sources], given)
        return [self._part(source, translations) for source, translations in zip(sources, found, strict=True)]

    def _search(self, options: dict[str, Any]) -> Search:
        """The search with the options of a call."""
        if self._process != os.getpid():  # it would wait for threads that a fork does not copy
            raise RuntimeError("this Translator is of another process: make one in each, or start them with spawn")
        if self._closed:
            raise RuntimeError(f"{self!r}: make another one, Translator(folder)")
        engine, why_pytorch = self._engine, self.why_pytorch
        if engine is not None and options.keys() <= CallOptions.__annotations__.keys():
            try:
                search = engine.search(options)
                self._report("")
                return search
            except UnsupportedError as error:
                why_pytorch = f"{LACKS} {error}"
        self._report(why_pytorch)
        return self.pytorch().search(options)

    def _report(self, why_pytorch: str) -> None:
        """Log what decodes, once until it changes."""
        if why_pytorch != self._reported:
            self._reported = why_pytorch
            logger.info("%s: %s", self.folder, f"PyTorch decodes: {why_pytorch}" if why_pytorch else self._engine)

    def _part(self, source: _Source, found: Sequence[Found]) -> Part:
        best = found[0]
        return Part(
            source=source.text,
            text=self.text.decode(best.pieces),
            score=best.score,
            calls=best.calls,
            alternatives=tuple((self.text.decode(each.pieces), each.score) for each in found[1:]),
            alignment=best.alignment,
            source_pieces=tuple(source.pieces.split()),
            pieces=tuple(best.pieces.split()),
            cut=source.cut,
        )


def _check_alike(folders: Sequence[Path]) -> None:
    """Raise ValueError for models that read or write different text; names the second one."""
    first, *others = ((folder, read_config(folder)) for folder in folders)
    for folder, config in others:
        for name in ("languages", "text"):
            if config[name] != first[1][name]:
                found = f"{config[name]} and {first[1][name]}"
                raise ValueError(f"{folder} and {first[0]} do not decode as one: their {name} are {found}")


def _of_texts(texts: Sequence[str] | None, count: int) -> Sequence[str]:
    if isinstance(texts, str):
        raise TypeError("a prefix for each text is needed, in a list")
    if texts is None:
        return [""] * count
    if len(texts) != count:
        raise ValueError(f"there are {count} texts, and {len(texts)} prefixes or suffixes")
    for number, text in enumerate(texts, 1):
        _check_text(text, number)
    return texts


def _check_text(line: str, number: int) -> None:
    if not isinstance(line, str):
        raise TypeError(f"text {number} is of type {type(line).__name__}: a string is needed")
    try:
        line.encode()
    except UnicodeEncodeError as error:
        found = f"{line[error.start]!r} at character {error.start}"
        raise ValueError(f"text {number} has half a surrogate pair, {found}: it is not text") from None


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
