"""Watch models translate a sentence, decoder call by decoder call.

    amlp-fairseq watch --model DIR "A sentence."
    amlp-fairseq watch --model DIR --model DIR2 --delay 1 "A sentence."
    amlp-fairseq watch --model DIR --model DIR2 --html page.html "A sentence."

Several models are shown below each other, in step: the clock is the number of decoder calls, not the time that they
take. New words stand out, missing ones are dots, those that iterative refinement doubts are boxes, and drafts are dim.

Further options are those of fairseq-generate that are about decoding, with an equals sign (--beam=1,
--iter-decode-max-iter=4, ...); they hold for every model, and by default each model decodes with its own. The best
translation is shown.
"""

from __future__ import annotations

import argparse
import math
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from amlp_fairseq.cli.arguments import BEST_ALONE, DEVICES, add_decoding_options, decoding_flags, refuse_details
from amlp_fairseq.common.arguments import add_device, command_parser, parse_with_fairseqs
from amlp_fairseq.compat.flags import known_flags
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.translator import decoding_options, page, steps
from amlp_fairseq.translator.steps import Decoding, Step

#: Colours of directions, in turn.
COLOURS = ("cyan", "magenta", "blue", "yellow")
#: Colours of words in iterative refinement, by the smallest probability.
CONFIDENCE = ((0.9, "green"), (0.5, "yellow"), (0.0, "red"))
MISSING, MASKED = "·", "▒"


def seconds(text: str) -> float:
    """A number from 0 to an hour."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds is needed, 0 to 3600")
    return value


def sentence(text: str) -> str:
    """Valid UTF-8 text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def main() -> None:
    parser = command_parser("watch", __doc__)
    parser.add_argument("sentence", metavar="SENTENCE", type=sentence, help="sentence to translate, in quotes")
    models = {"action": "append", "required": True, "metavar": "DIR", "type": Path}
    parser.add_argument("--model", **models, help="made by amlp-fairseq package; may be given several times")  # type: ignore[arg-type]
    parser.add_argument(
        "--split-sentences",
        action=argparse.BooleanOptionalAction,
        help="--no-split-sentences shows a text of several sentences as a whole",
    )
    parser.add_argument("--delay", type=seconds, default=0.4, metavar="SECONDS", help="between steps (default: 0.4)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the animation, for any browser")
    add_device(parser, "cpu", DEVICES)
    add_decoding_options(parser)
    args, words = parse_with_fairseqs(parser, known_flags, accepted=lambda args: decoding_flags(*args.model))
    if others := [word for word in words if not word.startswith("-")]:
        parser.error(f"{others[0]!r}: one SENTENCE is needed, in quotes, and = between a decoding option and its value")
    if args.html and not args.html.parent.is_dir():
        raise FileNotFoundError(f"--html {args.html}: there is no folder {args.html.parent}")
    decodings = [decoded(folder, args, words) for folder in args.model]
    if args.html:
        args.html.write_text(page.render(decodings), encoding="utf-8")
        print(f"{args.html}: open it in a browser")
        return
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        animate(console, decodings, args.delay)
    else:
        for line in listing(decodings):
            print(line)


def decoded(folder: Path, args: argparse.Namespace, words: list[str]) -> Decoding:
    """A model's translation, decoded with options of the command line."""
    options = decoding_options.parse(words, read_config(folder)["task"]["_name"])
    refuse_details(options, BEST_ALONE)
    model = steps.load(folder, device=args.device, split_sentences=args.split_sentences, **options)
    return steps.decode(model, args.sentence)


def animate(console: Console, decodings: Sequence[Decoding], delay: float) -> None:
    """Show one moment after the other on a terminal, in place."""
    with _signals_wait() as comes_within, Live(console=console, auto_refresh=False) as live:
        for moment in [0.0, *steps.moments(decodings)]:
            live.update(Group(*(panel(decoding, moment) for decoding in decodings)), refresh=True)
            if comes_within(delay):
                break


@contextmanager
def _signals_wait() -> Iterator[Callable[[float], bool]]:
    """The command's own handlers see signals when what is inside has ended, and the cursor is back. Yields a function
    that sleeps for some seconds, or until a signal comes, and says whether one has."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    came: list[int] = []
    read, write = os.pipe()
    os.set_blocking(write, False)
    wakeup = signal.set_wakeup_fd(write)

    def comes_within(seconds: float) -> bool:
        select.select([read], [], [], seconds)
        return bool(came)

    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield comes_within
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(read)
        os.close(write)
    if came:
        signal.raise_signal(came[0])


def panel(decoding: Decoding, moment: float) -> Panel:
    """A model at a moment, in decoder calls."""
    step = steps.at(decoding, moment)
    calls = min(math.floor(moment), decoding.calls)
    body = Text.assemble(_words(decoding, step, moment), "\n", (caption(decoding, step), "dim"))
    return Panel(
        body,
        title=Text.assemble((decoding.name, "bold"), "  ", decoding.system),
        title_align="left",
        subtitle=Text(f"{calls} of {_calls(decoding.calls)}", "bold" if calls == decoding.calls else ""),
        subtitle_align="right",
        border_style="green" if calls == decoding.calls else "dim",
    )


def _words(decoding: Decoding, step: Step | None, moment: float) -> Text:
    """The places of a step in colour, each as wide as its widest word, so that nothing moves; new words stand out for
    the time of a call."""
    result = Text()
    for place in range(len(decoding.steps[-1].words)):
        width = max(cell_len(each.words[place] or "") for each in decoding.steps)
        word = None if step is None else step.words[place]
        new = step is not None and place in step.places and moment < step.time + 1
        if word is None:
            masked = step is not None and not decoding.directions
            piece = Text((MASKED if masked else MISSING) * width, "red" if masked and new else "dim")
        else:
            assert step is not None
            drafted = step.kind == steps.DRAFT and place in step.places
            style = "dim italic" if drafted else f"{'bold reverse ' if new else ''}{_colour(decoding, step, place)}"
            piece = Text(word, style)
        result.append_text(piece)
        result.append(" " * (width - cell_len(piece.plain) + 1))
    return result


def _colour(decoding: Decoding, step: Step, place: int) -> str:
    if decoding.directions:
        return COLOURS[decoding.directions[place] % len(COLOURS)]
    value = step.probabilities[place]
    return "" if value is None else next(colour for least, colour in CONFIDENCE if value >= least)


def caption(decoding: Decoding, step: Step | None) -> str:
    """The events of a step, with the probabilities of the words in percent."""
    if step is None:
        return "reads the source"
    if step.kind == steps.MASK:
        return f"masks the least certain words before call {step.call}: {len(step.places)} of {len(step.words)}"
    if step.kind == steps.DRAFT:
        return f"a draft before call {step.call}: {' '.join(str(step.words[place]) for place in step.places)}"
    if not decoding.directions and not step.places and step.words:
        return f"call {step.call}: keeps every word"
    written = [
        f"{decoding.arrows[decoding.directions[place]] + ' ' if decoding.directions else ''}"
        f"{step.words[place]}{_percent(step.probabilities[place])}"
        for place in step.places
    ]
    return f"call {step.call}: {', '.join([*written, *(['the end'] if step.ends else [])])}"


def _percent(probability: float | None) -> str:
    return "" if probability is None else f" {probability:.0%}"


def listing(decodings: Sequence[Decoding]) -> Iterator[str]:
    """All steps, for files and pipes: new words in brackets, missing ones as dots, masked ones as boxes."""
    for decoding in decodings:
        yield f"{decoding.name}  {decoding.system}"
        for step in decoding.steps:
            missing = MASKED if step.kind == steps.MASK else MISSING
            words = [
                f"[{word}]" if place in step.places and word is not None else word or missing * 3
                for place, word in enumerate(step.words)
            ]
            yield f"  {' '.join(words)}"
            yield f"    {caption(decoding, step)}"
        yield f"  {_calls(decoding.calls)}: {decoding.text}"


def _calls(count: int) -> str:
    return f"{count} decoder call{'s' if count > 1 else ''}"


if __name__ == "__main__":
    main()
