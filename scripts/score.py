"""Score the output of fairseq-generate against raw references with sacreBLEU, as one JSON object.

    python scripts/score.py GENERATED REFERENCE [--checkpoint CHECKPOINT] [KEY=VALUE …]

GENERATED is what ``fairseq-generate`` printed (its D- lines are put back into input order, and each sentence must be
there once), REFERENCE the raw text. Prints BLEU, chrF, their signatures, decoder steps and seconds per sentence; with a
checkpoint also its number of parameters and updates; and the KEY=VALUE pairs as they are.
"""

import argparse
import json
import platform
import re
import subprocess
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import sacrebleu
import torch
from fairseq import checkpoint_utils

import amlp_fairseq  # noqa: F401  (lets fairseq's checkpoints load)


def lines_by_sentence(generated: str, prefix: str) -> dict[int, list[str]]:
    """The fields of the lines ``PREFIX-<sentence>\\t…``; of several (``--nbest``) the first."""
    found: dict[int, list[str]] = {}
    for number, rest in re.findall(rf"^{prefix}-(\d+)\t(.*)$", generated, flags=re.MULTILINE):
        found.setdefault(int(number), rest.split("\t"))
    return found


def score(generated: str, references: list[str]) -> dict[str, object]:
    """BLEU and chrF of the outputs, decoder steps per sentence, seconds per sentence.

    Raises:
        ValueError: if a sentence has no output, or an output no sentence.
    """
    outputs = lines_by_sentence(generated, "D")
    if outputs.keys() != set(range(len(references))):
        odd = sorted(outputs.keys() ^ set(range(len(references))))
        raise ValueError(f"{len(outputs)} outputs for {len(references)} references; odd sentences: {odd[:10]}")
    hypotheses = [outputs[i][1] if len(outputs[i]) > 1 else "" for i in range(len(references))]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    result: dict[str, object] = {
        "bleu": round(bleu.corpus_score(hypotheses, [references]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
        "chrf_signature": str(chrf.get_signature()),
        "sentences": len(references),
    }
    # An autoregressive decoder of fairseq prints no I- lines: it makes a call for each word and the end symbol.
    steps = [int(fields[0]) for fields in lines_by_sentence(generated, "I").values()]
    steps = steps or [len(fields[0].split()) for fields in lines_by_sentence(generated, "P").values()]
    if steps:
        result["steps_per_sentence"] = round(sum(steps) / len(steps), 2)
    if timing := re.search(r"Translated ([\d,]+) sentences .* in ([\d.]+)s", generated):
        seconds = float(timing.group(2)) / int(timing.group(1).replace(",", ""))
        result["milliseconds_per_sentence"] = round(1000 * seconds, 2)
    return result


def describe(checkpoint: Path) -> dict[str, object]:
    """Number of parameters (tied ones once) and of updates of a checkpoint."""
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    history = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["optimizer_history"]
    return {"parameters": sum(p.numel() for p in models[0].parameters()), "updates": history[-1]["num_updates"]}


def environment() -> dict[str, object]:
    """Device, versions and commit."""
    cpu = Counter(re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE))
    processor = cpu.most_common(1)[0][0] if cpu else platform.machine()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{processor} (CPU)"
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout.strip()
    packages = ("torch", "fairseq-fixed", "amlp-fairseq", "sacrebleu", "sentencepiece")
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "commit": commit + ("+changes" if changed else ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generated", type=Path, help="output of fairseq-generate")
    parser.add_argument("reference", type=Path, help="raw references, a sentence a line")
    parser.add_argument("facts", nargs="*", metavar="KEY=VALUE", help="facts to put into the result")
    parser.add_argument("--checkpoint", type=Path, help="the checkpoint that made the output")
    args = parser.parse_intermixed_args()
    for fact in args.facts:
        if "=" not in fact:
            parser.error(f"a fact must read KEY=VALUE, not {fact!r}")
    result: dict[str, object] = dict(fact.split("=", 1) for fact in args.facts)
    texts = [path.read_bytes().decode("utf-8") for path in (args.generated, args.reference)]
    result |= score(texts[0], texts[1].removesuffix("\n").split("\n"))
    if args.checkpoint is not None:
        result |= describe(args.checkpoint)
    print(json.dumps(result | environment(), ensure_ascii=False))


if __name__ == "__main__":
    main()
