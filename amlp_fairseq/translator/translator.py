"""Raw text in, translations out, for every system of the plugin and fairseq's Transformers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from amlp_fairseq.common.renamed_options import with_present_names
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.model_folder.config import members, read_config, splits_sentences
from amlp_fairseq.model_folder.language_tokens import KEY, LanguageTokens
from amlp_fairseq.text import sentences
from amlp_fairseq.text.documents import Document
from amlp_fairseq.text.inline import KEEP
from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.translator.backend import Backend, Search, check_counts
from amlp_fairseq.translator.documents import put
from amlp_fairseq.translator.engine_backend import EngineBackend, check_own
from amlp_fairseq.translator.given import Given
from amlp_fairseq.translator.options import CallOptions
from amlp_fairseq.translator.stream import Stream, Tell
from amlp_fairseq.translator.texts import Part, Partial, Texts, Translation, check_text

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from amlp_fairseq.translator.options import Options
    from amlp_fairseq.translator.pytorch_backend import PyTorchBackend

logger = logging.getLogger(__name__)

#: What precedes a reason for PyTorch.
LACKS = "the engine does not have"


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
        source_lang, target_lang: codes of the languages of a multilingual model; by default those of the folder.
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
        source_lang: str | None = None,
        target_lang: str | None = None,
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
        self.tokens = LanguageTokens.of(config)
        self.languages: tuple[str, str] = (config["languages"][0], config["languages"][1])
        self.languages = self.pair(source_lang, target_lang)
        self._pipelines = {self.languages: TextPipeline.of(self.folder, self.languages, config["text"])}
        self._options = self._with_pieces(self._options, self.languages)
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
                engine.search({}, self.languages)  # refuses options that do not go together
                self._engine = engine
            except UnsupportedError as error:
                self.why_pytorch = f"{LACKS} {error}"
            except ImportError as error:
                self.why_pytorch = str(error)
        if backend == "engine" and self._engine is None:
            raise ValueError(f"backend='engine': {self.why_pytorch}")
        self._report(self.why_pytorch)
        loaded: Backend = self._engine or self.pytorch()
        self.nbest, limit = loaded.search({}, self.languages).nbest, loaded.max_pieces
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

    def translate(
        self,
        lines: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[str]:
        """The translations of texts, in their order; see :meth:`translations`."""
        found = self.translations(lines, source_lang=source_lang, target_lang=target_lang, **options)
        return [translation.text for translation in found]

    def translations(
        self,
        lines: Sequence[str],
        *,
        target_prefixes: Sequence[str] | None = None,
        target_suffixes: Sequence[str] | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Translation]:
        """The same with scores, decoder calls and what the decoding options ask for.

        Args:
            lines: texts.
            target_prefixes: what the translation of each text must begin with. Sentences of a prefix belong to those of
                the text, one by one. The last word may go on, unless a space follows it.
            target_suffixes: what each must end with, for models that write from both ends.
            source_lang, target_lang: codes of the languages of a multilingual model; by default the Translator's.
            options: decoding options for this call alone.

        Raises:
            TypeError: for a single string, and for what is not one.
            ValueError: for half a surrogate pair, which is not text; for an option outside its range, or which must be
                given when the model is loaded; for a prefix or suffix of an empty text, of another number of texts, or
                that the model does not write first; for a language that the model does not have.
            RuntimeError: after :meth:`close`.
            sentences.TooLong: for the first input that is too long, with ``long="refuse"``, or has a character that
                is too long itself.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        languages = self.pair(source_lang, target_lang)
        search, texts = self._search(with_present_names(options), languages), self._texts(languages)
        sources = [list(texts.parts(line, number)) for number, line in enumerate(lines, 1)]
        given = texts.given(sources, target_prefixes, target_suffixes)
        parts = [part for line in sources for part in line if part.pieces]
        try:
            found = search([part.pieces for part in parts], given)
        except sentences.TooLong as error:  # what is given
            owners = [number for number, line in enumerate(sources, 1) for part in line if part.pieces]
            raise sentences.TooLong(owners[error.number - 1], str(error)) from None
        decoded = iter([texts.part(part, translations) for part, translations in zip(parts, found, strict=True)])
        return [
            texts.joined([(part, next(decoded) if part.pieces else None) for part in line], search.nbest)
            for line in sources
        ]

    def stream(
        self,
        text: str,
        *,
        target_prefix: str = "",
        target_suffix: str = "",
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Stream[Partial]:
        """The translation of a text while it is written, sentence after sentence: what there is of the best hypothesis
        after each decoder call; the last one is complete. With ``beam=1`` words stay as they are written. Where PyTorch
        decodes, and with drafts, sentences come as wholes. ``close()`` ends it early.

        Args:
            text: one text.
            others: see :meth:`translations`, which has the same errors.
        """
        if not isinstance(text, str):
            raise TypeError("stream takes one text")
        languages = self.pair(source_lang, target_lang)
        search, texts = self._search(with_present_names(options), languages), self._texts(languages)
        line = list(texts.parts(text, 1))
        begin, end = [target_prefix] if target_prefix else None, [target_suffix] if target_suffix else None
        given = texts.given([line], begin, end)

        def work(tell: Tell[Partial]) -> None:
            done: list[Part | None] = []
            of_parts = iter(given)
            for source in line:
                part = None
                if source.pieces:
                    before = texts.before(line, done)

                    def watch(runs: Sequence[str], before: str = before) -> None:
                        tell(Partial(before, tuple(map(texts.pipeline.decode, runs))))

                    found = search.watched(source.pieces, next(of_parts, Given()), watch)
                    part = texts.part(source, found)
                    if any(rest.pieces for rest in line[len(done) + 1 :]):
                        tell(Partial(before, (part.text,)))
                done.append(part)
            complete = texts.joined(list(zip(line, done, strict=True)), search.nbest)
            tell(Partial("", (complete.text,), complete))

        return Stream(work)

    def translate_document(
        self,
        text: str,
        format: str = "text",
        *,
        keep: Sequence[str] = (),
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[CallOptions],
    ) -> str:
        """The translation of a document, whose form stays: every part in its place, its markup around the words that
        are aligned with its own.

        Args:
            text: the whole document.
            format: ``text`` or ``html``.
            keep: regular expressions of what is not translated, beside addresses and placeholders.
            others: see :meth:`translations`, which has the same errors.

        Raises:
            ValueError: for another format, a text that is not of it, and a pattern that is none.
        """
        if not isinstance(text, str):
            raise TypeError("translate_document takes one text")
        check_text(text, 1)
        document = Document.read(text, format, (*KEEP, *keep))
        return self.translate_documents([document], source_lang=source_lang, target_lang=target_lang, **options)[0]

    def translate_documents(
        self,
        documents: Sequence[Document],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[str]:
        """Documents that are read already, translated together; see :meth:`translate_document`."""
        segments = [segment for document in documents for segment in document.segments]
        if self.aligns and any(segment.inlines for segment in segments):
            options["print_alignment"] = "hard"
        texts = [segment.text for segment in segments]
        found = iter(self.translations(texts, source_lang=source_lang, target_lang=target_lang, **options))
        segmentation = self.config["text"].get("post_process")
        return [put(document, [next(found) for _ in document.segments], segmentation) for document in documents]

    @property
    def aligns(self) -> bool:
        """True if the search that is used has alignments."""
        if self._engine is not None:
            return self._engine.aligns
        return self.config["task"]["_name"] in ("translation_interleaved", "translation")

    @property
    def text(self) -> TextPipeline:
        """Text to the pieces of the model, and back."""
        return self._pipelines[self.languages]

    def _pipeline(self, languages: tuple[str, str]) -> TextPipeline:
        if languages not in self._pipelines:
            self._pipelines[languages] = TextPipeline.of(self.folder, languages, self.config["text"])
        return self._pipelines[languages]

    def _texts(self, languages: tuple[str, str]) -> Texts:
        return Texts(self._pipeline(languages), self.split_sentences, self.long, self.max_length)

    def _with_pieces(self, options: dict[str, Any], languages: tuple[str, str]) -> dict[str, Any]:
        """Decoding options with pieces in the place of texts."""
        check_own(options)
        if not options.get("suppress"):
            return options
        for number, text in enumerate(options["suppress"], 1):
            check_text(text, number)
        pipeline = self._pipeline(languages)
        return {**options, "suppress": [pipeline.encode(text, side=1) for text in options["suppress"]]}

    def pair(self, source: str | None, target: str | None) -> tuple[str, str]:
        """The languages of a call.

        Raises:
            ValueError: for one that the model does not have.
        """
        found = self.languages[0] if source is None else source, self.languages[1] if target is None else target
        if self.tokens is not None:
            for option, code in zip(("source_lang", "target_lang"), found, strict=True):
                self.tokens.check(option, code)
        elif found != self.languages:
            pair, own = " to ".join(found), " to ".join(self.languages)
            raise ValueError(f"source_lang, target_lang: {self.folder} translates {own}, not {pair}")
        return found

    def check(self, line: str) -> None:
        """Read a text without translating it.

        Raises:
            sentences.TooLong: as :meth:`translations` does; its number is 1.
        """
        for _ in self._texts(self.languages).parts(line, 1):
            pass

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> list[Score]:
        """Scores of translations that are given: the log-probabilities of their pieces. A text and its translation are
        read as wholes; by models that write word by word.

        Raises:
            ValueError: for another number of translations, what is too long, and a model that the engine does not have.
        """
        languages = self.pair(source_lang, target_lang)
        search, pipeline = self._search({}, languages), self._texts(languages).pipeline
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("score takes lists of texts, not one text: score([source], [target])")
        if len(sources) != len(targets):
            raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets")
        pairs = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
            for text in (source, target):
                check_text(text, number)
            pieces = pipeline.encode(source), pipeline.encode(target, side=1)
            if (count := len(pieces[0].split())) > self.max_length:
                raise sentences.TooLong(number, f"{count} pieces, at most {self.max_length} are allowed")
            pairs.append(pieces)
        found = search.score([source for source, _ in pairs], [target for _, target in pairs])
        return [
            Score(each.score, tuple(target.split()), each.of_pieces)
            for each, (_, target) in zip(found, pairs, strict=True)
        ]

    def _search(self, options: dict[str, Any], languages: tuple[str, str]) -> Search:
        """The search with the options and the languages of a call."""
        if self._process != os.getpid():  # it would wait for threads that a fork does not copy
            raise RuntimeError("this Translator is of another process: make one in each, or start them with spawn")
        if self._closed:
            raise RuntimeError(f"{self!r}: make another one, Translator(folder)")
        options = self._with_pieces(options, languages)
        engine, why_pytorch = self._engine, self.why_pytorch
        if engine is not None and options.keys() <= CallOptions.__annotations__.keys():
            try:
                search = engine.search(options, languages)
                self._report("")
                return search
            except UnsupportedError as error:
                why_pytorch = f"{LACKS} {error}"
        self._report(why_pytorch)
        return self.pytorch().search(options, languages)

    def _report(self, why_pytorch: str) -> None:
        """Log what decodes, once until it changes."""
        if why_pytorch != self._reported:
            self._reported = why_pytorch
            logger.info("%s: %s", self.folder, f"PyTorch decodes: {why_pytorch}" if why_pytorch else self._engine)


def _check_alike(folders: Sequence[Path]) -> None:
    """Raise ValueError for models that read or write different text; names the second one."""
    first, *others = ((folder, read_config(folder)) for folder in folders)
    for folder, config in others:
        for name in ("languages", "text", KEY):
            if config.get(name) != first[1].get(name):
                found = f"{config.get(name)} and {first[1].get(name)}"
                raise ValueError(f"{folder} and {first[0]} do not decode as one: their {name} are {found}")
