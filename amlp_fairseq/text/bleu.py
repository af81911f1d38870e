"""sacreBLEU's BLEU with the tokeniser that a language needs."""

from __future__ import annotations

import socket
import sys
from functools import cache

from sacrebleu.metrics import BLEU

from amlp_fairseq.text.languages import language, writes_spaces

#: sacreBLEU's tokenisers for languages, where they are written in one of these scripts; "" is the usual one.
_OWN = {"ja": ("ja-mecab", {"Jpan", "Hira", "Kana"}), "ko": ("ko-mecab", {"", "Kore", "Hang"})}
_HAN = {"Hani", "Hans", "Hant"}
#: Its model of subword units for more than 200 languages, and the seconds in which its download has to begin.
_FLORES, _PATIENCE = "flores200", 10


def bleu_of(code: str) -> BLEU:
    """sacreBLEU's BLEU, of text as its tokeniser for a language splits it: ``zh``, ``ja-mecab``, ``ko-mecab``, where
    words have spaces between them ``13a``, otherwise ``flores200``, or ``char`` on a machine without a network.

    Args:
        code: of the target language, in any standard: ``de``, ``zh-CN``, ``zho_Hans``.

    Raises:
        ValueError: if the tokeniser's libraries are not installed, those of Japanese and Korean.
    """
    short, script = language(code)
    name, scripts = _OWN.get(short, ("", set()))
    if script in scripts:
        try:
            return BLEU(tokenize=name)
        except RuntimeError:
            install = f'pip install "sacrebleu[{short}]"'
            raise ValueError(f"BLEU of {code!r} needs sacreBLEU's tokeniser for it: {install}") from None
    if script in _HAN:
        return BLEU(tokenize="zh")
    return BLEU() if writes_spaces(code) else _of_pieces()


@cache
def _of_pieces() -> BLEU:
    """BLEU of pieces of words, or of characters where their model is neither stored nor to be had."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        return BLEU(tokenize=_FLORES)
    except (OSError, RuntimeError) as error:  # a failed download, or a half one of an earlier run
        print(f"BLEU is of characters, for sacreBLEU's model {_FLORES} is not to be had: {error}", file=sys.stderr)
        return BLEU(tokenize="char")
    finally:
        socket.setdefaulttimeout(before)
