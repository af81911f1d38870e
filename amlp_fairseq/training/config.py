"""Configurations: an experiment is a row of a paper's table on a corpus at a scale.

    configs/rows/<row>.yaml       what defines the row, where it is in the papers, and its numbers there
    configs/rows/_<family>.yaml   what its rows share: the paper's training
    configs/data/<corpus>.yaml    languages, how the text is prepared, what the papers do differently on this corpus
    configs/scale/<scale>.yaml    sizes and training: ``paper``, or one for a CPU or a single GPU

Each is one file, or builds on another (``base``). They are merged in this order, and later ones win: the scale
``paper``, the families, the corpus, any other scale, the row. In a corpus or a scale, ``families`` has settings for the
rows of a family; in a corpus, ``rows`` has settings for single rows, which win over the row's own. The sections:

    task: {task: translation}         flags of fairseq-train and fairseq-generate
    train: {arch: transformer}        flags of fairseq-train
    tokens-per-update: 25000          target tokens of one update, whatever the hardware
    generate: {beam 4: {beam: 4}}     ways of decoding: a name, and flags of fairseq-generate
    rescored: {beam 8, rescored: {beam: 8}}   likewise, of evaluate --rescore-path
    tune-lenpen: [0.0, 0.6, 1.0]      length penalties of which the best on the validation set is taken
    tune-max-len: [80, 100]           values of --max-len-b, likewise
    average: {checkpoints: last-epochs, count: 5}   what is averaged; of several counts the best on the validation set
    best-seed: true                   of several seeds, the one that is best on the validation set has its test score
                                      beside the paper's
    dictionary: 32768                 entries of the dictionary, for counting parameters
    sizes: {channels: 1024}           what rows refer to as ${sizes.channels}
    vocab-size: 8000                  subword units at this scale, if not as many as the corpus says
    published: [{data: …, table: …}]  where the row is in a paper, and its numbers there
    metric: rouge                     of a corpus: what outputs are scored by, bleu where it does not say; perplexity if
                                      it is text of one language, for language models
    prepare: {size: 32000}            of a corpus: how its text is prepared
    variants: {dynamicconv: {…}}      of a corpus: what other ways of preparing it change. One with the name of a paper
                                      (the first word of its tables) is the data of that paper's tables.

Flags are fairseq's without the dashes. ``true`` gives a flag without a value; ``false`` and ``null`` remove a flag.
Interpolations (``${sizes.kernels}``) are OmegaConf's.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from amlp_fairseq.common.arguments import PLUGIN, refuse_unknown
from amlp_fairseq.common.files import writing
from amlp_fairseq.common.metrics import DEFAULT, KINDS, METRICS
from amlp_fairseq.common.renamed_options import with_present_names
from amlp_fairseq.compat.flags import known_flags

#: Inside the package if it is installed, next to it in a checkout.
CONFIGS = next((path for path in (PLUGIN / "configs", PLUGIN.parent / "configs") if path.is_dir()), PLUGIN / "configs")

EXPERIMENT = (
    *("task", "train", "tokens-per-update", "generate", "rescored", "tune-lenpen", "tune-max-len", "average"),
    *("best-seed", "dictionary"),
)
SECTIONS = {
    "rows": ("base", *EXPERIMENT, "published"),
    "data": ("base", *EXPERIMENT, "metric", "sizes", "families", "rows", "prepare", "variants"),
    "scale": ("base", *EXPERIMENT, "sizes", "families", "vocab-size"),
}
#: The sections of ways of decoding.
DECODINGS = ("generate", "rescored")
#: The sections of keys and values.
MAPPINGS = ("task", "train", *DECODINGS, "sizes", "families", "rows", "prepare", "variants")
PUBLISHED = (
    *("data", "table", "row", "decoding", "kind", "split", "bleu", "rouge", "perplexity", "deviation", "distilled"),
    *("latency", "speedup", "raw-speedup", "sentences-per-second", "pmi", "against", "parameters", "over", "note"),
)
#: Checkpoints that may be averaged, by the names of the options of ``amlp-fairseq average``.
AVERAGES = ("last-epochs", "last-updates", "best")
PAPER = "paper"


#: The parts of the data that are decoded and scored.
SPLITS = ("valid", "test")


@dataclass(frozen=True)
class Recipe:
    """The merged configuration of an experiment; the sections are described at the top of this file.

    Attributes:
        row: the name of the row.
        data: the name of the corpus; ``""`` for one that has no configuration.
        scale: the name of the scale.
        averages: the choices of checkpoints to average, a kind and a number each; the largest number first, so that
            missing checkpoints are noticed early.
        published: the row's numbers on this corpus, or on the first one that has any of the same metric.
        changes: the user's own options of the training.
        training_set: the checksum of the training set, see ``data_sha256``; ``""`` before the training.
        distilled: whether that is a teacher's translations; None before the training.
        tune_max_len: likewise, of --max-len-b.
        metric: one of ``METRICS``.
        best_seed: whether of several seeds the one that is best on the validation set stands for the test set.
    """

    row: str
    data: str
    scale: str
    task: dict[str, Any]
    train: dict[str, Any]
    tokens_per_update: int | None
    generate: dict[str, dict[str, Any]]
    tune_lenpen: list[float]
    averages: list[tuple[str, int]]
    dictionary: int | None
    vocab_size: int | None
    published: list[dict[str, Any]]
    changes: str = ""
    tune_max_len: list[int] = field(default_factory=list)
    metric: str = DEFAULT
    rescored: dict[str, dict[str, Any]] = field(default_factory=dict)
    best_seed: bool = False
    training_set: str = ""
    distilled: bool | None = None


def names(kind: str) -> list[str]:
    """The names of all files of ``rows``, ``data`` or ``scale``."""
    return sorted(path.stem for path in (CONFIGS / kind).glob("[!_]*.yaml"))


def tables() -> list[str]:
    """The names of all tables: ``ibdecoder 1``."""
    return sorted({table for row in names("rows") for table in row_tables(row)})


def row_tables(row: str) -> set[str]:
    """The names of the tables that have a row."""
    return {str(entry["table"]) for entry in _published(row)}


def paper_of(table: str) -> str:
    """The first word of a table's name, which all tables of a paper share: ``ibdecoder`` of ``ibdecoder 1``."""
    return table.split()[0]


def row_corpora(row: str) -> list[str]:
    """The corpora on which the papers have this row."""
    refuse_unknown([row], names("rows"), "configs/rows")
    return list(dict.fromkeys(str(entry["data"]) for entry in _published(row)))


def _published(row: str) -> list[Any]:
    """The numbers in a row's own file."""
    path = CONFIGS / "rows" / f"{row}.yaml"
    return _part("rows", path, _text(path))[0].get("published") or []


def load(row: str | Path, data: str, scale: str, languages: Sequence[str] | None = None) -> Recipe:
    """Merge the files of an experiment.

    Args:
        row: a name of ``configs/rows``, or a file of the same form.
        data: a name of ``configs/data``, or ``""`` for a corpus that has none.
        scale: a name of ``configs/scale``, or a file of the same form.
        languages: source and target, where they are not the corpus' own: it has no configuration, or is reversed; the
            only one of text for language models.

    Raises:
        ValueError: for unknown names, sections and keys, naming the file and the nearest known name; for values that
            cannot be a flag's.
    """
    chain, scales = _chain("rows", row), _chain("scale", scale)
    corpus = _chain("data", data) if data else []
    families = [name for name, _ in chain if name.startswith("_")]
    own = [part for name, part in chain if not name.startswith("_")] or [chain[-1][1]]
    paper = [part for _, part in _chain("scale", PAPER)]
    layers = paper + [part for name, part in chain if name in families]
    for _, part in corpus:
        layers += [part, *_of(part, "families", families)]
    for _, part in scales if scales[-1][0] != PAPER else ():
        layers += [part, *_of(part, "families", families)]
    layers += own
    for _, part in corpus:
        layers += _of(part, "rows", [chain[-1][0]])
    if languages and len(languages) == 1:
        layers.append({"metric": "perplexity"})
    elif languages:
        layers.append({"task": {"source-lang": languages[0], "target-lang": languages[1]}})
    where = f"row {row}, data {data or '-'}, scale {scale}"
    try:
        merged: Any = OmegaConf.to_container(OmegaConf.create(_merged(layers)), resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"{where}: {error}") from None
    # The numbers of the row itself: those of its base are another row's.
    published = copy.deepcopy(own[-1].get("published") or [])
    return _recipe(merged, chain[-1][0], data, scales[-1][0], published, where)


def _recipe(merged: dict[str, Any], row: str, data: str, scale: str, published: Any, where: str) -> Recipe:
    metric = merged.get("metric", DEFAULT)
    refuse_unknown([metric], METRICS, f"{where}: metric")
    for entry in published:
        refuse_unknown(entry, PUBLISHED, f"{where}: published")
        for name, choices in (("kind", KINDS), ("split", SPLITS)):
            if name in entry:
                refuse_unknown([entry[name]], choices, f"{where}: published, {name}")
    scored = [entry for entry in published if entry.get("kind", "unstated") in METRICS[metric].kinds]
    recipe = Recipe(
        row=row,
        data=data,
        scale=scale,
        task=merged.get("task") or {},
        train=merged.get("train") or {},
        tokens_per_update=merged.get("tokens-per-update"),
        generate=_decodings(merged, "generate"),
        tune_lenpen=merged.get("tune-lenpen") or [],
        averages=_averages(merged.get("average"), where),
        dictionary=merged.get("dictionary"),
        vocab_size=merged.get("vocab-size"),
        published=_of_corpus(scored, data) or _of_corpus(scored, scored[0].get("data") if scored else ""),
        tune_max_len=merged.get("tune-max-len") or [],
        metric=metric,
        rescored=_decodings(merged, "rescored"),
        best_seed=bool(merged.get("best-seed")),
    )
    for values in (recipe.task, recipe.train, *recipe.generate.values(), *recipe.rescored.values()):
        flags(values, where)
    return recipe


def _decodings(merged: dict[str, Any], section: str) -> dict[str, dict[str, Any]]:
    return {name: values for name, values in (merged.get(section) or {}).items() if values is not None}


def _of_corpus(published: list[dict[str, Any]], data: str) -> list[dict[str, Any]]:
    return [entry for entry in published if entry.get("data") == data]


def save(recipe: Recipe, path: Path) -> None:
    """Write a file for ``read``."""
    content = {name: value for name, value in vars(recipe).items() if name != "averages"}
    content["averages"] = [list(average) for average in recipe.averages]
    with writing(path) as (file,):
        yaml.safe_dump(content, file, sort_keys=False, allow_unicode=True)


def read(path: Path) -> Recipe:
    """The recipe that ``save`` has written.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        content["averages"] = [(kind, count) for kind, count in content["averages"]]
        return Recipe(**with_present_names(content))
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def prepare_settings(data: str, variant: str | None = None) -> dict[str, Any]:
    """The preparation of a corpus' text: the section ``prepare``, see ``corpora/prepare.py``.

    Raises:
        ValueError: for unknown names, and corpora that cannot be prepared.
    """
    merged = _corpus(data)
    variants = merged.get("variants") or {}
    if variant is not None:
        refuse_unknown([variant], list(variants), f"data {data}: --variant")
    if "prepare" not in merged:
        raise ValueError(f"data {data}: its configuration has no section prepare, which says what its files are")
    return copy.deepcopy(_merged([merged["prepare"], variants[variant] if variant else {}]))


def paper_variant(data: str, table: str) -> str:
    """The variant of a corpus that a paper's table is of; ``""`` where it is the corpus as it is."""
    return paper_of(table) if paper_of(table) in (_corpus(data).get("variants") or {}) else ""


def corpus_metric(data: str) -> str:
    """The metric of a corpus of configs/data, one of ``METRICS``."""
    return str(_corpus(data).get("metric", DEFAULT))


def flags(values: dict[str, Any], where: str) -> list[str]:
    """A section as words of a command line.

    Raises:
        ValueError: for a value that is no text, number, truth value or null.
    """
    words = []
    for name, value in values.items():
        if isinstance(value, (list, dict)):
            raise ValueError(f"{where}: {name} must be a text or number as on the command line, not {value}")
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def quoted(words: Iterable[object]) -> str:
    """A command that can be pasted into a shell."""
    return shlex.join(str(word) for word in words)


def _corpus(data: str) -> dict[str, Any]:
    return _merged(part for _, part in _chain("data", data))


def _merged(layers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Mappings in mappings, each layer over those before it. The values are those of the layers, not copies."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            nested = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = _merged([result[key], value]) if nested else value
    return result


def _chain(kind: str, name: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """Names and contents of a file's bases, the first one first, and of the file itself."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        refuse_unknown([str(name)], names(kind), f"configs/{kind}")
        path = CONFIGS / kind / f"{name}.yaml"
    found: list[tuple[str, dict[str, Any]]] = []
    while True:
        content, base = _part(kind, path, _text(path))
        found.insert(0, (path.stem, content))
        if base is None:
            return found
        beside, referrer = path.parent / f"{base}.yaml", path
        path = beside if beside.is_file() else CONFIGS / kind / f"{base}.yaml"
        if not path.is_file():
            refuse_unknown([str(base)], [*names(kind), *(_families() if kind == "rows" else ())], f"{referrer}: base")
        if path.stem in [name for name, _ in found]:
            raise ValueError(f"{path}: its base is itself, through {' <- '.join(name for name, _ in found)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


@cache
def _part(kind: str, path: Path, text: str) -> tuple[dict[str, Any], str | None]:
    """The content of a file, checked, and its base: once, because all rows share most of their files."""
    content = _parsed(path, text)
    refuse_unknown(map(str, content), SECTIONS[kind], str(path), partial(_line, path))
    _check_sections(content, path)
    _check_parts(content, path)
    return content, content.pop("base", None)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(StringIO(text)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{path}: {error.problem or error.context} (YAML{where})") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: sections are needed ({', '.join(SECTIONS['rows'])}), not {content!r}")
    return with_present_names(content)


def _line(path: Path, *keys: str) -> str:
    """Where the last of these keys, each inside the one before, stands in a file: `` (line 3)``."""
    node = yaml.compose(path.read_text(encoding="utf-8"))
    line = ""
    for name in keys:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value == name:
                line, node = f" (line {key.start_mark.line + 1})", value
                break
    return line


def _check_sections(sections: dict[str, Any], path: Path, *inside: str) -> None:
    """Refuse sections of keys and values that are something else, and flags that fairseq does not have; also in what a
    corpus or scale has for families and rows, which are ``inside`` the file."""
    for name, value in sections.items():
        where = (*inside, name)
        if name in MAPPINGS:
            _check_mapping(value, path, *where)
        parts = {} if name not in (*DECODINGS, "families", "rows") or value is None else value
        for part, values in parts.items():
            if name in DECODINGS:
                _check_flags(values, path, *where, str(part))
            elif isinstance(values, dict):
                _check_sections(values, path, *where, str(part))
        if name in ("task", "train"):
            _check_flags(value, path, *where)


def _check_flags(values: Any, path: Path, *where: str) -> None:
    _check_mapping(values, path, *where)
    refuse_unknown(map(str, values or ()), known_flags(), f"{path}: {', '.join(where)}", partial(_line, path, *where))


def _check_mapping(value: object, path: Path, *where: str) -> None:
    if not isinstance(value, (dict, type(None))):
        place, line = ", ".join(where), _line(path, *where)
        raise ValueError(f"{path}: {place} must have keys and values, like {{key: value}}, not {value!r}{line}")


def _families() -> list[str]:
    return sorted(path.stem for path in (CONFIGS / "rows").glob("_*.yaml"))


def _check_parts(content: dict[str, Any], path: Path) -> None:
    """Refuse unknown names and sections in ``families`` and ``rows`` of a corpus or scale."""
    beside = [other.stem for other in path.parent.glob("*.yaml")]
    for section, known in (("families", _families()), ("rows", names("rows"))):
        for name, part in (content.get(section) or {}).items():
            refuse_unknown([name], [*known, *beside], f"{path}: {section}", partial(_line, path, section))
            if not isinstance(part, (dict, type(None))):
                where = _line(path, section, name)
                raise ValueError(f"{path}: {section}, {name} must have sections, not {part!r}{where}")
            inside = partial(_line, path, section, name)
            refuse_unknown(map(str, part or ()), EXPERIMENT, f"{path}: {section}, {name}", inside)


def _of(part: dict[str, Any], section: str, wanted: list[str]) -> list[dict[str, Any]]:
    """The settings of a corpus or scale for these families or this row."""
    return [part[section][name] for name in wanted if name in (part.get(section) or {})]


def _averages(section: Any, where: str) -> list[tuple[str, int]]:
    if isinstance(section, dict) and section.keys() == {"checkpoints", "count"}:
        counts = section["count"] if isinstance(section["count"], list) else [section["count"]]
        if section["checkpoints"] in AVERAGES and counts and all(type(count) is int and count > 0 for count in counts):
            return [(section["checkpoints"], count) for count in sorted(counts, reverse=True)]
    raise ValueError(
        f"{where}: average must have checkpoints, one of {', '.join(AVERAGES)}, and count, a positive number or a list "
        f"of them, not {section}"
    )
