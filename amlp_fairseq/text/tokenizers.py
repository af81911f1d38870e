"""Moses' tokenisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@lru_cache
def moses(language: str) -> tuple[Any, Any]:
    """Moses' normaliser of punctuation and tokeniser of a language."""
    import sacremoses  # takes half a second

    normalizer = sacremoses.MosesPunctNormalizer(language, post_remove_control_chars=True, perl_parity=True)
    return normalizer, sacremoses.MosesTokenizer(language)


@dataclass(frozen=True)
class Tokenizer:
    """Moses' tokenisation of a line.

    Args:
        language: code of the language.
        normalize: normalise punctuation and remove control characters first.
        split_hyphens: ``-`` between letters or digits becomes a word, ``@-@``.
        lowercase: lower-case the result.
    """

    language: str
    normalize: bool
    split_hyphens: bool
    lowercase: bool

    def __call__(self, line: str) -> str:
        normalizer, tokenizer = moses(self.language)
        text = normalizer.normalize(line) if self.normalize else line
        text = tokenizer.tokenize(text, aggressive_dash_splits=self.split_hyphens, return_str=True)
        return text.lower() if self.lowercase else text


@dataclass(frozen=True)
class Words:
    """The words of a line.

    Args:
        tokenizer: None for text with spaces between words.
        replace: replacements by word.
        max_words: number of words to keep; 0: all.
    """

    tokenizer: Tokenizer | None
    replace: dict[str, str]
    max_words: int

    def __call__(self, line: str) -> str:
        words = (self.tokenizer(line) if self.tokenizer else line).split(" ")
        return " ".join(self.replace.get(word, word) for word in words[: self.max_words or None])
