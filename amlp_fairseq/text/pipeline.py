"""Raw text to the subword tokens of a model, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from amlp_fairseq.text.subwords import MODELS, joined, model_names, segmenter
from amlp_fairseq.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class TextPipeline:
    """Text processing of a model, with the settings of text.json, which ``amlp-fairseq prepare`` writes.

    Attributes:
        folder: has the subword model.
        languages: source, target.
        tokenizer: ``moses`` or None.
        post_process: segmentation into subwords: ``sentencepiece``, ``subword_nmt`` or None.
        normalize, split_hyphens, lowercase: see ``text.tokenizers.Tokenizer``.
        own_target_model: the target language has a subword model of its own, ``target.`` before the name.
    """

    folder: Path
    languages: tuple[str, str]
    tokenizer: str | None = None
    post_process: str | None = None
    normalize: bool = False
    split_hyphens: bool = False
    lowercase: bool = False
    own_target_model: bool = False

    @classmethod
    def of(cls, folder: Path, languages: tuple[str, str], text: dict[str, Any]) -> TextPipeline:
        """The pipeline of the section ``text`` of a model's config.json. Reads the subword model: the folder may be
        replaced later.

        Raises:
            ValueError: for unknown settings and values, and if the subword model is missing or damaged.
        """
        known = cls.__dataclass_fields__.keys() - {"folder", "languages"}
        if unknown := text.keys() - known:
            raise ValueError(f"{folder}: unknown text settings {sorted(unknown)}; known are {sorted(known)}")
        for name, choices in (("tokenizer", ("moses",)), ("post_process", sorted(MODELS))):
            if (value := text.get(name)) is not None and value not in choices:
                raise ValueError(f"{folder}/config.json: {name} {value!r} is unknown: {', '.join(choices)} or null")
        pipeline = cls(folder, languages, **text)
        for path in pipeline.subword_models:
            if not path.is_file():
                raise ValueError(f"{folder} has no {path.name}, the model of its subword units")
        _ = pipeline.segmenters
        return pipeline

    @property
    def subword_models(self) -> tuple[Path, ...]:
        """The model of both languages, or one of each; none for words."""
        names = () if self.post_process is None else model_names(self.post_process)
        return tuple(self.folder / name for name in names[: 1 + self.own_target_model])

    @cached_property
    def segmenters(self) -> tuple[Callable[[str], str], Callable[[str], str]]:
        """Segment words of the source and of the target into tokens."""
        found = [segmenter(str(self.post_process), path) for path in self.subword_models] or [str]
        return found[0], found[-1]

    def encode(self, line: str, side: int = 0) -> str:
        """The tokens of a line of the source language (side 0) or the target language (1), separated by spaces."""
        text = " ".join(line.split())
        if self.tokenizer is not None:
            text = Tokenizer(self.languages[side], self.normalize, self.split_hyphens, self.lowercase)(text)
        return self.segmenters[side](text)

    def decode(self, tokens: str) -> str:
        """The text of tokens of the target language, separated by spaces."""
        text = joined(tokens, self.post_process)
        if self.tokenizer is not None:
            text = str(_detokenizer(self.languages[1]).detokenize(text.split()))
        return " ".join(text.split())


@lru_cache
def _detokenizer(language: str) -> Any:
    import sacremoses  # takes half a second

    return sacremoses.MosesDetokenizer(language)
