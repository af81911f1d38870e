"""What a user meets who makes a mistake: the command ends in one line that names it and the way out."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest
import torch

pytestmark = pytest.mark.xdist_group("mistakes")
CLI = "amlp_fairseq.cli.main"
MODELS = {
    "ib": ("translation_interleaved", "ibdecoder_tiny", "label_smoothed_cross_entropy"),
    "ar": ("translation", "plugin_transformer_tiny", "label_smoothed_cross_entropy"),
    "nat": ("translation_cmlmc", "cmlmc_transformer_tiny", "nat_loss"),
}


def training(task: str, arch: str, criterion: str, data: str = "data") -> list[Any]:
    return [
        *("train", data, "--task", task, "--arch", arch, "--criterion", criterion, "--optimizer", "adam"),
        *("--lr", "0.001", "--max-tokens", 200, "--max-update", 1, "--no-epoch-checkpoints", "--cpu"),
    ]


def decoding(*names: str, task: str = "", data: str = "data") -> list[Any]:
    path = ":".join(f"{name}/checkpoint_last.pt" for name in names)
    return ["generate", data, "--task", task or MODELS[names[0]][0], "--path", path, "--cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, one model of each kind, and files with a mistake each."""
    path = tmp_path_factory.mktemp("mistakes")
    rng = random.Random(1)
    (path / "raw").mkdir()
    for split, count in {"train": 20, "valid": 3, "test": 3}.items():
        sentences = [" ".join(rng.choices("abcdefg", k=rng.randint(1, 5))) for _ in range(count)]
        for language in ("en", "de"):
            (path / "raw" / f"{split}.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    commands.preprocess(path / "raw", path / "data")
    for name, options in MODELS.items():
        commands.run(CLI, *training(*options), "--save-dir", name, cwd=path)
    shutil.copytree(path / "data", path / "other")
    for language in ("en", "de"):
        with (path / f"other/dict.{language}.txt").open("a", encoding="utf-8") as file:
            file.write("extra 1\n")
    commands.run(CLI, *training(*MODELS["ar"], data="other"), "--save-dir", "larger", cwd=path)
    state = torch.load(path / "larger/checkpoint_last.pt", weights_only=False)
    state["task_state"] = {}  # as of fairseq's own models
    torch.save(state, path / "larger/checkpoint_last.pt")
    shutil.copytree(path / "data", path / "half")
    (path / "half/dict.de.txt").unlink()
    (path / "half/text.json").write_text('{"post_process": null}', encoding="utf-8")
    text = {"latin": (b"a\ncaf\xe9\n", b"a\nb\n"), "bom": (b"\xef\xbb\xbfa\n", b"a\n"), "uneven": (b"a\nb\n", b"a\n")}
    text |= {"returns": (b"a one\rtwo\r\nb\nc\nd\n", b"A\r\nB\nC\rCC\nD\n"), "ends": (b"a\r\nb\n", b"A\nB\r\n")}
    for name, sides in text.items():
        for language, content in zip(("en", "de"), sides, strict=True):
            (path / f"{name}.{language}").write_bytes(content)
    (path / "begun").mkdir()
    (path / "begun/text.json").write_text('{"name": "x",\n}', encoding="utf-8")
    for name, content in (("empty", ""), ("cut", "row: [")):
        shutil.copytree(path / "ib", path / name)
        (path / name / "recipe.yaml").write_text(content, encoding="utf-8")
    (path / "syntax.yaml").write_text("base: ibdecoder\ntrain: {lr: 1\ntask: x\n", encoding="utf-8")
    (path / "itself.yaml").write_text("base: itself\n", encoding="utf-8")
    (path / "text.yaml").write_text("base: ibdecoder\ntrain: lr 1\n", encoding="utf-8")
    (path / "name.yaml").write_text("base: ibdecoder\ntrian: {lr: 1}\n", encoding="utf-8")
    (path / "name.yml").write_text("base: ibdecoder\ntrian: {lr: 1}\n", encoding="utf-8")
    (path / "flag.yaml").write_text("base: ibdecoder\ntrain:\n  lr: 1\n  max-updaet: 3\n", encoding="utf-8")
    return path


def preprocessing(prefix: str) -> list[str]:
    return ["preprocess", "-s", "en", "-t", "de", "--trainpref", prefix, "--destdir", f"data-{prefix}"]


def configured(row: str) -> list[str]:
    return ["train", "data", "--corpus", "embedded", "--row", row, "--scale", "embedded", "--print"]


LARGER = "larger/checkpoint_last.pt"
CMLMC = ("translation_cmlmc", "cmlmc_transformer_tiny")
#: Command lines, and what the message must name: the argument and its value, and the way out.
MISTAKES: dict[str, tuple[list[Any], list[str]]] = {
    "another criterion": (
        training(*CMLMC, "label_smoothed_cross_entropy"),
        ["--criterion label_smoothed_cross_entropy", "--criterion nat_loss"],
    ),
    "the default criterion": (
        training(*CMLMC, "cross_entropy"),
        ["--label-smoothing", "--criterion nat_loss"],
    ),
    "CMLMC under translation": (
        training("translation", CMLMC[1], "nat_loss"),
        ["cmlmc_transformer", "--task translation_cmlmc"],
    ),
    "CMLMC decoded under translation": (
        decoding("nat", task="translation"),
        ["cmlmc_transformer", "--task translation_cmlmc"],
    ),
    "sampling": (
        [*decoding("ib"), "--sampling", "--nbest", "5"],
        ["--sampling True", "left to right"],
    ),
    "another order in the ensemble": (
        decoding("ib", "ar"),
        ["--num-directions 1"],
    ),
    "an autoregressive model in the ensemble": (
        decoding("ar", "nat", task="translation_cmlmc"),
        ["cannot be combined", "--rescore-path"],
    ),
    "a reranking model without its option": (
        decoding("nat", "ar"),
        ["cannot be combined", "--rescore-path"],
    ),
    "no dictionary": (
        decoding("ib", data="half"),
        ["half/dict.de.txt does not exist", "fairseq-preprocess"],
    ),
    "no such subset": (
        [*decoding("ib"), "--gen-subset", "tset"],
        ["tset", "data"],
    ),
    "no checkpoint": (
        decoding("nothing", task="translation"),
        ["nothing/checkpoint_last.pt"],
    ),
    "no --path": (["generate", "data"], ["--path"]),
    "nbest": (
        [*decoding("ar"), "--nbest", 6, "--beam", 2],
        ["--nbest 6", "--beam 2"],
    ),
    "no hypotheses": ([*decoding("ar"), "--nbest", 0], ["--nbest 0", "at least 1"]),
    "no batch for a process": (
        [*decoding("ar"), "--distributed-world-size", 2, "--distributed-rank", 1],
        ["--distributed-world-size 2", "--batch-size"],
    ),
    "lenpen": ([*decoding("ib"), "--lenpen", -100], ["--lenpen -100.0", "-10", "10"]),
    "heads": (
        [*training(*MODELS["nat"]), "--decoder-attention-heads", 3],
        ["heads"],
    ),
    "another optimizer": (
        [*training(*MODELS["ar"]), "--optimizer", "sgd", "--restore-file", "ar/checkpoint_last.pt"],
        ["--reset-optimizer"],
    ),
    "a metric that there is not": (
        [*training(*MODELS["ar"]), "--best-checkpoint-metric", "accuracy"],
        ["--best-checkpoint-metric accuracy", "nll_loss"],
    ),
    "an order of batches for each epoch": (
        [*training(*MODELS["ar"]), "--update-ordered-indices-seed"],
        ["--update-ordered-indices-seed", "--update-epoch-batch-itr True"],
    ),
    "beam of CMLMC": (
        [*decoding("nat"), "--beam", 4],
        ["--beam 4", "--iter-decode-with-beam"],
    ),
    "a model of other dictionaries": (
        ["generate", "data", "--task", "translation_interleaved", "--num-directions", 1, "--cpu", "--path", LARGER],
        ["encoder.embed_tokens.weight", "[17, 64]", "[16, 64]"],
    ),
    "a draft of other dictionaries": (
        [*decoding("ib"), "--beam", 1, "--draft-path", LARGER],
        ["--draft-path larger/checkpoint_last.pt", "data"],
    ),
    "tokens of a batch": (
        [*decoding("ib"), "--max-tokens", 2],
        ["--max-tokens", "2"],
    ),
    "a long source": (
        [*decoding("ib"), "--max-source-positions", 2],
        ["sentence 0", "--max-source-positions", "--truncate-source", "--skip-invalid-size-inputs-valid-test"],
    ),
    "shards": (
        [*decoding("ib"), "--num-shards", 3, "--shard-id", 1],
        ["--num-shards 3", "--distributed-world-size 3"],
    ),
    "a folder that cannot be named": (
        [*training(*MODELS["ib"]), "--save-dir", "new:1"],
        ["--save-dir new:1", "':'"],
    ),
    "no checkpoint to begin with": (
        [*training(*MODELS["ib"]), "--restore-file", "typo.pt", "--save-dir", "new"],
        ["--restore-file typo.pt", "does not exist"],
    ),
    "another kind of model to begin with": (
        [*training(*MODELS["ib"]), "--restore-file", LARGER, "--reset-optimizer", "--save-dir", "new"],
        ["larger/checkpoint_last.pt", "--finetune-from-model"],
    ),
    "no --task": (
        ["validate", "data", "--path", "ib/checkpoint_last.pt", "--cpu"],
        ["--task NAME", "validate --help"],
    ),
    "override": (
        [*decoding("ib"), "--model-overrides", "{'decoder_layer': 3}"],
        ["--model-overrides", "'decoder_layer'", "decoder_layers?"],
    ),
    "overrides that are no dictionary": (
        [*decoding("ib"), "--model-overrides", "{decoder_layers: 3"],
        ["--model-overrides '{decoder_layers: 3'"],
    ),
    "flag": (
        [*decoding("ib"), "--lenpne", 0.6],
        ["--lenpne", "--lenpen?", "generate --help"],
    ),
    "flag of the model": (
        [*training(*MODELS["ib"]), "--decoder-layrs", 3],
        ["--decoder-layrs", "--decoder-layers?", "train --help"],
    ),
    "flag of another task": (
        [*training(*MODELS["ar"]), "--num-directions", 2],
        ["--num-directions", "--task translation_interleaved", "train --help"],
    ),
    "task": (
        ["generate", "data", "--task", "translation_interleavd"],
        ["--task 'translation_interleavd'", "translation_interleaved?", "generate --help"],
    ),
    "architecture": (
        ["train", "data", "--arch", "ibdecodr"],
        ["--arch 'ibdecodr'", "ibdecoder?", "train --help"],
    ),
    "Latin-1": (
        preprocessing("latin"),
        ["latin.en, line 2", "iconv -f latin1 -t utf8 latin.en"],
    ),
    "byte-order mark": (
        preprocessing("bom"),
        ["bom.en", r"sed -i '1s/^\xEF\xBB\xBF//' bom.en"],
    ),
    "uneven sides": (
        preprocessing("uneven"),
        ["--trainpref", "uneven.en has 2", "uneven.de has 1"],
    ),
    "carriage returns": (
        preprocessing("returns"),
        ["returns.en, line 1", r"sed -i 's/\r/ /g' returns.en"],
    ),
    "a file in place of a folder": (
        [*configured("ibdecoder")[:-1], "--save-dir", "latin.en"],
        ["latin.en exists", "another folder"],
    ),
    "data that are there": (
        ["preprocess", "-s", "en", "-t", "de", "--trainpref", "raw/train", "--destdir", "other"],
        ["other/dict.en.txt exists", "--srcdict", "--tgtdict"],
    ),
    "half a description": (
        ["train", "begun", "--row", "ibdecoder", "--scale", "embedded", "--print"],
        ["begun/text.json is damaged"],
    ),
    "no recipe in its file": (
        ["evaluate", "empty", "half", "--cpu"],
        ["empty/recipe.yaml is damaged"],
    ),
    "half a recipe": (
        ["evaluate", "cut", "half", "--cpu"],
        ["cut/recipe.yaml is damaged"],
    ),
    "name of a section, .yml": (
        configured("name.yml"),
        ["name.yml", "'trian'", "'train'?", "line 2"],
    ),
    "YAML": (
        configured("syntax.yaml"),
        ["syntax.yaml", "line 3"],
    ),
    "base": (configured("itself.yaml"), ["itself.yaml", "itself"]),
    "section": (
        configured("text.yaml"),
        ["text.yaml", "train", "'lr 1'", "line 2"],
    ),
    "flag in YAML": (
        configured("flag.yaml"),
        ["flag.yaml", "'max-updaet'", "'max-update'?", "line 4"],
    ),
    "flag behind a row": (
        [*configured("../data.yaml"), "--save-dri", "checkpoints"],
        ["--save-dri", "--save-dir?", "train --help"],
    ),
    "BLEU without decoding": (
        [*training(*MODELS["ar"]), "--best-checkpoint-metric", "bleu"],
        ["--best-checkpoint-metric bleu", "--eval-bleu"],
    ),
    "name of a section": (
        configured("name.yaml"),
        ["name.yaml", "'trian'", "'train'?", "line 2"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, folder: Path, tmp_path: Path) -> None:
    words, named = MISTAKES[mistake]
    printed = commands.run(CLI, *words, cwd=folder, check=False)
    last = printed.splitlines()[-1]
    assert last.startswith(f"amlp-fairseq {words[0]}: ")
    assert [each for each in named if each not in last] == [], last
    assert "Traceback" not in printed
    assert not list(folder.glob("data-*/*.bin"))


def test_carriage_returns_at_the_ends_of_lines(folder: Path, tmp_path: Path) -> None:
    printed = commands.run(CLI, *preprocessing("ends")[:-1], tmp_path / "data", cwd=folder)
    assert printed.count("2 sents") == 2


def test_another_dictionary_is_one_line(folder: Path) -> None:
    printed = commands.run(CLI, *decoding("ib", data="other"), cwd=folder, check=False)
    assert "amlp-fairseq generate: the source dictionary of other (" in printed.splitlines()[-1]
    assert "Traceback" not in printed


def test_a_bug_keeps_its_traceback(folder: Path) -> None:
    """A checkpoint whose weights are missing: not what a user has typed."""
    (folder / "bug").mkdir()
    state = torch.load(folder / "ib/checkpoint_last.pt", weights_only=False)
    del state["model"]
    torch.save(state, folder / "bug/checkpoint_last.pt")
    printed = commands.run(CLI, *decoding("bug", task="translation_interleaved"), cwd=folder, check=False)
    assert "Traceback" in printed
    assert "KeyError: 'model'" in printed.splitlines()[-1]


def test_an_option_that_a_checkpoint_is_too_old_for(folder: Path) -> None:
    """``--model-overrides`` sets it, also where the checkpoint does not have it."""
    (folder / "old").mkdir()
    state = torch.load(folder / "ib/checkpoint_last.pt", weights_only=False)
    model = state["cfg"]["model"]
    model = vars(model) if not isinstance(model, dict) else model
    state["cfg"]["model"] = {name: value for name, value in model.items() if name != "decoder_attention_mask"}
    torch.save(state, folder / "old/checkpoint_last.pt")
    outputs = [
        commands.lines(commands.run(CLI, *decoding("old", task="translation_interleaved"), *more, cwd=folder), "H")
        for more in ([], ["--model-overrides", "{'decoder_attention_mask': 'vanilla'}"])
    ]
    assert outputs[0].keys() == outputs[1].keys() == {0, 1, 2}
    assert outputs[0] != outputs[1]


def test_fairseqs_own_programs(folder: Path) -> None:
    """fairseq-generate with --user-dir."""
    program = Path(shutil.which("fairseq-generate") or "")
    words = [*decoding("ib")[1:], "--user-dir", commands.PLUGIN, "--match-source-len"]
    printed = commands.fresh(program, *words, cwd=folder, check=False)
    assert printed.returncode == 1
    last = printed.stdout.splitlines()[-1]
    assert last.startswith("fairseq-generate: --match-source-len True: only models that write word by word")
    assert "Traceback" not in printed.stdout
