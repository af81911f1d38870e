"""A dictionary of fairseq's, read without fairseq."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

BOS, PAD, EOS, UNK = range(4)
#: The first symbols of every dictionary, which its file does not have.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
#: After the count of a symbol that stands once more, in the place of the earlier one.
_OVERWRITE = " #fairseq:overwrite"


def fingerprint(symbols: Sequence[str]) -> str:
    """The number of symbols of a dictionary and a checksum of them, which identify it."""
    digest = hashlib.sha256("\n".join(symbols).encode()).hexdigest()
    return f"{len(symbols)} entries, sha256 {digest[:16]}"


class Dictionary:
    """The symbols of a model and their indices.

    Args:
        path: a file of fairseq-preprocess, a line ``SYMBOL COUNT`` for each symbol.

    Raises:
        ValueError: for a file that is none; names the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.symbols, self.indices = list(SPECIAL), {symbol: index for index, symbol in enumerate(SPECIAL)}
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a dictionary: {error}") from None
        if not lines[-1]:
            del lines[-1]
        for number, line in enumerate(lines, 1):
            symbol, _, count = line.removesuffix(_OVERWRITE).rpartition(" ")
            known = symbol in self.indices and not line.endswith(_OVERWRITE)
            if not count.isdecimal() or known:
                wrong = f"{symbol!r} stands there twice" if known else f"not SYMBOL COUNT: {line!r}"
                raise ValueError(f"{path} is not a dictionary: line {number}: {wrong}")
            self.indices[symbol] = len(self.symbols)
            self.symbols.append(symbol)

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, pieces: str) -> list[int]:
        """The indices of pieces with spaces between them, and of the end symbol."""
        return [*(self.indices.get(piece, UNK) for piece in pieces.split()), EOS]

    def decode(self, tokens: Iterable[int]) -> str:
        """The pieces of indices, without the start and end symbols."""
        return " ".join(self.symbols[token] for token in tokens if token not in (BOS, EOS))
