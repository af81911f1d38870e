"""A model folder translates as the checkpoint does that it was made of, for all systems."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import stock
import torch
from fairseq import checkpoint_utils, options, tasks
from small_systems import SYSTEMS, WORDS, System
from test_any_text import line

from amlp_fairseq import Translator
from amlp_fairseq.cli.package import package


def folder_of(trained: System, out: Path, weights: str = "float32", other: list[Path] | None = None) -> Path:
    """The model folder of a system, or of the mean of it and other checkpoints."""
    paths = [trained.checkpoint, *(other or [])]
    args = stock.package_arguments(trained.checkpoint, out, weights=weights)
    args.checkpoints = paths
    package(args, trained.short)
    return out


def untrained(data: Path, *words: str) -> tuple[Any, Any, Any]:
    """The options, task and model of a training with fairseq's own task of translation."""
    line = [str(data), "--task", "translation", *words]
    args = options.parse_args_and_arch(options.get_training_parser(), line)
    task = tasks.setup_task(args)
    return args, task, task.build_model(args).eval()


#: fairseq's other models, with sizes that take no time.
OTHERS = {
    "lstm": ["--encoder-embed-dim=16", "--decoder-embed-dim=16"],
    "fconv": [
        *("--encoder-embed-dim=16", "--decoder-embed-dim=16", "--decoder-out-embed-dim=16"),
        *("--encoder-layers=[(16, 3)] * 2", "--decoder-layers=[(16, 3)] * 2"),
    ],
    "lightconv": [
        *(f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("embed-dim=16", "ffn-embed-dim=32")),
        *(f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("attention-heads=2", "layers=2")),
        *("--encoder-kernel-size-list=3,3", "--decoder-kernel-size-list=3,3"),
    ],
}


@pytest.mark.parametrize("arch", OTHERS)
def test_fairseqs_other_models(arch: str, data: Path, tmp_path: Path) -> None:
    """Their search does not say how many calls it made."""
    torch.manual_seed(1)  # other parameters may write start symbols, which are no pieces
    args, _, model = untrained(data, "--arch", arch, *OTHERS[arch])
    history = {"criterion_name": None, "optimizer_name": None, "lr_scheduler_state": {}, "num_updates": 0}
    state = {"args": args, "model": model.state_dict(), "optimizer_history": [history], "extra_state": {"epoch": 1}}
    torch.save(state, tmp_path / "checkpoint.pt")
    folder = folder_of(System(arch, data, tmp_path / "checkpoint.pt", []), tmp_path / "model")
    (greedy,) = Translator(folder, beam=1).translations(["w1 w2 w3"])
    assert greedy.calls == len(greedy.pieces) + 1
    translator, texts = Translator(folder, beam=3), ["w1 w2 w3", "w4 w5 w6", "w7 w8 w9"]
    (best,) = translator.translations(["w1 w2 w3"])
    assert best.calls > len(best.pieces)
    assert translator.translate(texts, beam=1) == Translator(folder, beam=1).translate(texts)


@pytest.mark.parametrize("row", SYSTEMS)
def test_weights(row: str, system: Callable[[str], System], tmp_path: Path) -> None:
    trained = system(row)
    weights = torch.load(trained.checkpoint, weights_only=True)["model"]
    stored = checkpoint_utils.load_checkpoint_to_cpu(str(folder_of(trained, tmp_path / "model")))["model"]
    assert weights.keys() == stored.keys()
    assert all(torch.equal(weights[name], stored[name]) for name in weights)


def test_weights_of_several(system: Callable[[str], System], tmp_path: Path) -> None:
    """Their mean, and tied weights are stored once."""
    trained, second = system("ibdecoder"), tmp_path / "second.pt"
    state = torch.load(trained.checkpoint, weights_only=True)
    first = dict(state["model"])
    matrices = {name: weight for name, weight in first.items() if weight.dim() == 2}
    state["model"] = {**first, **{name: 3 * weight for name, weight in matrices.items()}}
    torch.save(state, second)
    folder = folder_of(trained, tmp_path / "model", other=[second])
    stored = checkpoint_utils.load_checkpoint_to_cpu(str(folder))["model"]
    assert all(torch.equal(stored[name], 2 * weight) for name, weight in matrices.items())
    alone = folder_of(trained, tmp_path / "alone")
    assert (folder / "model.safetensors").stat().st_size == (alone / "model.safetensors").stat().st_size


BOUNDED = ("ibdecoder_sa", "aan", "cmlmc_amlp")


@pytest.mark.parametrize(
    "row", [*BOUNDED, *(pytest.param(row, marks=pytest.mark.long) for row in SYSTEMS if row not in BOUNDED)]
)
def test_translations(row: str, system: Callable[[str], System], data: Path, tmp_path: Path) -> None:
    """The words, scores and decoder calls of fairseq-generate."""
    trained = system(row)
    folder = folder_of(trained, tmp_path / "model")
    output = commands.run("fairseq_cli.generate", *trained.options, "--print-step")
    sources = (data.parent / "raw/test.en").read_text(encoding="utf-8").splitlines()
    found = Translator(folder).translations(sources)
    expected = commands.lines(output, "H")
    for number, translation in enumerate(found):
        score, words = expected[number]
        assert translation.text == words
        assert translation.score / math.log(2) == pytest.approx(float(score), abs=1e-3)
        if "translation" not in trained.decoding:  # fairseq's search does not say how many calls it made
            assert translation.calls == int(commands.lines(output, "I")[number][0])


def decodes_with(folder: Path, **options: Any) -> Path:
    """Write decoding options into a folder whose task is older than they are."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["decoding"] |= options
    config["task"] = {name: value for name, value in config["task"].items() if name not in options}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_options_that_are_newer_than_the_checkpoint(system: Callable[[str], System], tmp_path: Path) -> None:
    draft = folder_of(system("ibdecoder_sa"), tmp_path / "draft")
    folder = decodes_with(folder_of(system("amlp_transformer"), tmp_path / "model"), beam=1, draft_path=str(draft))
    assert Translator(folder).pytorch().cfg.task.draft_path == str(draft)
    with pytest.raises(ValueError, match="--draft-path"):
        Translator(folder, beam=2)


def test_a_model_that_drafts_has_no_helpers(system: Callable[[str], System], tmp_path: Path) -> None:
    verifier = folder_of(system("amlp_transformer"), tmp_path / "model")
    draft = decodes_with(folder_of(system("ibdecoder_sa"), tmp_path / "draft"), rescore_path=str(verifier))
    text = ["w1 w2 w3"]
    assert Translator(verifier, beam=1, draft_path=str(draft)).translate(text) == Translator(
        verifier, beam=1
    ).translate(text)


def test_long_texts(system: Callable[[str], System], tmp_path: Path) -> None:
    folder, text = folder_of(system("ibdecoder"), tmp_path / "model"), "w1 w2 w3 w4 w5 w6"
    translator = Translator(folder)
    (begin,), (end,) = translator.translations(["w1 w2 w3 w4"]), translator.translations(["w5 w6"])
    assert Translator(folder, long="truncate", max_length=4).translations([text]) == [replace(begin, cuts=1)]
    (split,) = Translator(folder, max_length=4).translations([text])
    assert (split.text, split.calls) == (f"{begin.text} {end.text}", begin.calls + end.calls)


@pytest.mark.parametrize("row", ["ibdecoder_sa", "cmlmc_amlp", "dynamicconv"])
@pytest.mark.parametrize("command", ["generate", "validate"])
def test_in_place_of_a_checkpoint(row: str, command: str, system: Callable[[str], System], tmp_path: Path) -> None:
    trained = system(row)
    folder = folder_of(trained, tmp_path / "model")
    words = [str(folder) if word == str(trained.checkpoint) else word for word in trained.options]
    if command == "generate":
        outputs = [commands.run("fairseq_cli.generate", *options) for options in (trained.options, words)]
        assert commands.lines(outputs[0], "H") == commands.lines(outputs[1], "H")
    else:
        task = words[words.index("--task") : words.index("--task") + 2]
        path = [str(trained.data), "--path", folder, "--user-dir", commands.PLUGIN, *task, "--batch-size", "5", "--cpu"]
        assert "loss" in commands.run("fairseq_cli.validate", *path)


@pytest.mark.parametrize(
    ("row", "count", "longest"),
    [
        *(pytest.param(row, 60, 500, id=f"{row}-bounded") for row in ("ibdecoder", "aan", "cmlmc")),
        *(pytest.param(row, 10_000, 10_000, id=f"{row}-long", marks=pytest.mark.long) for row in SYSTEMS),
    ],
)
def test_any_text(row: str, count: int, longest: int, system: Callable[[str], System], tmp_path: Path) -> None:
    """A line out for each line in, in order; empty ones for empty ones."""
    folder, rng = folder_of(system(row), tmp_path / "model"), random.Random(row)
    lines = [b"\xef\xbb\xbfw1 w2", *(line(rng) for _ in range(count - 2)), b" ".join([b"w3"] * longest)]
    rng.shuffle(lines)
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"\n".join(lines) + b"\n")
    files = ["--input", source, "--output", output, "--buffer-size", "500"]
    commands.run("amlp_fairseq.cli.main", "translate", "--model", folder, *files)
    translations = output.read_bytes().split(b"\n")
    assert translations.pop() == b""
    assert len(translations) == count
    lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")  # a mark at the beginning; anywhere else a character
    for raw, translation in zip(lines, translations, strict=True):
        if not raw.decode("utf-8", errors="replace").split():
            assert translation == b""


def test_int8_folder(system: Callable[[str], System], data: Path, tmp_path: Path) -> None:
    """Rows of int8 with their scales: a step of the scale is the largest difference."""
    trained = system("ibdecoder")
    weights = torch.load(trained.checkpoint, weights_only=True)["model"]
    stored = checkpoint_utils.load_checkpoint_to_cpu(str(folder_of(trained, tmp_path / "model", "int8")))["model"]
    for name, weight in weights.items():
        if weight.dim() == 2 and weight.is_floating_point():
            step = weight.abs().amax(dim=1, keepdim=True) / 127
            assert ((stored[name] - weight).abs() <= step * 0.5001).all()
        else:
            assert torch.equal(stored[name], weight)


def test_threads_share_a_translator(system: Callable[[str], System], tmp_path: Path) -> None:
    translator, rng = Translator(folder_of(system("ibdecoder"), tmp_path / "model")), random.Random(1)
    texts = [[" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(5)] for _ in range(8)]
    expected, found = [translator.translate(each) for each in texts], [[""]] * len(texts)

    def translate(number: int) -> None:
        found[number] = translator.translate(texts[number])

    threads = [threading.Thread(target=translate, args=[number]) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
