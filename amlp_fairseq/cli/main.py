"""amlp-fairseq: fast-decoding machine translation for fairseq, from a corpus to results.

usage: amlp-fairseq COMMAND … [--verbose]     (details and an example: amlp-fairseq COMMAND --help)

--verbose, anywhere in the line, shows what libraries warn of, and configuration and model in the logs.

"""

from __future__ import annotations

import sys
from importlib import import_module

from amlp_fairseq.cli.endings import clear_endings
from amlp_fairseq.cli.logs import readable, take_verbose
from amlp_fairseq.compat.command_line import one_line_errors
from amlp_fairseq.recipes.config import PLUGIN, refuse_unknown

#: The commands that are modules of ``recipes/``, with their help texts.
RECIPES = {
    "prepare": "make the data folder of a corpus, or of text of your own",
    "train": "train a row of a paper's table at a scale, or any model of fairseq-train",
    "distill": "copy a data folder, with a teacher's translations as training targets",
    "evaluate": "average checkpoints, decode, score, and store the results",
    "reproduce": "train and evaluate all rows of a paper's tables, raw and distilled",
    "tables": "print results next to those of the papers",
    "report": "make one page of results and benchmarks, for any browser",
    "average": "average the weights of checkpoints",
    "score": "score the output of fairseq-generate",
    "parameters": "compare numbers of parameters with the published ones",
    "pmi": "estimate how much words that are predicted together depend on each other",
}
#: The commands that are modules of ``cli/``.
TOOLS = {
    "package": "make one folder of a trained model",
    "translate": "translate raw text with such a folder",
    "serve": "translate over HTTP",
    "watch": "show how models write a translation, step by step",
    "compare": "compare models on a text: quality, decoder calls and time side by side",
    "compile": "compile the operators in C++, with which CPUs decode faster",
    "export": "write an autoregressive Transformer as a model of CTranslate2",
    "options": "list tasks, architectures and every option, with defaults",
}
#: Commands of fairseq, with --user-dir set.
FAIRSEQ = ("generate", "interactive", "validate", "eval-lm", "preprocess")
WITHOUT_USER_DIR = ("preprocess",)


def main() -> None:
    words, verbose = take_verbose(sys.argv[1:])
    name, *words = words or ["--help"]
    command = f"amlp-fairseq {name}"
    with one_line_errors(command), clear_endings(command, at_once=name == "train"), readable(name, verbose):
        run(name, words)


def run(name: str, words: list[str]) -> None:
    """Run a command with its arguments."""
    if name in ("-h", "--help"):
        print(usage(), end="")
        return
    if name == "path":
        print(PLUGIN)
        return
    try:
        refuse_unknown([name], [*RECIPES, *TOOLS, *FAIRSEQ, "path"], "amlp-fairseq")
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"amlp-fairseq {name}", *words]
    for folder, names in (("recipes", RECIPES), ("cli", TOOLS)):
        if name in names:
            import_module(f"amlp_fairseq.{folder}.{name}").main()
            return
    if name not in WITHOUT_USER_DIR:
        sys.argv[1:1] = ["--user-dir", str(PLUGIN)]
    import_module(f"fairseq_cli.{name.replace('-', '_')}").cli_main()


def usage() -> str:
    """The text of ``--help``."""
    commands = [*RECIPES.items(), *TOOLS.items(), ("path", "print the folder of the plugin, for --user-dir")]
    lines = [f"  {name:<12}{text}" for name, text in commands]
    lines.append(f"  {', '.join(FAIRSEQ)}: fairseq's commands, with --user-dir set")
    return f"{__doc__}" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
