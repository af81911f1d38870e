"""amlp-fairseq report: the numbers of the page are those of the files, read from its HTML; and a browser shows it."""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from commands import ROOT, call

from amlp_fairseq.evaluation import report
from amlp_fairseq.evaluation.charts import Point
from amlp_fairseq.evaluation.decoding_times import ended_early

RESULTS = ROOT / "docs" / "results"
HOSTILE = """</title></script><script>alert("1")</script> & 'é'"""
CHROMIUM = shutil.which("chromium")


class Page(HTMLParser):
    """What a parser of HTML finds: tables under their captions, points by their tooltips, texts by their element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.circles: dict[str, tuple[float, float]] = {}
        self.texts: dict[str, list[str]] = {}
        self.addresses: list[str | None] = []
        self.scripts = 0
        self.open = ""
        self.caption = ""
        self.centre = (0.0, 0.0)
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.open = tag
        self.scripts += tag == "script"
        self.addresses += [values[name] for name in ("src", "href") if name in values]
        if tag == "circle":
            self.centre = (float(values["cx"] or ""), float(values["cy"] or ""))
        if tag == "table":
            self.tables[self.caption] = []
        if tag == "tr":
            self.tables[self.caption].append([])
        if tag in ("th", "td"):
            self.tables[self.caption][-1].append("")

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open, []).append(data)
        if self.open == "title":
            self.circles.setdefault(data, self.centre)
        if self.open == "summary":
            self.caption = data
        if self.open in ("th", "td"):
            self.tables[self.caption][-1][-1] = data

    def handle_endtag(self, tag: str) -> None:
        self.open = ""


def line(system: str, bleu: float, calls: float, **other: Any) -> dict[str, Any]:
    return {"data": "made", "scale": "small", "system": system, "bleu": bleu, "steps_per_sentence": calls, **other}


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_means_and_the_frontier(tmp_path: Path) -> None:
    """By hand: the last of two results with one seed counts, two seeds are averaged; c costs more than b, and is worse
    than it."""
    lines = [
        line("a", 1.0, 10.0, decoding="beam 4", seed=1),
        line("a", 30.0, 10.0, decoding="beam 4", seed=1),
        line("a", 32.0, 12.0, decoding="beam 4", seed=2),
        line("b", 28.5, 4.0, decoding="beam 4", distilled=True, seed=1),
        line("c", 20.25, 5.0, decoding="greedy", seed=1),
    ]
    page = Page(report.render([written(tmp_path / "results.jsonl", *lines)]))
    assert (
        "At half the decoder calls or fewer: b distilled (beam 4), 2.50 BLEU below the best, a (beam 4)"
        in page.texts["h3"]
    )
    found = page.tables["The frontier: 2 of 3 ways of decoding"][1:]
    assert found == [["b distilled (beam 4)", "4.00", "28.50"], ["a (beam 4)", "11.0", "31.00"]]
    rows = {row[0]: row for row in page.tables["All 3 results"]}
    assert rows["a"][1:7] == ["raw", "beam 4", "test", "31.00 ± 1.41 (2)", "—", "11.00"]
    assert rows["c"][4:] == ["20.25", "—", "5.00", "—", "—", "—"]
    places = {name.split()[0]: place for name, place in page.circles.items() if "BLEU" in name}
    # the axes: costs by their logarithm, BLEU evenly
    share = (places["c"][0] - places["b"][0]) / (places["a"][0] - places["b"][0])
    assert share == pytest.approx(math.log(5 / 4) / math.log(11 / 4), abs=0.001)
    share = (places["c"][1] - places["b"][1]) / (places["a"][1] - places["b"][1])
    assert share == pytest.approx((20.25 - 28.5) / (31 - 28.5), abs=0.01)


def test_the_committed_results() -> None:
    """Every result of the embedded corpus, and the tables beside the papers' of the committed Markdown."""
    path = RESULTS / "embedded.jsonl"
    page = Page(report.render([path]))
    rows = next(rows for name, rows in page.tables.items() if name.endswith(" results"))[1:]
    seeds: dict[tuple[str, ...], dict[int, float]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(text)
        targets = "distilled" if result["distilled"] else "raw"
        name = f"{result['system']} {result.get('training_options', '')}".strip()
        key = (name, targets, result["decoding"], "valid" if result["subset"] == "valid" else "test")
        seeds.setdefault(key, {})[result["seed"]] = result["bleu"]
    assert {tuple(row[:4]): row[4].split(" ±")[0] for row in rows} == {
        key: f"{fmean(values.values()):.2f}" for key, values in seeds.items()
    }
    committed = (RESULTS / "embedded.md").read_text(encoding="utf-8")
    for part in committed.split("## Beside the paper: ")[1:]:
        name, *lines = [
            text for text in part.split("## ")[0].splitlines() if text.startswith("|") or text == part.split("\n")[0]
        ]
        expected = [
            [cell.strip() for cell in text.strip("|").split("|")] for text in lines if not text.startswith("| ---")
        ]
        assert page.tables[f"{name} ({len(expected) - 1} rows)"] == expected


def test_the_committed_benchmarks() -> None:
    names = ("decoding", "embedded", "length", "ops")
    page = Page(report.render([RESULTS / f"benchmark_{name}.json" for name in names]))
    results = {name: json.loads((RESULTS / f"benchmark_{name}.json").read_text()) for name in names}
    bars = iter(page.texts["b"])
    for name in ("decoding", "embedded"):
        medians = [row["ms_percentiles"][1] for row in results[name]["decoding"] if row["batch"] == 1]
        shown = [float(next(bars).removesuffix(" ms").replace(",", "")) for _ in medians]
        assert sorted(shown) == pytest.approx(sorted(medians), rel=0.006)
        assert shown[0] == min(shown)
    scored = [row for row in results["embedded"]["decoding"] if row["batch"] == 1]
    for row in scored:
        start = f"{row['system']} ({row['decoding']}): {row['bleu']:.1f} BLEU, "
        (point,) = [name for name in page.circles if name.startswith(start)]
        assert float(point.removeprefix(start).split()[0]) == pytest.approx(row["ms_percentiles"][1], rel=0.006)
    for caption, rows, x, y in (
        ("Time of the forward, ms", results["length"]["results"], "n", "forward_ms"),
        ("Memory of the forward, MiB", results["length"]["results"], "n", "forward_mib"),
        ("LightConv: Forward and backward, ms", results["ops"]["results"], "T", "forward_backward_ms"),
    ):
        (_, *lengths), *table = page.tables[caption]
        shown = {(row[0], length): cell for row in table for length, cell in zip(lengths, row[1:], strict=True) if cell}
        chosen = [row for row in rows if y in row and caption.startswith(row.get("operator", ""))]
        assert len(shown) == len(chosen) > 0
        for row in chosen:
            assert float(shown[row["system"], f"{row[x]:,}"].replace(",", "")) == pytest.approx(row[y], rel=0.006)


def decoding(system: str, *ms: float, batch: int = 1, **other: Any) -> dict[str, Any]:
    facts = {"system": system, "precision": "float32", "decoding": "beam 4", "batch": batch, "ms": list(ms)}
    return {**facts, "ms_percentiles": [min(ms), sorted(ms)[len(ms) // 2], max(ms)], "sentences": len(ms), **other}


def benchmark(path: Path, *rows: dict[str, Any], **other: Any) -> Page:
    """The page of a file of benchmarks/decoding.py."""
    result = {"baseline": "ar float32 beam 4", "lengths": [[3, 3]] * 3, "decoding": rows, **other}
    path.write_text(json.dumps(result), encoding="utf-8")
    return Page(report.render([path]))


def test_times_of_batches_are_not_called_those_of_sentences() -> None:
    for name, batch in (("decoding_256", 256), ("decoding_batches", 32), ("decoding", 1)):
        path = RESULTS / f"gpu_h200/benchmark_{name}.json"
        text = report.render([path])
        rows = [row for row in json.loads(path.read_text())["decoding"] if row["batch"] == batch]
        least = min(row["ms_percentiles"][1] for row in rows)
        unit = "milliseconds a sentence" if batch == 1 else f"milliseconds a batch of {batch}"
        assert f"{report.number(least)} {unit}, " in text
        assert ("milliseconds a sentence" in text) == (batch == 1)


def test_speed_ups_are_medians_over_batches_also_of_old_files(tmp_path: Path) -> None:
    """Of totals it would be 12 times as fast."""
    rows = decoding("ar", 100, 200, 24_000), decoding("fast", 50, 100, 1_875, speedup=12.0)
    page = benchmark(tmp_path / "old.json", *rows)
    fastest = "fast (beam 4) is the fastest: 100 milliseconds a sentence"
    assert f"{fastest}, 2.00 times as fast as ar float32 beam 4" in page.texts["h3"]
    assert page.texts["small"] == ["2.00\N{MULTIPLICATION SIGN}", "1.00\N{MULTIPLICATION SIGN}"]
    assert fastest in benchmark(tmp_path / "old.json", *rows, baseline="other").texts["h3"]


def test_a_run_that_ended_early_says_so(tmp_path: Path) -> None:
    rows = [decoding("ar", 3, 3, 3), decoding("ar", 4, batch=2, sentences=2)]
    early = "The run ended early: only the shortest 2 of 3 sentences at batch size 2."
    assert early in benchmark(tmp_path / "early.json", *rows, complete=False).texts["p"]
    assert not any("early" in text for text in benchmark(tmp_path / "whole.json", *rows, complete=True).texts["p"])
    assert ended_early({"complete": False, "lengths": [[3, 3]] * 3, "decoding": rows[:1]}) == (
        "The run ended early: these batch sizes are whole"
    )


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([Point(2, 30, "a"), Point(4, 20, "b")], "a is the best, and nothing takes fewer decoder calls"),
        ([Point(3, 20, "a"), Point(4, 30, "b")], "Nothing gets by with half the decoder calls of the best, b"),
        (
            [Point(2, 20, "a"), Point(1, 19, "c"), Point(4, 30, "b")],
            "At half the decoder calls or fewer: a, 10.00 BLEU below the best, b",
        ),
    ],
)
def test_the_finding(points: list[Point], says: str) -> None:
    assert report.trade(points, report.CALLS) == says


def test_one_model_is_not_ranked() -> None:
    points = [Point(2, 30, "a (greedy)", model="a"), Point(4, 31, "a (beam 4)", model="a")]
    assert report.trade(points, report.CALLS) == "a: BLEU and decoder calls of 2 ways of decoding"


def test_a_page_of_ones_own_corpus(tmp_path: Path) -> None:
    """No ranking of the only model, no command line in a title, and nothing of papers that have another corpus; of
    theirs there is, as before."""
    mine = [
        line("transformer", bleu, calls, decoding=way, seed=1, training_options=options, data=data)
        for data, options in (("mine", "--bf16 --max-update 3000 --cpu"), ("embedded", ""))
        for way, bleu, calls in (("beam 4", 30.0, 12.0), ("greedy", 29.0, 11.5))
    ]
    page = Page(report.render([written(tmp_path / "mine.jsonl", *mine[:2])]))
    assert page.texts["h3"] == ["transformer: BLEU and decoder calls of 2 ways of decoding"]
    assert not [
        text for texts in (page.texts[tag] for tag in ("h1", "h2", "h3", "title")) for text in texts if "--" in text
    ]
    assert [*page.tables] == ["The frontier: 2 of 2 ways of decoding", "All 2 results"]
    theirs = Page(report.render([written(tmp_path / "embedded.jsonl", *mine[2:])]))
    assert "Beside the papers" in theirs.texts["h3"]


def test_trainings_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    trained = {"--bf16 --dropout 0.1": 30.0, "--bf16 --dropout 0.2": 31.0}
    lines = [line("a", bleu, 2.0, decoding="greedy", seed=1, training_options=each) for each, bleu in trained.items()]
    page = Page(report.render([written(tmp_path / "lines.jsonl", *lines)]))
    assert page.texts["h3"] == ["a with dropout 0.2 (greedy) is the best, and nothing takes fewer decoder calls"]


def test_latencies_of_two_engines_are_not_compared(tmp_path: Path) -> None:
    """Old results do not say what decoded them: rows of fairseq's task its search, all others the plugin's. In the
    table each time stands beside its engine."""
    times = {"milliseconds_per_sentence": 58.7, "decoding": "beam 4", "seed": 1}
    lines = [
        line("transformer", 30.0, 12.0, **times),
        line("transformer", 30.0, 12.0, **times | {"decoding": "greedy"}, engine="amlp-fairseq"),
        line("aan", 29.0, 12.0, **times | {"milliseconds_per_sentence": 14.1, "engine": "amlp-fairseq"}),
        line("ibdecoder", 28.0, 6.0, **times | {"milliseconds_per_sentence": 12.7}),
        line("dynamicconv", 28.0, 9.0, **times, options="--beam 4 --task translation_interleaved --num-directions 1"),
    ]
    page = Page(report.render([written(tmp_path / "lines.jsonl", *lines)]))
    shown = {name.split(":")[0] for name in page.circles if "milliseconds" in name}
    assert shown == {"transformer (greedy)", "aan (beam 4)", "ibdecoder (beam 4)", "dynamicconv (beam 4)"}
    (caption,) = [text for text in page.texts["figcaption"] if "timer" in text]
    assert "decoded by amlp-fairseq;" in caption
    assert "Latencies of fairseq are another program's" in caption
    columns, *rows = page.tables["All 5 results"]
    at = columns.index("engine")
    assert {tuple(row[at - 1 : at + 1]) for row in rows if row[0] in ("ibdecoder", "aan")} == {
        ("12.70", "amlp-fairseq"),
        ("14.10", "amlp-fairseq"),
    }
    assert [row[at] for row in rows if row[0] == "transformer"] == ["fairseq", "amlp-fairseq"]
    benchmarked = [decoding("transformer", 100, 100, 100), decoding("ibdecoder", 50, 50, 50)]
    title = "ibdecoder (beam 4) is the fastest: 50.0 milliseconds a sentence, 2.00 times as fast as transformer float32"
    page = benchmark(tmp_path / "both.json", *benchmarked, baseline="transformer float32 beam 4")
    assert f"{title} beam 4 by fairseq's own search" in page.texts["h3"]


def test_old_results_and_hostile_names(tmp_path: Path) -> None:
    lines = [{"system": HOSTILE, "bleu": 20.0}, {"system": "b", "bleu": 21, "chrf": None, "parameters": "many"}]
    page = Page(report.render([written(tmp_path / "old.jsonl", *lines)]))
    rows = page.tables["All 2 results"][1:]
    assert [row[0] for row in rows] == [HOSTILE, "b"]
    assert rows[1][4:] == ["21.00", "—", "—", "—", "—", "—"]
    assert (page.scripts, page.circles.keys()) == (1, {"How well it translates, and how fast"})
    assert [address for address in page.addresses if address != "#part1"] == ["data:,"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.json",
            '{"steps": []}',
            "is not a file of benchmarks/decoding.py, benchmarks/length.py or benchmarks/ops.py",
        ),
        ("a.json", "{", "a.json is not JSON"),
        ("a.json", "[1]", "is not a file of benchmarks"),
        ("a.jsonl", "", "has no results"),
        ("a.jsonl", '[1]\n{"system": "a", "bleu": 1}\n', "'[1]' is not a result"),
        ("a.jsonl", '{"system": "a", "bleu": 1}\n{"system": "a"}\n', "result 2 has no system or no bleu"),
        ("a.jsonl", '{"system"\n{"system": "a", "bleu": 1}\n', "line 1 is damaged"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        report.render([path])
    assert str(path) in str(error.value)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "results.jsonl", line("a", 20.0, 3.0))
    before = path.read_text()
    with pytest.raises(SystemExit):
        call(report, monkeypatch, path, out=path)
    assert path.read_text() == before
    assert "must end in .html" in capsys.readouterr().err
    call(report, monkeypatch, path, out=tmp_path / "page.html")
    assert "20.00" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert str(tmp_path / "page.html") in capsys.readouterr().out


def luminance(colour: str) -> float:
    """WCAG's, of ``rgb(r, g, b)``."""
    channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_in_a_browser(tmp_path: Path) -> None:
    """Nothing on the console, nothing loaded; no label over another or outside; 360 pixels; light and dark."""
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    names = (
        "multi30k.jsonl",
        "benchmark_decoding.json",
        "benchmark_embedded.json",
        "benchmark_length.json",
        "benchmark_ops.json",
    )
    path = tmp_path / "page.html"
    path.write_text(report.render([RESULTS / name for name in names]), encoding="utf-8")
    hidden = """() => {
        const texts = [...document.querySelectorAll("svg")].filter((svg) => svg.getBoundingClientRect().width)
            .map((svg) => [svg.getBoundingClientRect(), [...svg.querySelectorAll("text")]]);
        const wrong = [];
        for (const [frame, nodes] of texts) {
            const boxes = nodes.map((node) => [node.textContent, node.getBoundingClientRect()]);
            for (const [i, [name, a]] of boxes.entries()) {
                if (a.left < frame.left - 1 || a.right > frame.right + 1) wrong.push(`${name} is cut`);
                for (const [other, b] of boxes.slice(i + 1)) {
                    const over = [a.right - b.left, b.right - a.left, a.bottom - b.top - 4, b.bottom - a.top - 4];
                    if (Math.min(...over) > 0) wrong.push(`${name} and ${other}`);
                }
            }
        }
        return wrong;
    }"""
    errors: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in ((1100, "dark"), (360, "light")):
            page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 740}).new_page()
            page.on("console", lambda message: errors.append(message.text))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: request.url == path.as_uri() or errors.append(request.url))
            page.goto(path.as_uri())
            assert page.evaluate(hidden) == []
            page.evaluate("document.querySelectorAll('details').forEach((details) => details.open = true)")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            grounds = []
            for other in ("Light", "Dark") if scheme == "dark" else ("Dark", "Light"):
                ground = luminance(page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor"))
                for place, style in (("figcaption", "color"), ("summary", "color"), ("h3", "color"), (".tick", "fill"),
                                     (".c0 text", "fill"), (".c1 text", "fill"), (".c3 text", "fill")):  # fmt: skip
                    colour = page.evaluate(f"getComputedStyle(document.querySelector('{place}')).{style}")
                    dark, light = sorted((ground, luminance(colour)))
                    assert (light + 0.05) / (dark + 0.05) >= 4.5, (place, scheme)
                grounds.append(ground)
                page.get_by_role("button", name=other).click()
            assert (grounds[0] < grounds[1]) == (scheme == "dark")
        browser.close()
    assert errors == []
