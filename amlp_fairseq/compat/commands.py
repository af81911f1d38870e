"""fairseq's programs, ``fairseq_cli``: they validate their options first, read and print whole lines, and end with one
line because of an error of the user.

Their modules set up logging when they are imported, so that :func:`check_options` and :func:`keep_lines_whole` change
those that have been imported, and are called again later.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import sys
from pathlib import Path
from typing import Any

from amlp_fairseq.common import parallel_text
from amlp_fairseq.common.arguments import nearest
from amlp_fairseq.common.lines import buffered_read
from amlp_fairseq.common.renamed_options import present_name
from amlp_fairseq.common.user_errors import hide_tracebacks
from amlp_fairseq.compat.flags import every_option
from amlp_fairseq.compat.internals import TASK_REGISTRY, FairseqConfig

#: The programs of fairseq that load the plugin by --user-dir.
PROGRAMS = ("train", "generate", "interactive", "validate", "eval-lm", "preprocess")


def name_mistakes() -> None:
    """End a program of fairseq without a traceback because of an error of the user."""
    program = Path(sys.argv[0]).name
    if program in [f"fairseq-{name}" for name in PROGRAMS]:
        hide_tracebacks(program)


def keep_lines_whole() -> None:
    """Read text line by line in fairseq-interactive, and print line by line there and in fairseq-generate; called by
    the plugin's tasks and models.

    fairseq ends a line at a carriage return, too, which shifts all later outputs, dies of bytes that are not UTF-8, and
    takes a byte-order mark for a part of the first word. What it prints to a file or a pipe leaves in blocks, or with
    PYTHONUNBUFFERED in parts of lines: a process that is killed has begun a line, and lost those before it.
    """
    for name in ("fairseq_cli.interactive", "__main__"):
        module = sys.modules.get(name)
        if hasattr(module, "buffered_read") and hasattr(module, "make_batches"):
            module.buffered_read = buffered_read  # type: ignore[union-attr]
    for name in ("fairseq_cli.generate", "__main__"):
        generates = hasattr(sys.modules.get(name), "get_symbols_to_strip_from_output")
        if generates and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True, write_through=False)


def check_options() -> None:
    """Let the programs validate their options first."""
    for name, check in CHECKS.items():
        module: Any = sys.modules.get(f"fairseq_cli.{name}")
        if hasattr(module, "main") and not hasattr(module.main, "__wrapped__"):
            module.main = _checked(module.main, check)


def _checked(main: Any, check: Any) -> Any:
    @functools.wraps(main)
    def wrapped(cfg: Any, *args: object, **kwargs: object) -> Any:
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
    """Check options that fairseq takes for something else than was meant, or refuses for another reason.

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
    known = {action.dest for action in every_option()} | {"_name", *FairseqConfig.__dataclass_fields__} if keys else ()
    for key in keys:
        if present_name(key) not in known:
            near = nearest(str(key), known)
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"--model-overrides: no model or task has {key!r}{hint}")


def check_generate(cfg: Any) -> None:
    """As :func:`check_decoding`; raises ValueError for ``--replace-unk`` without the words of the source, too."""
    check_decoding(cfg)
    parts = [cfg] * 3 if isinstance(cfg, argparse.Namespace) else [cfg.generation, cfg.dataset, cfg]
    if parts[0].replace_unk is None:
        return
    if parts[1].dataset_impl != "raw":
        raise ValueError(f"--replace-unk needs the words of the source, and data have their numbers: {RAW}")
    for name in ("bpe", "tokenizer"):
        if (value := getattr(parts[2], name, None)) is not None:
            value = getattr(value, "_name", value)
            raise ValueError(f"--{name} {value} puts words together that --replace-unk counts: leave it out, or {RAW}")


def check_interactive(cfg: Any) -> None:
    """As :func:`check_decoding`; raises ValueError for ``--replace-unk``, too."""
    check_decoding(cfg)
    if (cfg if isinstance(cfg, argparse.Namespace) else cfg.generation).replace_unk is not None:
        raise ValueError(f"--replace-unk: fairseq-interactive has lost the words that were typed; {RAW}")


#: The way out for ``--replace-unk``.
RAW = "amlp-fairseq translate --replace-unk has them; fairseq-generate --dataset-impl raw reads text"
CHECKS = {"preprocess": parallel_text.check, "generate": check_generate, "interactive": check_interactive}
