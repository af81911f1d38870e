"""The engine beside the same models in PyTorch and in CTranslate2, with random weights, on one CPU thread.

    python -m benchmarks.engine [--parts PART …] [--out FILE.json] [--markdown FILE.md]

- base: WMT-base sizes, --batch sentences at once and one: the engine, in int8 also CTranslate2, and with --before an
  earlier state of the package in PyTorch (45f4eb1, the last with the operators of amlp-fairseq compile, which must have
  been compiled there), in processes of their own.
- multi30k: the three Transformers of docs/which-system.md, in float32 and int8, beam 4 and greedy: latency is of one
  sentence at a time, throughput of all at once; the engine and CTranslate2, which is in a process of its own.
- students: WMT-base sizes in int8, one sentence at a time, with --threads: decoders of two layers or one, as they are
  and with a shortlist of 100 random words for each word of a source, and 200 for all. Ratios are speed-ups over
  transformer-student.
- depths: WMT-base widths in int8, one sentence at a time, with --threads: layers of encoder and decoder, and the size
  of the vocabulary. The output has the target's embeddings, the source its own. Outputs have as many pieces of either
  vocabulary, where the same text would have more of the smaller one.
- start: whole processes of amlp-fairseq translate with one line and at most 20 words of output, by the wall clock, and
  their largest resident set.
- workers: 1,000 sentences on 2 CPUs: two searches of a thread each, or one of two threads. It needs two CPUs.

Lengths: random weights say nothing about them, so that every system writes --length words, which takes as many decoder
calls; of multi30k half as many. In float32 the engine must write PyTorch's words and, greedily, CTranslate2's (with
forced lengths its beams end with another word), or nothing is reported. All systems take turns, in random order, after
a warm-up of each; a time is the median over --repeats, and a ratio the median of the ratios of a round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.engine.description import KEY
from amlp_fairseq.engine.isa import library
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.model_folder import format as model_folder
from amlp_fairseq.models.description import describe
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.imported import decode_fast
from amlp_fairseq.translator import Translator, engine_backend
from amlp_fairseq.translator.ctranslate2_model import convert
from benchmarks.ctranslate2_engine import Process, Worker
from benchmarks.harness import MIB, add_files, check_files, rounds, seconds, write, write_tables
from benchmarks.systems import Workshop
from benchmarks.tables import tables_of

BASE = {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "heads": 8, "vocabulary": 32000}
MULTI30K = {"layers": 4, "embed_dim": 128, "ffn_embed_dim": 256, "heads": 4, "vocabulary": 3960}
EXAMPLE = Path(__file__).parents[1] / "examples/models/ar"


def folder_of(out: Path, system: str, sizes: dict[str, int], weights: str) -> Path:
    """A model folder of a system of systems.py, with random weights; words are its pieces."""
    words = Dictionary()
    for i in range(sizes["vocabulary"] - words.nspecial):
        words.add_symbol(f"w{i}", 10**6 - i)
    shop = Workshop(Namespace(device="cpu", **sizes), words, words)
    built = shop.new(system)
    shop.untrained(built.model)
    built.cfg.task.source_lang, built.cfg.task.target_lang = "en", "de"
    state = {"cfg": built.cfg, "model": built.model.state_dict(), "optimizer_history": [{"num_updates": 0}]}
    state["task_state"] = built.task.state_dict()
    decode_fast(state["cfg"])
    config = {"languages": ["en", "de"], "text": {"post_process": None}, "decoding": {}, "longest_source": None}
    with tempfile.TemporaryDirectory() as scratch:
        dictionaries = {name: Path(scratch, name) for name in ("dict.en.txt", "dict.de.txt")}
        for path in dictionaries.values():
            words.save(str(path))
        model_folder.write(out, state, weights, config, dictionaries)
    model_folder.add(out, KEY, describe(Translator(out, backend="pytorch").pytorch().model))
    return out


def sentences(count: int, mean: int, vocabulary: int) -> list[str]:
    """Random sentences of about so many words."""
    chance = random.Random(1)
    lengths = [chance.randint(mean * 2 // 3, mean * 4 // 3) for _ in range(count)]
    return [" ".join(f"w{chance.randrange(vocabulary - 4)}" for _ in range(length)) for length in lengths]


def engine_of(folder: Path, precision: Any) -> Translator:
    """A model in the engine, with a thread."""
    return Translator(
        folder, backend="engine", decode_dtype=precision, max_tokens=10**6, inter_threads=1, intra_threads=1
    )


def limits(beam: int, length: int) -> dict[str, Any]:
    """Decoding options for so many words."""
    return {"beam": beam, "min_len": length, "max_len_a": 0.0, "max_len_b": length}


def words(translator: Translator, lines: list[str], beam: int, length: int, each: bool = False) -> list[list[str]]:
    """Translations of so many words, of all lines at once or of ``each`` by itself."""
    options = limits(beam, length)
    found = [translator.translations(part, **options) for part in ([[line] for line in lines] if each else [lines])]
    return [translation.text.split() for part in found for translation in part]


def ctranslate2_words(worker: Process, lines: list[str], beam: int, length: int, each: bool = False) -> list[list[str]]:
    """The same of CTranslate2, which writes a word in place of the end symbol."""
    options = {"beam_size": beam, "max_batch_size": 4000, "batch_type": "tokens", "return_end_token": True}
    options |= dict.fromkeys(("min_decoding_length", "max_decoding_length"), length + 1)
    sources = [line.split() for line in lines]
    parts = [[source] for source in sources] if each else [sources]
    return [output[:length] for part in parts for output in worker.ask(json.dumps([part, options]))]


def compared(calls: Mapping[str, Callable[[], Any]], repeats: int, same: bool) -> Row:
    """The seconds of each system, and of the engine's the share of each other's.

    Raises:
        SystemExit: if the systems should write the ``same`` words, and do not.
    """
    outputs = {name: call() for name, call in calls.items()}
    if same and any(output != outputs["engine"] for output in outputs.values()):
        raise SystemExit(f"{', '.join(outputs)} do not write the same words")
    timed = {name: partial(seconds, call, "cpu") for name, call in calls.items()}
    times = rounds(timed, repeats)
    row: Row = {f"{name} ms": 1000 * statistics.median(found) for name, found in times.items()}
    for name in calls.keys() - {"engine"}:
        ratios = [own / other for own, other in zip(times["engine"], times[name], strict=True)]
        row[f"engine/{name}"] = statistics.median(ratios)
    return row


def exported(folder: Path, precision: str) -> Worker:
    """A folder's model in CTranslate2, with a thread."""
    out = folder.with_name(f"{folder.name}-ctranslate2")
    if not out.exists():
        backend = Translator(folder, backend="pytorch").pytorch()
        convert(backend.model, backend.task, out)
    return Worker(str(out), "cpu", precision, 1)


def worker_words(worker: Process, lines: list[str], beam: int, length: int) -> list[list[str]]:
    """The same of a process of translator_worker.py."""
    return worker.ask(json.dumps([lines, limits(beam, length)]))


def base(args: Namespace, scratch: Path) -> list[Row]:
    lines = sentences(args.batch, 25, BASE["vocabulary"])
    folder = folder_of(scratch / "base", "transformer", BASE, "float32")
    calls: dict[str, Callable[..., Any]] = {"engine": partial(words, engine_of(folder, "float32"))}
    calls["pytorch"] = partial(words, Translator(folder, backend="pytorch", decode_dtype="float32"))
    for beam in (4, 1):
        if beam == 1:
            calls["ctranslate2"] = partial(ctranslate2_words, exported(folder, "float32"))
        outputs = [call(lines[:4], beam, args.length) for call in calls.values()]
        if any(output != outputs[0] for output in outputs):
            raise SystemExit(f"{', '.join(calls)} do not write the same words in float32")
    rows = []
    for precision in ("int8", "float32", *["bfloat16"] * hasattr(library(), "bfloat16_linear")):
        calls = {"engine": partial(words, engine_of(folder, precision))}
        if precision == "int8":
            calls["ctranslate2"] = partial(ctranslate2_words, exported(folder, precision))
            if args.before is not None:
                of_before = {"PYTHONPATH": str(args.before), "OMP_NUM_THREADS": "1"}
                worker = Process("translator_worker.py", str(folder), precision, "pytorch", **of_before)
                calls["before"] = partial(worker_words, worker)
        for beam in (4, 1):
            for count in (args.batch, 1):
                bound = {name: partial(call, lines[:count], beam, args.length) for name, call in calls.items()}
                found = compared(bound, args.repeats, same=False)
                rows.append({"precision": precision, "beam": beam, "sentences": count, **found})
    return rows


def multi30k(args: Namespace, scratch: Path) -> list[Row]:
    lines = sentences(args.sentences, 13, MULTI30K["vocabulary"])
    rows = []
    for system in ("transformer", "transformer-student", "transformer-deep"):
        folder = folder_of(scratch / system, system, MULTI30K, "float32")
        for precision in ("float32", "int8"):
            loaded, worker = engine_of(folder, precision), exported(folder, precision)
            for beam in (4, 1):
                for mode in ("latency", "throughput"):
                    each = mode == "latency"
                    some = lines[: args.sentences // 10] if each else lines
                    calls: dict[str, Callable[[], Any]] = {
                        "engine": partial(words, loaded, some, beam, args.length // 2, each),
                        "ctranslate2": partial(ctranslate2_words, worker, some, beam, args.length // 2, each),
                    }
                    found = compared(calls, args.repeats, precision == "float32" and beam == 1)
                    rows.append({"model": system, "precision": precision, "beam": beam, "mode": mode, **found})
    return rows


STUDENTS = ("transformer-student", "ssru-student", "ssru-tiny", "ibdecoder-sa-student", "ibdecoder-ssru-student")


def lexicon(out: Path, lines: list[str], draw: Callable[[], Iterable[str]]) -> Path:
    """A shortlist, for the words of some lines, of those that are drawn for each of them."""
    sources = [*sorted({word for line in lines for word in line.split()}), "NULL"]
    pairs = (f"{word} {source} 0.01\n" for source in sources for word in draw())
    out.write_text("".join(pairs), encoding="utf-8")
    return out


def students(args: Namespace, scratch: Path) -> list[Row]:
    lines = sentences(10, 25, BASE["vocabulary"])
    chance, number = random.Random(1), BASE["vocabulary"] - 4
    lists = str(lexicon(scratch / "lex.s2t", lines, lambda: (f"w{chance.randrange(number)}" for _ in range(100))))
    loaded = {}
    for name in STUDENTS:
        folder = folder_of(scratch / name, name, BASE, "int8")
        for key, shortlist in ((name, None), (f"{name}, shortlist", lists)):
            options: Any = {} if shortlist is None else {"shortlist": shortlist}
            loaded[key] = Translator(folder, backend="engine", inter_threads=1, intra_threads=args.threads, **options)
    rows = []
    for beam in (4, 1):
        calls = {key: partial(words, each, lines, beam, args.length, each=True) for key, each in loaded.items()}
        times = rounds({key: partial(seconds, call, "cpu") for key, call in calls.items()}, args.repeats)
        first = times[STUDENTS[0]]
        for key, found in times.items():
            ratio = statistics.median(one / other for one, other in zip(first, found, strict=True))
            milliseconds = 1000 * statistics.median(found) / len(lines)
            rows.append({"model": key, "beam": beam, "ms": milliseconds, "speed-up": ratio})
    return rows


VOCABULARIES = 8000, 32000
DEPTHS = {
    **{"transformer": "6-6", "transformer-student": "6-2", "transformer-deep": "12-1"},
    **{"ssru-student": "6-2, SSRU", "ssru-tiny": "6-1, SSRU"},
}


def depths(args: Namespace, scratch: Path) -> list[Row]:
    loaded, rows = {}, {}
    for vocabulary in VOCABULARIES:
        lines = sentences(10, 25, vocabulary)
        for name, layers in DEPTHS.items():
            folder = folder_of(scratch / f"{name}-{vocabulary}", name, {**BASE, "vocabulary": vocabulary}, "int8")
            model = Translator(folder, backend="engine", inter_threads=1, intra_threads=args.threads)
            loaded[vocabulary, layers] = model, lines
            size = (folder / "model.safetensors").stat().st_size / 1e6
            rows[vocabulary, layers] = {"vocabulary": vocabulary, "layers": layers, "MB": size}
    for beam in (4, 1):
        calls = {key: partial(words, *each, beam, args.length, each=True) for key, each in loaded.items()}
        times = rounds({key: partial(seconds, call, "cpu") for key, call in calls.items()}, args.repeats)
        for key, found in times.items():
            rows[key][f"beam {beam}, ms"] = 1000 * statistics.median(found) / len(loaded[key][1])
    return list(rows.values())


def process(folder: Path, line: str) -> tuple[float, int]:
    """Wall-clock seconds and the largest resident set, in bytes, of a translation of one line."""
    report = folder.parent / "report.json"
    pinned = [sys.executable, "-S", str(Path(__file__).with_name("run_process.py")), str(report)]
    cpu = str(min(os.sched_getaffinity(0)))
    command = [
        *pinned,
        cpu,
        sys.executable,
        "-m",
        "amlp_fairseq",
        "translate",
        "--model",
        str(folder),
        "--max-len-b",
        "20",
    ]
    subprocess.run(command, input=f"{line}\n", text=True, check=True, capture_output=True)
    found = json.loads(report.read_text(encoding="utf-8"))
    if found["status"]:
        raise SystemExit(f"amlp-fairseq translate --model {folder}: status {found['status']}")
    return found["seconds"], found["peak_bytes"]


def start(args: Namespace, scratch: Path) -> list[Row]:
    example = scratch / "example"
    example.symlink_to(EXAMPLE)
    folders = {
        "examples/models/ar": example,
        "WMT-base, int8": folder_of(scratch / "int8", "transformer", BASE, "int8"),
    }
    calls = {name: partial(process, folder, "w1 w2 w3") for name, folder in folders.items()}
    rows = []
    for name, runs in rounds(calls, args.repeats + 1).items():
        times, peaks = zip(*runs[1:], strict=True)  # the first one may read from disk
        rows.append({"model": name, "seconds": statistics.median(times), "peak MiB": max(peaks) / MIB})
    return rows


def workers(args: Namespace, scratch: Path) -> list[Row]:
    if len(os.sched_getaffinity(0)) < 2:
        return []
    rows = []
    for name, sizes, mean in (("multi30k", MULTI30K, 13), ("base", BASE, 25)):
        lines = sentences(1000 if name == "multi30k" else 256, mean, sizes["vocabulary"])
        folder = folder_of(scratch / f"workers-{name}", "transformer", sizes, "int8")
        loaded = {
            f"{inter} x {intra}": Translator(folder, backend="engine", inter_threads=inter, intra_threads=intra)
            for inter, intra in ((2, 1), (1, 2))
        }
        for beam in (4, 1):
            calls = {key: partial(words, each, lines, beam, args.length // 2) for key, each in loaded.items()}
            outputs = [call() for call in calls.values()]
            if outputs[0] != outputs[1]:
                raise SystemExit("threads change the words")
            times = rounds({key: partial(seconds, call, "cpu") for key, call in calls.items()}, args.repeats)
            found = {f"{key}, lines/s": len(lines) / statistics.median(each) for key, each in times.items()}
            rows.append({"model": name, "beam": beam, **found})
    return rows


def tables(result: dict[str, Any]) -> str:
    """The numbers of a result in Markdown."""
    return tables_of(result, PARTS)


PARTS = {
    **{"base": base, "multi30k": multi30k, "students": students, "depths": depths},
    **{"start": start, "workers": workers},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=positive, default=64, help="sentences of the larger batch of base")
    parser.add_argument("--sentences", type=positive, default=500, help="of multi30k; a tenth of them for latency")
    parser.add_argument("--length", type=positive, default=26, help="words of an output of base; else half as many")
    parser.add_argument("--threads", type=positive, default=2, help="of students and depths")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="the package before the engine, for base")
    parser.add_argument("--repeats", type=positive, default=5)
    add_files(parser, markdown="the tables")
    args = parser.parse_args()
    check_files(parser, args)
    torch.set_num_threads(1)
    engine_backend.MAX_SENTENCES = args.batch
    result: dict[str, Any] = {
        "environment": environment("cpu"),
        "options": {name: value for name, value in vars(args).items() if name not in ("out", "markdown", "before")},
    }
    for part in args.parts:
        with tempfile.TemporaryDirectory() as scratch:
            result[part] = PARTS[part](args, Path(scratch))
        write(args.out, result)
    write_tables(tables(result), args)


if __name__ == "__main__":
    main()
