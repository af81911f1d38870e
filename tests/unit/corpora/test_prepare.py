"""amlp-fairseq prepare on a stand-in for the downloads: archives named and laid out like the real ones.

They hold a few hundred sentences of Multi30k (the folder MULTI30K, where it is set) or of the embedded corpus.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import commands
import pytest
import sacremoses
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset, post_process
from sacrebleu.dataset import DATASETS as SACREBLEU

from amlp_fairseq.corpora import embedded_corpus, prepare
from amlp_fairseq.text.tokenizers import moses

Pairs = list[tuple[str, str]]

STATMT, STATMT_DATA = "www.statmt.org", "data.statmt.org"
PARACRAWL = "s3.amazonaws.com/web-language-models/paracrawl/release1"
CWMT = "huggingface.co/datasets/wmt/wmt18/resolve/main/cwmt-wmt"
MULTI30K = "raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
#: Of which the filter keeps none.
BAD: Pairs = [("one two three four .", "eins ."), ("word " * 300, "Wort " * 300), ("only one side", "")]


class Dataset(NamedTuple):
    """How a corpus is prepared and what comes out.

    Args:
        languages: of the result, source first.
        options: of the command line.
        text: text.json, as far as the languages do not say it.
        evaluation: sacreBLEU's sets.
        collected: training pairs before the filter.
        valid: pairs; 0 where every 23rd training pair is one.
        test: pairs.
    """

    languages: tuple[str, str]
    options: list[str]
    text: tuple[str | None, str | None, str, str]
    evaluation: dict[str, str]
    collected: int
    valid: int
    test: int


UNITS, PIECES = ["--vocab-size", "100"], ["--vocab-size", "300"]
DATASETS = {
    "wmt14_en_de": Dataset(
        ("en", "de"), UNITS, ("subword_nmt", "moses", "wmt13", "wmt14"),
        {"wmt13": "en-de", "wmt14": "en-de"}, 122, 20, 20,
    ),
    "wmt14_en_fr": Dataset(
        ("en", "fr"), [*UNITS, "--workers", "2"], ("subword_nmt", "moses", "wmt12+wmt13", "wmt14"),
        {"wmt12": "en-fr", "wmt13": "en-fr", "wmt14": "en-fr"}, 202, 40, 20,
    ),
    "wmt14_de_en": Dataset(
        ("de", "en"), UNITS, ("subword_nmt", "moses", "wmt13", "wmt14"),
        {"wmt13": "de-en", "wmt14": "de-en"}, 122, 20, 20,
    ),
    "wmt16_ro_en": Dataset(
        ("en", "ro"), [*UNITS, "--reverse"], ("subword_nmt", "moses", "wmt16/dev", "wmt16"),
        {"wmt16/dev": "en-ro", "wmt16": "en-ro"}, 80, 20, 20,
    ),
    "wmt17_en_de": Dataset(
        ("en", "de"), UNITS, ("subword_nmt", "moses", "wmt16", "wmt17"),
        {"wmt16": "en-de", "wmt17": "en-de"}, 162, 20, 20,
    ),
    "wmt17_zh_en": Dataset(
        ("zh", "en"), PIECES, ("sentencepiece", None, "wmt17/dev", "wmt17"),
        {"wmt17/dev": "zh-en", "wmt17": "zh-en"}, 320, 20, 20,
    ),
    "wmt18_en_ru": Dataset(
        ("en", "ru"), UNITS, ("subword_nmt", "moses", "wmt17", "wmt18"),
        {"wmt17": "en-ru", "wmt18": "en-ru"}, 160, 20, 20,
    ),
    "iwslt14_de_en": Dataset(
        ("de", "en"), UNITS,
        ("subword_nmt", "moses", "every 23rd training pair", "dev2010 dev2012 tst2010 tst2011 tst2012"), {}, 243, 0, 50,
    ),
    "multi30k": Dataset(("en", "de"), PIECES, ("sentencepiece", None, "val", "test_2016_flickr"), {}, 200, 20, 20),
    "embedded": Dataset(("en", "de"), [], (None, None, "valid", "test"), {}, 20000, 500, 500),
}  # fmt: skip


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """English and German."""
    folder = os.environ.get("MULTI30K")
    if folder:
        sides = [
            gzip.decompress(Path(folder, f"train.{language}.gz").read_bytes()).decode() for language in ("en", "de")
        ]
    else:
        return embedded_corpus.generate(train=400)["train"]
    return list(zip(*(side.split("\n")[:400] for side in sides), strict=True))


class StandIn:
    """A mirror of the sites that corpora are downloaded from, and sacreBLEU's folder of test sets.

    Pairs are cut from the sentences one after the other; French, Romanian and Russian are German here, and Chinese is
    German with a character for each letter and no spaces.
    """

    def __init__(self, folder: Path, sentences: Pairs) -> None:
        self.mirror, self.sacrebleu = folder / "mirror", folder / "sacrebleu"
        self.sentences = sentences
        self.used = 0

    def pairs(self, count: int) -> Pairs:
        self.used += count
        return [self.sentences[i % len(self.sentences)] for i in range(self.used - count, self.used)]

    def text(self, pairs: Pairs, language: str) -> list[str]:
        side = [pair[0] if language == "en" else pair[1] for pair in pairs]
        return ["".join(chr(0x4E00 + ord(c)) for c in line if c != " ") for line in side] if language == "zh" else side

    def files(self, name: str, languages: str, pairs: Pairs, form: str = "{}") -> dict[str, bytes]:
        """A file for each language; ``form`` is what becomes of a line, ``{}`` in a name the language."""
        return {
            name.replace("{}", language): "".join(
                form.format(line) + "\n" for line in self.text(pairs, language)
            ).encode()
            for language in languages.split()
        }

    def put(self, address: str, content: bytes) -> None:
        path = self.mirror / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def tar(self, address: str, *files: dict[str, bytes]) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz" if address.endswith("gz") else "w") as archive:
            for name, content in (item for group in files for item in group.items()):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        self.put(address, buffer.getvalue())

    def zip(self, address: str, *files: dict[str, bytes]) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in (item for group in files for item in group.items()):
                archive.writestr(name, content)
        self.put(address, buffer.getvalue())

    def test_set(self, name: str, pair: str) -> None:
        """A test set where sacreBLEU keeps it once it has been downloaded."""
        folder = self.sacrebleu / name
        folder.mkdir(parents=True, exist_ok=True)
        pairs = self.pairs(20)
        source, target = pair.split("-")
        columns = {"src": self.text(pairs, source), "ref": self.text(pairs, target)}
        columns |= {field: ["x"] * 20 for field in ("docid", "genre", "origlang")}
        for field, lines in columns.items():
            path = folder / f"{name.replace('/', '_')}.{pair}.{field}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def fill(self) -> None:
        other = self.files("training/europarl-v7.es-en.{}", "es en", self.pairs(5))
        for pair in ("de", "fr"):
            other |= self.files(f"training/europarl-v7.{pair}-en.{{}}", f"{pair} en", self.pairs(40) + BAD)
        self.tar(f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz", other)
        self.tar(
            f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz",
            *(self.files(f"commoncrawl.{pair}-en.{{}}", f"{pair} en", self.pairs(40)) for pair in ("de", "fr", "ru")),
        )
        self.tar(
            f"{STATMT}/wmt14/training-parallel-nc-v9.tgz",
            *(self.files(f"training/news-commentary-v9.{x}-en.{{}}", f"{x} en", self.pairs(40)) for x in ("de", "fr")),
        )
        self.tar(
            f"{STATMT}/wmt13/training-parallel-un.tgz",
            self.files("un/undoc.2000.fr-en.{}", "fr en", self.pairs(40)),
        )
        giga = self.files("giga-fren.release2.fixed.{}.gz", "en fr", self.pairs(40))
        self.tar(f"{STATMT}/wmt10/training-giga-fren.tar", {name: gzip.compress(text) for name, text in giga.items()})
        self.tar(
            f"{STATMT_DATA}/wmt16/translation-task/training-parallel-ep-v8.tgz",
            self.files("training-parallel-ep-v8/europarl-v8.ro-en.{}", "ro en", self.pairs(40)),
        )
        units = "".join(
            "<tu>" + "".join(f'<tuv xml:lang="{language}"><seg>{escape(text)}</seg></tuv>'
                             for language, text in (("en", english), ("ro", german))) + "</tu>"
            for english, german in [*self.pairs(40), BAD[2]]
        )  # fmt: skip
        tmx = f'<?xml version="1.0" encoding="utf-8"?><tmx version="1.4"><header/><body>{units}</body></tmx>'
        self.put("object.pouta.csc.fi/OPUS-SETIMES/v2/tmx/en-ro.tmx.gz", gzip.compress(tmx.encode()))
        self.tar(
            f"{STATMT_DATA}/wmt17/translation-task/training-parallel-nc-v12.tgz",
            *(self.files(f"training/news-commentary-v12.{x}-en.{{}}", f"{x} en", self.pairs(40)) for x in ("de", "zh")),
        )
        self.tar(
            f"{STATMT_DATA}/wmt18/translation-task/rapid2016.tgz",
            *(
                self.files(f"rapid2016.{pair}.{{}}", pair.replace("-", " "), self.pairs(40))
                for pair in ("de-en", "en-fi")
            ),
        )
        self.tar(
            f"{STATMT_DATA}/wmt18/translation-task/training-parallel-nc-v13.tgz",
            *(
                self.files(f"training-parallel-nc-v13/news-commentary-v13.{x}-en.{{}}", f"{x} en", self.pairs(40))
                for x in ("de", "ru")
            ),
        )
        paracrawl = "paracrawl-release1.en-ru.zipporah0-dedup-clean"
        self.tar(f"{PARACRAWL}/{paracrawl}.tgz", self.files(f"{paracrawl}.{{}}", "en ru", self.pairs(40)))
        for pair in ("en-ru", "en-zh"):
            self.tar(
                f"storage.googleapis.com/tfds-data/downloads/uncorpus/UNv1.0.{pair}.tar.gz",
                self.files(f"{pair}/UNv1.0.{pair}.{{}}", pair.replace("-", " "), self.pairs(40)),
            )
        for name in ("casia2015", "casict2011", "casict2015", "datum2015", "datum2017", "neu2017"):
            files: dict[str, bytes] = {}
            for i, part in enumerate(("A", "B")):
                pairs = self.pairs(20)
                chinese = f"{name}/{name}-{part}_{'ch' if i else 'cn'}.txt"
                files |= {chinese: next(iter(self.files("zh", "zh", pairs).values()))}
                files |= self.files(f"{name}/{name}-{part}_{{}}.txt", "en", pairs)
            self.zip(f"{CWMT}/{name}.zip", files)
        tags = self.files("de-en/train.tags.de-en.{}", "de en", self.pairs(240) + BAD)
        head = b"<url>http://www.ted.com/</url>\n<keywords>talks</keywords>\n<title> A title </title>\n"
        tags = {name: head + text for name, text in tags.items()}
        for year in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013"):
            name = f"de-en/IWSLT14.{year}.de-en.{{}}.xml"
            tags |= self.files(name, "de en", self.pairs(10), '<seg id="1"> {} </seg>')
        self.tar("dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", tags)
        for split, count in {"train": 200, "val": 20, "test_2016_flickr": 20}.items():
            for name, content in self.files(f"{split}.{{}}.gz", "en de", self.pairs(count)).items():
                self.put(f"{MULTI30K}/{name}", gzip.compress(content))
        for dataset in DATASETS.values():
            for name, pair in dataset.evaluation.items():
                self.test_set(name, pair)
        sums = (
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in self.mirror.rglob("*.*")
            if path.is_file()
        )
        (self.mirror / "SUMS").write_text("".join(sums), encoding="utf-8")

    def words(self, name: str, out: Path, *options: object, sums: bool = True) -> list[str]:
        """The command line."""
        words = [name, out, *(() if "--workers" in options else ("--workers", "1")), *options]
        if name != "embedded":
            words += ["--mirror", f"file://{self.mirror}", *(("--checksums", self.mirror / "SUMS") if sums else ())]
        return [str(word) for word in words]

    def prepare(self, name: str, out: Path, *options: object, sums: bool = True, check: bool = True) -> str:
        """Run the command in this process, with sacreBLEU's sets where this object has them."""
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(printed), redirect_stdout(printed):
            for each, dataset in SACREBLEU.items():
                patch.setattr(dataset, "_outdir", str(self.sacrebleu / each))
            patch.setattr("sys.argv", ["amlp-fairseq prepare", *self.words(name, out, *options, sums=sums)])
            try:
                prepare.main()
            except (SystemExit, ValueError, OSError) as error:
                print(error)  # noqa: T201
                assert not check, printed.getvalue()
            else:
                assert check
        return printed.getvalue()


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory, sentences: Pairs) -> StandIn:
    made = StandIn(tmp_path_factory.mktemp("stand-in"), sentences)
    made.fill()
    return made


@pytest.fixture(scope="module")
def wmt14(stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wmt14") / "out"
    stand_in.prepare("wmt14_en_de", out, *DATASETS["wmt14_en_de"].options)
    return out


def texts(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def binarised(folder: Path, split: str, languages: tuple[str, str], language: str) -> list[str]:
    """The sentences of fairseq-preprocess's output, as fairseq-generate would print them."""
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    data = load_indexed_dataset(str(folder / f"{split}.{'-'.join(languages)}.{language}"), dictionary)
    description = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    return [post_process(dictionary.string(ids), description["post_process"] or "none") for ids in data]


def comparable(line: str, language: str, dataset: Dataset) -> str:
    """What a raw line has in common with the words made of it: no spaces, punctuation and case of the script."""
    if dataset.evaluation and dataset.text[1]:
        line = moses(language)[0].normalize(line)
    elif dataset.text[1]:
        line = line.lower()
    return "".join(line.split())


def detokenized(line: str, language: str, dataset: Dataset) -> str:
    line = sacremoses.MosesDetokenizer(language).detokenize(line.split()) if dataset.text[1] == "moses" else line
    return "".join(line.split())


ONE_PROCESS = pytest.mark.xdist_group("prepare-wmt14")  # for tests of one run of the command


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=ONE_PROCESS if name == "wmt14_en_de" else ()) for name in DATASETS]
)
def test_end_to_end(name: str, stand_in: StandIn, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    dataset = DATASETS[name]
    if name == "wmt14_en_de":
        out = request.getfixturevalue("wmt14")
    else:
        out = tmp_path / "out"
        if name == "wmt14_en_fr":  # as a user does, with two processes
            words = stand_in.words(name, out, *dataset.options)
            commands.fresh("amlp_fairseq", "prepare", *words, env={"SACREBLEU": str(stand_in.sacrebleu)})
        else:
            stand_in.prepare(name, out, *dataset.options, sums=name != "iwslt14_de_en")
    folder = out / "data-bin"
    description = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    keys = ("post_process", "tokenizer", "valid_set", "test_set")
    assert description == {
        "name": name,
        "corpus": name,
        "languages": [*dataset.languages],
        **dict(zip(keys, dataset.text, strict=True)),
        **dict.fromkeys(("normalize", "split_hyphens"), name.startswith("wmt") and dataset.text[1] == "moses"),
        "lowercase": name == "iwslt14_de_en",
    }
    model = {"subword_nmt": "bpecodes", "sentencepiece": "sentencepiece.bpe.model", None: "text.json"}[dataset.text[0]]
    assert (folder / model).stat().st_size > 0
    dictionaries = [(folder / f"dict.{language}.txt").read_bytes() for language in dataset.languages]
    assert dictionaries[0] == dictionaries[1]

    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    counts = manifest["pairs"]["binarised"]
    good = counts["train"] + (0 if dataset.valid else counts["valid"])
    assert counts["valid"] == (dataset.valid or good // 23)
    assert counts["test"] == dataset.test
    assert manifest["pairs"]["collected in all"] == dataset.collected
    assert 0.7 * dataset.collected < good <= dataset.collected - (2 if name.startswith(("wmt14", "iwslt")) else 0)
    for download in manifest["downloads"]:
        assert download["checksum is"] == ("recorded" if name == "iwslt14_de_en" else "given")
        assert hashlib.sha256((out / "downloads" / download["name"]).read_bytes()).hexdigest() == download["sha256"]
    for language in dataset.languages:
        for split in ("valid", "test"):
            raw = texts(folder / f"raw/{split}.{language}")
            words = binarised(folder, split, dataset.languages, language)
            assert len(raw) == len(words) == counts[split]
            known = [pair for pair in zip(raw, words, strict=True) if "<unk>" not in pair[1]]
            assert len(known) > 0.7 * len(raw)
            for line, decoded in known:
                assert detokenized(decoded, language, dataset) == comparable(line, language, dataset)

    if name != "embedded":
        # Both sides are of one pair of the stand-in.
        pairs = [*stand_in.sentences, (" A title ", " A title ")]
        sides = [
            [comparable(line, language, dataset) for line in stand_in.text(pairs, language)]
            for language in dataset.languages
        ]
        known_pairs = set(zip(*sides, strict=True))
        made = [
            [detokenized(line, language, dataset) for line in binarised(folder, "train", dataset.languages, language)]
            for language in dataset.languages
        ]
        assert len(made[0]) == counts["train"]
        for pair in zip(*made, strict=True):
            assert "<unk>" in "".join(pair) or pair in known_pairs


def whole(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@ONE_PROCESS
def test_a_killed_run_continues_to_the_same_bytes(stand_in: StandIn, wmt14: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "downloads").mkdir(parents=True)
    archive = "training-parallel-europarl-v7.tgz"
    begun = (stand_in.mirror / STATMT / "wmt13" / archive).read_bytes()[:700]
    (out / "downloads" / f"{archive}.part").write_bytes(begun)
    words = stand_in.words("wmt14_en_de", out, *DATASETS["wmt14_en_de"].options)
    command = [sys.executable, "-m", "amlp_fairseq", "prepare", *words]
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        run = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "SACREBLEU": str(stand_in.sacrebleu), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        while not (out / "text/raw/train-2.en").exists():
            assert run.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
            time.sleep(0.005)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    assert not (out / "data-bin").exists()
    (out / "text/words/train-1.en.part").write_text("half a li", encoding="utf-8")
    (out / "data-bin.unfinished").mkdir()
    (out / "data-bin.unfinished/dict.en.txt").write_text("not a dictionary", encoding="utf-8")
    printed = stand_in.prepare("wmt14_en_de", out, *DATASETS["wmt14_en_de"].options)
    assert "122 pairs collected, 4508785 are published" in printed
    assert whole(out / "data-bin") == whole(wmt14 / "data-bin")
    assert (out / "manifest.json").read_bytes() == (wmt14 / "manifest.json").read_bytes()


@ONE_PROCESS
def test_other_options_in_the_same_folder_are_refused(stand_in: StandIn, wmt14: Path) -> None:
    printed = stand_in.prepare("wmt14_en_de", wmt14, "--vocab-size", "99", check=False)
    assert "was begun with size 100, not 99" in printed


def test_corrupt_downloads_are_refused(stand_in: StandIn, tmp_path: Path) -> None:
    archive = "training-parallel-europarl-v7.tgz"
    printed = stand_in.prepare("wmt14_en_de", tmp_path / "published", sums=False, check=False)
    assert f"downloads/{archive} has the SHA-256" in printed
    assert "the published one is 0224c7c710c8" in printed
    assert "remove it and run again" in printed

    recorded = tmp_path / "recorded"
    (recorded / "downloads").mkdir(parents=True)
    (recorded / "downloads/de-en.tgz").write_bytes(b"half a download")
    (recorded / "downloads/SHA256SUMS").write_text(f"{'0' * 64}  de-en.tgz\n", encoding="utf-8")
    printed = stand_in.prepare("iwslt14_de_en", recorded, sums=False, check=False)
    assert "downloads/de-en.tgz has the SHA-256" in printed
    assert "the recorded one is 000000000000" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("wmt14_en_de", "the following arguments are required: OUT"),
        ("--train a.en a.de text out", "CORPUS, OUT; they come before --train, which takes all words behind it"),
        ("wmt14_en_de a b", "'b' is one argument too many"),
        ("wmt14_en_de a --bpe-size 9", "--bpe-size is unknown"),
        ("wmt14_en_ed a", "CORPUS: 'wmt14_en_ed' is unknown; did you mean 'wmt14_en_de'?"),
        (
            "wmt14_en_de a --variant news-commentary-10",
            "--variant: 'news-commentary-10' is unknown; did you mean 'news-",
        ),
        ("wmt14_en_fr a --variant b", "--variant: 'b' is unknown"),
        ("wmt14_en_de a --mirror", "--mirror: expected one argument"),
        ("wmt14_en_de a --vocab-size x", "'x': a number from 1 is needed"),
        ("wmt14_en_fr a --workers 0", "'0': a number from 1 is needed"),
        ("wmt17_zh_en a --checksums none", "--checksums none does not exist"),
        ("wmt16_ro_en a --mirror file:///none", "file:///none/data.statmt.org/wmt16/translation-task/training-paral"),
        ("wmt14_en_de a --mirror file:///none --data .", "--data .: the files of wmt14_en_de are downloaded"),
        ("iwslt14_de_en a --test-set wmt14", "--test-set wmt14: that of iwslt14_de_en is in its files"),
        ("iwslt14_de_en a --valid-set wmt13", "--valid-set wmt13: that of iwslt14_de_en is in its files"),
        ("multi30k a --valid-set wmt13", "--valid-set wmt13: that of multi30k is in its files"),
        ("wmt16_ro_en a --test-set wmt16x", "evaluation set 'wmt16x': choose one of"),
        ("wmt14_en_fr a --valid-set wmt16", "evaluation set 'wmt16' has no en-fr; it has "),
        ("wmt14_en_fr a --valid-set wmt13 --reverse --mirror file:///none", "file:///none/"),
        ("multi30k a --data none", "--data none: there is no such folder"),
        ("multi30k a --data .", "0 of its files match 'train.en'"),
        ("multi30k a --train b.en b.de", "--train is not for multi30k"),
        ("embedded a --mirror file:///none", "--mirror file:///none: nothing is downloaded for embedded"),
        ("embedded a --vocab-size 9", "--vocab-size 9: the words of embedded are not segmented"),
        ("wat17_en_ja a", "wat17_en_ja: give --data DIR with train.en, train.ja, valid.en, valid.ja, test.en"),
        ("wat17_en_ja a --data .", "0 of its files match 'train.en'"),
    ],
)
def test_bad_arguments_are_named(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["amlp-fairseq prepare", *words.split()])
    with pytest.raises((SystemExit, ValueError)) as error:
        prepare.main()
    assert message in capsys.readouterr().err + str(error.value)
    assert str(error.value) != "0"
    assert not list(tmp_path.rglob("data-bin"))


@pytest.mark.parametrize("name", ["valid", "test"])
def test_other_evaluation_sets(name: str, stand_in: StandIn, tmp_path: Path) -> None:
    """Of sacreBLEU; an unknown one is named."""
    out = tmp_path / "out"
    printed = stand_in.prepare("wmt14_en_de", out, *UNITS, f"--{name}-set", "wmt99", check=False)
    assert "evaluation set 'wmt99': choose one of" in printed
    assert not (out / f"text/raw/{name}.en").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train", "text/raw/train-1.en: nothing is left of the training text"),
        ("val", "text/pieces/valid.en: nothing is left of valid after the filter"),
    ],
)
def test_a_corpus_with_an_empty_part_is_refused(name: str, message: str, stand_in: StandIn, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for each in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            content = (stand_in.mirror / MULTI30K / f"{each}.{language}.gz").read_bytes()
            (raw / f"{each}.{language}").write_bytes(b"" if each == name else gzip.decompress(content))
    words = ["multi30k", tmp_path / "out", "--data", raw, *PIECES, "--workers", "1"]
    printed = commands.run("amlp_fairseq.cli.main", "prepare", *words, check=False)
    assert message in printed
    (raw / "val.de").write_bytes(b"good\nna\xefve\n")
    printed = commands.run("amlp_fairseq.cli.main", "prepare", *words, check=False)
    assert "val.de, line 2: this is not UTF-8" in printed


def test_multi30k_from_a_folder_is_what_the_mirror_has(stand_in: StandIn, tmp_path: Path) -> None:
    """Its pieces are those of sentencepiece on the training text of both languages."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            content = (stand_in.mirror / MULTI30K / f"{name}.{language}.gz").read_bytes()
            path, content = (raw / f"{name}.{language}.gz", content) if language == "en" else (
                raw / f"{name}.{language}", gzip.decompress(content)
            )  # fmt: skip
            path.write_bytes(content)
    stand_in.prepare("multi30k", tmp_path / "mirror", *PIECES)
    words = ["multi30k", tmp_path / "folder", "--data", raw, "--workers", "1", *PIECES]
    commands.run("amlp_fairseq.corpora.prepare", *words)
    assert not (tmp_path / "folder/downloads").exists()
    made, other = whole(tmp_path / "folder/data-bin"), whole(tmp_path / "mirror/data-bin")
    names = ("sentencepiece.bpe.model",)  # it names the files that it was learnt from
    assert made.keys() == other.keys() > {*names}
    assert {**made, **dict.fromkeys(names, b"")} == {**other, **dict.fromkeys(names, b"")}

    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "folder/data-bin/sentencepiece.bpe.model"))
    assert model.get_piece_size() == 300
    english, german = (tmp_path / f"own.{language}" for language in ("en", "de"))
    for path in (english, german):
        source = stand_in.mirror / MULTI30K / f"train{path.suffix}.gz"
        path.write_bytes(gzip.decompress(source.read_bytes()))
    sentencepiece.set_random_generator_seed(1)
    sentencepiece.SentencePieceTrainer.train(
        input=[str(english), str(german)], model_prefix=str(tmp_path / "own"), vocab_size=300, model_type="bpe",
        character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    own = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    for split, name in {"train": "train", "valid": "val", "test": "test_2016_flickr"}.items():
        for language in ("en", "de"):
            content = gzip.decompress((stand_in.mirror / MULTI30K / f"{name}.{language}.gz").read_bytes())
            expected = [" ".join(own.encode(line, out_type=str)) for line in content.decode().split("\n")[:-1]]
            assert texts(tmp_path / f"folder/text/pieces/{split}.{language}") == expected
