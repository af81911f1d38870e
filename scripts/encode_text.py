"""Train a joint sentencepiece model on raw parallel text and encode every split with it.

    python scripts/encode_text.py RAW OUT --languages en de --vocab-size 4000

reads RAW/{train,valid,test}.{en,de}, writes OUT/{train,valid,test}.{en,de} as pieces separated by spaces, line by
line, and OUT/sentencepiece.bpe.model (the name that fairseq's ``from_pretrained`` looks for).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

SPLITS = ("train", "valid", "test")
MODEL = "sentencepiece.bpe.model"


def train_model(
    texts: Sequence[Path], model: Path, vocab_size: int, character_coverage: float = 1.0, sentences: int = 0
) -> None:
    """Train a BPE model of sentencepiece on all texts together.

    Args:
        texts: files with a sentence a line.
        model: where to write; the vocabulary goes to the same name with the suffix ``.vocab``.
        vocab_size: how many pieces.
        character_coverage: the share of characters that get a piece of their own.
        sentences: learn from a random sample of so many, always the same; 0 takes all.
    """
    sentencepiece.set_random_generator_seed(1)
    sentencepiece.SentencePieceTrainer.train(
        input=[str(text) for text in texts],
        model_prefix=str(model.with_suffix("")),
        vocab_size=vocab_size,
        model_type="bpe",
        character_coverage=character_coverage,
        input_sentence_size=sentences,
        minloglevel=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, help="folder of the raw text")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--languages", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--vocab-size", type=int, required=True, help="pieces, both languages together")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    model = args.out / MODEL
    train_model([args.raw / f"train.{language}" for language in args.languages], model, args.vocab_size)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for split in SPLITS:
        for language in args.languages:
            with open(args.raw / f"{split}.{language}", encoding="utf-8", newline="\n") as text:
                lines = [line.rstrip("\n") for line in text]
            pieces = processor.encode(lines, out_type=str)
            encoded = "".join(" ".join(line) + "\n" for line in pieces)
            (args.out / f"{split}.{language}").write_text(encoded, encoding="utf-8")


if __name__ == "__main__":
    main()
