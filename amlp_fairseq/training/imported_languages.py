"""The languages of checkpoints of fairseq, and where their tokens stand."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, open_dict

from amlp_fairseq.compat.internals import data_utils, get_lang_tok
from amlp_fairseq.model_folder.language_tokens import END, WORDS, LanguageTokens

#: fairseq's tasks of multilingual models.
MULTILINGUAL = ("translation_multi_simple_epoch", "multilingual_translation", "translation_from_pretrained_bart")
#: Symbols that the branch of fairseq in which NLLB-200 was trained adds to dictionaries after those of languages, with
#: ``--add-data-source-prefix-tags``.
DATA_SOURCES = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")


def task_name(state: Mapping[str, Any]) -> str:
    task = state["cfg"]["task"]
    return str(getattr(task, "_name", None) or task.task)


def set_options(section: Any, **options: Any) -> None:
    """Set options of a section of a configuration, which may be of either kind."""
    if isinstance(section, argparse.Namespace):
        vars(section).update(options)
        return
    with open_dict(section):
        section.update(options)


def languages_of(
    state: Mapping[str, Any], given: tuple[str | None, str | None], data: Sequence[Path]
) -> tuple[str, str]:
    """Source and target language: those given, of the checkpoint, or of the training data.

    Raises:
        ValueError: if nothing says them, or the checkpoint translates the other way round.
    """
    task = state["cfg"]["task"]
    own = getattr(task, "source_lang", None), getattr(task, "target_lang", None)
    if task_name(state) not in MULTILINGUAL and None not in own and given == own[::-1] and given != own:
        raise ValueError(f"--source-lang {given[0]} --target-lang {given[1]}: the checkpoint translates {own[0]} to "
                         f"{own[1]}")  # fmt: skip
    source, target = (one or other for one, other in zip(given, own, strict=True))
    for folder in data:
        if (source is None or target is None) and folder.is_dir():
            source, target = data_utils.infer_language_pair(str(folder))
    if source is None or target is None:
        said = str(data[0]) if data else "the checkpoint"
        raise ValueError(f"{said} does not say the languages: name them with --source-lang and --target-lang, or the "
                         "data folder of the training with --data")  # fmt: skip
    _refuse_unknown_languages(task, task_name(state), (source, target))
    return source, target


def _refuse_unknown_languages(args: DictConfig | argparse.Namespace, name: str, languages: tuple[str, str]) -> None:
    """Raise ValueError for a language, or a pair of a model of pairs, that a multilingual model does not have."""
    if name not in MULTILINGUAL:
        return
    pairs = listed(args.lang_pairs) if name != "translation_from_pretrained_bart" else []
    if name == "multilingual_translation" and "-".join(languages) not in pairs:
        raise ValueError(f"--source-lang {languages[0]} --target-lang {languages[1]}: the model has {', '.join(pairs)}")
    known = listed(getattr(args, "langs", None)) or sorted({code for pair in pairs for code in pair.split("-")})
    tokens = LanguageTokens(tuple(known), (), (), END)
    for option, code in zip(("--source-lang", "--target-lang"), languages, strict=True):
        tokens.check(option, code)


def listed(value: Any) -> list[str]:
    """An option that is a list, or a text with commas."""
    return value.split(",") if isinstance(value, str) else [*(value or ())]


def read_list_of_languages(task: Any, folders: Sequence[Path]) -> None:
    """Read the file of a checkpoint's ``--lang-dict``, of which it knows only where it lay, from the first folder with
    a file of that name.

    Args:
        task: the options of the task; changed.

    Raises:
        FileNotFoundError: if there is none.
    """
    if not getattr(task, "lang_dict", None):
        return
    path = Path(task.lang_dict)
    found = next((each for each in (*(folder / path.name for folder in folders), path) if each.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"the list of the model's languages, {path.name} (--lang-dict of its training), is not "
                                f"in {folders[0]}: copy it there")  # fmt: skip
    codes = [line.strip() for line in found.read_text(encoding="utf-8").splitlines() if line.strip()]
    set_options(task, langs=codes, lang_dict=None)


def check_tags(tags: LanguageTokens, dictionary: Path) -> None:
    """Raise ValueError for tokens that stand before a source (``--source-tags``), if its dictionary has them not."""
    known = Dictionary.load(str(dictionary))
    for code in tags.codes:
        for piece in tags.encoder_pieces([], code, code):
            if piece not in known:
                raise ValueError(f"--source-tags, --langs: {dictionary} has no entry {piece!r}")


def add_data_sources(task: FairseqTask) -> None:
    """Give the dictionaries of a task the symbols of the branch in which NLLB-200 was trained."""
    if getattr(getattr(task, "args", None), "add_data_source_prefix_tags", False):
        for dictionary in (task.source_dictionary, task.target_dictionary):
            for symbol in DATA_SOURCES:
                dictionary.add_symbol(symbol)


def language_tokens(task: FairseqTask, name: str) -> LanguageTokens | None:
    """Where the tokens of languages stand, by the options of a task of fairseq's; None if it has none."""
    if name not in MULTILINGUAL:
        return None
    if name == "translation_from_pretrained_bart":
        return LanguageTokens(tuple(task.langs), (WORDS, END, "[{source}]"), ("[{target}]",), "[{target}]")
    args = task.args
    reads, writes = args.encoder_langtok, "tgt" if args.decoder_langtok else None
    style, replaced = "multilingual", True
    if name == "translation_multi_simple_epoch":
        (reads, writes), style, replaced = args.langtoks["main"], args.lang_tok_style, args.lang_tok_replacing_bos_eos
    if not reads and not writes:
        return None
    of_source = [get_lang_tok("{source}" if reads.startswith("src") else "{target}", style, reads)] if reads else []
    of_target = [get_lang_tok("{target}", style, writes)] if writes else []
    codes = tuple(task.langs)
    if name == "multilingual_translation" and not (args.share_encoders and args.share_decoders):
        codes = ()
    if replaced:
        return LanguageTokens(codes, (WORDS, *(of_source or [END])), tuple(of_target or [END]), END)
    return LanguageTokens(codes, (*of_source, WORDS, END), (END, *of_target), END)
