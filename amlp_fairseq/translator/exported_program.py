"""Translate with this model of CTranslate2 as amlp-fairseq translate does, a sentence a line.

    python translate.py < in.txt > out.txt

options.json has what this takes from the model folder: how lines are cut up, and the options of translate_batch. Needs
ctranslate2, and what options.json names of sentencepiece, subword-nmt and sacremoses.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

#: Lines that are read before any is written.
LINES = 1000


class Text:
    """From lines to pieces, and back.

    Args:
        folder: with the subword model.
        options: of options.json.
    """

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.options = options["text"]
        self.pieces: Any = None
        self.subwords, self.tokenizer = self.options.get("post_process"), None
        if self.subwords == "sentencepiece":
            import sentencepiece

            self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
        elif self.subwords == "subword_nmt":
            from subword_nmt.apply_bpe import BPE

            with open(folder / "bpecodes", encoding="utf-8") as codes:
                self.pieces = BPE(codes)
        if self.options.get("tokenizer") is not None:
            from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

            source, target = options["languages"]
            self.normalizer = MosesPunctNormalizer(source, post_remove_control_chars=True, perl_parity=True)
            self.tokenizer, self.detokenizer = MosesTokenizer(source), MosesDetokenizer(target)

    def cut(self, line: str) -> list[str]:
        text = " ".join(line.split())
        if self.tokenizer is not None:
            text = self.normalizer.normalize(text) if self.options.get("normalize") else text
            split = self.options.get("split_hyphens", False)
            text = self.tokenizer.tokenize(text, aggressive_dash_splits=split, return_str=True)
            text = text.lower() if self.options.get("lowercase") else text
        if self.subwords == "sentencepiece":
            return list(self.pieces.encode(text, out_type=str))
        return (self.pieces.process_line(text) if self.subwords == "subword_nmt" else text).split()

    def join(self, pieces: list[str]) -> str:
        if self.subwords == "sentencepiece":
            words = "".join(pieces).replace("\u2581", " ").split()
        elif self.subwords == "subword_nmt":
            words = (" ".join(pieces) + " ").replace("@@ ", "").split()
        else:
            words = pieces
        return " ".join(words if self.tokenizer is None else self.detokenizer.detokenize(words).split())


def best(result: Any, options: dict[str, Any]) -> list[str]:
    """The pieces of the best hypothesis. CTranslate2 divides scores by length^length_penalty, where the end symbol
    counts; with a ``gnmt_penalty`` they are divided by ((5 + length) / 6)^gnmt_penalty in its place."""
    alpha, own = options["gnmt_penalty"], options["translate_batch"]["length_penalty"]
    if alpha is None:
        return list(result.hypotheses[0])

    def rank(number: int) -> float:
        length = len(result.hypotheses[number]) + 1
        return float(result.scores[number]) * length**own / ((5 + length) / 6) ** alpha

    return list(result.hypotheses[max(range(len(result.scores)), key=rank)])


def main() -> None:
    import ctranslate2

    folder = Path(__file__).parent
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    text, translator = Text(folder, options), ctranslate2.Translator(str(folder))
    limit, most = options["longest_source"], options["translate_batch"]["max_decoding_length"] - 1  # the end counts
    read = longer = cut_off = 0
    sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    while lines := list(islice(sys.stdin, LINES)):
        sources = [text.cut(line) for line in lines]
        read += len(lines)
        longer += sum(len(pieces) > limit for pieces in sources)
        try:
            results = translator.translate_batch(sources, **options["translate_batch"])
        except RuntimeError as error:
            most_pieces, line = max((len(each), number) for number, each in enumerate(sources, read - len(lines) + 1))
            sys.exit(f"translate.py: {error} (the longest line is line {line} with {most_pieces} pieces)")
        for result in results:
            pieces = best(result, options)
            cut_off += len(pieces) > most
            sys.stdout.write(text.join(pieces[:most]) + "\n")
        sys.stdout.flush()
    if longer:
        sys.stderr.write(f"{longer} lines have more than {limit} pieces: amlp-fairseq translate cuts such up\n")
    if cut_off:
        sys.stderr.write(f"{cut_off} translations were cut off after {most} pieces: amlp-fairseq may find others\n")


if __name__ == "__main__":
    main()
