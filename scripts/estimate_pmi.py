"""Estimate how much words that are predicted together depend on each other (Zhang et al. 2020, Appendix B, Table 3).

    python scripts/estimate_pmi.py DATA AUTOREGRESSIVE_CHECKPOINT OTHER_CHECKPOINT [--results FILE.jsonl]
        [options of fairseq-validate]

Both are of the task translation_interleaved and of one order of generation: for vanilla SA an autoregressive model
(h = 1, c = 1), for IBDecoder a bidirectional one that writes a word per step (h = 2, c = 0). Prints the perplexities on
DATA's test set and log10 ppl(other) - log10 ppl(autoregressive), Eq. 13; the paper's Table 3 has it to base 10. With
--results they are added to a file as well.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

from recipe import PLUGIN
from score import environment


def log10_perplexity(log: str) -> float:
    """The last validation's log10 perplexity; fairseq prints the loss per word to base 2.

    Raises:
        ValueError: if the log has no validation loss.
    """
    losses = re.findall(r"\| valid.*? \| nll_loss ([\d.]+)", log)
    if not losses:
        raise ValueError("the log has no validation line with an nll_loss")
    return float(losses[-1]) * math.log10(2)


def validate(data: Path, checkpoint: Path, rest: list[str]) -> float:
    """log10 perplexity of a checkpoint on the test set, or on the ``--valid-subset`` of ``rest``.

    Raises:
        RuntimeError: if fairseq-validate fails.
    """
    words = ["fairseq-validate", str(data), "--user-dir", str(PLUGIN), "--task", "translation_interleaved"]
    words += ["--path", str(checkpoint), "--valid-subset", "test", "--max-tokens", "4000", *rest]
    words += ["--required-batch-size-multiple", "1"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-1000:]}")
    return log10_perplexity(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("data", type=Path, help="a folder of fairseq-preprocess")
    parser.add_argument("autoregressive", type=Path, help="checkpoint of the model that writes a word per step")
    parser.add_argument("other", type=Path, help="checkpoint of the model that writes several")
    parser.add_argument("--results", type=Path, metavar="FILE.jsonl", help="a file that a line is added to")
    args, rest = parser.parse_known_args()
    try:
        base, other = (validate(args.data, path, rest) for path in (args.autoregressive, args.other))
    except (RuntimeError, ValueError) as error:
        sys.exit(f"estimate_pmi: {error}")
    print(f"perplexity {10**base:.2f} and {10**other:.2f}, estimated PMI {other - base:.3f}")
    if args.results is not None:
        paths = {name: str(getattr(args, name)) for name in ("data", "autoregressive", "other")}
        with args.results.open("a", encoding="utf-8") as file:
            numbers = {"perplexities": [10**base, 10**other], "pmi": other - base}
            print(json.dumps({**paths, **numbers, **environment()}), file=file)


if __name__ == "__main__":
    main()
