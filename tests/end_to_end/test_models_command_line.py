"""Models under fairseq's own tasks on the command line: search, stock checkpoints, ablations, language models."""

from __future__ import annotations

import random
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

pytestmark = pytest.mark.xdist_group("models-command-line")
PLUGIN: list[Any] = ["--user-dir", commands.PLUGIN]
WORDS = [f"w{i}" for i in range(9)]
LAST = "checkpoint_last.pt"
TINY = [
    *(word for side in ("encoder", "decoder") for word in (f"--{side}-embed-dim", "16", f"--{side}-layers", "2")),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
]
KERNELS = [
    *("--encoder-kernel-size-list", "[3,7]", "--decoder-kernel-size-list", "[3,31]"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binarised corpus of random sentences."""
    path = tmp_path_factory.mktemp("light-conv")
    rng = random.Random(1)
    (path / "raw").mkdir()
    for split, count in {"train": 60, "valid": 11, "test": 13}.items():
        sentences = [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(count)]
        for language in ("src", "tgt"):
            (path / "raw" / f"{split}.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return commands.preprocess(path / "raw", path / "data-bin", "src", "tgt")


@pytest.fixture(scope="module")
def stock_transformer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of fairseq's Transformer."""
    path = tmp_path_factory.mktemp("stock")
    train(folder, path, "--arch", "transformer_tiny", "--no-scale-embedding")
    return path / LAST


def train(data: Path, save: Path, *options: object, check: bool = True) -> str:
    return commands.run(
        *("fairseq_cli.train", data, *PLUGIN, *commands.TRAINING, "--lr", "0.001", "--max-tokens", "200"),
        *("--max-update", "3", "--save-dir", save, "--no-epoch-checkpoints", *options),
        check=check,
    )


def generate(data: Path, path: object, *options: object) -> dict[int, list[str]]:
    output = commands.run(
        *("fairseq_cli.generate", data, *PLUGIN, "--path", path, "--cpu", "--beam", "3"),
        *("--max-len-b", "12", "--required-batch-size-multiple", "1", *options),
    )
    return commands.lines(output, "H")


@pytest.mark.parametrize("arch", ["aan_transformer", "triton_dynamicconv"])
def test_interactive_ensemble_and_half_precision(folder: Path, tmp_path: Path, arch: str) -> None:
    model = ["--arch", arch, *TINY, *(KERNELS if arch.startswith("triton") else [])]
    for seed in (1, 2):
        train(folder, tmp_path / str(seed), *model, "--seed", seed)
    one, two = (tmp_path / str(seed) / LAST for seed in (1, 2))
    found = generate(folder, one)
    text = (folder / "../raw/test.src").read_text(encoding="utf-8")
    interactive = commands.run(
        *("fairseq_cli.interactive", folder, *PLUGIN, "--path", one, "--cpu", "--beam", "3", "--max-len-b", "12"),
        *("-s", "src", "-t", "tgt"),
        text=text,
    )
    assert {i: words for i, (_, *words) in commands.lines(interactive, "H").items()} == {
        i: words for i, (_, *words) in found.items()
    }
    both = generate(folder, f"{one}:{two}")
    assert both.keys() == found.keys() == set(range(13))
    assert both != found
    assert generate(folder, f"{one}:{one}").keys() == found.keys()
    half = generate(folder, one, "--fp16")
    for i, (score, *_) in half.items():
        assert float(score) == pytest.approx(float(found[i][0]), abs=0.05)


@pytest.mark.parametrize("arch", ["aan_transformer", "triton_lightconv", "plugin_transformer"])
def test_fairseqs_translation_task_is_guarded(folder: Path, tmp_path: Path, arch: str) -> None:
    """All sentences, although 8 does not divide 13; the steps of the plugin's task; no other dictionary."""
    path = tmp_path / "save" / LAST
    model = ["--arch", arch, *TINY, *(KERNELS if arch.startswith("triton") else [])]
    if arch == "aan_transformer":  # stock counts the steps of the longest hypothesis: here the best one is that
        model.append("--no-average-ffn")
    train(folder, path.parent, *model)
    ours = ["--task", "translation_interleaved", "--num-directions", "1"]
    outputs = [
        commands.run(
            *("fairseq_cli.generate", folder, *PLUGIN, "--path", path, "--cpu", "--beam", "3", "--max-len-b", "12"),
            *("--max-sentences", "1", "--print-step", *task),
        )
        for task in ([], ours)
    ]
    stock, interleaved = (commands.lines(output, "I") for output in outputs)
    assert stock == interleaved
    assert stock.keys() == set(range(13))
    whole = commands.run("fairseq_cli.generate", folder, *PLUGIN, "--path", path, "--cpu", "--print-step")
    assert commands.lines(whole, "H").keys() == set(range(13))

    permuted = tmp_path / "permuted"
    shutil.copytree(folder, permuted)
    for side in ("src", "tgt"):
        first, second, *rest = (folder / f"dict.{side}.txt").read_text().splitlines()
        (permuted / f"dict.{side}.txt").write_text("\n".join([second, first, *rest]) + "\n")
    for command, *options in (
        ["fairseq_cli.generate", permuted, "--path", path],
        ["fairseq_cli.generate", permuted, "--path", path, *ours],
        ["fairseq_cli.interactive", permuted, "--path", path],
    ):
        refusal = commands.run(command, *options, *PLUGIN, "--cpu", text="w1 w2\n", check=False)
        assert f"the source dictionary of {permuted}" in refusal
    for start in ("--restore-file", "--finetune-from-model"):
        refusal = train(permuted, tmp_path / "other", *model, start, path, check=False)
        assert f"the source dictionary of {permuted}" in refusal


@pytest.mark.parametrize(("conv", "arch"), [("lightweight", "triton_lightconv"), ("dynamic", "triton_dynamicconv")])
def test_stock_checkpoint_decodes_with_these_kernels(folder: Path, tmp_path: Path, conv: str, arch: str) -> None:
    """The one-liner of the README: --model-overrides names the model."""
    types = ["--encoder-conv-type", conv, "--decoder-conv-type", conv]
    train(folder, tmp_path, "--arch", "lightconv", *TINY, *KERNELS, *types)
    stock = generate(folder, tmp_path / LAST)
    ours = generate(folder, tmp_path / LAST, "--model-overrides", f"{{'_name': '{arch}'}}")
    assert ours.keys() == stock.keys() == set(range(13))
    for i, (score, *words) in stock.items():
        assert ours[i][1:] == words
        assert float(ours[i][0]) == pytest.approx(float(score), abs=2e-4)
    task = TranslationTask.setup_task(TranslationConfig(data=str(folder), source_lang="src", target_lang="tgt"))
    (model,), _ = checkpoint_utils.load_model_ensemble([str(tmp_path / LAST)], {"_name": arch}, task)
    assert type(model) is MODEL_REGISTRY[arch]


@pytest.mark.parametrize("kept", ["as by fairseq-train", "as by fairseq-hydra-train", "as by old versions"])
def test_stock_transformers_options_are_obeyed_or_refused(stock_transformer: Path, tmp_path: Path, kept: str) -> None:
    """However the checkpoint keeps them: fairseq would drop what the dataclass of the model does not have."""
    state = torch.load(stock_transformer)
    options, name = state["cfg"]["model"], "arch" if kept == "as by old versions" else "_name"
    task = TranslationInterleavedTask.setup_task(
        TranslationInterleavedConfig(data=options.data, source_lang="src", target_lang="tgt", num_directions=1)
    )

    def load(overrides: dict[str, str], **changed: Any) -> Any:
        args = Namespace(**{**vars(options), **changed})
        if kept == "as by old versions":
            state.update(args=args, cfg=None)
        else:
            state["cfg"]["model"] = args if kept == "as by fairseq-train" else vars(args)
        torch.save(state, tmp_path / LAST)
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / LAST)], overrides, task)
        return model.eval()

    stock, ours = load({}), load({name: "plugin_transformer"})
    assert type(ours) is MODEL_REGISTRY["plugin_transformer"]
    words = torch.tensor([[2, 5, 6, 7]])
    results = [model(words.roll(-1), torch.tensor([4]), words)[0] for model in (ours, stock)]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    assert ours.decoder.embed_scale == 1
    with pytest.raises(ValueError, match=r"^--cross-self-attention True is not supported \(only False\)$"):
        load({name: "plugin_transformer"}, cross_self_attention=True)


ABLATIONS = {  # those of one row are independent of each other
    "CNN depthwise": [
        *("--arch", "triton_lightconv", *KERNELS, "--weight-normalization", "none", "--weight-dropout", "0"),
        *("--encoder-conv-heads", "16", "--decoder-conv-heads", "16", "--encoder-glu", "0", "--decoder-glu", "0"),
    ],
    "CNN of width 3": [
        *("--arch", "triton_lightconv", "--encoder-self-attention-type", "cnn"),
        *("--decoder-self-attention-type", "cnn"),
        *("--encoder-kernel-size-list", "3", "--decoder-kernel-size-list", "3"),
    ],
    "windowed self-attention": [
        *("--arch", "triton_lightconv", *KERNELS, "--attention-dropout", "0.1"),
        *("--encoder-self-attention-type", "local", "--decoder-self-attention-type", "local"),
    ],
    "AAN with FFN, in the encoder too, pre-norm": [
        *("--arch", "aan_transformer", "--encoder-self-attention-type", "average"),
        *("--encoder-normalize-before", "--decoder-normalize-before"),
    ],
    "AAN without gate": ["--arch", "aan_transformer", "--no-average-gate"],
}


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_ablations_train_and_decode(folder: Path, tmp_path: Path, ablation: str) -> None:
    train(folder, tmp_path, *TINY, *ABLATIONS[ablation])
    assert generate(folder, tmp_path / LAST).keys() == set(range(13))


def test_bad_kernel_list_is_named(folder: Path, tmp_path: Path) -> None:
    output = train(
        folder, tmp_path, "--arch", "triton_dynamicconv", *TINY, *KERNELS, "--decoder-layers", "3", check=False
    )
    assert "--decoder-kernel-size-list [3, 31] has 2 entries, --decoder-layers is 3" in output


@pytest.mark.parametrize("arch", ["triton_lightconv_lm", "triton_dynamicconv_lm"])
def test_language_model_with_adaptive_softmax(folder: Path, tmp_path: Path, arch: str) -> None:
    data = tmp_path / "data-bin"
    text = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", folder / f"../raw/{split}.src")]
    commands.run("fairseq_cli.preprocess", "--only-source", "--destdir", data, *text)
    criterion = commands.TRAINING[commands.TRAINING.index("--optimizer") :]
    commands.run(
        *("fairseq_cli.train", data, *PLUGIN, "--task", "language_modeling", "--arch", arch, *criterion),
        *(
            "--criterion",
            "adaptive_nll_loss",
            "--ddp-backend",
            "legacy_ddp",
            "--adaptive-softmax-cutoff",
            "4,8",
            "--adaptive-input",
        ),
        *("--adaptive-input-cutoff", "4,8", "--tie-adaptive-weights", "--tie-adaptive-proj"),
        *("--adaptive-input-factor", "2", "--adaptive-softmax-factor", "2"),
        *("--decoder-embed-dim", "16", "--decoder-layers", "2", "--decoder-attention-heads", "2"),
        *("--decoder-kernel-size-list", "[3,7]", "--sample-break-mode", "eos", "--lr", "0.001"),
        *("--max-tokens", "200", "--max-update", "3", "--save-dir", tmp_path, "--no-epoch-checkpoints"),
    )
    output = commands.run(
        *("fairseq_cli.eval_lm", data, *PLUGIN, "--path", tmp_path / "checkpoint_last.pt", "--cpu"),
        *("--sample-break-mode", "eos", "--max-tokens", "200", "--gen-subset", "test"),
    )
    perplexity = float(output.split("Perplexity: ")[1].split()[0])
    assert 1 < perplexity < 40
