"""``language_tokens`` in config.json: the languages of a multilingual model, and where their tokens stand.

Only folders of multilingual models have it. ``languages`` in config.json, as in all folders, is the pair that is
translated unless another one is asked for. The tokens are entries of the folder's dictionaries::

    "language_tokens": {
      "codes": ["de", "en", "fr"],                    languages that the model reads and writes
      "source": ["__{source}__", "{words}", "</s>"],  what the encoder reads
      "target": ["</s>", "__{target}__"],             what the decoder begins with: the start symbol, given words
      "end": "</s>"                                   the symbol that ends a translation
    }

``{source}`` and ``{target}`` stand for the code of a language, ``{words}`` for the pieces of the source. So in M2M-100
and NLLB-200 (above), in mBART's fine-tuned models ``["{words}", "</s>", "[{source}]"]``, ``["[{target}]"]`` and
``"[{target}]"``, and with ``--encoder-langtok tgt --decoder-langtok`` of ``multilingual_translation``
``["{words}", "__{target}__"]``, ``["__{target}__"]`` and ``"</s>"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from amlp_fairseq.common.arguments import nearest

KEY = "language_tokens"
WORDS = "{words}"
#: Symbol with which sentences end.
END = "</s>"


@dataclass(frozen=True)
class LanguageTokens:
    """See the module. :meth:`of` reads it, :meth:`entry` writes it."""

    codes: tuple[str, ...]
    source: tuple[str, ...]
    target: tuple[str, ...]
    end: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LanguageTokens | None:
        """The entry of a folder's config.json; None for a model of one pair."""
        entry = config.get(KEY)
        if entry is None:
            return None
        codes, source, target = (tuple(entry[name]) for name in ("codes", "source", "target"))
        return cls(codes, source, target, entry["end"])

    @classmethod
    def before_sources(cls, tags: Sequence[str], codes: Sequence[str]) -> LanguageTokens:
        """Tokens that stand before the words of a source, and nowhere else: ``{source} {target}`` in IndicTrans2."""
        return cls(tuple(codes), (*tags, WORDS, END), (END,), END)

    @property
    def around_source(self) -> int:
        """The number of tokens that a source has beside its words."""
        return len(self.source) - 1

    def entry(self) -> dict[str, Any]:
        return asdict(self)

    def encoder_pieces(self, words: Sequence[str], source: str, target: str) -> list[str]:
        """All pieces that the encoder reads for the words of a source."""
        return [piece for each in self.source for piece in (words if each == WORDS else [_named(each, source, target)])]

    def decoder_pieces(self, source: str, target: str) -> list[str]:
        """The start symbol, and the words of the translation that are given."""
        return [_named(each, source, target) for each in self.target]

    def end_piece(self, source: str, target: str) -> str:
        return _named(self.end, source, target)

    def check(self, option: str, code: str) -> None:
        """Raise ValueError for a language that the model does not have; names the nearest and the list. A model without
        ``codes`` has one pair, that of ``languages``.

        Args:
            option: where it was given: ``--source-lang``.
        """
        if code not in self.codes:
            near = nearest(code, self.codes)
            hint = f"did you mean {near}? " if near else ""
            raise ValueError(f"{option} {code}: {hint}the model has {', '.join(self.codes)}")


def _named(piece: str, source: str, target: str) -> str:
    return piece.replace("{source}", source).replace("{target}", target)
