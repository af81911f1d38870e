"""What a training's validation says by --eval-bleu, of every system, is what fairseq-generate and sacreBLEU say of the
checkpoint of that update."""

from __future__ import annotations

import json
import random
import re
import struct
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import commands
import pytest
import sacrebleu
import tolerance
import torch
from fairseq import checkpoint_utils
from filelock import FileLock
from small_systems import SYSTEMS, TINY

from amlp_fairseq.training import config

#: Words in pieces, and how they are written behind others in German (Moses writes English 's without a space).
WRITTEN = {"▁Haus": " Haus", "▁Baum es": " Baumes", "▁See": " See", "▁,": ",", "▁'s": " 's"}
SENTENCES = 11
BLEU = [
    *("--eval-bleu", "--eval-bleu-detok", "moses", "--eval-bleu-remove-bpe", "sentencepiece"),
    *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
]


@pytest.fixture(scope="module")
def pieces(shared: Path) -> Path:
    """Random words, of which every target is its source; raw/valid.txt has the validation set as it is written."""
    folder = shared / "pieces"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            part, rng = shared / "pieces.part", random.Random(1)
            (part / "raw").mkdir(parents=True)
            for split, count in {"train": 100, "valid": SENTENCES, "test": 1}.items():
                sentences = [["▁See", *rng.choices([*WRITTEN], k=rng.randint(1, 7))] for _ in range(count)]
                text = ["".join(WRITTEN[word] for word in words).strip() for words in sentences]
                (part / f"raw/{split}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
                for language in ("en", "de"):
                    cut = "\n".join(map(" ".join, sentences)) + "\n"
                    (part / f"raw/{split}.{language}").write_text(cut, encoding="utf-8")
            commands.preprocess(part / "raw", part / "data")
            part.rename(folder)
    return folder


def valid_line(log: str) -> dict[str, float]:
    """The numbers of the last validation of a log."""
    line = [line for line in log.splitlines() if "valid on 'valid' subset | loss" in line][-1]
    return {name: float(value) for name, value in re.findall(r"(\w+) (-?[\d.]+)(?= \||$)", line)}


#: One of each task and search; the others take a minute.
QUICK = ("ibdecoder_sa", "lightconv", "cmlmc")


@pytest.mark.parametrize("row", [row if row in QUICK else pytest.param(row, marks=pytest.mark.long) for row in SYSTEMS])
def test_training_says_what_generate_and_sacrebleu_say(row: str, pieces: Path, tmp_path: Path) -> None:
    recipe = config.load(row, "embedded", "embedded")
    search = {"beam": 4, "max_len_b": 9, "min_len": 3, "no_repeat_ngram_size": 2}
    if recipe.task["task"] == "translation_cmlmc":
        search = {"iter_decode_max_iter": 2, "iter_decode_with_beam": 3}
    log = commands.run(
        *("amlp_fairseq.training.train", pieces / "data", "--corpus", "embedded", "--row", row, "--scale", "embedded"),
        *(
            *TINY,
            "--max-update",
            40,
            "--lr",
            0.01,
            "--save-dir",
            tmp_path,
            *BLEU,
            "--eval-bleu-args",
            json.dumps(search),
        ),
        *("--batch-size-valid", 4, "--validate-interval", 99),
    )
    found = valid_line(log)
    flags = [word for name, value in search.items() for word in (f"--{name.replace('_', '-')}", value)]
    output = commands.run(
        *("fairseq_cli.generate", pieces / "data", "--user-dir", commands.PLUGIN, "-s", "en", "-t", "de", "--cpu"),
        *("--path", tmp_path / "checkpoint_last.pt", *config.flags(recipe.task, row), *flags, "--print-step"),
        *("--gen-subset", "valid", "--remove-bpe", "sentencepiece", "--tokenizer", "moses"),
    )
    hypotheses, detokenised = commands.lines(output, "H"), commands.lines(output, "D")
    steps = [int(fields[0]) for fields in commands.lines(output, "I").values()]
    references = (pieces / "raw/valid.txt").read_text(encoding="utf-8").splitlines()
    texts = [detokenised[i][1].replace("<unk>", "UNKNOWNTOKENINHYP") for i in range(SENTENCES)]
    assert found["bleu"] > 0
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [references]).score, abs=tolerance.printed(2))
    written = [hypotheses[i][1].split() for i in range(SENTENCES)]
    expected = [line.replace(",", " ,").split() for line in references]
    errors = [abs(len(one) - len(other)) for one, other in zip(written, expected, strict=True)]
    repeated = sum(one == other for words in written for one, other in pairwise(words))
    assert found["decoder_calls"] == pytest.approx(sum(steps) / SENTENCES, abs=tolerance.printed(2))
    assert found["length_error"] == pytest.approx(sum(errors) / SENTENCES, abs=tolerance.printed(2))
    assert found["repetition"] == pytest.approx(repeated / max(sum(map(len, written)), 1), abs=tolerance.printed(4))


def test_one_search_validates_all_systems(pieces: Path, tmp_path: Path) -> None:
    """A training of fairseq's translation task: fairseq-train's own search finds the same BLEU of the same weights, and
    is there for what only it has. Without dropout, for which amlp-fairseq draws other numbers."""
    words = [pieces / "data", "--arch", "transformer_tiny", *TINY, "--max-update", 300, "--lr", 0.01, *BLEU]
    words += ["--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam", "--validate-interval", 99]
    words += ["--share-all-embeddings", "--eval-bleu-print-samples", "--batch-size-valid", 4, "--dropout", 0]
    search: dict[str, object] = {"beam": 4, "max_len_b": 9, "min_len": 3, "no_repeat_ngram_size": 2, "lenpen": 0.6}
    args = ["--eval-bleu-args", json.dumps(search)]
    ours = commands.run("amlp_fairseq.training.train", *words, *args, "--save-dir", tmp_path / "ours")
    stock = commands.run("fairseq_cli.train", *words, *args, "--save-dir", tmp_path / "stock")
    weights = [
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / name / "checkpoint_last.pt"))["model"]
        for name in ("ours", "stock")
    ]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert "amlp-fairseq's search" in ours
    said = [re.findall(r"example (?:hypothesis|reference): .*", log) for log in (ours, stock)]
    assert said[0] == said[1] != []
    assert valid_line(ours)["bleu"] == valid_line(stock)["bleu"] > 1
    args = ["--eval-bleu-args", '{"beam": 1, "max_len_b": 9, "sampling": true}']
    log = commands.run("amlp_fairseq.training.train", *words, *args, "--max-update", 1, "--save-dir", tmp_path / "own")
    assert "amlp-fairseq's search" not in log
    assert "bleu" in valid_line(log)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The values by update of each scalar in a folder of TensorBoard: records of length, checksum, event, checksum."""
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for path in folder.glob("events.*"):
        data, start = path.read_bytes(), 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            event = events.Event.FromString(data[start + 12 : start + 12 + length])
            start += length + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag][event.step] = value.simple_value
    return found


def test_tensorboard_has_what_the_log_has(pieces: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    log = commands.fresh(  # the writer's thread ends with its process
        *("amlp_fairseq", "train", pieces / "data", "--corpus", "embedded", "--row", "cmlmc", "--scale", "embedded"),
        *(*TINY, "--save-dir", tmp_path / "model", *BLEU, "--max-update", 4, "--update-freq", 1, "--log-interval", 1),
        *("--eval-bleu-args", '{"iter_decode_max_iter": 1}', "--self-correction", 2),
        *("--tensorboard-logdir", tmp_path / "board"),
    ).stdout
    valid = scalars(tmp_path / "board/valid")
    for name in ("bleu", "decoder_calls", "length_error", "repetition", "correction"):
        assert valid[name][4] == pytest.approx(valid_line(log)[name]), name
    steps = {name: [*values] for name, values in scalars(tmp_path / "board/train_inner").items()}
    assert steps["word_ins"] == [1, 2, 3, 4]
    assert steps["correction"] == [3, 4]  # those that follow 2 updates
