"""Drafts of a sentence's next words, which speculative decoding verifies. Notation: docs/glossary.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch

#: The longest n-gram that a translation memory is searched for.
MAX_CONTEXT = 3


class Draft(Protocol):
    """The draft of one sentence."""

    def propose(self, words: list[int], count: int) -> list[int]:
        """At most ``count`` words that may follow ``words``, which grow from call to call. Words after an end symbol
        do not matter."""


class Drafter(Protocol):
    """Makes drafts."""

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> Sequence[Draft]:
        """The drafts for some sentences, by their indices, of a batch: ``src_tokens`` (b, S), ``src_lengths``."""


class SentenceDraft:
    """A whole sentence, read along with the words that are written.

    After a word that differs from the draft, reading continues after the nearest occurrence of the last two words in
    the draft, or else of the last word; if there is none, the word is taken to replace the draft's.
    """

    def __init__(self, draft: list[int]) -> None:
        self.draft, self.position, self.followed = draft, 0, 0

    def propose(self, words: list[int], count: int) -> list[int]:
        for index in range(self.followed, len(words)):
            self._follow(words, index)
        self.followed = len(words)
        return self.draft[self.position : self.position + count]

    def _follow(self, words: list[int], index: int) -> None:
        draft, word = self.draft, words[index]
        if draft[self.position : self.position + 1] == [word]:
            self.position += 1
            return
        after_one = [position + 1 for position, drafted in enumerate(draft) if drafted == word]
        after_two = [end for end in after_one if index > 0 and end > 1 and draft[end - 2] == words[index - 1]]
        self.position = min(after_two or after_one or [self.position + 1], key=lambda end: abs(end - self.position))


class SourceDrafter:
    """Copies the words of the source that the target dictionary has, too.

    Args:
        src_dict: source dictionary.
        tgt_dict: target dictionary.
    """

    def __init__(self, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        self.targets = [tgt_dict.index(symbol) for symbol in src_dict.symbols]
        self.special = {src_dict.pad(), src_dict.eos(), src_dict.bos()}

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> list[SentenceDraft]:
        sources = net_input["src_tokens"][sentences].tolist()
        return [SentenceDraft([self.targets[word] for word in row if word not in self.special]) for row in sources]


class TranslationMemoryDrafter:
    """Continues the last words as they continue in a file of translations.

    Args:
        file: one translation in a line, segmented as the target of the data folder is.
        tgt_dict: target dictionary.

    Raises:
        ValueError: if the file cannot be read.
    """

    def __init__(self, file: str | Path, tgt_dict: Dictionary) -> None:
        self.eos, self.vocab = tgt_dict.eos(), len(tgt_dict)
        self.text = np.fromiter(self._read(Path(file), tgt_dict), dtype=np.int64)
        #: For n = 1, 2, … all n-grams of the text as numbers, ascending, and the positions after them.
        self.ngrams: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        numbers = np.zeros(len(self.text) + 1, dtype=np.int64)
        for size in range(1, min(MAX_CONTEXT, len(self.text)) + 1):
            numbers = numbers[:-1] * self.vocab + self.text[size - 1 :]
            order = np.argsort(numbers, kind="stable")
            self.ngrams.append((numbers[order], order + size))

    def _read(self, file: Path, tgt_dict: Dictionary) -> Iterator[int]:
        yield self.eos
        try:
            for line in file.read_text(encoding="utf-8").split("\n"):
                if not line.strip():
                    continue
                yield from (tgt_dict.index(word) for word in line.split())
                yield self.eos
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--draft-file {file} cannot be read: {error}") from None

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> list[_TranslationMemoryDraft]:
        return [_TranslationMemoryDraft(self) for _ in sentences]

    def position_after(self, context: list[int]) -> int | None:
        """The position after the first occurrence of the longest suffix of ``context`` that the text has."""
        for size in range(min(len(self.ngrams), len(context)), 0, -1):
            number = 0
            for word in context[-size:]:
                number = number * self.vocab + word
            numbers, positions = self.ngrams[size - 1]
            index = int(np.searchsorted(numbers, number))
            if index < len(numbers) and numbers[index] == number:
                return int(positions[index])
        return None


class _TranslationMemoryDraft:
    """Keeps its position in the memory while the sentence continues as the memory does."""

    def __init__(self, memory: TranslationMemoryDrafter) -> None:
        self.memory, self.position, self.followed = memory, 0, 0

    def propose(self, words: list[int], count: int) -> list[int]:
        memory, new = self.memory, words[self.followed :]
        self.followed = len(words)
        self.position += len(new)
        if not new or memory.text[self.position - len(new) : self.position].tolist() != new:
            position = memory.position_after([memory.eos, *words])
            if position is None:
                self.position = 0
                return []
            self.position = position
        return list(memory.text[self.position : self.position + count].tolist())


class ModelDrafter:
    """Drafts whole sentences with a model of the plugin, which decodes once.

    Args:
        task: the model's task.
        model: prepared for inference.
        generator: the task's generator.
    """

    def __init__(
        self, task: FairseqTask, model: BaseFairseqModel, generator: MultiwordBeamSearch | IterativeRefinement
    ) -> None:
        self.task, self.model, self.generator = task, model, generator

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> Sequence[Draft]:
        sources, pad = net_input["src_tokens"][sentences], self.task.source_dictionary.pad()
        tokens = [source[source != pad].cpu() for source in sources]
        dataset = self.task.build_dataset_for_inference(tokens, [len(source) for source in tokens])
        batch = dataset.collater([dataset[index] for index in range(len(tokens))])
        batch["net_input"] = {
            name: value.to(sources.device) if isinstance(value, Tensor) else value
            for name, value in batch["net_input"].items()
        }
        with torch.no_grad():
            hypotheses = self.task.inference_step(self.generator, [self.model], batch)
        by_row = dict(zip(batch["id"].tolist(), hypotheses, strict=True))
        return [SentenceDraft(by_row[row][0]["tokens"].tolist()[:-1]) for row in range(len(tokens))]
