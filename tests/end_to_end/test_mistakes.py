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
MISTAKES: dict[str, tuple[list[Any], str]] = {
    "another criterion": (
        training(*CMLMC, "label_smoothed_cross_entropy"),
        "train: --criterion label_smoothed_cross_entropy: --task translation_cmlmc needs --criterion nat_loss",
    ),
    "the default criterion": (
        training(*CMLMC, "cross_entropy"),
        "train: the model needs --label-smoothing, which this --criterion does not have (CMLMC: --criterion nat_loss)",
    ),
    "CMLMC under translation": (
        training("translation", CMLMC[1], "nat_loss"),
        "train: a cmlmc_transformer needs --task translation_cmlmc (fairseq's default is translation)",
    ),
    "CMLMC decoded under translation": (
        decoding("nat", task="translation"),
        "generate: a cmlmc_transformer needs --task translation_cmlmc (fairseq's default is translation)",
    ),
    "sampling": (
        [*decoding("ib"), "--sampling"],
        "generate: TranslationInterleavedTask does not support --sampling True",
    ),
    "another order in the ensemble": (
        decoding("ib", "ar"),
        "generate: the models ib/checkpoint_last.pt and ar/checkpoint_last.pt cannot be combined: the checkpoint was "
        "not trained with --task translation_interleaved; if it is an autoregressive Transformer, give "
        "--num-directions 1",
    ),
    "an autoregressive model in the ensemble": (
        decoding("ar", "nat", task="translation_cmlmc"),
        "generate: the models ar/checkpoint_last.pt and nat/checkpoint_last.pt cannot be combined: one is "
        "autoregressive and one is not (an autoregressive one can only be the last of --path, with "
        "--iter-decode-with-external-reranker)",
    ),
    "a reranker without its option": (
        decoding("nat", "ar"),
        "generate: PluginTransformerModel does not write sentences of fixed length; fairseq's --task translation_lev "
        "is for such models that are not autoregressive; the models nat/checkpoint_last.pt and ar/checkpoint_last.pt "
        "cannot be combined",
    ),
    "no dictionary": (
        decoding("ib", data="half"),
        "generate: half/dict.de.txt does not exist (fairseq-preprocess writes it)",
    ),
    "no such subset": (
        [*decoding("ib"), "--gen-subset", "tset"],
        "generate: Dataset not found: tset (data)",
    ),
    "no checkpoint": (
        decoding("nothing", task="translation"),
        "generate: Model file not found: nothing/checkpoint_last.pt",
    ),
    "no --path": (["generate", "data"], "generate: --path required for generation!"),
    "nbest": (
        [*decoding("ar"), "--nbest", 6, "--beam", 2],
        "generate: --nbest 6 is more than --beam 2 finds: raise --beam, or lower --nbest",
    ),
    "no hypotheses": ([*decoding("ar"), "--nbest", 0], "generate: --nbest 0 must be at least 1"),
    "no batch for a process": (
        [*decoding("ar"), "--distributed-world-size", 2, "--distributed-rank", 1],
        "generate: --distributed-world-size 2: there are fewer batches, and none for this --distributed-rank; give "
        "fewer, or a smaller --batch-size",
    ),
    "lenpen": ([*decoding("ib"), "--lenpen", -100], "generate: --lenpen -100.0 must be between -10 and 10"),
    "heads": (
        [*training(*MODELS["nat"]), "--decoder-attention-heads", 3],
        "train: embed_dim must be divisible by num_heads",
    ),
    "another optimizer": (
        [*training(*MODELS["ar"]), "--optimizer", "sgd", "--restore-file", "ar/checkpoint_last.pt"],
        "train: Optimizer does not match; please reset the optimizer (--reset-optimizer). FairseqAdam vs SGD",
    ),
    "a metric that there is not": (
        [*training(*MODELS["ar"]), "--best-checkpoint-metric", "accuracy"],
        "train: --best-checkpoint-metric accuracy is none of what validation finds: bsz, loss, nll_loss, num_updates, "
        "ppl, wpb, wps",
    ),
    "an order of batches for each epoch": (
        [*training(*MODELS["ar"]), "--update-ordered-indices-seed"],
        "train: --update-ordered-indices-seed needs --update-epoch-batch-itr True: otherwise batches are composed once",
    ),
    "beam of CMLMC": (
        [*decoding("nat"), "--beam", 4],
        "generate: TranslationCMLMCTask does not support --beam 4 (sentences of how many lengths are tried: "
        "--iter-decode-with-beam)",
    ),
    "a model of other dictionaries": (
        ["generate", "data", "--task", "translation_interleaved", "--num-directions", 1, "--cpu", "--path", LARGER],
        "generate: the checkpoint does not fit: its encoder.embed_tokens.weight has shape [17, 64], that of the model "
        "[16, 64] (other dictionaries, or other options of the model)",
    ),
    "a draft of other dictionaries": (
        [*decoding("ib"), "--beam", 1, "--draft-path", LARGER],
        f"generate: --draft-path {LARGER}: its parameters do not fit the dictionaries of data",
    ),
    "tokens of a batch": (
        [*decoding("ib"), "--max-tokens", 2],
        "generate: --max-tokens (--max-tokens-valid) is less than the longest sentence has: Sentences lengths should "
        "not exceed max_tokens=2",
    ),
    "a long source": (
        [*decoding("ib"), "--max-source-positions", 2],
        "generate: 3 sentence(s) are too long, the first is sentence 0 with (source, target) lengths (3, 3); "
        "--max-source-positions and --max-target-positions allow (2, 1024). Raise them, or cut long sources with "
        "--truncate-source, or leave such sentences out with --skip-invalid-size-inputs-valid-test",
    ),
    "shards": (
        [*decoding("ib"), "--num-shards", 3, "--shard-id", 1],
        "generate: --num-shards 3: fairseq's decoding ignores it and --shard-id; --distributed-world-size 3 "
        "--distributed-rank N is what it obeys",
    ),
    "a folder that cannot be named": (
        [*training(*MODELS["ib"]), "--save-dir", "new:1"],
        "train: --save-dir new:1: choose a name without ':', at which fairseq splits paths",
    ),
    "no checkpoint to begin with": (
        [*training(*MODELS["ib"]), "--restore-file", "typo.pt", "--save-dir", "new"],
        "train: --restore-file typo.pt does not exist",
    ),
    "another kind of model to begin with": (
        [*training(*MODELS["ib"]), "--restore-file", LARGER, "--reset-optimizer", "--save-dir", "new"],
        f"train: Cannot load model parameters from checkpoint {LARGER}: the checkpoint does not hold an ibdecoder: it "
        "has no order of generation (--finetune-from-model takes what fits)",
    ),
    "no --task": (
        ["validate", "data", "--path", "ib/checkpoint_last.pt", "--cpu"],
        "validate: --task NAME is needed: that of the training (all options: amlp-fairseq validate --help)",
    ),
    "override": (
        [*decoding("ib"), "--model-overrides", "{'decoder_layer': 3}"],
        "generate: --model-overrides: no model or task has 'decoder_layer'; did you mean decoder_layers?",
    ),
    "overrides that are no dictionary": (
        [*decoding("ib"), "--model-overrides", "{decoder_layers: 3"],
        "generate: --model-overrides '{decoder_layers: 3' is no dictionary, as in \"{'dropout': 0.0}\"",
    ),
    "flag": (
        [*decoding("ib"), "--lenpne", 0.6],
        "generate: --lenpne is unknown; did you mean --lenpen? (all options: amlp-fairseq generate --help)",
    ),
    "flag of the model": (
        [*training(*MODELS["ib"]), "--decoder-layrs", 3],
        "train: --decoder-layrs is unknown; did you mean --decoder-layers? (all options: amlp-fairseq train --help)",
    ),
    "flag of another task": (
        [*training(*MODELS["ar"]), "--num-directions", 2],
        "train: --num-directions is an option of --task translation_interleaved only (all options: amlp-fairseq train "
        "--help)",
    ),
    "task": (
        ["generate", "data", "--task", "translation_interleavd"],
        "generate: --task 'translation_interleavd' is unknown; did you mean translation_interleaved? (all options: "
        "amlp-fairseq generate --help)",
    ),
    "architecture": (
        ["train", "data", "--arch", "ibdecodr"],
        "train: --arch 'ibdecodr' is unknown; did you mean ibdecoder? (all options: amlp-fairseq train --help)",
    ),
    "Latin-1": (
        preprocessing("latin"),
        "preprocess: latin.en, line 2: this is not UTF-8; if it is Latin-1: iconv -f latin1 -t utf8 latin.en",
    ),
    "byte-order mark": (
        preprocessing("bom"),
        "preprocess: bom.en begins with a byte-order mark; without it: sed -i '1s/^\\xEF\\xBB\\xBF//' bom.en",
    ),
    "uneven sides": (
        preprocessing("uneven"),
        "preprocess: --trainpref: the numbers of lines differ: uneven.en has 2, uneven.de has 1; line n translates "
        "line n",
    ),
    "carriage returns": (
        preprocessing("returns"),
        "preprocess: returns.en, line 1 has a carriage return inside, where fairseq ends it: sed -i 's/\\r/ /g' "
        "returns.en",
    ),
    "a file in place of a folder": (
        [*configured("ibdecoder")[:-1], "--save-dir", "latin.en"],
        "train: latin.en exists: give another folder",
    ),
    "data that are there": (
        ["preprocess", "-s", "en", "-t", "de", "--trainpref", "raw/train", "--destdir", "other"],
        "preprocess: other/dict.en.txt exists: give another folder, or take this one's (fairseq-preprocess --srcdict, "
        "--tgtdict)",
    ),
    "half a description": (
        ["train", "begun", "--row", "ibdecoder", "--scale", "embedded", "--print"],
        "train: begun/text.json is damaged: Expecting property name enclosed in double quotes: line 2 column 1 (char "
        "14)",
    ),
    "no recipe in its file": (
        ["evaluate", "empty", "half", "--cpu"],
        "evaluate: empty/recipe.yaml is damaged: TypeError: 'NoneType' object is not subscriptable",
    ),
    "half a recipe": (
        ["evaluate", "cut", "half", "--cpu"],
        "evaluate: cut/recipe.yaml is damaged: ParserError: while parsing a flow node expected the node content, but "
        "found '<stream end>' in \"<unicode string>\", line 1, column 7: row: [ ^",
    ),
    "name of a section, .yml": (
        configured("name.yml"),
        "train: name.yml: 'trian' is unknown; did you mean 'train'? (line 2)",
    ),
    "YAML": (
        configured("syntax.yaml"),
        "train: syntax.yaml: expected ',' or '}', but got ':' (YAML, line 3, column 5)",
    ),
    "base": (configured("itself.yaml"), "train: itself.yaml: its base is itself, through itself"),
    "section": (
        configured("text.yaml"),
        "train: text.yaml: train must have keys and values, like {key: value}, not 'lr 1' (line 2)",
    ),
    "flag in YAML": (
        configured("flag.yaml"),
        "train: flag.yaml: train: 'max-updaet' is unknown; did you mean 'max-update'? (line 4)",
    ),
    "flag behind a row": (
        [*configured("../data.yaml"), "--save-dri", "checkpoints"],
        "train: --save-dri is unknown; did you mean --save-dir? (all options: amlp-fairseq train --help)",
    ),
    "BLEU without decoding": (
        [*training(*MODELS["ar"]), "--best-checkpoint-metric", "bleu"],
        "train: --best-checkpoint-metric bleu needs --eval-bleu, which decodes the validation set",
    ),
    "name of a section": (
        configured("name.yaml"),
        "train: name.yaml: 'trian' is unknown; did you mean 'train'? (line 2)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, folder: Path, tmp_path: Path) -> None:
    words, expected = MISTAKES[mistake]
    printed = commands.run(CLI, *words, cwd=folder, check=False)
    assert printed.splitlines()[-1] == f"amlp-fairseq {expected}"
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
    words = [*decoding("ib")[1:], "--user-dir", commands.PLUGIN, "--sampling"]
    printed = commands.fresh(program, *words, cwd=folder, check=False)
    assert printed.returncode == 1
    last = printed.stdout.splitlines()[-1]
    assert last == "fairseq-generate: TranslationInterleavedTask does not support --sampling True"
    assert "Traceback" not in printed.stdout
