"""Raw text becomes the pieces that ``amlp-fairseq prepare`` makes of it, and comes back."""

from pathlib import Path

import pytest

from amlp_fairseq.recipes.text import learn, train_sentencepiece
from amlp_fairseq.translator.text_pipeline import TextPipeline

TEXT = ["The cat sees a dog.", "A dog, the cat's friend, sees it.", "It is 3 o'clock: the dog sleeps!"] * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("subwords")
    (folder / "text").write_text("".join(line + "\n" for line in TEXT), encoding="utf-8")
    train_sentencepiece([folder / "text"], folder / "sentencepiece.bpe.model", 60)
    learn("subword_nmt", [folder / "text"], folder / "bpecodes", 20, 1.0, 0)
    return folder


@pytest.mark.parametrize("post_process", ["sentencepiece", "subword_nmt", None])
@pytest.mark.parametrize("tokenizer", ["moses", None])
def test_there_and_back(folder: Path, post_process: str | None, tokenizer: str | None) -> None:
    pipeline = TextPipeline.of(folder, ("en", "en"), {"post_process": post_process, "tokenizer": tokenizer})
    for line in TEXT[:3]:
        pieces = pipeline.encode(f"  {line}\t")
        assert post_process is None or len(pieces.split()) > len(line.split())
        assert pipeline.decode(pieces) == line


def test_settings(folder: Path) -> None:
    pipeline = TextPipeline.of(folder, ("en", "de"), {"tokenizer": "moses", "lowercase": True, "split_hyphens": True})
    assert pipeline.encode("A well-known CAT.") == "a well @-@ known cat ."


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown text settings \['tokeniser'\]; known are"):
        TextPipeline.of(folder, ("en", "de"), {"tokeniser": "moses"})
    with pytest.raises(ValueError, match=f"{tmp_path} has no bpecodes"):
        TextPipeline.of(tmp_path, ("en", "de"), {"post_process": "subword_nmt"})
