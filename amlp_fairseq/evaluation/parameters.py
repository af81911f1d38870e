"""Compare the number of parameters of configurations with what their papers publish: a Markdown table.

    amlp-fairseq parameters [ROW …]

Without arguments: all rows, on the corpora for which the papers publish a number; a row that is named has one without
such a number, too. Models are built without allocating
their weights, with a dictionary of the size that the configuration's ``dictionary`` says; tied parameters count once.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NamedTuple

from fairseq import options
from fairseq.data import Dictionary
from torch._subclasses.fake_tensor import FakeTensorMode

from amlp_fairseq.common.arguments import command_parser
from amlp_fairseq.compat.internals import (
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    TASK_DATACLASS_REGISTRY,
    TASK_REGISTRY,
)
from amlp_fairseq.training.config import PAPER, Recipe, flags, load, names, row_corpora
from amlp_fairseq.training.results import markdown


class Comparison(NamedTuple):
    """A published number of parameters, if there is one, and ours, in millions, or the differences of both to those of
    another row."""

    recipe: Recipe
    entry: dict[str, Any]
    ours: float
    published: float | None


#: The corpus for rows that are in no paper.
ELSEWHERE = "wmt14_en_de"
COLUMNS = ("configuration", "table", "row", "ours", "published", "difference", "")


def parsed(recipe: Recipe) -> Namespace:
    """The options, as fairseq-train's own parser reads them."""
    words = ["DATA", *flags(recipe.task, recipe.row), *flags(recipe.train, recipe.row)]
    args: Namespace = options.parse_args_and_arch(options.get_training_parser(), words)
    return args


def model_options(args: Namespace) -> Any:
    """The options of the model, in its dataclass; all options for a model of fairseq that has none."""
    dataclass = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY[args.arch])
    return args if dataclass is None else dataclass.from_namespace(args)


def dictionary(words: int) -> Dictionary:
    """A dictionary of that many entries, special ones included."""
    result = Dictionary()
    for i in range(len(result), words):
        result.add_symbol(f"w{i}")
    return result


def count(recipe: Recipe) -> int:
    """Parameters of a configuration's model.

    Raises:
        ValueError: if it has no ``dictionary``.
    """
    if recipe.dictionary is None:
        raise ValueError(f"row {recipe.row}, data {recipe.data}: the configuration has no size of the dictionary")
    args, words = parsed(recipe), dictionary(recipe.dictionary)
    task = TASK_REGISTRY[args.task](TASK_DATACLASS_REGISTRY[args.task].from_namespace(args), words, words)
    with FakeTensorMode():
        model = ARCH_MODEL_REGISTRY[args.arch].build_model(model_options(args), task)
    return sum(parameter.numel() for parameter in model.parameters())


def comparisons(recipes: list[Recipe], unpublished: bool = False) -> list[Comparison]:
    """One for each published number, and one for a recipe without any if ``unpublished``. Where a
    paper's dictionary is unknown (``over``), both numbers are differences to another row of the table."""
    rows = []
    for recipe in recipes:
        entries = [entry for entry in recipe.published if "parameters" in entry]
        if not entries and unpublished:
            rows.append(Comparison(recipe, {"table": "", "row": ""}, count(recipe) / 1e6, None))
        for entry in entries:
            ours, published = count(recipe) / 1e6, float(entry["parameters"])
            if other := entry.get("over"):
                base = load(other, recipe.data, recipe.scale)
                ours -= count(base) / 1e6
                published -= next(e["parameters"] for e in base.published if e["table"] == entry["table"])
            rows.append(Comparison(recipe, entry, ours, published))
    return rows


def table(rows: list[Comparison]) -> str:
    """The rows as a Markdown table."""
    lines = []
    for recipe, entry, ours, published in rows:
        over, sign = (f"over {entry['over']}", "+") if "over" in entry else ("", "")
        lines.append(
            (
                f"{recipe.row}, {recipe.data}",
                entry["table"],
                entry["row"],
                f"{ours:{sign}.2f}M",
                "" if published is None else f"{published:{sign}.2f}M",
                "" if published is None else f"{ours - published:+.2f}M",
                "; ".join(filter(None, [over, entry.get("note")])),
            )
        )
    return markdown(COLUMNS, lines)


def main() -> None:
    parser = command_parser("parameters", __doc__)
    parser.add_argument("row", nargs="*", metavar="ROW", help="names of configs/rows")
    args = parser.parse_args()
    recipes = [load(row, data, PAPER) for row in args.row or names("rows") for data in row_corpora(row) or [ELSEWHERE]]
    print(table(comparisons(recipes, unpublished=bool(args.row))))


if __name__ == "__main__":
    main()
