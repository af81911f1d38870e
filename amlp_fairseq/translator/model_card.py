"""The model card, README.md of a model folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from amlp_fairseq.recipes.metrics import METRICS, metric_of
from amlp_fairseq.recipes.results import markdown, read_results
from amlp_fairseq.translator.model_folder import CARD, is_model_folder, read_config
from amlp_fairseq.translator.translator import Translator

SCORES = "## Scores"
OTHERS = "Those of the model folder that it was made of:"


def card(translator: Translator, name: str, run: Path) -> str:
    """What the model is, how to use it, and its scores.

    Args:
        translator: the loaded model.
        name: of its folder.
        run: the folder that it was made of: of a training, where ``amlp-fairseq evaluate`` may have been run, or of a
            model.
    """
    config = read_config(translator.folder)
    source, target = translator.languages
    order = getattr(translator.task, "order", None)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
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
        "decoding": ", ".join(f"{option} {value}" for option, value in config["decoding"].items())
        or "fairseq's defaults",
    }
    lines = [f"# {name}", "", f"Translates {source} to {target}. Made by `amlp-fairseq package`.", ""]
    lines += ["```", f"amlp-fairseq translate --model {shlex.quote(name)} < text.{source} > text.{target}", "```", ""]
    lines += ["| | |", "|---|---|", *(f"| {fact} | {value} |" for fact, value in facts.items()), ""]
    lines += scores(run)
    return "\n".join(lines)


def scores(run: Path) -> list[str]:
    """A table of the results of a training, or the scores in the card of a model folder."""
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
    return [SCORES, "", markdown([*columns], rows), "", f"{metric.title}: `{'`, `'.join(signatures)}`", ""]
