"""CTranslate2 for benchmarks/decoding.py, in a process of its own.

    python benchmarks/ctranslate2_worker.py MODEL DEVICE COMPUTE_TYPE THREADS

In one process with PyTorch there would be two OpenMP runtimes with more threads than cores: then neither lets its
threads wait actively for work, and both are slower (a small product of PyTorch took 9 µs before CTranslate2's first
translation and 60 µs after it). Reads lines of JSON, [sources, options of translate_batch], and answers with the best
outputs.
"""

import json
import sys

import ctranslate2


def main() -> None:
    model, device, compute_type, threads = sys.argv[1:]
    translator = ctranslate2.Translator(
        model, device=device, compute_type=compute_type, inter_threads=1, intra_threads=int(threads)
    )
    print("ready", flush=True)
    for line in sys.stdin:
        sources, options = json.loads(line)
        results = translator.translate_batch(sources, **options)
        print(json.dumps([sentence.hypotheses[0] for sentence in results]), flush=True)


if __name__ == "__main__":
    main()
