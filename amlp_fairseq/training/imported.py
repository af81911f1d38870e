"""Checkpoints of fairseq as what a model folder stores: read with all of their older forms, refused where a folder of
them would be garbage, and resolved: to an architecture and a task that need no user directory, and to dictionaries with
all symbols."""

from __future__ import annotations

import argparse
import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, OmegaConf, open_dict

from amlp_fairseq.compat.checkpoint_utils import refuse_unregistered
from amlp_fairseq.compat.internals import ARCH_MODEL_REGISTRY, TASK_REGISTRY
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.model_folder.format import PLAIN_TASKS
from amlp_fairseq.model_folder.language_tokens import LanguageTokens
from amlp_fairseq.models.of_fairseq import difference, fairseqs_architecture, is_fairseqs, plugin_options
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig
from amlp_fairseq.training.average import average_checkpoints, load
from amlp_fairseq.training.imported_languages import (
    MULTILINGUAL,
    add_data_sources,
    language_tokens,
    listed,
    set_options,
    task_name,
)

#: Logits of a model that is stored as plugin_transformer may differ so much from those of the code of a user directory,
#: relative to the largest: float32 rounds a sum of a thousand products by about 1e-5 of its terms.
MOST_DIFFERENT = 1e-3


def import_user_dir(folder: Path) -> None:
    """Run the code of a user directory, which registers architectures and tasks.

    Raises:
        ValueError: naming the folder, if there is none or its code fails.
    """
    if not folder.is_dir():
        raise ValueError(f"--user-dir {folder}: there is no such folder")
    try:
        utils.import_user_module(argparse.Namespace(user_dir=str(folder)))
    except Exception as error:
        raise ValueError(f"--user-dir {folder}: its code fails: {type(error).__name__}: {error}") from error


def read(paths: Sequence[Path]) -> dict[str, Any]:
    """A checkpoint, with options as OmegaConf has them and the mean of the weights of all ``paths``.

    Raises:
        ValueError: for checkpoints of several trainings, of an architecture or task that is not registered, of a model
            in several files or with mixtures of experts, and for weights that are not finite.
    """
    averaged = None
    if len(paths) > 1:
        _refuse_two_trainings(paths)
        averaged = average_checkpoints([*paths])["model"]
    state = dict(checkpoint_utils.load_checkpoint_to_cpu(str(paths[-1])))
    if averaged is not None:
        state["model"] = averaged
    path, weights = paths[-1], state["model"]
    if "fsdp_metadata" in state or "-shard" in path.name or "_part" in path.name:
        raise ValueError(f"CHECKPOINT {path} is one of the parts of a model: only models in one file can be packaged")
    if moe := next((name for name in weights if "moe_layer" in name or ".experts." in name), None):
        raise ValueError(f"CHECKPOINT {path} has mixtures of experts ({moe}): only dense models can be packaged")
    for name, weight in weights.items():
        if name.endswith(".conv.conv_bias") and not torch.isfinite(weight).all():
            weights[name] = torch.zeros_like(weight)  # fairseq's DynamicConv neither sets it nor uses it
        elif weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise ValueError(f"CHECKPOINT {path}: {name} has weights that are NaN or infinite: the training has "
                             "diverged, or the file is damaged; name an earlier checkpoint")  # fmt: skip
    refuse_unregistered(architecture(state), task_name(state))
    return state


def _refuse_two_trainings(paths: Sequence[Path]) -> None:
    """Raise ValueError unless checkpoints say the same of seed and folder."""
    first: dict[str, Any] = {}
    for path in paths:
        state = load(path)
        cfg = state.get("cfg") or {}
        options = vars(state["args"]) if state.get("args") is not None else {
            **(cfg.get("common") or {}), **(cfg.get("checkpoint") or {})
        }  # fmt: skip
        own = {name: options.get(name) for name in ("seed", "save_dir")}
        first = first or own
        if different := [name for name in own if own[name] != first[name]]:
            name = different[0]
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"CHECKPOINT {paths[0]} and {path} are of two trainings ({flag} {first[name]} and {own[name]}), and "
                "the mean of their weights is no model: name checkpoints of one; if they are, amlp-fairseq average "
                "makes one of them"
            )


def architecture(state: Mapping[str, Any]) -> str | None:
    model = state["cfg"]["model"]
    return getattr(model, "_name", None) or getattr(model, "arch", None)


def dictionaries_of(
    languages: tuple[str, str], data: Sequence[Path], fixed: Path | None
) -> tuple[dict[str, Path], Path]:
    """The dictionaries by language, and the folder of the data.

    Args:
        data: folders, in this order.
        fixed: ``--fixed-dictionary``, of all languages.

    Raises:
        FileNotFoundError: if no folder has them.
    """
    if fixed is not None:
        if not fixed.is_file():
            raise FileNotFoundError(f"--fixed-dictionary {fixed}: there is no such file")
        return dict.fromkeys(languages, fixed), data[0] if data else fixed.parent
    for folder in data:
        found = {language: folder / f"dict.{language}.txt" for language in languages}
        if all(path.is_file() for path in found.values()):
            return found, folder
    missing = next(path for path in found.values() if not path.is_file())
    raise FileNotFoundError(
        f"there is no dictionary {missing}: name the data folder of the training with --data (and the languages of its "
        "dict.*.txt with --source-lang and --target-lang), or one dictionary of all languages with --fixed-dictionary"
    )


def has_dictionaries_of_files(state: Mapping[str, Any]) -> bool:
    """True unless task or model add symbols to their dictionaries."""
    return task_name(state) in PLAIN_TASKS and not getattr(state["cfg"]["model"], "merge_src_tgt_embed", False)


@dataclass
class Resolved:
    """The parts of a checkpoint that a folder stores.

    Attributes:
        state: of the checkpoint, with a task, a model and weights that a folder can have.
        dictionaries: files by language.
        tokens: of languages; None for a model of one pair.
    """

    state: dict[str, Any]
    dictionaries: dict[str, Path]
    tokens: LanguageTokens | None = None


def resolve(state: dict[str, Any], languages: tuple[str, str], dictionaries: dict[str, Path], work: Path) -> Resolved:
    """Build the model as fairseq does, and say what a folder stores of it. Models of the plugin's own tasks and classes
    stay as they are.

    Args:
        state: from :func:`read`; changed.
        work: an empty folder for files.

    Raises:
        ValueError: for a model that a folder cannot hold.
    """
    name, kind = task_name(state), ARCH_MODEL_REGISTRY[str(architecture(state))]
    task_class = TASK_REGISTRY[name]
    state["cfg"]._set_flag("allow_objects", True)  # options of models without a dataclass are a Namespace
    if is_ours(task_class) or is_ours(kind):
        set_options(state["cfg"].task, source_lang=languages[0], target_lang=languages[1])
        decode_fast(state["cfg"])
        return Resolved(state, dictionaries)
    if not is_fairseqs(task_class):
        raise ValueError(f"--task {name} is code of a user directory: models of fairseq's own tasks can be packaged")
    if name not in (*MULTILINGUAL, "translation", "translation_lev"):
        raise ValueError(f"the checkpoint is of --task {name}: models of translation, translation_lev, "
                         f"{', '.join(MULTILINGUAL)} and of the plugin's tasks can be packaged")  # fmt: skip
    cfg = copy.deepcopy(state["cfg"])
    _adapt(cfg, languages, dictionaries, work)
    task = tasks.setup_task(cfg.task)
    add_data_sources(task)
    model: Any = task.build_model(cfg.model, from_checkpoint=True)
    try:
        model.load_state_dict(state["model"], strict=True, model_cfg=cfg.model)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise ValueError(f"the checkpoint does not fit its options and dictionaries: {first}…") from error
    if hasattr(model, "models"):
        model = model.models["-".join(languages)]
    if getattr(model.decoder, "adaptive_softmax", None) is not None:
        raise ValueError("the checkpoint has --adaptive-softmax-cutoff, whose output no search here reads: "
                         "fairseq-generate decodes it")  # fmt: skip
    tokens = language_tokens(task, name)
    options = plugin_options(model)
    own_code = not is_fairseqs(type(model))
    if options is None and own_code:
        raise ValueError(f"{_class(model)} is code of a user directory with layers of its own: a model folder holds "
                         "what fairseq's and the plugin's classes compute")  # fmt: skip
    weights = model.state_dict()
    if options is None:
        arch = fairseqs_architecture(str(architecture(state)))
        set_options(cfg.model, _name=arch, **({"arch": arch} if "arch" in cfg.model else {}))
        state["cfg"]["model"] = cfg.model
    else:
        with open_dict(state["cfg"]):
            state["cfg"]["model"] = OmegaConf.create(options)
        weights = {each: weight for each, weight in weights.items() if each.startswith(("encoder.", "decoder."))}
        if own_code:
            _compare(model, state["cfg"]["model"], weights, task)
    state["model"] = weights
    _set_task(state, task, name, languages, tokens)
    return Resolved(state, _saved(task, languages, dictionaries, work), tokens)


def _compare(
    model: BaseFairseqModel, options: DictConfig, weights: Mapping[str, torch.Tensor], task: FairseqTask
) -> None:
    """Raise ValueError if a model of a user's class is not the plugin's with these options and weights."""
    own = copy.copy(task).build_model(options, from_checkpoint=True)
    own.load_state_dict(dict(weights), strict=True, model_cfg=options)
    found = difference(model, own, task.source_dictionary, task.target_dictionary)
    if not found <= MOST_DIFFERENT:
        raise ValueError(f"{_class(model)} computes something else than fairseq's Transformer with the same weights: a "
                         "model folder cannot hold it")  # fmt: skip


def _class(model: BaseFairseqModel) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _adapt(cfg: DictConfig, languages: tuple[str, str], dictionaries: dict[str, Path], work: Path) -> None:
    """Let the configuration of a checkpoint find these dictionaries, and nothing else of the training's machine."""
    task, data = cfg.task, work / "data"
    data.mkdir()
    first = next(iter(dictionaries.values()))
    others = {code for pair in listed(getattr(task, "lang_pairs", None)) for code in pair.split("-")}
    for language in {*dictionaries, *others}:  # of which multilingual_translation reads all
        beside = first.with_name(f"dict.{language}.txt")
        shutil.copy(dictionaries.get(language, beside if beside.is_file() else first), data / f"dict.{language}.txt")
    set_options(task, data=str(data), source_lang=languages[0], target_lang=languages[1])
    of_training = ("fixed_dictionary", "source_dict", "target_dict")  # data has them
    set_options(task, **{name: None for name in of_training if getattr(task, name, None)})
    if getattr(task, "eval_bleu", False):
        set_options(task, eval_bleu=False)
    pretrained = ("encoder_embed_path", "decoder_embed_path")  # the checkpoint has what was learned since
    set_options(cfg.model, **{name: None for name in pretrained if getattr(cfg.model, name, None)})
    if getattr(cfg.model, "quant_noise_scalar", 0):  # of no effect but on the rounding of weights; needs a GPU
        set_options(cfg.model, quant_noise_scalar=0)


def _set_task(
    state: dict[str, Any], task: FairseqTask, name: str, languages: tuple[str, str], tokens: LanguageTokens | None
) -> None:
    """The task of the folder: the plugin's for a Transformer of one pair, whose search decodes it; fairseq's with what
    it says of languages for a multilingual one."""
    cfg = state["cfg"]
    of_pair = {"source_lang": languages[0], "target_lang": languages[1]}
    if name in MULTILINGUAL and tokens is not None:
        with open_dict(cfg):
            cfg.task = {**_multilingual(task, name, tokens), **of_pair}
        return
    if name in MULTILINGUAL:
        args = task.args
        limits = {each: getattr(args, each) for each in ("max_source_positions", "max_target_positions")}
        with open_dict(cfg):
            cfg.task = {**limits, "_name": "translation"}
    set_options(cfg.task, **of_pair)
    decode_fast(cfg)


def decode_fast(cfg: DictConfig) -> None:
    """Let the multi-word search decode an autoregressive Transformer of fairseq's translation task."""
    if cfg.task._name == "translation" and issubclass(ARCH_MODEL_REGISTRY[cfg.model._name], TransformerModelBase):
        with open_dict(cfg):
            cfg.task = {**asdict(TranslationInterleavedConfig()), **cfg.task}
            cfg.task._name, cfg.task.num_directions = "translation_interleaved", 1


def _multilingual(task: FairseqTask, name: str, tokens: LanguageTokens) -> dict[str, Any]:
    """The options of fairseq's task with which a folder is decoded. A model of ``multilingual_translation`` is one of
    its pairs, which ``translation_multi_simple_epoch`` decodes alike."""
    args = getattr(task, "args", task.cfg)
    kept = ["left_pad_source", "left_pad_target", "max_source_positions", "max_target_positions", "prepend_bos"]
    kept += ["truncate_source", "encoder_langtok", "decoder_langtok", "lang_tok_style", "lang_tok_replacing_bos_eos"]
    own: dict[str, Any] = {each: getattr(args, each) for each in kept if hasattr(args, each)}
    if name == "translation_from_pretrained_bart":
        return {**_defaults(name), **own, "langs": ",".join(tokens.codes)}
    if name == "multilingual_translation":
        own["lang_tok_replacing_bos_eos"] = True
    else:
        own["langtoks"] = {"main": [*args.langtoks["main"]]}
    pair = "-".join((args.source_lang, args.target_lang))
    own |= {"langs": list(task.langs), "lang_pairs": pair, "seed": 1}
    return {**_defaults("translation_multi_simple_epoch"), **own}


def _defaults(name: str) -> dict[str, Any]:
    """The options of a task of fairseq's that has no dataclass, with their defaults."""
    parser = argparse.ArgumentParser()
    TASK_REGISTRY[name].add_args(parser)
    options = vars(parser.parse_known_args(["."])[0])
    options.pop("data", None)
    return {**options, "_name": name, "task": name}


def _saved(task: FairseqTask, languages: tuple[str, str], dictionaries: dict[str, Path], work: Path) -> dict[str, Path]:
    """The files of the task's dictionaries: those given, unless the task has added symbols."""
    found = {}
    for language, own in zip(languages, (task.source_dictionary, task.target_dictionary), strict=True):
        found[language] = dictionaries[language]
        if Dictionary.load(str(found[language])).symbols != own.symbols:
            found[language] = work / f"dict.{language}.txt"
            own.save(str(found[language]))
    return found
