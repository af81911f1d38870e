"""Options that fairseq evaluates as Python: literals only, for a checkpoint brings its options along.

fairseq passes texts of the configuration to ``eval()`` when it builds models (``--adaptive-softmax-cutoff``, the layers
of ``fconv``, the convolutions of ``wav2vec2``), optimizers (``--adam-betas``), criteria and data sets: a checkpoint of
pure data ran what it liked. ``plugin.py`` puts :func:`literal` into those modules under the name ``eval``.
"""

from __future__ import annotations

import ast
import importlib.util
import operator
from collections.abc import Callable
from typing import Any

#: All modules of fairseq that call ``eval``; test_literal_options.py looks for others.
MODULES = (
    "fairseq.criterions.ctc",
    "fairseq.data.audio.raw_audio_dataset",
    "fairseq.data.codedataset",
    "fairseq.models.fconv",
    "fairseq.models.fconv_lm",
    "fairseq.models.fconv_self_att",
    "fairseq.models.hubert.hubert",
    "fairseq.models.lightconv_lm",
    "fairseq.models.speech_to_text.s2t_wav_transformer",
    "fairseq.models.transformer_lm",
    "fairseq.models.wav2vec.wav2vec",
    "fairseq.models.wav2vec.wav2vec2",
    "fairseq.optim.adafactor",
    "fairseq.optim.adam",
    "fairseq.optim.adamax",
    "fairseq.optim.cpu_adam",
    "fairseq.optim.fused_lamb",
    "fairseq.utils",
)
#: The largest number of elements that ``+`` and ``*`` may make in one value: ``[0] * 10**10`` would take all memory.
MOST = 10_000

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def modules() -> list[str]:
    """The modules of :data:`MODULES` that this version has; a module's own name hides the builtin."""
    return [name for name in MODULES if importlib.util.find_spec(name) is not None]


def literal(text: str) -> Any:
    """The value of ``eval(text)``, for literals, ``+`` and ``-`` and ``*`` and ``/`` of numbers, and ``+`` and ``*`` of
    lists, as in ``[(512, 3)] * 4 + [(768, 3)] * 2``.

    Raises:
        ValueError: for anything else, naming it.
        TypeError: like ``eval``, for what is no text: ``fairseq.utils.eval_bool`` counts on it.
    """
    if not isinstance(text, str):
        raise TypeError(f"literal() needs a text, not {type(text).__name__}")
    try:
        return _Value().read(ast.parse(text.lstrip(" \t"), mode="eval").body)
    except (ArithmeticError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        raise ValueError(
            f"{shown!r} is refused ({error}): options that fairseq evaluates must be literals: numbers, texts, "
            "True, False, None, lists, tuples and dictionaries of them, and sums and products"
        ) from None


class _Value:
    """A value while it is read; counts what its operators make."""

    def __init__(self) -> None:
        self.made = 0

    def read(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return self.combine(OPERATORS[type(node.op)], self.read(node.left), self.read(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.read(node.operand)
        if isinstance(node, ast.List):
            return [self.read(part) for part in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self.read(part) for part in node.elts)
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys = [self.read(key) for key in node.keys if key is not None]
            return dict(zip(keys, map(self.read, node.values), strict=True))
        if isinstance(node, ast.Constant):
            return node.value
        raise ValueError(f"{ast.unparse(node)[:50]} is no literal")

    def combine(self, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """Numbers, and what has elements as far as the number of those has been checked."""
        sizes = [len(side) for side in (left, right) if isinstance(side, (str, list, tuple))]
        times = [side for side in (left, right) if isinstance(side, int)]
        if sizes:
            self.made += sum(sizes) * max([1, *times]) if operation is operator.mul else sum(sizes)
            if self.made > MOST:
                raise ValueError(f"it makes more than {MOST:,} elements")
            if operation is operator.mul or operation is operator.add:
                return operation(left, right)
        elif all(isinstance(side, (int, float, complex)) for side in (left, right)):
            return operation(left, right)
        raise TypeError(f"no {operation.__name__} of {type(left).__name__} and {type(right).__name__}")
