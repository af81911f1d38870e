"""benchmarks/efficiency.py: whole processes get raw lines and give translations; what they take is what is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import commands
import pytest
from sacrebleu.metrics import BLEU

from amlp_fairseq import Translator
from benchmarks import efficiency as SCRIPT
from benchmarks import line_process, line_systems
from benchmarks.efficiency_tables import fastest, tables
from benchmarks.line_systems import LineSystem, Setting

MODELS = commands.ROOT / "examples/models"
LINES = ["today our friend has drunk milk .", "i want to invite the woman .", "", "a third\u2028line"]

#: Writes capital letters. It notes where it runs and which lines it was given before it had answered, takes some time
#: and memory to load, and stops early if it is told to.
UPPER = r"""
import json, os, select, sys, time
note, load, mib, stop = sys.argv[1:]
time.sleep(float(load))
memory = bytearray(int(mib) << 20)
waiting = []
for number, line in enumerate(iter(sys.stdin.buffer.readline, b"")):
    if number == int(stop):
        sys.exit("no more lines, please")
    waiting.append(bool(select.select([0], [], [], 0.02)[0]))
    sys.stdout.buffer.write(b"log line\nT " + line.upper())
    sys.stdout.buffer.flush()
with open(note, "a") as file:
    facts = {"cpus": sorted(os.sched_getaffinity(0)), "threads": os.environ["OMP_NUM_THREADS"], "waiting": waiting}
    print(json.dumps(facts | {"arguments": sys.argv[1:]}), file=file)
"""


class Upper(LineSystem):
    """A program that needs no model."""

    LOAD, MIB, STOP = 0.2, 0, -1

    def command(self, setting: Setting) -> list[str]:
        numbers = map(str, (self.LOAD, self.MIB, self.STOP))
        return [sys.executable, "-S", "-c", UPPER, str(self.folder.parent / f"{type(self).__name__}.jsonl"), *numbers]

    def translation(self, line: str) -> str | None:
        return line.removeprefix("T ") if line.startswith("T ") else None


class Large(Upper):
    MIB = 300

    def lacks(self) -> str | None:
        return "it knows no ibdecoder" if self.folder.name == "ibdecoder" else None


class Broken(Upper):
    STOP = 2


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the benchmark on LINES: its result. Its status must be 1 if that has failures, and only then."""
    monkeypatch.setattr(SCRIPT, "SYSTEMS", {"upper": Upper, "large": Large, "broken": Broken})
    for name in ("ar", "ibdecoder"):
        (tmp_path / name).symlink_to(MODELS / name)
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    (tmp_path / "reference").write_text("".join(f"{line.upper()}\n" for line in LINES), encoding="utf-8")

    def run(*words: object) -> dict[str, Any]:
        files = ["--source", tmp_path / "source", "--out", tmp_path / "numbers.json"]
        little = ["--precisions", "float32", "--beams", 4, "--latency-cores", 1, "--batch-tokens", 100]
        status = 0
        try:
            commands.call(SCRIPT, monkeypatch, *files, *little, "--model", f"ar={tmp_path / 'ar'}", *words)
        except SystemExit as end:
            if end.code != 1:
                raise
            status = 1
        result = dict(json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8")))
        assert status == bool(result["failed"])
        return result

    return run


def drawn(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of a result's rows that are in its picture."""
    latency = [row for row in rows if row["mode"] == "latency"]
    return latency + [row for row in fastest(rows) if "ms_per_line_less_one_line" in row]


def test_numbers_tables_and_plot(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, table = tmp_path / "plot.svg", tmp_path / "table.md"
    models = ["--model", *(f"{name}={tmp_path / name}" for name in ("ar", "ibdecoder"))]
    files = ["--reference", tmp_path / "reference", "--plot", plot, "--markdown", table]
    result = program("--systems", "upper", "large", "--repeats", 2, *models, *files)
    assert (result["complete"], result["lines"], result["failed"]) == (True, 4, [])
    assert result["skipped"] == [{"system": "large", "model": "ibdecoder", "reason": "it knows no ibdecoder"}]
    rows = {(row["mode"], row["system"], row["model"]): row for row in result["rows"]}
    assert len(rows) == 2 * 3
    for (mode, system, _), row in rows.items():
        assert (row["bleu"], row["chrf"]) == (pytest.approx(100), pytest.approx(100))
        assert len(row["seconds"]) == len(row["one_line_seconds"]) == 2
        assert min(row["seconds"] + row["one_line_seconds"]) > Upper.LOAD  # loading is a part of both
        assert row["ms_per_line"] * row["lines_per_second"] == pytest.approx(1000)
        assert row["ms_per_line"] > 1000 * Upper.LOAD / 4
        rest = (sum(row["seconds"]) - sum(row["one_line_seconds"])) / 2  # a median of two is their mean
        assert row.get("ms_per_line_less_one_line") == (pytest.approx(1000 * rest / 3) if rest > 0 else None)
        assert (row["peak_mib"] > 300) == (system == "large")  # this process, which starts it, is larger than that
        assert ("first_ms" in row) == (mode == "latency")
        if mode == "latency":
            assert row["first_ms"] > 1000 * Upper.LOAD  # it waits for the program, and does not count
            assert row["first_ms"] > row["ms_percentiles"][-1] > row["ms_percentiles"][2] >= 20
            assert row["ms_percentiles"] == sorted(row["ms_percentiles"])
        files = [path.stat().st_size for path in (MODELS / row["model"]).iterdir()]
        assert row["size_mib"] == pytest.approx(sum(files) / 2**20)

    written = table.read_text(encoding="utf-8")
    assert written.strip() in capsys.readouterr().out
    assert "skipped: large ibdecoder: it knows no ibdecoder" in written
    assert written.count("| upper | ibdecoder | float32 | beam 4 |") == 2
    texts = [element.text for element in ElementTree.parse(plot).iter() if element.text]
    settings = [text.split(":")[0] for text in texts if "BLEU," in text]
    assert sorted(settings) == sorted(f"{row['system']} {row['model']} float32 beam 4" for row in drawn(result["rows"]))
    assert {"upper", "large", "ar"} <= set(texts)
    assert any("empty: float32; a line: one model in all its settings" in text for text in texts)

    seen = [json.loads(line) for line in (tmp_path / "Upper.jsonl").read_text(encoding="utf-8").splitlines()]
    cpus = sorted(os.sched_getaffinity(0))
    alone = [facts for facts in seen if facts["waiting"] == [False] * 4]
    assert len(alone) == 2 * 2
    assert all((facts["cpus"], facts["threads"]) == (cpus[:1], "1") for facts in alone)
    together = [facts for facts in seen if facts["waiting"] == [True] * 4]  # a file can always be read
    assert len(together) == 2 * 2
    assert all((facts["cpus"], facts["threads"]) == (cpus, str(len(cpus))) for facts in together)


def test_throughput_has_copies_of_the_lines(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = ["--reference", tmp_path / "reference"]
    slow, fast = program("--systems", "upper", "--repeats", 1, "--copies", 3, *reference)["rows"]
    assert slow["seconds"][0] * slow["lines_per_second"] == pytest.approx(4)
    assert fast["seconds"][0] * fast["lines_per_second"] == pytest.approx(12)
    rest = fast["seconds"][0] - fast["one_line_seconds"][0]
    assert rest <= 0 or fast["lines_per_second_less_one_line"] == pytest.approx(11 / rest)
    assert fast["bleu"] == pytest.approx(100)  # of one copy
    seen = [json.loads(line) for line in (tmp_path / "Upper.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(len(facts["waiting"]) for facts in seen) == [1, 1, 4, 12]
    printed = capsys.readouterr().out
    assert "Latency, 4 lines, one at a time:" in printed
    assert "Throughput, 12 lines at once:" in printed


class Shorter(Upper):
    """Of a model of another seed, it forgets the last letter."""

    def translation(self, line: str) -> str | None:
        text = super().translation(line)
        return text[:-1] if text and self.folder.name == "other" else text

    def workers(self, cores: int) -> tuple[int, ...]:
        return 1, 2


def test_models_of_other_seeds(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SCRIPT, "SYSTEMS", {"shorter": Shorter, "upper": Upper, "broken": Broken})
    (tmp_path / "other").symlink_to(MODELS / "ar")
    seeds = ["--seed", f"ar={tmp_path / 'other'}", f"ar={tmp_path / 'ar'}", "--reference", tmp_path / "reference"]
    rows = program("--systems", "shorter", "upper", "--repeats", 1, *seeds, "--plot", tmp_path / "plot.svg")["rows"]
    expected = BLEU().corpus_score([line.upper()[:-1] for line in LINES], [[line.upper() for line in LINES]]).score
    assert expected < 99
    right = {"shorter": [100, expected, 100], "upper": [100]}
    assert [row["bleu_of_seeds"] for row in rows] == [pytest.approx(right[row["system"]]) for row in rows]
    assert capsys.readouterr().out.count(f"100.00 ({expected:.2f}-100.00, 3 seeds)") == 2
    bars = [element for element in ElementTree.parse(tmp_path / "plot.svg").iter() if element.get("class") == "spread"]
    assert len(bars) == len(drawn([row for row in rows if row["system"] == "shorter"]))
    assert all(float(bar.attrib["y1"]) > float(bar.attrib["y2"]) for bar in bars)

    failed = program("--systems", "broken", "upper", "--repeats", 1, *seeds)["failed"]
    assert [failure["job"].startswith("seed ") for failure in failed] == [True, True, False, False]

    (row,) = program("--systems", "shorter", "--repeats", 1, *seeds, "--batch-tokens")["rows"]  # without throughput
    assert row["bleu_of_seeds"] == pytest.approx(right["shorter"])


def test_a_program_that_fails_is_named_and_the_others_are_kept(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = program("--systems", "broken", "upper", "--repeats", 1)
    assert [(row["system"], row["mode"]) for row in result["rows"]] == [("upper", "latency"), ("upper", "throughput")]
    reasons = [row["reason"] for row in result["failed"]]
    assert reasons == ["status 1: no more lines, please"] * 2
    assert "failed: latency broken ar float32 beam 4" in capsys.readouterr().out


def test_all_programs_fail(program: Any, tmp_path: Path) -> None:
    files = ["--reference", tmp_path / "reference", "--plot", tmp_path / "plot.svg"]
    assert program("--systems", "broken", "--repeats", 2, *files)["rows"] == []


def running(group: int) -> list[str]:
    """The processes of a group, without those that have ended and nobody has waited for."""
    found = subprocess.run(["ps", "-eo", "pgid=,state="], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line.split()[0] == str(group) and line.split()[1] != "Z"]


def test_rounds_are_kept_and_no_process_stays_when_it_is_interrupted(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, children = line_process.answers, []

    def interrupted(job: Any, child: Any, lines: list[str]) -> Any:
        children.append(child)
        for answer in right(job, child, lines):
            yield answer
            if len(children) == 4:  # one line and all lines in each round
                raise KeyboardInterrupt

    monkeypatch.setattr(line_process, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program("--systems", "upper", "--repeats", 3, "--batch-tokens", 100)
    result = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert result["complete"] is False
    assert [len(row["seconds"]) for row in result["rows"]] == [1, 1]
    for _ in range(100):  # SIGKILL takes a moment
        time.sleep(0.1 * bool(running(children[-1].pid)))
    assert running(children[-1].pid) == []


def test_the_fastest_batch_of_each_configuration() -> None:
    def row(batch: int, speed: float, precision: str = "int8", mode: str = "throughput") -> dict[str, Any]:
        facts = {"system": "s", "model": "m", "precision": precision, "decoding": "beam 4", "mode": mode}
        return {**facts, "batch_tokens": batch, "lines_per_second": speed}

    rows = [row(1, 5.0), row(2, 9.0), row(3, 7.0), row(1, 4.0, "float32"), row(0, 99.0, mode="latency")]
    assert [row["batch_tokens"] for row in fastest(rows)] == [2, 1]


def test_the_committed_tables() -> None:
    """They are what the program writes of the committed numbers."""
    paths = list((commands.ROOT / "docs/results").glob("efficiency_*.json"))
    assert len(paths) >= 4
    for path in paths:
        numbers = json.loads(path.read_text(encoding="utf-8"))
        assert tables(numbers) + "\n" == path.with_suffix(".md").read_text(encoding="utf-8")


def test_all_systems_translate_alike(tmp_path: Path) -> None:
    """CTranslate2 and ours in PyTorch in a whole process, ours and fairseq's in forked ones, against the Python
    interface."""
    lines = ["Today our friend has drunk milk.", "This week a child has helped this girl."]
    expected, text = Translator(MODELS / "ar", beam=4).translate(lines), "".join(f"{line}\n" for line in lines)
    found = {}
    for name, system in line_systems.SYSTEMS.items():
        place = tmp_path / name
        place.mkdir()
        program = system(MODELS / "ar", place)
        assert program.lacks() is None
        if name == "ctranslate2":
            words = ["export", "--model", MODELS / "ar", "--out", place / "float32"]
            commands.run("amlp_fairseq.cli.main", *words)
        for setting in (Setting("float32", 4, 1), Setting("float32", 4, 2, batch=500, workers=program.workers(2)[-1])):
            job = SCRIPT.Job(name, "ar", program, setting)
            if name in ("ctranslate2", "amlp-fairseq-pytorch"):
                found[name, setting.batch] = SCRIPT.run(job, lines, place)[1]
            else:
                _, flag, module, *words = program.command(setting)
                assert flag == "-m"
                module = {"amlp_fairseq": "amlp_fairseq.cli.main"}.get(module, module)
                printed = commands.run(module, *words, text=text).splitlines()
                translations = [program.translation(line) for line in printed]
                found[name, setting.batch] = [text for text in translations if text in expected]
    assert found == dict.fromkeys(((name, batch) for name in line_systems.SYSTEMS for batch in (None, 500)), expected)


def test_what_a_transformer_only_system_lacks(tmp_path: Path) -> None:
    for name in ("ibdecoder", "cmlmc"):
        for system in (line_systems.CTranslate2, line_systems.Fairseq):
            assert system(MODELS / name, tmp_path).lacks() == "it has autoregressive Transformers only"
    for name in ("ar", "cmlmc"):
        program = line_systems.Plugin(MODELS / name, tmp_path)
        assert program.lacks() is None
        options = {"ar": ["--beam", "4"], "cmlmc": ["--iter-decode-max-iter", "3"]}[name]
        assert " ".join(options) in " ".join(program.command(Setting("int8", 4, 1)))


@pytest.mark.parametrize(
    ("name", "option", "numbers"),
    [("ar", "--draft-path", [1]), ("ibdecoder", "--rescore-path", [8, 4]), ("cmlmc", "--rescore-path", [10])],
)
def test_what_a_second_model_does(name: str, option: str, numbers: list[int], tmp_path: Path) -> None:
    """It drafts for an autoregressive one, and reranks the hypotheses of any other."""
    program = line_systems.Plugin(MODELS / name, tmp_path, MODELS / "ar")
    assert program.numbers([8, 4, 1], [10]) == numbers
    assert f"{option} {MODELS / 'ar'}" in " ".join(program.command(Setting("int8", numbers[0], 1)))
    assert program.size("int8") == line_systems.Plugin(MODELS / name, tmp_path).size("int8") + sum(
        file.stat().st_size for file in (MODELS / "ar").iterdir()
    )
    assert (
        line_systems.CTranslate2(MODELS / "ar", tmp_path, MODELS / "ar").lacks() == "it has no models that help others"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "none"], "--source none is not a file"),
        (["--model", "ar"], "'ar': give NAME=DIR"),
        (["--model", "ar=none"], "--model ar: none is not the folder of a model"),
        (["--reference", __file__], "lines, --source has 4"),
        (["--plot", "plot.svg"], "--plot needs --reference FILE"),
        (["--latency-cores", "9999"], "--latency-cores 9999: this process may use"),
        (["--seed", "other=ar"], "--seed other: there is no --model of this name"),
        (["--seed", "ar=none"], "--seed needs --reference FILE"),
        (["--seed", "ar=none", "--reference", __file__], "--seed ar: none is not the folder of a model"),
        (["--repeats", "0"], "'0': a number from 1 is needed"),
        (["--out", "none/numbers.json"], "--out none/numbers.json: there is no folder none"),
    ],
)
def test_wrong_options_are_named(
    words: list[str], message: str, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program(*words)
    assert message in capsys.readouterr().err.splitlines()[-1]
