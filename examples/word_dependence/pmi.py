"""Estimate how much words that are predicted together depend on each other (Zhang et al. 2020, Appendix B, Table 3).

    python examples/word_dependence/pmi.py DATA AUTOREGRESSIVE_CHECKPOINT OTHER_CHECKPOINT [AUTOREGRESSIVE OTHER …]
        [--results FILE.jsonl] [options of fairseq-validate]

Both models of a pair have the task translation_interleaved and the same order of generation. The first one writes a
word per step: for vanilla SA an autoregressive model (h = 1, c = 1), for IBDecoder a bidirectional one (h = 2, c = 0).
Prints for each pair the perplexities per subword on DATA's test set and log10 ppl(other) - log10 ppl(autoregressive),
Eq. 13; base 10 is that of the paper's Table 3. --results appends a line for each model, which ``amlp-fairseq tables``
puts beside that table; the checkpoints are then of ``amlp-fairseq train --row``.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from amlp_fairseq.common.arguments import PLUGIN, Parser, parse_with_fairseqs, say_next
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.subprocesses import failed
from amlp_fairseq.common.training_folder import RECIPE
from amlp_fairseq.common.user_errors import one_line_errors
from amlp_fairseq.compat.flags import fairseqs_flags, known_flags
from amlp_fairseq.evaluation.score import describe
from amlp_fairseq.training.config import read
from amlp_fairseq.training.data_folder import data_folder, text_settings
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import PERPLEXITY, append_results, facts

TASK = "translation_interleaved"


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
        ChildProcessError: if fairseq-validate fails.
    """
    words = [sys.executable, "-m", "fairseq_cli.validate", str(data), "--user-dir", str(PLUGIN), "--task", TASK]
    words += ["--path", str(checkpoint), "--valid-subset", "test", "--max-tokens", "4000", *rest]
    words += ["--required-batch-size-multiple", "1"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise failed(f"fairseq-validate --path {checkpoint}", done.returncode, done.stdout)
    return log10_perplexity(done.stdout)


def facts_of(data: Path, checkpoint: Path) -> dict[str, Any]:
    """What a result is of.

    Raises:
        ValueError: for a checkpoint that is not in the folder of a training with --row.
    """
    if not (checkpoint.parent / RECIPE).is_file():
        raise ValueError(f"--results: {checkpoint} is not in a folder of amlp-fairseq train --row: it has no {RECIPE}")
    recipe = read(checkpoint.parent / RECIPE)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    return facts(recipe, data, text_settings(data), "test", PERPLEXITY) | describe(state, checkpoint, data)


def main() -> None:
    with one_line_errors("pmi.py"), clear_endings("pmi.py"):
        run()


def run() -> None:
    parser = Parser(
        prog="pmi.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("data", type=data_folder, help="a folder of fairseq-preprocess")
    parser.add_argument(
        "checkpoints",
        type=Path,
        nargs="+",
        metavar="AUTOREGRESSIVE OTHER",
        help="of a model that writes a word per step, and of one that writes several",
    )
    parser.add_argument("--results", type=Path, metavar="FILE.jsonl", help="append a line for each model to this file")
    args, rest = parse_with_fairseqs(
        parser, known_flags, accepted=lambda args: fairseqs_flags("validation", "--task", TASK), forward_device=True
    )
    if len(args.checkpoints) % 2:
        parser.error(f"{len(args.checkpoints)} checkpoints cannot be paired: an even number is needed")
    described = {path: facts_of(args.data, path) for path in args.checkpoints} if args.results is not None else {}
    for autoregressive, other in zip(args.checkpoints[::2], args.checkpoints[1::2], strict=True):
        logs = [validate(args.data, path, rest) for path in (autoregressive, other)]
        perplexities, pmi = [10**log for log in logs], logs[1] - logs[0]
        print(f"perplexity {perplexities[0]:.2f} and {perplexities[1]:.2f}, estimated PMI {pmi:.3f}", flush=True)
        if args.results is not None:
            found = [{"perplexity": round(value, 3)} for value in perplexities]
            found[1] |= {"pmi": round(pmi, 3)}
            paths = (autoregressive, other)
            lines = [described[path] | each | environment() for path, each in zip(paths, found, strict=True)]
            append_results(args.results, lines)
    if args.results is not None:
        say_next("tables", args.results)


if __name__ == "__main__":
    main()
