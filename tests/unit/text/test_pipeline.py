"""Raw text becomes the pieces that ``amlp-fairseq prepare`` makes of it, and comes back."""

import copy
import pickle
import shutil
from pathlib import Path

import pytest

from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.text.subwords import learn, train_sentencepiece

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
    with pytest.raises(ValueError, match=r"config\.json: post_process 'bpe' is unknown: sentencepiece, subword_nmt or"):
        TextPipeline.of(folder, ("en", "de"), {"post_process": "bpe"})
    with pytest.raises(ValueError, match=r"config\.json: tokenizer 'spacy' is unknown: moses or null"):
        TextPipeline.of(folder, ("en", "de"), {"tokenizer": "spacy"})


@pytest.mark.parametrize("post_process", ["sentencepiece", "subword_nmt"])
def test_a_model_is_read_once(post_process: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After loading, the folder or the working folder may change; a new pipeline reads the new content."""
    pieces = []
    for name, size in (("small", 1), ("large", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text("".join(line + "\n" for line in TEXT), encoding="utf-8")
        learn("subword_nmt", [tmp_path / name / "text"], tmp_path / name / "bpecodes", size, 1.0, 0)
        train_sentencepiece([tmp_path / name / "text"], tmp_path / name / "sentencepiece.bpe.model", 40 + size)
    monkeypatch.chdir(tmp_path)
    pipelines = []
    for name in ("small", "large"):
        shutil.copytree(name, "model", dirs_exist_ok=True)
        pipelines.append(TextPipeline.of(Path("model"), ("en", "en"), {"post_process": post_process}))
        pieces.append(pipelines[-1].encode(TEXT[0]))
    shutil.rmtree("model")
    monkeypatch.chdir("/")
    assert pieces[0] != pieces[1]
    assert [pipeline.encode(TEXT[0]) for pipeline in pipelines] == pieces
    copies = [copy.deepcopy(pipelines[0]), pickle.loads(pickle.dumps(pipelines[0]))]
    assert [each.encode(TEXT[0]) for each in copies] == [pieces[0]] * 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sentencepiece.bpe.model", b""),
        ("sentencepiece.bpe.model", b"\n" * 9),
        ("bpecodes", b""),
        ("bpecodes", b"#version: 0.2\n"),
        ("bpecodes", b"#version: 0.2\na b\nc"),
        ("bpecodes", b"#version: 0.2\na \xff\n"),
    ],
)
def test_damaged_models(name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(content)
    kind = {"bpecodes": "subword_nmt"}.get(name, "sentencepiece")
    with pytest.raises(ValueError, match=f"{tmp_path / name} is damaged: ") as error:
        TextPipeline.of(tmp_path, ("en", "de"), {"post_process": kind})
    assert "\n" not in str(error.value)
    assert capsys.readouterr() == ("", "")
