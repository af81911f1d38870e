"""Score the output of fairseq-generate against raw references, as one JSON object.

    amlp-fairseq score GENERATED REFERENCE [--language de] [--metric rouge|kytea]

GENERATED is what ``fairseq-generate`` printed (its D- lines are put back into input order, and each sentence must be
there once), REFERENCE the raw text. ``amlp-fairseq evaluate`` does this and more.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import sacremoses
from fairseq import checkpoint_utils
from sacrebleu.metrics import BLEU, CHRF

from amlp_fairseq.compat import parallel_text
from amlp_fairseq.recipes.environment import environment
from amlp_fairseq.recipes.kytea import kytea_bleu
from amlp_fairseq.recipes.metrics import DEFAULT, OF_OUTPUTS
from amlp_fairseq.recipes.rouge import rouge
from amlp_fairseq.usage import command_parser


def lines_by_sentence(generated: str, prefix: str) -> dict[int, list[str]]:
    """The fields of the lines ``PREFIX-<sentence>\\t…``; of several (``--nbest``) the first."""
    found: dict[int, list[str]] = {}
    for number, rest in re.findall(rf"^{prefix}-(\d+)\t(.*)$", generated, flags=re.MULTILINE):
        found.setdefault(int(number), rest.split("\t"))
    return found


def read_references(path: Path) -> list[str]:
    """The raw references of a file, one a line; only a newline ends a line.

    Raises:
        ValueError: if it is empty.
    """
    text = parallel_text.read(path)
    if not text:
        raise ValueError(f"{path} is empty")
    return text.removesuffix("\n").split("\n")


def hypotheses_of(generated: str, sentences: int) -> list[str]:
    """The detokenised hypotheses of all sentences, in input order.

    Raises:
        ValueError: if a sentence has no output, or an output no sentence.
    """
    outputs = lines_by_sentence(generated, "D")
    if outputs.keys() != set(range(sentences)):
        odd = sorted(outputs.keys() ^ set(range(sentences)))
        raise ValueError(f"{len(outputs)} outputs for {sentences} references; missing or unexpected: {odd[:10]}")
    return [outputs[i][1] if len(outputs[i]) > 1 else "" for i in range(sentences)]


#: Languages without spaces between words for which sacreBLEU has no tokeniser: Khmer, Lao, Burmese, Thai.
WITHOUT_SPACES = ("km", "lo", "my", "th")


def bleu_of(language: str) -> BLEU:
    """sacreBLEU's BLEU, of text as its tokeniser for a language splits it, or of characters.

    Args:
        language: the target language, such as ``de`` or ``zh-CN``.

    Raises:
        ValueError: if the tokeniser's libraries are not installed, those of Japanese and Korean.
    """
    language = re.split("[-_]", language.lower())[0]
    try:
        return BLEU(tokenize="char") if language in WITHOUT_SPACES else BLEU(trg_lang=language)
    except RuntimeError:
        install = f'pip install "sacrebleu[{language}]"'
        raise ValueError(f"BLEU of {language!r} needs sacreBLEU's tokeniser for it: {install}") from None


def tokenised_bleu(hypotheses: list[str], references: list[str], language: str, split_compounds: bool) -> float:
    """BLEU as multi-bleu.perl computes it, of text as the Moses tokeniser splits it.

    ``split_compounds``: words with hyphens are split as well, as for WMT14 En-De since Vaswani et al. (2017).
    """
    tokenise = sacremoses.MosesTokenizer(lang=language).tokenize
    texts = [[tokenise(line, return_str=True, escape=False) for line in text] for text in (hypotheses, references)]
    if split_compounds:
        texts = [[re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", line) for line in text] for text in texts]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return round(metric.corpus_score(texts[0], [texts[1]]).score, 2)


def translation_scores(hypotheses: list[str], references: list[str], language: str) -> dict[str, object]:
    """``bleu`` (detokenised, sacreBLEU), ``chrf`` and signatures; of languages that the Moses tokeniser splits into
    words also ``tokenised_bleu`` and ``compound_split_bleu``."""
    bleu = bleu_of(language)
    scores: dict[str, object] = {"bleu": round(bleu.corpus_score(hypotheses, [references]).score, 2)}
    signature = scores["bleu_signature"] = str(bleu.get_signature())
    if "|tok:13a|" in signature:
        scores["tokenised_bleu"] = tokenised_bleu(hypotheses, references, language, split_compounds=False)
        scores["compound_split_bleu"] = tokenised_bleu(hypotheses, references, language, split_compounds=True)
    return scores | chrf(hypotheses, references)


def chrf(hypotheses: list[str], references: list[str]) -> dict[str, object]:
    """``chrf`` (sacreBLEU) and its signature."""
    metric = CHRF()
    value = round(metric.corpus_score(hypotheses, [references]).score, 2)
    return {"chrf": value, "chrf_signature": str(metric.get_signature())}


def score(
    generated: str,
    references: list[str],
    language: str = "de",
    metric: str = DEFAULT,
    word_by_word: bool = False,
) -> dict[str, object]:
    """What ``metric`` says of the outputs, counts of faulty ones, decoder steps and milliseconds per sentence.

    Args:
        generated: what fairseq-generate printed.
        references: raw text, one sentence or summary each.
        language: the target language.
        metric: ``bleu`` for the three kinds of BLEU that papers report and chrF, ``rouge`` for ROUGE of English text,
            ``kytea`` for BLEU of Japanese on words as KyTea finds them and chrF.
        word_by_word: whether a decoder call wrote each word and the end symbol, as in fairseq's own search, which
            prints no steps.

    Returns:
        the fields of ``translation_scores``, ``rouge`` or ``kytea_bleu``, ``sentences``, ``empty_outputs``,
        ``repeated_words`` (equal to the word before), and as far as the output has them ``steps_per_sentence`` and
        ``milliseconds_per_sentence``.

    Raises:
        ValueError: if a sentence has no output, or an output no sentence; if a library of the metric, or of its
            tokeniser, is not installed.
    """
    hypotheses = hypotheses_of(generated, len(references))
    if metric == "rouge":
        scores = rouge(hypotheses, references)
    elif metric == "kytea":
        scores = kytea_bleu(hypotheses, references) | chrf(hypotheses, references)
    else:
        scores = translation_scores(hypotheses, references, language)
    words = [hypothesis.split() for hypothesis in hypotheses]
    result: dict[str, object] = {
        **scores,
        "sentences": len(references),
        "empty_outputs": sum(not each for each in words),
        "repeated_words": sum(one == other for each in words for one, other in pairwise(each)),
    }
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


def describe(checkpoint: Path, data: Path) -> dict[str, object]:
    """Number of parameters (tied ones once), updates, seed and seconds of training of a checkpoint, whose data may be
    in another folder since."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), {"data": str(data)})
    models, cfg, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], state=state)
    return {
        "parameters": sum(p.numel() for p in models[0].parameters()),
        "updates": state["optimizer_history"][-1]["num_updates"],
        "seed": cfg.common.seed,
        "training_seconds": round(state["extra_state"]["previous_training_time"]),
    }


def main() -> None:
    parser = command_parser("score", __doc__)
    parser.add_argument("generated", type=Path, help="output of fairseq-generate")
    parser.add_argument("reference", type=Path, help="raw references, one sentence per line")
    parser.add_argument("--language", default="de", help="of the target, for its tokenisation")
    parser.add_argument(
        "--metric", choices=OF_OUTPUTS, default=DEFAULT, help="rouge for English summaries, kytea for Japanese"
    )
    args = parser.parse_args()
    generated, references = parallel_text.read(args.generated), read_references(args.reference)
    result = score(generated, references, args.language, args.metric)
    print(json.dumps(result | environment(), ensure_ascii=False))


if __name__ == "__main__":
    main()
