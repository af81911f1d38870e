"""The model card, README.md of a model folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from amlp_fairseq.common.metrics import METRICS, metric_of
from amlp_fairseq.compat.internals import TranslationLevenshteinTask
from amlp_fairseq.model_folder.config import CARD, is_model_folder, read_config
from amlp_fairseq.training.results import markdown, read_results
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.translator import Translator

SCORES = "## Scores"
#: By what a hypothesis' score is divided, by ``--length-penalty``; the end symbol counts.
FORMULAS = {"fairseq": "length^lenpen", "gnmt": "((5 + length) / 6)^lenpen"}
OTHERS = "Scores of the model folder that it was made of:"


def card(translator: Translator, name: str, run: Path) -> str:
    """A description of the model, its use, and its scores.

    Args:
        translator: the loaded model.
        name: of its folder.
        run: the folder that it was made of: of a training, where ``amlp-fairseq evaluate`` may have been run, or of a
            model.
    """
    config = read_config(translator.folder)
    source, target = translator.languages
    order = getattr(translator.pytorch().task, "order", None)
    parameters = sum(parameter.numel() for parameter in translator.pytorch().model.parameters())
    facts: dict[str, Any] = {
        "model": config["model"]["_name"],
        "task": config["task"]["_name"],
        **({"order of generation": f"h = {order.num_directions}, c = {order.words_per_direction}"} if order else {}),
        "languages": f"{source} to {target}",
        "parameters": f"{parameters:,}",
        "weights": config["weights"],
        "updates": config["updates"],
        "text": ", ".join(filter(None, (config["text"].get("tokenizer"), config["text"].get("post_process"))))
        or "words",
        "decodes in": decode_dtype(translator),
        "decoding": decoding(translator),
        "longest sentence": f"{translator.max_length} pieces, longer ones are cut",
    }
    table = ["| | |", "|---|---|", *(f"| {fact} | {value} |" for fact, value in facts.items()), ""]
    return "\n".join([*_title(translator, name), *table, *scores(run, config["weights"])])


def card_of_ensemble(translator: Translator, name: str) -> str:
    """The same for models that decode as one: each has a card of its own."""
    cards = ", ".join(f"[{folder.name}]({folder.name}/{CARD})" for folder in translator.folders)
    about = f"{len(translator.folders)} models decode as one, with the mean of their probabilities: {cards}."
    return "\n".join([*_title(translator, name), about, ""])


def _title(translator: Translator, name: str) -> list[str]:
    source, target = translator.languages
    use = f"amlp-fairseq translate --model {shlex.quote(name)} < text.{source} > text.{target}"
    about = f"Translates {source} to {target}. Made by `amlp-fairseq package`."
    return [f"# {name}", "", about, "", "```", use, "```", ""]


def decode_dtype(translator: Translator) -> str:
    """The type of the weights when a model decodes, whatever machine the card is made on."""
    config = read_config(translator.folder)
    if (given := config["decoding"].get("decode_dtype")) is not None:
        return str(given)
    int8 = config["weights"] == "int8" and decoding_options.quantisable(
        translator.pytorch().task, translator.pytorch().model
    )
    return "int8 on CPUs, float32 on GPUs" if int8 else "float32"


def decoding(translator: Translator) -> str:
    """The search, its ranking of hypotheses, and further settings of the folder."""
    task, generation = translator.pytorch().task, translator.pytorch().cfg.generation
    parts = []
    if isinstance(task, TranslationLevenshteinTask):
        said = {"iter_decode_max_iter", "iter_decode_with_beam"}
        parts.append(f"at most {generation.iter_decode_max_iter + 1} decoder calls")
        parts.append(f"tries {generation.iter_decode_with_beam} lengths")
    else:
        said = {"beam", "lenpen", "length_penalty", "unnormalized", "max_len_a", "max_len_b"}
        source = f"{generation.max_len_a:g} times the source's + " if generation.max_len_a else ""
        penalty = _length_penalty(generation, str(getattr(task.cfg, "length_penalty", "fairseq")))
        parts += [f"beam {generation.beam}", penalty, f"at most {source}{generation.max_len_b} pieces"]
    others = read_config(translator.folder)["decoding"].items()
    parts += [f"{option} {value}" for option, value in others if option not in said | {"decode_dtype"}]
    return ", ".join(parts)


def _length_penalty(generation: DictConfig, kind: str) -> str:
    """The length penalty with the formula by which it divides."""
    if generation.unnormalized:
        return "no length penalty"
    return f"lenpen {generation.lenpen:g} (length penalty {kind}: score / {FORMULAS[kind]})"


def scores(run: Path, weights: str) -> list[str]:
    """A table of the results of a training, or the scores in the card of a model folder.

    Args:
        run: the folder of either.
        weights: the type in which they are stored now.
    """
    results, other = run / "results.jsonl", run / CARD
    found = read_results(results) if results.is_file() else []
    if not found:
        if is_model_folder(run) and other.is_file():
            section = other.read_text(encoding="utf-8").partition(f"\n{SCORES}\n")[2].split("\n## ")[0]
            if section := section.strip().removeprefix(OTHERS).strip():
                return [SCORES, "", OTHERS, "", section, ""]
        return ["It has no scores: `amlp-fairseq evaluate` had not been run where it was made.", ""]
    last = {(row.get("subset"), row.get("decoding")): row for row in found}.values()
    name = metric_of(found[-1])
    metric = METRICS[name]
    columns = {"test set": "subset", "decoding": "decoding", **metric.columns, "calls": "steps_per_sentence"}
    rows = [[row.get(field, "") for field in columns.values()] for row in last]
    signatures = sorted({row[f"{name}_signature"] for row in last if f"{name}_signature" in row})
    rounded = [] if weights == "float32" else [f"Measured before the weights were rounded to {weights}.", ""]
    signature = f"{metric.title}: `{'`, `'.join(signatures)}`"
    return [SCORES, "", markdown([*columns], rows), "", signature, "", *rounded]
