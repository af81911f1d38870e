"""Targets of benchmarks/decoding.py: speed-ups that are to be reached."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

from amlp_fairseq.evaluation.decoding_times import Row, speed_up

#: The sizes at which the targets are to be reached.
BASE = {"embed_dim": 512, "ffn_embed_dim": 2048, "layers": 6, "heads": 8, "words": 32000}
PRECISIONS = ("float32", "bfloat16", "float16", "int8")


class Comparison(NamedTuple):
    """The speed-ups that count: those with these pairs of precisions, of a system and of its baseline."""

    name: str
    pick: Callable[..., Any]
    pairs: list[tuple[str, str]]


class Target(NamedTuple):
    """A system that should be ``limit`` times as fast as another, at the sizes of BASE and batch size 1; on a CPU with
    2 threads."""

    system: str
    decoding: str
    base: str
    base_decoding: str
    limit: float
    comparison: Comparison
    device: str = "cpu"


FLOAT32, INT8 = (Comparison(name, min, [(name, name)]) for name in ("float32", "int8"))
SAME = Comparison("same precision", min, [(precision, precision) for precision in PRECISIONS])
OVER_FLOAT32, OVER_INT8 = (
    Comparison(f"best precision over {base}", max, [(precision, base) for precision in PRECISIONS])
    for base in ("float32", "int8")
)
TARGETS = [
    Target("ar", "beam 4", "transformer", "beam 4", 2.3, FLOAT32),
    Target("ar", "beam 1", "transformer", "beam 1", 2.3, FLOAT32),
    Target("ar", "beam 4", "ctranslate2", "beam 4", 0.8, INT8),
    Target("ar", "beam 1", "ctranslate2", "beam 1", 0.8, INT8),
    Target("ar-drafts", "beam 1", "ar", "beam 1", 1.8, FLOAT32),
    Target("ar-drafts", "beam 1", "ar", "beam 1", 1.5, INT8),
    Target("ibdecoder", "beam 4", "ar", "beam 4", 1.9, SAME),
    Target("ibdecoder", "beam 1", "ar", "beam 1", 1.75, FLOAT32),
    Target("ibdecoder", "beam 1", "ar", "beam 1", 1.7, INT8),
    Target("ibdecoder-sa", "beam 4", "ar", "beam 4", 3.3, SAME),
    Target("ibdecoder-sa", "beam 1", "ar", "beam 1", 4.0, SAME),
    Target("ibdecoder-student", "beam 1", "transformer", "beam 4", 16, OVER_FLOAT32),
    Target("ibdecoder-student", "beam 1", "ctranslate2", "beam 4", 3, OVER_INT8),
    Target("cmlmc-amlp", "10 iterations", "cmlm", "10 iterations", 1.3, FLOAT32),
    Target("cmlmc-amlp", "4 iterations", "cmlm", "4 iterations", 1.3, FLOAT32),
    Target("ar", "beam 4", "transformer", "beam 4", 5, SAME, "cuda"),
    Target("ar", "beam 1", "transformer", "beam 1", 5, SAME, "cuda"),
    Target("ibdecoder-sa-student", "beam 1", "transformer", "beam 4", 30, SAME, "cuda"),
]
#: The targets for the time of a step over the bound, and for the speed of training over the Transformer's.
OVER_BOUND, TRAINING = 1.5, 0.97


def targets(result: dict[str, Any]) -> list[Row]:
    """TARGETS and the other targets with ``value``, ``quartiles`` and ``passed``, which is None if the run cannot tell;
    ``disturbed`` if one of the rows was."""
    options = Namespace(**result["options"])
    comparable = options.data is None and all(getattr(options, name) == size for name, size in BASE.items())
    comparable = comparable and (options.device == "cuda" or options.threads == 2)
    rows = {(row["system"], row["precision"], row["decoding"]): row for row in result["decoding"] if row["batch"] == 1}

    def judged(text: str, device: str, value: float | None, limit: float, at_most: bool = False) -> Row:
        if not comparable or device != options.device or value is None:
            return {"target": text, "value": None, "passed": None}
        return {"target": text, "value": value, "passed": bool(value <= limit if at_most else value >= limit)}

    results = []
    for target in TARGETS:
        system, decoding, base, base_decoding, limit, (kind, pick, pairs), device = target
        both = [(rows.get((system, p, decoding)), rows.get((base, q, base_decoding))) for p, q in pairs]
        speed_ups = [(speed_up(row, other), (row, other)) for row, other in both if row and other]
        best, pair = pick(speed_ups, key=lambda candidate: candidate[0].median, default=(None, ()))
        text = f"{device}: {system}, {decoding}, is {limit} times as fast as {base}, {base_decoding}; {kind}"
        result_row = judged(text, device, best and best.median, limit)
        if result_row["passed"] is not None:
            result_row["quartiles"] = [best.low, best.high]
            result_row["disturbed"] = any(row.get("disturbed") for row in pair)
        results.append(result_row)
    bound, training = result["bound"], result["training"]
    over_bound = max(row["over_bound"] for row in bound["steps"]) if bound else None
    text = f"cpu: a step of ar float32 takes at most {OVER_BOUND} times as long as reading its memory"
    results.append(judged(text, "cpu", over_bound, OVER_BOUND, at_most=True))
    speed = training[1]["over_transformer"] if training else None
    text = f"ibdecoder trains {TRAINING} times as many words a second as transformer"
    return [*results, judged(text, options.device, speed, TRAINING)]
