"""BLEU of Japanese on words as KyTea finds them, which is how IBDecoder's authors score WAT17 (Setup of the paper)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import sacrebleu

from amlp_fairseq.common.files import sha256

#: Where KyTea looks for its model if the environment variable KYTEA_MODEL does not name a file.
MODEL = "/usr/local/share/kytea/model.bin"


def model() -> Path:
    """KyTea's model, which its package for Python does not have.

    Raises:
        ValueError: if there is no such file.
    """
    path = Path(os.environ.get("KYTEA_MODEL", MODEL))
    if not path.is_file():
        raise ValueError(f"KyTea's model {path} does not exist: KYTEA_MODEL must name it (docs/data.md#japanese)")
    return path


def segmenter() -> Callable[[str], str]:
    """A function from a line to the words that KyTea finds in it, with spaces between them.

    Spaces of the line are no boundaries: outputs are words already, and Japanese text has none.

    Raises:
        ValueError: if the library or its model is not there, or the model is none.
    """
    try:
        from Mykytea import Mykytea
    except ModuleNotFoundError as error:
        raise ValueError(f'Japanese is scored by KyTea ({error}): pip install "amlp-fairseq[kytea]"') from None
    path = model()
    try:
        kytea = Mykytea("")  # it reads KYTEA_MODEL
    except RuntimeError as error:
        raise ValueError(f"KyTea's model {path}: {error}") from None
    return lambda line: " ".join(kytea.getWS("".join(line.split())))


def kytea_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, object]:
    """``kytea_bleu``, BLEU as multi-bleu.perl computes it, of one or several sets of references, and
    ``kytea_signature``, which says the model's checksum.

    Raises:
        ValueError: see ``segmenter``.
    """
    words = segmenter()
    texts = [[words(line) for line in text] for text in (hypotheses, *references)]
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    value = round(metric.corpus_score(texts[0], texts[1:]).score, 2)
    signature = f"{metric.get_signature()}|kytea:{version('kytea')}|model:{sha256(model())[:12]}"
    return {"kytea_bleu": value, "kytea_signature": signature}
