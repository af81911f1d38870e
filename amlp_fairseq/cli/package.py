"""Make one folder of a trained model: weights, dictionaries, subword model, decoding options and a model card.

    amlp-fairseq package CHECKPOINT… --out DIR [--weights TYPE] [decoding options of fairseq-generate]

CHECKPOINT is a checkpoint, several of one training, which are averaged, or the folder of `amlp-fairseq train --row`
once `amlp-fairseq evaluate` has averaged its checkpoints; or DIR of another model, whose text and decoding options are
kept. DIR stands wherever a checkpoint does (--path DIR), and `amlp-fairseq translate --model DIR` reads raw text. A
Transformer of fairseq is stored as plugin_transformer, the same model, which decodes faster; --user-dir runs the code
that registers its architecture, which the folder does not need. A.pt:B.pt are models that decode as one, with the mean
of their probabilities.

    amlp-fairseq package ibdecoder --out en-de --weights bfloat16 --beam 4 --lenpen 0.6
    amlp-fairseq package model.pt --user-dir configs -s en -t de --out en-de
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from omegaconf import DictConfig

from amlp_fairseq.common.arguments import command_parser, folder, parse_with_fairseqs, positive, say_next
from amlp_fairseq.common.files import whole
from amlp_fairseq.common.training_folder import RECIPE
from amlp_fairseq.compat.flags import known_flags
from amlp_fairseq.corpora.shortlist import add_sizes
from amlp_fairseq.engine import description
from amlp_fairseq.engine.shortlist import FILE as SHORTLIST
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.model_folder import format as model_folder
from amlp_fairseq.model_folder.as_checkpoint import AVERAGE
from amlp_fairseq.model_folder.config import (
    CARD,
    DISABLED,
    WEIGHT_TYPES,
    is_model_folder,
    read_config,
    splits_sentences,
)
from amlp_fairseq.model_folder.language_tokens import KEY as TOKENS
from amlp_fairseq.model_folder.language_tokens import LanguageTokens
from amlp_fairseq.models.description import description_of
from amlp_fairseq.text import subwords
from amlp_fairseq.text.dictionary import Dictionary as TextDictionary
from amlp_fairseq.text.dictionary import fingerprint
from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.text.subwords import MODELS, model_names
from amlp_fairseq.training import imported, imported_languages, model_card
from amlp_fairseq.training.config import corpus_metric, flags, names, read
from amlp_fairseq.training.data_folder import data_folder, stored_text
from amlp_fairseq.translator import decoding_options, training_data
from amlp_fairseq.translator.options import files
from amlp_fairseq.translator.translator import Translator

#: Settings of text.json that are about how a line is cut up.
TEXT = TextPipeline.__dataclass_fields__.keys() - {"folder", "languages"}
#: Tasks whose searches have shortlists.
WITH_SHORTLIST = ("translation_interleaved", "translation_cmlmc")
#: ``--post-process`` for lines that are not cut up.
AS_IT_IS = "none"


def remember_dictionaries(state: dict[str, Any], dictionaries: dict[str, Path]) -> None:
    """Give a checkpoint of fairseq's own task the fingerprints of its dictionaries that the plugin's tasks keep, by
    which data of other dictionaries are refused."""
    loaded = (Dictionary.load(str(path)) for path in dictionaries.values())
    prints = dict(zip(("source", "target"), (fingerprint(each.symbols) for each in loaded), strict=True))
    state["task_state"] = {"dictionaries": prints, **(state.get("task_state") or {})}


def text_settings(
    data: Path, languages: Sequence[str], dictionaries: dict[str, Path], given: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The subword segmentation of lines, and its model, or those of both languages, by their names in a folder: from a
    model's folder or DATA/text.json, or else from the command line, ``given``.

    Raises:
        ValueError: where there is no answer for a dictionary of pieces, and for a subword model that is not the one
            that has cut up the data.
    """
    found: dict[str, Any] = {}
    if is_folder := is_model_folder(data):
        found = read_config(data)["text"]
    elif stored := stored_text(data):
        found = {name: stored[name] for name in sorted(TEXT) if name in stored}
    if given.tokenizer is not None:
        found["tokenizer"] = given.tokenizer
        found.setdefault("split_hyphens", not given.moses_no_dash_splits)  # fairseq's default
    elif given.moses_no_dash_splits:
        raise ValueError("--moses-no-dash-splits goes with --tokenizer moses")
    if given.post_process is not None:
        found["post_process"] = None if given.post_process == AS_IT_IS else given.post_process
    kind = found.get("post_process")
    if kind is None:
        for flag, path in (("", given.subword_model), ("target-", given.target_subword_model)):
            if path is not None:
                kinds = " or ".join(sorted(MODELS))
                raise ValueError(f"--{flag}subword-model {path} goes with --post-process: choose {kinds}")
        if given.post_process is None and not is_folder:
            for path in dictionaries.values():
                refuse_pieces(path)
        return found, {}
    own, of_target = model_names(kind)
    models = {own: given.subword_model or data / own}
    if given.target_subword_model is not None:
        found["own_target_model"] = True
    if found.get("own_target_model"):
        models[of_target] = given.target_subword_model or data / of_target
    for path in models.values():
        if not path.is_file():
            raise ValueError(f"there is no subword model {path}: name it with --subword-model")
    if is_folder and {given.subword_model, given.target_subword_model} == {None}:
        return found, models  # which have checksums
    both = [models[own], models.get(of_target, models[own])]
    training_data.check_subword_model(kind, both, dictionaries, data, languages)
    return found, models


def refuse_pieces(dictionary: Path) -> None:
    """Raise ValueError for a dictionary of pieces, into which lines of text would not be cut up."""
    kind = training_data.marked(dictionary)
    if kind is None:
        return
    if kind in MODELS:
        way = f"--post-process {kind} --subword-model FILE cuts lines of text up so"
    else:
        way = f"amlp-fairseq cuts text up with {' or '.join(sorted(MODELS))} only"
    raise ValueError(
        f"{dictionary} has pieces of words ({kind}), and nothing says how lines are cut up into them: {way}; "
        f"--post-process {AS_IT_IS} if the lines that will be translated consist of such pieces already"
    )


def longest_source(data: Sequence[Path], languages: Sequence[str], cfg: DictConfig) -> int | None:
    """Pieces from which a source is too long, see ``training_data.py``; those of a model's folder are kept."""
    if is_model_folder(data[0]):
        return read_config(data[0])["longest_source"]  # type: ignore[no-any-return]
    return training_data.longest_source(data, languages, cfg)


def data_folders(text: str) -> list[Path]:
    """The folders of ``a:b``, as fairseq splits them, each as :func:`data_folder` reads it."""
    if text.startswith(":") or text.endswith(":") or "::" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: a folder has no name")
    return [data_folder(each) for each in text.split(":")]


def is_of_documents(data: Path, run: Path) -> bool:
    """True if a line of the data is a document (of summarisation), and not a sentence."""
    if is_model_folder(data):
        return not splits_sentences(read_config(data))
    corpus = (stored_text(data) or {}).get("corpus")
    found = corpus_metric(corpus) if corpus in names("data") else None
    if (run / RECIPE).is_file():
        found = read(run / RECIPE).metric
    return found == "rouge"


def decoding(run: Path, name: str | None, words: list[str], task: str) -> dict[str, Any]:
    """Decoding options: those of the recipe's first way of decoding, of the named one, or of a model's folder, and
    those given, with whole paths."""
    parsed = _decoding(run, name, words, task)
    return parsed | {name: str(Path(value).resolve()) for name, value in files(parsed).items()}


def _decoding(run: Path, name: str | None, words: list[str], task: str) -> dict[str, Any]:
    if name is None and is_model_folder(run):
        return decoding_options.parse([*flags_of(read_config(run)["decoding"]), *words], task)
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
        "--weights",
        choices=WEIGHT_TYPES,
        help="type of stored weights (default: that of the model folder, else float32); int8 weights decode in int8 "
        "unless --decode-dtype says otherwise",
    )
    parser.add_argument(
        "--data",
        type=data_folders,
        metavar="DIR[:DIR…]",
        help="the data folder (default: that of the training, or the checkpoint's, with dict.*.txt)",
    )
    parser.add_argument(
        "--user-dir", type=Path, metavar="DIR", help="run the code of this folder, which registers the architecture"
    )
    parser.add_argument("--decoding", metavar="NAME", help="the recipe's way of decoding (default: its first)")
    parser.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="pieces of the longest sentence that is not cut (default: the 99.9th percentile of the training's)",
    )
    listed = parser.add_argument_group("lexical shortlist")
    listed.add_argument(
        "--shortlist",
        type=Path,
        metavar="FILE",
        help="of amlp-fairseq shortlist, or Marian's lex.s2t: a translation has words of its source's list alone; "
        f"{DISABLED['shortlist']}: of all words (default: as the model folder)",
    )
    add_sizes(listed)
    without = parser.add_argument_group("data of fairseq-preprocess, which have no text.json")
    without.add_argument("--tokenizer", choices=("moses",), help="tokeniser of the lines, as fairseq's --tokenizer")
    without.add_argument("--moses-no-dash-splits", action="store_true", help="let a-b be one word")
    without.add_argument(
        "--post-process",
        choices=[*sorted(MODELS), AS_IT_IS],
        help=f"segmentation into subword tokens; {AS_IT_IS}: lines are translated as they are",
    )
    without.add_argument(
        "--subword-model",
        type=Path,
        metavar="FILE",
        help="their model (subword_nmt: or of fastBPE)",
    )
    without.add_argument("--target-subword-model", type=Path, metavar="FILE", help="one of the target language alone")
    stored = parser.add_argument_group("what the checkpoint or its training's data do not say, or which of several")
    stored.add_argument("-s", "--source-lang", metavar="CODE", help="the language that is read")
    stored.add_argument("-t", "--target-lang", metavar="CODE", help="the language that is written")
    stored.add_argument("--fixed-dictionary", type=Path, metavar="FILE", help="the dictionary of all languages")
    stored.add_argument(
        "--source-tags",
        metavar="TAGS",
        help="pieces before each source, with {source} and {target} for languages of --langs: '{source} {target}'",
    )
    stored.add_argument("--langs", type=codes, metavar="CODE,…", help="the languages of --source-tags")
    args, words = parse_with_fairseqs(
        parser,
        known_flags,
        accepted=lambda args: decoding_options.flags("translation_interleaved", "translation_cmlmc"),
    )
    how = (ensemble if is_ensemble(args.checkpoints) else package)(args, words)
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{args.out}: {size / 1e6:.1f} MB, {how}")
    say_next("translate", "--model", args.out)


def shortlist_file(args: argparse.Namespace, run: Path, resolved: imported.Resolved, work: Path) -> Path | None:
    """The file of the shortlist that goes into the folder: made of the one that is given, or that of a model's folder.

    Raises:
        ValueError: for a model whose search has none, for a file of other dictionaries, and for sizes without a file.
    """
    sizes = {name: vars(args)[name] for name in ("frequent", "best") if vars(args)[name] is not None}
    if sizes and (args.shortlist is None or str(args.shortlist) == DISABLED["shortlist"]):
        raise ValueError(f"--{', --'.join(sizes)}: of which lists? --shortlist FILE names the file that has them")
    if args.shortlist is None:
        return run / SHORTLIST if (run / SHORTLIST).is_file() else None
    if str(args.shortlist) == DISABLED["shortlist"]:
        return None
    task = imported_languages.task_name(resolved.state)
    if resolved.tokens is not None or task not in WITH_SHORTLIST:
        kind = "a multilingual model" if resolved.tokens is not None else f"a model of --task {task}"
        raise ValueError(f"--shortlist {args.shortlist}: {kind} decodes without")
    source, target = (TextDictionary(path).symbols for path in resolved.dictionaries.values())
    made = work / SHORTLIST
    Shortlist.open(args.shortlist, source, target, **sizes).save(made)
    return made


def is_ensemble(paths: Sequence[Path]) -> bool:
    """True for ``a.pt:b.pt``."""
    return len(paths) == 1 and ":" in str(paths[0]) and not paths[0].exists()


def ensemble(args: argparse.Namespace, words: list[str]) -> str:
    """Make the folder of models that decode as one, with a folder of each in it. Returns how they decode."""
    paths = [Path(path) for path in str(args.checkpoints[0]).split(":")]
    if not all(str(args.checkpoints[0]).split(":")):
        raise ValueError(f"CHECKPOINT {args.checkpoints[0]}: a name is missing before or after ':'")
    if args.out.exists():
        raise ValueError(f"--out {args.out} exists already: name another folder, or remove it")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with whole(args.out, unique=True) as (part,):
        part.mkdir()
        names = [str(number) for number in range(1, len(paths) + 1)]
        for name, path in zip(names, paths, strict=True):
            package(argparse.Namespace(**{**vars(args), "checkpoints": [path], "out": part / name}), words)
        model_folder.write_members(part, names)
        try:
            translator = Translator(part)
        except ValueError as error:  # they do not decode as one
            message = str(error)
            for name, path in zip(names, paths, strict=True):
                message = message.replace(str(part / name), str(path))
            raise ValueError(message) from None
        (part / CARD).write_text(model_card.card_of_ensemble(translator, args.out.name), encoding="utf-8")
    return f"{len(paths)} models that decode as one"


def package(args: argparse.Namespace, words: list[str]) -> str:
    """Make the folder of one model. Returns how it decodes."""
    paths = args.checkpoints
    if len(paths) == 1 and paths[0].is_dir() and not is_model_folder(paths[0]):
        paths = [paths[0] / AVERAGE]
    for path in paths:
        if not path.exists():
            hint = "; amlp-fairseq evaluate makes it" if path.name == AVERAGE else ""
            raise FileNotFoundError(f"CHECKPOINT {path}: there is no such file{hint}")
        if len(paths) > 1 and path.is_dir():
            raise ValueError(f"CHECKPOINT {path} is a folder: of several only checkpoints are averaged, name the files")
    if args.out.exists():
        raise ValueError(f"--out {args.out} exists already: name another folder, or remove it")
    run = paths[0] if paths[0].is_dir() else paths[0].parent
    if args.user_dir is not None:
        imported.import_user_dir(args.user_dir)
    state = imported.read(paths)
    task = state["cfg"].task
    if not hasattr(task, "source_lang"):
        raise ValueError(f"CHECKPOINT {paths[0]} is of --task {task._name}: only models that translate can be packaged")
    found = [folder for folder in [*map(Path, str(task.data).split(":")), run] if folder.is_dir()]
    data = args.data or found or [Path(task.data)]
    tags = tags_of(args, imported_languages.task_name(state))
    imported_languages.read_list_of_languages(task, [*(args.data or []), run])
    own = (None, None) if tags else (args.source_lang, args.target_lang)
    languages = imported_languages.languages_of(state, own, data)
    dictionaries, of_dictionaries = imported.dictionaries_of(languages, data, args.fixed_dictionary)
    data = data[data.index(of_dictionaries) :] if of_dictionaries in data else data
    if imported.has_dictionaries_of_files(state):
        model_folder.check_dictionaries(state, [*dictionaries.values()])
    text, subword_models = text_settings(data[0], languages, dictionaries, args)
    longest = args.max_length or longest_source(data, languages, state["cfg"])
    if tags is not None:
        imported_languages.check_tags(tags, dictionaries[languages[0]])
        languages = args.source_lang, args.target_lang
        dictionaries = dict(zip(languages, dictionaries.values(), strict=True))
    with tempfile.TemporaryDirectory() as work:
        resolved = imported.resolve(state, languages, dictionaries, Path(work))
        if is_model_folder(run):
            resolved.tokens = LanguageTokens.of(read_config(run))
        resolved.tokens = tags or resolved.tokens
        if text.get("post_process") == "subword_nmt":
            for name, path in subword_models.items():
                subword_models[name] = Path(work, name)
                subword_models[name].write_text(subwords.codes(path), encoding="utf-8")
        shortlist = shortlist_file(args, run, resolved, Path(work))
        return write(args, words, run, data[0], resolved, text, subword_models, longest, shortlist)


def codes(text: str) -> list[str]:
    """Languages with commas between them."""
    return [code for code in text.split(",") if code]


def tags_of(args: argparse.Namespace, task: str) -> LanguageTokens | None:
    """The tokens of languages that the command line says; None if it says none.

    Raises:
        ValueError: for a task that has tokens of its own, and for half of what is needed.
    """
    if (args.source_tags is None) != (args.langs is None):
        raise ValueError("--source-tags TAGS and --langs CODE,… are given together, or neither is")
    if args.source_tags is None:
        return None
    if task in imported_languages.MULTILINGUAL:
        raise ValueError(f"--source-tags: a model of {task} has tokens of languages already, which -s and -t name")
    if None in (args.source_lang, args.target_lang):
        raise ValueError("--source-tags: name two of --langs with --source-lang and --target-lang")
    tags = LanguageTokens.before_sources(args.source_tags.split(), args.langs)
    tags.check("--source-lang", args.source_lang)
    tags.check("--target-lang", args.target_lang)
    return tags


def write(
    args: argparse.Namespace,
    words: list[str],
    run: Path,
    data: Path,
    resolved: imported.Resolved,
    text: dict[str, Any],
    subword_models: dict[str, Path],
    longest: int | None,
    shortlist: Path | None,
) -> str:
    """Write the folder. Returns how the model decodes."""
    state, dictionaries = resolved.state, resolved.dictionaries
    remember_dictionaries(state, dictionaries)
    files = {f"dict.{language}.txt": path for language, path in dictionaries.items()} | subword_models
    if shortlist is not None:
        files[SHORTLIST] = shortlist
    config = {
        "languages": [*dictionaries],
        "text": text,
        "decoding": decoding(run, args.decoding, words, imported_languages.task_name(state)),
        "longest_source": longest,
        **({"split_sentences": False} if is_of_documents(data, run) else {}),
        **({TOKENS: resolved.tokens.entry()} if resolved.tokens is not None else {}),
    }
    weights = args.weights or (read_config(run)["weights"] if is_model_folder(run) else "float32")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with whole(args.out, unique=True) as (part,):
        model_folder.write(part, state, weights, config, files)
        translator = Translator(part, backend="pytorch")
        model, names = translator.pytorch().model, set(state["model"])
        model.upgrade_state_dict(state["model"])
        if names != state["model"].keys():  # an older version of fairseq had other ones
            shutil.rmtree(part)
            model_folder.write(part, state, weights, config, files)
        model_folder.add(part, description.KEY, description_of(model))
        if args.max_length is not None and args.max_length > translator.max_length:
            raise ValueError(
                f"--max-length {args.max_length}: the model has positions for {translator.max_length} pieces"
            )
        card = model_card.card(translator, args.out.name, run)
        (part / CARD).write_text(card, encoding="utf-8")
        return f"decodes in {model_card.decode_dtype(translator)}: {model_card.decoding(translator)}"


def flags_of(options: dict[str, Any]) -> list[str]:
    return flags({name.replace("_", "-"): value for name, value in options.items()}, "decoding")


if __name__ == "__main__":
    main()
