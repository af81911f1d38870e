"""sacreBLEU's BLEU with the tokeniser that a language needs."""

from __future__ import annotations

import socket
import sys
from functools import cache

from sacrebleu.metrics import BLEU

from amlp_fairseq.text.languages import language, writes_spaces

#: sacreBLEU's tokenisers for languages with their scripts; "" is the default script.
_TOKENIZERS = {"ja": ("ja-mecab", {"Jpan", "Hira", "Kana"}), "ko": ("ko-mecab", {"", "Kore", "Hang"})}
_HAN = {"Hani", "Hans", "Hant"}
#: sacreBLEU's model of subword units for more than 200 languages, and the timeout of its download in seconds.
_FLORES, _TIMEOUT = "flores200", 10


def bleu_of(code: str) -> BLEU:
    """sacreBLEU's BLEU with its tokeniser for a language: ``zh``, ``ja-mecab``, ``ko-mecab``, ``13a`` for languages
    with spaces between words, otherwise ``flores200``, or ``char`` on a machine without a network.

    Args:
        code: the target language, in any standard: ``de``, ``zh-CN``, ``zho_Hans``.

    Raises:
        ValueError: if the tokeniser's libraries, of Japanese and Korean, are not installed.
    """
    short, script = language(code)
    name, scripts = _TOKENIZERS.get(short, ("", set()))
    if script in scripts:
        try:
            return BLEU(tokenize=name)
        except RuntimeError:
            install = f'pip install "sacrebleu[{short}]"'
            raise ValueError(f"BLEU of {code!r} needs sacreBLEU's tokeniser for it: {install}") from None
    if script in _HAN:
        return BLEU(tokenize="zh")
    return BLEU() if writes_spaces(code) else _subword_bleu()


@cache
def _subword_bleu() -> BLEU:
    """BLEU of subword units, or of characters if their model is neither stored nor can be downloaded."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        return BLEU(tokenize=_FLORES)
    except (OSError, RuntimeError) as error:  # a failed download, or an incomplete one of an earlier run
        print(f"BLEU is of characters, for sacreBLEU's model {_FLORES} is not to be had: {error}", file=sys.stderr)
        return BLEU(tokenize="char")
    finally:
        socket.setdefaulttimeout(before)
