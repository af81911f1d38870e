"""Subword models: learning and segmentation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import lru_cache, partial
from io import StringIO
from itertools import chain
from pathlib import Path

import sentencepiece

from amlp_fairseq.common.files import writing
from amlp_fairseq.common.lines import lines

SEGMENTATIONS = ("subword_nmt", "sentencepiece", "none")
#: File names of the models, as fairseq's ``from_pretrained`` expects them.
MODELS = {"subword_nmt": "bpecodes", "sentencepiece": "sentencepiece.bpe.model"}


def model_names(segmentation: str) -> tuple[str, str]:
    """The file names of the model in a folder, and of one that is the target language's alone."""
    return MODELS[segmentation], f"target.{MODELS[segmentation]}"


def segmenter(segmentation: str, model: Path) -> Callable[[str], str]:
    """Reads a model and returns a function that segments the words of a line into its units.

    Raises:
        ValueError: if the file is damaged.
    """
    if segmentation == "sentencepiece":
        try:
            return partial(_pieces, sentencepiece.SentencePieceProcessor(model_file=str(model)))
        except RuntimeError as error:
            raise ValueError(f"{model} is damaged: {error}") from None
    from subword_nmt.apply_bpe import BPE  # takes as long as a short translation, and loads tqdm

    printed = StringIO()
    try:
        with redirect_stderr(printed):
            process: Callable[[str], str] = BPE(StringIO(codes(model))).process_line
    except (SystemExit, ValueError) as error:  # subword-nmt prints the error and exits
        raise ValueError(f"{model} is damaged: {(printed.getvalue() or str(error)).splitlines()[0]}") from None
    return process


def codes(model: Path) -> str:
    """The codes of subword-nmt in a file of it or of fastBPE, which has a count after each pair and no version: an end
    of a word is a part of its last character there, as in subword-nmt 0.2."""
    text = model.read_text(encoding="utf-8")
    if len(text.partition("\n")[0].split(" ")) != 3:
        return text
    return "\n".join(("#version: 0.2", *(line.rpartition(" ")[0] for line in text.splitlines()), ""))


def _pieces(processor: sentencepiece.SentencePieceProcessor, line: str) -> str:
    return " ".join(processor.encode(line, out_type=str))


_segmenter_of_process = lru_cache(segmenter)


@dataclass(frozen=True)
class Segmenter:
    """Segments the words of a line into the units of a model, which each process of a pool reads once."""

    segmentation: str
    model: Path

    def __call__(self, line: str) -> str:
        return _segmenter_of_process(self.segmentation, self.model)(line)


def joined(units: str, segmentation: str | None) -> str:
    """The words of units that are separated by spaces; with segmentation None the units are words."""
    if segmentation == "sentencepiece":
        return units.replace(" ", "").replace("\u2581", " ").strip()
    return f"{units} ".replace("@@ ", "").rstrip() if segmentation == "subword_nmt" else units


def text_of(unit: str, segmentation: str | None) -> tuple[str, bool]:
    """The characters of a unit, of which U+2581 begins a word, and True if the word may go on after it."""
    if segmentation == "subword_nmt":
        return unit.removesuffix("@@"), unit.endswith("@@")
    return unit, segmentation == "sentencepiece"


def last_word(units: Sequence[str], segmentation: str | None) -> int:
    """The index of the first unit of the last word of some."""
    if segmentation == "sentencepiece":
        return max((index for index, unit in enumerate(units) if unit.startswith("\u2581")), default=0)
    begins = (index + 1 for index, unit in enumerate(units[:-1]) if not text_of(unit, segmentation)[1])
    return max(begins, default=0)


def train_sentencepiece(
    texts: Sequence[Path], model: Path, vocab_size: int, character_coverage: float = 1.0, sentences: int = 0
) -> None:
    """Train a BPE model of sentencepiece on all texts together.

    Args:
        texts: files with one sentence per line.
        model: output file; the vocabulary is written beside it, with the suffix ``.vocab``.
        vocab_size: number of pieces.
        character_coverage: the share of characters with a piece each.
        sentences: size of a random sample, always the same, to learn from; 0: learn from all.

    Raises:
        ValueError: if there is too little text for so many pieces.
    """
    sentencepiece.set_random_generator_seed(1)
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(text) for text in texts],
            model_prefix=str(model.with_suffix("")),
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=character_coverage,
            input_sentence_size=sentences,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).split(" or decrease character_coverage")[0]  # prepare has no such option
        failure = f"{vocab_size} pieces cannot be learnt from {texts[0].parent}"
        raise ValueError(f"--vocab-size: {failure}: {reason}") from None


def learn(segmentation: str, texts: Sequence[Path], model: Path, size: int, coverage: float, sample: int) -> None:
    """Learn subword units from all texts together; see ``train_sentencepiece`` for the arguments.

    Raises:
        ValueError: if there is no text, or too little for so many units.
    """
    if not any(line.strip() for line in chain.from_iterable(map(lines, texts))):
        raise ValueError(f"{texts[0]}: nothing is left of the training text; give other text and another folder")
    if segmentation == "subword_nmt":
        from subword_nmt.learn_bpe import learn_bpe

        with writing(model) as (file,):
            learn_bpe(chain.from_iterable(map(lines, texts)), file, size)
    else:
        folder = model.with_name("learning")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        train_sentencepiece(texts, folder / model.name, size, coverage, sample)
        (folder / model.name).replace(model)
        shutil.rmtree(folder)
