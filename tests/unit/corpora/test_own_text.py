"""amlp-fairseq prepare text: from two text files to a trained and evaluated model; what is wrong with them is named."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import time
from pathlib import Path

import commands
import pytest
import sacrebleu
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset, post_process

from amlp_fairseq.corpora import embedded_corpus

#: Three words a line, so that 60 pieces can be learnt.
WORDS = "one two three four five six seven eight nine ten".split()
LINES = [" ".join(WORDS[(i * (j + 1) + j) % 10] for j in range(3)) for i in range(40)]
PREPARE = ("amlp_fairseq.cli.main", "prepare")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """train, valid and test in xx and yy, good as they are."""
    folder = tmp_path / "text"
    folder.mkdir()
    return {
        f"{role}.{language}": write(
            folder / f"{role}.{language}",
            "".join(f"{change(line)}\n" for line in LINES[: {"train": 40}.get(role, 5)]),
        )
        for role in ("train", "valid", "test")
        for language, change in (("xx", str), ("yy", str.upper))
    }


def prepare(
    files: dict[str, Path], out: Path, *words: object, check: bool = True, size: int = 60, cwd: Path | None = None
) -> str:
    """Run the command on files in their order: train, valid, test, both sides of each."""
    roles = ("train", "valid", "test")
    paths = list(files.values())
    options = [word for i, role in enumerate(roles) for word in (f"--{role}", *paths[2 * i : 2 * i + 2])]
    words = ("text", out, *options, "--vocab-size", size, "--workers", 1, *words)
    return commands.run(*PREPARE, *words, check=check, cwd=cwd)


def binarised(out: Path, split: str, language: str) -> list[str]:
    """The sentences of fairseq-preprocess's output, pieces joined to words."""
    folder = out / "data-bin"
    languages = json.loads((folder / "text.json").read_text(encoding="utf-8"))["languages"]
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    data = load_indexed_dataset(str(folder / f"{split}.{'-'.join(languages)}.{language}"), dictionary)
    return [post_process(dictionary.string(ids), "sentencepiece") for ids in data]


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_from_text_to_results(tmp_path: Path) -> None:
    """From an empty folder that is not the repository's: prepare, train a row, evaluate it."""
    folder = tmp_path / "somewhere else"
    folder.mkdir()
    words: list[str] = []
    for role, pairs in embedded_corpus.generate(train=300, valid=8, test=8).items():
        for side, language in enumerate(("en", "de")):
            write(folder / f"my-{role}.{language}", "".join(f"{pair[side]}\n" for pair in pairs))
        words += [f"--{role}", f"my-{role}.en", f"my-{role}.de"]
    commands.run(*PREPARE, "text", "out", *words, "--vocab-size", "200", "--workers", "1", cwd=folder)
    described = json.loads((folder / "out/data-bin/text.json").read_text(encoding="utf-8"))
    assert described == {
        **{"name": "out", "corpus": "", "languages": ["en", "de"], "post_process": "sentencepiece", "tokenizer": None},
        **dict.fromkeys(("normalize", "split_hyphens", "lowercase"), False),
        **{"valid_set": "my-valid", "test_set": "my-test"},
    }
    row = ["--row", "ibdecoder", "--scale", "embedded", "--save-dir", "trained", "--cpu"]
    row += ["--max-update", "3", "--save-interval-updates", "1", "--max-tokens", "900"]
    printed = commands.run("amlp_fairseq.training.train", "out/data-bin", *row, cwd=folder)
    assert "--source-lang en --target-lang de" in printed
    printed = commands.run("amlp_fairseq.evaluation.evaluate", "trained", "out/data-bin", "--cpu", cwd=folder)
    results = [json.loads(line) for line in read(folder / "trained/results.jsonl")]
    assert [result["decoding"] for result in results] == ["beam 4", "greedy"]
    facts = {"data": "out", "scale": "embedded", "system": "ibdecoder", "split": "test", "subset": "my-test"}
    facts["training_options"] = "--max-update 3 --save-interval-updates 1 --max-tokens 900"
    references = read(folder / "my-test.de")
    for result in results:
        assert (facts | {"updates": 3, "sentences": 8, "average": {"last-updates": 3}}).items() <= result.items()
        name = f"generated.test.{result['decoding']}.hyp".replace(" ", "-")
        hypotheses = read(folder / "trained" / name)
        assert result["bleu"] == round(sacrebleu.corpus_bleu(hypotheses, [references]).score, 2)
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("my-")) == ["out", "trained"]


def test_line_ends_empty_lines_and_compression(files: dict[str, Path], tmp_path: Path) -> None:
    """Of training pairs with an empty side none is left; evaluation sentences stay, whatever they are."""
    sides = [["a b", "", "c d", " \t ", "e f", "g h"], ["A B", "nothing", "", "", "E F", "G H"]]
    for name, side in zip(("train.xx", "train.yy"), sides, strict=True):
        text = "".join(f"{line}\r\n" for line in [*side, *LINES])
        files[name] = write(files[name].with_name(f"{name}.gz"), gzip.compress(text.encode()))
    files["test.xx"] = write(files["test.xx"], "a b\r\n\r\n  c   d \u2028 e\r\n\r\n")
    files["test.yy"] = write(files["test.yy"].with_name("other name.yy"), b"A B\nX\n\nE")  # no newline at the end
    out = tmp_path / "out"
    assert "prepare: train-1: 3 left out, of which a side is empty\n" in prepare(files, out)
    train = [("a b", "A B"), ("e f", "E F"), ("g h", "G H"), *zip(LINES, LINES, strict=True)]
    assert list(zip(read(out / "text/raw/train-1.xx"), read(out / "text/raw/train-1.yy"), strict=True)) == train
    assert binarised(out, "train", "xx") == [pair[0] for pair in train]
    assert binarised(out, "train", "yy") == [pair[1] for pair in train]
    test = {"xx": ["a b", "", "c d e", ""], "yy": ["A B", "X", "", "E"]}
    for language, lines in test.items():
        assert read(out / f"data-bin/raw/test.{language}") == lines
        assert len(binarised(out, "test", language)) == 4
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["pairs"]["binarised"] == {"train": 43, "valid": 5, "test": 4}
    assert json.loads((out / "data-bin/text.json").read_text())["languages"] == ["xx", "yy"]


@pytest.mark.parametrize("odd", ["spaces, ' and \" é", "braces {} | $(touch no) *[a-z]"])
def test_odd_names(odd: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Of files, folders and the result."""
    folder = tmp_path / odd
    folder.mkdir()
    moved = {name: path.rename(folder / f"{odd} {path.name}") for name, path in files.items()}
    out = folder / f"{odd} out"
    prepare({name: path.relative_to(tmp_path) for name, path in moved.items()}, out, cwd=tmp_path)
    assert binarised(out, "train", "xx") == LINES
    assert read(out / "data-bin/raw/test.yy") == [line.upper() for line in LINES[:5]]
    described = json.loads((out / "data-bin/text.json").read_text(encoding="utf-8"))
    assert described["test_set"] == f"{odd} test"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([odd, "text"])


@pytest.mark.parametrize("role", ["train", "valid", "test"])
def test_sides_of_unequal_length_are_refused(role: str, files: dict[str, Path], tmp_path: Path) -> None:
    """With both counts; once they are mended, the same command goes on."""
    count = len(read(files[f"{role}.xx"]))
    before = files[f"{role}.yy"].read_bytes()
    write(files[f"{role}.yy"], before + b"MORE\nAND MORE\n")
    out = tmp_path / "out"
    printed = prepare(files, out, check=False)
    assert f"{role}.xx has {count} sentences, {role}.yy has {count + 2}" in printed
    assert "Traceback" not in printed
    assert not (out / "data-bin").exists()
    if role == "valid":
        write(files[f"{role}.yy"], before)
        prepare(files, out)
        assert binarised(out, "train", "yy") == [line.upper() for line in LINES]
        assert read(out / "data-bin/raw/valid.xx") == LINES[:5]


def change(files: dict[str, Path], how: str) -> None:
    """One of the things that users do."""
    path = files["train.yy"]
    if how == "missing":
        path.unlink()
    elif how == "latin-1":
        write(path, "\n".join(["naïve"] * 40).encode("latin-1"))
    elif how == "no suffix":
        files["train.yy"] = path.rename(path.with_name("train"))
    elif how == "gz alone":
        files["train.yy"] = path.rename(path.with_name("train.gz"))
    elif how == "same suffix":
        files["train.yy"] = path.rename(path.with_name("target.xx"))
    elif how == "crossed":
        files["valid.xx"], files["valid.yy"] = files["valid.yy"], files["valid.xx"]
    elif how == "byte-order mark":
        write(path, b"\xef\xbb\xbf" + path.read_bytes())
    elif how == "compressed latin-1":
        files["train.yy"] = write(path.with_name("train.yy.gz"), gzip.compress(b"good\nna\xefve\n"))
    elif how == "cut off":
        files["train.yy"] = write(path.with_name("train.yy.gz"), gzip.compress(path.read_bytes())[:-20])
    elif how == "one side of each":
        write(files["train.xx"], "a\n \n")
        write(files["train.yy"], "\t\nA\n")
    elif how.startswith("empty "):
        for language in ("xx", "yy"):
            write(files[f"{how.removeprefix('empty ')}.{language}"], "")


@pytest.mark.parametrize(
    ("how", "size", "message"),
    [
        ("missing", 60, r"prepare: --train \S+/train\.yy: there is no such file"),
        (
            "latin-1",
            60,
            r"prepare: (\S+/train\.yy), line 1: this is not UTF-8; if it is Latin-1: iconv -f latin1 -t utf8 \1\n",
        ),
        ("compressed latin-1", 60, r"(\S+/train\.yy\.gz), line 2: .* if it is Latin-1: zcat \1 \| iconv -f latin1 -t"),
        ("cut off", 60, r"prepare: \S+/train\.yy\.gz: Compressed file ended before"),
        ("byte-order mark", 60, r"prepare: \S+/train\.yy begins with a byte-order mark; without it: sed -i '1s/"),
        ("no suffix", 60, r"train\.xx \S+/train: the suffixes do not name two languages; give --languages"),
        ("gz alone", 60, r"train\.xx \S+/train\.gz: the suffixes do not name two languages; give --languages"),
        ("same suffix", 60, r"train\.xx \S+/target\.xx: the suffixes do not name two languages; give --languages"),
        ("crossed", 60, r"--valid \S+/valid\.yy \S+/valid\.xx: not the languages of --train, xx and yy"),
        ("nothing", 8000, r"prepare: --vocab-size: 8000 pieces cannot be learnt from \S+: .*too high \(8000\)"),
        ("nothing", 9, r"prepare: --vocab-size: 9 pieces cannot be learnt from \S+: .*Increase vocab_size\n"),
        ("empty train", 60, r"prepare: --train \S+xx \S+/train\.yy: at least one pair of sentences is needed"),
        ("one side of each", 60, r"prepare: --train \S+xx \S+/train\.yy: at least one pair of sentences is needed"),
        ("empty valid", 60, r"prepare: --valid \S+xx \S+/valid\.yy: at least one pair of sentences is needed"),
        ("empty test", 60, r"prepare: --test \S+xx \S+/test\.yy: at least one pair of sentences is needed"),
    ],
)
def test_what_is_wrong_is_named(how: str, size: int, message: str, files: dict[str, Path], tmp_path: Path) -> None:
    change(files, how)
    printed = prepare(files, tmp_path / "out", size=size, check=False)
    assert re.search(message, printed)
    assert "Traceback" not in printed
    assert not (tmp_path / "out/data-bin").exists()


@pytest.mark.parametrize("name", ["train.yy", "valid.xx"])
def test_other_text_in_the_same_folder_is_refused(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Its names do not tell. Where text and result are does not matter, and a folder of a version that did not look at
    the content is accepted."""
    out = tmp_path / "out"
    prepare(files, out)
    before = files[name].read_bytes()
    write(files[name], before.replace(b"o", b"u").replace(b"O", b"U"))
    role = name.split(".")[0]
    printed = prepare(files, out, check=False)
    assert f"{out} was begun with other text in {name} ({role}): delete {out} or choose another folder" in printed
    write(files[name], before)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    out, text = out.rename(moved / "out"), (tmp_path / "text").rename(moved / "text")
    files |= {each: text / each for each in files}
    assert re.fullmatch("next: .*\n", prepare(files, out))  # nothing else is done again

    write(files[name], before + b"more\n")
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    old = {key: value for key, value in settings.items() if not key.endswith("sha256")}
    assert len(settings) == len(old) + 3
    write(out / "settings.json", json.dumps(old))
    assert re.fullmatch("next: .*\n", prepare(files, out))  # nothing else is done again


@pytest.mark.parametrize("corpus", ["wat17_en_ja", "embedded"])
def test_other_text_of_a_folder_is_refused(corpus: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Also where a run was stopped before it had read all, and the folders have the same name."""
    languages = {"wat17_en_ja": ("en", "ja"), "embedded": ("en", "de")}[corpus]
    one, other = tmp_path / "one/given", tmp_path / "other/given"
    for folder, change in ((one, str), (other, str.swapcase)):
        folder.mkdir(parents=True)
        for name, path in files.items():
            name = name.replace("xx", languages[0]).replace("yy", languages[1])
            write(folder / name, change(path.read_text(encoding="utf-8")))
    out = tmp_path / "out"

    def prepared(folder: Path, check: bool = True) -> str:
        return commands.run(*PREPARE, corpus, out, "--data", folder, "--workers", 1, check=check)

    prepared(one)
    refusal = (
        f"{out} was begun with other text in train.en and train.{languages[1]} (train): delete {out} or choose another"
    )
    assert refusal in prepared(other, check=False)
    shutil.rmtree(out / "data-bin")
    for language in languages:
        (out / f"text/raw/test.{language}").unlink()
    assert refusal in prepared(other, check=False)
    assert not (out / f"text/raw/test.{languages[0]}").exists()
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    old = {key: value for key, value in settings.items() if not key.endswith("sha256")}
    assert len(settings) == len(old) + 3
    write(out / "settings.json", json.dumps(old))
    prepared(one)


def test_two_runs_at_once(files: dict[str, Path], tmp_path: Path) -> None:
    """The second is refused, and takes nothing from the first."""
    for language in ("xx", "yy"):
        write(files[f"train.{language}"], "".join(f"{line}\n" for line in LINES * 500))
    out, printed = tmp_path / "out", tmp_path / "printed"
    options = [
        word for role in ("train", "valid", "test") for word in (f"--{role}", files[f"{role}.xx"], files[f"{role}.yy"])
    ]
    first = commands.start(*PREPARE, "text", out, *options, "--vocab-size", 60, "--workers", 1, output=printed)
    while not (out / "text").exists():
        assert first.is_alive(), printed.read_text(encoding="utf-8")
        time.sleep(0.001)
    assert f"another run, or a process that it has left, is using {out}" in prepare(files, out, check=False)
    first.join()
    assert first.exitcode == 0, printed.read_text(encoding="utf-8")
    assert len(read(out / "text/raw/train-1.xx")) == 500 * len(LINES)
    assert re.fullmatch("next: .*\n", prepare(files, out))  # nothing else is done again


def test_what_two_runs_of_old_have_left_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(files, out)
    shutil.rmtree(out / "data-bin")
    (out / "text/pieces/train.xx").unlink()
    for damaged in ("raw/train-1.yy", "pieces/train-1.yy"):
        path = out / "text" / damaged
        before = path.read_bytes()
        write(path, before + b"more\n")
        printed = prepare(files, out, check=False)
        assert re.search(
            rf"train-1\.xx has 40 lines, \S+/text/{damaged} has 41: delete {out}/text and run again", printed
        )
        write(path, before)
    prepare(files, out)


def test_links_to_compressed_files(files: dict[str, Path], tmp_path: Path) -> None:
    """The name says that they are, not that of the file."""
    links = tmp_path / "links"
    links.mkdir()
    for name, path in files.items():
        files[name] = links / f"{name}.gz"
        files[name].symlink_to(write(path.with_name(name.replace(".", "")), gzip.compress(path.read_bytes())))
    prepare(files, tmp_path / "out")
    assert binarised(tmp_path / "out", "train", "xx") == LINES


def test_a_vocabulary_that_was_too_large(files: dict[str, Path], tmp_path: Path) -> None:
    """The same folder goes on with the size that the message names; after that no other size is taken."""
    out = tmp_path / "out"
    printed = prepare(files, out, size=8000, check=False)
    advised = re.search(r"Please set it to a value <= (\d+)", printed)
    assert advised
    size = int(advised.group(1))
    assert "raw/" not in prepare(files, out, size=size)
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["size"] == size
    assert json.loads((out / "settings.json").read_text(encoding="utf-8")) == manifest["settings"]
    assert f"was begun with size {size}, not 60" in prepare(files, out, check=False)


def test_languages_without_suffixes(files: dict[str, Path], tmp_path: Path) -> None:
    change(files, "no suffix")
    prepare(files, tmp_path / "out", "--languages", "en", "de")
    assert json.loads((tmp_path / "out/data-bin/text.json").read_text())["languages"] == ["en", "de"]
    assert (tmp_path / "out/data-bin/train.en-de.de.bin").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train a.en a.de", "text: --valid SOURCE TARGET is needed"),
        ("", "text: --train SOURCE TARGET is needed"),
        (
            "--train a.en a.de a.fr",
            "--train a.en a.de a.fr: two files are needed in each part, or one in each for a language",
        ),
        ("--reverse --train a.en a.de", "--reverse is not for text"),
        ("--variant x", "--variant is not for text"),
    ],
)
def test_bad_arguments_are_named(words: str, message: str, tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        write(tmp_path / name, "a\n")
    printed = commands.run(*PREPARE, "text", "out", *words.split(), check=False, cwd=tmp_path)
    assert message in printed
    assert not (tmp_path / "out").exists()
