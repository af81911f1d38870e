"""Unknown words of a translation, in whose place come the words of the source that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from amlp_fairseq.common.lines import lines
from amlp_fairseq.text.dictionary import SPECIAL, UNK

#: The values of ``--replace-unk`` without a file: the second one is what fairseq's parser gives for the bare flag.
COPIES = ("", "@@ ")


def read_translations(option: str | None) -> dict[str, str] | None:
    """The translations of words in the file of ``--replace-unk FILE``, a line ``SOURCE TARGET`` each; none without a
    file, and None without the option.

    Raises:
        ValueError: for a file that is not there, and a line that is none; names it.
    """
    if not isinstance(option, str | None):
        raise ValueError(f"replace_unk={option!r}: '' copies words of the source, a file translates them")
    if option is None or option in COPIES:
        return None if option is None else {}
    if not Path(option).is_file():
        raise ValueError(f"--replace-unk {option}: there is no such file, of lines SOURCE TARGET")
    found = {}
    for number, line in enumerate(lines(Path(option)), 1):
        if not (words := line.split()):
            continue
        if len(words) != 2:
            raise ValueError(f"--replace-unk {option}: line {number} is not SOURCE TARGET: {line!r}")
        found[words[0]] = words[1]
    return found


def replaced(
    words: Sequence[str],
    source: Sequence[str],
    alignment: Iterable[tuple[int, int]],
    translations: Mapping[str, str],
) -> list[str]:
    """Words of a translation, with the translation of the source's word that each unknown one is aligned with, or that
    word itself, in its place.

    Args:
        words: of the translation.
        source: its words.
        alignment: pairs of their numbers, the source's first.
        translations: of words of the source.
    """
    aligned = {target: source[place] for place, target in alignment if 0 <= place < len(source)}
    return [
        translations.get(aligned[index], aligned[index]) if word == SPECIAL[UNK] and index in aligned else word
        for index, word in enumerate(words)
    ]
