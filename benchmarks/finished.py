"""What ``--finished all``, Algorithm 1 as it is written, changes in outputs: a line of JSON for each model and scoring.

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


def compared(found: dict[str, list[Translation]], references: list[str], language: str) -> dict[str, Any]:
    """How the translations with ``best`` and with ``all`` differ."""
    best, everything = found["best"], found["all"]
    gains = [there.score - here.score for here, there in zip(best, everything, strict=True)]
    bleu = bleu_of(language)

    def mean(numbers: list[float]) -> float:
        return round(sum(numbers) / len(numbers), 4)

    return {
        "sentences": len(references),
        "different": sum(here.text != there.text for here, there in zip(best, everything, strict=True)),
        "higher": sum(gain > 1e-5 for gain in gains),  # nearer ones are rounded differently
        "lower": sum(gain < -1e-5 for gain in gains),
        "score": {name: mean([each.score for each in texts]) for name, texts in found.items()},
        "bleu": {
            name: round(bleu.corpus_score([each.text for each in texts], [references]).score, 2)
            for name, texts in found.items()
        },
        "calls": {name: mean([float(each.calls) for each in texts]) for name, texts in found.items()},
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
            found: dict[str, list[Translation]] = {}
            for finished in FINISHED:
                translator = Translator(model, split_sentences=False, beam=args.beam, finished=finished, **options)
                found[finished] = translator.translations(sources)
            line = {"model": model.name, "beam": args.beam, "scoring": scoring}
            print(
                json.dumps(line | compared(found, references, translator.languages[1]) | environment("cpu")), flush=True
            )


if __name__ == "__main__":
    main()
