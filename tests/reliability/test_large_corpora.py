"""Corpora in many files: ``translate --shards``, with and without Ray, and the commands of docs/large-corpora.md."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from small_systems import WORDS, System
from test_model_folders import folder_of

from amlp_fairseq import Translator
from amlp_fairseq.cli import translate
from amlp_fairseq.training import config
from amlp_fairseq.training.data_folder import is_distilled
from amlp_fairseq.training.distill import teachers_of
from amlp_fairseq.translator import text_shards as shards
from amlp_fairseq.translator.options import PATHS

COMMAND = "amlp_fairseq.cli.main"
PAGE = commands.ROOT / "docs/large-corpora.md"


@pytest.fixture(scope="module")
def model(system: Callable[[str], System], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(system("ibdecoder"), tmp_path_factory.mktemp("models") / "model")


def write_shards(folder: Path, counts: list[int]) -> None:
    """Files 0000, 0001, … of random lines, some of them empty."""
    rng = random.Random(1)
    folder.mkdir()
    for number, count in enumerate(counts):
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) + "\n" for _ in range(count)]
        (folder / f"{number:04}").write_text("".join(lines), encoding="utf-8")


def expected(model: Path, folder: Path) -> dict[str, str]:
    """The translations of files, all lines of all files together in one process."""
    texts = {path.name: path.read_text(encoding="utf-8-sig").splitlines() for path in sorted(folder.iterdir())}
    found = iter(Translator(model).translate([line for lines in texts.values() for line in lines]))
    return {name: "".join(next(found) + "\n" for _ in lines) for name, lines in texts.items()}


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder that are not hidden; of the hidden ones only the settings may be there."""
    assert [path.name for path in folder.glob(".*")] == [".settings.json"]
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("[!.]*")}


def killed_in_the_middle(parent: Any, out: Path, name: str) -> bool:
    """SIGKILL for the process that has written some lines of a file, not the whole; False if the parent ends before."""
    while parent.is_alive():
        for part in out.glob(f".{name}.*"):
            for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if part.stat().st_size and os.readlink(descriptor) == str(part):
                        os.kill(int(descriptor.parts[2]), signal.SIGKILL)
                        return True
                except OSError:
                    continue
        time.sleep(0.01)
    return False


def test_each_file_has_its_output(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [30, 0, 5])
    (source / "[bom]?").write_bytes(b"\xef\xbb\xbfw1 w2\n\nw3 w4")  # whose last line has no end
    words = ["translate", "--model", model, "--shards", source, "--output", out]
    printed = commands.run(COMMAND, *words)
    assert "4 of 4 files to translate" in printed
    found = contents(out)
    assert found == expected(model, source)
    assert [text.count("\n") for _, text in sorted(found.items())] == [30, 0, 5, 3]

    before = {path.name: path.stat() for path in out.iterdir()}
    (out / "0002").unlink()
    for name in ("0002", "[bom]?"):
        (out / f".{name}.{'0' * 32}.part").write_text("half a l", encoding="utf-8")
    assert "1 of 4 files to translate" in commands.run(COMMAND, *words)
    assert contents(out) == found
    changed = {path.name for path in out.iterdir() if path.stat().st_ino != before[path.name].st_ino}
    assert changed <= {"0002"}
    assert all(path.stat().st_mtime == before[path.name].st_mtime for path in out.iterdir() if path.name != "0002")


def test_killed(model: Path, tmp_path: Path) -> None:
    """The same command goes on."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [5, 1000, 5])
    words = ["translate", "--model", model, "--shards", source, "--output", out, "--buffer-size", "50"]
    child = commands.start(COMMAND, *words)
    assert killed_in_the_middle(child, out, "0001")
    child.join()
    assert [path.name for path in sorted(out.glob("[!.]*"))] == ["0000"]
    assert "2 of 3 files to translate" in commands.run(COMMAND, *words)
    assert contents(out) == expected(model, source)


def test_two_commands_on_one_folder(model: Path, tmp_path: Path) -> None:
    """One ends, and clears up, while the other is in the middle of a file: it is done for both."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [30])
    words = ["translate", "--model", model, "--shards", source, "--output", out]
    out.mkdir()

    class Slower(Translator):
        def translations(self, lines: Any, **more: Any) -> Any:
            if not (out / "0000").exists():
                commands.run(COMMAND, *words)
                assert not list(out.glob(".*.part"))
            return super().translations(lines, **more)

    job = shards.Job(model, {}, jsonl=False, buffer_size=20)
    shard = shards.Shard(source / "0000", out / "0000")
    assert shards.translate(Slower(model), shard, job) == shards.Outcome("0000", 30)
    assert contents(out) == expected(model, source)
    # One that comes to the file later does not translate it.
    assert shards.translate(None, shard, job) == shards.Outcome("0000", 30)  # type: ignore[arg-type]


@pytest.mark.long
def test_killed_worker(model: Path, tmp_path: Path) -> None:
    """Two workers of Ray; one is killed in the middle of a file."""
    pytest.importorskip("ray.data")
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [5, 1000, 400, 0, 300, 7])
    words = ["translate", "--model", model, "--shards", source, "--output", out, "--buffer-size", "50"]
    child = commands.start(COMMAND, *words, "--workers", 2, output=tmp_path / "printed")
    assert killed_in_the_middle(child, out, "0001")
    child.join()
    printed = (tmp_path / "printed").read_text(encoding="utf-8")
    assert child.exitcode == 0, printed
    assert "Traceback" not in printed
    reported = re.findall(r"^amlp-fairseq translate: \d of 6: (\d+): (\d+) lines$", printed, flags=re.MULTILINE)
    assert sorted(reported) == [(f"{i:04}", f"{n}") for i, n in enumerate([5, 1000, 400, 0, 300, 7])]
    assert contents(out) == expected(model, source)


def test_a_file_that_cannot_be_translated(model: Path, tmp_path: Path) -> None:
    """The others are; with another file in its place the same command goes on."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [5, 5, 5])
    (source / "0001").write_text("w1\nw1 w2 w3 w4 w5 w6 w7 w8 w9 w10\n", encoding="utf-8")
    words = ["translate", "--model", model, "--shards", source, "--output", out, "--long", "refuse", "--max-length", 9]
    *_, last = printed = commands.run(COMMAND, *words, check=False).splitlines()
    assert last == "amlp-fairseq translate: 1 of 3 files are not translated; the same command tries them again"
    assert any("2 of 3: 0001: line 2: 10 pieces, at most 9 are allowed" in line for line in printed)
    assert contents(out).keys() == {"0000", "0002"}
    (source / "0001").write_text("w1\n", encoding="utf-8")
    commands.run(COMMAND, *words)
    assert contents(out) == expected(model, source)


@pytest.mark.parametrize("ending", ["", "\n"])
def test_a_source_that_has_grown(model: Path, tmp_path: Path, ending: str) -> None:
    """Its old translation is not taken for one of all lines."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [5, 5])
    words = ["translate", "--model", model, "--shards", source, "--output", out]
    commands.run(COMMAND, *words)
    with (source / "0001").open("a", encoding="utf-8") as file:
        file.write(f"w1\nw2{ending}")
    message = f"{source / '0001'} has 7 lines, {out / '0001'} has 5: delete the latter, and it is made again"
    assert message in commands.run(COMMAND, *words, check=False)
    (out / "0001").unlink()
    commands.run(COMMAND, *words)
    assert contents(out) == expected(model, source)


@pytest.mark.parametrize("in_model", [False, True], ids=["given", "of the model"])
@pytest.mark.parametrize("option", sorted(PATHS))
def test_another_helper(model: Path, tmp_path: Path, option: str, in_model: bool) -> None:
    """A model that drafts or chooses, or a file of drafts, that has other contents under the same name."""
    own, helper = shutil.copytree(model, tmp_path / "model"), shutil.copytree(model, tmp_path / "helper")
    named = {option: str(helper / "model.safetensors" if option == "draft_file" else helper)}
    if in_model:
        config_file = own / "config.json"
        content = json.loads(config_file.read_text(encoding="utf-8"))
        config_file.write_text(json.dumps(content | {"decoding": named}), encoding="utf-8")
    job = shards.Job(own, {} if in_model else named, jsonl=False, buffer_size=1)
    shards.begin(tmp_path / "out", [], job.identity)
    (helper / "README.md").write_text("another card", encoding="utf-8")
    shards.begin(tmp_path / "out", [], job.identity)
    (helper / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match=f"was begun with other --{option.replace('_', '-')} "):
        shards.begin(tmp_path / "out", [], job.identity)


def test_mistakes(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_shards(source, [2])
    write_shards(tmp_path / "again", [2])
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/0000").write_text("not a translation\n", encoding="utf-8")
    (tmp_path / "deep/inside").mkdir(parents=True)
    begun = ["translate", "--model", model, "--shards", source, "--output", out]
    commands.run(COMMAND, *begun)
    for words, message in (
        (["--shards", source], "--shards PATH needs --output DIR, and takes no --input"),
        (
            ["--shards", source, "--output", out, "--input", source],
            "--shards PATH needs --output DIR, and takes no --i",
        ),
        (["--workers", 2], "--workers N needs --shards PATH"),
        (["--shards", source, "--workers", 0], "translate: argument --workers: '0': a number from 1 is needed"),
        (["--shards", tmp_path / "none", "--output", out], "/none does not exist"),
        (["--shards", tmp_path / "empty", "--output", out], "--shards: there is no file to translate"),
        (["--shards", tmp_path / "deep", "--output", out], "has the folder inside: name the folders that have the "),
        (["--shards", source, tmp_path / "again", "--output", out], "/again/0000 would have the same output"),
        (["--shards", source, "--output", source], " is the folder of --shards: name another one"),
        (["--shards", source, "--output", tmp_path / "again/0000"], "is a file: with --shards a folder is needed"),
        (["--shards", source, "--output", source / "a/b"], f"/a/b is in the folder of --shards {source}: name another"),
        (["--shards", source, "--output", tmp_path / "foreign"], "that were not made by --shards: name another"),
        (
            ["--shards", source, "--output", out, "--beam", 2],
            "was begun with other --beam (.settings.json in it)",
        ),
        (["--shards", source, "--output", out, "--jsonl"], "was begun with other --jsonl (.settings.json in it): name"),
        (
            ["--shards", source, "--output", tmp_path / "new", "--draft-path", "none"],
            "translate: none does not exist",
        ),
        (["--shards", source, "--output", tmp_path / "new", "--nbest", 9, "--jsonl"], "nbest=9 is more than be"),
    ):
        printed = commands.run(COMMAND, "translate", "--model", model, *words, check=False)
        assert "Traceback" not in printed
        assert message in printed.splitlines()[-1], printed
    assert (tmp_path / "foreign/0000").read_text(encoding="utf-8") == "not a translation\n"


def test_without_ray(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path / "in", [2])
    monkeypatch.delitem(sys.modules, "amlp_fairseq.translator.on_ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    options = {"model": model, "shards": [tmp_path / "in"], "output": tmp_path / "out", "workers": 2}
    with pytest.raises(ValueError, match=r'--workers needs ray, which is not installed: pip install "ray\[data\]'):
        commands.call(translate, monkeypatch, **options)


def blocks(heading: str) -> dict[str, str]:
    """The code of a section of the page, in smaller files: by language, blocks of the same one joined."""
    text = PAGE.read_text(encoding="utf-8").replace("--lines 1000000", "--lines 60").replace("\\\n", " ")
    _, _, section = text.partition(f"# {heading}\n")
    found: dict[str, str] = {}
    for language, block in re.findall(r"^```(\S*)\n(.*?)^```$", re.split("^## ", section, flags=re.M)[0], re.M | re.S):
        found[language] = found.get(language, "") + block
    return found


def typed(lines: str, folder: Path) -> None:
    """Type lines in a folder."""
    for line in lines.splitlines():
        if line.startswith("amlp-fairseq "):
            commands.run(COMMAND, *shlex.split(line)[1:], cwd=folder)
        else:
            subprocess.run(["bash", "-c", line], cwd=folder, check=True)


def test_the_page_with_a_slurm_array(model: Path, data: Path, tmp_path: Path) -> None:
    """Its tasks at the same time, without SLURM."""
    shutil.copytree(model, tmp_path / "en-de")
    shutil.copy(data.parent / "raw/train.en", tmp_path / "corpus.en")
    *before, decoding, after = blocks("Large corpora")[""].splitlines()
    typed("\n".join(before), tmp_path)
    script = blocks("A SLURM array")["bash"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tasks = []
    for task in range(2):  # of 60 and 40 lines
        environment = {**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(task)}
        tasks.append(subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment))
    assert [task.wait() for task in tasks] == [0, 0]
    typed(after, tmp_path)
    sources = (tmp_path / "corpus.en").read_text(encoding="utf-8").splitlines()
    translations = (tmp_path / "corpus.de").read_text(encoding="utf-8").splitlines()
    assert len(sources) == 100
    assert translations == Translator(model).translate(sources)
    assert decoding.startswith("amlp-fairseq translate")
    typed(decoding, tmp_path)  # finds that all is done
    assert contents(tmp_path / "translated").keys() == {"0000", "0001"}


def test_the_page_distils(
    system: Callable[[str], System], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training data are those of ``amlp-fairseq distill``, byte by byte."""
    monkeypatch.chdir(tmp_path)
    trained = system("ibdecoder")
    (tmp_path / "transformer").mkdir()
    shutil.copy(trained.checkpoint, tmp_path / "transformer/average.pt")
    recipe = config.load("ibdecoder", "embedded", "embedded", None)
    assert recipe.generate["beam 4"]["lenpen"] == 0.6  # which is not that of distill
    config.save(recipe, tmp_path / "transformer/recipe.yaml")
    shutil.copytree(data, tmp_path / "data/data-bin")
    shutil.copy(data.parent / "raw/train.en", tmp_path / "train.en")
    code = blocks("Distillation")
    decoding, binarising = code[""].replace("--beam 5", "--beam 5 --max-len-b 8").split("cp -r")
    typed(decoding, tmp_path)
    exec(code["python"], {})
    typed(f"cp -r{binarising}", tmp_path)
    options = ["--task", "translation_interleaved", "--length-penalty", "gnmt", "--max-len-b", "8", "--cpu"]
    commands.run(COMMAND, "distill", trained.checkpoint, data, tmp_path / "distil", *options)
    for name in ("train.en-de.en.bin", "train.en-de.de.bin", "valid.en-de.de.bin", "dict.de.txt"):
        assert (tmp_path / "distilled/data-bin" / name).read_bytes() == (tmp_path / "distil" / name).read_bytes(), name
    made, distilled = tmp_path / "distilled/data-bin", tmp_path / "distil"
    assert is_distilled(made)
    assert teachers_of(made) == ["transformer"]
    assert teachers_of(distilled) == [trained.checkpoint.parent.name]
