"""The model card, README.md of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from amlp_fairseq.translator.model_folder import read_config
from amlp_fairseq.translator.translator import Translator

#: What of a result stands in the card, and under which name.
COLUMNS = {"subset": "test set", "decoding": "decoding", "bleu": "BLEU", "chrf": "chrF", "steps_per_sentence": "calls"}


def card(translator: Translator, results: Path) -> str:
    """What the model is, how to use it, and its scores.

    Args:
        translator: the loaded model.
        results: a file of ``amlp-fairseq evaluate``; it need not exist.
    """
    config, name = read_config(translator.folder), translator.folder.name
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
    lines += ["```", f"amlp-fairseq translate --model {name} < text.{source} > text.{target}", "```", ""]
    lines += ["| | |", "|---|---|", *(f"| {fact} | {value} |" for fact, value in facts.items()), ""]
    lines += scores(results)
    return "\n".join(lines)


def scores(results: Path) -> list[str]:
    """A table of the results of this training."""
    if not results.is_file():
        return ["It has no scores: `amlp-fairseq evaluate` had not been run where it was made.", ""]
    found = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    last = {(row["subset"], row["decoding"]): row for row in found}.values()
    rows = [[*COLUMNS.values()], ["---"] * len(COLUMNS)]
    rows += [[str(row.get(column, "")) for column in COLUMNS] for row in last]
    signatures = sorted({row["bleu_signature"] for row in last})
    return ["## Scores", "", *(f"| {' | '.join(row)} |" for row in rows), "", f"BLEU: `{'`, `'.join(signatures)}`", ""]
