"""Make the data folder of a corpus: download, check, tokenise, segment and binarise it.

    amlp-fairseq prepare CORPUS OUT [--vocab-size N] [--variant NAME] [--reverse] …
    amlp-fairseq prepare text OUT --train a.en a.de --valid b.en b.de --test c.en c.de [--vocab-size N]

CORPUS is one of configs/data; ``text`` means text of your own, one sentence per line, in two files for each part,
whose suffixes are the languages; for a language model in one file for each. The result is OUT/data-bin: what
fairseq-train reads, the raw evaluation sets, the subword model and text.json, which says how the text was tokenised and
segmented. OUT/manifest.json says what was done. A run that was stopped can be started again: complete files are not
made again, and text of your own that has been read must still be the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Collection, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from amlp_fairseq.common import parallel_text
from amlp_fairseq.common.arguments import command_parser, folder, positive, refuse_unknown, say_next
from amlp_fairseq.common.files import IN_USE, locked, resume, sha256, whole, writing
from amlp_fairseq.common.lines import lines
from amlp_fairseq.common.subprocesses import failed
from amlp_fairseq.corpora import embedded_corpus, embedded_summaries
from amlp_fairseq.corpora.archives import both_sides, evaluation_sets, find
from amlp_fairseq.corpora.download import Download, download, read_checksums
from amlp_fairseq.corpora.text import Settings, Texts
from amlp_fairseq.training.config import SPLITS, names, prepare_settings, quoted
from amlp_fairseq.training.data_folder import usual_scale

OWN = "text"
#: Corpora that programs write: ``generate`` of a configuration.
GENERATORS = {
    "sentences": lambda folder: embedded_corpus.write(folder, embedded_corpus.generate()),
    "summaries": lambda folder: embedded_corpus.write(folder, embedded_summaries.generate(), ("article", "summary")),
}


def named_languages(files: Sequence[Path]) -> list[str]:
    """The suffixes of files, apart from ``.gz``; ``""`` if there is none."""
    return [Path(file.name.removesuffix(".gz")).suffix[1:] for file in files]


def check_text(files: Sequence[Path]) -> None:
    """Read files of the user's, which may be compressed.

    Raises:
        ValueError: naming file and line of what is not UTF-8, and a file that begins with a byte-order mark.
    """
    for file in files:
        try:
            with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as text:
                parallel_text.check_lines(file, text)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{file}: {error}") from None


def own_settings(args: argparse.Namespace) -> Settings:
    """The settings for files that the user names.

    Raises:
        ValueError: naming what is missing or does not fit, and what cannot be read.
    """
    sides = len(args.train or ())
    for role in ("train", *SPLITS):
        files = getattr(args, role)
        if not files:
            raise ValueError(f"{OWN}: --{role} SOURCE TARGET is needed, or one file for a language model")
        if len(files) not in (1, 2) or len(files) != sides:
            given = f"--{role} {' '.join(map(str, files))}"
            raise ValueError(f"{given}: two files are needed in each part, or one in each for a language model")
        for file in files:
            if not file.is_file():
                raise ValueError(f"--{role} {file}: there is no such file")
    languages = args.languages or named_languages(args.train)
    if len(languages) != sides:
        raise ValueError(f"--languages {' '.join(languages)}: {sides} needed, one for each file of --train")
    texts: dict[str, Any] = {}
    for role in ("train", *SPLITS):
        files = getattr(args, role)
        given = f"--{role} {' '.join(map(str, files))}"
        named = languages if args.languages else named_languages(files)
        if len(set(named) - {""}) != sides:
            count = "two languages" if sides == 2 else "a language"
            raise ValueError(f"{given}: the suffixes do not name {count}; give --languages")
        if named != languages:
            raise ValueError(f"{given}: not the languages of --train, {' and '.join(languages)}")
        first, second = [*(str(file.absolute()) for file in files), ""][:2]
        texts[role] = [(first, second)]
        check_text(files)
        rows = zip(*map(lines, files), strict=False)  # sides of unequal length are refused later, with their counts
        if not any(all(map(str.strip, row)) or role != "train" for row in rows):
            raise ValueError(f"{given}: at least one {'pair of sentences' if sides == 2 else 'sentence'} is needed")
    return Settings(
        name=args.out.resolve().name,
        languages=tuple(languages),
        valid_set=args.valid[0].name.removesuffix(".gz").rsplit(".", 1)[0],
        test_set=args.test[0].name.removesuffix(".gz").rsplit(".", 1)[0],
        segmentation="sentencepiece",
        size=args.vocab_size or 8000,
        filter_by="none",
        **texts,
    )


def refuse_options(args: argparse.Namespace, given: dict[str, Any]) -> None:
    """Raise ValueError for options that a corpus does not have, before anything is downloaded."""
    archives, files = given.get("archives") or {}, given.get("files", {})
    if not archives and "base-url" not in given:
        for name in ("mirror", "checksums"):
            if value := getattr(args, name):
                raise ValueError(f"--{name} {value}: nothing is downloaded for {args.corpus}")
    sides = [name for part in files.values() for name in both_sides(part["name"], given["languages"])]
    if args.data is not None and files:
        for found in find(args.data, sides, args.out):
            check_text(found)
    elif "by-hand" in given:
        raise ValueError(f"{args.corpus}: give --data DIR with {', '.join(sides)}; {given['by-hand']}")
    if args.data is not None and not files:
        raise ValueError(f"--data {args.data}: the files of {args.corpus} are downloaded")
    in_files = {role for part in archives.values() for role in part} | set(files)
    in_files |= {"valid"} if given.get("hold-out") else set()
    for role in SPLITS:
        if (value := getattr(args, f"{role}_set")) and role in in_files:
            raise ValueError(f"--{role}-set {value}: that of {args.corpus} is in its files")
        elif value:
            evaluation_sets(value, "-".join(given["languages"][:: -1 if reversed_sides(args, given) else 1]))
    if args.reverse and len(given["languages"]) == 1:
        raise ValueError(f"--reverse: the text of {args.corpus} is of one language")
    if args.vocab_size is not None and given["segmentation"] == "none":
        raise ValueError(f"--vocab-size {args.vocab_size}: the words of {args.corpus} are not segmented")


def reversed_sides(args: argparse.Namespace, given: dict[str, Any]) -> bool:
    """True if the second language of a corpus is the source."""
    return bool(given.get("reverse")) != args.reverse


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    """The configuration of a corpus.

    Raises:
        ValueError: for unknown names, and options that do not fit.
    """
    refuse_unknown([args.corpus], [OWN, *names("data")], "CORPUS")
    given = prepare_settings(args.corpus, args.variant)
    refuse_options(args, given)
    return given


def corpus_settings(args: argparse.Namespace, given: dict[str, Any], downloads: list[Download]) -> Settings:
    """Download the files of a corpus of configs/data; returns its settings.

    Args:
        args: of the command line.
        given: what ``configuration`` returns.
        downloads: what is downloaded is added to it.

    Raises:
        ValueError: for downloads that fail.
    """
    archives, files, base = given.pop("archives", None) or {}, given.pop("files", {}), given.pop("base-url", None)
    lists = given.pop("lists", None) or {}
    given.pop("by-hand", None)
    folder = args.out / "downloads"
    sums = read_checksums(args.checksums) if args.checksums else None
    texts: dict[str, Any] = {role: [] for role in ("train", *SPLITS)}
    for name, checksum in lists.items():
        downloads.append(download(f"{base}/{name}", folder, checksum, args.mirror, sums))
    for archive in archives.values():
        found = download(archive["url"], folder, archive.get("sha256"), args.mirror, sums)
        downloads.append(found)
        for role, patterns in archive.items():
            if role in texts:
                in_folder = (str(folder / pattern) if pattern in lists else pattern for pattern in patterns)
                texts[role] += [(str(found.path), pattern) for pattern in in_folder]
    generator = given.pop("generate", None)
    if generator and args.data is None:
        folder = args.out / "generated"
        if not folder.exists():
            with whole(folder) as (part,):
                GENERATORS[generator](part)
    for role, part in files.items():
        for name, checksum in part.get("sha256", {}).items() if args.data is None else ():
            downloads.append(download(f"{base}/{name}", folder, checksum, args.mirror, sums))
        texts[role].append((str(args.data or folder), part["name"]))
    options = {name.replace("-", "_"): value for name, value in given.items()}
    options["languages"] = tuple(given["languages"])
    for name in ("valid_set", "test_set"):
        options[name] = getattr(args, name) or options[name]
    options["size"] = args.vocab_size or options.get("size", 0)
    options["reverse"] = reversed_sides(args, given)
    return Settings(name=args.corpus, **options, **texts)


def same_settings(path: Path, settings: dict[str, Any], unused: Collection[str] = ()) -> None:
    """Write the settings of a run, or check that they are those of the run that began in this folder.

    Args:
        path: the file.
        settings: of this run.
        unused: names of those from which nothing has been made yet: they may change.

    Raises:
        ValueError: naming what differs.
    """
    for name, (before, now) in resume(path, settings, unused, older=True).items():
        if name.endswith("_sha256"):
            files = [file for file, checksum in now if [file, checksum] not in before]
            raise ValueError(
                f"{path.parent} was begun with other text in {' and '.join(files)} ({name.removesuffix('_sha256')}): "
                f"delete {path.parent} or choose another folder"
            )
        raise ValueError(
            f"{path.parent} was begun with {name} {before!r}, not {now!r}: give the same option or choose "
            "another folder"
        )


def files_of_user(args: argparse.Namespace, settings: Settings) -> dict[str, list[Path]]:
    """The files that the user names, or those of ``--data``, for each part."""
    if args.corpus == OWN:
        return {role: getattr(args, role) for role in ("train", *SPLITS)}
    return {
        role: [file for found in find(args.data, both_sides(pattern, settings.languages), args.out) for file in found]
        for role in ("train", *SPLITS)
        for archive, pattern in getattr(settings, role)
        if archive == str(args.data)
    }


def checksums(files: dict[str, list[Path]]) -> dict[str, Any]:
    """Settings that say what is in files: names and SHA-256, for each part."""
    return {f"{role}_sha256": [(file.name, sha256(file)) for file in each] for role, each in files.items()}


def unused_settings(texts: Texts) -> list[str]:
    """Names of settings from which nothing has been made yet."""
    if (texts.folder.parent / "data-bin").exists():
        return []
    parts = {"train_sha256": texts.parts}
    parts |= {f"{name}_{kind}": [name] for name in SPLITS for kind in ("sha256", "set")}
    files = {name: [file for part in each for file in texts.pair("raw", part)] for name, each in parts.items()}
    files["size"] = [texts.model] if texts.model else []
    return [name for name, made in files.items() if not all(file.exists() for file in made)]


def refuse_empty(texts: Texts) -> None:
    """Raise ValueError for a part of which the filter has left nothing."""
    for name, count in texts.manifest()["binarised"].items():
        if not count:
            path = texts.pair("pieces", name)[0]
            raise ValueError(f"{path}: nothing is left of {name} after the filter; give other text and another folder")


def binarise(texts: Texts, out: Path, workers: int, lock: IO[str]) -> Path:
    """Run fairseq-preprocess on the pieces, into a folder of its own; while it runs, it holds the lock, too."""
    folder, log = out / "data-bin.unfinished", out / "preprocess.log"
    shutil.rmtree(folder, ignore_errors=True)
    if len(texts.settings.languages) == 1:
        words, suffix = ["--only-source"], f".{texts.source}"
    else:
        words, suffix = ["--source-lang", texts.source, "--target-lang", texts.target, "--joined-dictionary"], ""
    words += ["--thresholdsrc", str(texts.settings.least_count)] if texts.settings.least_count > 1 else []
    words += ["--workers", str(workers), "--destdir", folder.name]
    for role in ("train", *SPLITS):
        words += [f"--{role}pref", f"text/pieces/{role}{suffix}"]  # relative to OUT: fairseq splits names at commas
    with log.open("wb") as file:
        print("+", quoted(["cd", str(out)]), "&&", quoted(["fairseq-preprocess", *words]), file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "fairseq_cli.preprocess", *words]
        done = subprocess.run(command, stdout=file, stderr=file, cwd=out, pass_fds=[lock.fileno()])
    if done.returncode:
        printed = log.read_text(encoding="utf-8", errors="replace")
        raise failed("fairseq-preprocess", done.returncode, printed, log)
    (folder / "preprocess.log").unlink(missing_ok=True)
    return folder


def binarised_sentences(index: Path) -> int:
    """The number of sentences in a .idx file of fairseq: magic (9 bytes), version (8), type (1), count (8)."""
    with index.open("rb") as file:
        (count,) = struct.unpack("<Q", file.read(26)[18:])
    return int(count)


def settings_to_store(settings: Settings) -> dict[str, Any]:
    """The settings with file names instead of paths."""
    stored = asdict(settings)
    for role in ("train", *SPLITS):
        stored[role] = [
            [Path(archive).name, Path(pattern).name if Path(pattern).is_absolute() else pattern]
            for archive, pattern in stored[role]
        ]
    return stored


def finish(
    texts: Texts, corpus: str, variant: str | None, out: Path, binary: Path, downloads: Sequence[Download]
) -> None:
    """Check and complete the folder of fairseq-preprocess, write the manifest and rename the folder to OUT/data-bin."""
    settings = texts.settings
    pairs, alone = texts.manifest(), len(settings.languages) == 1
    for name, count in pairs["binarised"].items():
        for language in settings.languages:
            index = f"{name}.idx" if alone else f"{name}.{texts.source}-{texts.target}.{language}.idx"
            if (found := binarised_sentences(binary / index)) != count:
                raise ValueError(f"{binary}: {found} sentences of {name}.{language}, there are {count} in the text")
    (binary / "raw").mkdir(exist_ok=True)
    for name in SPLITS:
        for path in texts.pair("raw", name):
            with writing(binary / "raw" / path.name) as (file,):
                file.writelines((line.lower() if settings.lowercase else line) + "\n" for line in lines(path))
    if texts.model is not None:
        shutil.copy(texts.model, binary)
    description = {
        "name": settings.name,
        "corpus": corpus,
        **({"variant": variant} if variant else {}),
        "languages": [texts.source] if alone else [texts.source, texts.target],
        "post_process": None if texts.model is None else settings.segmentation,
        "tokenizer": settings.tokenizer,
        "normalize": settings.normalize,
        "split_hyphens": settings.split_hyphens,
        "lowercase": settings.lowercase,
        "valid_set": settings.valid_set,
        "test_set": settings.test_set,
    }
    packages = ("sacrebleu", "sacremoses", "sentencepiece", "subword-nmt")
    manifest = {
        "settings": settings_to_store(settings) | json.loads((out / "settings.json").read_text(encoding="utf-8")),
        "downloads": [
            {"name": found.path.name, "url": found.url, "sha256": found.sha256, "checksum is": found.kind,
             "bytes": found.path.stat().st_size}
            for found in downloads
        ],
        "pairs": pairs,
        "versions": {name: version(name) for name in packages},
    }  # fmt: skip
    for path, content in ((binary / "text.json", description), (out / "manifest.json", manifest)):
        with writing(path) as (file,):
            json.dump(content, file, indent=1)
            file.write("\n")
    binary.replace(out / "data-bin")
    unit = "sentences" if alone else "pairs"
    print(f"{pairs['collected in all']} {unit}, {pairs['binarised']} after the filter; see {out}/manifest.json")
    if "published" in pairs and pairs["published"] != pairs["collected in all"]:
        message = f"prepare: {pairs['collected in all']} {unit} collected, {pairs['published']} are published"
        print(message, file=sys.stderr)


def main() -> None:
    parser = command_parser("prepare", __doc__)
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help=f"{OWN}, or one of {', '.join(names('data'))}")
    add("out", metavar="OUT", type=folder, help="the folder to write to")
    add("--vocab-size", type=positive, metavar="N", help="BPE merges or sentencepieces, both languages together")
    add("--workers", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)")
    own = parser.add_argument_group("text of your own")
    for role in ("train", *SPLITS):
        own.add_argument(f"--{role}", nargs="+", type=Path, metavar=("SOURCE", "TARGET"), help="one sentence per line")
    own.add_argument("--languages", nargs="+", metavar=("SOURCE", "TARGET"), help="default: the suffixes of the files")
    group = parser.add_argument_group("a corpus of configs/data")
    group.add_argument("--reverse", action="store_true", help="swap source and target")
    group.add_argument("--variant", metavar="NAME", help="a variant of its configuration, such as dynamicconv")
    for role in SPLITS:
        group.add_argument(f"--{role}-set", metavar="NAME", help="other test sets of sacreBLEU, joined by '+'")
    group.add_argument("--data", type=Path, metavar="DIR", help="take its files from here, download nothing")
    group.add_argument("--mirror", metavar="URL", help="http://host/path is fetched from URL/host/path")
    group.add_argument("--checksums", type=Path, metavar="FILE", help="from sha256sum, for a mirror with other files")
    args = parser.parse_args()
    of_corpora = ("reverse", "variant", "valid_set", "test_set", "data", "mirror", "checksums")
    for name in of_corpora if args.corpus == OWN else ("train", *SPLITS, "languages"):
        if getattr(args, name):
            parser.error(f"--{name.replace('_', '-')} is not for {args.corpus}")
    if args.data is not None and not args.data.is_dir():
        parser.error(f"--data {args.data}: there is no such folder")
    if args.checksums is not None and not args.checksums.exists():
        parser.error(f"--checksums {args.checksums} does not exist")
    given = own_settings(args) if args.corpus == OWN else configuration(args)
    args.out.mkdir(parents=True, exist_ok=True)
    with locked(args.out / "lock", f"{IN_USE} {args.out}") as lock:
        downloads: list[Download] = []
        settings = given if isinstance(given, Settings) else corpus_settings(args, given, downloads)
        texts = Texts(args.out, settings, args.workers)
        stored = settings_to_store(settings) | checksums(files_of_user(args, settings))
        same_settings(args.out / "settings.json", stored, unused_settings(texts))
        texts.run()
        if not (args.out / "data-bin").exists():
            refuse_empty(texts)
            corpus = "" if args.corpus == OWN else args.corpus
            finish(texts, corpus, args.variant, args.out, binarise(texts, args.out, args.workers, lock), downloads)
    row = "transformer" if len(settings.languages) > 1 else "lm_dynamicconv"
    scale = usual_scale("" if args.corpus == OWN else args.corpus)
    say_next("train", args.out, "--row", row, "--scale", scale, "--save-dir", row)


if __name__ == "__main__":
    main()
