"""The model of a folder in the engine, with its dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amlp_fairseq.engine.model import EngineModel
from amlp_fairseq.model_folder.config import check_files
from amlp_fairseq.model_folder.language_tokens import WORDS, LanguageTokens
from amlp_fairseq.text.dictionary import EOS, Dictionary, fingerprint


@dataclass(frozen=True)
class Surroundings:
    """The tokens around the words of a pair of languages.

    Attributes:
        before, after: the words of a source.
        start: symbol with which the decoder begins.
        given: tokens that it has to write first.
        end: symbol that ends a translation.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = (EOS,)
    start: int = EOS
    given: tuple[int, ...] = ()
    end: int = EOS


class EngineFolder:
    """A model folder in the engine.

    Args:
        kind: the class of its model.
        folder: of ``amlp-fairseq package``.
        config: its ``config.json``.
        decode_dtype: None: the type in which its weights are stored.

    Raises:
        UnsupportedError: for a model or a type that the engine does not have.
        ValueError: for a damaged folder.
    """

    def __init__(
        self, kind: type[EngineModel], folder: Path, config: Mapping[str, Any], decode_dtype: str | None
    ) -> None:
        task = config["task"]
        self.tokens = LanguageTokens.of(config)
        self.folder, self.config = folder, config
        self.model = kind.of_folder(folder, config, decode_dtype)
        check_files(folder, config)
        source, target = (folder / f"dict.{task[name]}.txt" for name in ("source_lang", "target_lang"))
        sums = config.get("checksums", {})
        self.source = Dictionary(source)
        if sums.get(source.name, source) == sums.get(target.name, target):  # one dictionary of both is read once
            self.target = copy(self.source)
            self.target.path = target
        else:
            self.target = Dictionary(target)
        for side, dictionary, rows in zip(
            ("encoder", "decoder"), (self.source, self.target), self.model.vocabularies, strict=True
        ):
            if len(dictionary) != rows:
                sizes = f"it has {len(dictionary)} entries, the {side}'s embedding {rows}"
                raise ValueError(f"{dictionary.path} is not the dictionary of the model: {sizes}")
        trained = config["task_state"].get("dictionaries") or {}
        for side, dictionary in (("source", self.source), ("target", self.target)):
            if trained.get(side, own := fingerprint(dictionary.symbols)) != own:
                raise ValueError(
                    f"the {side} dictionary of {folder} ({own}) is not the one that the model was trained with "
                    f"({trained[side]})"
                )

    def surroundings(self, languages: tuple[str, str]) -> Surroundings:
        """The tokens around the words of a pair of languages.

        Raises:
            ValueError: for a language without a token.
        """
        if self.tokens is None:
            return Surroundings()
        source = self.tokens.encoder_pieces([WORDS], *languages)
        place = source.index(WORDS)
        start, *given = (_index(self.target, piece) for piece in self.tokens.decoder_pieces(*languages))
        before, after = (
            tuple(_index(self.source, piece) for piece in pieces) for pieces in (source[:place], source[place + 1 :])
        )
        return Surroundings(before, after, start, tuple(given), _index(self.target, self.tokens.end_piece(*languages)))


def _index(dictionary: Dictionary, piece: str) -> int:
    if piece not in dictionary.indices:
        raise ValueError(f"{dictionary.path} has no token {piece!r}")
    return dictionary.indices[piece]
