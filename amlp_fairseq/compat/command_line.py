"""Mistakes on the command lines of fairseq: one line that names the nearest right thing, and no traceback."""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import functools
import os
import pickle
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fairseq import options
from fairseq.logging import progress_bar
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES

from amlp_fairseq.common import parallel_text
from amlp_fairseq.common.arguments import Parser, nearest
from amlp_fairseq.compat.decoded_validation import DecodedValidationTask
from amlp_fairseq.compat.internals import (
    TASK_REGISTRY,
    FairseqConfig,
    TranslationLevenshteinTask,
    gen_parser_from_dataclass,
)
from amlp_fairseq.compat.registration import is_ours

#: The programs of fairseq that load the plugin by --user-dir.
PROGRAMS = ("train", "generate", "interactive", "validate", "eval-lm", "preprocess")


def name_mistakes() -> None:
    """Let fairseq's commands look at their options, and its programs end without a traceback because of mistakes."""
    _check_commands()
    program = Path(sys.argv[0]).name
    if program in [f"fairseq-{name}" for name in PROGRAMS]:
        sys.excepthook = functools.partial(_end, program, sys.excepthook)


@contextlib.contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """End with one line and status 1 because of an error of the user, see :func:`describe`, whose traceback
    ``LOGLEVEL=DEBUG`` shows."""
    try:
        yield
    except Exception as error:
        line = describe(error)
        if line is None:
            raise
        _say_where(error)
        sys.exit(f"{command}: {line}")


def describe(error: BaseException) -> str | None:
    """The line that tells a user what is wrong; None for an error that is not the user's, but a bug."""
    text = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        hint = " (fairseq-preprocess writes it)" if re.search(r"dict\.[^/]*\.txt$", str(error.filename)) else ""
        return f"{error.filename} does not exist{hint}"
    if isinstance(error, FileExistsError) and error.filename is None:  # fairseq-preprocess's
        return f"{text} exists: give another folder, or take this one's (fairseq-preprocess --srcdict, --tgtdict)"
    if isinstance(error, FileExistsError):
        return f"{error.filename} exists: give another folder"
    if isinstance(error, OSError) and error.filename is not None and error.errno is not None:
        path = error.filename2 if error.errno == errno.ENOSPC and error.filename2 else error.filename  # of a copy
        return f"{path}: {os.strerror(error.errno)}"
    lacking = re.match(r"Interpolation key 'criterion\.(\w+)' not found", text)
    if lacking:
        option = lacking.group(1).replace("_", "-")
        return f"the model needs --{option}, which this --criterion does not have (CMLMC: --criterion nat_loss)"
    if mismatch := isinstance(error, RuntimeError) and _MISMATCH.search(text):
        return (
            "the checkpoint does not fit: its {} has shape {}, that of the model {} (other dictionaries, or other "
            "options of the model)".format(*mismatch.groups())
        )
    if text.startswith("Cannot load model parameters from checkpoint") and isinstance(error.__context__, ValueError):
        return f"{text.split(';')[0]}: {error.__context__}"
    if isinstance(error, KeyError) and error.__traceback__ is not None:
        frame = _last_frame(error)
        if _is_of(frame, "fairseq_cli.train") and "stats" in frame.f_locals:
            found = ", ".join(sorted(frame.f_locals["stats"]))
            return f"--best-checkpoint-metric {error.args[0]} is none of what validation finds: {found}"
    fairseqs = type(error) in (Exception, OSError)  # what fairseq raises, as for a checkpoint that does not exist
    asserted = isinstance(error, AssertionError) and _is_of(_last_frame(error), *_CHECKING)
    if text and (fairseqs or asserted or isinstance(error, _OF_USERS)):
        return text
    return None


#: What torch says of a parameter.
_MISMATCH = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\((\[[^]]*\])\) from checkpoint, the shape in "
    r"current model is torch\.Size\((\[[^]]*\])\)"
)
#: ``ChildProcessError``: a command that another one has started has failed, and has said why.
_OF_USERS = (ValueError, FileNotFoundError, pickle.UnpicklingError, ChildProcessError)


def _say_where(error: BaseException) -> None:
    if os.environ.get("LOGLEVEL", "").upper() == "DEBUG":  # what fairseq's commands look at
        traceback.print_exception(error)


#: Where fairseq checks options by ``assert`` with a message.
_CHECKING = ("fairseq_cli.", "fairseq.trainer", "fairseq.modules.", "fairseq.data.indexed_dataset")


def _last_frame(error: BaseException) -> FrameType:
    return list(traceback.walk_tb(error.__traceback__))[-1][0]


def _is_of(frame: FrameType, *modules: str) -> bool:
    """Whether it is one of a function of these modules."""
    return str(frame.f_globals.get("__name__")).startswith(modules)


def _end(program: str, hook: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """In place of ``sys.excepthook``."""
    line = describe(error)
    if line is None:
        hook(kind, error, trace)
        return
    _say_where(error)
    print(f"{program}: {line}", file=sys.stderr)  # noqa: T201


class FairseqParser(Parser):
    """The parser of a program of fairseq, which knows what other tasks have."""

    def unknown(self, flag: str, others: Iterable[str] = ()) -> str:
        owners = _owners(flag)
        return f"{flag} is an option of {owners} only" if owners else super().unknown(flag, others)


def _owners(flag: str) -> str:
    """Which tasks of the plugin have an option that the chosen one does not have."""
    name = flag.removeprefix("--").replace("-", "_")
    owners = [
        task for task, cls in TASK_REGISTRY.items()
        if is_ours(cls) and name in _fields(cls.__dict__.get("__dataclass"))
    ]  # fmt: skip
    return " and ".join(f"--task {task}" for task in owners)


def _fields(config: Any) -> Any:
    return getattr(config, "__dataclass_fields__", {})


def with_nearest_names(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Let a parser that a function takes or returns become a :class:`FairseqParser`."""
    for parser in args[:1]:
        _convert(parser)
    try:
        result = function(*args, **kwargs)
    except RuntimeError as error:
        if error.args:
            raise
        args[0].error("--arch NAME is needed, or --row and --scale of amlp-fairseq train")  # fairseq says nothing
    except KeyError as error:
        if error.args != (None,):
            raise
        args[0].error("--task NAME is needed: that of the training")
    if hasattr(result, "best_checkpoint_metric"):  # options of a training
        check_training(
            result.best_checkpoint_metric,
            None if result.disable_validation else result.task,
            getattr(result, "eval_bleu", None),
            result.tensorboard_logdir,
        )
    _convert(result)
    _check_commands()
    return result


def _convert(parser: Any) -> None:
    if type(parser) is argparse.ArgumentParser:
        parser.__class__ = FairseqParser


def check_trainer(begin: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Look at the options of trainings that had no command line: fairseq-hydra-train."""
    begin(self, *args, **kwargs)
    cfg = self.cfg
    task = None if cfg.dataset.disable_validation else cfg.task._name
    eval_bleu = getattr(cfg.task, "eval_bleu", None)
    check_training(cfg.checkpoint.best_checkpoint_metric, task, eval_bleu, cfg.common.tensorboard_logdir)


def check_training(metric: str, task: str | None, eval_bleu: bool | None, tensorboard: str | None) -> None:
    """Look at what would end a training after its first epoch, or what fairseq leaves out with a warning.

    Args:
        metric: ``--best-checkpoint-metric``.
        task: the name of the task; None without validation.
        eval_bleu: ``--eval-bleu``; None for a task that does not have the option.
        tensorboard: ``--tensorboard-logdir``.

    Raises:
        ValueError: naming the option and what it needs.
    """
    if metric == "bleu" and task is not None:
        kind = TASK_REGISTRY[task]
        fairseqs = issubclass(kind, TranslationLevenshteinTask) and not issubclass(kind, DecodedValidationTask)
        if eval_bleu is None or fairseqs:  # it has the option, and ignores it
            raise ValueError(
                f"--best-checkpoint-metric bleu: --task {task} has no BLEU in validation; --eval-bleu is "
                "for the tasks of the plugin and fairseq's translation"
            )
        if not eval_bleu:
            raise ValueError("--best-checkpoint-metric bleu needs --eval-bleu, which decodes the validation set")
    if tensorboard and progress_bar.SummaryWriter is None:
        raise ValueError(
            f"--tensorboard-logdir {tensorboard} needs tensorboardX, which is not installed: "
            'pip install "amlp-fairseq[tensorboard]"'
        )


def _check_commands() -> None:
    """Let the commands of fairseq that are imported look at their options first. They are not imported here, for they
    set up logging then."""
    for name, check in CHECKS.items():
        module: Any = sys.modules.get(f"fairseq_cli.{name}")
        if hasattr(module, "main") and not hasattr(module.main, "__wrapped__"):
            module.main = _checked(module.main, check)


def _checked(main: Any, check: Any) -> Any:
    @functools.wraps(main)
    def wrapped(cfg: Any, *args: Any, **kwargs: Any) -> Any:
        check(cfg)
        try:
            return main(cfg, *args, **kwargs)
        except ZeroDivisionError:  # fairseq-generate's, of sentences per second
            training = cfg if isinstance(cfg, argparse.Namespace) else cfg.distributed_training
            processes = training.distributed_world_size
            if processes < 2:
                raise
            raise ValueError(
                f"--distributed-world-size {processes}: there are fewer batches, and none for this --distributed-rank; "
                "give fewer, or a smaller --batch-size"
            ) from None

    return wrapped


def check_decoding(cfg: Any) -> None:
    """Look at options of which fairseq makes something else than was meant, or that it refuses for another reason.

    Raises:
        ValueError: for generation options that the task of the plugin does not honour, more hypotheses than the beam
            has, and keys of ``--model-overrides`` that no model and task has.
    """
    if isinstance(cfg, argparse.Namespace):
        generation, overrides, name, shards = cfg, cfg.model_overrides, cfg.task, cfg.num_shards
    else:
        generation, overrides, name = cfg.generation, cfg.common_eval.model_overrides, cfg.task._name
        shards = cfg.dataset.num_shards
    if shards > 1:  # all sentences are decoded
        raise ValueError(
            f"--num-shards {shards}: fairseq's decoding ignores it and --shard-id; --distributed-world-size {shards} "
            "--distributed-rank N is what it obeys"
        )
    task = TASK_REGISTRY.get(name)
    if hasattr(task, "refuse_unsupported"):
        task.refuse_unsupported(generation)
    if generation.nbest < 1:
        raise ValueError(f"--nbest {generation.nbest} must be at least 1")
    if generation.nbest > generation.beam > 0:
        beam, nbest = generation.beam, generation.nbest
        raise ValueError(f"--nbest {nbest} is more than --beam {beam} finds: raise --beam, or lower --nbest")
    _check_overrides(overrides)


def _check_overrides(text: str) -> None:
    try:
        overrides = ast.literal_eval(text)
        keys = list(overrides.keys())
    except (AttributeError, SyntaxError, TypeError, ValueError):
        raise ValueError(f"--model-overrides {text!r} is no dictionary, as in \"{{'dropout': 0.0}}\"") from None
    known = {action.dest for action in _every_option()} | {"_name", *FairseqConfig.__dataclass_fields__} if keys else ()
    for key in keys:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"--model-overrides: no model or task has {key!r}{hint}")


def fairseqs_flags(kind: str, *words: str) -> set[str]:
    """The flags that a command of fairseq takes.

    Args:
        kind: of its parser: ``training``, ``generation``, ``validation``.
        words: of its command line, those that choose task, architecture, criterion, …; of a training without them the
            flags are those that it always takes.
    """
    parser = getattr(options, f"get_{kind}_parser")(default_task="translation")
    if words or kind != "training":
        options.parse_args_and_arch(parser, ["DATA", *words], parse_known=True)  # adds the options of what is chosen
    return {flag for flag in parser._option_string_actions if flag.startswith("--")}


@functools.cache
def known_flags() -> frozenset[str]:
    """The flags of all tasks, models and other parts that fairseq's commands know, without their dashes."""
    flags = (flag for action in _every_option() for flag in action.option_strings)
    return frozenset(flag.removeprefix("--") for flag in flags if flag.startswith("--"))


def _every_option() -> list[argparse.Action]:
    formatter = functools.partial(argparse.HelpFormatter, width=80)  # or every option asks how wide the terminal is
    parser = argparse.ArgumentParser(conflict_handler="resolve", formatter_class=formatter)
    parser.add_argument("--arch")
    gen_parser_from_dataclass(parser, FairseqConfig())
    parts = {*ARCH_MODEL_REGISTRY.values(), *TASK_REGISTRY.values()}
    for registry in REGISTRIES.values():
        parts.update(registry["registry"].values())
    for part in parts:
        if hasattr(part, "add_args"):
            part.add_args(parser)
        elif hasattr(part, "__dataclass"):
            gen_parser_from_dataclass(parser, getattr(part, "__dataclass")())
    return parser._actions


CHECKS = {"preprocess": parallel_text.check, "generate": check_decoding, "interactive": check_decoding}
