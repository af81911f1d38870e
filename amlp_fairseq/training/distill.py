"""Copy a data folder, with a teacher's translations of the training sources as training targets.

    amlp-fairseq distill TEACHER DATA OUT [--shards N] [--jobs J] [--max-ratio R] [options of fairseq-generate]
                         [--reverse REVERSE [--samples N]]

TEACHER is a checkpoint, the folder of a training that amlp-fairseq evaluate has averaged, the folder of a model, or
several joined by ':' (an ensemble); DATA a folder made by fairseq-preprocess; OUT a new one with the same dictionaries,
validation and test data and other files, byte by byte. All other options are for decoding with the teacher: --cpu,
--fp16, --decode-dtype int8, --lenpen, …; the defaults are --beam 5 and --max-tokens 8000. The plugin's search decodes;
with --engine fairseq, fairseq's own decodes autoregressive teachers: the same words, more slowly.

With REVERSE, of the same kinds, which translates DATA's targets into the language of its sources (amlp-fairseq train
DATA --source-lang TARGET --target-lang SOURCE …), OUT has more training sets, train1, train2, …: their sources are
drawn from REVERSE by fairseq's search (--sampling --sampling-topp 0.9 --beam 1 --seed 1, 2, …), their targets TEACHER's
translations of those.

Pairs are left out if one side is empty, or has more than R times the tokens of the other plus 5; R is 3 where it is not
given, and summaries are not left out for being shorter than what they are of. So are pairs of DATA with a side that is
longer than TEACHER's positions or --max-tokens. OUT/manifest.json has teacher, data, options, versions, counts and
checksums.

The training data are decoded in N shards, J at a time. If there are several GPUs, each job has one of them; on a CPU,
OMP_NUM_THREADS should be the number of cores divided by J. Finished shards are kept in OUT.unfinished: after an
interruption the same command continues from there. A shard is every N-th batch of the whole, so N, J and interruptions
do not change a byte of OUT, as long as all devices compute the same. (With --sampling, N does change the result: every
shard begins with the same seed.)
"""

import argparse
import json
import logging
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import IO, Any

import torch
from fairseq import checkpoint_utils, utils

from amlp_fairseq.common.arguments import (
    among,
    command_parser,
    folder,
    parse_with_fairseqs,
    positive,
    say_next,
    without,
)
from amlp_fairseq.common.files import IN_USE, checksums, locked, resume, sha256
from amlp_fairseq.common.training_folder import LAST, RECIPE
from amlp_fairseq.compat.flags import fairseqs_flags, known_flags
from amlp_fairseq.compat.internals import indexed_dataset
from amlp_fairseq.model_folder.as_checkpoint import AVERAGE
from amlp_fairseq.model_folder.config import WEIGHTS, is_model_folder
from amlp_fairseq.training.average import average_checkpoints, chosen, save
from amlp_fairseq.training.binarised_shards import ELSEWHERE, OPTIONS, DistillError, TrainingSet, decode
from amlp_fairseq.training.config import corpus_metric, flags, names, quoted, read
from amlp_fairseq.training.data_folder import data_folder, stored_text
from amlp_fairseq.training.engine import (
    FAIRSEQS_TASK,
    OURS,
    check_options,
    engine_argument,
    engine_of_task,
    given_task,
    saved_cfg,
    task_flags,
    task_of,
)
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.following import scale_of

#: Options with which sources are drawn from the reverse model; each set of them has its number as seed.
SAMPLING = ["--beam", "1", "--sampling", "--sampling-topp", "0.9", "--seed"]
#: And those that would change which sentences are decoded, or what the S- and H- lines say.
REFUSED = ELSEWHERE | frozenset(
    "--user-dir --nbest --quiet --post-process --remove-bpe --bpe --tokenizer --replace-unk --truncate-source "
    "--skip-invalid-size-inputs-valid-test --distributed-world-size --distributed-rank --constraints".split()
)
#: Prefixes of the names of those files in DATA that are not copied to OUT.
NOT_KEPT = ("train", "preprocess.log", "manifest.json")
#: A side may have this many tokens more than the ratio allows: "yes" can be "ja , natürlich ." in pieces of words.
SLACK = 5
#: Sentences of a shard, unless there would be more than 16: a process takes seconds to start.
SHARD = 10_000
#: ``--max-ratio`` of translations.
RATIO = 3.0


def default_ratio(data: Path) -> float | None:
    """``--max-ratio`` where it is not given: none for corpora of summaries."""
    corpus = (stored_text(data) or {}).get("corpus")
    return None if corpus in names("data") and corpus_metric(corpus) == "rouge" else RATIO


def verdict(source: int, target: int, max_ratio: float | None) -> str:
    """Outcome for a pair with these numbers of tokens, without end symbols: 'kept', 'empty' or 'ratio'."""
    short, long = sorted((source, target))
    if short == 0:
        return "empty"
    return "ratio" if max_ratio is not None and long > max_ratio * short + SLACK else "kept"


def write_pairs(
    corpus: TrainingSet, hypotheses: dict[int, list[int]], max_ratio: float | None, prefix: Path
) -> dict[str, int]:
    """Write binarised data of the pairs that are kept, in the corpus' order, to files whose names begin with a prefix;
    returns the counts."""
    prefixes = [prefix.with_name(f"{prefix.name}.{corpus.pair}.{language}") for language in corpus.languages]
    builders = [
        indexed_dataset.make_builder(indexed_dataset.data_file_path(str(prefix)), "mmap", len(dictionary))
        for prefix, dictionary in zip(prefixes, corpus.dictionaries, strict=True)
    ]
    end = corpus.dictionaries[1].eos()
    counts: Counter[str] = Counter()
    for number, source in enumerate(corpus.sources):
        if number not in hypotheses:
            counts["long"] += 1
            continue
        words = hypotheses[number]
        decision = verdict(len(source) - 1, len(words), max_ratio)
        counts[decision] += 1
        if decision == "kept":
            builders[0].add_item(source)
            builders[1].add_item(torch.tensor([*words, end]))
    for prefix, builder in zip(prefixes, builders, strict=True):
        builder.finalize(indexed_dataset.index_file_path(str(prefix)))
    if not counts["kept"]:
        left_out = f"{counts['empty']} were empty, {counts['long']} too long, {counts['ratio']} beyond --max-ratio"
        raise DistillError(f"no pair is left: {left_out}")
    return {"sentences": len(corpus.sources), **{name: counts[name] for name in ("empty", "ratio", "long", "kept")}}


def files_of(folder: Path) -> list[str]:
    """The names of all files in a folder and the folders in it, those that are links, too."""
    paths = [Path(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names]
    return sorted(str(path.relative_to(folder)) for path in paths if path.is_file())


def existing(name: str, paths: str) -> list[Path]:
    """Checkpoints and folders of models that the user gives, joined by ':'. The folder of a training stands for its
    average, which is made if amlp-fairseq evaluate has not made it; where there is no recipe for the best or last
    checkpoint.

    Raises:
        DistillError: if one is none of these.
    """
    return [_checkpoint(name, Path(path)) for path in utils.split_paths(paths)]


def _checkpoint(name: str, path: Path) -> Path:
    if not path.exists():
        raise DistillError(f"{name} {path} does not exist")
    if path.is_file() or is_model_folder(path):
        return path
    for file in (average := path / AVERAGE, path / "checkpoint_best.pt", last := path / LAST):
        if file == average and not file.is_file() and last.is_file() and (path / RECIPE).is_file():
            kind, count = read(path / RECIPE).averages[0]
            save(average_checkpoints(chosen(path, kind, count)), average)
        if file.is_file():
            print(f"distill: {name} {path} is {file.name}", file=sys.stderr)
            return file
    raise DistillError(f"{name} {path} is neither a checkpoint nor the folder of a training or of a model")


def weights_sha256(path: Path) -> str:
    """The checksum of a checkpoint, or of the weights in the folder of a model."""
    return sha256(path / WEIGHTS if path.is_dir() else path)


def check_direction(paths: list[Path], source: str, target: str) -> None:
    """Refuse models that say that they do not translate from one language into the other.

    Raises:
        DistillError: naming the first.
    """
    for path in paths:
        task = checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"].task
        direction = (task.source_lang, task.target_lang)
        if None not in direction and direction != (source, target):
            raise DistillError(
                f"--reverse {path} translates {' to '.join(direction)}; what is needed is {source} to {target}: "
                f"amlp-fairseq train DATA --source-lang {source} --target-lang {target}"
            )


def decoding_task(paths: list[Path], engine: str) -> list[str]:
    """The options of the task that decodes models together.

    Raises:
        DistillError: if each needs another one.
    """
    cfgs = [saved_cfg(path) for path in paths]
    found = [
        flags(task_flags(task_of(cfg), cfg.model._name, engine), str(path))
        for path, cfg in zip(paths, cfgs, strict=True)
    ]
    for path, words in zip(paths, found, strict=True):
        if words != found[0]:
            raise DistillError(f"{paths[0]} decodes with {quoted(found[0])}, {path} with {quoted(words)}")
    return found[0]


class Distillation:
    """Training data that a teacher writes.

    Args:
        teacher: a checkpoint or the folder of a model, or several joined by ':'.
        data: the folder whose training set is translated.
        out: the folder to make.
        shards: None for one for 10,000 sentences, at most 16.
        jobs: shards at a time.
        max_ratio: see the module's docstring.
        given: options of fairseq-generate.
        reverse: likewise, of the other direction, or None.
        samples: how many more sets of sources are drawn from it.
        engine: of ``engine.ENGINES``.

    Raises:
        DistillError: saying what is wrong.
    """

    def __init__(
        self,
        teacher: str,
        data: Path,
        out: Path,
        shards: int | None,
        jobs: int,
        max_ratio: float | None,
        given: list[str],
        reverse: str | None = None,
        samples: int = 0,
        engine: str = OURS,
    ) -> None:
        if refused := among(given, REFUSED):
            raise DistillError(f"{', '.join(refused)} cannot be given: the script sets it, or needs fairseq's default")
        self.data, self.out = data, out
        self.models = {"teacher": existing("TEACHER", teacher)}
        if reverse is not None:
            self.models["reverse"] = existing("--reverse", reverse)
        self.teacher, self.reverse = (":".join(map(str, self.models.get(name, []))) for name in ("teacher", "reverse"))
        if out.exists():
            raise DistillError(f"OUT {out} exists")
        if data.resolve() in out.resolve().parents:
            raise DistillError(f"OUT {out} is in DATA {data}, all files of which are copied: name a folder elsewhere")
        task = [] if given_task(given) else decoding_task(self.models["teacher"], engine)
        self.options = [*OPTIONS, *task, *given]
        self.reverse_options = [*OPTIONS, *without(given, ["--decode-dtype"], ["--cuda-graphs"])]
        self.engine = engine_of_task(given_task(self.options) or FAIRSEQS_TASK)
        check_options(given, given_task(self.options) or FAIRSEQS_TASK)
        self.corpus = TrainingSet.load(data, self.options, self.teacher)
        check_direction(self.models.get("reverse", []), *reversed(self.corpus.languages))
        if shards is None:
            wanted = max(jobs, min(16, len(self.corpus.sources) // SHARD))
            shards = max(1, min(wanted, len(self.corpus.batches)))
        if shards > len(self.corpus.batches):
            raise DistillError(f"--shards {shards}: choose at most {len(self.corpus.batches)}, the number of batches")
        self.shards, self.jobs, self.max_ratio, self.samples = shards, jobs, max_ratio, samples
        self.unfinished = out.with_name(out.name + ".unfinished")

    def run(self) -> None:
        """Make the folder, or go on with what is there of it."""
        kept_as_is = [name for name in files_of(self.data) if not Path(name).name.startswith(NOT_KEPT)]
        training = [path.name for path in self.data.glob(f"train.{self.corpus.pair}.*")]
        facts = environment()
        versions = {name: facts[name] for name in facts if name.startswith(("python", "torch", "fairseq", "amlp"))}
        settings: dict[str, Any] = {
            **{name: [weights_sha256(path) for path in paths] for name, paths in self.models.items()},
            "data": checksums(self.data, [*kept_as_is, *training]),
            "engine": self.engine,
            "options": self.options,
            "shards": self.shards,
            "samples": self.samples,
            "versions": versions,
        }
        self.unfinished.mkdir(parents=True, exist_ok=True)
        with locked(self.unfinished / "lock", f"{IN_USE} {self.unfinished}") as lock:
            if changed := resume(self.unfinished / "settings.json", settings):
                begun = f"{self.unfinished} was begun with other {', '.join(changed)} (see settings.json in it)"
                raise DistillError(f"{begun}: delete it to start again")
            result = self.unfinished / "result"
            shutil.rmtree(result, ignore_errors=True)
            result.mkdir()
            counts = self.translate(self.corpus, self.teacher, self.unfinished, lock, result / "train")
            sampled = [self.translate_sample(number, lock, result) for number in range(1, self.samples + 1)]
            for name in kept_as_is:
                (result / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.data / name, result / name)
            manifest = {
                **{name: self.checkpoints(name, settings[name]) for name in self.models},
                "data": {"path": str(self.data), "sha256": settings["data"]},
                "engine": self.engine,
                "options": self.options,
                **({"sampling": SAMPLING, "samples": sampled} if sampled else {}),
                "max_ratio": self.max_ratio,
                "slack": SLACK,
                "counts": counts,
                "versions": versions,
                "commit": facts["commit"],
                "sha256": checksums(result, files_of(result)),
            }
            (result / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            result.rename(self.out)
            shutil.rmtree(self.unfinished)
        for number, each in enumerate((counts, *sampled)):
            print(f"distill: {self.out}/train{number or ''}: {json.dumps(each)}", file=sys.stderr)

    def checkpoints(self, model: str, digests: list[str]) -> list[dict[str, str]]:
        """The entry of a model in the manifest."""
        return [{"path": str(path), "sha256": digest} for path, digest in zip(self.models[model], digests, strict=True)]

    def translate(self, corpus: TrainingSet, model: str, folder: Path, lock: IO[str], prefix: Path) -> dict[str, int]:
        """Write pairs of a corpus' sources and a model's translations; returns the counts."""
        folder.mkdir(exist_ok=True)
        return write_pairs(corpus, decode(corpus, model, self.shards, self.jobs, folder, lock), self.max_ratio, prefix)

    def translate_sample(self, number: int, lock: IO[str], result: Path) -> dict[str, int]:
        """Write the pairs of sources that the reverse model draws for DATA's targets and the teacher's translations of
        them; returns the counts."""
        sources, targets = (self.unfinished / f"{side}{number}" for side in ("sources", "targets"))
        backwards = TrainingSet.load(
            self.data, [*self.reverse_options, *SAMPLING, str(number)], self.reverse, reverse=True
        )
        self.translate(backwards, self.reverse, sources, lock, sources / "train")
        for path in self.data.glob("dict.*.txt"):
            shutil.copyfile(path, sources / path.name)
        return self.translate(
            TrainingSet.load(sources, self.options, self.teacher),
            self.teacher,
            targets,
            lock,
            result / f"train{number}",
        )


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
    parser.add_argument("teacher", metavar="TEACHER", help="checkpoint or folder of a model, or several joined by ':'")
    parser.add_argument("data", metavar="DATA", type=data_folder, help="folder made by fairseq-preprocess")
    parser.add_argument("out", metavar="OUT", type=folder, help="folder to make")
    parser.add_argument("--shards", type=positive, metavar="N", help="default: one for 10,000 sentences, at most 16")
    parser.add_argument("--jobs", type=positive, default=1, metavar="J", help="shards at a time (default: 1)")
    parser.add_argument("--max-ratio", type=ratio, metavar="R", help=f"default: {RATIO:g}, none for summaries")
    parser.add_argument("--reverse", metavar="REVERSE", help="checkpoint of the other direction, or several")
    parser.add_argument("--samples", type=positive, metavar="N", help="sets of sources from REVERSE (default: 2)")
    engine_argument(parser)
    args, given = parse_with_fairseqs(
        parser,
        known_flags,
        accepted=lambda args: fairseqs_flags("generation") - REFUSED,
        forward_device=True,
    )
    if args.samples and not args.reverse:
        parser.error("--samples goes with --reverse")
    samples = (args.samples or 2) if args.reverse else 0
    max_ratio = default_ratio(args.data) if args.max_ratio is None else args.max_ratio
    distillation = Distillation(
        args.teacher, args.data, args.out, args.shards, args.jobs, max_ratio, given, args.reverse, samples, args.engine
    )
    distillation.run()
    teachers = distillation.models["teacher"]
    scale, fits = scale_of(teachers[0], saved_cfg(teachers[0]), args.data)
    begin = ("--finetune-from-model", teachers[0]) if fits and len(teachers) == 1 else ()
    if stored_text(args.out) is not None:  # else it has no corpus, which rows need
        say_next("train", args.out, "--row", "ibdecoder", "--scale", scale, *begin)


if __name__ == "__main__":
    main()
