"""Small random models that stock fairseq has built, as checkpoints, and what its own search makes of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

WORDS = [f"w{number}" for number in range(20)]
SIZES = [
    *("--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 2 --encoder-attention-heads 2".split()),
    *("--decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --decoder-layers 2 --decoder-attention-heads 2".split()),
    *("--max-source-positions 64 --max-target-positions 64".split()),
]
SEARCH = {"beam": 3, "max_len_a": 0.0, "max_len_b": 12}


def data(folder: Path, *languages: str, words: Sequence[str] = WORDS) -> Path:
    """A folder with dictionaries alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for language in languages or ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
    return folder


def build(data: Path, *words: str, seed: int = 1) -> tuple[Any, Any, Any]:
    """The configuration, the task and a random model of a command line of fairseq-train."""
    parser = options.get_training_parser()
    line = [str(data), *words, "--criterion", "cross_entropy", "--optimizer", "adam", "--seed", str(seed)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, line))
    task = tasks.setup_task(cfg.task)
    utils.set_torch_seed(seed)
    model = task.build_model(cfg.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            unset = name.endswith("conv_bias")  # as fairseq's DynamicConv leaves it, which does not use it
            parameter += torch.nan if unset else torch.randn(parameter.shape) * 0.4
    return cfg, task, model.eval()


def checkpoint(data: Path, *words: str, seed: int = 1, **changed: Any) -> Path:
    """A checkpoint of a random model in ``DATA/model.pt``, with other entries; those that are None are removed."""
    cfg, _, model = build(data, *words, seed=seed)
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 3}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {},
        **changed,
    }  # fmt: skip
    path = data / "model.pt"
    torch.save({name: value for name, value in state.items() if value is not None or name == "args"}, path)
    return path


def args_of(data: Path, *words: str, seed: int = 1) -> argparse.Namespace:
    """The options as fairseq before 0.11 kept them."""
    parser = options.get_training_parser()
    line = [str(data), *words, "--criterion", "cross_entropy", "--optimizer", "adam", "--seed", str(seed)]
    return options.parse_args_and_arch(parser, line)


def translations(
    task: Any, model: Any, sources: Sequence[str], search: Mapping[str, Any]
) -> list[list[tuple[str, float]]]:
    """What fairseq's own task and search write for sentences of pieces, with scores, best first; with one model, or
    several that decode as one."""
    models = model if isinstance(model, list) else [model]
    generation = {"unkpen": 0, "lenpen": 1, "nbest": 1, **SEARCH, **search}
    generator = task.build_generator(models, argparse.Namespace(**generation))
    ignored = getattr(generator, "symbols_to_strip_from_output", {task.target_dictionary.eos()})
    found = []
    for source in sources:
        tokens = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()
        dataset = task.build_dataset_for_inference([tokens], [len(tokens)])
        dataset.ordered_indices()  # which that of several pairs wants first
        (hypotheses,) = task.inference_step(generator, models, dataset.collater([dataset[0]]))
        string = task.target_dictionary.string
        found.append(
            [
                (string(each["tokens"].tolist(), extra_symbols_to_ignore=ignored), float(each["score"]))
                for each in hypotheses
            ]
        )
    return found


def sentences(count: int, seed: int = 1) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [" ".join(WORDS[word] for word in torch.randint(0, 20, (n,), generator=generator)) for n in lengths]


def package_arguments(checkpoint: Path, out: Path, **given: Any) -> argparse.Namespace:
    """The arguments of ``amlp-fairseq package``, where only those that are given are not at their defaults."""
    names = ["weights", "data", "decoding", "max_length", "tokenizer", "post_process", "subword_model", "user_dir"]
    names += ["source_lang", "target_lang", "fixed_dictionary", "shortlist", "target_subword_model", "source_tags"]
    names += ["langs", "moses_no_dash_splits", "frequent", "best"]
    return argparse.Namespace(**{"checkpoints": [checkpoint], "out": out, **dict.fromkeys(names), **given})
