"""The order of the package's folders: none imports what stands above it, in a function neither."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter

import commands

#: From the ground up. A folder imports from those before it.
FLOORS = [
    *("common", "text", "engine", "ops", "compat", "model_folder", "attention", "data", "models", "criterions"),
    *("decoding", "search", "tasks", "plugin", "translator", "server", "training", "corpora", "evaluation", "cli"),
]


def modules() -> dict[str, set[str]]:
    """The modules of the package, each with what it imports of the package."""
    files = {
        ".".join(path.relative_to(commands.ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in commands.PLUGIN.rglob("*.py")
    }
    found = {}
    for name, path in files.items():
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {each if each in files else str(node.module) for each in names}
        found[name] = imported & files.keys()
    return found


def floor(module: str) -> str:
    return module.split(".")[1]


def test_no_import_runs_up() -> None:
    edges = [
        (name, other)
        for name, imported in modules().items()
        for other in imported
        if name not in ("amlp_fairseq", "amlp_fairseq.__main__")
    ]
    assert {floor(each) for edge in edges for each in edge} == {*FLOORS}
    up = [edge for edge in edges if FLOORS.index(floor(edge[0])) < FLOORS.index(floor(edge[1]))]
    assert up == []


def test_decoding_knows_models_by_their_interfaces() -> None:
    imported = {other for name, others in modules().items() if floor(f"{name}.") == "decoding" for other in others}
    assert {name for name in imported if floor(name) == "models"} == {"amlp_fairseq.models.interfaces"}


def test_there_is_no_circle() -> None:
    """Whoever imports only what is gone goes, too: nobody stays. A folder's ``__init__`` counts as a module."""
    left = modules()
    del left["amlp_fairseq"]  # names the plugin and the translator for others
    while free := {name for name, imported in left.items() if not imported & left.keys() - {name}}:
        for name in free:
            del left[name]
    assert left == {}


def test_the_ground_floors_do_without_fairseq() -> None:
    """And the package without torch."""
    program = "import sys; import amlp_fairseq, amlp_fairseq.common.arguments, amlp_fairseq.text.pipeline\n"
    program += "assert 'torch' not in sys.modules and 'fairseq' not in sys.modules\n"
    program += "import amlp_fairseq.ops.dynamic_conv, amlp_fairseq.ops.amlp_cov\n"
    program += "assert 'fairseq' not in sys.modules"
    commands.fresh(sys.executable, "-c", program)


def test_files_of_tests_have_names_of_their_own() -> None:
    """By which they are imported, in processes that tests start, too; of conftest.py there are several."""
    files = [path for path in (commands.ROOT / "tests").rglob("*.py") if path.stem != "__init__"]
    names = Counter(path.stem for path in files if path.stem != "conftest")
    assert {name for name, count in names.items() if count > 1} == set()
    imports = re.compile(r"^(from|import) conftest\b", re.MULTILINE)
    assert [path for path in files if imports.search(path.read_text(encoding="utf-8"))] == []
