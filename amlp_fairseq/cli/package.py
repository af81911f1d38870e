"""Make one folder of a trained model: weights, dictionaries, subword model, decoding options and a model card.

    amlp-fairseq package CHECKPOINT… --out DIR [--weights TYPE] [decoding options of fairseq-generate]

CHECKPOINT is a checkpoint, several of one training, which are averaged, or the folder of `amlp-fairseq train --row`
once `amlp-fairseq evaluate` has averaged its checkpoints; or DIR of another model, whose text and decoding options are
kept. DIR stands wherever a checkpoint does (--path DIR), and `amlp-fairseq translate --model DIR` reads raw text. A
Transformer of fairseq is stored as plugin_transformer, the same model, which decodes faster.

    amlp-fairseq package ibdecoder --out en-de --weights bfloat16 --beam 4 --lenpen 0.6
"""

from __future__ import annotations

import argparse
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel, TransformerModelBase
from omegaconf import open_dict

from amlp_fairseq.compat.guarded_tasks import RECIPE
from amlp_fairseq.compat.internals import ARCH_MODEL_REGISTRY, data_utils
from amlp_fairseq.recipes.average import average_checkpoints
from amlp_fairseq.recipes.config import flags, quoted, read
from amlp_fairseq.recipes.corpus import data_folder, stored_text
from amlp_fairseq.recipes.text import MODELS
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig
from amlp_fairseq.translator import decoding_options, model_card, model_folder
from amlp_fairseq.translator.text_pipeline import TextPipeline
from amlp_fairseq.translator.translator import Translator
from amlp_fairseq.usage import command_parser, folder, parse_with_fairseqs

#: Settings of text.json that are about how a line is cut up.
TEXT = TextPipeline.__dataclass_fields__.keys() - {"folder", "languages"}


def checkpoint(paths: list[Path]) -> dict[str, Any]:
    """The checkpoint that is packaged, with options as OmegaConf has them and the mean of all weights."""
    averaged = average_checkpoints(paths)["model"] if len(paths) > 1 else None
    state = dict(checkpoint_utils.load_checkpoint_to_cpu(str(paths[-1])))
    return state if averaged is None else {**state, "model": averaged}


def decode_fast(state: dict[str, Any]) -> None:
    """Let the multi-word search decode an autoregressive Transformer that fairseq's translation task has trained."""
    cfg = state["cfg"]
    name = cfg.model._name
    kind: Any = ARCH_MODEL_REGISTRY.get(name, object)
    if cfg.task._name != "translation" or not issubclass(kind, TransformerModelBase):
        return
    with open_dict(cfg):
        cfg.task = {**asdict(TranslationInterleavedConfig()), **cfg.task}
        cfg.task._name, cfg.task.num_directions = "translation_interleaved", 1
        if kind in (TransformerModel, TransformerModelBase):
            cfg.model._name = "plugin_transformer"


def text_settings(data: Path, given: argparse.Namespace) -> tuple[dict[str, Any], Path | None]:
    """How lines are cut up, and the subword model: from a model's folder or DATA/text.json, or else from the command
    line."""
    found: dict[str, Any] = {}
    if model_folder.is_model_folder(data):
        found = model_folder.read_config(data)["text"]
    elif stored := stored_text(data):
        found = {name: stored[name] for name in sorted(TEXT) if name in stored}
    for name in ("tokenizer", "post_process"):
        if getattr(given, name) is not None:
            found[name] = getattr(given, name)
    if found.get("post_process") is None:
        if given.subword_model is not None:
            kinds = " or ".join(sorted(MODELS))
            raise ValueError(f"--subword-model {given.subword_model} goes with --post-process: choose {kinds}")
        return found, None
    name = MODELS[found["post_process"]]
    model = given.subword_model or data / name
    if not model.is_file():
        raise ValueError(f"there is no subword model {model}: name it with --subword-model")
    return found, model


def longest_source(data: Path, languages: list[str]) -> int | None:
    """Pieces of the longest source that the model was trained on; None where the training data are not at hand."""
    if model_folder.is_model_folder(data):
        return model_folder.read_config(data)["longest_source"]  # type: ignore[no-any-return]
    pair = "-".join(languages)
    sources = data_utils.load_indexed_dataset(str(data / f"train.{pair}.{languages[0]}"))
    return None if sources is None else int(sources.sizes.max()) - 1  # without the end symbol


def decoding(run: Path, name: str | None, words: list[str], task: str) -> dict[str, Any]:
    """Decoding options: those of the recipe's first way of decoding, of the named one, or of a model's folder, and
    those given, with whole paths."""
    parsed = _decoding(run, name, words, task)
    for option in decoding_options.PATHS & parsed.keys():
        parsed[option] = parsed[option] and str(Path(parsed[option]).resolve())
    return parsed


def _decoding(run: Path, name: str | None, words: list[str], task: str) -> dict[str, Any]:
    if name is None and model_folder.is_model_folder(run):
        return decoding_options.parse([*flags_of(model_folder.read_config(run)["decoding"]), *words], task)
    ways = read(run / RECIPE) if (run / RECIPE).is_file() else None
    if name is not None and (ways is None or name not in ways.generate):
        known = ", ".join(ways.generate) if ways else f"none: {run} has no {RECIPE}"
        raise ValueError(f"--decoding {name!r} is not in the recipe; it has {known}")
    values = {} if ways is None else ways.generate[name or next(iter(ways.generate))]
    values = {
        option: value for option, value in values.items() if option.replace("-", "_") not in decoding_options.OUTPUT
    }
    return decoding_options.parse([*flags(values, "decoding"), *words], task)


def main() -> None:
    parser = command_parser("package", __doc__)
    parser.add_argument("checkpoints", metavar="CHECKPOINT", nargs="+", type=Path, help="see above")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--weights", choices=model_folder.WEIGHT_TYPES, default="float32", help="type of stored weights"
    )
    parser.add_argument("--data", type=data_folder, help="the data folder (default: that of the training)")
    parser.add_argument("--decoding", metavar="NAME", help="the recipe's way of decoding (default: its first)")
    without = parser.add_argument_group("data of fairseq-preprocess, which have no text.json")
    without.add_argument("--tokenizer", choices=("moses",), help="how lines are tokenised")
    without.add_argument("--post-process", choices=sorted(MODELS), help="how words are cut up")
    without.add_argument("--subword-model", type=Path, metavar="FILE", help="the model that cuts them up")
    args, words = parse_with_fairseqs(
        parser, accepted=lambda args: decoding_options.flags("translation_interleaved", "translation_cmlmc")
    )
    package(args, words)


def package(args: argparse.Namespace, words: list[str]) -> None:
    paths = args.checkpoints
    if len(paths) == 1 and paths[0].is_dir() and not model_folder.is_model_folder(paths[0]):
        paths = [paths[0] / "average.pt"]
    for path in paths:
        if not path.exists():
            hint = "; amlp-fairseq evaluate makes it" if path.name == "average.pt" else ""
            raise FileNotFoundError(f"CHECKPOINT {path}: there is no such file{hint}")
        if len(paths) > 1 and path.is_dir():
            raise ValueError(f"CHECKPOINT {path} is a folder: of several only checkpoints are averaged, name the files")
    if args.out.exists():
        raise ValueError(f"--out {args.out} exists already: name another folder, or remove it")
    run = paths[0] if paths[0].is_dir() else paths[0].parent
    state = checkpoint(paths)
    task = state["cfg"].task
    if "source_lang" not in task:
        raise ValueError(f"CHECKPOINT {paths[0]} is of --task {task._name}: only models that translate can be packaged")
    data = args.data or Path(task.data)
    if task.source_lang is None or task.target_lang is None:  # fairseq-train has found them in the data
        with open_dict(state["cfg"]):
            task.source_lang, task.target_lang = data_utils.infer_language_pair(str(data))
        if task.target_lang is None:
            raise ValueError(f"{data} does not say the languages: name the data folder of the training with --data")
    languages = [task.source_lang, task.target_lang]
    dictionaries = [data / f"dict.{language}.txt" for language in languages]
    for path in dictionaries:
        if not path.is_file():
            raise FileNotFoundError(f"there is no dictionary {path}: name the data folder of the training with --data")
    text, subword_model = text_settings(data, args)
    files = {path.name: path for path in dictionaries}
    if subword_model is not None:
        files[MODELS[text["post_process"]]] = subword_model
    decode_fast(state)
    options = decoding(run, args.decoding, words, task._name)
    config = {
        "languages": languages,
        "text": text,
        "decoding": options,
        "longest_source": longest_source(data, languages),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    part = args.out.with_name(f".{args.out.name}.{uuid.uuid4().hex}.part")
    try:
        model_folder.write(part, state, args.weights, config, files)
        card = model_card.card(Translator(part), args.out.name, run)
        (part / model_folder.CARD).write_text(card, encoding="utf-8")
        part.rename(args.out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB, decodes with {quoted(flags_of(options)) or 'the defaults of fairseq'}")


def flags_of(options: dict[str, Any]) -> list[str]:
    return flags({name.replace("_", "-"): value for name, value in options.items()}, "decoding")


if __name__ == "__main__":
    main()
