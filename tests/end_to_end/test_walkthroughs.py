"""Models in the layouts in which they were released, with small random weights: from the files of the archive to
translations by the commands of docs/from-fairseq.md, with the words of stock fairseq for the same pieces."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sacremoses
import sentencepiece
import stock
import torch
from fairseq import checkpoint_utils, utils
from subword_nmt.learn_bpe import learn_bpe

from amlp_fairseq import Translator
from amlp_fairseq.cli.main import module_of
from amlp_fairseq.model_folder.config import read_config

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of hydra
PAGE = Path(__file__).parents[2] / "docs/from-fairseq.md"
SIMPLE = ["--task", "translation_multi_simple_epoch", "--encoder-langtok", "src", "--decoder-langtok"]
#: The default of fairseq-generate.
SEARCH = {"beam": 5, "max_len_b": 200}
STEMS = "wander gather linger ponder mutter render whisper shimmer".split()
TEXT = [f"the {a}ing one{'s' * (n % 2)} {b}ed well-{b}ed it" for n, a in enumerate(STEMS) for b in STEMS]
LINES = [TEXT[3], "it linger-ed", TEXT[40], "whispering wells", "ones the render it", "", "pondered (well)"]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which an archive is unpacked, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def follow(section: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a section of the page, where ``text.SOURCE`` has :data:`LINES`."""
    Path(f"text.{source}").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    text = PAGE.read_text("utf-8").split(f"### {section}\n")[1].split("\n##")[0]
    *_, block = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    assert commands[-1][:2] == ["amlp-fairseq", "translate"]
    for program, *words in commands:
        if program == "amlp-fairseq":
            monkeypatch.setattr(sys, "argv", [f"amlp-fairseq {words[0]}", *words[1:]])
            module_of(words[0]).main()


def pieces_of(name: str, text: Sequence[str], size: int) -> tuple[sentencepiece.SentencePieceProcessor, list[str]]:
    """A model of sentencepiece in the current folder, and its pieces as a dictionary of fairseq has them."""
    Path("corpus").write_text("\n".join(text), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input="corpus", model_prefix="trained", vocab_size=size, model_type="bpe", minloglevel=2
    )
    Path(name).parent.mkdir(exist_ok=True)
    Path("trained.model").rename(name)
    processor = sentencepiece.SentencePieceProcessor(model_file=name)
    return processor, [processor.id_to_piece(number) for number in range(3, len(processor))]


def cut(processor: sentencepiece.SentencePieceProcessor, *before: str) -> list[str]:
    return [" ".join((*before, *processor.encode(line, out_type=str))) for line in LINES if line]


def written(path: str, expected: list[str]) -> list[str]:
    """The lines of a file, without that of the empty source, to hold them against the expected ones."""
    found = Path(path).read_text("utf-8").splitlines()
    assert len(set(expected)) > 2
    empty = LINES.index("")
    assert found.pop(empty) == ""
    return found


def words_of(pieces: str) -> str:
    return pieces.replace(" ", "").replace("\u2581", " ").strip()


def dictionary(path: str, entries: Sequence[str]) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(f"{entry} 1\n" for entry in entries), encoding="utf-8")


def released(checkpoint: Path, name: str, args: Any, **options: Any) -> None:
    """A checkpoint as it was released: with ``args`` in place of ``cfg``, and paths of the training's machine."""
    state = torch.load(checkpoint, weights_only=True)
    vars(args).update({"data": "/private/home/data-bin", **options})
    checkpoint.unlink()
    torch.save({**state, "cfg": None, "args": args}, name)


def by_stock(checkpoint: str, sources: Sequence[str], **overrides: str) -> list[str]:
    """The pieces that fairseq-generate writes with these options."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], arg_overrides=overrides)
    return [found[0][0] for found in stock.translations(task, model.eval(), sources, SEARCH)]


def fast_bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """A word in pieces, as fastBPE merges them: the pair of the least rank first, wherever it is."""
    found = [*word[:-1], f"{word[-1]}</w>"]
    while pairs := [pair for pair in itertools.pairwise(found) if pair in ranks]:
        first, place = min(pairs, key=ranks.__getitem__), 0
        while place + 1 < len(found):
            if (found[place], found[place + 1]) == first:
                found[place : place + 2] = ["".join(first)]
            place += 1
    return [f"{piece}@@" for piece in found[:-1]] + [found[-1].removesuffix("</w>")]


def of_2019(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights under the names of fairseq 0.7."""
    old = {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    for name, weight in weights.items():
        if match := re.fullmatch(r"(.*)\.q_proj\.(weight|bias)", name):
            parts = [weights[f"{match[1]}.{each}_proj.{match[2]}"] for each in "qkv"]
            old[f"{match[1]}.in_proj_{match[2]}"] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name and not name.startswith("decoder.output_projection"):
            old[name] = weight
    return old


def test_wmt19(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models, moses, fastBPE: ``torch.hub.load("pytorch/fairseq", "transformer.wmt19.en-de", …)``."""
    tokenizer, detokenizer = sacremoses.MosesTokenizer("en"), sacremoses.MosesDetokenizer("de")

    def words(line: str) -> list[str]:
        return tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True).split()  # type: ignore[no-any-return]

    with open("learned", "w", encoding="utf-8") as learned:
        learn_bpe([" ".join(words(line)) for line in TEXT], learned, 40)
    _, *codes = Path("learned").read_text("utf-8").splitlines()
    Path("bpecodes").write_text("".join(f"{pair} {99 - rank}\n" for rank, pair in enumerate(codes)), encoding="utf-8")
    ranks = {tuple(pair.split()): rank for rank, pair in enumerate(codes)}

    def pieces(line: str) -> str:
        return " ".join(piece for word in words(line) for piece in fast_bpe(word, ranks))  # type: ignore[arg-type]

    entries = sorted({piece for line in TEXT for piece in pieces(line).split()})
    for language in ("en", "de"):
        dictionary(f"dict.{language}.txt", entries)
    model = ["--task", "translation", "-s", "en", "-t", "de", *stock.SIZES, "--arch", "transformer_wmt_en_de_big"]
    model.append("--share-all-embeddings")
    built = [stock.build(archive, *model, seed=seed) for seed in range(9, 13)]
    for number, (_, _, each) in enumerate(built, 1):
        args = stock.args_of(archive, *model)
        torch.save({"args": args, "model": each.state_dict()}, "whole.pt")
        state = torch.load("whole.pt", weights_only=False) | {"model": of_2019(each.state_dict())}
        torch.save(state, f"model{number}.pt")
    follow("WMT19", "en", monkeypatch)
    sources = [pieces(line) for line in LINES if line]
    found = stock.translations(built[0][1], [each for _, _, each in built], sources, SEARCH)
    expected = [
        " ".join(detokenizer.detokenize(f"{best} ".replace("@@ ", "").split()).split()) for ((best, _), *_) in found
    ]
    assert written("text.de", expected) == expected


def test_m2m_100(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dictionary with the tokens of languages, filled up; and another pair by the same folder."""
    processor, pieces = pieces_of("spm.128k.model", TEXT, 60)
    codes = ["de", "en", "fr", "zu"]
    pairs = ",".join(f"{one}-{other}" for one in codes for other in codes if one != other)
    dictionary("data_dict.128k.txt", pieces)
    fillers = [f"madeupword{number:04d}" for number in range(3)]
    dictionary("model_dict.128k.txt", [*pieces, *(f"__{code}__" for code in codes), *fillers])
    Path("language_pairs_small_models.txt").write_text(pairs, encoding="utf-8")
    model = [*SIMPLE, *stock.SIZES, "--arch", "transformer_wmt_en_de_big", "--share-all-embeddings"]
    model += ["--lang-pairs", pairs, "--fixed-dictionary", "model_dict.128k.txt"]
    released(
        stock.checkpoint(archive, *model),
        *("418M_last_checkpoint.pt", stock.args_of(archive, *model)),
        **{"fixed_dictionary": None, "lang_pairs": pairs.split(",")},
    )
    follow("M2M-100", "de", monkeypatch)
    overrides = {"fixed_dictionary": "model_dict.128k.txt", "data": "."}

    def expected(**pair: str) -> list[str]:
        return [*map(words_of, by_stock("418M_last_checkpoint.pt", cut(processor), **overrides, **pair))]

    to_french = expected(source_lang="de", target_lang="fr")
    assert written("text.fr", to_french) == to_french
    found = Translator("m2m-100").translate([line for line in LINES if line], source_lang="en", target_lang="zu")
    assert found == expected(source_lang="en", target_lang="zu")
    assert not Translator("m2m-100").why_pytorch


def test_nllb_200(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and symbols of the branch of fairseq in which it was trained, whose configuration are Namespaces."""
    processor, pieces = pieces_of("flores200_sacrebleu_tokenizer_spm.model", TEXT, 60)
    codes = ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn"]
    dictionary("dictionary.txt", pieces)
    added = [*(f"__{code}__" for code in codes), "<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>"]
    dictionary("whole.txt", [*pieces, *added])
    model = [*SIMPLE, *stock.SIZES, "--arch", "transformer", "--share-all-embeddings", "--langs", ",".join(codes)]
    model += ["--encoder-normalize-before", "--decoder-normalize-before", "--lang-pairs", "eng_Latn-deu_Latn"]
    checkpoint = stock.checkpoint(archive, *model, "--fixed-dictionary", "whole.txt")
    pair = {"source_lang": "eng_Latn", "target_lang": "fra_Latn"}
    expected = [*map(words_of, by_stock(str(checkpoint), cut(processor), **pair))]
    state = torch.load(checkpoint, weights_only=False)
    args = stock.args_of(archive, *model, "--fixed-dictionary", "whole.txt")
    vars(args).update(data="/data", fixed_dictionary="/data/dict.txt", add_data_source_prefix_tags=True, moe_freq=0)
    state["cfg"] |= {"task": args, "model": args}
    torch.save(state, "checkpoint.pt")
    checkpoint.unlink()
    Path("whole.txt").unlink()
    follow("NLLB-200", "eng_Latn", monkeypatch)
    assert written("text.fra_Latn", expected) == expected
    assert not Translator("nllb-200").why_pytorch


def test_mbart_50(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary of each language, and a list of languages of which the checkpoint knows another path."""
    processor, pieces = pieces_of("sentence.bpe.model", TEXT, 60)
    codes = ["ar_AR", "de_DE", "en_XX", "ro_RO"]
    for code in codes:
        dictionary(f"dict.{code}.txt", pieces)
    Path("ML50_langs.txt").write_text("\n".join(codes) + "\n", encoding="utf-8")
    model = [*SIMPLE, *stock.SIZES, "--arch", "mbart_large", "--lang-tok-style", "mbart"]
    model += ["--lang-dict", "ML50_langs.txt", "--lang-pairs", "en_XX-ro_RO,ro_RO-en_XX"]
    released(
        stock.checkpoint(archive, *model),
        *("model.pt", stock.args_of(archive, *model)),
        **{"lang_dict": "/private/home/ML50_langs.txt", "lang_pairs": ["en_XX-ro_RO", "ro_RO-en_XX"]},
    )
    follow("mBART-50", "en_XX", monkeypatch)
    overrides = {"lang_dict": "ML50_langs.txt", "data": ".", "source_lang": "en_XX", "target_lang": "ro_RO"}
    expected = [*map(words_of, by_stock("model.pt", cut(processor), **overrides))]
    assert written("text.ro_RO", expected) == expected
    assert not Translator("mbart-50").why_pytorch
    Path("ML50_langs.txt").unlink()
    Path("mbart-50").rename("done")
    with pytest.raises(FileNotFoundError, match=r"ML50_langs\.txt"):
        follow("mBART-50", "en_XX", monkeypatch)


def test_indictrans2(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture of a user directory, a model of sentencepiece for each side, and tags before the source."""
    processor, of_source = pieces_of("vocab/model.SRC", TEXT, 60)
    other, of_target = pieces_of("vocab/model.TGT", [line[::-1] for line in TEXT], 50)
    codes = ["eng_Latn", "hin_Deva", "tam_Taml"]
    dictionary("final_bin/dict.SRC.txt", [*codes, *of_source])
    dictionary("final_bin/dict.TGT.txt", of_target)
    Path("model_configs").mkdir()
    Path("model_configs/__init__.py").write_text("from . import custom_transformer\n", encoding="utf-8")
    Path("model_configs/custom_transformer.py").write_text(
        "from fairseq.models import register_model_architecture\n"
        "from fairseq.models.transformer import base_architecture\n\n\n"
        "@register_model_architecture('transformer', 'transformer_18_18')\n"
        "def transformer_deep(args):\n"
        "    for name in ('encoder_normalize_before', 'decoder_normalize_before'):\n"
        "        setattr(args, name, getattr(args, name, True))\n"
        "    base_architecture(args)\n",
        encoding="utf-8",
    )
    utils.import_user_module(stock.argparse.Namespace(user_dir="model_configs"))
    model = ["--task", "translation", "-s", "SRC", "-t", "TGT", *stock.SIZES, "--arch", "transformer_18_18"]
    checkpoint = stock.checkpoint(archive / "final_bin", *model)
    Path("model").mkdir()
    released(checkpoint, "model/checkpoint_best.pt", stock.args_of(archive / "final_bin", *model))
    follow("IndicTrans2", "eng_Latn", monkeypatch)
    _, task, built = stock.build(archive / "final_bin", *model)

    def expected(target: str) -> list[str]:
        found = stock.translations(task, built, cut(processor, "eng_Latn", target), SEARCH)
        return [words_of(best) for ((best, _), *_) in found]

    assert written("text.hin_Deva", expected("hin_Deva")) == expected("hin_Deva") != expected("tam_Taml")
    translator = Translator("en-indic", print_alignment="hard")
    assert not translator.why_pytorch
    tamil = translator.translate([line for line in LINES if line], target_lang="tam_Taml")
    assert tamil == expected("tam_Taml")
    in_pytorch = Translator("en-indic", backend="pytorch", print_alignment="hard").translations(LINES)
    for one, two in zip(translator.translations(LINES), in_pytorch, strict=True):
        assert one.text == two.text
        assert [target for _, target in one.alignment] == [*range(len(one.pieces))]
        assert set(two.alignment) <= set(one.alignment)  # PyTorch drops those with tags
    assert translator.text.encode(LINES[0], side=1).split() == other.encode(LINES[0], out_type=str)
    with pytest.raises(ValueError, match=r"target_lang SRC: .*eng_Latn, hin_Deva"):
        translator.translate(LINES, target_lang="SRC")
    assert read_config(Path("en-indic"))["languages"] == ["eng_Latn", "hin_Deva"]
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(sys, "argv", ["amlp-fairseq export", "--model", "en-indic", "--out", "ct2"])
    with pytest.raises(ValueError, match="en-indic has tokens of languages"):
        module_of("export").main()
