"""Finished hypotheses, which searches assemble in host memory: assembling one by one on a GPU would be slower."""

from __future__ import annotations

from typing import Any

import torch


def move(hypotheses: list[dict[str, Any]], device: torch.device) -> None:
    """Move ``tokens``, ``positional_scores``, ``score`` (each in one copy for all hypotheses) and ``attention`` from
    host memory to a device.

    Tensors made in inference mode, which could not be changed in place, become ordinary ones.
    """
    if not hypotheses:
        return
    lengths = [len(hypothesis["tokens"]) for hypothesis in hypotheses]
    tokens, scores = (
        torch.cat([hypothesis[name] for hypothesis in hypotheses]).to(device).split(lengths)
        for name in ("tokens", "positional_scores")
    )
    totals = torch.stack([hypothesis["score"] for hypothesis in hypotheses]).to(device).unbind()
    for index, hypothesis in enumerate(hypotheses):
        hypothesis |= {"tokens": tokens[index], "positional_scores": scores[index], "score": totals[index]}
        if hypothesis["attention"] is not None:
            hypothesis["attention"] = hypothesis["attention"].to(device, copy=True)
