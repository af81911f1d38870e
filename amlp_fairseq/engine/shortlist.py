"""Lexical shortlists: the words that the translation of a source may have. They are the translations of its words, the
words that both dictionaries spell alike, and the words that are frequent everywhere (Schwenk et al. 2007).

The logits of other words are not computed, and probabilities are renormalised over the list of a sentence, whatever
stands beside it in its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from amlp_fairseq.engine.isa import library
from amlp_fairseq.engine.safetensors import Tensors
from amlp_fairseq.text import lexicon
from amlp_fairseq.text.dictionary import SPECIAL

Numbers: TypeAlias = "np.ndarray[Any, Any]"
#: The file in a model's folder.
FILE = "shortlist.safetensors"
#: The defaults of Marian's ``--shortlist FILE``: frequent words, and translations of a source word.
FREQUENT, BEST = 100, 100
#: With a smaller share of known pairs a file is of other dictionaries.
_LEAST_KNOWN = 0.5


class Shortlist:
    """The translations of each word of a source dictionary.

    Args:
        starts: where those of each source word begin in ``words``, and where the last ones end, (V_source + 1,).
        words: their numbers.
        always: words of every list. The special symbols are in every list, too.
        vocabulary: V, of the target.

    Raises:
        ValueError: for numbers that do not fit together.
    """

    def __init__(self, starts: Numbers, words: Numbers, always: Numbers, vocabulary: int) -> None:
        ordered = len(starts) > 0 and starts[0] == 0 and starts[-1] == len(words) and (np.diff(starts) >= 0).all()
        if not ordered or any(len(some) and not 0 <= some.min() <= some.max() < vocabulary for some in (words, always)):
            raise ValueError("a shortlist whose parts do not fit together")
        self.starts, self.words, self.vocabulary = starts, words, vocabulary
        self.always = np.union1d(always, np.arange(len(SPECIAL)))

    @classmethod
    def open(
        cls, path: Path, source: Sequence[str], target: Sequence[str], frequent: int = FREQUENT, best: int = BEST
    ) -> Shortlist:
        """The shortlist of a file in Marian's text format, or of a model's folder.

        Args:
            path: a lexicon, see ``text/lexicon.py``, or ``FILE``.
            source, target: symbols of the dictionaries.
            frequent: so many of the first words of the target dictionary and of the likeliest ones of ``NULL`` are in
                every list.
            best: the most translations of a source word.

        Raises:
            ValueError: for a file that is none, that is empty, or that is of other dictionaries; names it.
            FileNotFoundError: if there is none.
        """
        try:
            if path.name.endswith(".safetensors"):
                return cls._of_folder(path, len(source), len(target))
            return cls._of_lexicon(path, source, target, frequent, best)
        except FileNotFoundError:
            raise FileNotFoundError(f"--shortlist {path}: there is no such file") from None
        except ValueError as error:
            raise ValueError(f"--shortlist {error}") from None

    @classmethod
    def _of_folder(cls, path: Path, sources: int, targets: int) -> Shortlist:
        stored = Tensors(path)
        try:
            found = cls(stored["starts"], stored["words"], stored["always"], targets)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{path} is damaged, or of other dictionaries: {error}") from None
        if len(found.starts) != sources + 1:
            raise ValueError(f"{path} is of a dictionary of {len(found.starts) - 1} source words, not {sources}")
        return found

    @classmethod
    def _of_lexicon(
        cls, path: Path, source: Sequence[str], target: Sequence[str], frequent: int, best: int
    ) -> Shortlist:
        sources, targets = ({word: number for number, word in enumerate(words)} for words in (source, target))
        sources[lexicon.NULL] = len(source)  # as Marian reads it, a word that is spelt so has no translations
        read, known, pairs, probabilities = 0, 0, [], []
        for word, of, probability in lexicon.read(path):
            is_pair, is_known = lexicon.NULL not in (word, of), word in targets and of in sources
            read, known = read + is_pair, known + (is_pair and is_known)
            if is_known and word != lexicon.NULL:
                pairs.append((sources[of], targets[word]))
                probabilities.append(probability)
        if not read:
            raise ValueError(f"{path} has no pair of words (amlp-fairseq shortlist makes a lexical shortlist)")
        if known < _LEAST_KNOWN * read:
            raise ValueError(f"{path} is of other dictionaries: they have both words of {known} of its {read} pairs")
        table = np.array(pairs, np.int64).reshape(-1, 2)
        order = np.lexsort((table[:, 1], -np.array(probabilities), table[:, 0]))
        of_source, words = table[order].T
        first = np.searchsorted(of_source, np.arange(len(source) + 2))
        rank = np.arange(len(words)) - first[of_source]
        of_null = words[first[len(source)] :][:frequent]
        kept = (of_source < len(source)) & (rank < best)
        alike = [(number, targets[word]) for number, word in enumerate(source) if word in targets]
        same = np.array(alike, np.int64).reshape(-1, 2)
        all_pairs = np.unique(np.concatenate([np.stack([of_source[kept], words[kept]], axis=1), same]), axis=0)
        starts = np.searchsorted(all_pairs[:, 0], np.arange(len(source) + 1))
        first_words = np.arange(min(len(SPECIAL) + frequent, len(target)))
        return cls(starts, all_pairs[:, 1], np.union1d(first_words, of_null), len(target))

    def save(self, path: Path) -> None:
        """Write the file of a model's folder."""
        from safetensors.numpy import save  # where models are made

        kind = np.uint16 if self.vocabulary <= 1 << 16 else np.int32
        words = {"words": self.words.astype(kind), "always": self.always.astype(kind)}
        path.write_bytes(save({"starts": self.starts.astype(np.int32), **words}))

    def write_vmap(self, path: Path, source: Sequence[str], target: Sequence[str]) -> None:
        """Write a vocabulary map of CTranslate2: a line ``SOURCE<tab>TARGET TARGET …`` for each source word, and one
        without a source for the words of every list.

        Args:
            source, target: symbols of the dictionaries.
        """
        lines = [("", self.always)]
        lines += [(word, self.words[self.starts[at] : self.starts[at + 1]]) for at, word in enumerate(source)]
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for word, translations in lines:
                if len(translations):
                    file.write(f"{word}\t{' '.join(target[each] for each in translations.tolist())}\n")

    @cached_property
    def in_library(self) -> Any:
        """The engine's."""
        return library().Shortlist(self.starts, self.words, self.always, self.vocabulary)

    def of(self, source: Iterable[int]) -> Numbers:
        """The list of a source: the numbers of its words, ascending."""
        translations = [self.words[self.starts[word] : self.starts[word + 1]] for word in source]
        return np.unique(np.concatenate([self.always, *translations]).astype(np.int64))
