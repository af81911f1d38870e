"""A Translator in a process of its own: an earlier one, if PYTHONPATH has its checkout.

    [PYTHONPATH=CHECKOUT] python benchmarks/translator_worker.py FOLDER DECODE_DTYPE BACKEND

Reads lines of JSON, [lines of text, decoding options], and answers with the words. It has the threads of
OMP_NUM_THREADS.
"""

import json
import sys
from typing import Any

from amlp_fairseq.translator import Translator


def main() -> None:
    folder: str
    dtype: Any
    backend: Any
    folder, dtype, backend = sys.argv[1:]
    translator = Translator(folder, backend=backend, decode_dtype=dtype, max_tokens=10**6)
    print("ready", flush=True)
    for request in sys.stdin:
        lines, options = json.loads(request)
        print(json.dumps([found.text.split() for found in translator.translations(lines, **options)]), flush=True)


if __name__ == "__main__":
    main()
