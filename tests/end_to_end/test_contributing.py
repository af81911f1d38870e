"""The recipes of CONTRIBUTING.md, followed literally in a copy of the repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from fairseq.checkpoint_utils import load_checkpoint_to_cpu

pytestmark = pytest.mark.xdist_group("contributing")  # one process makes the copy

PAGE = "CONTRIBUTING.md"


class Tree:
    """A copy of what recipes change and commands read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("amlp_fairseq", "benchmarks", "configs", "tests"):
            shutil.copytree(ROOT / name, root / name)
        shutil.copy(ROOT / "pyproject.toml", root)

    def follow(self, page: str, section: str) -> list[str]:
        """Do what the blocks of a section say, and lint what it has changed; the commands that check it."""
        commands, changed = [], set()
        for language, block in blocks(page, section):
            if language == "sh":
                commands += block.splitlines()
            elif language == "diff":
                for path, hunks in parts(block, r"--- (\S+)"):
                    changed.add(path)
                    for hunk in hunks.split("@@\n"):
                        self._edit(path, hunk)
            else:
                for path, content in parts(block, r"# (\S+/\S+\.(?:py|yaml))"):
                    assert not (self.root / path).exists(), path
                    changed.add(path)
                    (self.root / path).parent.mkdir(exist_ok=True)
                    (self.root / path).write_text(content, encoding="utf-8")
        code = " ".join(sorted(path for path in changed if path.endswith(".py")))
        self.run(f"ruff format {code} && ruff check {code}")
        return commands

    def _edit(self, path: str, hunk: str) -> None:
        lines = hunk.splitlines(keepends=True)
        assert {line[0] for line in lines} <= set(" +-"), f"{path}: {hunk}"
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        text = (self.root / path).read_text(encoding="utf-8")
        assert f"\n{text}".count(f"\n{before}") == 1, f"{path} has not once:\n{before}"
        (self.root / path).write_text(f"\n{text}".replace(f"\n{before}", f"\n{after}")[1:], encoding="utf-8")

    def run(self, command: str) -> str:
        """What a command prints that is typed in the copy."""
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        variables = {"PATH": path, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "HOME": str(self.root)}
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            variables["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        done = subprocess.run(["bash", "-c", command], cwd=self.root, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def passed(self, command: str) -> list[str]:
        """The tests of a command, all of which must pass, without their folders."""
        printed = self.run(f"{command} -v -p no:cacheprovider")
        *_, last = printed.splitlines()
        found = re.findall(r"^\S*/(\S+\.py::.*) PASSED", printed, flags=re.MULTILINE)
        assert re.fullmatch(rf"=* {len(found)} passed(?:, \d+ deselected)?(?:, \d+ warnings?)? in .*", last), last
        return found


def blocks(page: str, section: str) -> list[tuple[str, str]]:
    """Language and content of the code blocks of a section."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (content,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^```(\w+)\n(.*?)^```$", content, flags=re.MULTILINE | re.DOTALL)


def parts(block: str, header: str) -> Iterator[tuple[str, str]]:
    """The files that a block names, and what it has for each."""
    before, *rest = re.split(rf"^{header}\n", block, flags=re.MULTILINE)
    assert before == "", f"no file is named for:\n{before}"
    return zip(rest[::2], rest[1::2], strict=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def configurations(tree: Tree) -> tuple[list[str], str, str]:
    """The tests of the row, scale and corpus, and what their commands print; the corpus has 60 short sentences."""
    check, prepare, show = tree.follow(PAGE, "A row of a table, a scale, a corpus")
    folder = tree.root / "mirror/www.example.org"
    (folder / "mine").mkdir(parents=True)
    words = "der die das ein eine Hund Katze Maus sieht hört".split()
    for name, count in (("train", 60), ("dev", 5), ("test", 7)):
        for language in ("en", "de"):
            lines = (f"{words[i % 5]} {words[5 + i % 3]} {words[8 + i % 2]} {language} .\n" for i in range(count))
            (folder / f"mine/{name}.{language}").write_text("".join(lines), encoding="utf-8")
    with tarfile.open(folder / "mine.tgz", "w:gz") as archive:
        archive.add(folder / "mine", "mine")
    checksum = hashlib.sha256((folder / "mine.tgz").read_bytes()).hexdigest()
    (tree.root / "SHA256SUMS").write_text(f"{checksum}  mine.tgz\n", encoding="utf-8")
    prepare += f" --mirror file://{tree.root}/mirror --checksums SHA256SUMS --vocab-size 60 --workers 1"
    return tree.passed(check), tree.run(prepare), tree.run(show)


def test_a_row_a_scale_and_a_corpus(configurations: tuple[list[str], str, str]) -> None:
    passed, prepared, shown = configurations
    assert passed == [
        "test_config.py::test_every_table_has_its_rows",
        "test_config.py::test_fairseq_parses_every_configuration[mine]",
    ]
    assert "60 pairs, {'train': 60, 'valid': 5, 'test': 7} after the filter" in prepared
    recipe, command = shown.split("\nfairseq-train ")
    found = yaml.safe_load(recipe)
    assert (found["row"], found["data"], found["scale"], found["dictionary"]) == ("mine", "mine", "mine", 8192)
    assert found["train"]["decoder-layers"] == 2  # of the scale's base
    assert "--words-per-direction 3 " in command
    assert "--encoder-layers 4 " in command
    assert "--source-lang en --target-lang de " in command


@pytest.mark.usefixtures("configurations")
def test_an_attention(tree: Tree) -> None:
    check, train = tree.follow("docs/attentions.md", "A new one")
    passed = tree.passed(check)
    for test in (
        "test_registry.py::test_padding_and_batch_leave_no_trace[sigmoid-encoder-left]",
        "test_registry.py::test_cross_attention_keeps_the_source_and_follows_the_beam[sigmoid]",
        "test_formulas.py::test_the_output_is_the_formula[sigmoid-noncausal self-1]",
    ):
        assert test in passed
    tree.run(train.replace("DATA", "data/mine/data-bin") + " --max-update 1 --cpu --save-dir sigmoid")
    state = load_checkpoint_to_cpu(str(tree.root / "sigmoid/checkpoint_last.pt"))
    model = state["cfg"]["model"]
    assert (model.encoder_self_attention_type, model.sigmoid_bias) == ("sigmoid", -0.5)
    assert state["optimizer_history"][-1]["num_updates"] == 1


def test_a_kernel(tree: Tree) -> None:
    (check,) = tree.follow("docs/kernels.md", "A new one")
    assert len(tree.passed(check)) == 2 * 3  # backends, cases


GENERATE = """
from argparse import Namespace
import toy
from fairseq import options
words = "DATA --path X --user-dir amlp_fairseq --task translation_interleaved".split()
for more in ([], ["--no-unknown"]):
    args = options.parse_args_and_arch(options.get_generation_parser(), words + more)
    task = toy.task(3, no_unknown=args.no_unknown)
    model = toy.model(task)
    search = task.build_generator([model], Namespace(beam=50, max_len_b=4))
    (found,) = search.generate([model], toy.batch([[4, 5]], task.src_dict))
    print(any(task.tgt_dict.unk() in each["tokens"] for each in found))
"""


def test_a_rule_of_the_search(tree: Tree) -> None:
    (check,) = tree.follow(PAGE, "A rule of the search")
    # Orders of generation, in the engine and in PyTorch; where options come from.
    assert len(tree.passed(check)) == 2 * 2 + 1
    (tree.root / "tests/generate.py").write_text(GENERATE, encoding="utf-8")
    assert tree.run("python tests/generate.py").split() == ["True", "False"]
