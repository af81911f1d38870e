"""Guesses of a sentence's next words, which draft-and-verify decoding checks. Notation: docs/glossary.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

#: The longest run of words that a translation memory is searched for.
LONGEST_CONTEXT = 3


class Draft(Protocol):
    """What may become of one sentence."""

    def propose(self, words: list[int], count: int) -> list[int]:
        """At most ``count`` words that may follow ``words``; called with ever more words. What is behind an end symbol
        does not matter."""


class Drafter(Protocol):
    """Makes drafts."""

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> Sequence[Draft]:
        """The drafts for some sentences, by their indices, of a batch: ``src_tokens`` (b, S), ``src_lengths``."""


class SentenceDraft:
    """A whole sentence, which is read along with the words that are written.

    Where another word was written, reading goes on behind the nearest place in the draft where the last two words
    stand, or else the last one; if there is none, the word is taken to be in place of the draft's.
    """

    def __init__(self, draft: list[int]) -> None:
        self.draft, self.place, self.followed = draft, 0, 0

    def propose(self, words: list[int], count: int) -> list[int]:
        for index in range(self.followed, len(words)):
            self._follow(words, index)
        self.followed = len(words)
        return self.draft[self.place : self.place + count]

    def _follow(self, words: list[int], index: int) -> None:
        draft, word = self.draft, words[index]
        if draft[self.place : self.place + 1] == [word]:
            self.place += 1
            return
        behind = [place + 1 for place, each in enumerate(draft) if each == word]
        behind_two = [place for place in behind if index > 0 and place > 1 and draft[place - 2] == words[index - 1]]
        self.place = min(behind_two or behind or [self.place + 1], key=lambda place: abs(place - self.place))


class SourceDrafter:
    """Copies the source: its words that the target dictionary has, too.

    Args:
        src_dict: source dictionary.
        tgt_dict: target dictionary.
    """

    def __init__(self, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        self.names = [tgt_dict.index(symbol) for symbol in src_dict.symbols]
        self.special = {src_dict.pad(), src_dict.eos(), src_dict.bos()}

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> list[SentenceDraft]:
        sources = net_input["src_tokens"][sentences].tolist()
        return [SentenceDraft([self.names[word] for word in each if word not in self.special]) for each in sources]


class MemoryDrafter:
    """A translation memory: continues as a line of a file does behind the last words.

    Args:
        file: one translation in a line, segmented as the target of the data folder is.
        tgt_dict: target dictionary.

    Raises:
        ValueError: if the file cannot be read.
    """

    def __init__(self, file: str | Path, tgt_dict: Dictionary) -> None:
        self.eos, self.vocab = tgt_dict.eos(), len(tgt_dict)
        self.text = np.fromiter(self._read(Path(file), tgt_dict), dtype=np.int64)
        #: For 1, 2, … words all runs of so many in the text as numbers, ascending, and the places behind them.
        self.runs: list[tuple[Any, Any]] = []
        numbers = np.zeros(len(self.text) + 1, dtype=np.int64)
        for size in range(1, min(LONGEST_CONTEXT, len(self.text)) + 1):
            numbers = numbers[:-1] * self.vocab + self.text[size - 1 :]
            order = np.argsort(numbers, kind="stable")
            self.runs.append((numbers[order], order + size))

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

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> list[_MemoryDraft]:
        return [_MemoryDraft(self) for _ in sentences]

    def behind(self, context: list[int]) -> int | None:
        """The first place in the text behind the longest end of a context that it has."""
        for size in range(min(len(self.runs), len(context)), 0, -1):
            number = 0
            for word in context[-size:]:
                number = number * self.vocab + word
            numbers, places = self.runs[size - 1]
            found = int(np.searchsorted(numbers, number))
            if found < len(numbers) and numbers[found] == number:
                return int(places[found])
        return None


class _MemoryDraft:
    """Stays where the memory goes on as the sentence does."""

    def __init__(self, memory: MemoryDrafter) -> None:
        self.memory, self.place, self.followed = memory, 0, 0

    def propose(self, words: list[int], count: int) -> list[int]:
        memory, new = self.memory, words[self.followed :]
        self.followed = len(words)
        self.place += len(new)
        if not new or memory.text[self.place - len(new) : self.place].tolist() != new:
            place = memory.behind([memory.eos, *words])
            if place is None:
                self.place = 0
                return []
            self.place = place
        return list(memory.text[self.place : self.place + count].tolist())


class ModelDrafter:
    """Whole sentences from a model of the plugin, decoded once.

    Args:
        task: of the model.
        model: made ready for inference.
        generator: of the task.
    """

    def __init__(self, task: Any, model: Any, generator: Any) -> None:
        self.task, self.model, self.generator = task, model, generator

    def begin(self, net_input: dict[str, Tensor], sentences: list[int]) -> Sequence[Draft]:
        sources, pad = net_input["src_tokens"][sentences], self.task.source_dictionary.pad()
        tokens = [source[source != pad].cpu() for source in sources]
        dataset = self.task.build_dataset_for_inference(tokens, [len(each) for each in tokens])
        batch = dataset.collater([dataset[index] for index in range(len(tokens))])
        batch["net_input"] = {
            name: value.to(sources.device) if isinstance(value, Tensor) else value
            for name, value in batch["net_input"].items()
        }
        with torch.no_grad():
            hypotheses = self.task.inference_step(self.generator, [self.model], batch)
        found = dict(zip(batch["id"].tolist(), hypotheses, strict=True))
        return [SentenceDraft(found[row][0]["tokens"].tolist()[:-1]) for row in range(len(tokens))]
