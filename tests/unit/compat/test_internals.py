"""What of fairseq the package imports, and where."""

import ast
from collections.abc import Iterator
from pathlib import Path

import amlp_fairseq
from amlp_fairseq.compat import internals

PACKAGE = Path(amlp_fairseq.__file__).parent
#: fairseq's public interface: packages, and the modules that its documentation describes.
PUBLIC = {
    *("checkpoint_utils", "options", "tasks", "utils", "data", "dataclass", "models", "models.nat"),
    *("models.text_to_speech", "models.transformer", "modules", "tasks.translation", "criterions", "optim"),
}


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module below fairseq, name) of each import of fairseq in a file; fairseq's commands (fairseq_cli) are public."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fairseq":
            for alias in node.names:
                yield (node.module or "").removeprefix("fairseq").lstrip("."), alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "fairseq":
                    yield alias.name.removeprefix("fairseq").lstrip("."), ""


def test_only_compat_imports_what_is_not_public() -> None:
    private = {
        f"{path.relative_to(PACKAGE)}: {module}.{name}"
        for path in PACKAGE.rglob("*.py")
        if "compat" not in path.parts and path.name != "plugin.py"  # which has the table of what is changed
        for module, name in _imports(path)
        if (module or name) not in PUBLIC or name.endswith("_REGISTRY") or name in internals.__all__
    }
    assert private == set()


def test_every_name_is_used() -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "internals.py")
    imported = {
        alias.name
        for node in ast.walk(ast.parse(code.replace("from __future__ import annotations", "")))
        if isinstance(node, ast.ImportFrom) and node.module == "amlp_fairseq.compat.internals"
        for alias in node.names
    }
    assert imported == set(internals.__all__)
