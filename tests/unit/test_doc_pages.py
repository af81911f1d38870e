"""The pages of the repository: their links, that the site has them, and that the commands in them exist."""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from amlp_fairseq.cli import main

ROOT = commands.ROOT
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "code", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Those that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """What a page links to is there, the heading included."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert ROOT in path.parents, target
        if anchor:
            assert anchor in anchors(path), target


def test_the_site_has_every_page() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    trees = "".join(re.findall(r"^```\{toctree\}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
    entries = [re.sub(r".*<(.*)>", r"\1", line) for line in trees.splitlines() if line and not line.startswith(":")]
    listed = [(ROOT / "docs" / f"{entry}.md").resolve() for entry in entries]
    assert len(listed) == len(set(listed))
    assert {page for page in PAGES if ROOT / "docs" in page.parents} - set(listed) == {ROOT / "docs/index.md"}


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """The options of fairseq's commands, of all tasks, models, criteria, … ."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    for cls in {*ARCH_MODEL_REGISTRY.values(), *TASK_REGISTRY.values()}:
        cls.add_args(parser)
    known = set(parser._option_string_actions)
    for make in (options.get_training_parser, options.get_generation_parser, options.get_preprocessing_parser):
        known |= set(make("translation")._option_string_actions)
    known |= set(options.get_interactive_generation_parser("translation")._option_string_actions)
    configs = [*MODEL_DATACLASS_REGISTRY.values()]
    configs += [config for registry in REGISTRIES.values() for config in registry["dataclass_registry"].values()]
    return known | {f"--{field.name.replace('_', '-')}" for cls in configs for field in dataclasses.fields(cls)}


def helped(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The options that a command's own help has."""
    if name in main.FAIRSEQ:
        return set()
    module = main.module_of(name)
    monkeypatch.setattr(sys, "argv", [f"amlp-fairseq {name}", "--help"])
    with pytest.raises(SystemExit):
        module.main()
    return set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))


def test_commands_and_their_options_exist(
    flags: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known: dict[str, set[str]] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = re.findall(r"^ *```(\S*)\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
        shown = [block for language, block in found if language in ("", "sh")]
        for line in "".join(shown).replace("\\\n", " ").splitlines():
            for command, rest in re.findall(r"\b(amlp-fairseq [a-z][\w-]*|fairseq-[\w-]+) ([^|;<>#]*)", line):
                program, _, name = command.partition(" ")
                if not name and program not in known:
                    known[program] = flags | {"--user-dir"}
                elif name and name != "path" and command not in known:
                    assert name in {*main.MODULES, *main.FAIRSEQ}, f"{page}: {line}"
                    known[command] = flags | helped(name, monkeypatch, capsys) | {"--help", "--verbose"}
                unknown = set(re.findall(r"(?<=\s)--[a-z][\w-]*", f" {rest}")) - known.get(command, flags)
                new = {flag for flag in unknown if f"{flag[2:].replace('-', '_')}: " in text}  # the page adds them
                assert unknown == new, f"{page}: {line}"
    assert {"amlp-fairseq translate", "amlp-fairseq package", "fairseq-generate"} <= known.keys()


@pytest.mark.long
def test_the_site_is_built(tmp_path: Path) -> None:
    """scripts/build_docs.sh, which refuses broken links; it needs Sphinx, which it installs, and the environment of
    scripts/install.sh."""
    command = ["bash", "scripts/build_docs.sh", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    page = (tmp_path / "site/docs/api.html").read_text(encoding="utf-8")
    assert "Raw text" in (tmp_path / "site/docs/first-translation.html").read_text(encoding="utf-8")
    assert "amlp_fairseq.Translator.translations" in page
