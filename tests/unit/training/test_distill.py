"""amlp-fairseq distill: the teacher's translations become the training targets, sentence by sentence."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from fairseq.data import Dictionary, data_utils

from amlp_fairseq.training import binarised_shards, distill
from amlp_fairseq.training.config import load
from amlp_fairseq.training.config import save as save_recipe

pytestmark = pytest.mark.xdist_group("distill")  # one process trains the teacher

WORDS = [f"w{i}" for i in range(9)]
#: Targets of up to three words, so that long sources are beyond a small ratio; several batches.
OPTIONS = ["--cpu", "--max-len-a", "0", "--max-len-b", "3", "--max-tokens", "60"]
TRAINING = [f"train.src-tgt.{language}.{end}" for language in ("src", "tgt") for end in ("bin", "idx")]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a binarised corpus of random sentences, with words that the dictionary lacks and an empty line, and
    a Transformer that has begun to learn to copy them."""
    folder = tmp_path_factory.mktemp("distill")
    rng = random.Random(1)
    (folder / "raw").mkdir()
    for split, count in {"train": 60, "valid": 5, "test": 5}.items():
        rows = [
            rng.choices([*WORDS, *WORDS, *(f"rare{i}" for i in range(40))], k=rng.randint(1, 12)) for _ in range(count)
        ]
        rows[3] = []
        for language in ("src", "tgt"):
            text = "".join(" ".join(row) + "\n" for row in rows)
            (folder / f"raw/{split}.{language}").write_text(text, encoding="utf-8")
    commands.run(
        *("fairseq_cli.preprocess", "-s", "src", "-t", "tgt", "--destdir", folder / "data", "--joined-dictionary"),
        *("--nwordssrc", len(WORDS), "--trainpref", folder / "raw/train", "--validpref", folder / "raw/valid"),
        *("--testpref", folder / "raw/test"),
    )
    (folder / "raw").rename(folder / "data/raw")
    (folder / "data/raw/train.src").rename(folder / "train.src")
    (folder / "data/raw/train.tgt").rename(folder / "train.tgt")
    (folder / "data/text.json").write_text("{}", encoding="utf-8")
    commands.run(
        *("fairseq_cli.train", folder / "data", "--user-dir", commands.PLUGIN, *commands.TRAINING, "--lr", "0.005"),
        *("--arch", "transformer_tiny", "--max-tokens", "200", "--max-update", "90", "--no-epoch-checkpoints"),
        *("--save-dir", folder, "--required-batch-size-multiple", "1", "--source-lang", "src", "--target-lang", "tgt"),
    )
    return folder


@pytest.fixture(scope="module")
def distilled(teacher: Path) -> Path:
    """What one uninterrupted run makes in a single shard."""
    words = [teacher / "checkpoint_last.pt", teacher / "data", teacher / "out"]
    commands.run("amlp_fairseq.training.distill", *words, "--max-ratio", "1", "--shards", "1", *OPTIONS)
    return teacher / "out"


def sentences(folder: Path, language: str, name: str = "train") -> list[list[int]]:
    return [row.tolist() for row in data_utils.load_indexed_dataset(str(folder / f"{name}.src-tgt.{language}"))]


def files(folder: Path) -> dict[str, Any]:
    """Every file's content; the manifest's without the commit, which can change while the tests run."""
    contents: dict[str, Any] = {name: (folder / name).read_bytes() for name in distill.files_of(folder)}
    contents["manifest.json"] = json.loads(contents["manifest.json"]) | {"commit": ""}
    return contents


def translations(data: Path, teacher: Path, *options: object) -> dict[int, list[int]]:
    """Those of stock fairseq-generate: tokens by number of the sentence."""
    printed = commands.run(
        *("fairseq_cli.generate", data, "--gen-subset", "train", "--path", teacher / "checkpoint_last.pt", *OPTIONS),
        *("--required-batch-size-multiple", "1", "--user-dir", commands.PLUGIN, *options),
    )
    entries = (data / "dict.tgt.txt").read_text(encoding="utf-8").splitlines()
    index = {"<unk>": 3} | {entry.split()[0]: number for number, entry in enumerate(entries, start=4)}
    return {i: [index[word] for word in words.split()] for i, (_, words) in commands.lines(printed, "H").items()}


def test_targets_are_the_teachers_translations(teacher: Path, distilled: Path) -> None:
    hypotheses = translations(teacher / "data", teacher, "--beam", "5")
    sources = sentences(teacher / "data", "src")
    assert hypotheses.keys() == set(range(60))
    kept = [i for i, source in enumerate(sources) if len(source) > 1 and len(source) - 1 <= len(hypotheses[i]) + 5]
    assert sentences(distilled, "src") == [sources[i] for i in kept]
    assert sentences(distilled, "tgt") == [[*hypotheses[i], 2] for i in kept]
    assert 3 not in kept
    assert len(kept) < 55
    targets = [word for i in kept for word in hypotheses[i]]
    assert 3 in targets
    assert len(set(targets)) > 3
    manifest = json.loads((distilled / "manifest.json").read_text())
    assert manifest["counts"] == {"sentences": 60, "empty": 1, "ratio": 59 - len(kept), "long": 0, "kept": len(kept)}


def test_pairs_that_are_too_long_are_left_out(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the positions of the teacher, or for --max-tokens."""
    words = [teacher / "checkpoint_last.pt", teacher / "data", tmp_path / "out", "--max-ratio", "99", *OPTIONS]
    overrides = ["--model-overrides", "{'max_source_positions': 10}"]
    commands.run("amlp_fairseq.training.distill", *words, *overrides, "--shards", "2")
    hypotheses, sources = translations(teacher / "data", teacher, "--beam", "5"), sentences(teacher / "data", "src")
    kept = [i for i, source in enumerate(sources) if 1 < len(source) <= 10]
    assert sentences(tmp_path / "out", "src") == [sources[i] for i in kept]
    assert sentences(tmp_path / "out", "tgt") == [[*hypotheses[i], 2] for i in kept]
    counts = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
    assert counts == {"sentences": 60, "empty": 1, "ratio": 0, "long": 59 - len(kept), "kept": len(kept)}
    assert counts["long"] > 5
    corpus = binarised_shards.TrainingSet.load(
        teacher / "data",
        [*binarised_shards.OPTIONS, *OPTIONS, "--max-tokens", "9"],
        str(teacher / "checkpoint_last.pt"),
    )
    decoded = {number for batch in corpus.batches for number in batch}
    assert decoded == {i for i, source in enumerate(sources) if len(source) <= 9}
    words[2] = tmp_path / "none"
    assert "data has no pair of at most [0, 0] tokens" in refusal(capsys, *words, "--max-tokens", "0")


def test_languages_with_hyphens_and_links_to_folders(teacher: Path, distilled: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    (tmp_path / "elsewhere/more").mkdir(parents=True)
    (tmp_path / "elsewhere/more/notes").write_text("of the corpus", encoding="utf-8")
    data.mkdir()
    (data / "raw").symlink_to(tmp_path / "elsewhere")
    for path in (teacher / "data").glob("*.*"):
        (data / path.name.replace("tgt", "pt-BR")).symlink_to(path)
    words = [teacher / "checkpoint_last.pt", data, out, "--max-ratio", "1", *OPTIONS]
    commands.run("amlp_fairseq.training.distill", *words)
    for name in TRAINING:
        assert (out / name.replace("tgt", "pt-BR")).read_bytes() == (distilled / name).read_bytes()
    assert (out / "raw/more/notes").read_text(encoding="utf-8") == "of the corpus"


def test_the_folder_of_a_model_is_a_teacher(teacher: Path, distilled: Path, tmp_path: Path) -> None:
    commands.run("amlp_fairseq.cli.main", "package", teacher / "checkpoint_last.pt", "--out", tmp_path / "model")
    words = [tmp_path / "model", teacher / "data", tmp_path / "out", "--max-ratio", "1", *OPTIONS]
    commands.run("amlp_fairseq.training.distill", *words)
    for language in ("src", "tgt"):
        assert sentences(tmp_path / "out", language) == sentences(distilled, language)
    [made_by] = json.loads((tmp_path / "out/manifest.json").read_text())["teacher"]
    assert made_by == {
        "path": str(tmp_path / "model"),
        "sha256": hashlib.sha256((tmp_path / "model/model.safetensors").read_bytes()).hexdigest(),
    }


def test_the_engine_is_the_plugins_unless_asked_for(teacher: Path, distilled: Path, tmp_path: Path) -> None:
    """fairseq's writes the same bytes, here from the folder of the training."""
    words = [teacher, teacher / "data", tmp_path / "out", "--max-ratio", "1", "--shards", "1", *OPTIONS]
    printed = commands.run("amlp_fairseq.training.distill", *words, "--engine", "fairseq")
    assert f"TEACHER {teacher} is checkpoint_best.pt" in printed or f"{teacher} is checkpoint_last.pt" in printed
    for name in TRAINING:
        assert (tmp_path / "out" / name).read_bytes() == (distilled / name).read_bytes()
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (distilled, tmp_path / "out")]
    assert [manifest["engine"] for manifest in manifests] == ["amlp-fairseq", "fairseq"]
    tasks = [manifest["options"][manifest["options"].index("--task") + 1 :][:1] for manifest in manifests[:1]]
    assert tasks == [["translation_interleaved"]]


MODELS = commands.ROOT / "examples/models"


@pytest.mark.parametrize(
    ("name", "engine", "expected"),
    [
        ("ar", "amlp-fairseq", "--task translation_interleaved --num-directions 1"),
        ("ar", "fairseq", "--task translation"),
        ("ibdecoder", "amlp-fairseq", "--task translation_interleaved --length-penalty gnmt"),
        (
            "ibdecoder_sa",
            "amlp-fairseq",
            "--task translation_interleaved --words-per-direction 2 --length-penalty gnmt --words-after-end count",
        ),
        ("cmlmc", "amlp-fairseq", "--task translation_cmlmc"),
    ],
)
def test_the_task_of_a_model_folder_needs_no_option(name: str, engine: str, expected: str) -> None:
    assert " ".join(distill.decoding_task([MODELS / name], engine)) == expected


def test_models_that_no_single_search_decodes() -> None:
    with pytest.raises(ValueError, match=r"ar decodes with --task translation_interleaved --num-directions 1, .*cmlmc"):
        distill.decoding_task([MODELS / "ar", MODELS / "cmlmc"], "amlp-fairseq")
    for name in ("ibdecoder", "cmlmc"):
        with pytest.raises(ValueError, match="--engine fairseq: fairseq's search does not decode a model of --task"):
            distill.decoding_task([MODELS / name], "fairseq")


def test_the_folder_of_a_training_is_its_average(teacher: Path, tmp_path: Path) -> None:
    """Of the checkpoints that its recipe names, made if it is not there."""
    state = torch.load(teacher / "checkpoint_last.pt", weights_only=True)
    for number in (1, 2, 3):
        weights = {name: torch.full_like(weight, number) for name, weight in state["model"].items()}
        torch.save({**state, "model": weights}, tmp_path / f"checkpoint{number}.pt")
    torch.save(state, tmp_path / "checkpoint_last.pt")
    recipe = load("transformer", "embedded", "embedded")
    save_recipe(replace(recipe, averages=[("last-epochs", 2)]), tmp_path / "recipe.yaml")
    assert distill.existing("TEACHER", str(tmp_path)) == [tmp_path / "average.pt"]
    averaged = torch.load(tmp_path / "average.pt", weights_only=True)["model"]
    assert all(bool((weight == 2.5).all()) for weight in averaged.values() if weight.is_floating_point())
    (tmp_path / "checkpoint3.pt").unlink()
    assert distill.existing("TEACHER", f"{tmp_path}:{tmp_path}") == [tmp_path / "average.pt"] * 2


def test_another_model_may_choose_the_targets(teacher: Path, tmp_path: Path) -> None:
    other = torch.load(teacher / "checkpoint_last.pt", weights_only=False)
    torch.manual_seed(1)
    for tensor in other["model"].values():
        if tensor.is_floating_point():
            tensor.add_(0.2 * torch.randn_like(tensor))
    torch.save(other, tmp_path / "other.pt")
    search = ["--task", "translation_interleaved", "--num-directions", "1", "--beam", "4"]
    chosen = ["--rescore-path", tmp_path / "other.pt"]
    words = [teacher / "checkpoint_last.pt", teacher / "data", tmp_path / "out", "--max-ratio", "99", "--beam", "4"]
    commands.run("amlp_fairseq.training.distill", *words, *chosen, *OPTIONS)
    hypotheses = translations(teacher / "data", teacher, *search, *chosen)
    expected = [[*hypotheses[i], 2] for i, source in enumerate(sentences(teacher / "data", "src")) if len(source) > 1]
    assert sentences(tmp_path / "out", "tgt") == expected
    assert hypotheses != translations(teacher / "data", teacher, *search)


def test_more_sources_from_a_reverse_model(teacher: Path, distilled: Path, tmp_path: Path) -> None:
    """The teacher of copying is its own reverse, if it says so."""
    checkpoint, reverse, out = teacher / "checkpoint_last.pt", tmp_path / "reverse.pt", tmp_path / "out"
    state = torch.load(checkpoint, weights_only=False)
    state["cfg"]["task"] |= {"source_lang": "tgt", "target_lang": "src"}
    torch.save(state, reverse)
    commands.run(
        *("amlp_fairseq.training.distill", checkpoint, teacher / "data", out, "--max-ratio", "1", *OPTIONS),
        *("--reverse", reverse, "--samples", "2"),
    )
    for language in ("src", "tgt"):
        assert sentences(out, language) == sentences(distilled, language)
    backwards = ["--source-lang", "tgt", "--target-lang", "src", "--sampling", "--sampling-topp", "0.9", "--beam", "1"]
    targets = sentences(teacher / "data", "tgt")
    dictionary = Dictionary.load(str(teacher / "data/dict.src.txt"))
    drawn = []
    for number in (1, 2):
        sampled = translations(teacher / "data", teacher, *backwards, "--seed", number)
        kept = [i for i in range(60) if sampled[i] and 1 < len(targets[i]) <= len(sampled[i]) + 6]
        text, data = tmp_path / f"sampled{number}", tmp_path / f"data{number}"
        text.mkdir()
        lines = "".join(dictionary.string(torch.tensor(sampled[i])) + "\n" for i in kept)
        for language in ("src", "tgt"):  # the targets are only there to be translated anew
            (text / f"train.{language}").write_text(lines, encoding="utf-8")
        commands.run(
            *("fairseq_cli.preprocess", "-s", "src", "-t", "tgt", "--destdir", data, "--trainpref", text / "train"),
            *("--srcdict", teacher / "data/dict.src.txt", "--tgtdict", teacher / "data/dict.tgt.txt"),
        )
        translated = translations(data, teacher, "--beam", "5")
        pairs = [([*sampled[i], 2], [*translated[place], 2]) for place, i in enumerate(kept)]
        pairs = [(source, target) for source, target in pairs if 1 < len(source) <= len(target) + 5]
        assert 20 < len(pairs) < 60
        assert sentences(out, "src", f"train{number}") == [source for source, _ in pairs]
        assert sentences(out, "tgt", f"train{number}") == [target for _, target in pairs]
        drawn.append(pairs)
    assert drawn[0] != drawn[1]
    manifest = json.loads((out / "manifest.json").read_text())
    assert [counts["kept"] for counts in manifest["samples"]] == [len(pairs) for pairs in drawn]
    assert [Path(model["path"]).name for model in manifest["reverse"]] == ["reverse.pt"]


def test_the_rest_is_copied(teacher: Path, distilled: Path) -> None:
    data = teacher / "data"
    copied = set(distill.files_of(data)) - {"preprocess.log", *TRAINING}
    assert {"raw/valid.tgt", "text.json", "dict.src.txt", "test.src-tgt.tgt.bin"} < copied
    assert len(copied) == 15
    assert set(distill.files_of(distilled)) == {*copied, *TRAINING, "manifest.json"}
    for name in copied:
        assert (distilled / name).read_bytes() == (data / name).read_bytes(), name


def test_manifest(teacher: Path, distilled: Path) -> None:
    def sha256(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    manifest = json.loads((distilled / "manifest.json").read_text())
    checkpoint = teacher / "checkpoint_last.pt"
    assert manifest["teacher"] == [{"path": str(checkpoint), "sha256": sha256(checkpoint)}]
    assert sorted(manifest["options"][-len(OPTIONS) :]) == sorted(OPTIONS)
    assert "--beam 5" in " ".join(manifest["options"])
    assert manifest["max_ratio"] == 1
    assert manifest["versions"].keys() == {"python", "torch", "fairseq-fixed", "amlp-fairseq"}
    for folder, digests, without in (
        (distilled, manifest["sha256"], "manifest.json"),
        (teacher / "data", manifest["data"]["sha256"], "preprocess.log"),
    ):
        assert digests == {name: sha256(folder / name) for name in distill.files_of(folder) if name != without}


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What the command says: a parser, which ends with status 2, or the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["amlp-fairseq distill", *map(str, words)])
        with pytest.raises((SystemExit, ValueError, ChildProcessError, pickle.UnpicklingError)) as stopped:
            distill.main()
    said = capsys.readouterr().err
    if isinstance(stopped.value, SystemExit):
        assert (stopped.value.code, said.count("\n")) == (2, 1)
        return said
    return str(stopped.value)


def test_killed_and_resumed_gives_the_same_bytes(
    teacher: Path, distilled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "out", tmp_path / "out.unfinished"
    words = [teacher / "checkpoint_last.pt", teacher / "data", out, "--max-ratio", "1", "--shards", "3", *OPTIONS]
    command = [sys.executable, "-m", "amlp_fairseq", "distill", *map(str, words)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while not (work / "shard-1.log").exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        process.kill()
    assert f"another run, or a process that it has left, is using {work}" in refusal(capsys, *words)
    os.killpg(process.pid, signal.SIGKILL)
    assert not out.exists()
    assert [path.name for path in work.glob("shard-*.txt")] == ["shard-0.txt"]
    with open(work / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until all that were killed are gone
    (work / "shard-1.txt.part").write_text("H-0\t-0.1\twhat was written so far\n")
    assert f"{work} was begun with other options" in refusal(capsys, *words, "--lenpen", "0.5")
    printed = commands.run("amlp_fairseq.training.distill", *words, "--jobs", "2")
    assert "2 of 3 shards to decode" in printed
    assert files(out) == files(distilled)
    assert not work.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("checkpoint_last.pt data", "the following arguments are required: OUT"),
        ("nothing.pt data new", "TEACHER nothing.pt does not exist"),
        ("checkpoint_last.pt:nothing.pt data new", "TEACHER nothing.pt does not exist"),
        ("data data new", "TEACHER data is neither a checkpoint nor the folder of a training or of a"),
        ("checkpoint_last.pt data/raw new", "DATA data/raw has no training data"),
        ("checkpoint_last.pt data data/raw", "OUT data/raw exists"),
        ("checkpoint_last.pt data new --shards 0", "--shards: '0': a number from 1 is needed"),
        (
            "checkpoint_last.pt data new --shards 99 --max-tokens 60",
            "--shards 99: choose at most 9, the number of batches",
        ),
        ("checkpoint_last.pt data new --jobs two", "--jobs: 'two': a number from 1 is needed"),
        ("checkpoint_last.pt data new --max-ratio 0.5", "--max-ratio: '0.5': choose a number of at least 1"),
        ("checkpoint_last.pt data new --remove-bpe=x --nbest 2", "--nbest, --remove-bpe cannot be given"),
        (
            "checkpoint_last.pt data new --score-reference --prefix-size=2 --constraints",
            "--constraints, --prefix-size, --score-reference cannot be given",
        ),
        ("checkpoint_last.pt data data/new", "OUT data/new is in DATA data, all files of which are copied"),
        ("checkpoint_last.pt data new --task nonsense", "nonsense"),
        ("checkpoint_last.pt data new --sampling", "--sampling: only fairseq's own search has it (--engine fairseq)"),
        ("checkpoint_last.pt data new --reverse nothing.pt", "--reverse nothing.pt does not exist"),
        (
            "checkpoint_last.pt data new --reverse checkpoint_last.pt",
            "checkpoint_last.pt translates src to tgt; what is needed is tgt to src",
        ),
        ("checkpoint_last.pt data new --samples 2", "--samples goes with --reverse"),
        (
            "checkpoint_last.pt data new --required-batch-size-multiple 8 --engine fairseq",
            "not every sentence of data is decoded once",
        ),
    ],
)
def test_bad_arguments_are_named(
    teacher: Path, words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(teacher)
    assert message in refusal(capsys, *words.split())
    assert not list(teacher.glob("new*"))


def test_several_training_sets_are_refused(tmp_path: Path) -> None:
    for name in ("train", "train1"):
        (tmp_path / f"{name}.src-tgt.src.idx").touch()
    with pytest.raises(
        binarised_shards.DistillError, match=r"several training sets, .*: train\.src-tgt, train1\.src-tgt"
    ):
        binarised_shards.find_languages(tmp_path)


@pytest.mark.parametrize("languages", [("en", "pt-BR"), ("pt-BR", "en"), ("sr-Latn", "sr-Cyrl"), ("x", "x-y")])
def test_languages_may_have_hyphens(tmp_path: Path, languages: tuple[str, str]) -> None:
    paths = [tmp_path / f"train.{'-'.join(languages)}.{language}.idx" for language in languages]
    for path in paths:
        path.touch()
    assert binarised_shards.find_languages(tmp_path) == languages
    paths[1].unlink()
    with pytest.raises(binarised_shards.DistillError, match=f"in {languages[0]} alone: both languages are needed"):
        binarised_shards.find_languages(tmp_path)


def test_a_teacher_that_fails_leaves_no_data(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, words = tmp_path / "damaged.pt", [teacher / "data", tmp_path / "out", *OPTIONS]
    damaged.write_text("no checkpoint")
    assert "damaged.pt is refused" in refusal(capsys, damaged, *words)
    message = refusal(capsys, teacher / "checkpoint_last.pt", *words, "--lm-path", damaged, "--engine", "fairseq")
    assert "status 1" in message
    assert "damaged.pt is refused" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("S-2\tw2", "S-2\tw3"), "sentence 2 is 'w2', but in .* 'w3'"),
        (("H-1\t-0.3\t\n", ""), r"has not, 1 sentences: \[1\]"),
        (("S-1\tw1\n", ""), r"has not, 1 sentences: \[1\]"),
        (("H-1", "H-2"), "sentence 2 twice"),
        (("S-1", "S-0"), "sentence 0 twice"),
        (("-0", "-7"), r"has not, 2 sentences: \[0, 7\]"),
    ],
)
def test_lost_and_shifted_sentences_are_found(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    dictionary = Dictionary()
    for word in ("w0", "w1", "w2", "w3"):
        dictionary.add_symbol(word)
    sources = [torch.tensor([4 + i, 2]) for i in range(3)]
    corpus = binarised_shards.TrainingSet(
        tmp_path, "src-tgt", ("src", "tgt"), (dictionary, dictionary), sources, [[0, 1, 2]], []
    )
    generated = "S-2\tw2\nH-2\t-0.1\tw3 <unk>\nS-0\tw0\nH-0\t-0.2\tw1\nS-1\tw1\nH-1\t-0.3\t\n"
    (tmp_path / "shard").write_text(generated)
    assert corpus.read(tmp_path / "shard", range(3)) == {0: [5], 1: [], 2: [7, 3]}
    (tmp_path / "shard").write_text(generated.replace(*change))
    with pytest.raises(binarised_shards.DistillError, match=message):
        corpus.read(tmp_path / "shard", range(3))


def test_pairs_that_are_left_out() -> None:
    lengths = [(0, 3), (3, 0), (1, 8), (1, 9), (10, 35), (10, 36), (36, 10)]
    assert [distill.verdict(*pair, 3.0) for pair in lengths] == [
        *("empty", "empty", "kept", "ratio", "kept", "ratio", "ratio"),
    ]


def test_each_job_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    devices = [
        [job["CUDA_VISIBLE_DEVICES"] for job in binarised_shards.job_environments(3, cpu)] for cpu in (False, True)
    ]
    assert devices == [["3", "5", "3"], ["3,5"] * 3]
