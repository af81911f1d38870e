"""Models that cannot decode together: the error names their files."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils


def install() -> None:
    """Let ``checkpoint_utils.load_model_ensemble_and_task`` name the files of an ensemble that it cannot load, or whose
    models write in different ways. Only the last one may be autoregressive among others that are not: it rescores."""
    load = checkpoint_utils.load_model_ensemble_and_task

    @functools.wraps(load)
    def loaded(filenames: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        if len(filenames) < 2:
            return load(filenames, *args, **kwargs)
        try:
            result = load(filenames, *args, **kwargs)
        except ValueError as error:
            raise ValueError(f"the models {' and '.join(filenames)} cannot be combined: {error}") from error
        refine = [hasattr(model, "initialize_output_tokens") for model in result[0]]
        if len(set(refine[:-1])) > 1 or refine[-1] > refine[0]:
            first, other = filenames[0], filenames[refine.index(not refine[0])]
            raise ValueError(
                f"the models {first} and {other} cannot be combined: one is autoregressive and one is not (an "
                "autoregressive one can only be the last of --path, with --iter-decode-with-external-reranker)"
            )
        for model, filename in zip(result[0], filenames, strict=True):
            model.checkpoint = filename
        return result

    checkpoint_utils.load_model_ensemble_and_task = loaded
