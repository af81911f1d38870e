"""amlp-fairseq: fast-decoding machine translation for fairseq, from a corpus to results.

usage: amlp-fairseq COMMAND … [--verbose]     (details and an example: amlp-fairseq COMMAND --help)
       amlp-fairseq --version

--verbose, anywhere in the line, shows what libraries warn of, and configuration and model in the logs.

"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from types import ModuleType

from amlp_fairseq.cli.quick_help import stand_ins
from amlp_fairseq.common.arguments import PLUGIN, as_fairseq_has_it, nearest
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.logs import DECODING, LOGGING, readable, take_verbose
from amlp_fairseq.common.user_errors import one_line_errors

#: The commands by what they are for, in the order in which they are used: the package of the module, and what it does.
GROUPS = {
    "From a corpus to a model": {
        "prepare": ("corpora", "make the data folder of a corpus, or of text of your own"),
        "train": ("training", "train a row of a paper's table at a scale, or any model of fairseq-train"),
        "evaluate": ("evaluation", "average checkpoints, decode, score, and store the results"),
        "distill": ("training", "copy a data folder, with a teacher's translations as training targets"),
        "package": ("cli", "make one folder of a trained model"),
    },
    "Translating with such a folder": {
        "translate": ("cli", "translate raw text"),
        "serve": ("cli", "translate over HTTP"),
        "score-pairs": ("cli", "print the probabilities of translations that are given"),
        "compare": ("cli", "compare models on a text: quality, decoder calls and time side by side"),
        "watch": ("cli", "show how models write a translation, step by step"),
        "export": ("cli", "write an autoregressive Transformer as a model of CTranslate2"),
    },
    "The papers' tables": {
        "reproduce": ("evaluation", "train and evaluate all rows of a paper's tables, raw and distilled"),
        "tables": ("evaluation", "print results next to those of the papers"),
        "report": ("evaluation", "make one page of results and benchmarks, for any browser"),
        "parameters": ("evaluation", "compare numbers of parameters with the published ones"),
    },
    "Tools": {
        "score": ("evaluation", "score translations, or the output of fairseq-generate"),
        "align": ("corpora", "copy a data folder, with word alignments, from which NAT with fertilities learns"),
        "shortlist": ("corpora", "find likely translations of words, to which package restricts those of sentences"),
        "average": ("training", "average the weights of checkpoints"),
        "options": ("cli", "list tasks, architectures and every option, with defaults"),
        "path": ("", "print the folder of the plugin, for --user-dir"),
    },
}
#: The packages of the commands that are modules.
MODULES = {name: package for group in GROUPS.values() for name, (package, _) in group.items() if package}
#: Commands of fairseq, with --user-dir set.
FAIRSEQ = ("generate", "interactive", "validate", "eval-lm", "preprocess")
WITHOUT_USER_DIR = ("preprocess",)
#: Commands that begin without PyTorch and fairseq: the engine may do for them.
ENGINE = ("translate", "serve", "score-pairs")


#: Flags that are answered without torch and fairseq, wherever they stand in the line.
QUICK = {"-h", "--help", "--version"}


def main() -> None:
    words = sys.argv[1:] or ["--help"]
    if is_quick(words):
        given = sys.argv[:]
        with suppress(Exception), stand_ins():  # where a stand-in will not do, it takes seconds
            quick_answer(words)
        sys.argv = given
    (name, *words), verbose = take_verbose(words)
    command = f"amlp-fairseq {name}"
    if name not in ENGINE:
        load_plugin()
    endings = clear_endings(command, at_once=name == "train")
    with one_line_errors(command), endings, readable(name, verbose), bars(name), said_what_is_missing():
        run(name, words)


def is_quick(words: list[str]) -> bool:
    """True for help, the version and the folder of the plugin, which need neither torch nor fairseq."""
    return words == ["path"] or bool(QUICK & {*words})


def load_plugin() -> None:
    """Import it, which takes seconds: Ctrl-C meanwhile, and what is not installed, end the command without a
    traceback."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # not where nohup has turned it off
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with said_what_is_missing():
        from amlp_fairseq import plugin  # noqa: F401
    signal.signal(signal.SIGINT, interrupt)


@contextmanager
def said_what_is_missing() -> Iterator[None]:
    """End with one line where a library is missing, or of another version than is needed."""
    try:
        yield
    except ImportError as error:
        # Raised by common/versions.py and compat/fairseq_import.py; any other is a bug, with a traceback.
        if error.name not in ("Python", "torch", "numpy", "fairseq"):
            raise
        sys.exit(f"amlp-fairseq: {error}")


def bars(name: str) -> AbstractContextManager[None]:
    """The progress bars of fairseq's commands."""
    if name not in (*DECODING, *LOGGING):
        return nullcontext()
    from amlp_fairseq.compat import progress_bar

    return progress_bar.shown()


def quick_answer(words: list[str]) -> None:
    """Print what needs neither torch nor fairseq, and end: help, the version, and the folder of the plugin. Return for
    the help of fairseq's commands, which depends on their other options."""
    (name, *rest), verbose = take_verbose(words)
    if name in FAIRSEQ and (verbose or rest not in (["-h"], ["--help"])):
        return
    with clear_endings(f"amlp-fairseq {name}"):
        if name in FAIRSEQ:
            print(usage_of_fairseqs(name))
        else:
            run(name, rest)
    sys.exit()


def run(name: str, words: list[str]) -> None:
    """Run a command with its arguments."""
    if name in ("-h", "--help"):
        print(usage(), end="")
        return
    if name == "--version":
        from importlib.metadata import version  # takes a while

        print(f"amlp-fairseq {version('amlp-fairseq')}")
        return
    if name == "path":
        print(PLUGIN)
        return
    if name == "pmi":
        print("amlp-fairseq: pmi is gone; in a checkout: python examples/word_dependence/pmi.py", file=sys.stderr)
        sys.exit(2)
    if name not in (known := [*MODULES, "path", *FAIRSEQ]):
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
        print(f"amlp-fairseq: {name!r} is unknown; {hint}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"amlp-fairseq {name}", *words]
    if name in MODULES:
        module_of(name).main()
        return
    from amlp_fairseq.training.data_folder import with_data_folder

    sys.argv[1:] = as_fairseq_has_it(with_data_folder(words))
    if name not in WITHOUT_USER_DIR:
        sys.argv[1:1] = ["--user-dir", str(PLUGIN)]
    import_module(f"fairseq_cli.{name.replace('-', '_')}").cli_main()


def module_of(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"amlp_fairseq.{MODULES[name]}.{name.replace('-', '_')}")


def usage() -> str:
    """The text of ``--help``."""
    lines = str(__doc__).splitlines()
    for group, commands in GROUPS.items():
        lines += [f"{group}:", *(f"  {name:<12}{text}" for name, (_, text) in commands.items()), ""]
    lines += ["fairseq's commands, with --user-dir set:", f"  {', '.join(FAIRSEQ)}"]
    return "\n".join(lines) + "\n"


def usage_of_fairseqs(name: str) -> str:
    """The text of ``--help`` alone after a command of fairseq: its own is hundreds of lines, which depend on others."""
    plugin = "" if name in WITHOUT_USER_DIR else " with --user-dir set"
    usage = f"usage: amlp-fairseq {name} … [options]"
    return f"{usage}\n\nfairseq-{name}{plugin}; all its options: amlp-fairseq {name} --help --verbose"


if __name__ == "__main__":
    main()
