"""Command lines: one kind of parser, whose errors are one line that names the nearest right thing."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from amlp_fairseq.common.renamed_options import with_present_flags

#: The value of --user-dir.
PLUGIN = Path(__file__).parents[1]
#: More choices than these are not listed.
MOST_CHOICES = 20
#: More names than these are not listed.
MOST_NAMES = 100
#: Names of an option in other programs, and what to give here: the first of which the command has the option.
SPELLINGS: dict[str, tuple[str, ...]] = {
    name: ways
    for names, ways in {
        "--int8 --quantize --quantization": ("--decode-dtype int8",),
        "--fp16 --half --float16": ("--fp16", "--decode-dtype float16"),
        "--bf16 --bfloat16": ("--bf16", "--decode-dtype bfloat16"),
        "--dtype --precision --compute-type": ("--decode-dtype",),
        "--threads --num-threads --cpu-threads --nthreads": ("OMP_NUM_THREADS=N in front of the command",),
        "--workers --num-workers --processes": ("--workers", "--num-workers", "--jobs"),
        "--gpu --gpus --cuda --use-cuda": ("--device cuda",),
        "--no-cuda --no-gpu": ("--device cpu",),
        "--beams --beam-size --num-beams": ("--beam",),
        "--length-penalty --len-penalty --alpha": ("--lenpen",),
        "--n-best --num-hypotheses": ("--nbest",),
        "--iterations --max-iter --max-iterations": ("--iter-decode-max-iter",),
        "--batch --batch-size --max-sentences --max-batch-size": ("--batch-size", "--max-tokens"),
        "--alignment --alignments --align": ("--print-alignment",),
        "--json": ("--jsonl",),
        "--path --model-path --model-dir --checkpoint": ("--model", "--path", "--restore-file"),
        "--in --infile --file": ("--input", "--inputs"),
        "--out --outfile --output --out-dir --output-dir": ("--output", "--out", "--save-dir"),
        "--save --save-path --checkpoint-dir": ("--save-dir", "--out"),
        "--epochs --num-epochs --num-train-epochs": ("--max-epoch",),
        "--steps --max-steps --train-steps --updates --num-updates": ("--max-update",),
        "--learning-rate": ("--lr",),
        "--warmup --warmup-steps": ("--warmup-updates",),
        "--accumulate --accum-count --gradient-accumulation-steps": ("--update-freq",),
        "--resume --resume-from": ("--restore-file",),
        "--pretrained --init-from": ("--finetune-from-model",),
        "--src --src-lang --source": ("--source-lang", "--source"),
        "--tgt --trg --tgt-lang --trg-lang --target": ("--target-lang",),
        "--ref --references": ("--reference",),
        "--split --gen-subset --test-set": ("--subset", "--gen-subset"),
        "--serve --server": ("amlp-fairseq serve --port N",),
        "--vocab --vocabulary-size --bpe-size": ("--vocab-size",),
    }.items()
    for name in names.split()
}

#: Options that are gone, and what there is now.
GONE = {
    "--freeze-encoder": "models that draft train their encoders, too, for they draft better then: leave it out",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if there is one. Dashes at the beginning make nothing alike."""
    bare = {each.lstrip("-"): each for each in known}
    return next((bare[each] for each in difflib.get_close_matches(name.lstrip("-"), bare, n=1, cutoff=0.65)), None)


def flags_of(words: Iterable[str]) -> list[str]:
    """The flags among the words of a command line, without values: ``--beam`` of ``--beam=4``."""
    return [word.split("=")[0] for word in words if word.startswith("--")]


def among(words: Iterable[str], names: Collection[str]) -> list[str]:
    """The options of a list, ``-s`` too, that are given on a command line; sorted."""
    return sorted({word.split("=")[0] for word in words}.intersection(names))


def split_options(
    words: Sequence[str], options: Iterable[str] | Mapping[str, Callable[[str], Any]], switches: Iterable[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """The values of some options of a command line, and the words without them.

    Args:
        options: that have a value, with its type if it is not a string; ``"--source-lang -s"`` has two names. Their
            values are None where they are not given.
        switches: options without a value.
    """
    parser = Parser(add_help=False, allow_abbrev=False)
    for names, kind in (options if isinstance(options, Mapping) else dict.fromkeys(options, str)).items():
        parser.add_argument(*names.split(), type=kind)
    for name in switches:
        parser.add_argument(name, action="store_true")
    return parser.parse_known_args(words)


def without(words: Sequence[str], options: Iterable[str], switches: Iterable[str] = ()) -> list[str]:
    """A command line without some options: those that have a value, and those that have none."""
    return split_options(words, options, switches)[1]


def instead(flag: str, known: Collection[str]) -> str | None:
    """The flag to give for one that a command lacks: the same option under its name here, or the nearest name."""
    if flag not in SPELLINGS:
        return nearest(flag, known)
    return next((way for way in SPELLINGS[flag] if not way.startswith("--") or way.split()[0] in known), None)


class StoreOnce(argparse._StoreAction):
    """argparse's own action, which refuses an option that is given twice if it has several values or is a file or
    folder: the last would win. Others may be given again, after those of a script."""

    #: The way out where a second file or folder is given.
    give_one = "give one"

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        several = self.nargs not in (None, "?")
        before = getattr(namespace, self.dest)
        if option and (several or isinstance(values, Path)) and before is not self.default:
            way = "name all its values behind one" if several else f"{before} and {values}; {self.give_one}"
            parser.error(f"{option} is given twice: {way}")
        super().__call__(parser, namespace, values, option)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the nearest name, and status 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse's own, which takes former names of options."""
        return super().parse_known_args(with_present_flags(sys.argv[1:] if args is None else args), namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        choice = re.match(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from", message)
        if unknown:
            message = self._unrecognized(unknown.group(1).split())
        elif choice:
            message = self._invalid_choice(choice.group(1).split("/")[0], choice.group(2))
        elif message.startswith("the following arguments are required: "):
            message += self._swallowed() or f"; usage: {self._shortest()}"
        self.exit(2, f"{self.prog}: {message} (all options: {self.prog} --help)\n")

    def unknown(self, flag: str, others: Iterable[str] = ()) -> str:
        """Error text for a flag that this parser does not have, and that is not one of the others that the command
        takes."""
        if flag in GONE:
            return f"{flag} is gone; {GONE[flag]}"
        near = instead(flag, [*flags_of(self._option_string_actions), *others])
        hint = f"did you mean {near}?" if near and near.startswith("--") else f"give {near}"
        return f"{flag} is unknown" + (f"; {hint}" if near else "")

    def _unrecognized(self, words: list[str]) -> str:
        flags = flags_of(words)
        return self.unknown(flags[0]) if flags else f"{words[0]!r} is one argument too many"

    def _swallowed(self) -> str:
        """The options of the command line that may have taken the arguments that are missing."""
        many = [flag for action in self._actions if action.nargs == "+" for flag in action.option_strings]
        given = [flag for flag in many if flag in sys.argv]
        return f"; they come before {', '.join(given)}, which takes all words behind it" if given else ""

    def _shortest(self) -> str:
        """The command line with what is required alone."""
        needed = [action for action in self._actions if action.required]
        formatter = argparse.HelpFormatter(self.prog, width=1000)
        formatter.add_usage(None, needed, [], prefix="")
        return formatter.format_help().strip()

    def _invalid_choice(self, flag: str, given: str) -> str:
        known = [str(name) for name in self._option_string_actions[flag].choices or ()]
        near = nearest(given, known)
        hint = f"; did you mean {near}?" if near else ""
        if not near and len(known) <= MOST_CHOICES:
            hint = f"; known: {', '.join(known)}"
        return f"{flag} {given!r} is unknown{hint}"


def command_parser(name: str, text: str | None) -> Parser:
    """The parser of ``amlp-fairseq NAME``, with its module's docstring as help."""
    return Parser(
        prog=f"amlp-fairseq {name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_device(parser: argparse.ArgumentParser, default: str | None, text: str, **more: Any) -> None:
    """``--device``, and ``--cpu``, as fairseq has it, for ``--device cpu``."""
    parser.add_argument("--device", default=default, help=text, **more)
    parser.add_argument("--cpu", dest="device", action="store_const", const="cpu", help=argparse.SUPPRESS)


def fairseqs_device(device: str | None) -> list[str]:
    """The options of a command of fairseq for a device. Without one it takes all GPUs that it sees.

    Raises:
        ValueError: for what is neither ``cpu`` nor ``cuda``.
    """
    if device in (None, "cuda"):
        return []
    if device != "cpu":
        way = "; CUDA_VISIBLE_DEVICES=N in front of the command selects a GPU"
        raise ValueError(f"--device {device}: give cpu or cuda{way if str(device).startswith('cuda:') else ''}")
    return ["--cpu"]


def as_fairseq_has_it(words: Sequence[str]) -> list[str]:
    """A command line of fairseq that may have ``--device``."""
    given, rest = split_options(words, ["--device"])
    return [*rest, *fairseqs_device(given.device)]


def say_next(*words: object) -> None:
    """Name the command of ``amlp-fairseq`` that comes next, on standard error."""
    say_next_line(f"amlp-fairseq {shlex.join(map(str, words))}")


def say_next_line(line: str) -> None:
    """Name the next command, as a shell takes it."""
    print(f"next: {line}", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 is needed")
    return int(text)


#: Characters that a folder's name must not have.
WITHOUT_COLON = "choose a name without ':', at which fairseq splits paths"


def folder(text: str) -> Path:
    """A folder that will be written, and named on a command line of fairseq."""
    if ":" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: {WITHOUT_COLON}")
    return Path(text)


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], where: str, line: Callable[[str], str] = lambda name: ""
) -> None:
    """Raise ValueError that names what is not known, the nearest that is, and the line that ``line`` gives."""
    known = list(known)
    for name in given:
        if name not in known:
            near = nearest(str(name), known)
            listed = f"; known: {', '.join(known)}" if len(known) <= MOST_NAMES else ""
            hint = f"; did you mean {near!r}?" if near else listed
            raise ValueError(f"{where}: {name!r} is unknown{hint}{line(name)}")


def parse_with_fairseqs(
    parser: Parser,
    known_flags: Callable[[], Collection[str]],
    accepted: Callable[[argparse.Namespace], Iterable[str]] = lambda args: (),
    forward_device: bool = False,
) -> tuple[argparse.Namespace, list[str]]:
    """The options that a command's own parser reads, and the words that it leaves to a command of fairseq. A flag that
    neither can have ends the command as the parser's errors do.

    Args:
        parser: of the command.
        known_flags: the flags, without dashes, of all that fairseq has: ``compat.flags.known_flags``.
        accepted: the flags of fairseq that the command takes, which may be suggested.
        forward_device: give the parser ``--device``, and the words what fairseq has for it.
    """
    if forward_device:
        add_device(parser, None, "cpu or cuda (default: cuda, if there is one)")
    args, rest = parser.parse_known_args()
    if forward_device:
        rest += fairseqs_device(args.device)
    flags = flags_of(rest)
    if flags and "--user-dir" not in flags:  # which brings others
        for flag in flags:
            if flag.removeprefix("--") not in known_flags():
                others: Iterable[str] = ()
                with suppress(ValueError):  # of another mistake
                    others = accepted(args)
                parser.error(parser.unknown(flag, others))
    return args, rest
