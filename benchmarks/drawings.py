"""The picture of each benchmark, drawn from what it writes with --out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amlp_fairseq.evaluation.charts import Point, frontier, lines, scatter, series_of
from amlp_fairseq.evaluation.decoding_times import add_speedups, setting_name
from benchmarks.efficiency_tables import LATENCY, fastest
from benchmarks.pictures import HEIGHT, LIGHT, WIDTH, Dot, Series, bars, settings, write_picture


def machine(result: dict[str, Any], sizes: str) -> str:
    """The device of a result, and those of its options that ``sizes`` names in braces."""
    return f"{result['device']}: {sizes.format(**result['options'])}"


def draw_decoding(result: dict[str, Any], path: Path) -> None:
    """BLEU over latency where there is BLEU, else speed-ups, both at the first batch size."""
    size = result["options"]["batches"][0]
    rows = [row for row in result["decoding"] if row["batch"] == size]
    facts = f"{result['device']}, {result['threads']} threads"
    points = [Point(row["ms_percentiles"][1], row["bleu"], setting_name(row)) for row in rows if "bleu" in row]
    if points:
        title = f"{len(frontier(points))} of {len(points)} settings are on the frontier: nothing faster is better"
        chart = scatter(points, f"ms, median, batch {size}", 2 * WIDTH, HEIGHT + 200)
        write_picture(path, "", [(title, chart)], facts)
        return
    add_speedups(rows, result["baseline"])  # those in older files are of totals
    best: dict[str, float] = {}
    for row in rows:
        best[row["system"]] = max(row["speedup"], best.get(row["system"], 0.0))
    rows.sort(key=lambda row: (-best[row["system"]], row["system"], -row["speedup"]))
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    colours = {setting_name(row): precisions.index(row["precision"]) for row in rows}
    title = f"{setting_name(rows[0])} is {rows[0]['speedup']:.1f} times as fast as {result['baseline']}, batch {size}"
    chart = bars({setting_name(row): row["speedup"] for row in rows}, colours, f"speed-up over {result['baseline']}")
    write_picture(path, "", [(title, chart)], facts, [(name, index) for index, name in enumerate(precisions)])


def highlighted(names: Sequence[str], first: str) -> dict[str, int]:
    """Colours of series; the first colour is that of ``first``."""
    order = sorted(names, key=lambda name: name != first)
    return {name: index % len(LIGHT) for index, name in enumerate(order)}


def draw_ops(result: dict[str, Any], path: Path) -> None:
    """Time of forward and backward over the length, a chart for each operator."""
    charts, gains = [], []
    for operator in dict.fromkeys(row["operator"] for row in result["results"]):
        rows = [row for row in result["results"] if row["operator"] == operator]
        times = series_of(rows, "system", "T", "forward_backward_ms")
        colours = highlighted(list(times), "ours")
        if times:
            charts.append((operator, lines(times, colours, "T", "forward+backward ms", WIDTH, HEIGHT)))
        both = sorted(times.get("ours", {}).keys() & times.get("fairseq", {}).keys())
        if both:
            first, last = (times["fairseq"][n] / times["ours"][n] for n in (both[0], both[-1]))
            gains.append(f"{operator} {first:.3g} times at T = {both[0]}, {last:.3g} at {both[-1]}")
    title = f"Speed over fairseq's: {'; '.join(gains)}" if gains else ""
    facts = machine(result, "B={batch}, C={channels}, H={heads}, k={kernel}, {dtype}, {threads} CPU threads")
    write_picture(path, title, charts, facts)


def draw_length(result: dict[str, Any], path: Path) -> None:
    """Time and memory of the forward over the length, as shares of AR's if all lengths have them."""
    charts = []
    for key, measure, unit in (("forward_ms", "time", "ms"), ("forward_mib", "memory", "MiB")):
        series = series_of(result["results"], "system", "n", key)
        base = series.get("AR", {})
        ylabel = f"{measure}, {unit}"
        if base.keys() >= {n for values in series.values() for n in values}:
            ylabel = f"{measure} / AR's"
            series = {name: {n: y / base[n] for n, y in values.items()} for name, values in series.items()}
        if series:
            charts.append(("", lines(series, highlighted(list(series), "AMLP-Cov"), "n", ylabel, WIDTH, HEIGHT)))
    longest = max(result["options"]["lengths"])
    rows = [row for row in result["results"] if row["n"] == longest and "forward_ms" in row]
    title = ""
    if rows:
        fast, slow = (choose(rows, key=lambda row: float(row["forward_ms"])) for choose in (min, max))
        title = f"At {longest:,} positions {fast['system']} takes {fast['forward_ms']:.3g} ms, "
        title += f"{slow['system']} {slow['forward_ms']:,.0f}"
    sizes = "forward, B={batch}, d={embed_dim}, H={heads}, c={inner_dim}, {activation}, {dtype}, {threads} CPU threads"
    write_picture(path, title, charts, machine(result, sizes))


def draw_long_inputs(result: dict[str, Any], path: Path) -> None:
    """Speed of all iterations over the length, relative to softmax attention."""
    series = series_of(result["results"], "system", "n", "ms_speed_over_cmlmc")
    colours = highlighted(list(series), "cmlmc")
    ylabel = "speed over cmlmc, {iterations} iterations".format(**result["options"])
    chart = lines(series, colours, "words of source and output", ylabel, WIDTH + 200, HEIGHT, linear=True)
    sizes = "d={embed_dim}, {layers} layers, {words} words, {precision}, {threads} CPU threads"
    write_picture(path, "", [("", chart)], machine(result, sizes))


def draw_efficiency(result: dict[str, Any], path: Path) -> None:
    """BLEU over latency on the fewest cores, and over the time for 1000 lines at once."""
    latency = [row for row in result["rows"] if row["mode"] == LATENCY]
    cores = min((row["cores"] for row in latency), default=0)
    rest = "ms_per_line_less_one_line"
    systems = list(dict.fromkeys(row["system"] for row in result["rows"]))
    costs = (
        (
            f"Latency, {cores} CPU{'s' * (cores > 1)}",
            "ms a line, median",
            [(row["ms_percentiles"][2], row) for row in latency if row["cores"] == cores],
        ),
        (
            "Throughput, all CPUs",
            "seconds for 1000 lines, less a one-line run",
            [(row[rest], row) for row in fastest(result["rows"]) if rest in row],
        ),
    )
    charts = []
    for title, xlabel, points in costs:
        series: dict[tuple[str, str], list[Dot]] = {}
        for cost, row in sorted(points, key=lambda point: point[0]):
            if "bleu" in row:
                seeds = row.get("bleu_of_seeds", ())
                name = f"{row['system']} {row['model']} {row['precision']} {row['decoding']}"
                dot = Dot(cost, row["bleu"], name, row["precision"], seeds if len(seeds) > 1 else ())
                series.setdefault((row["system"], row["model"]), []).append(dot)
        if series:
            models = [Series(model, systems.index(system), dots) for (system, model), dots in series.items()]
            charts.append((title, settings(models, xlabel, "BLEU")))
    disturbed = sum(bool(row["disturbed"]) for row in result["rows"])
    facts = f"{result['device']}; {result['lines']} lines; disturbed: {disturbed} of {len(result['rows'])} settings"
    facts += "; empty: float32; a line: one model in all its settings" if charts else ""
    if any(len(row.get("bleu_of_seeds", ())) > 1 for row in result["rows"]):
        facts += "; a bar: models of several seeds"
    write_picture(path, "", charts, facts, [(system, index) for index, system in enumerate(systems)])


def drawer(result: Mapping[str, Any]) -> Callable[[dict[str, Any], Path], None] | None:
    """The function that draws a result; None if it is of no benchmark that has a picture."""
    if "decoding" in result:
        return draw_decoding
    if "rows" in result and "lines" in result:
        return draw_efficiency
    rows = result.get("results") or [{}]
    known = {"operator": draw_ops, "ms_speed_over_cmlmc": draw_long_inputs, "left_out": draw_length}
    return next((draw for field, draw in known.items() if field in rows[0]), None)
