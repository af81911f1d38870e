"""Score outputs against raw references, as one JSON object.

    amlp-fairseq score OUTPUTS REFERENCES [REFERENCES …] [--language CODE] [--metric rouge|kytea]

OUTPUTS has a line for each line of REFERENCES, as ``amlp-fairseq translate`` and ``evaluate`` (.hyp) write it; or it
is what ``fairseq-generate`` printed: its D- lines are put back into input order, and each sentence must be there once.
With several files of REFERENCES each line has several right answers. CODE is the target language's, in any standard
(de, pt-BR, zho, zho_Hans): it chooses the tokeniser of BLEU. ``amlp-fairseq evaluate`` does this and more.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import sacremoses
from fairseq import checkpoint_utils
from sacrebleu.metrics import BLEU, CHRF

from amlp_fairseq.common import parallel_text
from amlp_fairseq.common.arguments import command_parser
from amlp_fairseq.common.metrics import DEFAULT, OF_OUTPUTS
from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.compat.internals import overwrite_args_by_name
from amlp_fairseq.evaluation.kytea import kytea_bleu
from amlp_fairseq.evaluation.rouge import rouge
from amlp_fairseq.text.bleu import bleu_of
from amlp_fairseq.text.languages import language
from amlp_fairseq.training.environment import environment

#: Sets of references, each with one for each output.
References = Sequence[Sequence[str]]
#: Kinds of files of outputs.
FORMS = ("auto", "lines", "fairseq")


def lines_by_sentence(generated: str, prefix: str) -> dict[int, list[str]]:
    """The fields of the lines ``PREFIX-<sentence>\\t…``; of several (``--nbest``) the first."""
    found: dict[int, list[str]] = {}
    for number, rest in re.findall(rf"^{prefix}-(\d+)\t(.*)$", generated, flags=re.MULTILINE):
        found.setdefault(int(number), rest.split("\t"))
    return found


def hypotheses_of(generated: str, sentences: int) -> list[str]:
    """The hypotheses of all sentences in an output of fairseq-generate, in input order: detokenised (D- lines), unless
    it has H- lines only.

    Raises:
        ValueError: if a sentence has no output, or an output no sentence.
    """
    outputs = lines_by_sentence(generated, "D") or lines_by_sentence(generated, "H")
    if outputs.keys() != set(range(sentences)):
        odd = sorted(outputs.keys() ^ set(range(sentences)))
        raise ValueError(f"{len(outputs)} outputs for {sentences} references; missing or unexpected: {odd[:10]}")
    return [outputs[i][1] if len(outputs[i]) > 1 else "" for i in range(sentences)]


def outputs_of(text: str, sentences: int, form: str = "auto") -> list[str]:
    """The outputs of all sentences, in input order.

    Args:
        text: a line for each sentence, or an output of fairseq-generate.
        sentences: how many there are.
        form: of ``FORMS``; ``auto``: fairseq's if it has lines like ``D-0`` or ``H-0``.

    Raises:
        ValueError: if there are more or fewer outputs, or it could be either.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    numbers = (lines_by_sentence(text, "D") or lines_by_sentence(text, "H")).keys()
    if form == "auto" and numbers and len(lines) == sentences and numbers != set(range(sentences)):
        raise ValueError(
            f"{len(numbers)} of {sentences} lines begin as those of fairseq-generate: say --format lines or "
            "--format fairseq"
        )
    if form == "fairseq" or (form == "auto" and numbers):
        return hypotheses_of(text, sentences)
    if len(lines) != sentences:
        raise ValueError(f"{len(lines)} lines for {sentences} references, and none like D-0 of fairseq-generate")
    return lines


def tokenised_bleu(hypotheses: list[str], references: References, code: str, split_compounds: bool) -> float:
    """BLEU as multi-bleu.perl computes it, of text as the Moses tokeniser splits it.

    ``split_compounds``: words with hyphens are split as well, as for WMT14 En-De since Vaswani et al. (2017).
    """
    tokenise = sacremoses.MosesTokenizer(lang=language(code).code).tokenize
    texts = [[tokenise(line, return_str=True, escape=False) for line in text] for text in (hypotheses, *references)]
    if split_compounds:
        texts = [[re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", line) for line in text] for text in texts]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return round(metric.corpus_score(texts[0], texts[1:]).score, 2)


def translation_scores(hypotheses: list[str], references: References, code: str) -> dict[str, object]:
    """``bleu`` (detokenised, sacreBLEU), ``chrf`` and signatures; of languages that the Moses tokeniser splits into
    words also ``tokenised_bleu`` and ``compound_split_bleu``."""
    bleu = bleu_of(code)
    scores: dict[str, object] = {"bleu": round(bleu.corpus_score(hypotheses, references).score, 2)}
    signature = scores["bleu_signature"] = str(bleu.get_signature())
    if "|tok:13a|" in signature:
        scores["tokenised_bleu"] = tokenised_bleu(hypotheses, references, code, split_compounds=False)
        scores["compound_split_bleu"] = tokenised_bleu(hypotheses, references, code, split_compounds=True)
    return scores | chrf(hypotheses, references)


def chrf(hypotheses: list[str], references: References) -> dict[str, object]:
    """``chrf`` (sacreBLEU) and its signature."""
    metric = CHRF()
    value = round(metric.corpus_score(hypotheses, references).score, 2)
    return {"chrf": value, "chrf_signature": str(metric.get_signature())}


def score(
    hypotheses: list[str], references: References, language: str = "de", metric: str = DEFAULT
) -> dict[str, object]:
    """Scores of outputs by ``metric``, and counts of faulty ones.

    Args:
        hypotheses: one for each sentence.
        references: raw text, one or several sets, each with a sentence or summary for each output.
        language: the target language, as :func:`bleu.bleu_of` takes it.
        metric: ``bleu`` for the three kinds of BLEU that papers report and chrF, ``rouge`` for ROUGE of English text,
            ``kytea`` for BLEU of Japanese on words as KyTea finds them and chrF.

    Returns:
        the fields of ``translation_scores``, ``rouge`` or ``kytea_bleu``, ``sentences``, ``empty_outputs`` and
        ``repeated_words`` (equal to the word before).

    Raises:
        ValueError: if a library of the metric, or of its tokeniser, is not installed.
    """
    if metric == "rouge":
        scores = rouge(hypotheses, references)
    elif metric == "kytea":
        scores = kytea_bleu(hypotheses, references) | chrf(hypotheses, references)
    else:
        scores = translation_scores(hypotheses, references, language)
    words = [hypothesis.split() for hypothesis in hypotheses]
    return {
        **scores,
        "sentences": len(hypotheses),
        "empty_outputs": sum(not each for each in words),
        "repeated_words": sum(one == other for each in words for one, other in pairwise(each)),
    }


def costs(generated: str, word_by_word: bool = False) -> dict[str, object]:
    """``steps_per_sentence`` and ``milliseconds_per_sentence``, as far as an output of fairseq-generate has them.

    Args:
        generated: what it printed.
        word_by_word: whether a decoder call wrote each word and the end symbol, as in fairseq's own search, which
            prints no steps.
    """
    result: dict[str, object] = {}
    steps = [int(fields[0]) for fields in lines_by_sentence(generated, "I").values()]
    if not steps and word_by_word:
        steps = [len(fields[0].split()) for fields in lines_by_sentence(generated, "P").values()]
    if steps:
        result["steps_per_sentence"] = round(sum(steps) / len(steps), 2)
    if timing := re.search(r"Translated ([\d,]+) sentences .* in ([\d.]+)s \(([\d.]+) sentences/s", generated):
        sentences, seconds, rate = (float(number.replace(",", "")) for number in timing.groups())
        # fairseq prints seconds with one decimal and sentences a second with two: of the two the one rounded less.
        result["milliseconds_per_sentence"] = round(1000 / rate if rate > 1 else 1000 * seconds / sentences, 2)
    return result


def describe(state: dict[str, Any], checkpoint: Path, data: Path) -> dict[str, object]:
    """Number of parameters (tied ones once), updates, seed and seconds of training of a checkpoint with this content,
    whose data may be in another folder since."""
    overwrite_args_by_name(state["cfg"], {"data": str(data)})
    models, cfg, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], state=state)
    return {
        "parameters": sum(p.numel() for p in models[0].parameters()),
        "updates": state["optimizer_history"][-1]["num_updates"],
        "seed": cfg.common.seed,
        "training_seconds": round(state["extra_state"]["previous_training_time"]),
    }


def main() -> None:
    parser = command_parser("score", __doc__)
    parser.add_argument("outputs", metavar="OUTPUTS", type=Path, help="lines, or what fairseq-generate printed")
    parser.add_argument("references", metavar="REFERENCES", type=Path, nargs="+", help="raw text, a sentence a line")
    parser.add_argument(
        "--language", metavar="CODE", default="de", help="language of the target (default: %(default)s)"
    )
    parser.add_argument(
        "--metric", choices=OF_OUTPUTS, default=DEFAULT, help="rouge for English summaries, kytea for Japanese"
    )
    parser.add_argument("--format", choices=FORMS, default="auto", help="format of OUTPUTS (default: %(default)s)")
    args = parser.parse_args()
    text, references = parallel_text.read(args.outputs), [read_references(path) for path in args.references]
    for path, each in zip(args.references, references, strict=True):
        if len(each) != len(references[0]):
            counts = f"{len(each)} lines, {args.references[0]} {len(references[0])}"
            raise ValueError(f"REFERENCES {path} has {counts}: each has a line for each output")
    try:
        hypotheses = outputs_of(text, len(references[0]), args.format)
    except ValueError as error:
        raise ValueError(f"OUTPUTS {args.outputs}: {error}") from None
    result = score(hypotheses, references, args.language, args.metric)
    print(json.dumps(result | costs(text) | environment(), ensure_ascii=False))


if __name__ == "__main__":
    main()
