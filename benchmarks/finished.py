"""Compare outputs of ``--finished best`` with those of ``all``, Algorithm 1 as it is written: a line of JSON for each
model and scoring.

    bash examples/models/corpus.sh WORK
    python -m benchmarks.finished examples/models/ibdecoder examples/models/ibdecoder_sa \\
        --source WORK/raw/test.en --reference WORK/raw/test.de

``scoring``          ``folder``: that of the model folder; ``algorithm 1``: words after the end symbol count, and scores
                     are divided by the length
``different``        sentences whose first outputs differ between ``--finished best`` and ``all``
``higher``, ``lower``  how many of all sentences have a better or worse score with ``all``
``score``, ``bleu``, ``calls``  of ``best`` and of ``all``: the mean score, sacreBLEU's BLEU, decoder calls per sentence
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.evaluation.score import bleu_of
from amlp_fairseq.search.options import FINISHED
from amlp_fairseq.training.environment import environment
from amlp_fairseq.translator.translator import Translation, Translator

SCORINGS: dict[str, dict[str, Any]] = {
    "folder": {},
    "algorithm 1": {"words_after_end": "count", "length_penalty": "fairseq", "lenpen": 1.0},
}


def compared(translations: dict[str, list[Translation]], references: list[str], language: str) -> dict[str, Any]:
    """The differences between the translations with ``best`` and with ``all``."""
    pairs = list(zip(translations["best"], translations["all"], strict=True))
    gains = [literal.score - best.score for best, literal in pairs]
    bleu = bleu_of(language)

    def mean(numbers: list[float]) -> float:
        return round(sum(numbers) / len(numbers), 4)

    return {
        "sentences": len(references),
        "different": sum(best.text != literal.text for best, literal in pairs),
        "higher": sum(gain > 1e-5 for gain in gains),  # nearer ones are rounded differently
        "lower": sum(gain < -1e-5 for gain in gains),
        "score": {name: mean([line.score for line in lines]) for name, lines in translations.items()},
        "bleu": {
            name: round(bleu.corpus_score([line.text for line in lines], [references]).score, 2)
            for name, lines in translations.items()
        },
        "calls": {name: mean([float(line.calls) for line in lines]) for name, lines in translations.items()},
        "bleu_signature": str(bleu.get_signature()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+", help="model folders that decode interleaved")
    parser.add_argument("--source", type=Path, required=True, help="raw text, one sentence a line")
    parser.add_argument("--reference", type=Path, required=True, help="its translations")
    parser.add_argument("--beam", type=positive, default=4, help="(default: %(default)s)")
    args = parser.parse_args()
    sources, references = read_references(args.source), read_references(args.reference)
    for model in args.models:
        for scoring, options in SCORINGS.items():
            translations: dict[str, list[Translation]] = {}
            for finished in FINISHED:
                translator = Translator(model, split_sentences=False, beam=args.beam, finished=finished, **options)
                translations[finished] = translator.translations(sources)
            line: dict[str, Any] = {"model": model.name, "beam": args.beam, "scoring": scoring}
            line |= compared(translations, references, translator.languages[1])
            print(json.dumps(line | environment("cpu")), flush=True)


if __name__ == "__main__":
    main()
