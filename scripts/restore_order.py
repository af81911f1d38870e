"""Print the hypotheses of fairseq-generate in the order of its input.

    python scripts/restore_order.py GENERATED --like DATA/train.en-de.en

GENERATED is what ``fairseq-generate`` printed: its H- lines, tokens separated by spaces, one for each sentence of the
binarised text DATA/train.en-de.en.
"""

import argparse
from pathlib import Path

from fairseq.data import data_utils
from score import lines_by_sentence


def hypotheses(generated: str, sentences: int) -> list[str]:
    """The hypotheses of all sentences; of several (``--nbest``) the first.

    Raises:
        ValueError: if a sentence has none.
    """
    found = lines_by_sentence(generated, "H")
    odd = sorted(found.keys() ^ set(range(sentences)))
    if odd:
        raise ValueError(f"{len(found)} hypotheses for {sentences} sentences; odd sentences: {odd[:10]}")
    return ["".join(found[i][1:]) for i in range(sentences)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generated", type=Path, help="output of fairseq-generate")
    parser.add_argument("--like", required=True, help="binarised text that was translated, without .bin and .idx")
    args = parser.parse_args()
    sentences = len(data_utils.load_indexed_dataset(args.like))
    for words in hypotheses(args.generated.read_bytes().decode("utf-8"), sentences):
        print(words)


if __name__ == "__main__":
    main()
