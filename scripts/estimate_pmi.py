"""Estimate how much words that are predicted together depend on each other (Zhang et al. 2020, Appendix B, Eq. 13).

    python scripts/estimate_pmi.py AUTOREGRESSIVE_LOG OTHER_LOG

The logs are outputs of fairseq-validate (or fairseq-train, whose last validation counts) on the same data. Prints
log10 ppl(other) - log10 ppl(autoregressive), the average point-wise mutual information; the paper's Table 3 has it to
base 10.
"""

import argparse
import math
import re
from pathlib import Path


def log10_perplexity(log: str) -> float:
    """The last validation's log10 perplexity; fairseq prints the loss per word to base 2.

    Raises:
        ValueError: if the log has no validation loss.
    """
    losses = re.findall(r"\| valid.*? \| nll_loss ([\d.]+)", log)
    if not losses:
        raise ValueError("the log has no validation line with an nll_loss")
    return float(losses[-1]) * math.log10(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("autoregressive", type=Path, help="log of the autoregressive model")
    parser.add_argument("other", type=Path, help="log of the model that predicts several words together")
    args = parser.parse_args()
    base, other = (log10_perplexity(path.read_text(encoding="utf-8")) for path in (args.autoregressive, args.other))
    print(f"{other - base:.3f}")


if __name__ == "__main__":
    main()
