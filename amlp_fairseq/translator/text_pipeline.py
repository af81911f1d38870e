"""From a line of raw text to the pieces that a model reads, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from amlp_fairseq.compat.internals import data_utils
from amlp_fairseq.recipes.text import MODELS, Segmenter, Tokenizer


@dataclass(frozen=True)
class TextPipeline:
    """How text was prepared for a model; the fields are those of text.json, which ``amlp-fairseq prepare`` writes.

    Attributes:
        folder: with the subword model.
        languages: source, target.
        tokenizer: ``moses`` or None.
        post_process: how words were cut up: ``sentencepiece``, ``subword_nmt`` or None.
        normalize, split_hyphens, lowercase: see ``recipes.text.Tokenizer``.
    """

    folder: Path
    languages: tuple[str, str]
    tokenizer: str | None = None
    post_process: str | None = None
    normalize: bool = False
    split_hyphens: bool = False
    lowercase: bool = False

    @classmethod
    def of(cls, folder: Path, languages: tuple[str, str], text: dict[str, Any]) -> TextPipeline:
        """From the section ``text`` of a model's config.json.

        Raises:
            ValueError: for a setting that is not one of the fields, and if the subword model is missing.
        """
        known = cls.__dataclass_fields__.keys() - {"folder", "languages"}
        if unknown := text.keys() - known:
            raise ValueError(f"{folder}: unknown text settings {sorted(unknown)}; known are {sorted(known)}")
        pipeline = cls(folder, languages, **text)
        if pipeline.subword_model is not None and not pipeline.subword_model.is_file():
            raise ValueError(f"{folder} has no {pipeline.subword_model.name}, the model of its subword units")
        return pipeline

    @property
    def subword_model(self) -> Path | None:
        return None if self.post_process is None else self.folder / MODELS[self.post_process]

    def encode(self, line: str) -> str:
        """The pieces of a line of the source language, with spaces between them."""
        text = " ".join(line.split())
        if self.tokenizer is not None:
            text = Tokenizer(self.languages[0], self.normalize, self.split_hyphens, self.lowercase)(text)
        if self.subword_model is not None:
            assert self.post_process is not None
            text = Segmenter(self.post_process, self.subword_model)(text)
        return text

    def decode(self, pieces: str) -> str:
        """The text that pieces of the target language stand for."""
        text = data_utils.post_process(pieces, self.post_process) if self.post_process else pieces
        if self.tokenizer is not None:
            text = str(_detokenizer(self.languages[1]).detokenize(text.split()))
        return " ".join(text.split())


@lru_cache
def _detokenizer(language: str) -> Any:
    import sacremoses  # which takes half a second

    return sacremoses.MosesDetokenizer(language)
