"""Whatever a line is made of: as many outputs as lines, in their order."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import commands
import pytest
from small_systems import OF_EACH_KIND, SYSTEMS, WORDS, System

#: What a line may consist of, besides words.
PIECES = [
    *("\x00", "\x01", "\x07", "\x0b", "\x0c", "\x1b[31m", "\x1c", "\x1e", "\x7f", "\x85", "\xa0", "\u2028", "\u2029"),
    *(
        "\r",
        "\r\r",
        "\ufeff",
        "\u200b",
        "\u200f",
        "שלום",
        "مرحبا",
        "🙂",
        "e\u0301",
        "\U0010ffff",
        "<unk>",
        "</s>",
        "<pad>",
    ),
    *("...", "!?", "@@", "|||", "H-3\t0.1\tw1", "$(touch x)", "%s{}", "\\n", '"', "'"),
]
LIMITS = [
    flag for name in ("max-tokens", "max-source-positions", "max-target-positions") for flag in (f"--{name}", "12000")
]
BROKEN = [b"\xff", b"\xfe\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80"]


def line(rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(["", " ", "\t", "\x0c", "\u2028", "\r"]).encode()
    if kind == 1:
        return b" ".join(rng.choices([word.encode() for word in WORDS] + BROKEN, k=rng.randint(1, 9)))
    words = WORDS if kind in (2, 3) else ["never"] if kind == 4 else PIECES if kind == 5 else WORDS + PIECES
    return rng.choice([" ", "", "\t"]).join(rng.choices(words, k=rng.randint(1, 12))).encode()


def words_of(raw: bytes) -> int:
    """Words that fairseq prints of a line: those that look like its special symbols are taken for them."""
    words = raw.decode("utf-8", errors="replace").split()
    return sum(word not in ("</s>", "<pad>") for word in words)


@pytest.mark.parametrize("row", OF_EACH_KIND)
@pytest.mark.parametrize(
    ("count", "longest"), [(60, 500), pytest.param(10_000, 10_000, marks=pytest.mark.long)], ids=["bounded", "long"]
)
def test_interactive(row: str, count: int, longest: int, system: Callable[[str], System], tmp_path: Path) -> None:
    """One output for each line feed, in their order, by file and by standard input."""
    rng = random.Random(row)
    lines = [b"\xef\xbb\xbfw1 w2", *(line(rng) for _ in range(count - 2)), b" ".join([b"w3"] * longest)]
    rng.shuffle(lines)
    text = tmp_path / "text"
    text.write_bytes(b"\n".join(lines) + b"\n")
    text_options = ["--input", text, "--buffer-size", "500"]
    output = commands.run("fairseq_cli.interactive", *system(row).options, *text_options, *LIMITS)
    hypotheses, sources = commands.lines(output, "H"), commands.lines(output, "S")
    assert list(hypotheses) == list(range(count))
    assert [len(sources[i][0].split()) if i in sources else 0 for i in range(count)] == [words_of(raw) for raw in lines]
    assert "bytes that are not UTF-8" in output


@pytest.fixture(scope="module")
def binarised(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], tuple[list[str], Path]]:
    """Random lines, and their folder of fairseq-preprocess, which takes a carriage return for the end of a line and
    refuses what is not UTF-8: the lines have none of them."""

    @cache
    def made(count: int, longest: int) -> tuple[list[str], Path]:
        rng, folder = random.Random(count), tmp_path_factory.mktemp("binarised")
        lines = [line(rng).decode(errors="replace").replace("\r", " ") for _ in range(count - 2)]
        lines += ["", " ".join(["w3"] * longest)]
        rng.shuffle(lines)
        for language in ("en", "de"):
            (folder / f"test.{language}").write_text("".join(each + "\n" for each in lines), encoding="utf-8")
        dictionary = ["--joined-dictionary", "--srcdict", data / "dict.en.txt"]
        text = ["-s", "en", "-t", "de", "--testpref", folder / "test", "--destdir", folder / "data"]
        commands.run("amlp_fairseq.cli.main", "preprocess", *text, *dictionary)
        return lines, folder / "data"

    return made


@pytest.mark.parametrize(
    ("row", "count", "longest"),
    [
        *(pytest.param(row, 60, 500, id=f"{row}-bounded") for row in ("ibdecoder_sa", "lightconv", "cmlmc_amlp")),
        *(pytest.param(row, 10_000, 10_000, id=f"{row}-long", marks=pytest.mark.long) for row in SYSTEMS),
    ],
)
def test_generate(
    row: str,
    count: int,
    longest: int,
    system: Callable[[str], System],
    binarised: Callable[[int, int], tuple[list[str], Path]],
) -> None:
    """One output for each line that was binarised."""
    lines, folder = binarised(count, longest)
    _, *options = system(row).options
    output = commands.run("amlp_fairseq.cli.main", "generate", folder, *options, *LIMITS)
    assert sorted(commands.lines(output, "H")) == list(range(count))
    sources = commands.lines(output, "S")
    assert [len(sources[i][0].split()) for i in range(count)] == [words_of(each.encode()) for each in lines]
    assert f"Translated {count:,} sentences" in output
