"""Raw text in, translations out, for every system of the plugin and fairseq's Transformers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from fairseq import checkpoint_utils, utils

from amlp_fairseq.compat.guarded_tasks import with_steps
from amlp_fairseq.recipes.config import refuse_unknown
from amlp_fairseq.translator import decoding_options, long_inputs
from amlp_fairseq.translator.model_folder import read_config
from amlp_fairseq.translator.text_pipeline import TextPipeline


@dataclass(frozen=True)
class Translation:
    """What became of an input.

    Attributes:
        text: the translation.
        score: what it was chosen by: the log-probability divided by the length penalty, in nats (fairseq-generate has
            bits); of an input that was split the mean over its parts; 0 for an empty input.
        calls: decoder calls, summed over parts.
        alternatives: further texts with their scores, best first (``nbest``); none for an input that was split.
        alignment: pairs of a source and a target piece, counted from 0 (``print_alignment``); none for an input that
            was split.
        source_pieces, pieces: what the model read and wrote.
    """

    text: str
    score: float = 0.0
    calls: int = 0
    alternatives: tuple[tuple[str, float], ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    source_pieces: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()


class Translator:
    """A model folder, loaded. Threads may share it; they decode one after the other.

    Args:
        folder: made by ``amlp-fairseq package``.
        device: ``cpu``, ``cuda``, ``cuda:1``, …
        max_tokens: source pieces of a batch, padding included.
        long: what to do with inputs that are too long for the model: ``split`` them by sentence, ``truncate`` them
            (summarisation: the rest is not read), or ``refuse`` them.
        max_length: the most source pieces that are not too long; by default those of the longest sentence that the
            model was trained on.
        options: decoding options that win over those of the folder, by the names of fairseq-generate's and the task's
            flags: ``beam=4``, ``lenpen=0.6``, ``nbest=3``, ``decode_dtype="int8"``, ``iter_decode_max_iter=4``, …

    Raises:
        ValueError: for a folder that is not a model or is damaged, and for an argument outside its range.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "cpu",
        max_tokens: int = 4000,
        long: str = "split",
        max_length: int | None = None,
        **options: Any,
    ) -> None:
        if long not in long_inputs.CHOICES:
            raise ValueError(f"long={long!r}: choose one of {', '.join(long_inputs.CHOICES)}")
        _check_counts(max_tokens=max_tokens, **({} if max_length is None else {"max_length": max_length}))
        self.folder, self.long, self.max_tokens = Path(folder), long, max_tokens
        config = read_config(self.folder)
        self.languages: tuple[str, str] = (config["languages"][0], config["languages"][1])
        decoding_options.check({**config["decoding"], **options}, config["task"]["_name"])
        self.text = TextPipeline.of(self.folder, self.languages, config["text"])
        (self.model,), self.cfg, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [str(self.folder)], arg_overrides=options
        )
        refuse_unknown(options, sorted(decoding_options.known(config["task"]["_name"])), "Translator")
        self.nbest: int = self.cfg.generation.nbest
        _check_counts(beam=(beam := self.cfg.generation.beam), nbest=self.nbest)
        if self.nbest > beam:
            raise ValueError(f"nbest={self.nbest} is more than beam={beam} finds: raise beam, or lower nbest")
        self.device = _device(device)
        self.model.prepare_for_inference_(self.cfg)
        self.model.to(self.device)
        self.generator = self.task.build_generator([self.model], self.cfg.generation)
        limit, _ = utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions())
        wanted = max_length or config["longest_source"] or limit
        self.max_length = min(wanted, limit - 2)  # two symbols may be added
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Translator cannot be copied or pickled: make another one, Translator(folder)")

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The translations of texts, in their order."""
        return [translation.text for translation in self.translations(lines)]

    def translations(self, lines: Sequence[str]) -> list[Translation]:
        """The same with scores, decoder calls and what the decoding options ask for.

        Raises:
            TypeError: for a single string, and for what is not one.
            ValueError: for half a surrogate pair, which is not text.
            long_inputs.TooLong: for the first input that is too long, with ``long="refuse"``, or has a character that
                is too long itself.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of texts, not one text: translate([text])")
        if self.cfg.generation.print_alignment not in (None, "hard"):
            raise ValueError(f"print_alignment={self.cfg.generation.print_alignment!r}: {decoding_options.PAIRS}")
        parts = [list(self._parts(line, number)) for number, line in enumerate(lines, 1)]
        decoded = iter(self._decode([pieces for line in parts for pieces, _ in line]))
        return [_joined([(next(decoded), space) for _, space in line]) for line in parts]

    def check(self, line: str) -> None:
        """Read a text without translating it.

        Raises:
            long_inputs.TooLong: as :meth:`translations` does; its number is 1.
        """
        for _ in self._parts(line, 1):
            pass

    def _parts(self, line: str, number: int) -> Iterator[tuple[str, str]]:
        """The pieces of a text, of each of its parts if it is long, with the white space behind them."""
        _check_text(line, number)
        pieces = self.text.encode(line)
        if not pieces:
            return
        words = pieces.split()
        if len(words) <= self.max_length:
            yield pieces, ""
        elif self.long == "truncate":
            yield " ".join(words[: self.max_length]), ""
        elif self.long == "refuse":
            message = (
                f"{len(words)} pieces, at most {self.max_length} are allowed: --long split, or a larger --max-length"
            )
            raise long_inputs.TooLong(number, message)
        else:
            try:
                for part, space in long_inputs.split(line, self.languages[0], self._fits):
                    if pieces := self.text.encode(part):
                        yield pieces, space
            except ValueError as error:
                raise long_inputs.TooLong(number, str(error)) from None

    def _fits(self, text: str) -> bool:
        return len(self.text.encode(text).split()) <= self.max_length

    def _decode(self, sentences: list[str]) -> list[Translation]:
        """The translations of sentences, given as pieces."""
        found = self.hypotheses(sentences)
        return [self._translation(source, each) for source, each in zip(sentences, found, strict=True)]

    def hypotheses(self, sentences: list[str]) -> list[list[dict[str, Any]]]:
        """What fairseq's generators find for sentences, given as pieces: the best hypothesis of each first. Batches are
        made of sentences of similar length."""
        if not sentences:
            return []
        if self._process != os.getpid():  # it would wait for threads that a fork does not copy
            raise RuntimeError("this Translator is of another process: make one in each, or start them with spawn")
        index, eos = self.task.source_dictionary.index, self.task.source_dictionary.eos()
        tokens = [torch.tensor([*map(index, each.split()), eos]) for each in sentences]
        lengths = [len(each) for each in tokens]
        dataset = self.task.build_dataset_for_inference(tokens, lengths)
        by_length, most = np.argsort(lengths, kind="stable"), max(self.max_tokens, max(lengths) + 1)
        found: dict[int, list[dict[str, Any]]] = {}
        for rows in dataset.batch_by_size(by_length, max_tokens=most) if len(tokens) > 1 else [[0]]:
            batch = dataset.collater([dataset[row] for row in rows])
            with self._lock:
                moved = utils.move_to_cuda(batch, self.device) if self.device.type == "cuda" else batch
                hypotheses = with_steps(self.task.inference_step(self.generator, [self.model], moved))
            found.update(zip(batch["id"].tolist(), hypotheses, strict=True))
        return [found[row] for row in range(len(sentences))]

    def _translation(self, source: str, hypotheses: list[dict[str, Any]]) -> Translation:
        best, *others = hypotheses[: self.nbest]
        pieces = self._pieces(best)
        alignment = best["alignment"] if best["alignment"] is not None else ()
        return Translation(
            text=self.text.decode(pieces),
            score=float(best["score"]),
            calls=int(best["steps"]),
            alternatives=tuple((self.text.decode(self._pieces(each)), float(each["score"])) for each in others),
            alignment=tuple((int(pair[0]), int(pair[1])) for pair in alignment) if len(alignment) else (),
            source_pieces=tuple(source.split()),
            pieces=tuple(pieces.split()),
        )

    def _pieces(self, hypothesis: dict[str, Any]) -> str:
        return str(self.task.target_dictionary.string(hypothesis["tokens"].tolist()))


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


def _joined(parts: list[tuple[Translation, str]]) -> Translation:
    """The translation of an input from those of its parts, each with the white space behind it."""
    if not parts:
        return Translation("")
    if len(parts) == 1:
        return parts[0][0]
    translations = [translation for translation, _ in parts]
    return Translation(
        text="".join(translation.text + (" " if space else "") for translation, space in parts).strip(),
        score=sum(translation.score for translation in translations) / len(parts),
        calls=sum(translation.calls for translation in translations),
        source_pieces=tuple(piece for each in translations for piece in each.source_pieces),
        pieces=tuple(piece for each in translations for piece in each.pieces),
    )
