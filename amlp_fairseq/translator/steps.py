"""The steps of a translation: what was written in which decoder call, for every system of the plugin.

The words stand in reading order from the first step on, which is known afterwards: an order of generation gives every
word its place when the length is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.text import sentences
from amlp_fairseq.translator.translator import Translator

WRITE, MASK, DRAFT = "write", "mask", "draft"


@dataclass(frozen=True)
class Step:
    """A decoder call, or what happens before one: what iterative refinement masks, or what is drafted.

    Attributes:
        call: the number of the decoder call, from 1; of a masking or a draft that of the call behind it.
        kind: ``write``, ``mask`` or ``draft``.
        words: the piece at each place; None where it is missing.
        probabilities: of the pieces; None where they are missing, or unknown.
        places: those written, masked or drafted in this step, ascending; of an iteration those that are new or differ.
        ends: whether the end of the sentence was written.
    """

    call: int
    kind: str
    words: tuple[str | None, ...]
    probabilities: tuple[float | None, ...]
    places: tuple[int, ...]
    ends: bool

    @property
    def time(self) -> float:
        """Decoder calls that have been made; what is not a call comes half a call after the last one."""
        return self.call if self.kind == WRITE else self.call - 0.5


@dataclass(frozen=True)
class Decoding:
    """A translation with the steps that led to it.

    Attributes:
        name: of the model folder.
        system: how it decodes, for people.
        languages: source, target.
        sentence: what was translated.
        source: the pieces that the model read.
        text: the translation.
        calls: decoder calls.
        steps: what happened, at least one step.
        directions: which one wrote each place, from 0; empty for iterative refinement.
        arrows: a name for each direction: ``→`` for those that write in reading order, ``←`` for the others.
        attention: of each place over the source pieces and the end symbol; None for models without such weights.
    """

    name: str
    system: str
    languages: tuple[str, str]
    sentence: str
    source: tuple[str, ...]
    text: str
    calls: int
    steps: tuple[Step, ...]
    directions: tuple[int, ...] = ()
    arrows: tuple[str, ...] = ()
    attention: tuple[tuple[float, ...], ...] | None = None


def load(folder: Path, **options: Any) -> Translator:
    """A model that keeps what :func:`decode` shows.

    Args:
        folder: of the model.
        options: decoding options and ``split_sentences``, see ``Translator``.

    Raises:
        ValueError: as ``Translator``, and for options under which words have no place.
    """
    config = read_config(folder)
    if {**config["decoding"], **options}.get("deduplicate_ngrams"):
        raise ValueError("--deduplicate-ngrams removes words that were written: --deduplicate-ngrams=0 shows them all")
    if config["task"]["_name"] == "translation_cmlmc":
        options["retain_iter_history"] = True
    elif (
        config["task"]["_name"] == "translation_interleaved"
        and config["model"].get("decoder_cross_attention_type", "softmax") == "softmax"
    ):
        options["print_alignment"] = "soft"  # others have no weights
    return Translator(folder, long="refuse", backend="pytorch", **options)


def decode(translator: Translator, text: str) -> Decoding:
    """Translate a text and say how.

    Args:
        translator: from :func:`load`.
        text: a sentence; or any text, for a model that does not split texts into sentences.

    Raises:
        ValueError: if the text is empty, several sentences or too long, or the order in which the model's task writes
            is not known.
    """
    pieces = translator.text.encode(text)
    count = len(pieces.split())
    if not pieces:
        raise ValueError("the sentence is empty")
    parts = [part for part, _ in sentences.split(text, translator.languages[0]) if part]
    if translator.split_sentences and len(parts) > 1:
        raise ValueError(
            f"these are {len(parts)} sentences, which {translator.folder} translates one by one: give one, such as "
            f"{parts[0]!r}, or --no-split-sentences"
        )
    if count > translator.max_length:
        raise ValueError(f"the sentence has {count} pieces, {translator.folder} reads at most {translator.max_length}")
    model = translator.pytorch()
    best = model.search({}, translator.languages).hypotheses([pieces])[0][0]
    names = model.task.target_dictionary.symbols
    words = tuple(names[token] for token in best["tokens"].tolist()[:-1])
    found: dict[str, Any] = {
        "name": translator.folder.resolve().name,
        "languages": translator.languages,
        "sentence": " ".join(text.split()),
        "source": tuple(pieces.split()),
        "text": translator.text.decode(model.task.target_dictionary.string(best["tokens"].int().cpu())),
    }
    if "history" in best:
        steps = _iterations(best["history"], names)
        system = "iterative refinement: all words at once, then the doubtful ones again"
        return Decoding(**found, system=system, calls=steps[-1].call, steps=steps)
    order = getattr(model.task, "order", None)
    if order is None:
        if model.task.cfg._name != "translation":
            raise ValueError(f"{translator.folder}: --task {model.task.cfg._name} does not say in what order it writes")
        order = GenerationOrder(1, 1)
    attention, probabilities = best["attention"], best["positional_scores"].exp().tolist()
    system, written = describe(order), _in_order(words, probabilities, order)
    if "drafts" in best:
        drafts = [([names[word] for word in draft], right) for draft, right in best["drafts"]]
        system, written = "draft and verify: a call checks several words", _verified(words, probabilities, drafts)
    return Decoding(
        **found,
        system=system,
        calls=written[-1].call,
        steps=written,
        directions=tuple((order.slots(len(words)) % order.num_directions).tolist()),
        arrows=_arrows(order),
        attention=tuple(map(tuple, attention.t()[:-1].tolist())) if attention is not None and len(attention) else None,
    )


def moments(decodings: Sequence[Decoding]) -> list[float]:
    """The times, in decoder calls, at which something happens in any of them."""
    return sorted({step.time for decoding in decodings for step in decoding.steps})


def at(decoding: Decoding, time: float) -> Step | None:
    """The last step at a time; None before the first one."""
    return next((step for step in reversed(decoding.steps) if step.time <= time), None)


def describe(order: GenerationOrder) -> str:
    """An order of generation, for people."""
    h, c = order.num_directions, order.words_per_direction
    if order.left_to_right:
        return "autoregressive: one word a call, from left to right"
    if h == 1:
        return f"semi-autoregressive: {c} words a call, from left to right"
    origin = "the middle" if order.middle_to_side else "both ends"
    if h > 2:
        origin += f" of {h // 2} parts"
    if c == 0:
        return f"bidirectional: one word a call, from {origin} by turns"
    return f"interleaved: {order.words_per_step} words a call, from {origin}"


def _arrows(order: GenerationOrder) -> tuple[str, ...]:
    segments = max(order.num_directions // 2, 1)
    return tuple(
        ("→" if order.reads_forward(direction) else "←") + (str(direction % segments + 1) if segments > 1 else "")
        for direction in range(order.num_directions)
    )


def _in_order(words: tuple[str, ...], probabilities: list[float], order: GenerationOrder) -> tuple[Step, ...]:
    """The steps of words in reading order, which were written in an order of generation."""
    z, count = order.words_per_step, len(words)
    slots = order.slots(count).tolist()
    steps = []
    for call in range(1, count // z + 2):
        known = [slot < call * z for slot in slots]
        steps.append(
            Step(
                call,
                WRITE,
                tuple(word if seen else None for word, seen in zip(words, known, strict=True)),
                tuple(value if seen else None for value, seen in zip(probabilities[:count], known, strict=True)),
                tuple(place for place, slot in enumerate(slots) if slot // z == call - 1),
                ends=count < call * z,
            )
        )
    return tuple(steps)


def _verified(
    words: tuple[str, ...], probabilities: list[float], drafts: list[tuple[list[str], int]]
) -> tuple[Step, ...]:
    """The steps of words whose drafts were verified: for each call what was drafted, and how many words were right."""
    count, steps, done = len(words), [], 0
    for call, (draft, right) in enumerate(drafts, 1):
        known, certain = words[:done], tuple(probabilities[:done])
        if shown := draft[: count - done]:
            missing = (None,) * (count - done - len(shown))
            places = tuple(range(done, done + len(shown)))
            unknown = (None,) * (count - done)
            steps.append(Step(call, DRAFT, (*known, *shown, *missing), (*certain, *unknown), places, ends=False))
        before, done = done, min(done + right + 1, count)
        missing = (None,) * (count - done)
        known, certain = words[:done], tuple(probabilities[:done])
        ends = before + right == count
        steps.append(Step(call, WRITE, (*known, *missing), (*certain, *missing), tuple(range(before, done)), ends))
    return tuple(steps)


def _iterations(history: list[dict[str, Any]], names: Sequence[str]) -> tuple[Step, ...]:
    """The steps of iterative refinement, without end symbols. What was written has scores, what was read has none."""
    steps: list[Step] = []
    call = 0
    before: list[str | None] = [None] * (len(history[0]["tokens"]) - 1)
    certain: list[float | None] = [None] * len(before)
    for entry in history:
        words = [names[token] for token in entry["tokens"].tolist()[:-1]]
        differing = tuple(place for place, word in enumerate(words) if word != before[place])
        if "scores" in entry:
            call += 1
            before = [*words]
            certain = [None if math.isnan(score) else math.exp(score) for score in entry["scores"].tolist()[:-1]]
            steps.append(Step(call, WRITE, tuple(before), tuple(certain), differing, ends=False))
        elif call > 0 and differing:
            for place in differing:
                before[place] = certain[place] = None
            steps.append(Step(call + 1, MASK, tuple(before), tuple(certain), differing, ends=False))
    return tuple(steps)
