"""A stopwatch around the parts of a decoding step of the plugin's own search on a CPU."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.decoding import packed_linear, step_decoder
from amlp_fairseq.ops.backend import VARIABLE
from amlp_fairseq.search import multiword_beam_search

#: The name of the part that ``pack`` returns.
LINEAR_MAPS = "linear maps"
#: For every other part, the owner and the name of its function.
TIMED_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "attention": (SoftmaxAttention, "_attend"),
    "norms": (torch, "layer_norm"),
    "probabilities": (multiword_beam_search, "log_probabilities"),
    "best words": (multiword_beam_search, "combine_words"),
    "rows that move": (step_decoder.Decoding, "reorder"),
}


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Milliseconds by part, added up while models are prepared and decode in this context."""
    spent = dict.fromkeys((LINEAR_MAPS, *TIMED_FUNCTIONS), 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **options)
            spent[part] += 1000 * (time.perf_counter() - start)
            return result

        return run

    def packing(*arguments: Any, **options: Any) -> packed_linear.Map:
        return timed(LINEAR_MAPS, pack(*arguments, **options))

    pack = packed_linear.pack
    with ExitStack() as patches:
        patches.enter_context(patch.dict(os.environ, {VARIABLE: "torch"}))  # the engine's parts are not seen from here
        for part, (owner, name) in TIMED_FUNCTIONS.items():
            patches.enter_context(patch.object(owner, name, timed(part, getattr(owner, name))))
        for owner in (packed_linear, step_decoder):
            patches.enter_context(patch.object(owner, "pack", packing))
        yield spent
