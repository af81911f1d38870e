"""Models of the sizes that people have: the engine beside stock fairseq and CTranslate2, on one CPU thread.

    python -m benchmarks.released [--models NAME …] [--parts translation load] [--out FILE.json] [--markdown FILE.md]

Random weights, of checkpoints that stock fairseq has written, as amlp-fairseq package and CTranslate2's converter for
fairseq take them; each engine in a process of its own. Sizes: fairseq's WMT19 models, M2M-100 with 418M parameters and
NLLB-200 with 600M (distilled), which have pre-norm layers. Tokens of languages are left out: they are like words.

Every output has --length words, as many decoder calls. In float32 all write the same words greedily, or nothing is
reported (with forced lengths CTranslate2's beams end with another word). Engines take turns, in random order, after a
warm-up of each; a time is the median over --repeats, and a ratio the median of the ratios of a round. Load: seconds
and the largest resident set of a process that loads the model and translates one line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.training.environment import environment
from amlp_fairseq.translator.ctranslate2_model import convert
from benchmarks.ctranslate2_engine import Process
from benchmarks.engine import compared, ctranslate2_words, limits, sentences, worker_words
from benchmarks.harness import MIB, add_files, check_files, write, write_tables
from benchmarks.tables import tables_of

PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
#: Words of the vocabulary, layers of each side, width of the feed-forward blocks, and options. All are 1024 wide.
MODELS: dict[str, tuple[int, int, int, list[str]]] = {
    "WMT19": (42_024, 6, 8192, []),
    "M2M-100 418M": (128_112, 12, 4096, PRE_NORM),
    "NLLB-200 600M": (256_206, 12, 4096, PRE_NORM),
}
PRECISIONS = ("float32", "int8")
PARTS = ("translation", "load")


def checkpoint(folder: Path, vocabulary: int, layers: int, width: int, more: list[str]) -> Path:
    """A checkpoint of stock fairseq with random weights, and the dictionaries beside it."""
    folder.mkdir()
    words = Dictionary()
    for i in range(vocabulary - words.nspecial):
        words.add_symbol(f"w{i}", 10**6 - i)
    for language in ("en", "de"):
        words.save(str(folder / f"dict.{language}.txt"))
    sides = [f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("layers", "ffn-embed-dim")]
    sizes = [word for pair in zip(sides, map(str, (layers, width) * 2), strict=True) for word in pair]
    line = [str(folder), "--arch", "transformer_vaswani_wmt_en_de_big", "--share-all-embeddings", *sizes, *more]
    line += ["-s", "en", "-t", "de", "--criterion", "cross_entropy", "--optimizer", "adam"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), line))
    torch.manual_seed(1)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    update = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}
    state = {"args": None, "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True), "extra_state": {}}
    torch.save({**state, "model": model.state_dict(), "optimizer_history": [update]}, folder / "model.pt")
    return folder / "model.pt"


def fairseq_words(worker: Process, lines: list[str], beam: int, length: int) -> list[list[str]]:
    """Translations of so many words of a process of fairseq_worker.py."""
    search = {"unkpen": 0, "lenpen": 1, "nbest": 1, **limits(beam, length)}
    return worker.ask(json.dumps([lines, search]))


@dataclass(frozen=True)
class Engine:
    """A program that translates.

    Attributes:
        arguments: of ``Process``.
        words: from its process, lines, a beam and a length to translations.
    """

    arguments: list[str]
    words: Callable[[Process, list[str], int, int], list[list[str]]]


def engines(scratch: Path, name: str, layers: int | None) -> dict[str, Engine]:
    """A model in the formats of all engines, by engine and precision; fairseq has float32 alone.

    Args:
        scratch: a folder for them.
        name: one of ``MODELS``.
        layers: at most so many of each side, for less memory.
    """
    vocabulary, own, width, more = MODELS[name]
    path = checkpoint(scratch / "fairseq", vocabulary, min(own, layers or own), width, more)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    convert(model, task, scratch / "ctranslate2")
    found = {"fairseq": Engine(["fairseq_worker.py", str(path)], fairseq_words)}
    for precision in PRECISIONS:
        out = str(scratch / precision)
        words = ["package", str(path), "--data", str(path.parent), "--out", out, "--post-process", "none"]
        subprocess.run(
            [sys.executable, "-m", "amlp_fairseq", *words, "--weights", precision], check=True, stdout=sys.stderr
        )
        found[f"engine, {precision}"] = Engine(["translator_worker.py", out, precision, "engine"], worker_words)
        worker = ["ctranslate2_worker.py", str(scratch / "ctranslate2"), "cpu", precision, "1"]
        found[f"ctranslate2, {precision}"] = Engine(worker, ctranslate2_words)
    return found


def load(engine: Engine, scratch: Path) -> Row:
    """A process that loads a model and translates a line of one word into one."""
    report, script = scratch / "report.json", Path(__file__).with_name(engine.arguments[0])
    cpu = str(min(os.sched_getaffinity(0)))
    measured = [sys.executable, "-S", str(Path(__file__).with_name("run_process.py")), str(report), cpu]
    request: list[str] = []

    class Request:
        def ask(self, line: str) -> list[list[str]]:
            request.append(line)
            return [[]]

    engine.words(cast("Process", Request()), ["w1"], 1, 1)
    command = [*measured, sys.executable, str(script), *engine.arguments[1:]]
    subprocess.run(command, input=f"{request[0]}\n", text=True, check=True, stdout=subprocess.DEVNULL)
    facts = json.loads(report.read_text(encoding="utf-8"))
    if facts["status"]:
        raise SystemExit(f"{' '.join(engine.arguments)}: status {facts['status']}")
    return {"seconds": facts["seconds"], "peak MiB": facts["peak_bytes"] / MIB}


def loads(found: Mapping[str, Engine], name: str, scratch: Path) -> list[Row]:
    return [{"model": name, "engine": key, **load(engine, scratch)} for key, engine in found.items()]


def translations(args: argparse.Namespace, found: Mapping[str, Engine], name: str) -> list[Row]:
    rows, lines = [], sentences(args.batch, 25, MODELS[name][0])
    for precision in PRECISIONS:
        chosen = {key.split(",")[0]: engine for key, engine in found.items() if key.endswith(("fairseq", precision))}
        started = {key: partial(engine.words, Process(*engine.arguments)) for key, engine in chosen.items()}
        for beam in (4, 1):
            for count in (1, args.batch):
                calls = {key: partial(call, lines[:count], beam, args.length) for key, call in started.items()}
                same = precision == "float32" and beam == 1
                row = compared(calls, args.repeats, same)
                rows.append({"model": name, "precision": precision, "beam": beam, "sentences": count, **row})
    return rows


def tables(result: dict[str, Any]) -> str:
    """The numbers of a result in Markdown."""
    return tables_of(result, PARTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--layers", type=positive, metavar="N", help="at most so many of each side")
    parser.add_argument("--batch", type=positive, default=32, help="sentences of the larger batch")
    parser.add_argument("--length", type=positive, default=20, help="words of an output")
    parser.add_argument("--repeats", type=positive, default=3)
    add_files(parser, markdown="the tables")
    args = parser.parse_args()
    check_files(parser, args)
    # Without the second stock fairseq loads no checkpoint.
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    result: dict[str, Any] = {"environment": environment("cpu"), **{part: [] for part in args.parts}}
    for name in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            found = engines(Path(scratch), name, args.layers)
            if "load" in args.parts:
                result["load"] += loads(found, name, Path(scratch))
            if "translation" in args.parts:
                result["translation"] += translations(args, found, name)
        write(args.out, result)
    write_tables(tables(result), args)


if __name__ == "__main__":
    main()
