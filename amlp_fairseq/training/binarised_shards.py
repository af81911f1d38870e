"""A training set of fairseq-preprocess, decoded in shards: what a killed run has finished is not decoded again."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import numpy as np
import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from tqdm import tqdm

from amlp_fairseq.common.files import whole
from amlp_fairseq.common.subprocesses import failed, watching
from amlp_fairseq.compat.internals import convert_namespace_to_omegaconf, data_utils

#: Each sentence in a batch once; what is written is what the model says, in pieces of words.
OPTIONS = ["--gen-subset", "train", "--beam", "5", "--max-tokens", "8000", "--required-batch-size-multiple", "1"]
#: Options of fairseq-generate with which it decodes something else than is asked for, or takes words of the references.
ELSEWHERE = frozenset(
    "--path --gen-subset --results-path --source-lang -s --target-lang -t --num-shards --shard-id --score-reference "
    "--prefix-size".split()
)


class DistillError(ValueError):
    """Why the distillation cannot go on, as a message for the user."""


@dataclass(frozen=True)
class TrainingSet:
    """Training data that a model is to translate.

    Attributes:
        folder: made by fairseq-preprocess.
        pair: the languages in the names of its files, joined by '-'.
        languages: source and target.
        dictionaries: theirs.
        sources: the binarised sentences.
        batches: numbers of the sentences of each batch, in the order in which fairseq-generate decodes them; those that
            are too long are in none.
        options: of fairseq-generate.
    """

    folder: Path
    pair: str
    languages: tuple[str, str]
    dictionaries: tuple[Dictionary, Dictionary]
    sources: Any
    batches: list[list[int]]
    options: list[str]

    @classmethod
    def load(cls, folder: Path, options: list[str], model: str, reverse: bool = False) -> TrainingSet:
        """The corpus of a folder, batched by fairseq-generate's options.

        Args:
            folder: made by fairseq-preprocess.
            options: of fairseq-generate.
            model: a checkpoint, or several joined by ':'; pairs that are longer than its positions are not decoded.
            reverse: whether the targets are to be translated into the language of the sources.

        Raises:
            DistillError: if there is not exactly one training set, or the options leave sentences out.
        """
        languages = find_languages(folder)
        pair = "-".join(languages)
        source, target = reversed(languages) if reverse else languages
        parser = fairseq_options.get_generation_parser()
        words = [str(folder), "--source-lang", source, "--target-lang", target, "--path", "", *options]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hydra warns of fairseq
            cfg = convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, words))
        task = tasks.setup_task(cfg.task)
        overrides = ast.literal_eval(cfg.common_eval.model_overrides)
        models, _ = checkpoint_utils.load_model_ensemble(utils.split_paths(model), overrides, task)
        task.load_dataset("train")
        dataset = task.dataset("train")
        positions = utils.resolve_max_positions(task.max_positions(), *(each.max_positions() for each in models))
        limits = [int(min(cfg.dataset.max_tokens, each)) for each in positions]
        _, too_long = dataset.filter_indices_by_size(np.arange(len(dataset)), limits)
        if len(too_long) == len(dataset):
            raise DistillError(
                f"DATA {folder} has no pair of at most {limits} tokens, which {model} and --max-tokens allow"
            )
        if too_long:
            options = [*options, "--skip-invalid-size-inputs-valid-test", "--max-source-positions", str(limits[0])]
            options += ["--max-target-positions", str(limits[1])]
        iterator = task.get_batch_iterator(
            dataset,
            max_tokens=cfg.dataset.max_tokens,
            max_sentences=cfg.dataset.batch_size,
            max_positions=limits,
            ignore_invalid_inputs=True,
            required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
            seed=cfg.common.seed,
        )
        dictionaries = task.source_dictionary, task.target_dictionary
        sources = data_utils.load_indexed_dataset(str(folder / f"train.{pair}.{source}"), dictionaries[0])
        batches = [[int(number) for number in batch] for batch in iterator.frozen_batches]
        if sorted([*too_long, *(number for batch in batches for number in batch)]) != list(range(len(sources))):
            raise DistillError(f"with {' '.join(options)} not every sentence of {folder} is decoded once")
        return cls(folder, pair, (source, target), dictionaries, sources, batches, options)

    def source(self, number: int) -> str:
        """A source sentence the way fairseq-generate prints it."""
        dictionary = self.dictionaries[0]
        return dictionary.string([token for token in self.sources[number].tolist() if token != dictionary.pad()])

    def read(self, generated: Path, numbers: Iterable[int]) -> dict[int, list[int]]:
        """The hypotheses of an output of fairseq-generate: tokens by number of the sentence.

        Raises:
            DistillError: if it does not have each of these sentences once, with its source as it is in the corpus.
        """
        index = self.dictionaries[1].index
        sources: dict[int, str] = {}
        hypotheses: dict[int, list[int]] = {}
        with open(generated, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                kind, _, rest = line.rstrip("\n").partition("-")
                if kind not in ("S", "H"):
                    continue
                field, *_, text = rest.split("\t")
                number = int(field)
                found: dict[int, Any] = sources if kind == "S" else hypotheses
                if number in found:
                    raise DistillError(f"{generated} has sentence {number} twice")
                found[number] = text if kind == "S" else [index(word) for word in text.split(" ") if word]
        if odd := sorted(set(numbers) ^ (sources.keys() & hypotheses.keys())):
            raise DistillError(f"{generated} should not have, or has not, {len(odd)} sentences: {odd[:10]}")
        for number, text in sources.items():
            if text != self.source(number):
                raise DistillError(f"sentence {number} is {self.source(number)!r}, but in {generated} {text!r}")
        return hypotheses


def find_languages(folder: Path) -> tuple[str, str]:
    """Source and target language of a folder's training data; their names may have hyphens."""
    names = sorted(path.name.split(".") for path in folder.glob("train*.*-*.*.idx"))
    found = sorted({".".join(name[:2]) for name in names})
    if not found:
        raise DistillError(f"DATA {folder} has no training data of fairseq-preprocess")
    if len(found) > 1:
        raise DistillError(f"DATA {folder} has several training sets, one is needed: {', '.join(found)}")
    pair, languages = names[0][1], [name[2] for name in names]
    for source, target in permutations(languages, 2):
        if f"{source}-{target}" == pair:
            return source, target
    raise DistillError(f"DATA {folder} has {found[0]} in {', '.join(languages)} alone: both languages are needed")


def job_environments(jobs: int, cpu: bool) -> list[dict[str, str]]:
    """Environment variables for each of the jobs: where there are several GPUs, a job sees one of them."""
    base = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    count = 0 if cpu else torch.cuda.device_count()
    if count < 2:
        return [base] * jobs
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [{**base, "CUDA_VISIBLE_DEVICES": devices[job % count]} for job in range(jobs)]


def decode(
    corpus: TrainingSet, model: str, shards: int, jobs: int, unfinished: Path, lock: IO[str]
) -> dict[int, list[int]]:
    """Decode the shards that are not there yet; returns all hypotheses.

    Args:
        corpus: what is decoded.
        model: a checkpoint, or several joined by ':'.
        shards: how many; a batch is the least.
        jobs: shards at a time.
        unfinished: the folder for what the shards say.
        lock: a file that the processes hold open while they run.

    Raises:
        ChildProcessError: if a shard fails.
        DistillError: if it lacks a sentence.
    """
    source, target = corpus.languages
    command = [sys.executable, "-m", "amlp_fairseq", "generate", str(corpus.folder), "--path", model]
    command += ["--source-lang", source, "--target-lang", target, *corpus.options, "--no-progress-bar"]
    shards = min(shards, len(corpus.batches))
    outputs = [unfinished / f"shard-{shard}.txt" for shard in range(shards)]
    numbers = [[number for batch in corpus.batches[shard::shards] for number in batch] for shard in range(shards)]
    environments: SimpleQueue[dict[str, str]] = SimpleQueue()
    for variables in job_environments(jobs, "--cpu" in corpus.options):
        environments.put(variables)

    def decode_shard(shard: int) -> None:
        log = outputs[shard].with_suffix(".log")
        # fairseq-generate takes --num-shards and --shard-id, but decodes everything all the same: it reads these.
        words = [*command, "--distributed-world-size", str(shards), "--distributed-rank", str(shard)]
        variables = environments.get()
        with whole(outputs[shard]) as (part,):
            with open(part, "wb") as stdout, open(log, "wb") as stderr:
                process = subprocess.run(words, stdout=stdout, stderr=stderr, env=variables, pass_fds=[lock.fileno()])
            environments.put(variables)
            if process.returncode != 0:
                printed = log.read_text(encoding="utf-8", errors="replace")
                raise failed(" ".join(words), process.returncode, printed, log)
            corpus.read(part, numbers[shard])
        with tqdm.external_write_mode(file=sys.stderr):
            print(f"distill: shard {shard} of {shards} is decoded", file=sys.stderr)

    todo = [shard for shard, output in enumerate(outputs) if not output.exists()]
    print(f"distill: {len(todo)} of {shards} shards to decode: {' '.join(command)}", file=sys.stderr)
    parts = [outputs[shard].with_suffix(".txt.part") for shard in todo]
    for part in parts:
        part.unlink(missing_ok=True)
    sentences = sum(len(numbers[shard]) for shard in todo)
    with watching("distill", parts, sentences), ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(decode_shard, shard) for shard in todo]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    hypotheses: dict[int, list[int]] = {}
    for output, expected in zip(outputs, numbers, strict=True):
        hypotheses |= corpus.read(output, expected)
    return hypotheses
