"""Words of a line, by Moses' tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@lru_cache
def moses(language: str) -> tuple[Any, Any]:
    """The normaliser of punctuation and the tokeniser."""
    import sacremoses  # which takes half a second

    normalizer = sacremoses.MosesPunctNormalizer(language, post_remove_control_chars=True, perl_parity=True)
    return normalizer, sacremoses.MosesTokenizer(language)


@dataclass(frozen=True)
class Tokenizer:
    """Moses' tokenisation of a line.

    Args:
        language: whose abbreviations and apostrophes.
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
        tokenizer: None for text whose words stand between spaces.
        replace: words and what they become.
        most: how many are kept; 0: all.
    """

    tokenizer: Tokenizer | None
    replace: dict[str, str]
    most: int

    def __call__(self, line: str) -> str:
        words = (self.tokenizer(line) if self.tokenizer else line).split(" ")
        return " ".join(self.replace.get(word, word) for word in words[: self.most or None])
