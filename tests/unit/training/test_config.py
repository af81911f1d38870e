"""Configurations: every one is understood by fairseq, files are merged in the order that is promised, mistakes are
named."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import commands
import pytest
import yaml
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from amlp_fairseq.evaluation.parameters import model_options, parsed
from amlp_fairseq.training import config
from amlp_fairseq.training.config import Recipe, flags, load, names, prepare_settings, row_corpora

#: What the papers have trained, and reduced scales with their corpora.
AS_IN_PAPERS = [(row, data) for row in names("rows") for data in row_corpora(row)]
SMALL = [("embedded", "embedded"), ("multi30k", "multi30k"), ("multi30k", "multi30k_base")]
#: Of language models.
SMALL_TEXT = [("embedded_lm", "embedded_lm")]
#: A row that has every layer: a family in a family, something of a corpus for the family, and sizes.
CONVOLUTION = "dynamicconv_glu"


@lru_cache(None)
def loaded(row: str, data: str, scale: str) -> Recipe:
    return load(row, data, scale)


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_every_table_has_its_rows() -> None:
    tables: dict[str, set[tuple[str, str]]] = {}
    for row, data in AS_IN_PAPERS:
        for entry in loaded(row, data, "paper").published:
            tables.setdefault(entry["table"], set()).add((row, data))
    counts = {table: len(rows) for table, rows in tables.items()}
    assert counts == {
        "amlp": 8,  # ours
        "amlp 3": 14,  # 7 rows, 2 directions
        "dynamicconv 1": 6,
        "dynamicconv 2": 6,
        "dynamicconv 3": 12,
        "dynamicconv 4": 2,
        "dynamicconv 5": 3,
        "dynamicconv 6": 10,
        "dynamicconv 7": 1,  # the only system of ours in it
        "aan": 4,
        "aan wmt17": 4,  # 2 rows, 2 directions
        "deep": 1,
        "ibdecoder 1": 4,
        "ibdecoder 2": 8,
        "ibdecoder 3": 4,
        "ibdecoder 4": 6,
        "ibdecoder 5": 5,
        "ibdecoder 6": 18,  # 3 rows, 4 pairs of languages and 2 corpora of summaries
        "ibdecoder figure 4": 2,  # c = 3 and 4; c = 1 and 2 are in other tables
        "nat": 6,  # 2 rows, 3 pairs of languages
        "sat": 4,
        "ssru": 4,
    }
    assert {row for row, _ in AS_IN_PAPERS} == set(names("rows"))
    ours = {"embedded", "embedded_summaries", "embedded_lm", "multi30k"}
    assert {data for _, data in AS_IN_PAPERS} == set(names("data")) - ours


@pytest.mark.parametrize("row", names("rows"))
def test_fairseq_parses_every_configuration(row: str) -> None:
    papers = [(data, "paper") for data in row_corpora(row)]
    for data, scale in [*papers, *(SMALL_TEXT if row.startswith("lm_") else SMALL)]:
        recipe = loaded(row, data, scale)
        words = ["DATA", *flags(recipe.task, row), *flags(recipe.train, row)]
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        assert args.task in TASK_REGISTRY
        assert args.arch in ARCH_MODEL_REGISTRY
        assert args.required_batch_size_multiple == 1
        assert scale == "paper" or args.max_update <= 12000  # hours on one GPU, or less
        for decoding, values in recipe.generate.items():
            words = ["DATA", "--path", "X", *flags(recipe.task, row), *flags(values, row)]
            options.parse_args_and_arch(options.get_generation_parser(), words)
            assert decoding
        for entry in recipe.published:
            assert entry["decoding"] in {*recipe.generate, "perplexity"}, (row, data)
        # What is to be averaged is kept.
        assert recipe.averages
        for kind, count in recipe.averages:
            kept = {
                "last-epochs": "keep-last-epochs",
                "last-updates": "keep-interval-updates",
                "best": "keep-best-checkpoints",
            }[kind]
            assert recipe.train[kept] >= count, (row, data, scale)


@pytest.mark.parametrize("row", ["lightconv", "dynamicconv"])
def test_only_ablations_lack_the_glu(row: str) -> None:
    """All rows on Chinese have it."""
    for name, data, glu in (
        (f"{row}_glu", "wmt17_zh_en", 1),
        (f"{row}_glu", "wmt14_en_de", 1),
        (row, "wmt14_en_de", 0),
    ):
        model = model_options(parsed(loaded(name, data, "paper")))
        assert (model.encoder_glu, model.decoder_glu) == (glu, glu)


def test_numbers_of_cmlmc_are_of_distilled_data() -> None:
    """In AMLP's Table 3, says its authors' page; the Transformer's are of raw data."""
    checked = 0
    for row, data in AS_IN_PAPERS:
        if not row.startswith(("cmlmc", "amlp", "transformer")):  # all that are in the table, see below
            continue
        for entry in loaded(row, data, "paper").published:
            if entry["table"] == "amlp 3":
                theirs = "distilled" if row.startswith("cmlmc") else "bleu"
                assert entry.keys() & {"bleu", "distilled"} == {theirs}
                checked += 1
    assert checked == 14


def test_words_after_the_end_symbol_are_as_was_best() -> None:
    """On the validation sets on which both were measured."""
    lines = (commands.ROOT / "docs/results/words_behind_end.jsonl").read_text(encoding="utf-8").splitlines()
    bleu: dict[tuple[str, str], float] = {}
    for line in map(json.loads, lines):
        key = line["system"], line["search"].split()[-1]
        bleu[key] = bleu.get(key, 0) + line["bleu"]
    rows = ["ibdecoder", "ibdecoder_sa", "ibdecoder_sa_student", "imdecoder", "vanilla_sa_2"]
    for row in rows:
        system = "sat" if row == "vanilla_sa_2" else row.replace("_", "-")
        best = max(("ignore", "count"), key=lambda value: bleu[system, value])
        for data, scale in (("wmt14_en_de", "paper"), ("embedded", "embedded")):
            assert loaded(row, data, scale).task.get("words-after-end", "ignore") == best


def test_published_numbers_are_those_of_the_corpus() -> None:
    """Where it has none, those of the first that has any stand beside the result."""
    assert {entry["data"] for entry in loaded("ibdecoder", "wmt16_ro_en", "paper").published} == {"wmt16_ro_en"}
    assert {entry["data"] for entry in loaded("ibdecoder", "embedded", "embedded").published} == {"wmt14_en_de"}


def test_the_same_row_at_every_scale_and_on_every_corpus() -> None:
    """What makes the row stays; sizes are the scale's, languages the corpus'."""
    paper, small = loaded("ibdecoder_sa", "wmt14_en_fr", "paper"), loaded("ibdecoder_sa", "wmt16_ro_en", "multi30k")
    assert paper.task == {"task": "translation_interleaved", "length-penalty": "gnmt"} | paper.task
    assert {name: value for name, value in paper.task.items() if not name.endswith("-lang")} == {
        name: value for name, value in small.task.items() if not name.endswith("-lang")
    }
    assert (paper.task["target-lang"], small.task["source-lang"]) == ("fr", "ro")
    assert (paper.tokens_per_update, small.tokens_per_update) == (25000, None)
    assert (small.train["encoder-embed-dim"], small.train["max-tokens"]) == (128, 4096)
    assert "encoder-embed-dim" not in paper.train
    wide, narrow = (loaded(CONVOLUTION, "embedded", scale).train for scale in ("multi30k_base", "embedded"))
    assert wide["decoder-kernel-size-list"] == "3,7,15,31,31,31"
    assert narrow["decoder-kernel-size-list"] == "3,7"


@pytest.fixture
def configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configurations in which every file says its name under a key of its own and under ``last``."""
    parts = {
        "rows/_base": {"train": {"base": 1}},
        "rows/_family": {"base": "_base", "train": {"family": 1}},
        "rows/row": {"base": "_family", "train": {"row": 1}},
        "rows/child": {"base": "row", "train": {"child": 1}},
        "data/corpus": {
            "train": {"corpus": 1},
            "families": {"_family": {"train": {"corpus-family": 1}}, "_base": {"train": {"corpus-base": 1}}},
            "rows": {"child": {"train": {"corpus-child": 1}}, "row": {"train": {"corpus-row": 1}}},
        },
        "scale/paper": {"sizes": {"channels": 5}},
        "scale/small": {"train": {"scale": 1}, "families": {"_family": {"train": {"scale-family": 1}}}},
    }
    layers = ["base", "family", "corpus", "corpus-base", "corpus-family", "scale", "scale-family", "row", "child"]
    layers.append("corpus-child")

    def last(train: dict[str, int]) -> dict[str, Any]:
        """Each layer overrides ``at-<layer>`` of all later layers, so that only in their order nothing is lost."""
        (name,) = train
        number = layers.index(name) if name in layers else 0
        return {"train": train | {f"from-{layers[i]}": name for i in range(number + 1)}}

    for kind in ("rows", "data", "scale"):
        (tmp_path / kind).mkdir()
    for name, part in parts.items():
        content: dict[str, Any] = {"average": {"checkpoints": "best", "count": 1}} if name == "rows/_base" else {}
        for section, value in part.items():
            if section == "train":
                content |= last(value)  # type: ignore[arg-type]
            elif section in ("families", "rows"):
                content[section] = {each: last(inner["train"]) for each, inner in value.items()}  # type: ignore
            else:
                content[section] = value
        write(tmp_path, name, content)
    monkeypatch.setattr(config, "CONFIGS", tmp_path)
    monkeypatch.setattr(config, "known_flags", lambda: {"corpus-row", *layers, *(f"from-{layer}" for layer in layers)})
    return tmp_path


def test_later_files_win(configurations: Path) -> None:
    """Families, corpus, scale, row, and what the corpus has for the row: a name that all of them set is the last's."""
    order = ["base", "family", "corpus", "corpus-base", "corpus-family", "scale", "scale-family", "row", "child"]
    order.append("corpus-child")
    train = load("child", "corpus", "small").train
    assert [name for name in order if train.get(name) == 1] == order
    assert "corpus-row" not in train
    # from-<layer> is set by that layer and by all behind it.
    assert {train[f"from-{name}"] for name in order} == {order[-1]}
    without_corpus = load("child", "", "small").train
    assert {without_corpus[f"from-{name}"] for name in order[:-1]} == {"child"}
    assert load("row", "corpus", "small").train["from-scale"] == "row"
    assert load("row", "corpus", "paper").train["from-corpus"] == "row"
    base = write(configurations, "rows/other", {"base": "_family"})
    assert base.is_file()
    order_of_scale = load("other", "corpus", "small").train
    assert order_of_scale["from-corpus-family"] == order_of_scale["from-scale-family"] == "scale-family"


def test_values_are_taken_away(tmp_path: Path) -> None:
    scale = write(tmp_path, "scale", {"tokens-per-update": None, "average": {"checkpoints": "best", "count": 3}})
    write(
        tmp_path,
        "a",
        {"train": {"arch": "x", "lr": 1, "cpu": True}, "generate": {"one": {"beam": 1}}, "tokens-per-update": 5},
    )
    write(tmp_path, "b", {"base": "a", "train": {"lr": 2}, "average": {"checkpoints": "last-epochs", "count": 1}})
    path = write(
        tmp_path, "c", {"base": "b", "train": {"cpu": False, "lr": None}, "generate": {"one": None, "two": {"beam": 2}}}
    )
    row = load(path, "", str(scale), ("en", "de"))
    assert flags(row.train, "") == ["--arch", "x"]
    assert row.generate == {"two": {"beam": 2}}
    assert row.averages == [("last-epochs", 1)]
    assert row.tokens_per_update == 5
    assert row.task == {"source-lang": "en", "target-lang": "de"}
    assert (row.row, row.scale, row.data) == ("c", "scale", "")
    write(tmp_path, "d", {"base": "c", "average": {"count": [5, 20, 10]}})
    assert load(tmp_path / "d.yaml", "", "paper").averages == [
        *(("last-epochs", 20), ("last-epochs", 10), ("last-epochs", 5)),
    ]


def test_files_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row and a scale outside the package build on those in it, from whatever folder they are named."""
    (tmp_path / "my own").mkdir()
    write(tmp_path / "my own", "wider", {"base": "ibdecoder", "train": {"arch": "${sizes.my-arch}"}})
    sizes = {"base": "embedded", "sizes": {"my-arch": "ibdecoder_tiny"}, "train": {"dropout": 0.7, "max-update": 3}}
    write(tmp_path / "my own", "tiny", sizes)
    monkeypatch.chdir(tmp_path)
    ours, theirs = load("my own/wider.yaml", "embedded", "my own/tiny.yaml"), load("ibdecoder", "embedded", "embedded")
    assert ours.train == theirs.train | {"arch": "ibdecoder_tiny", "dropout": 0.7, "max-update": 3}
    assert (ours.generate, ours.task, ours.averages) == (theirs.generate, theirs.task, theirs.averages)
    assert (ours.row, ours.scale, ours.published) == ("wider", "tiny", [])


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    for row, data, scale in (("dynamicconv_glu", "wmt14_en_de", "paper"), ("cmlmc_amlp", "", "multi30k_base")):
        recipe = load(row, data, scale, None if data else ("en", "de"))
        config.save(recipe, tmp_path / "recipe.yaml")
        assert config.read(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"training": {}}, "'training' is unknown; did you mean 'train'?"),
        ({"families": {}}, "'families' is unknown; known: base, task, train"),
        ({"train": {"encoder-kernel-size-list": [3, 7]}}, "encoder-kernel-size-list must be a text or number"),
        ({"train": {"max-updaet": 3}}, "train: 'max-updaet' is unknown; did you mean 'max-update'? (line 2)"),
        ({"task": {"num_directions": None}}, "task: 'num_directions' is unknown; did you mean 'num-directions'? (line"),
        (
            {"generate": {"beam 4": {"beam": 4, "lenpne": 1}}},
            "generate, beam 4: 'lenpne' is unknown; did you mean 'lenpen'? (line 4)",
        ),
        ({"generate": {"beam 4": "beam"}}, "generate, beam 4 must have keys and values, like {key: value}, not 'beam'"),
        (
            {"average": {"checkpoints": "first", "count": 1}},
            "average must have checkpoints, one of last-epochs, last-u",
        ),
        ({"average": {"count": 0}}, "and count, a positive number or a list of them, not {'checkpoints': 'last-up"),
        (
            {"average": {"count": [5, "10"]}},
            "a positive number or a list of them, not {'checkpoints': 'last-updates', ",
        ),
        ({"average": {"count": []}}, "a positive number or a list of them, not"),
        ({"average": {"best": 1}}, "average must have checkpoints, one of last-epochs, last-updates, best, and count"),
        ({"published": [{"blue": 27}]}, "published: 'blue' is unknown; did you mean 'bleu'?"),
        (
            {"published": [{"kind": "detokenized"}]},
            "published, kind: 'detokenized' is unknown; did you mean 'detokenised",
        ),
        ({"published": [{"split": "dev"}]}, "published, split: 'dev' is unknown; known: valid, test"),
        ({"train": {"encoder-conv-dim": "${sizes.chanels}"}}, "Interpolation key 'sizes.chanels' not found"),
        ({"base": "ibdecodr"}, "base: 'ibdecodr' is unknown; did you mean 'ibdecoder'?"),
        ({"base": "_cmlm"}, "base: '_cmlm' is unknown; did you mean '_cmlmc'?"),
        ({"base": "wrong"}, "its base is itself, through wrong"),
        ([], "sections are needed (base, task, train"),
        ("text", "'text' is unknown; known: base, task, train"),
    ],
)
def test_mistakes_in_a_row_are_named(content: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, "wrong", content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load(path, "embedded", "embedded")
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": {}, "size": {}}, "'size' is unknown; did you mean 'sizes'?"),
        ({"published": []}, "'published' is unknown; known: base, task"),
        ({"families": {"_cmlm": {}}}, "families: '_cmlm' is unknown; did you mean '_cmlmc'?"),
        ({"families": {"_cmlmc": {"trian": {"lr": 1}}}}, "families, _cmlmc: 'trian' is unknown; did you mean 'train'?"),
        (
            {"families": {"_cmlmc": {"train": {"dropuot": 0.3}}}},
            "families, _cmlmc, train: 'dropuot' is unknown; did you mean 'dropout'? (line 4)",
        ),
        ({"families": {"_cmlmc": {"generate": [1]}}}, "families, _cmlmc, generate must have keys and values"),
        ({"base": "embeded"}, "base: 'embeded' is unknown; did you mean 'embedded'?"),
    ],
)
def test_mistakes_in_a_scale_are_named(content: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, "wrong", content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")):
        load("ibdecoder", "embedded", str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": {"ibdecodr": {}}}, "rows: 'ibdecodr' is unknown; did you mean 'ibdecoder'?"),
        ({"rows": {"ibdecoder": {"lr": 1}}}, "rows, ibdecoder: 'lr' is unknown; known: task, train"),
        ({"vocab-size": 5}, "'vocab-size' is unknown; known: base, task, train"),
    ],
)
def test_mistakes_in_a_corpus_are_named(content: Any, message: str, configurations: Path) -> None:
    for row in ("ibdecoder", "transformer"):
        write(configurations, f"rows/{row}", {"base": "row"})
    path = write(configurations, "data/wrong", content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {message}")):
        load("ibdecoder", "wrong", "small")


@pytest.mark.parametrize(
    ("names_", "message"),
    [
        (("ibdecodr", "embedded", "embedded"), "configs/rows: 'ibdecodr' is unknown; did you mean 'ibdecoder'?"),
        (("_ibdecoder", "embedded", "embedded"), "configs/rows: '_ibdecoder' is unknown; did you mean 'ibdecoder'?"),
        (("ibdecoder", "wmt14_en_ed", "paper"), "configs/data: 'wmt14_en_ed' is unknown; did you mean 'wmt14_en_de'?"),
        (("ibdecoder", "embedded", "embeded"), "configs/scale: 'embeded' is unknown; did you mean 'embedded'?"),
        (("ibdecoder", "embedded", "huge"), "configs/scale: 'huge' is unknown; known: embedded, "),
        (("nothing/row.yaml", "embedded", "embedded"), "nothing/row.yaml: No such file"),
    ],
)
def test_unknown_names(names_: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load(*names_)


@pytest.mark.parametrize(
    ("text", "line"),
    [("train:\n  lr: 1\n lr: 2\n", 3), ("train: {lr: 1\n", 2), ("task: {}\ntrain:\n\tlr: 1\n", 3), ("a: 1\na: 2\n", 2)],
    ids=["indentation", "open brace", "tab", "twice"],
)
def test_mistakes_in_the_syntax_name_file_and_line(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"(?s)^{re.escape(str(path))}: .* line {line}, column"):
        load(path, "embedded", "embedded")


def test_bases_that_go_round(tmp_path: Path) -> None:
    write(tmp_path, "a", {"base": "b"})
    write(tmp_path, "b", {"base": "a"})
    with pytest.raises(ValueError, match=r"a\.yaml: its base is itself, through b <- a"):
        load(tmp_path / "a.yaml", "embedded", "embedded")


def test_how_corpora_are_prepared() -> None:
    one, other = prepare_settings("wmt14_en_de"), prepare_settings("wmt14_en_de", "news-commentary-12")
    assert one["archives"].pop("news-commentary")["url"].endswith("nc-v9.tgz")
    assert other["archives"].pop("news-commentary")["url"].endswith("nc-v12.tgz")
    assert (one.pop("published-pairs"), other.pop("published-pairs")) == (4508785, 0)
    assert one == other
    assert prepare_settings("wmt14_de_en") == prepare_settings("wmt14_en_de") | {"reverse": True}
    with pytest.raises(
        ValueError, match=r"--variant: 'news-commentary-10' is unknown; did you mean 'news-commentary-1"
    ):
        prepare_settings("wmt14_en_de", "news-commentary-10")
    assert prepare_settings("wmt17_de_en") == prepare_settings("wmt17_en_de") | {"reverse": True}


def test_a_corpus_that_does_not_say_what_its_files_are(configurations: Path) -> None:
    with pytest.raises(ValueError, match="data corpus: its configuration has no section prepare"):
        prepare_settings("corpus")
