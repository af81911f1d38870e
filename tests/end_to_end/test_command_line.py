"""What a user meets on the command line: decoding needs only the checkpoint, and bad input is named."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from fairseq import checkpoint_utils

from amlp_fairseq.models.interleaved_decoder import IBDecoderModel

sys.path.insert(0, str(commands.ROOT / "examples/word_dependence"))
import pmi

pytestmark = pytest.mark.xdist_group("command-line")
PLUGIN: list[Any] = ["--user-dir", commands.PLUGIN]
TASK = [*PLUGIN, "--task", "translation_interleaved"]
WORDS = [f"w{i}" for i in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binarised corpus of random sentences, and two models of pattern (2, 2) trained on it for a few updates."""
    path = tmp_path_factory.mktemp("command-line")
    rng = random.Random(1)
    (path / "raw").mkdir()
    for split, count in {"train": 60, "valid": 11, "test": 13}.items():
        sentences = [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(count)]
        for language in ("src", "tgt"):
            (path / "raw" / f"{split}.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    commands.preprocess(path / "raw", path / "data-bin", "src", "tgt")
    train(path, "model", "--words-per-direction", 2)
    train(path, "other", "--words-per-direction", 2, "--seed", 2)
    return path


def train(path: Path, name: str, *options: object, updates: int = 4, check: bool = True) -> str:
    return commands.run(
        *("fairseq_cli.train", path / "data-bin", *TASK, "--arch", "ibdecoder_tiny", *commands.TRAINING),
        *("--lr", "0.001", "--max-tokens", "200", "--max-update", updates, "--save-dir", path / name),
        *("--no-epoch-checkpoints", *options),
        check=check,
    )


def generate(path: Path, *options: object, name: str = "model", check: bool = True) -> str:
    return commands.run(
        *("fairseq_cli.generate", path / "data-bin", "--path", path / name / "checkpoint_last.pt", "--cpu"),
        *("--max-len-b", "20", *options),
        check=check,
    )


def test_mutual_information_of_words_written_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Perplexities and their estimate, against the models' own probabilities of the words of the test set."""
    train(folder, "turns", "--words-per-direction", 0, updates=30)
    names = ("turns", "model")
    perplexities = []
    for name in names:
        path = str(folder / name / "checkpoint_last.pt")
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path])
        task.load_dataset("test")
        data = task.dataset("test")
        total = words = 0.0
        for i in range(len(data)):
            sample = data.collater([data[i]])
            log_probabilities = model.eval()(**sample["net_input"])[0].log_softmax(dim=-1)
            targets = model.get_targets(sample, None)
            total -= float(log_probabilities.gather(2, targets.unsqueeze(2))[targets != 1].sum())
            words += float((targets != 1).sum())
        assert words == sum(len(data[i]["target"]) for i in range(len(data)))
        perplexities.append(math.exp(total / words))
    checkpoints = [folder / name / "checkpoint_last.pt" for name in names]
    monkeypatch.setattr(subprocess, "run", commands.run_module)
    commands.call(pmi, monkeypatch, folder / "data-bin", *checkpoints, "--cpu")
    printed = capsys.readouterr().out
    found = re.search(r"perplexity (\S+) and (\S+), estimated PMI (\S+)", printed)
    assert found is not None, printed
    expected = [*perplexities, math.log10(perplexities[1] / perplexities[0])]
    assert [float(number) for number in found.groups()] == pytest.approx(expected, abs=0.02)
    assert expected[2] > 0.05


def test_pattern_travels_with_the_checkpoint(folder: Path) -> None:
    output = generate(folder, *TASK, "--print-step", "--beam", 3, "--nbest", 2)
    steps, scores = commands.lines(output, "I"), commands.lines(output, "P")
    assert steps.keys() == set(range(13))
    for i, (count,) in steps.items():
        assert int(count) == -(-len(scores[i][0].split()) // 4)
    assert output.count("\nH-") == 26


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-directions", 4], "--num-directions is 4, the checkpoint has 2"),
        (["--words-per-direction", 1], "--words-per-direction is 1, the checkpoint has 2"),
        (["--num-directions", 3], "--num-directions must be 1 or an even number"),
        (["--words-per-direction", -1], "--words-per-direction must be at least 0, not -1"),
        (["--diverse-beam-groups", 2], "--diverse-beam-groups 2: only models that write word by word"),
        (["--prefix-size", 1], "--prefix-size 1: only models that write word by word"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_contradictions_and_unsupported_options_are_named(folder: Path, options: list, message: str) -> None:
    output = generate(folder, *TASK, *options, check=False)
    assert message in output.splitlines()[-1]
    assert "\nH-" not in output


def test_forgotten_task_is_named(folder: Path) -> None:
    output = generate(folder, *PLUGIN, check=False)
    assert "--task translation_interleaved" in output.splitlines()[-1]
    assert "\nH-" not in output


def test_checkpoint_of_another_architecture_is_named(folder: Path) -> None:
    commands.run(
        *("fairseq_cli.train", folder / "data-bin", *PLUGIN, "--arch", "transformer_tiny", *commands.TRAINING),
        *("--lr", "0.001", "--max-tokens", "200", "--max-update", 1, "--save-dir", folder / "stock"),
        *("--no-epoch-checkpoints",),
    )
    output = generate(folder, *TASK, name="stock", check=False)
    assert "not trained with --task translation_interleaved" in output.splitlines()[-1]
    # What fairseq's search finds, this one finds.
    every_sentence = ["--required-batch-size-multiple", 1]
    theirs = generate(folder, *PLUGIN, "--print-alignment", *every_sentence, name="stock")
    for options in ([], ["--decode-dtype", "float32"], ["--retain-dropout-modules", "none"]):
        ours = generate(folder, *TASK, "--num-directions", 1, "--print-alignment", *options, name="stock")
        assert commands.lines(ours, "A") == commands.lines(theirs, "A")
        expected = commands.lines(theirs, "H")
        for i, (score, words) in commands.lines(ours, "H").items():
            stock_score, stock_words = expected.pop(i)
            assert words == stock_words
            assert float(score) == pytest.approx(float(stock_score), abs=1e-4)
        assert not expected


def test_another_architecture_is_not_trained_on_interleaved_targets(folder: Path) -> None:
    output = train(folder, "mixed", "--arch", "transformer_tiny", check=False)
    assert "'transformer_tiny' does not generate in interleaved order" in output.splitlines()[-1]


def test_missing_data_folder_is_named(folder: Path) -> None:
    output = commands.run(
        *("fairseq_cli.generate", folder / "nowhere", *TASK, "--path", folder / "model/checkpoint_last.pt", "--cpu"),
        check=False,
    )
    assert f"the data folder '{folder / 'nowhere'}' does not exist" in output.splitlines()[-1]


@pytest.mark.parametrize("change", ["permuted", "longer"])
def test_another_dictionary_is_named(folder: Path, change: str, tmp_path: Path) -> None:
    words = [f"{word} 1" for word in WORDS]
    words = words[::-1] if change == "permuted" else [*words, "extra 1"]
    (tmp_path / "dict.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    raw = folder / "raw"
    commands.run(
        *("fairseq_cli.preprocess", "-s", "src", "-t", "tgt", "--destdir", tmp_path, "--testpref", raw / "test"),
        *("--srcdict", tmp_path / "dict.txt", "--tgtdict", tmp_path / "dict.txt"),
    )
    checkpoint = folder / "model/checkpoint_last.pt"
    output = commands.run(*("fairseq_cli.generate", tmp_path, *TASK, "--path", checkpoint, "--cpu"), check=False)
    assert "the source dictionary of" in output.splitlines()[-1]
    assert "is not the one that the model was trained with" in output.splitlines()[-1]


def test_training_resumes_and_refuses_another_pattern(folder: Path) -> None:
    train(folder, "resumed", updates=2)
    output = train(folder, "resumed", updates=4)
    assert "Loaded checkpoint" in output
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "resumed/checkpoint_last.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 4
    output = train(folder, "resumed", "--num-directions", 4, updates=6, check=False)
    assert "(2, 1, 0), this run (4, 1, 0)" in output


def test_moving_average_of_weights(folder: Path) -> None:
    train(folder, "ema", "--store-ema", "--ema-decay", 0.9, "--ema-fp32")
    train(folder, "ema", "--store-ema", "--ema-decay", 0.9, "--ema-fp32", updates=6)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "ema/checkpoint_last.pt"))
    assert state["extra_state"]["ema"]["decoder.interleaving"].round().tolist() == [2, 1, 0]


def test_interactive_keeps_every_line_at_its_place(folder: Path) -> None:
    lines = ["w1 w2 w3", "", "w4", "never seen words", "w5 w6 w7 w8 w1 w2", ""]
    interactive = [
        *("fairseq_cli.interactive", folder / "data-bin", *TASK, "--cpu", "--beam", 3),
        *("--path", folder / "model/checkpoint_last.pt", "--max-len-b", 20, "--buffer-size", 6, "--batch-size", 4),
    ]
    output = commands.run(*interactive, text="\n".join(lines) + "\n")
    hypotheses = commands.lines(output, "H")
    assert list(hypotheses) == list(range(6))
    assert [hypotheses[i][1] == "" for i in range(6)] == [line == "" for line in lines]
    sources = commands.lines(output, "S")
    assert sources[3][0] == "<unk> <unk> <unk>"
    alone = commands.run(*interactive, text="w4\n")
    (score, hypothesis), (score_in_batch, hypothesis_in_batch) = commands.lines(alone, "H")[0], hypotheses[2]
    assert hypothesis == hypothesis_in_batch
    assert float(score) == pytest.approx(float(score_in_batch), abs=1e-4)


def test_interactive_takes_no_notice_of_what_a_cluster_left(folder: Path) -> None:
    output = commands.fresh(
        *("fairseq_cli.interactive", folder / "data-bin", *TASK, "--cpu"),
        *("--path", folder / "model/checkpoint_last.pt", "--max-len-b", 20),
        env={"WORLD_SIZE": "4"},
        input="w1 w2 w3\n",
    ).stdout
    assert commands.lines(output, "S") == {0: ["w1 w2 w3"]}
    assert commands.lines(output, "H").keys() == {0}


def test_interactive_names_a_line_that_is_too_long(folder: Path) -> None:
    output = commands.run(
        *("fairseq_cli.interactive", folder / "data-bin", *TASK, "--cpu", "--max-source-positions", 5),
        *("--path", folder / "model/checkpoint_last.pt"),
        text="w1 w2 w3 w4 w5 w6\n",
        check=False,
    )
    assert "1 sentence(s) are too long" in output
    assert "--max-source-positions" in output.splitlines()[-1]


def test_generate_keeps_empty_lines(folder: Path, tmp_path: Path) -> None:
    for language in ("src", "tgt"):
        (tmp_path / f"test.{language}").write_text("w1 w2\n\nw3\n", encoding="utf-8")
    commands.run(
        *("fairseq_cli.preprocess", "-s", "src", "-t", "tgt", "--destdir", tmp_path, "--testpref", tmp_path / "test"),
        *("--srcdict", folder / "data-bin/dict.src.txt", "--tgtdict", folder / "data-bin/dict.tgt.txt"),
    )
    output = commands.run(
        *("fairseq_cli.generate", tmp_path, *TASK, "--path", folder / "model/checkpoint_last.pt", "--cpu"),
        *("--max-len-b", 20),
    )
    hypotheses = commands.lines(output, "H")
    assert sorted(hypotheses) == [0, 1, 2]
    assert [hypotheses[i][1] == "" for i in range(3)] == [False, True, False]


def test_decode_dtypes(folder: Path) -> None:
    plain = commands.lines(generate(folder, *TASK), "H")
    found = commands.lines(generate(folder, *TASK, "--decode-dtype", "int8"), "H")
    assert found.keys() == plain.keys()
    assert found != plain  # the scores at least
    output = generate(folder, *TASK, "--decode-dtype", "float16", check=False)
    assert "--decode-dtype float16 is not for cpu: choose one of float32, bfloat16, int8" in output.splitlines()[-1]


def test_ensembles_and_half_precision(folder: Path) -> None:
    paths = f"{folder}/model/checkpoint_last.pt:{folder}/other/checkpoint_last.pt"
    outputs = [
        commands.run(
            *("fairseq_cli.generate", folder / "data-bin", *TASK, "--path", paths, "--cpu", "--max-len-b", 20),
            *options,
        )
        for options in ([], ["--fp16"], ["--bf16"])
    ]
    scores = [commands.lines(output, "H") for output in outputs]
    for half in scores[1:]:
        assert half.keys() == scores[0].keys() == set(range(13))
        assert half != scores[0]  # the precision did change
        for i in range(13):
            assert float(half[i][0]) == pytest.approx(float(scores[0][i][0]), abs=0.1)
    single = commands.lines(generate(folder, *TASK), "H")
    assert single != scores[0]


@pytest.mark.parametrize("option", ["--bf16", "--fp16"])
def test_half_precision_training(folder: Path, option: str) -> None:
    train(folder, option.strip("-"), option, "--fp16-no-flatten-grads")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / option.strip("-") / "checkpoint_last.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 4
    assert all(torch.isfinite(w).all() for w in state["model"].values())


def test_bleu_during_training_reads_recovered_outputs(folder: Path) -> None:
    options = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 20}', "--best-checkpoint-metric", "bleu"]
    output = train(folder, "bleu", *options, "--maximize-best-checkpoint-metric", "--eval-bleu-print-samples")
    assert " | bleu " in output
    references = (folder / "raw/valid.tgt").read_text(encoding="utf-8").splitlines()
    samples = [line.split("example reference: ")[1] for line in output.splitlines() if "example reference" in line]
    assert samples
    assert set(samples) <= set(references)
    assert checkpoint_utils.load_checkpoint_to_cpu(str(folder / "bleu/checkpoint_best.pt"))


@pytest.mark.parametrize("ablation", [["--decoder-attention-mask", "vanilla"], ["--decoder-word-positions", "vanilla"],
                                      ["--decoder-attention-mask", "independent-directions"], ["--middle-to-side"]],
                         ids=" ".join)  # fmt: skip
def test_ablations_train_and_decode(folder: Path, ablation: list[str]) -> None:
    name = "-".join(ablation).strip("-")
    train(folder, name, *ablation, updates=1)
    assert commands.lines(generate(folder, *TASK, name=name), "H").keys() == set(range(13))
    path = str(folder / name / "checkpoint_last.pt")
    model = checkpoint_utils.load_model_ensemble_and_task([path])[0][0]
    chosen = (model.decoder.mask, model.decoder.position_directions, model.decoder.order.middle_to_side)
    assert chosen != ("interleaved", 2, False)


def test_from_pretrained_translates_text(folder: Path) -> None:
    hub = IBDecoderModel.from_pretrained(
        str(folder / "model"), "checkpoint_last.pt", str(folder / "data-bin"), bpe=None, tokenizer=None
    )
    sentences = ["w1 w2 w3", "w4"]
    translations = hub.translate(sentences, beam=3, max_len_b=20)
    lines = commands.run(
        *("fairseq_cli.interactive", folder / "data-bin", *TASK, "--cpu", "--beam", 3, "--max-len-b", 20),
        *("--path", folder / "model/checkpoint_last.pt"),
        text="\n".join(sentences) + "\n",
    )
    assert translations == [fields[1] for fields in commands.lines(lines, "H").values()]


def test_validation_counts_every_sentence(folder: Path) -> None:
    output = commands.run(
        *("fairseq_cli.validate", folder / "data-bin", *TASK, "--path", folder / "model/checkpoint_last.pt", "--cpu"),
        *("--valid-subset", "valid", "--max-tokens", 4000, "--log-format", "json"),
    )
    assert '"valid_bsz": "11"' in output  # one batch of all 11 sentences
