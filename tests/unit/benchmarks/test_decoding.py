"""benchmarks/decoding.py: it measures only what writes the right words, as many as told, and counts right."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import commands
import graph_emulator
import numpy as np
import pytest
import torch
import toy
from fairseq.data import Dictionary
from omegaconf import OmegaConf

from amlp_fairseq.evaluation.decoding_times import add_speedups
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.reranking import Reranker
from benchmarks import ctranslate2_engine, engines, quiet
from benchmarks import decoding as SCRIPT
from benchmarks import decoding_costs as COSTS
from benchmarks import figures as FIGURES
from benchmarks import step_parts as PARTS
from benchmarks import targets as TARGETS
from benchmarks import trained as trained_models

SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "layers": 2, "heads": 2, "words": 40}
MEASURED = {"beams": [4, 1], "iterations": [3], "precisions": ["float32"], "repeats": 1, "threads": 1}
CTRANSLATE2 = ["ctranslate2"] if find_spec("ctranslate2") else []


@pytest.fixture(autouse=True)
def _little_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COSTS, "BANDWIDTH_BYTES", 2**20)
    monkeypatch.setattr(COSTS, "BOUND_REPEATS", 1)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object, **changes: Any) -> None:
    commands.call(SCRIPT, monkeypatch, *arguments, **{**SIZES, **MEASURED, **changes})


def options(**changes: Any) -> Namespace:
    values = {"device": "cpu", "data": None, "length_beam": 1, "cuda_graphs": False, **SIZES, **MEASURED, **changes}
    return Namespace(**values)


def workshop(args: Namespace) -> Any:
    torch.manual_seed(1)
    words = SCRIPT.dictionary(4 + args.words)
    return SCRIPT.Workshop(args, words, words)


def test_every_part_of_a_step_is_timed() -> None:
    task = toy.task(12, num_directions=2)
    model, sample = toy.model(task), toy.batch(toy.random_sources(2, 12, 0), task.src_dict)

    def search() -> float:
        start = time.perf_counter()
        options = SearchOptions(beam_size=4, max_len_b=9)
        MultiwordBeamSearch([model], task.tgt_dict, task.order, options).generate([], sample)
        return 1000 * (time.perf_counter() - start)

    with PARTS.stopwatch() as spent:
        total = search()
        assert all(ms > 0 for ms in spent.values())
        assert sum(spent.values()) < total
        before = dict(spent)
    search()
    assert spent == before


def test_numbers_tables_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plot = tmp_path / "numbers.json", tmp_path / "plot.svg"
    for module in (SCRIPT, COSTS):
        monkeypatch.setattr(module, "sentence_lengths", lambda count: [(25, 6), (4, 5), (12, 7)])
    systems = ["transformer", *CTRANSLATE2, "ar", "ibdecoder-sa", "cmlm", "cmlmc-amlp", "dynamicconv", "aan"]
    written = ["--sentences", 3, "--batches", 1, 2, "--training", 20, "--out", out, "--plot", plot]
    run(monkeypatch, *written, "--baseline", "ar float32 beam 1", systems=systems)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["device"] in plot.read_text(encoding="utf-8").replace("&#x2F;", "/")
    assert {"torch", "fairseq", "ctranslate2", "threads", "commit", "date"} <= result.keys()
    assert result["options"]["systems"] == systems
    assert result["complete"] is True

    assert result["lengths"] == [[25, 6], [4, 5], [12, 7]]
    tokens = {1: 7 + 6 + 8, 2: (7 + 7) + 8}  # with end symbols
    rows = {(row["batch"], row["system"], row["decoding"]): row for row in result["decoding"]}
    decodings = {name: ["beam 4", "beam 1"] for name in systems}
    decodings |= {"cmlm": ["3 iterations"], "cmlmc-amlp": ["3 iterations"]}
    assert list(rows) == [(batch, name, way) for batch in (1, 2) for name, ways in decodings.items() for way in ways]
    for (batch, name, _), row in rows.items():
        assert row["tokens"] == tokens[batch]
        assert row["sentences"] == 3
        assert len(row["ms"]) == 3 / batch + 0.5 * (batch == 2)
        assert row["seconds"] == pytest.approx(sum(row["ms"]) / 1000)
        assert [statistics.median(repeats) for repeats in row["ms_repeats"]] == row["ms"]
        assert row["tokens_per_second"] == pytest.approx(tokens[batch] / row["seconds"])
        assert row["ms_percentiles"] == sorted(row["ms_percentiles"])
        ratios = [a / b for a, b in zip(rows[batch, "ar", "beam 1"]["ms"], row["ms"], strict=True)]
        assert row["speedup"] == pytest.approx(statistics.median(ratios))
        assert (
            min(ratios) <= row["speedup_quartiles"][0] <= row["speedup"] <= row["speedup_quartiles"][1] <= max(ratios)
        )
        assert ("peak_mib" in row) == (name != "ctranslate2")
        if batch == 1:
            calls = {"ibdecoder-sa": 2 + 2 + 2, "cmlm": 3 * 3, "cmlmc-amlp": 3 * 3}
            assert row["decoder_calls"] == calls.get(name, 21)
    by_length = rows[1, "transformer", "beam 4"]
    assert list(by_length["ms_by_source_length"]) == ["<10", "10-19", "20-29"]
    assert list(by_length["ms_by_source_length"].values()) == [by_length["ms"][i] for i in (0, 2, 1)]

    assert [row["decoding"] for row in result["bound"]["steps"]] == ["beam 4", "beam 1"]
    for row in result["bound"]["steps"]:
        assert row["over_bound"] == pytest.approx(row["step_ms"] / row["bound_ms"])
        assert row["step_ms_by_part"].keys() == {PARTS.LINEAR_MAPS, *PARTS.TIMED_FUNCTIONS, "all else"}
        assert row["bound_ms"] == pytest.approx(sum(row["bytes"].values()) / result["bound"]["gb_per_second"] / 1e6)
        # 7 calls for 6 words: the first 2 would write one word and the end, the others see 3 to 7; the source has 26.
        words = {"beam 4": 4 * 5, "beam 1": 5}[row["decoding"]]
        assert row["bytes"]["keys and values"] == 4 * 2 * 2 * 16 * (words + 26)
    transformer, ibdecoder = result["training"]
    assert transformer["words"] == ibdecoder["words"] == 8 + 6
    assert ibdecoder["over_transformer"] == pytest.approx(transformer["seconds"] / ibdecoder["seconds"])
    assert {target["passed"] for target in result["targets"]} == {None}  # sizes for which there are none

    printed = capsys.readouterr().out
    assert printed.count("not measured: ") == len(result["targets"])
    assert {line.count("|") for line in printed.split("\n\n")[0].splitlines()} == {14}


def test_an_autoregressive_model_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a beam, in a call for each batch that is timed with the others and not counted."""
    scored, rerank = [], Reranker.rerank

    def counted(self: Reranker, *arguments: Any) -> None:
        scored.append(len(arguments[2]))
        rerank(self, *arguments)

    monkeypatch.setattr(Reranker, "rerank", counted)
    monkeypatch.setattr(SCRIPT, "sentence_lengths", lambda count: [(25, 6), (4, 5)])
    out, systems = tmp_path / "numbers.json", ["ibdecoder-sa", "ibdecoder-sa-rescored"]
    run(monkeypatch, "--sentences", 2, "--out", out, systems=systems)
    own, own_greedy, rescored = json.loads(out.read_text(encoding="utf-8"))["decoding"]
    assert [own["decoding"], own_greedy["decoding"], rescored["decoding"]] == ["beam 4", "beam 1", "beam 4"]
    assert rescored["decoder_calls"] == own["decoder_calls"]
    assert scored.count(1) >= 2  # both sentences, one at a time


def test_ours_are_captured_where_they_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured, out = graph_emulator.install(monkeypatch), tmp_path / "numbers.json"
    monkeypatch.setattr(SCRIPT, "sentence_lengths", lambda count: [(5, 6), (4, 5)])
    systems = ["transformer", "ar", "ibdecoder-sa", "aan", "dynamicconv", "cmlmc-amlp"]
    run(monkeypatch, "--cuda-graphs", "--sentences", 2, "--batches", 2, "--out", out, "--systems", *systems)
    decoders = [graph.__self__.decoder.decoder for graph in captured if hasattr(graph, "__self__")]
    attentions = {type(decoder.layers[0].self_attn).__name__ for decoder in decoders}
    assert attentions == {"SoftmaxAttention", "AverageAttention", "DynamicConvBlock"}
    assert len(decoders) < len(captured)  # the others are passes of CMLMC


def stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *systems: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--out", tmp_path / "numbers.json", "--sentences", 1, "--systems", *systems)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    return str(stopped.value.code)  # a text: Python prints it and ends with status 1


@pytest.mark.parametrize("system", ["ar", *CTRANSLATE2])
def test_no_numbers_when_the_words_are_wrong(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = SCRIPT.Workshop.built

    def poisoned(self: Any, name: str) -> Any:
        built = right(self, name)
        if name != system:
            return built
        model = SCRIPT.Workshop(self.args, self.source, self.target)  # CTranslate2 has the Transformer's own
        other = right(model, name).model
        other.decoder.layers[1].fc2.weight *= -1
        return built._replace(model=other)

    monkeypatch.setattr(SCRIPT.Workshop, "built", poisoned)
    problems = stops(tmp_path, monkeypatch, capsys, "transformer", system).splitlines()[1:]
    words = f"{system}: other words than stock fairseq's with the same weights at beam"
    assert problems == [f"{words} {beam}" for beam in ((1, 4) if system == "ar" else (1,))]


def test_no_numbers_when_a_sentence_is_too_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = engines.our_generator

    def short(*arguments: Any) -> Any:
        generator = right(*arguments)
        generate = generator.generate

        def cut(*inputs: Any) -> Any:
            found = generate(*inputs)
            found[1][0]["tokens"] = found[1][0]["tokens"][1:]
            return found

        generator.generate = cut
        return generator

    monkeypatch.setattr(engines, "our_generator", short)
    problems = stops(tmp_path, monkeypatch, capsys, "transformer", "ibdecoder", "cmlmc").splitlines()[1:]
    assert problems == [
        *["ibdecoder float32: writes [8, 7, 8] words instead of 8"] * 2,
        "cmlmc float32: writes [8, 7, 8] words instead of 8",
    ]


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctranslate2_engine, "find_spec", lambda name: None)
    out = tmp_path / "numbers.json"
    run(monkeypatch, "--sentences", 1, "--out", out, systems=["transformer", "ctranslate2"], beams=[1])
    reason = "ctranslate2 is not installed"
    skipped = [{"system": "ctranslate2", "precision": "float32", "reason": reason}]
    assert json.loads(out.read_text(encoding="utf-8"))["skipped"] == skipped
    assert f"skipped: ctranslate2 float32: {reason}" in capsys.readouterr().out
    out.unlink()
    assert reason in stops(tmp_path, monkeypatch, capsys, "ctranslate2")


def test_a_baseline_that_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="--baseline 'ar' is not one of: transformer float32 beam 4, transformer"):
        run(monkeypatch, "--baseline", "ar", systems=["transformer"])


def test_the_trainings_differ_in_nothing_else() -> None:
    stock, ours = (workshop(options()).new(name).cfg.model for name in ("transformer", "ibdecoder"))
    names = ["dropout", "attention_dropout", "activation_dropout"]
    names += [f"{side}_{size}" for side in ("encoder", "decoder") for size in ("layers", "embed_dim", "ffn_embed_dim")]
    assert [getattr(stock, name) for name in names] == [getattr(ours, name) for name in names]


@pytest.mark.parametrize("beam", [1, 4])
def test_bytes_of_a_step(beam: int) -> None:
    decoder = workshop(options()).built("ar").model.decoder
    d, ffn, layers, source, words = 16, 32, 2, 9, 3
    projections = 6 * (d * d + d)  # 4 of the self-attention, queries and output of the other
    layer = projections + (d * ffn + ffn) + (ffn * d + d) + 3 * 2 * d
    assert COSTS.step_bytes(decoder, source, words, beam) == {
        "layers": 4 * layers * layer,
        "output projection": 4 * 44 * d,
        "keys and values": 4 * layers * 2 * d * (beam * words + source),
    }


def row(system: str, precision: str, decoding: str, *ms: float, batch: int = 1, **other: Any) -> dict[str, Any]:
    facts = {"system": system, "precision": precision, "decoding": decoding, "batch": batch, "ms": list(ms)}
    return facts | {"seconds": sum(ms) / 1000} | other


def test_targets() -> None:
    rows = [
        row("transformer", "float32", "beam 4", 46, 46),
        row("ar", "float32", "beam 4", 20, 20),
        row("ar", "int8", "beam 4", 10, 10),
        row("ar", "int8", "beam 4", 1, 1, batch=2),
        row("ibdecoder", "float32", "beam 4", 10, 10),
        row("ibdecoder", "int8", "beam 4", 6, 6, disturbed=["others used 0.50 of 2 CPUs"]),
        row("ibdecoder-student", "float32", "beam 1", 4, 4),
        row("ibdecoder-student", "int8", "beam 1", 2, 2),
    ]
    # numpy's, as they come from medians of arrays: their comparisons are not JSON.
    bound = {"steps": [{"over_bound": np.float64(1.4)}, {"over_bound": np.float64(1.6)}]}
    training = [{"over_transformer": np.float64(1.0)}, {"over_transformer": np.float64(0.98)}]

    def verdicts(**changes: Any) -> dict[str, dict[str, Any]]:
        base = {"device": "cpu", "data": None, **TARGETS.BASE, "threads": 2, **changes}
        found = TARGETS.targets({"decoding": rows, "bound": bound, "training": training, "options": base})
        return {target.pop("target"): target for target in json.loads(json.dumps(found))}

    def verdict(value: float, passed: bool, *speed_up: bool) -> dict[str, Any]:
        spread = {"quartiles": [value, value], "disturbed": speed_up[0]} if speed_up else {}
        return {"value": value, "passed": passed, **spread}

    found, unknown = verdicts(), {"value": None, "passed": None}
    assert len(found) == len(TARGETS.TARGETS) + 2
    known = {text: value for text, value in found.items() if value != unknown}
    assert known == {
        "cpu: ar, beam 4, is 2.3 times as fast as transformer, beam 4; float32": verdict(2.3, True, False),
        "cpu: ibdecoder, beam 4, is 1.9 times as fast as ar, beam 4; same precision": verdict(10 / 6, False, True),
        "cpu: ibdecoder-student, beam 1, is 16 times as fast as transformer, beam 4; best precision over float32": (
            verdict(23, True, False)
        ),
        "cpu: a step of ar float32 takes at most 1.5 times as long as reading its memory": verdict(1.6, False),
        "ibdecoder trains 0.97 times as many words a second as transformer": verdict(0.98, True),
    }
    assert found.keys() == verdicts(threads=1).keys()
    for changes in ({"threads": 1}, {"layers": 2}, {"data": "DIR"}):
        assert all(verdict == unknown for verdict in verdicts(**changes).values())
    cuda = verdicts(device="cuda", threads=16)
    as_fast = "cuda: ar, beam 4, is 5 times as fast as transformer, beam 4; same precision"
    assert cuda[as_fast] == verdict(2.3, False, False)
    assert cuda["cpu: ar, beam 4, is 2.3 times as fast as transformer, beam 4; float32"] == unknown


def test_a_run_at_the_sizes_of_the_targets_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts on measured times are JSON, too."""
    monkeypatch.setattr(TARGETS, "BASE", SIZES)
    out = tmp_path / "numbers.json"
    run(monkeypatch, "--out", out, "--sentences", 2, systems=["transformer", "ar"], beams=[1], threads=2)
    reached = {target["target"]: target["passed"] for target in json.loads(out.read_text(encoding="utf-8"))["targets"]}
    judged = [text for text, passed in reached.items() if passed in (True, False)]
    assert judged == [
        "cpu: ar, beam 1, is 2.3 times as fast as transformer, beam 1; float32",
        "cpu: a step of ar float32 takes at most 1.5 times as long as reading its memory",
    ]


def test_a_disturbed_sentence_does_not_make_a_speed_up() -> None:
    """Of totals the system would be 12 times as fast."""
    base, fast = (
        row("base", "float32", "beam 4", 100, 200, 300, 24_000),
        row("ar", "float32", "beam 4", 50, 100, 150, 1750),
    )
    add_speedups([base, fast], "base float32 beam 4")
    assert (base["speedup"], base["speedup_quartiles"]) == (1, [1, 1])
    assert fast["speedup"] == 2
    assert fast["speedup_quartiles"] == [2, pytest.approx(2 + (24_000 / 1750 - 2) / 4)]


def timings(*sentences: list[float], own: float = 1.0, others: float = 0.0) -> list[list[quiet.Timing]]:
    return [[quiet.Timing(wall, own * wall, others * wall) for wall in repeats] for repeats in sentences]


def test_what_disturbs_a_run_is_said() -> None:
    assert quiet.disturbances(timings([1.0, 1.9, 1.5], [3.0, 3.1, 3.0], others=0.09), 2) == []
    apart = quiet.disturbances(timings([1.0, 1.1, 2.1], [3.0, 3.1, 3.0]), 2)
    assert apart == ["repeats 2x apart: 1 of 2"]
    stopped = quiet.disturbances([*timings([1.0]), *timings([24.0], own=0.1)], 2)
    assert stopped == ["waited for a CPU: 1 of 2"]
    shared = quiet.disturbances(timings([1.0, 1.0], [3.0, 3.0], others=0.6), 2)
    assert shared == ["others used 0.60 of 2 CPUs"]


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_time_of_this_process_of_its_workers_and_of_others() -> None:
    """A process that uses as much CPU as this one is a worker, or it is something else that disturbs."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        alone, _ = quiet.timed(lambda: burn(0.4), time.perf_counter)
        together, _ = quiet.timed(lambda: burn(0.4), time.perf_counter, [child.pid])
        asleep, result = quiet.timed(lambda: time.sleep(0.2) or "result", time.perf_counter)
    finally:
        child.kill()
        child.wait()
    assert result == "result"
    assert asleep.cpu < 0.1 < asleep.wall
    assert alone.cpu > 0.39
    assert together.cpu > alone.cpu + 0.05
    assert alone.other_cpu > 0.05


def test_what_was_measured_is_kept_when_the_program_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, right, done = tmp_path / "numbers.json", SCRIPT.rounds, []
    monkeypatch.setattr(SCRIPT, "sentence_lengths", lambda count: [(3, 4), (4, 5), (5, 6)])

    def stopped(*arguments: Any, **options: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return right(*arguments, **options)

    monkeypatch.setattr(SCRIPT, "rounds", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, "--out", out, "--sentences", 3, systems=["transformer", "ar"], beams=[1])
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["complete"] is False
    assert [(row["system"], row["sentences"], len(row["ms"])) for row in result["decoding"]] == [
        ("transformer", 2, 2), ("ar", 2, 2)
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [out]


def test_lengths_are_like_real_ones() -> None:
    sources, targets = zip(*SCRIPT.sentence_lengths(400), strict=True)
    assert 27 < sum(sources) / 400 < 29
    assert 27 < sum(targets) / 400 < 30
    assert {SCRIPT.length_bin(n) for n in sources} == {"<10", "10-19", "20-29", "30-39", "40-49", "50+"}
    assert [SCRIPT.length_bin(n) for n in (9, 10, 49, 50)] == ["<10", "10-19", "40-49", "50+"]


def test_batches_of_similar_length() -> None:
    sources = [[5] * n for n in (3, 9, 4, 8, 7)]
    batches = SCRIPT.in_batches(sources, [30, 10, 29, 11, 12], 2)
    assert [(batch.indices, batch.length) for batch in batches] == [([1, 3], 11), ([4, 2], 29), ([0], 30)]
    assert batches[1].sources == [[5] * 7, [5] * 4]


@torch.no_grad()
def say_one_word(decoder: Any) -> None:
    """Make the end symbol the likeliest, wherever it may stand."""
    norm = decoder.layers[-1].final_layer_norm
    norm.weight.zero_()
    norm.bias.fill_(1)
    decoder.output_projection.weight[2] = 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data folder, and checkpoints that have not learnt anything."""
    folder, shop = tmp_path_factory.mktemp("trained"), workshop(options())
    data = folder / "data"
    (data / "raw").mkdir(parents=True)
    texts = {"en": ["w5 w6 w7", "w8", "w9 w10"], "de": ["w7 w6", "w8 w8 w8", "w9"]}
    for language, lines in texts.items():
        shop.source.save(str(data / f"dict.{language}.txt"))
        (data / "raw" / f"test.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        sentences = [shop.source.encode_line(line, add_if_not_exist=False) for line in lines]
        toy.binarise(data / f"test.en-de.{language}", sentences)
    settings = {"languages": ["en", "de"], "post_process": None, "tokenizer": None}
    (data / "text.json").write_text(json.dumps(settings), encoding="utf-8")
    found = {"data": data}
    for name in ("transformer", "ibdecoder", "cmlmc"):
        model, task, cfg = shop.new(name)
        if name != "cmlmc":
            say_one_word(model.decoder)
        cfg.task.source_lang, cfg.task.target_lang = "en", "de"
        history = {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}
        state = {"args": None, "cfg": OmegaConf.to_container(cfg, resolve=True), "model": model.state_dict()}
        state |= {"optimizer_history": [history], "extra_state": {"train_iterator": {"epoch": 1}}}
        found[name] = folder / f"{name}.pt"
        torch.save(state | {"task_state": task.state_dict()}, found[name])
    return found


@pytest.mark.parametrize("forced", [False, True], ids=["free", "forced"])
def test_checkpoints(
    forced: bool,
    trained: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, plot = tmp_path / "numbers.json", tmp_path / "plot.svg"
    monkeypatch.setattr(SCRIPT, "BINS", (2, 3))
    words = ["--data", trained["data"], "--out", out, "--plot", plot]
    words += ["--force-length"] if forced else ["--length-beam", 2]
    names = ("my-transformer", "my-ibdecoder", "my-cmlmc")
    checkpoints = [f"{name}={trained[name.removeprefix('my-')]}" for name in names]
    run(monkeypatch, *words, "--checkpoint", *checkpoints, systems=["ar"])
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["lengths"] == [[3, 2], [1, 3], [2, 1]]
    rows = {(row["system"], row["decoding"]): row for row in result["decoding"]}
    assert {system for system, _ in rows} == {"ar", *names} | {f"my-transformer-{x}" for x in CTRANSLATE2}
    for (name, _), row in rows.items():
        assert ("bleu" in row) == ("bleu_by_source_length" in row) == (name != "ar" and not forced)
        if "bleu" in row:
            assert list(row["bleu_by_source_length"]) == ["<2", "2-2", "3+"]
        pattern = {"ar": (1, 1), "my-ibdecoder": (2, 1)}.get(name, (None, None))
        assert (row.get("directions"), row.get("words_per_direction")) == pattern
        if forced or name == "ar":
            assert row["tokens"] == 6 + 3
    if not forced:
        assert rows["my-transformer", "beam 1"]["tokens"] == 3 * 2
        for beam in ("beam 4", "beam 1") if CTRANSLATE2 else ():
            ours, theirs = (rows[name, beam] for name in ("my-transformer", "my-transformer-ctranslate2"))
            assert (ours["tokens"], ours["bleu"]) == (theirs["tokens"], theirs["bleu"])
    assert ("| BLEU |" in capsys.readouterr().out) == (not forced)
    assert plot.is_file()

    pairs, _ = FIGURES.compared(result["decoding"], "my-transformer")
    panels = [panel for figure in (FIGURES.by_length, FIGURES.by_pattern) for panel in figure(pairs)[0]]
    found = [panel.ylabel for panel in panels if "my-ibdecoder float32" in " ".join(panel.lines)]
    assert found == (["speed-up"] * 2 if forced else ["BLEU", "speed-up"] * 2 + ["BLEU"] * 2)


def test_a_checkpoint_may_have_the_name_of_a_system(
    trained: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "numbers.json"
    words = ("--data", trained["data"], "--out", out, "--force-length", "--checkpoint", f"ar={trained['ibdecoder']}")
    run(monkeypatch, *words, systems=["ibdecoder"])
    result = json.loads(out.read_text(encoding="utf-8"))
    assert {row["system"] for row in result["decoding"]} == {"ibdecoder", "ar"}
    assert result["bound"] is None  # which is of the system


@pytest.mark.parametrize("more", [["ar=a.pt"], ["mine=a.pt", "mine=b.pt"]])
def test_one_name_for_two_systems(
    more: list[str], trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--data", trained["data"], "--checkpoint", *more, systems=["ar"])
    assert stopped.value.code == 2
    name = more[-1].partition("=")[0]
    assert capsys.readouterr().err.endswith(f"--systems and --checkpoint: two systems have the name {name}\n")


def test_text_is_detokenised(trained: dict[str, Path]) -> None:
    words = Dictionary()
    tokens = [words.add_symbol(word) for word in ("Hal@@", "lo", ",", "Welt", "!")]
    test = trained_models.TestSet(str(trained["data"]), [], sentences=2)
    assert (test.lengths, test.references) == ([2, 3], ["w7 w6", "w8 w8 w8"])
    assert test.text([4, 5, 2]) == "w4 w5"
    test.target, test.settings = words, {"post_process": "subword_nmt", "tokenizer": "moses"}
    assert test.text([*tokens, 2]) == "Hallo, Welt!"


def test_bleu_by_length(trained: dict[str, Path]) -> None:
    test = trained_models.TestSet(str(trained["data"]), [], sentences=None)
    test.references = ["w4 w5 w6 w7", "w4", "w8 w9 w10 w11 w12"]
    bins = SCRIPT.by_length([[5] * n for n in (25, 3, 12)])
    assert bins == {"<10": [1], "10-19": [2], "20-29": [0]}
    scores = test.bleu({0: [9, 9, 9, 9, 2], 1: [4, 2], 2: [8, 9, 10, 11, 12, 2]}, {**bins, "all": [0, 1, 2]})
    by_length = scores["bleu_by_source_length"]
    assert list(by_length) == [*bins, "all"]
    assert by_length["10-19"] == pytest.approx(100)
    assert by_length["20-29"] < scores["bleu"] == by_length["all"] < 100


def test_checkpoints_of_two_directions(trained: dict[str, Path]) -> None:
    tasks = [Namespace(cfg=Namespace(source_lang=a, target_lang=b)) for a, b in (("en", "de"), ("de", "en"))]
    with pytest.raises(ValueError, match="different directions"):
        trained_models.TestSet(str(trained["data"]), tasks, None)
    test = trained_models.TestSet(str(trained["data"]), tasks[1:], None)
    assert test.references == ["w5 w6 w7", "w8", "w9 w10"]
