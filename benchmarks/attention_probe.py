"""What the attentions of a CMLMC decoder do on the validation set, one line of JSON for each.

    python -m benchmarks.attention_probe DATA CHECKPOINT … [--untrained] [--sentences 64]

DATA is a folder of amlp-fairseq prepare. ``--untrained``: the checkpoint's model with new weights, as before training.

``between_positions``   share of the output's energy that differs between the positions of a sentence: 0 if all words
                        have the same output
``activation_entropy``  AMLP: entropy of σ₁ (Eq. 8), relative to log c, that of a uniform distribution
``map_entropy``         AMLP-PQuery: the same for the weights that a position gives to the keys, σ₁(QL) softmax(LᵀKᵀ)
``query_gradient``      norm of the loss's gradient with respect to the query projection
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from torch import Tensor

from amlp_fairseq.attention.amlp import AMLP, AMLPPQuery
from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.common.arguments import positive
from amlp_fairseq.models.cmlmc import CMLMCTransformerModel


def between_positions(x: Tensor, words: Tensor) -> float:
    """For vectors (B, H, n, d) at the words (B, n): the share of their squared norms that is not due to their mean."""
    mask = words[:, None, :, None]
    mean = (x * mask).sum(dim=2, keepdim=True) / mask.sum(dim=2, keepdim=True)
    return float((((x - mean) * mask) ** 2).sum() / ((x * mask) ** 2).sum())


def relative_entropy(weights: Tensor, outcomes: Tensor | int) -> float:
    """Mean entropy of distributions (…, k), relative to the largest possible one, the logarithm of ``outcomes``."""
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(dim=-1)
    return float((entropy / torch.as_tensor(outcomes).log()).mean())


def observe(attention: MultiHeadAttention, found: dict[str, float]) -> None:
    """Make the attention write its measurements into ``found`` whenever it is called."""
    read = attention.attend

    def observed(q: Tensor, memory: Any, padding_mask: Tensor | None = None, **options: Any) -> Any:
        out, weights = read(q, memory, padding_mask, **options)
        with torch.no_grad():
            words = q.new_ones(len(q), q.size(2)).bool() if padding_mask is None else ~padding_mask
            found["between_positions"] = between_positions(out, words)
            if isinstance(attention, AMLP):
                l_t, _ = attention.adaptive_weights(q, memory, padding_mask)
                activations = attention.activation(q @ (l_t * attention.scaling).mT)
                at_words = activations.transpose(1, 2)[words]
                found["activation_entropy"] = relative_entropy(at_words, at_words.size(-1))
                if isinstance(attention, AMLPPQuery):
                    k = memory["k"]
                    bias = memory.get("bias", k.new_zeros(len(k), 1, 1, k.size(2)))
                    scores = attention.pool_scaling * l_t @ k.mT + bias
                    maps = (activations @ scores.softmax(dim=-1)).transpose(1, 2)[words]
                    lengths = bias[:, 0].eq(0).sum(dim=2, keepdim=True).expand(*words.shape, q.size(1))[words]
                    found["map_entropy"] = relative_entropy(maps, lengths)
        return out, weights

    attention.attend = observed  # type: ignore[method-assign, assignment]


def probe(data: Path, checkpoint: Path, untrained: bool, sentences: int) -> list[dict[str, Any]]:
    """One line for each attention of the decoder that is not causal self-attention."""
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    if not isinstance(models[0], CMLMCTransformerModel):
        sys.exit(f"{checkpoint} is not of a CMLMC model")
    task.load_dataset("valid")
    torch.manual_seed(1)
    model = (task.build_model(cfg.model) if untrained else models[0]).eval()
    criterion = task.build_criterion(cfg.criterion)
    attentions: dict[str, tuple[Any, dict[str, float]]] = {
        name: (module, {})
        for name, module in model.decoder.named_modules()
        if isinstance(module, MultiHeadAttention) and module.spec.pattern != "causal self"
    }
    for module, found in attentions.values():
        observe(module, found)
    dataset = task.datasets["valid"]
    sample = task._with_start(dataset.collater([dataset[i] for i in range(min(sentences, len(dataset)))]))
    sample["prev_target"] = task.inject_noise(sample["target"])
    # A new model has had no updates and thus no correction loss: leave it out for checkpoints, too.
    model.correction_starts = -1
    criterion(model, sample)[0].backward()
    return [
        {
            "system": checkpoint.parent.name,
            "trained": not untrained,
            "attention": name,
            **{key: round(value, 4) for key, value in found.items()},
            "query_gradient": round(float(module.q_proj.weight.grad.norm()), 4),
        }
        for name, (module, found) in attentions.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--sentences", type=positive, default=64, help="at most (default: %(default)s)")
    args = parser.parse_args()
    for checkpoint in args.checkpoints:
        for line in probe(args.data, checkpoint, args.untrained, args.sentences):
            print(json.dumps(line))


if __name__ == "__main__":
    main()
