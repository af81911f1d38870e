"""amlp-fairseq prepare for corpora of summaries, on stand-ins that are named and laid out like the real ones."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import commands
import pytest
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset, post_process

from amlp_fairseq.corpora import embedded_corpus, prepare
from amlp_fairseq.corpora.archives import story
from amlp_fairseq.text.tokenizers import Words

LISTS = "raw.githubusercontent.com/abisee/cnn-dailymail/master/url_lists"
ARCHIVES = "huggingface.co/datasets/cnn_dailymail/resolve/11343c3752184397d56efc19a8a7cceb68089318/data"
#: The words that are kept of an article.
MOST = 400


def test_a_story_by_hand() -> None:
    """Lines that nothing ends get a full stop; highlights follow the article, each behind a mark of its own."""
    text = (
        "(CNN) -- It rained.\n\n  He stayed at home \n\n@highlight\n\nIt rained\n\n@highlight\n\n"
        "Nobody, he said, 'left.'\n\n@highlight\n\nAt all\N{RIGHT DOUBLE QUOTATION MARK}\n"
    )
    article, summary = story(text)
    assert article == "(CNN) -- It rained. He stayed at home ."
    assert summary == "It rained . Nobody, he said, 'left.' At all\N{RIGHT DOUBLE QUOTATION MARK}"
    assert story("\n\n@highlight\n\nOnly a summary.") == ("", "Only a summary.")
    assert story("An address: mail@highlight.example.") == ("An address: mail@highlight.example.", "")


def test_words_are_cut_and_replaced() -> None:
    assert Words(None, {}, 3)("a b c d e") == "a b c"
    assert Words(None, {}, 3)("a b") == "a b"
    assert Words(None, {}, 0)("a b c d e") == "a b c d e"
    assert Words(None, {"<unk>": "UNK"}, 3)("a <unk> x<unk> <unk>") == "a UNK x<unk>"


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


class Site:
    """A mirror with 9 stories of each newspaper: 8 is wanted by nobody, 7 has no article, and 0 has more words than are
    kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, tuple[str, str]] = {}
        sentences = [source for source, _ in embedded_corpus.generate(train=200, valid=1, test=1)["train"]]
        wanted: dict[str, list[str]] = {"all_train": [], "all_val": [], "all_test": []}
        for paper, archive in (("cnn", "cnn_stories.tgz"), ("dailymail", "dailymail_stories.tgz")):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
                for number in range(9):
                    address = f"http://www.{paper}.com/{number}.html"
                    article = sentences[number * 9 : number * 9 + 6] * (12 if number == 0 else 1)
                    summary = [line.removesuffix(" .") for line in sentences[number * 9 + 6 : number * 9 + 8]]
                    if number == 7:
                        article = []
                    self.texts[address] = " ".join(article), " ".join(f"{line} ." for line in summary)
                    text = "\n\n".join([*article, *(f"@highlight\n\n{line}" for line in summary)])
                    name = hashlib.sha1(address.encode()).hexdigest()
                    member = tarfile.TarInfo(f"{paper}/stories/{name}.story")
                    member.size = len(text.encode())
                    tar.addfile(member, io.BytesIO(text.encode()))
                    part = "all_val" if number == 5 else "all_test" if number == 6 else "all_train"
                    if number < 8:
                        wanted[part].append(address)
            put(folder / ARCHIVES / archive, buffer.getvalue())
        for part, addresses in wanted.items():
            put(folder / LISTS / f"{part}.txt", "".join(f"{address}\n" for address in addresses).encode())
        sums = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in folder.rglob("*.*")
            if path.is_file()
        ]
        (folder / "SUMS").write_text("".join(sums), encoding="utf-8")

    def pairs(self, *numbers: int) -> list[tuple[str, str]]:
        return [
            self.texts[f"http://www.{paper}.com/{number}.html"] for paper in ("cnn", "dailymail") for number in numbers
        ]


def test_cnn_dailymail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    site, out = Site(tmp_path / "mirror"), tmp_path / "out"
    given = {"mirror": f"file://{site.folder}", "checksums": site.folder / "SUMS", "vocab_size": 120, "workers": 1}
    commands.call(prepare, monkeypatch, "cnn_dailymail", out, **given)
    assert "prepare: 10 pairs collected, 287113 are published" in capsys.readouterr().err
    raw = {split: list(zip(*(lines(out / f"text/raw/{split}.{side}") for side in ("article", "summary")), strict=True))
           for split in ("train-1", "train-2", "valid", "test")}  # fmt: skip
    assert raw["train-1"] + raw["train-2"] == site.pairs(0, 1, 2, 3, 4)
    assert (raw["valid"], raw["test"]) == (site.pairs(5), site.pairs(6))
    folder = out / "data-bin"
    assert lines(folder / "raw/test.summary") == [summary for _, summary in site.pairs(6)]
    assert json.loads((folder / "text.json").read_text(encoding="utf-8"))["post_process"] == "sentencepiece"
    for side, language in enumerate(("article", "summary")):
        dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
        data = load_indexed_dataset(str(folder / f"train.article-summary.{language}"), dictionary)
        found = [post_process(dictionary.string(ids), "sentencepiece").split() for ids in data]
        whole = [pair[side].split() for pair in site.pairs(0, 1, 2, 3, 4)]
        assert max(map(len, whole)) > MOST or language == "summary"
        assert found == [words[:MOST] for words in whole]


def test_gigaword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that people have; the unknown word is the same in all parts."""
    files = {}
    for part, unknown in (("train", "<unk>"), ("dev", "<unk>"), ("test", "UNK")):
        files[f"{part}.src.txt"] = (
            f"the {unknown} of #.# percent -lrb- fell -rrb- .\na second line of the {part} set .\n"
        )
        files[f"{part}.tgt.txt"] = f"{unknown} fell\nanother line\n"
    for name, text in files.items():
        put(tmp_path / "org_data" / name, text.encode())
    words = {"data": tmp_path / "org_data", "vocab_size": 20, "workers": 1}
    monkeypatch.setattr(prepare, "binarise", lambda *_: tmp_path)
    monkeypatch.setattr(prepare, "finish", lambda *_: None)
    commands.call(prepare, monkeypatch, "gigaword", tmp_path / "out", **words)
    for split in ("train", "valid", "test"):
        pieces = {side: lines(tmp_path / f"out/text/pieces/{split}.{side}") for side in ("article", "summary")}
        plain = {side: [re.sub("@@ ", "", line) for line in text] for side, text in pieces.items()}
        assert plain["article"][0] == "the UNK of #.# percent -lrb- fell -rrb- ."
        assert plain["summary"] == ["UNK fell", "another line"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["gigaword"],
            "gigaword: give --data DIR with train.src.txt, train.tgt.txt, dev.src.txt, dev.tgt.txt, test.src.txt, "
            "test.tgt.txt; they are the folder org_data of an archive that only a browser can fetch (docs/summ",
        ),
        (
            ["cnn_dailymail_anonymised"],
            "cnn_dailymail_anonymised: give --data DIR with train.article, train.summary, valid.article, "
            "valid.summary, test.article, test.summary; they have one article or summary a line, and no open download",
        ),
        (["gigaword", "--data", "there"], "0 of its files match 'train.src.txt', 0 match 'train.src.txt'; it holds x"),
        (["cnn_dailymail", "--data", "there"], "--data there: the files of cnn_dailymail are downloaded"),
        (["gigaword", "--mirror", "http://x"], "--mirror http://x: nothing is downloaded for gigaword"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_made(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "there/x", b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        commands.call(prepare, monkeypatch, *words, "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_an_older_version_is_continued(tmp_path: Path) -> None:
    """It does not have the settings that are new; others must be the same."""
    path = tmp_path / "settings.json"
    path.write_text('{"size": 5}', encoding="utf-8")
    prepare.same_settings(path, {"size": 5, "source_words": 0})
    with pytest.raises(ValueError, match="was begun with size 5, not 6"):
        prepare.same_settings(path, {"size": 6})
