"""Drafts of a sentence's next words, which speculative decoding verifies. Notation: docs/glossary.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from amlp_fairseq.text.dictionary import BOS, EOS, PAD, UNK

#: The longest n-gram that a translation memory is searched for.
MAX_CONTEXT = 3


class Draft(Protocol):
    """The draft of one sentence."""

    def propose(self, words: list[int], count: int) -> list[int]:
        """At most ``count`` words that may follow ``words``, which grow from call to call. Words after an end symbol
        do not matter."""


class Drafter(Protocol):
    """Makes drafts."""

    def begin(self, sources: Sequence[Sequence[int]]) -> Sequence[Draft]:
        """The drafts for sources, tokens with the end symbol."""


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
        source_symbols: of the source dictionary, by their indices.
        target_symbols: of the target dictionary.
    """

    def __init__(self, source_symbols: Sequence[str], target_symbols: Sequence[str]) -> None:
        indices = _indices(target_symbols)
        self.targets = [indices.get(symbol, UNK) for symbol in source_symbols]

    def begin(self, sources: Sequence[Sequence[int]]) -> list[SentenceDraft]:
        special = {BOS, PAD, EOS}
        return [SentenceDraft([self.targets[word] for word in source if word not in special]) for source in sources]


class TranslationMemoryDrafter:
    """Continues the last words as they continue in a file of translations.

    Args:
        file: one translation in a line, segmented as the target of the data folder is.
        target_symbols: of the target dictionary, by their indices.

    Raises:
        ValueError: if the file cannot be read.
    """

    def __init__(self, file: str | Path, target_symbols: Sequence[str]) -> None:
        self.vocab = len(target_symbols)
        self.text = np.fromiter(self._read(Path(file), _indices(target_symbols)), dtype=np.int64)
        #: For n = 1, 2, … all n-grams of the text as numbers, ascending, and the positions after them.
        self.ngrams: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        numbers = np.zeros(len(self.text) + 1, dtype=np.int64)
        for size in range(1, min(MAX_CONTEXT, len(self.text)) + 1):
            numbers = numbers[:-1] * self.vocab + self.text[size - 1 :]
            order = np.argsort(numbers, kind="stable")
            self.ngrams.append((numbers[order], order + size))

    def _read(self, file: Path, indices: Mapping[str, int]) -> Iterator[int]:
        yield EOS
        try:
            for line in file.read_text(encoding="utf-8").split("\n"):
                if not line.strip():
                    continue
                yield from (indices.get(word, UNK) for word in line.split())
                yield EOS
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--draft-file {file} cannot be read: {error}") from None

    def begin(self, sources: Sequence[Sequence[int]]) -> list[_TranslationMemoryDraft]:
        return [_TranslationMemoryDraft(self) for _ in sources]

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
            position = memory.position_after([EOS, *words])
            if position is None:
                self.position = 0
                return []
            self.position = position
        return list(memory.text[self.position : self.position + count].tolist())


def _indices(symbols: Sequence[str]) -> dict[str, int]:
    return {symbol: index for index, symbol in enumerate(symbols)}
