"""CTranslate2 as a translator of lines, for benchmarks/efficiency.py: raw text in, raw text out.

    python benchmarks/ctranslate2_lines.py MODEL --precision int8 --beam 4 < in.txt > out.txt

MODEL is a folder of amlp-fairseq export, with the sentencepiece model in it. It imports no more than it needs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ctranslate2
from sentencepiece import SentencePieceProcessor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--lenpen", type=float, default=1.0)
    parser.add_argument("--batch-tokens", type=int, help="source pieces of a batch (default: each line at once)")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--workers", type=int, default=1, help="batches at the same time")
    args = parser.parse_args()
    pieces = SentencePieceProcessor(model_file=str(args.model / "sentencepiece.bpe.model"))
    translator = ctranslate2.Translator(
        str(args.model), compute_type=args.precision, inter_threads=args.workers, intra_threads=args.threads
    )
    options = {"beam_size": args.beam, "length_penalty": args.lenpen, "max_decoding_length": 200}
    if args.batch_tokens is not None:
        options |= {"max_batch_size": args.batch_tokens, "batch_type": "tokens"}
    for lines in ([line] for line in sys.stdin) if args.batch_tokens is None else [sys.stdin.readlines()]:
        sources = [pieces.encode(" ".join(line.split()), out_type=str) for line in lines]
        for result in translator.translate_batch(sources, **options):
            print("".join(result.hypotheses[0]).replace("▁", " ").strip(), flush=args.batch_tokens is None)


if __name__ == "__main__":
    main()
