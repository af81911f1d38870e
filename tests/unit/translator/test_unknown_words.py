"""Words of the source in the place of unknown ones, in the engine, in PyTorch and in fairseq-generate; the attention by
which they are chosen; texts that are not written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import stock
from test_imported import DECODING, MULTILINGUAL, TRANSFORMER, multilingual, packaged

from amlp_fairseq import Translator
from amlp_fairseq.cli import main as cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of hydra
SOURCES = ["w3 Ödön w5", "w1 w2 w3 Bär </s> w7", "", "Ω", "w4 w9 w11"]
#: Of which every translation has some.
UNKNOWN = {"unkpen": -2.5, "split_sentences": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = stock.data(tmp_path_factory.mktemp("unknown"))
    return packaged(stock.checkpoint(data, *TRANSFORMER, seed=5), [*DECODING, "--nbest", "2"])


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """By hand, from the alignments."""
    found = Translator(folder, print_alignment="hard", **UNKNOWN).translations(SOURCES)
    texts = []
    for source, each in zip(SOURCES, found, strict=True):
        aligned = {target: source.split()[place] for place, target in each.alignment}
        texts.append(" ".join(aligned[i] if word == "<unk>" else word for i, word in enumerate(each.text.split())))
    assert sum("<unk>" in each.text for each in found) == len(SOURCES) - 1
    copied = {word for source, text in zip(SOURCES, texts, strict=True) for word in {*source.split()} & {*text.split()}}
    assert len(copied & {"Ω", "Bär", "w1", "w5", "w9"}) > 3
    return texts


@pytest.mark.parametrize("backend", ["engine", "pytorch"])
def test_the_word_that_was_typed(folder: Path, expected: list[str], backend: Any, tmp_path: Path) -> None:
    """Options of the model and of a call; a dictionary translates some."""
    assert Translator(folder, backend=backend, replace_unk="", **UNKNOWN).translate(SOURCES) == expected
    (tmp_path / "words").write_text("Ω omega\nBär ours\n\n", encoding="utf-8")
    translator = Translator(folder, backend=backend, **UNKNOWN)
    found = translator.translations(SOURCES, replace_unk=str(tmp_path / "words"))
    assert [each.text for each in found] == [text.replace("Ω", "omega").replace("Bär", "ours") for text in expected]
    assert [each.alignment for each in found] == [()] * len(SOURCES)
    assert not any("<unk>" in text for each in found for text, _ in each.alternatives)
    soft = translator.translations(SOURCES, replace_unk="", print_alignment="soft")
    assert [each.text for each in soft] == expected


@pytest.mark.parametrize("name", sorted(name for name, (*_, tokens) in MULTILINGUAL.items() if tokens))
def test_tokens_of_languages_are_no_words(name: str, tmp_path: Path) -> None:
    """Neither those before and after the source nor those before the translation."""
    folder = packaged(multilingual(name, tmp_path), source_lang="en", target_lang="de")
    options: Any = {**UNKNOWN, "unkpen": -6.0}
    translator = Translator(folder, backend="engine", **options)
    copied, hard = (
        translator.translations(SOURCES, **each) for each in ({"replace_unk": ""}, {"print_alignment": "hard"})
    )
    assert any("<unk>" in each.pieces for each in hard)
    for one, each in zip(copied, hard, strict=True):
        sources = [each.source_pieces[source] for source, _ in each.alignment]
        assert [target for _, target in each.alignment] == [*range(len(each.pieces))]
        assert [*one.pieces] == [
            source if piece == "<unk>" else piece for piece, source in zip(each.pieces, sources, strict=True)
        ]
        assert "</s>" not in sources
    pytorch = Translator(folder, backend="pytorch", **options)
    if name == "mBART":
        with pytest.raises(
            ValueError, match="replace_unk: fairseq's search for translation_from_pretrained_bart has no"
        ):
            pytorch.translate(SOURCES, replace_unk="")
        return
    for one, other in zip(pytorch.translations(SOURCES, print_alignment="hard"), hard, strict=True):
        assert {*one.alignment} <= {*other.alignment}  # fairseq aligns words with tokens of languages, too


def test_the_attention(folder: Path) -> None:
    """The largest weight of a row is the alignment's; PyTorch has six decimals of each."""
    engine, pytorch = (
        Translator(folder, backend=backend, **UNKNOWN).translations(SOURCES, print_alignment="soft")
        for backend in ("engine", "pytorch")
    )
    hard = Translator(folder, print_alignment="hard", **UNKNOWN).translations(SOURCES)
    for one, other, pairs in zip(engine, pytorch, hard, strict=True):
        assert one.alignment == ()
        assert (len(one.attention), {*map(len, one.attention)} - {len(one.source_pieces)}) == (len(one.pieces), set())
        for row, expected, (source, _) in zip(one.attention, other.attention, pairs.alignment, strict=True):
            assert row == pytest.approx(expected, abs=1e-5)
            words = [weight for weight, piece in zip(row, one.source_pieces, strict=True) if piece != "</s>"]
            assert row[source] == max(words)
            assert 0 < sum(row) < 1  # the end symbol has the rest
    whole = Translator(folder, split_sentences=True, max_length=2, print_alignment="soft").translations(["w3 w4 w5"])[0]
    assert [len(row) for row in whole.attention] == [3] * len(whole.pieces)
    assert [tuple(row[:2]) for row in whole.attention[len(whole.parts[0].pieces) :]] == [(0, 0)] * len(
        whole.parts[1].pieces
    )


def hypotheses(printed: str) -> list[str]:
    lines = [line.split("\t") for line in printed.splitlines() if line.startswith("H-")]
    return [text for _, _, text in sorted(lines, key=lambda line: int(line[0][2:]))]


@pytest.mark.parametrize("task", [["translation_interleaved", "--num-directions", "1"], ["translation"]])
@pytest.mark.parametrize("words", [[], ["--print-alignment", "soft"], ["--match-source-len"]], ids=str)
def test_fairseq_generate(
    folder: Path,
    task: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The words of Translator, with the plugin's search and fairseq's own."""
    data, sources = folder.parent, [each for each in SOURCES if each]
    for language in ("en", "de"):
        (data / f"test.en-de.{language}").write_text("".join(f"{each}\n" for each in sources), encoding="utf-8")
    line = [*("amlp-fairseq generate", str(data), "--path", str(data / "model.pt"), "--task", *task, "-s", "en")]
    line += [*("-t", "de", "--dataset-impl", "raw", "--replace-unk", "--unkpen", "-2.5", "--beam", "3", "--cpu")]
    line += ["--max-len-b", "12", "--required-batch-size-multiple", "1"]
    monkeypatch.setattr(sys, "argv", [*line[0].split(), *line[1:], *words])
    cli.main()
    options = {"match_source_len": True} if "--match-source-len" in words else {}
    found = Translator(folder, replace_unk="", **UNKNOWN, **options).translate(sources)
    assert hypotheses(capsys.readouterr().out) == found


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["generate"], "--replace-unk needs the words of the source"),
        (["generate", "--dataset-impl", "raw", "--bpe", "subword_nmt", "--bpe-codes", "codes"], "--bpe subword_nmt"),
        (["interactive"], "--replace-unk: fairseq-interactive has lost the words"),
    ],
)
def test_commands_without_the_words(
    folder: Path, words: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *others = words
    model = [str(folder.parent), "--path", str(folder.parent / "model.pt"), "--task", "translation", "-s", "en"]
    monkeypatch.setattr(sys, "argv", ["amlp-fairseq", command, *model, "-t", "de", "--cpu", "--replace-unk", *others])
    with pytest.raises(SystemExit) as error:
        cli.main()
    assert named in str(error.value.code)
    assert "amlp-fairseq translate --replace-unk" in str(error.value.code)


def test_suppressed_texts(folder: Path) -> None:
    options: Any = {"split_sentences": False, "no_repeat_ngram_size": 2}
    translator = Translator(folder, **options)
    before = " ".join(translator.translate(SOURCES)).split()
    word, pair = max(set(before), key=before.count), " ".join(before[1:3])
    of_call = translator.translate(SOURCES, suppress=[word, "unheard of"])
    of_model = Translator(folder, **options, suppress=[pair]).translate(SOURCES)
    for found, text in ((of_call, word), (of_model, pair)):
        assert not any(f" {text} " in f" {line} " for line in found)
        assert any(found)
    assert translator.why_pytorch == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suppress": "Haus"}, "suppress='Haus': a list of texts"),
        ({"suppress": [" "]}, "suppress=.*: a list of texts"),
        ({"sampling_minp": 2.0, "sampling": True}, "sampling_minp=2.0: a share from 0 to 1"),
        ({"sampling_minp": 0.1}, "--sampling-minp 0.1 needs --sampling"),
        ({"min_alternative_prob": -1.0, "alternatives": True}, "min_alternative_prob=-1.0: a probability"),
        ({"min_alternative_prob": 0.1}, "--min-alternative-prob 0.1 needs --alternatives"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0: a number above 0"),
        ({"repetition_penalty": "x"}, "repetition_penalty='x': a number"),
        ({"replace_unk": True}, "replace_unk=True: '' copies"),
        ({"replace_unk": "/nothing"}, "--replace-unk /nothing: there is no such file"),
        ({"print_alignment": "neither"}, "print_alignment='neither' is not one of hard, soft"),
    ],
)
def test_wrong_values(folder: Path, options: dict[str, Any], message: str) -> None:
    translator = Translator(folder)
    for call in (lambda: Translator(folder, **options), lambda: translator.translate(["w1"], **options)):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_line_that_is_no_pair(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a b\nc\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"words: line 2 is not SOURCE TARGET: 'c'"):
        Translator(folder, replace_unk=str(tmp_path / "words"))


def test_what_pytorch_lacks(folder: Path) -> None:
    for options in ({"suppress": ["w1"]}, {"sampling": True, "sampling_minp": 0.1}):
        with pytest.raises(ValueError, match=r"(suppress|sampling_minp)=.*: the engine alone has"):
            Translator(folder, backend="pytorch", **options)
