"""Make one page, for any browser, of files of results.

    amlp-fairseq report docs/results/embedded.jsonl docs/results/benchmark_length.json --out report.html

Files are those that amlp-fairseq evaluate appends to (.jsonl), and those that benchmarks/decoding.py,
benchmarks/length.py and benchmarks/ops.py write with --out (.json). The page has what is in them: BLEU or ROUGE against
decoder calls and latency, decoding speed, time and memory over the length, and of corpora of configs/data tables beside
the papers'. Latencies are compared within one engine, the plugin's search or fairseq's. It loads nothing from anywhere.
An older page is replaced.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from amlp_fairseq.common.arguments import command_parser
from amlp_fairseq.common.metrics import METRICS, metric_of
from amlp_fairseq.evaluation.charts import Point, frontier, is_number, lines, node, number, scatter, series_of
from amlp_fairseq.evaluation.decoding_times import add_speedups, ended_early, setting_name
from amlp_fairseq.evaluation.tables import Key, Results
from amlp_fairseq.training.config import names
from amlp_fairseq.training.engine import OURS, engine_of
from amlp_fairseq.training.results import read_results

#: Where the content stands in the template.
MARK = "@CONTENT@"
#: Fields that results may lack: old ones do.
NUMBERS = (
    *("tokenised_bleu", "compound_split_bleu", "chrf", "rouge_1", "rouge_2"),
    *("steps_per_sentence", "parameters"),
)
TEXTS = {"data": "corpus not stated", "scale": "not stated", "subset": "test", "updates": "—", "seed": "not stated"}
#: Colours of lines that stand out.
LENGTH_COLOURS = {"AMLP-Cov": 0, "AMLP-PQuery": 2, "SDPA": 1, "written-out": 3}
KERNEL_COLOURS = {"ours": 0, "fairseq": 1}
#: Where each kind of benchmark has its rows, and what a row must have; others were not measured.
FIELDS = {
    "decoding": ("decoding", {"system", "precision", "decoding", "batch", "ms", "ms_percentiles"}),
    "length": ("results", {"system", "n", "forward_ms"}),
    "kernels": ("results", {"system", "operator", "T"}),
}
TIMES = "\N{MULTIPLICATION SIGN}"
LATENCY = "milliseconds a sentence"
CALLS = "decoder calls a sentence"
LATENCY_FIELD, CALLS_FIELD = "milliseconds_per_sentence", "steps_per_sentence"

Json = dict[str, Any]


def read_lines(path: Path) -> list[Json]:
    """Results, with what old ones lack.

    Raises:
        ValueError: naming a line that is no result.
    """
    found = []
    for count, line in enumerate(read_results(path), 1):
        if not isinstance(line.get("system"), str) or not is_number(line.get(METRICS[metric_of(line)].main)):
            raise ValueError(f"{path}, result {count} has no system or no bleu: amlp-fairseq evaluate writes both")
        known = {name: value for name, value in line.items() if value is not None}
        numbers = {name: known[name] if is_number(known.get(name)) else math.nan for name in NUMBERS}
        decoding = known.get("decoding", known.get("search", "not stated"))
        distilled = bool(known.get("distilled", False))
        found.append({**TEXTS, **known, **numbers, "decoding": decoding, "distilled": distilled})
    if not found:
        raise ValueError(f"{path} has no results")
    return found


def read_benchmark(path: Path) -> tuple[str, Json]:
    """The subject of a file of a benchmark (``decoding``, ``length`` or ``kernels``), and its content.

    Raises:
        ValueError: if it is of none.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    for kind, (name, fields) in FIELDS.items():
        rows = result.get(name) if isinstance(result, dict) else None
        known = [row for row in rows or [] if isinstance(row, dict) and row.keys() >= fields]
        if known:
            return kind, {**result, name: known}
    raise ValueError(f"{path} is not a file of benchmarks/decoding.py, benchmarks/length.py or benchmarks/ops.py")


def render(paths: Sequence[Path]) -> str:
    """The page.

    Raises:
        OSError, ValueError: naming the file that cannot be read.
    """
    corpora: dict[tuple[str, str], list[Json]] = {}
    benchmarks: dict[str, list[tuple[Path, Json]]] = {"decoding": [], "length": [], "kernels": []}
    for path in paths:
        if path.suffix == ".jsonl":
            for line in read_lines(path):
                corpora.setdefault((line["data"], line["scale"]), []).append(line)
        else:
            kind, result = read_benchmark(path)
            benchmarks[kind].append((path, result))
    body = Element("main")
    head = node(body, "header")
    node(head, "h1", "How well it translates, and how fast")
    node(head, "button", id="theme", type="button")
    node(body, "p", f"Made by amlp-fairseq report of {', '.join(path.name for path in paths)}.", class_="soft")
    menu = node(body, "nav", aria_label="Sections")
    sections: list[tuple[str, Callable[[Element], None]]] = []
    for (data, scale), group in corpora.items():
        name = scale if data in scale else f"{data}, scale {scale}"
        sections.append((f"Translation quality: {name}", partial(_results, results=Results(group))))
    draw = {"decoding": _decoding, "length": _length, "kernels": _kernels}
    titles = {"decoding": "Decoding speed", "length": "Attention over the length", "kernels": "Kernels"}
    for kind, found in benchmarks.items():
        for path, result in found:
            title = titles[kind] + (f": {path.stem}" if len(found) > 1 else "")
            sections.append((title, partial(draw[kind], result=result)))
    for count, (title, fill) in enumerate(sections, 1):
        node(menu, "a", title, href=f"#part{count}")
        card = node(body, "section", id=f"part{count}")
        node(card, "h2", title)
        fill(card)
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return template.replace(MARK, tostring(body, encoding="unicode", method="html"))


def _results(card: Element, results: Results) -> None:
    """The results of ``amlp-fairseq evaluate`` on one corpus at one scale."""
    split = "test" if any(key.split == "test" for key in results.groups) else "valid"
    keys = [key for key in results.groups if key.split == split]
    models = _models(keys)
    engine, others = _compared_engine([line for key in keys for line in results.groups[key]])
    timer = f"Means over seeds, decoded by {engine}; by the timer of fairseq, without warm-up"
    for cost, field, source in ((CALLS, CALLS_FIELD, "Means over seeds"), (LATENCY, LATENCY_FIELD, timer)):
        points = []
        for key in keys:
            group = results.groups[key]
            if field == LATENCY_FIELD:
                group = [line for line in group if engine_of(line) == engine]
            name = f"{models[key]} ({key.decoding})"
            points.append(Point(_mean(group, field), results.mean(key) or 0.0, name, key.distilled, models[key]))
        caption = f"{source}, {split} set."
        if others and field == LATENCY_FIELD:
            caption += f" Latencies of {' and '.join(others)} are another program's, and stand in the table only."
        _frontier(card, points, cost, caption, results.metric.column)
    if results.data in names("data"):  # not one's own
        _orderings(card, results)
        _papers(card, results)
    timed = any(is_number(line.get(LATENCY_FIELD)) for line in results.lines)
    columns = ["configuration", "targets", "decoding", "split", *results.metric.columns]
    columns += ["calls", "ms", *["engine"] * timed, "parameters", "updates"]
    rows = []
    for key, group in sorted(results.groups.items()):
        newest = engine_of(group[-1])
        same = [line for line in group if engine_of(line) == newest]
        costs = [_mean(group, CALLS_FIELD), _mean(same, LATENCY_FIELD)]
        size = _mean(group[-1:], "parameters")
        rows.append(
            [
                f"{key.system} {key.options}".strip(),
                "distilled" if key.distilled else "raw",
                *(key.decoding, key.split),
                *(
                    results.score(key) if name == results.metric.main else _two_digits(_mean(group, name))
                    for name in results.metric.columns.values()
                ),
                *(_two_digits(cost) for cost in costs),
                *[newest] * timed,
                "—" if math.isnan(size) else f"{size / 1e6:.2f}M",
                str(group[-1]["updates"]),
            ]
        )
    _table(_folded(card, f"All {len(rows)} results"), columns, rows)
    notes = node(_folded(card, "How they were made"), "ul")
    for line in results.notes().splitlines():
        node(notes, "li", line.removeprefix("- "))


def _frontier(card: Element, points: Sequence[Point], cost: str, caption: str, score: str = "BLEU") -> None:
    """Scores against a cost, if it is known of two points or more."""
    known = [point for point in points if point.cost > 0]  # NaN is not
    if len(known) < 2:
        return
    figure = _figure(card, trade(known, cost, score))
    best = frontier(known)
    key = node(figure, "p", class_="key")
    for name, kind in (("raw targets", "raw"), ("distilled targets", "distilled")):
        if any(point.distilled == (kind == "distilled") for point in known):
            node(key, "i", class_=kind).tail = f"{name} "
    node(key, "i", class_="line").tail = "frontier: nothing that costs less is better"
    for kind, size in (("wide", (820, 440)), ("narrow", (340, 400))):
        chart = scatter(known, cost, *size, score)
        chart.set("class", kind)
        figure.append(chart)
    lacking = len(points) - len(known)
    caption += f" {lacking} results do not say their {cost}." if lacking else ""
    node(figure, "figcaption", f"{caption} Every point tells its name and numbers when it is pointed at.")
    rows = [[point.name, number(point.cost), f"{point.bleu:.2f}"] for point in best]
    _table(_folded(figure, f"The frontier: {len(best)} of {len(known)} ways of decoding"), ["", cost, score], rows)


def trade(points: Sequence[Point], cost: str, score: str = "BLEU") -> str:
    """One sentence on a frontier: the BLEU, or other score, that half of the cost loses. One model is not ranked."""
    best = max(points, key=lambda point: (point.bleu, -point.cost))
    cost = cost.partition(" a ")[0]
    if len({point.model or point.name for point in points}) == 1:
        return f"{best.model or best.name}: {score} and {cost} of {len(points)} ways of decoding"
    if best == frontier(points)[0]:
        return f"{best.name} is the best, and nothing takes fewer {cost}"
    cheaper = [point for point in points if point.cost <= best.cost / 2]
    if not cheaper:
        return f"Nothing gets by with half the {cost} of the best, {best.name}"
    half = max(cheaper, key=lambda point: (point.bleu, -point.cost))
    return f"At half the {cost} or fewer: {half.name}, {best.bleu - half.bleu:.2f} {score} below the best, {best.name}"


def _orderings(card: Element, results: Results) -> None:
    """The claims of the papers."""
    if text := results.orderings():
        columns, rows = _cells(text)
        held = sum(row[-1].startswith("reproduced") for row in rows)
        figure = _figure(card, f"{held} of {len(rows)} orders that the papers report are found again")
        missed = [f"{row[1]} ({row[0]})" for row in rows if not row[-1].startswith("reproduced")]
        node(figure, "p", f"Not found again: {'; '.join(missed)}." if missed else "None is missing.", class_="soft")
        _table(_folded(figure, "All of them"), columns, rows)


def _papers(card: Element, results: Results) -> None:
    """The tables beside the papers'."""
    try:
        tables = results.comparisons()
    except ValueError as error:
        node(card, "p", f"Not compared with the papers: {error}", class_="soft")
        return
    if tables:
        node(card, "h3", "Beside the papers")
        node(card, "p", "Ours left, the paper's right; a difference stands only where data, split and kind of score "
             "are the paper's.", class_="soft")  # fmt: skip
    for name, text in tables.items():
        table, _, note = text.partition("\n\n")
        columns, rows = _cells(table)
        found = _folded(card, f"{name} ({len(rows)} rows)")
        _table(found, columns, rows)
        if note:
            node(found, "p", note, class_="soft")


def _decoding(card: Element, result: Json) -> None:
    """Latencies at the smallest batch size, BLEU against them, and the speed with larger ones."""
    rows = result["decoding"]
    smallest = min(row["batch"] for row in rows)
    chosen = [row for row in rows if row["batch"] == smallest]
    latency = LATENCY if smallest == 1 else f"milliseconds a batch of {smallest}"
    if note := ended_early(result):
        node(card, "p", f"{note}.", class_="soft")
    points = [
        Point(row["ms_percentiles"][1], row["bleu"], _way(row, chosen), "distilled" in row["system"], row["system"])
        for row in chosen
        if "bleu" in row
    ]
    _frontier(card, points, latency, f"Median latency at batch size {smallest}.")
    baseline = result.get("baseline", "")
    compared = baseline in map(setting_name, chosen)
    if compared:
        add_speedups(chosen, baseline)  # those in older files are of totals
    systems: dict[str, list[Json]] = {}
    for row in sorted(chosen, key=lambda row: row["ms_percentiles"][1]):
        systems.setdefault(row["system"], []).append(row)
    fastest = min(chosen, key=lambda row: row["ms_percentiles"][1])
    ranked = " is the fastest" if len(chosen) > 1 else ""
    title = f"{_way(fastest, chosen)}{ranked}: {number(fastest['ms_percentiles'][1])} {latency}"
    programs = {row["system"]: _program(row["system"]) for row in chosen}
    if compared and ranked:
        title += f", {number(fastest['speedup'])} times as fast as {baseline}"
        base = next(row["system"] for row in chosen if setting_name(row) == baseline)
        if programs[base] != programs[fastest["system"]]:
            title += f" by {programs[base] or 'the plugin'}"
    figure = _figure(card, title)
    key = node(figure, "p", class_="key")
    precisions = list(dict.fromkeys(row["precision"] for row in chosen))
    for precision in precisions:
        node(key, "i", class_=f"p{precisions.index(precision)}").tail = f"{precision} "
    longest = max(row["ms_percentiles"][1] for row in chosen)
    bars = node(figure, "div", class_="bars")
    for system, ways in systems.items():
        group = node(bars, "div", class_="group")
        node(group, "h4", system)
        for row in ways:
            ms = row["ms_percentiles"][1]
            bar = node(group, "div", class_="bar")
            node(bar, "span", f"{row['precision']}, {row['decoding']}")
            track = node(bar, "span", class_="track")
            style = f"width: {100 * ms / longest:.2f}%"
            node(track, "i", class_=f"p{precisions.index(row['precision'])}", style=style)
            node(bar, "b", f"{number(ms)} ms")
            node(bar, "small", f"{number(row['speedup'])}{TIMES}" if compared else "")
    speed = f" and speed-up over {baseline}, the median over batches" if compared else ""
    caption = f"Median latency at batch size {smallest}{speed}, fastest first."
    for program in sorted({*programs.values()} - {""}):
        own = ", ".join(sorted(system for system in programs if programs[system] == program))
        caption += f" Decoded by {program}: {own}; beside others this compares programs, not models."
    node(figure, "figcaption", f"{caption} {_made(result)}")
    sizes = sorted({row["batch"] for row in rows})
    if len(sizes) > 1:
        found: dict[str, dict[int, str]] = {}
        for row in rows:
            found.setdefault(_way(row, rows), {})[row["batch"]] = number(row.get("sentences_per_second", math.nan))
        table = [[way, *(values.get(size, "") for size in sizes)] for way, values in found.items()]
        _table(_folded(figure, "Sentences a second by batch size"), ["", *map(str, sizes)], table)


def _length(card: Element, result: Json) -> None:
    """Time and memory of attentions over the number of positions."""
    times, memory = (series_of(result["results"], "system", "n", field) for field in ("forward_ms", "forward_mib"))
    longest = max(n for values in times.values() for n in values)
    ends = {name: values[longest] for name, values in times.items() if longest in values}
    fast = min(ends, key=lambda name: ends[name])
    other = "SDPA" if "SDPA" in ends and fast != "SDPA" else max(ends, key=lambda name: ends[name])
    title = f"At {longest:,} positions {fast} takes {number(ends[fast])} ms"
    if other != fast:
        title += f", {other} {number(ends[other])}: {number(ends[other] / ends[fast])} times as long"
    figure = _figure(card, title)
    _over_positions(figure, LENGTH_COLOURS, {"forward ms": times, "forward MiB": memory})
    met = [
        f"{cross['system']} from {cross['crossover']:,.0f} positions on"
        for cross in result.get("crossovers", [])
        if cross["against"] == "SDPA" and cross["measure"] == "forward time" and is_number(cross["crossover"])
    ]
    faster = f"Faster than SDPA: {', '.join(met)}. " if met else ""
    node(figure, "figcaption", f"{faster}{_made(result)}")
    for series, what in ((times, "Time of the forward, ms"), (memory, "Memory of the forward, MiB")):
        _by_length(figure, series, what)


def _over_positions(figure: Element, colours: Any, charts: dict[str, Any]) -> None:
    """Charts side by side, by unit; those without a series are left out."""
    pair = node(figure, "div", class_="pair")
    for unit, series in charts.items():
        if series:
            pair.append(lines(series, colours, "positions", unit, 380, 340))


def _kernels(card: Element, result: Json) -> None:
    """Time and memory of operators over the length, beside fairseq's."""
    for operator in dict.fromkeys(row["operator"] for row in result["results"]):
        rows = [row for row in result["results"] if row["operator"] == operator]
        times, memory = (series_of(rows, "system", "T", field) for field in ("forward_backward_ms", "memory_mib"))
        both = sorted(times.get("ours", {}).keys() & times.get("fairseq", {}).keys())
        title = f"{operator}, forward and backward"
        if both:
            long, short = (number(times["fairseq"][n] / times["ours"][n]) for n in (both[-1], both[0]))
            title = (
                f"{operator}: {long} times as fast as fairseq's at {both[-1]:,} positions, {short} times at {both[0]:,}"
            )
        figure = _figure(card, title)
        _over_positions(figure, KERNEL_COLOURS, {"forward + backward ms": times, "extra memory MiB": memory})
        node(figure, "figcaption", _made(result))
        for series, what in ((times, "Forward and backward, ms"), (memory, "Extra memory, MiB")):
            _by_length(figure, series, f"{operator}: {what}")


def _by_length(parent: Element, series: dict[str, dict[float, float]], what: str) -> None:
    if series:
        lengths = sorted({n for values in series.values() for n in values})
        rows = [[name, *(number(v[n]) if n in v else "" for n in lengths)] for name, v in series.items()]
        _table(_folded(parent, what), ["", *(f"{n:,}" for n in lengths)], rows)


def _figure(card: Element, title: str) -> Element:
    figure = node(card, "figure")
    node(figure, "h3", title)
    return figure


def _folded(parent: Element, title: str) -> Element:
    details = node(parent, "details")
    node(details, "summary", title)
    return details


def _table(parent: Element, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that scrolls by itself; columns of numbers are aligned to the right."""
    table = node(node(parent, "div", class_="scroll", tabindex="0", role="group", aria_label="Table"), "table")
    digits = [all(row[n][:1] in "+-—.0123456789" for row in rows) for n in range(len(columns))]
    line = node(node(table, "thead"), "tr")
    for column, numeric in zip(columns, digits, strict=True):
        node(line, "th", column, class_="number" if numeric else "text", scope="col")
    body = node(table, "tbody")
    for row in rows:
        line = node(body, "tr")
        for cell, numeric in zip(row, digits, strict=True):
            node(line, "td", "—" if cell == "nan" else cell, class_="number" if numeric else "text")


def _cells(text: str) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of a table of ``results.markdown``."""
    columns, _, *rows = [line[2:-2].split(" | ") for line in text.splitlines()]
    return columns, rows


def _models(keys: Sequence[Key]) -> dict[Key, str]:
    """The names of the models that are decoded. Of the options of its training a name has those that another training
    of the same row on the same targets does not have."""
    found = {}
    for key in keys:
        others = [set(_options(other)) for other in keys if other[:2] == key[:2]]
        own = [option for option in _options(key) if not all(option in other for other in others)]
        name = f"{key.system} distilled" if key.distilled else key.system
        found[key] = f"{name} with {', '.join(option.removeprefix('--') for option in own)}" if own else name
    return found


def _options(key: Key) -> list[str]:
    return [option for option in re.split(r" (?=--)", key.options) if option]


def _compared_engine(lines: Sequence[Json]) -> tuple[str, list[str]]:
    """The engine whose latencies are compared, the plugin's if it has any, and the others that have some."""
    timed = sorted({engine_of(line) for line in lines if is_number(line.get(LATENCY_FIELD))})
    engine = OURS if OURS in timed or not timed else timed[0]
    return engine, [other for other in timed if other != engine]


def _way(row: Json, rows: Sequence[Json]) -> str:
    """The name of a way of decoding; its precision only where others have another one."""
    same = len({other["precision"] for other in rows}) == 1
    return f"{row['system']} ({row['decoding'] if same else row['precision'] + ', ' + row['decoding']})"


def _program(system: str) -> str:
    """The program that decodes a system of benchmarks/decoding.py, if it is not the plugin."""
    if "ctranslate2" in system:
        return "CTranslate2"
    return "fairseq's own search" if system.split("-")[0] in ("transformer", "cmlm") else ""


def _made(result: Json) -> str:
    """Where a benchmark has run."""
    facts = [str(result.get("device", "")), f"{result['threads']} threads" if "threads" in result else ""]
    facts += [f"torch {result['torch']}" if "torch" in result else "", str(result.get("date", ""))[:10]]
    facts += [f"commit {str(result['commit'])[:12]}" if "commit" in result else ""]
    return ", ".join(fact for fact in facts if fact)


def _mean(group: Sequence[Json], name: str) -> float:
    """The mean over the results that have a field, NaN where none has."""
    values = [line[name] for line in group if is_number(line.get(name))]
    return sum(values) / len(values) if values else math.nan


def _two_digits(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.2f}"


def main() -> None:
    parser = command_parser("report", __doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results (.jsonl) or benchmarks (.json)")
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="PAGE.html", help="%(default)s")
    args = parser.parse_args()
    if args.out.suffix != ".html":
        parser.error(f"--out {args.out}: must end in .html")
    args.out.write_text(render(args.results), encoding="utf-8")
    print(f"{args.out}: {args.out.stat().st_size / 1e3:.0f} kB, for any browser")


if __name__ == "__main__":
    main()
