"""Copy a data folder, with a teacher's translations of the training sources as training targets.

    amlp-fairseq distill TEACHER DATA OUT [--shards N] [--jobs J] [--max-ratio R] [options of fairseq-generate]

TEACHER is a checkpoint, or several joined by ':' (an ensemble); DATA a folder made by fairseq-preprocess; OUT a new one
with the same dictionaries, validation and test data and other files, byte by byte. All other options are for decoding
with the teacher: its --task if that is not 'translation', --cpu, --fp16, --lenpen, …; the defaults are --beam 5 and
--max-tokens 8000.

Pairs are left out if one side is empty, or has more than R times the tokens of the other plus 5; R is 3 where it is not
given, and summaries are not left out for being shorter than what they are of. OUT/manifest.json has
teacher, data, options, versions, counts and checksums.

The training data are decoded in N shards, J at a time. If there are several GPUs, each job has one of them; on a CPU,
OMP_NUM_THREADS should be the number of cores divided by J. Finished shards are kept in OUT.unfinished: after an
interruption the same command continues from there. A shard is every N-th batch of the whole, so N, J and interruptions
do not change a byte of OUT, as long as all devices compute the same. (With --sampling, N does change the result: every
shard begins with the same seed.)
"""

import argparse
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch
from fairseq import options as fairseq_options
from fairseq import tasks, utils
from fairseq.data import Dictionary
from tqdm import tqdm

from amlp_fairseq.compat.command_line import parse_with_fairseqs
from amlp_fairseq.compat.internals import convert_namespace_to_omegaconf, data_utils, indexed_dataset
from amlp_fairseq.recipes.config import corpus_metric, names
from amlp_fairseq.recipes.download import sha256
from amlp_fairseq.recipes.environment import environment
from amlp_fairseq.recipes.failures import failed
from amlp_fairseq.recipes.watching import watching
from amlp_fairseq.usage import command_parser, positive

OPTIONS = ["--gen-subset", "train", "--beam", "5", "--max-tokens", "8000", "--required-batch-size-multiple", "1"]
#: Options that would change which sentences are decoded, or what the S- and H- lines say.
REFUSED = frozenset(
    "--path --user-dir --gen-subset --source-lang -s --target-lang -t --nbest --quiet --results-path --post-process "
    "--remove-bpe --bpe --tokenizer --replace-unk --truncate-source --skip-invalid-size-inputs-valid-test --num-shards "
    "--shard-id --distributed-world-size --distributed-rank".split()
)
#: Prefixes of the names of those files in DATA that are not copied to OUT.
NOT_KEPT = ("train", "preprocess.log", "manifest.json")
#: A side may have this many tokens more than the ratio allows: "yes" can be "ja , natürlich ." in pieces of words.
SLACK = 5
#: ``--max-ratio`` of translations.
RATIO = 3.0


class DistillError(ValueError):
    """Why the distillation cannot go on, as a message for the user."""


@dataclass(frozen=True)
class Corpus:
    """Training data that a teacher is to translate.

    Attributes:
        folder: made by fairseq-preprocess.
        pair: the languages, joined by '-'.
        dictionaries: source and target.
        sources: the binarised sentences.
        batches: numbers of the sentences of each batch, in the order in which fairseq-generate decodes them.
        cpu: whether ``--cpu`` was given.
    """

    folder: Path
    pair: str
    dictionaries: tuple[Dictionary, Dictionary]
    sources: Any
    batches: list[list[int]]
    cpu: bool

    @classmethod
    def load(cls, folder: Path, options: list[str]) -> "Corpus":
        """The corpus of a folder, batched by fairseq-generate's options.

        Raises:
            DistillError: if there is not exactly one training set, or the options leave sentences out.
        """
        pair = find_pair(folder)
        parser = fairseq_options.get_generation_parser()
        words = [str(folder), *languages(pair), "--path", "", *options]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hydra warns of fairseq
            cfg = convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, words))
        task = tasks.setup_task(cfg.task)
        task.load_dataset("train")
        iterator = task.get_batch_iterator(
            task.dataset("train"),
            max_tokens=cfg.dataset.max_tokens,
            max_sentences=cfg.dataset.batch_size,
            required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
            seed=cfg.common.seed,
        )
        dictionaries = task.source_dictionary, task.target_dictionary
        sources = data_utils.load_indexed_dataset(str(folder / f"train.{pair}.{pair.split('-')[0]}"), dictionaries[0])
        batches = [[int(number) for number in batch] for batch in iterator.frozen_batches]
        if sorted(number for batch in batches for number in batch) != list(range(len(sources))):
            raise DistillError(f"with {' '.join(options)} not every sentence of {folder} is decoded once")
        return cls(folder, pair, dictionaries, sources, batches, cfg.common.cpu)

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


def find_pair(folder: Path) -> str:
    """The language pair of a folder's training data."""
    names = sorted(path.name.split(".") for path in folder.glob("train*.*-*.*.idx"))
    found = sorted({".".join(name[:2]) for name in names})
    if not found:
        raise DistillError(f"DATA {folder} has no training data of fairseq-preprocess")
    if len(found) > 1:
        raise DistillError(f"DATA {folder} has several training sets, one is needed: {', '.join(found)}")
    return names[0][1]


def languages(pair: str) -> list[str]:
    source, target = pair.split("-")
    return ["--source-lang", source, "--target-lang", target]


def sha256_of_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: sha256(folder / name) for name in sorted(names)}


@contextmanager
def locked(folder: Path) -> Iterator[IO[str]]:
    """Lock a folder; processes that inherit the open file hold the lock as well until they end."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DistillError(f"another run, or a process that it has left, is using {folder}") from None
        yield lock


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings at the beginning of the work; later check that they are still the same."""
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(json.dumps(settings, indent=2))
        part.rename(path)
        return
    begun = json.loads(path.read_text())
    if changed := [name for name, value in settings.items() if begun.get(name) != value]:
        raise DistillError(
            f"{path.parent} was begun with other {', '.join(changed)} (see {path.name}): delete it to start again"
        )


def job_environments(jobs: int, cpu: bool) -> list[dict[str, str]]:
    """Environment variables for each of the jobs: where there are several GPUs, a job sees one of them."""
    base = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    count = 0 if cpu else torch.cuda.device_count()
    if count < 2:
        return [base] * jobs
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [{**base, "CUDA_VISIBLE_DEVICES": devices[job % count]} for job in range(jobs)]


def decode(
    corpus: Corpus, command: list[str], shards: int, jobs: int, unfinished: Path, lock: IO[str]
) -> dict[int, list[int]]:
    """Decode the shards that are not there yet; returns all hypotheses."""
    outputs = [unfinished / f"shard-{shard}.txt" for shard in range(shards)]
    numbers = [[number for batch in corpus.batches[shard::shards] for number in batch] for shard in range(shards)]
    environments: SimpleQueue[dict[str, str]] = SimpleQueue()
    for variables in job_environments(jobs, corpus.cpu):
        environments.put(variables)

    def decode_shard(shard: int) -> None:
        part, log = outputs[shard].with_suffix(".txt.part"), outputs[shard].with_suffix(".log")
        # fairseq-generate takes --num-shards and --shard-id, but decodes everything all the same: it reads these.
        words = [*command, "--distributed-world-size", str(shards), "--distributed-rank", str(shard)]
        variables = environments.get()
        with open(part, "wb") as stdout, open(log, "wb") as stderr:
            process = subprocess.run(words, stdout=stdout, stderr=stderr, env=variables, pass_fds=[lock.fileno()])
        environments.put(variables)
        if process.returncode != 0:
            printed = log.read_text(encoding="utf-8", errors="replace")
            raise failed(" ".join(words), process.returncode, printed, log)
        corpus.read(part, numbers[shard])
        part.rename(outputs[shard])
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


def default_ratio(data: Path) -> float | None:
    """``--max-ratio`` where it is not given: none for corpora of summaries."""
    path = data / "text.json"
    corpus = json.loads(path.read_text(encoding="utf-8")).get("corpus") if path.is_file() else ""
    return None if corpus in names("data") and corpus_metric(corpus) == "rouge" else RATIO


def verdict(source: int, target: int, max_ratio: float | None) -> str:
    """What happens to a pair with these numbers of tokens, without end symbols: 'kept', 'empty' or 'ratio'."""
    short, long = sorted((source, target))
    if short == 0:
        return "empty"
    return "ratio" if max_ratio is not None and long > max_ratio * short + SLACK else "kept"


def write_pairs(
    corpus: Corpus, hypotheses: dict[int, list[int]], max_ratio: float | None, folder: Path
) -> dict[str, int]:
    """Write binarised training data of the pairs that are kept, in the corpus' order; returns the counts."""
    prefixes = [folder / f"train.{corpus.pair}.{language}" for language in corpus.pair.split("-")]
    builders = [
        indexed_dataset.make_builder(indexed_dataset.data_file_path(str(prefix)), "mmap", len(dictionary))
        for prefix, dictionary in zip(prefixes, corpus.dictionaries, strict=True)
    ]
    end = corpus.dictionaries[1].eos()
    counts: Counter[str] = Counter()
    for number, source in enumerate(corpus.sources):
        words = hypotheses[number]
        decision = verdict(len(source) - 1, len(words), max_ratio)
        counts[decision] += 1
        if decision == "kept":
            builders[0].add_item(source)
            builders[1].add_item(torch.tensor([*words, end]))
    for prefix, builder in zip(prefixes, builders, strict=True):
        builder.finalize(indexed_dataset.index_file_path(str(prefix)))
    if not counts["kept"]:
        raise DistillError(f"no pair is left: {counts['empty']} were empty, {counts['ratio']} beyond --max-ratio")
    return {"sentences": len(corpus.sources), **{name: counts[name] for name in ("empty", "ratio", "kept")}}


def files_of(folder: Path) -> list[str]:
    """The names of all files in a folder and the folders in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def distill(
    teacher: str, data: Path, out: Path, shards: int | None, jobs: int, max_ratio: float | None, given: list[str]
) -> None:
    """Run the whole distillation; see the module's docstring.

    Raises:
        DistillError: saying what is wrong.
    """
    if refused := sorted({word.split("=")[0] for word in given} & REFUSED):
        raise DistillError(f"{', '.join(refused)} cannot be given: the script sets it, or needs fairseq's default")
    checkpoints = [Path(path) for path in utils.split_paths(teacher)]
    for path in checkpoints:
        if not path.is_file():
            raise DistillError(f"TEACHER {path} does not exist")
    if out.exists():
        raise DistillError(f"OUT {out} exists")
    options = [*OPTIONS, *given]
    corpus = Corpus.load(data, options)
    if shards is None:
        shards = max(1, min(16, len(corpus.sources) // 2000, len(corpus.batches)))
    if shards > len(corpus.batches):
        raise DistillError(f"--shards {shards}: choose at most {len(corpus.batches)}, the number of batches")

    kept_as_is = [name for name in files_of(data) if not Path(name).name.startswith(NOT_KEPT)]
    training = [path.name for path in data.glob(f"train.{corpus.pair}.*")]
    facts = environment()
    settings: dict[str, Any] = {
        "teacher": [sha256(path) for path in checkpoints],
        "data": sha256_of_files(data, [*kept_as_is, *training]),
        "options": options,
        "shards": shards,
        "versions": {name: facts[name] for name in facts if name.startswith(("python", "torch", "fairseq", "amlp"))},
    }
    unfinished = out.with_name(out.name + ".unfinished")
    command = [sys.executable, "-m", "amlp_fairseq", "generate", str(data)]
    command += ["--path", teacher, *languages(corpus.pair), *options, "--no-progress-bar"]
    with locked(unfinished) as lock:
        check_settings(unfinished / "settings.json", settings)
        hypotheses = decode(corpus, command, shards, jobs, unfinished, lock)
        result = unfinished / "result"
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        counts = write_pairs(corpus, hypotheses, max_ratio, result)
        for name in kept_as_is:
            (result / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(data / name, result / name)
        manifest = {
            "teacher": [
                {"path": str(path), "sha256": digest}
                for path, digest in zip(checkpoints, settings["teacher"], strict=True)
            ],
            "data": {"path": str(data), "sha256": settings["data"]},
            "options": options,
            "max_ratio": max_ratio,
            "slack": SLACK,
            "counts": counts,
            "versions": settings["versions"],
            "commit": facts["commit"],
            "sha256": sha256_of_files(result, files_of(result)),
        }
        (result / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        result.rename(out)
        shutil.rmtree(unfinished)
    print(f"distill: {out}: {json.dumps(counts)}", file=sys.stderr)


def teachers_of(data: Path) -> list[str]:
    """The folders of the teachers that have made distilled data."""
    manifest = json.loads((data / "manifest.json").read_text(encoding="utf-8"))
    return [Path(teacher["path"]).parent.name for teacher in manifest["teacher"]]


def ratio(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number >= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: choose a number of at least 1")
    return number


def main() -> None:
    logging.disable(logging.INFO)
    parser = command_parser("distill", __doc__)
    parser.add_argument("teacher", metavar="TEACHER", help="checkpoint, or several joined by ':'")
    parser.add_argument("data", metavar="DATA", type=Path, help="folder made by fairseq-preprocess")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make")
    parser.add_argument("--shards", type=positive, metavar="N", help="default: one for 2000 sentences, at most 16")
    parser.add_argument("--jobs", type=positive, default=1, metavar="J", help="shards at a time (default: 1)")
    parser.add_argument("--max-ratio", type=ratio, metavar="R", help=f"default: {RATIO:g}, none for summaries")
    args, given = parse_with_fairseqs(parser)
    max_ratio = default_ratio(args.data) if args.max_ratio is None else args.max_ratio
    distill(args.teacher, args.data, args.out, args.shards, args.jobs, max_ratio, given)


if __name__ == "__main__":
    main()
