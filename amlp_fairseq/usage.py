"""Command lines: one kind of parser, whose errors are one line that names the nearest right thing."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: More choices than these are not listed.
MOST_CHOICES = 20


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if there is one."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def flags_of(words: Iterable[str]) -> list[str]:
    """The flags among the words of a command line, without values: ``--beam`` of ``--beam=4``."""
    return [word.split("=")[0] for word in words if word.startswith("--")]


def among(words: Iterable[str], names: Collection[str]) -> list[str]:
    """Which of some options, ``-s`` too, are given on a command line; sorted."""
    return sorted({word.split("=")[0] for word in words}.intersection(names))


def without(words: Sequence[str], options: Iterable[str], switches: Iterable[str] = ()) -> list[str]:
    """A command line without some options: those that have a value, and those that have none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in options:
        parser.add_argument(name)
    for name in switches:
        parser.add_argument(name, action="store_true")
    return parser.parse_known_args(words)[1]


class StoreOnce(argparse._StoreAction):
    """argparse's own action, which refuses an option of several values that is given twice: the last would win."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option and self.nargs not in (None, "?") and getattr(namespace, self.dest) is not self.default:
            parser.error(f"{option} is given twice: name all its values behind one")
        super().__call__(parser, namespace, values, option)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the nearest name, and status 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        choice = re.match(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from", message)
        if unknown:
            message = self._unrecognized(unknown.group(1).split())
        elif choice:
            message = self._invalid_choice(choice.group(1).split("/")[0], choice.group(2))
        elif message.startswith("the following arguments are required: "):
            message += self._swallowed()
        self.exit(2, f"{self.prog}: {message} (all options: {self.prog} --help)\n")

    def unknown(self, flag: str, others: Iterable[str] = ()) -> str:
        """What is wrong with a flag that this parser does not have, and that is not one of the others."""
        near = nearest(flag, [*self._option_string_actions, *others])
        return f"{flag} is unknown" + (f"; did you mean {near}?" if near else "")

    def _unrecognized(self, words: list[str]) -> str:
        flags = flags_of(words)
        return self.unknown(flags[0]) if flags else f"{words[0]!r} is one argument too many"

    def _swallowed(self) -> str:
        """Which options of the command line may have taken the arguments that are missing."""
        many = [flag for action in self._actions if action.nargs == "+" for flag in action.option_strings]
        given = [flag for flag in many if flag in sys.argv]
        return f"; they come before {', '.join(given)}, which takes all words behind it" if given else ""

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


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 is needed")
    return int(text)


#: What a folder's name must not have.
WITHOUT_COLON = "choose a name without ':', at which fairseq splits paths"


def folder(text: str) -> Path:
    """A folder that will be written, and named on a command line of fairseq."""
    if ":" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: {WITHOUT_COLON}")
    return Path(text)
