"""A Translator for benchmarks/engine.py in a process of its own: an earlier one, if PYTHONPATH has its checkout.

    PYTHONPATH=CHECKOUT python benchmarks/translator_worker.py FOLDER DECODE_DTYPE

Reads lines of JSON, [lines of text, decoding options], and answers with the words. PyTorch decodes, in one thread.
"""

import json
import sys
from typing import Any

import torch

from amlp_fairseq.translator import Translator


def main() -> None:
    folder: str
    dtype: Any
    folder, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    translator = Translator(folder, backend="pytorch", decode_dtype=dtype, max_tokens=10**6)
    print("ready", flush=True)
    for request in sys.stdin:
        lines, options = json.loads(request)
        print(json.dumps([found.text.split() for found in translator.translations(lines, **options)]), flush=True)


if __name__ == "__main__":
    main()
