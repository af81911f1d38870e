"""Mistakes on the command lines of fairseq: one line that names the nearest right thing, and no traceback."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import os
import pickle
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES

from amlp_fairseq.compat import parallel_text
from amlp_fairseq.compat.internals import TASK_REGISTRY, FairseqConfig

#: The programs of fairseq that load the plugin by --user-dir.
PROGRAMS = ("train", "generate", "interactive", "validate", "eval-lm", "preprocess")
#: More choices than these are not listed.
MOST_CHOICES = 20


def install() -> None:
    """Let fairseq's parsers and commands name mistakes, and its programs end without a traceback because of them."""
    for name in ("get_parser", "parse_args_and_arch"):
        setattr(options, name, _with_nearest_names(getattr(options, name)))
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
    if isinstance(error, FileExistsError):
        path = text if error.filename is None else error.filename
        return f"{path} exists: give another folder, or take this one's (fairseq-preprocess --srcdict, --tgtdict)"
    if isinstance(error, OSError) and error.filename is not None and error.errno is not None:
        return f"{error.filename}: {os.strerror(error.errno)}" if isinstance(error, _OF_PATHS) else None
    lacking = re.match(r"Interpolation key 'criterion\.(\w+)' not found", text)
    if lacking:
        option = lacking.group(1).replace("_", "-")
        return f"the model needs --{option}, which this --criterion does not have (CMLMC: --criterion nat_loss)"
    fairseqs = type(error) in (Exception, OSError)  # what fairseq raises, as for a checkpoint that does not exist
    asserted = isinstance(error, AssertionError) and _is_raised_by_a_command(error)
    if text and (fairseqs or asserted or isinstance(error, (ValueError, FileNotFoundError, pickle.UnpicklingError))):
        return text
    return None


_OF_PATHS = (IsADirectoryError, NotADirectoryError, PermissionError)


def _say_where(error: BaseException) -> None:
    if os.environ.get("LOGLEVEL", "").upper() == "DEBUG":  # what fairseq's commands look at
        traceback.print_exception(error)


def _is_raised_by_a_command(error: BaseException) -> bool:
    """fairseq's commands check their options by ``assert`` with a message."""
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    return str(frame.f_globals.get("__name__")).startswith("fairseq_cli.")


def _end(program: str, hook: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """In place of ``sys.excepthook``."""
    line = describe(error)
    if line is None:
        hook(kind, error, trace)
        return
    _say_where(error)
    print(f"{program}: {line}", file=sys.stderr)  # noqa: T201


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the nearest name."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        choice = re.match(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from", message)
        if unknown:
            message = self._unknown(unknown.group(1).split())
        elif choice:
            message = self._invalid_choice(choice.group(1).split("/")[0], choice.group(2))
        self.exit(1, f"{self.prog}: {message} (all options: {self.prog} --help)\n")

    def _unknown(self, words: list[str]) -> str:
        flags = [word.split("=")[0] for word in words if word.startswith("--")]
        if not flags:
            return f"{words[0]!r} is one argument too many"
        owners = _owners(flags[0])
        if owners:
            return f"{flags[0]} is an option of {owners} only"
        return f"{flags[0]} is unknown{_nearest(flags[0], self._option_string_actions)}"

    def _invalid_choice(self, flag: str, given: str) -> str:
        known = [str(name) for name in self._option_string_actions[flag].choices or ()]
        listed = f"; known: {', '.join(known)}" if len(known) <= MOST_CHOICES else ""
        return f"{flag} {given!r} is unknown{_nearest(given, known) or listed}"


def _owners(flag: str) -> str:
    """Which tasks of the plugin have an option that the chosen one does not have."""
    name = flag.removeprefix("--").replace("-", "_")
    owners = [
        task for task, cls in TASK_REGISTRY.items()
        if cls.__module__.startswith("amlp_fairseq") and name in _fields(cls.__dict__.get("__dataclass"))
    ]  # fmt: skip
    return " and ".join(f"--task {task}" for task in owners)


def _fields(config: Any) -> Any:
    return getattr(config, "__dataclass_fields__", {})


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _with_nearest_names(function: Any) -> Any:
    """A function that takes or returns a parser, which becomes a :class:`Parser`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for parser in args[:1]:
            _convert(parser)
        result = function(*args, **kwargs)
        _convert(result)
        _check_commands()
        return result

    return wrapped


def _convert(parser: Any) -> None:
    if type(parser) is argparse.ArgumentParser:
        parser.__class__ = Parser


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
        return main(cfg, *args, **kwargs)

    return wrapped


def check_decoding(cfg: Any) -> None:
    """Look at options of which fairseq makes something else than was meant, or that it refuses for another reason.

    Raises:
        ValueError: for generation options that the task of the plugin does not honour, more hypotheses than the beam
            has, and keys of ``--model-overrides`` that no model and task has.
    """
    if isinstance(cfg, argparse.Namespace):
        generation, overrides, name = cfg, cfg.model_overrides, cfg.task
    else:
        generation, overrides, name = cfg.generation, cfg.common_eval.model_overrides, cfg.task._name
    task = TASK_REGISTRY.get(name)
    if hasattr(task, "refuse_unsupported"):
        task.refuse_unsupported(generation)
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
    known = _known_options() if keys else set()
    for key in keys:
        if key not in known:
            raise ValueError(f"--model-overrides: no model or task has {key!r}{_nearest(str(key), known)}")


def _known_options() -> set[str]:
    """The names of all options that a checkpoint can hold."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    for cls in {*ARCH_MODEL_REGISTRY.values(), *TASK_REGISTRY.values()}:
        cls.add_args(parser)
    known = {action.dest for action in parser._actions} | {"_name"}
    configs = [field.type for field in FairseqConfig.__dataclass_fields__.values()]
    configs += MODEL_DATACLASS_REGISTRY.values()
    configs += [config for registry in REGISTRIES.values() for config in registry["dataclass_registry"].values()]
    for config in configs:
        known.update(_fields(config))
    return known | set(FairseqConfig.__dataclass_fields__)


CHECKS = {"preprocess": parallel_text.check, "generate": check_decoding, "interactive": check_decoding}
