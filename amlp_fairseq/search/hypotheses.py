"""Finished hypotheses, which searches put together in host memory: on a GPU, one by one, that would take longest."""

from __future__ import annotations

from typing import Any

import torch


def move(hypotheses: list[dict[str, Any]], device: torch.device) -> None:
    """Move ``tokens``, ``positional_scores``, ``score`` and ``attention`` from host memory to a device, those of all
    hypotheses in one copy.

    Tensors made in inference mode, which could not be changed in place, become ordinary ones.
    """
    if not hypotheses:
        return
    lengths = [len(each["tokens"]) for each in hypotheses]
    tokens, scores = (
        torch.cat([each[name] for each in hypotheses]).to(device).split(lengths)
        for name in ("tokens", "positional_scores")
    )
    totals = torch.stack([each["score"] for each in hypotheses]).to(device).unbind()
    for index, each in enumerate(hypotheses):
        each |= {"tokens": tokens[index], "positional_scores": scores[index], "score": totals[index]}
        if each["attention"] is not None:
            each["attention"] = each["attention"].to(device, copy=True)
