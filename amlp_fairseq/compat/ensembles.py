"""Models that cannot decode together: the error names their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def name_files(load: Any, filenames: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """Name the files of an ensemble that cannot be loaded, or whose models write in different ways."""
    if len(filenames) < 2:
        return load(filenames, *args, **kwargs)
    try:
        result = load(filenames, *args, **kwargs)
    except ValueError as error:
        raise ValueError(f"the models {' and '.join(filenames)} cannot be combined: {error}") from error
    refine = [hasattr(model, "initialize_output_tokens") for model in result[0]]
    if len(set(refine)) > 1:
        first, other = filenames[0], filenames[refine.index(not refine[0])]
        raise ValueError(
            f"the models {first} and {other} cannot be combined: one is autoregressive and one is not (an "
            "autoregressive one chooses among the candidates of the others with --rescore-path)"
        )
    for model, filename in zip(result[0], filenames, strict=True):
        model.checkpoint = filename
    return result
