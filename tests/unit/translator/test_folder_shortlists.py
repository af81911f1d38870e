"""Lexical shortlists of model folders: packaged, used, turned off, and refused."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import commands
import pytest
import stock

from amlp_fairseq import Translator
from amlp_fairseq.cli.package import package
from amlp_fairseq.engine.safetensors import Tensors
from amlp_fairseq.engine.shortlist import FILE, Shortlist
from amlp_fairseq.text import lexicon
from amlp_fairseq.text.dictionary import Dictionary

MODELS = commands.ROOT / "examples/models"
#: The translations of the first ones are in the lexicon; to the others it is foreign.
KNOWN = ["The old doctor sees a small car.", "She falls asleep.", "He said that the children sleep."]
UNKNOWN = ["My brother buys two green books.", "Zyzzyva 漢字"]
TEXTS = [*KNOWN, *UNKNOWN, ""]


def lexicon_of(path: Path, name: str = "ar") -> Path:
    """A lexicon that has the translations that a model writes of KNOWN."""
    found = Translator(MODELS / name).translations(KNOWN)
    pairs = {(target, source) for each in found for source in each.source_pieces for target in each.pieces}
    lexicon.write(path, [(target, source, 0.5) for target, source in sorted(pairs)])
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models with a shortlist of few words, and the lexicon."""
    work = tmp_path_factory.mktemp("shortlists")
    found = {"lexicon": lexicon_of(work / "lex.s2t.gz")}
    for name in ("ar", "ibdecoder_sa", "cmlmc"):
        found[name] = work / name
        package(stock.package_arguments(MODELS / name, found[name], shortlist=found["lexicon"], frequent=40), [])
    return found


def lists(folder: Path, found: Sequence[Any]) -> None:
    """Check that all pieces are in the lists of their sources."""
    source, target = (Dictionary(folder / f"dict.{language}.txt") for language in ("en", "de"))
    shortlist = Shortlist.open(folder / FILE, source.symbols, target.symbols)
    for each in found:
        words = {target.symbols[word] for word in shortlist.of(source.encode(" ".join(each.source_pieces)))}
        assert len(words) < 200
        assert {*each.pieces} <= words


@pytest.mark.parametrize("name", ["ar", "ibdecoder_sa"])
def test_the_engine_and_pytorch_search_the_same_lists(name: str, folders: dict[str, Path]) -> None:
    options = {"beam": 3, "nbest": 3}
    engine, pytorch = (Translator(folders[name], backend=backend) for backend in ("engine", "pytorch"))
    found, expected = engine.translations(TEXTS, **options), pytorch.translations(TEXTS, **options)
    lists(folders[name], found[: len(KNOWN)])
    for one, other in zip(found, expected, strict=True):
        assert [text for text, _ in one.alternatives] == [text for text, _ in other.alternatives]
        assert one.score == pytest.approx(other.score, abs=1e-4)
    free = Translator(folders[name], shortlist="none", **options).translations(TEXTS)
    plain = Translator(MODELS / name, **options).translations(TEXTS)
    assert [(each.text, each.score) for each in free] == [(each.text, each.score) for each in plain]
    assert [each.text for each in found] != [each.text for each in free]
    assert all(each.text for each in found[:-1])
    given = Translator(MODELS / name, shortlist=str(folders[name] / FILE), **options).translations(TEXTS)
    assert [(each.text, each.score) for each in given] == [(each.text, each.score) for each in found]


def test_a_translation_that_stays_has_a_higher_score(folders: dict[str, Path]) -> None:
    """Its words share the probability of the list alone."""
    with_list, free = (Translator(folders["ar"], shortlist=value, beam=1) for value in (None, "none"))
    found, expected = with_list.translations(KNOWN), free.translations(KNOWN)
    assert [each.text for each in found] == [each.text for each in expected]
    assert all(one.score > other.score for one, other in zip(found, expected, strict=True))


def test_given_words_and_texts(folders: dict[str, Path]) -> None:
    """What is given is written though the lists lack it; scores of given texts are over all words."""
    with_list, plain = Translator(folders["ar"]), Translator(MODELS / "ar")
    found = with_list.translations(KNOWN[1:2], target_prefixes=["Zwei grüne"])
    assert found[0].text.startswith("Zwei grüne")
    assert with_list.score(KNOWN, UNKNOWN[:1] * 3) == plain.score(KNOWN, UNKNOWN[:1] * 3)
    for options in ({"sampling": True, "seed": 3}, {"alternatives": True, "nbest": 4}):
        lists(folders["ar"], with_list.translations(KNOWN, **options))


def test_drafts_and_reranking(folders: dict[str, Path]) -> None:
    expected = Translator(folders["ar"], beam=1).translations(TEXTS)
    for draft in ({"draft": "source"}, {"draft_path": str(MODELS / "ibdecoder")}):
        for backend in ("engine", "pytorch"):
            found = Translator(folders["ar"], beam=1, backend=backend, **draft).translations(TEXTS)
            assert [each.text for each in found] == [each.text for each in expected]
    reranked, free = (
        Translator(folders["ibdecoder_sa"], beam=8, shortlist=value, rescore_path=str(MODELS / "ar"))
        for value in (None, "none")
    )
    found, expected = reranked.translations(KNOWN), free.translations(KNOWN)
    lists(folders["ibdecoder_sa"], found)
    same = [(one, other) for one, other in zip(found, expected, strict=True) if one.text == other.text]
    assert same
    assert all(one.score == pytest.approx(other.score, abs=1e-5) for one, other in same)  # over all words


def test_ensembles_have_the_list_of_the_first_model(folders: dict[str, Path]) -> None:
    engine, pytorch = (
        Translator([folders["ar"], MODELS / "ar"], backend=backend).translations(TEXTS)
        for backend in ("engine", "pytorch")
    )
    alone = Translator(folders["ar"]).translations(TEXTS)
    for one, other, single in zip(engine, pytorch, alone, strict=True):
        assert one.text == other.text == single.text
        assert one.score == pytest.approx(single.score, abs=1e-4)


def test_models_that_write_all_words_at_a_time(folders: dict[str, Path]) -> None:
    engine = Translator(folders["cmlmc"], backend="engine")
    found = engine.translations(TEXTS)
    lists(folders["cmlmc"], found[: len(KNOWN)])
    plain = Translator(MODELS / "cmlmc").translations(TEXTS)
    assert [each.text for each in found] != [each.text for each in plain]
    assert [each.text for each in Translator(folders["cmlmc"], shortlist="none").translations(TEXTS)] == [
        each.text for each in plain
    ]
    with pytest.raises(ValueError, match="--shortlist none"):
        Translator(folders["cmlmc"], backend="pytorch").translate(TEXTS)


def test_fairseq_generate(folders: dict[str, Path], tmp_path: Path) -> None:
    """With a folder's file or a lexicon, in the engine and with a mask; fairseq's own search has none."""
    pieces = [" ".join(each.source_pieces) for each in Translator(MODELS / "ar").translations(KNOWN)]

    def generated(folder: Path, *words: object, check: bool = True) -> list[str]:
        printed = commands.run(
            "fairseq_cli.interactive", folder, "--path", folder, "--user-dir", commands.PLUGIN, "--task",
            "translation_interleaved", "--num-directions", 1, "--cpu", "-s", "en", "-t", "de", "--beam", 2, *words,
            text="".join(f"{line}\n" for line in pieces), check=check,
        )  # fmt: skip
        return [line.split("\t", 1)[1] for line in printed.splitlines() if line.startswith("H-")] or [printed]

    shortlist = folders["ar"] / FILE
    own, plain = generated(MODELS / "ar", "--shortlist", shortlist), generated(MODELS / "ar")
    assert own != plain
    assert generated(MODELS / "ar", "--shortlist", "none") == plain
    expected = Translator(folders["ar"], beam=2, lenpen=1.0, length_penalty="fairseq").translations(KNOWN)
    assert [line.split("\t")[1] for line in own] == [" ".join(each.pieces) for each in expected]
    for line, each in zip(own, expected, strict=True):
        assert float(line.split("\t")[0]) * math.log(2) == pytest.approx(each.score, abs=1e-5)
    (refused,) = generated(MODELS / "ar", "--shortlist", shortlist, "--sampling", "--nbest", 2, check=False)
    assert "which does not have --shortlist" in refused
    assert "--shortlist none" in refused


def test_packaging_again(folders: dict[str, Path], tmp_path: Path) -> None:
    """A shortlist stays with its folder, unless there is another one, or none."""
    package(stock.package_arguments(folders["ar"], tmp_path / "again"), [])
    assert (tmp_path / "again" / FILE).read_bytes() == (folders["ar"] / FILE).read_bytes()
    package(stock.package_arguments(folders["ar"], tmp_path / "free", shortlist=Path("none")), [])
    assert not (tmp_path / "free" / FILE).exists()
    shorter = stock.package_arguments(folders["ar"], tmp_path / "b", shortlist=folders["lexicon"], frequent=1, best=1)
    package(shorter, [])
    sizes = [len(Tensors(folder / FILE)["words"]) for folder in (tmp_path / "b", folders["ar"])]
    assert sizes[0] < sizes[1]

    changed = shutil.copytree(folders["ar"], tmp_path / "changed")
    shutil.copy(tmp_path / "b" / FILE, changed)
    for backend in ("engine", "pytorch"):
        with pytest.raises(ValueError, match=FILE):
            Translator(changed, backend=backend)


def test_files_that_are_no_shortlist(folders: dict[str, Path], tmp_path: Path) -> None:
    """Named, by package and where a model is loaded; nothing is written."""
    (tmp_path / "empty").touch()
    lexicon.write(tmp_path / "null", [("a", lexicon.NULL, 1.0)])
    lexicon.write(tmp_path / "foreign", [(f"w{number}", f"v{number}", 0.5) for number in range(9)])
    (tmp_path / "text").write_text("no lexicon\n", encoding="utf-8")
    (tmp_path / "damaged.safetensors").write_bytes((folders["ar"] / FILE).read_bytes()[:-5])
    other = Shortlist.open(folders["ar"] / FILE, *[Dictionary(MODELS / "ar/dict.de.txt").symbols] * 2)
    Shortlist(other.starts[:-1], other.words[: other.starts[-2]], other.always, other.vocabulary).save(
        tmp_path / "other.safetensors"
    )
    messages = {
        **{
            "empty": "no pair",
            "null": "no pair",
            "foreign": "of other dictionaries",
            "text": "line 1",
        },
        **{"damaged.safetensors": "damaged", "other.safetensors": "source words"},
    }
    for name, message in messages.items():
        for make in (
            lambda path: package(stock.package_arguments(MODELS / "ar", tmp_path / "out", shortlist=path), []),
            lambda path: Translator(MODELS / "ar", shortlist=str(path)),
        ):
            with pytest.raises(ValueError, match=f"{name} .*({message})"):
                make(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"--shortlist .*missing"):
        Translator(MODELS / "ar", shortlist=str(tmp_path / "missing"))
    assert not (tmp_path / "out").exists()


def test_ctranslate2_has_the_lists(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words of each sentence, and scores over its list, but for the probability of symbols that are not
    written, which CTranslate2 divides among the others."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    from amlp_fairseq.cli import export

    commands.call(export, monkeypatch, "--model", folders["ar"], "--out", tmp_path / "ct2")
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"))
    for text in [*KNOWN, UNKNOWN[0]]:
        (own,) = Translator(folders["ar"], beam=1, unnormalized=True).translations([text])
        (result,) = theirs.translate_batch(
            [list(own.source_pieces)], beam_size=1, use_vmap=True, return_scores=True, length_penalty=0
        )
        assert result.hypotheses[0] == list(own.pieces)
        if text not in KNOWN:
            continue  # a bad translation, which such symbols might take the place of
        assert result.scores[0] == pytest.approx(own.score, abs=1e-2)
        (free,) = theirs.translate_batch([list(own.source_pieces)], beam_size=1, return_scores=True, length_penalty=0)
        assert free.scores[0] < result.scores[0] - 0.1 or free.hypotheses[0] != result.hypotheses[0]
    assert export.json.loads((tmp_path / "ct2/options.json").read_text())["translate_batch"]["use_vmap"]
