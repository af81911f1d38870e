"""examples/time_series: the loader and the scores by hand, the model with every attention, the command."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from torch import Tensor

from amlp_fairseq.attention.registry import ATTENTIONS, supporting
from amlp_fairseq.training.results import read_results

sys.path.insert(0, str(commands.ROOT / "examples/time_series"))
import ett
import forecast
import seasons
import tables

COLUMNS = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
SIZES = {f"{side}_{name}": 8 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")}
SMALL = {**SIZES, "input_length": 6, "start_length": 4, "horizon": 3, "dropout": 0}
RESULTS = ("time_series", "time_series_amlp")
EVERY_SELF = sorted({*supporting("noncausal self"), *supporting("causal self")})


def rows(count: int = 610) -> list[list[float]]:
    """A row a day: a straight line, waves, a constant, and for OT a wave of ten days."""
    days = np.arange(count)
    waves = [np.sin(2 * np.pi * days / period) for period in (5, 7, 9, 11)]
    return np.stack([3 * days, *waves, np.full(count, 4.0), 20 + 2 * np.sin(days / 10 * 2 * np.pi)], axis=1).tolist()


def write(path: Path, values: list[list[float]], header: str = ",".join(["date", *COLUMNS])) -> Path:
    dates = [datetime(2016, 7, 1) + timedelta(days=day) for day in range(len(values))]
    lines = [f"{date},{','.join(map(str, row))}" for date, row in zip(dates, values, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def series(values: list[list[float]]) -> ett.Series:
    dates = [datetime(2016, 7, 1) + timedelta(days=day) for day in range(len(values))]
    return ett.Series("toy", tuple(COLUMNS), dates, np.array(values), "0")


def job(monkeypatch: pytest.MonkeyPatch, attention: str = "softmax", *flags: str, **options: Any) -> forecast.Job:
    """A training of the small model on the toy series, with the options of a command line."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **options}.items()]
    monkeypatch.setattr(sys, "argv", ["forecast.py", *words, *flags])
    args = forecast.arguments()
    return forecast.Job(series(rows()), "multivariate", SMALL["horizon"], attention, 1, args)


# ---------------------------------------------------------------------------------------------------------- the loader


def test_standardised_by_the_training_part(tmp_path: Path) -> None:
    """By mean and deviation of the first 360 days; a constant is only shifted."""
    raw = rows()
    raw[400][0] = 1e6  # behind the training part: changes neither mean nor deviation
    found = ett.parts(ett.read_csv(write(tmp_path / "toy.csv", raw)), "multivariate", 6, 3)["train"].values
    for column in range(7):
        training = [row[column] for row in raw[:360]]
        deviation = statistics.pstdev(training) or 1
        expected = [(row[column] - statistics.fmean(training)) / deviation for row in raw[:360]]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-4, atol=1e-5)
    assert found[:, 5].eq(0).all()


@pytest.mark.parametrize(("part", "first", "last"), [("train", 0, 360), ("valid", 360, 480), ("test", 480, 600)])
def test_windows(part: str, first: int, last: int) -> None:
    """Every row of validation and test is predicted, from the 6 rows before, and none behind the 20 months."""
    windows = ett.parts(series(rows()), "multivariate", 6, 3)[part]
    begin = max(first - 6, 0)
    assert len(windows) == last - begin - 6 - 3 + 1
    inputs, stamps, targets = windows.batch(torch.tensor([0, len(windows) - 1]))
    days = [torch.round(x[..., 0] * statistics.pstdev(range(360)) + 179.5).long() for x in (inputs, targets)]
    assert days[0].tolist() == [list(range(begin, begin + 6)), list(range(last - 9, last - 3))]
    assert days[1].tolist() == [list(range(begin + 6, begin + 9)), list(range(last - 3, last))]
    assert stamps.shape == (2, 9, ett.STAMPS)
    date = datetime(2016, 7, 1) + timedelta(days=last - 1)
    assert float(stamps[1, -1, 3]) == pytest.approx((date.day - 1) / 30 - 0.5)


def test_univariate_is_the_last_column() -> None:
    both = [ett.parts(series(rows()), features, 6, 3)["test"].values for features in ett.FEATURES]
    assert both[1].shape[1] == 1
    assert torch.equal(both[0][:, -1:], both[1])


def test_time_features_by_hand() -> None:
    """Friday 1 July 2016 (day 183 of a leap year) 06:45, and the last minute of that year, a Saturday."""
    found = ett.time_features([datetime(2016, 7, 1, 6, 45), datetime(2016, 12, 31, 23, 59)])
    np.testing.assert_allclose(found[0], [45 / 59 - 0.5, 6 / 23 - 0.5, 4 / 6 - 0.5, -0.5, 182 / 365 - 0.5])
    np.testing.assert_allclose(found[1], [0.5, 0.5, 5 / 6 - 0.5, 0.5, 0.5])


@pytest.mark.parametrize(("old", "new"), [(",OT", ",oil"), ("2016-07", "2017-07"), (",2\n", ",3\n"), ("\n", "\r\n")])
def test_all_that_is_read_tells_series_apart(old: str, new: str, tmp_path: Path) -> None:
    path, text = tmp_path / "a.csv", "date,OT\n2016-07-01,1\n2016-07-02,2\n"
    checksums = set()
    for written in (text, text.replace(old, new)):
        path.write_text(written, encoding="utf-8", newline="")
        checksums.add(ett.read_csv(path).sha256)
    assert len(checksums) == (1 if old == "\n" else 2)


def quarter_hours(count: int) -> str:
    dates = [datetime(2016, 7, 1) + timedelta(minutes=15 * number) for number in range(count)]
    return "date,OT\n" + "".join(f"{date},1\n" for date in dates)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line must be date and the names of variables, not ''"),
        ("time,OT\n", "the first line must be date and the names of variables, not 'time,OT'"),
        ("date,OT\n", "rows must follow each other"),
        ("date,OT\n2016-07-01,1\n2016-07-01,2\n", "rows must follow each other"),
        (
            "date,OT\n2016-07-01 00:00:00,1\n2016-07-01 00:00:30,2\n",
            "rows must follow each other at a distance in minutes",
        ),
        ("date,OT\n2016-07-01,1\n2016-07-02 00:00:00+00:00,2\n", "line 3: 2016-07-02 00:00:00+00:00 has a time zone"),
        ("date,OT\n2016-07-01,1\n2016-07-02,x\n", "line 3: "),
        ("date,OT\n2016-07-01,1\n2016-07-02,nan\n", "line 3: 1 finite numbers are needed"),
        ("date,OT\n2016-07-01,1\n2016-07-02,1,1\n", "line 3: 1 finite numbers are needed"),
        ("date,OT\n2016-07-01,1\nyesterday,1\n", "line 3: "),
        ("date,OT\n2016-07-01,1\n2016-07-02,1\n2016-07-04,1\n", "line 4: 2016-07-04 is not 1 day, 0:00:00 after"),
        (quarter_hours(8), "8 rows; 12 + 4 + 4 months of 30 days are 57600 (96 a day)"),
    ],
)
def test_files_that_are_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    refused(monkeypatch, capsys, message, path)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, *words: object) -> None:
    """The command ends with one line that has the message."""
    with pytest.raises(SystemExit) as error:
        commands.call(forecast, monkeypatch, *words)
    line = capsys.readouterr().err + (error.value.code if isinstance(error.value.code, str) else "")
    assert message in line
    assert line.startswith("forecast.py: ")
    assert line.strip().count("\n") == 0


# ---------------------------------------------------------------------------------------------------------- the scores


class LastValue(torch.nn.Module):
    def forward(self, inputs: Tensor, stamps: Tensor) -> Tensor:
        return inputs[:, -1:]


@pytest.mark.parametrize("together", [1, 2, 8])
def test_scores_by_hand(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0 1 3 6 10 15 the last value misses 3 6, 6 10 and 10 15 by 2 5, 3 7 and 4 9, however many windows are scored
    at once."""
    monkeypatch.setattr(forecast, "SCORED", together)
    values = torch.tensor([[0.0], [1.0], [3.0], [6.0], [10.0], [15.0]])
    windows = ett.Windows(values, torch.zeros(6, ett.STAMPS), input_length=2, horizon=2)
    assert forecast.score(LastValue(), windows, "cpu") == pytest.approx(((4 + 25 + 9 + 49 + 16 + 81) / 6, 5))


@pytest.mark.parametrize(("rows_per_day", "expected"), [(3, [2, 3, 4, 2, 3]), (1, [4] * 5), (9, [0, 1, 2, 3, 4])])
def test_last_day_repeated(rows_per_day: int, expected: list[int]) -> None:
    inputs = torch.arange(5.0).view(1, 5, 1)
    found = forecast.RepeatedDay(rows_per_day, 5)(inputs, torch.empty(0))
    assert found.flatten().tolist() == expected


def test_averages_of_the_tables() -> None:
    """Over features and horizons of a data set, then over the sets, each of which counts the same."""
    cases = [("a", 1, 1.0, 3.0), ("a", 2, 2.0, 5.0), ("b", 1, 4.5, 6.0)]
    lines = [
        {
            "data": data,
            "features": "univariate",
            "horizon": horizon,
            "cross_attention": "amlp_cov",
            "parameters": 12345678,
        }
        | {"mse": mse, "mae": mae, "repeated_day_mse": mse + 1, "repeated_day_mae": mae + 1}
        for data, horizon, mse, mae in cases
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.comparison(lines).splitlines()]
    assert cells[0][:6] == ["cross-attention", "parameters", "a", "b", "Avg.", "paper"]
    assert cells[2][:5] == ["last day repeated", "", "2.500 / 5.000", "5.500 / 7.000", "4.000 / 6.000"]
    assert cells[3][:6] == ["amlp_cov", "12.35M", "1.500 / 4.000", "4.500 / 6.000", "3.000 / 5.000", "AMLP"]
    assert cells[3][7:] == ["0.797 / 0.702", "1.504 / 0.864", "0.718 / 0.684", "1.006 / 0.750"]


def test_published_averages_are_of_the_published_numbers() -> None:
    for row in tables.TABLE["published"]:
        for kind in (0, 1):
            average = statistics.fmean(row[name][kind] for name in ("ETTh1", "ETTh2", "ETTm1"))
            assert row["Avg."][kind] == pytest.approx(average, abs=0.0011), row


# ----------------------------------------------------------------------------------------------------------- the model


def check_model(found: forecast.Job) -> None:
    """Values from the beginning of the horizon on do not reach the forecast; the last input and the weights do."""
    model = found.model().eval()
    windows = found.windows()["test"]
    changed = np.array(rows())
    changed[490:] += 100
    with_change = dataclasses.replace(found, series=series(changed.tolist())).windows()["test"]
    # Test windows begin 6 rows before row 480: the one from row 484 on has the horizon 490, 491, 492.
    forecasts = [model(*each.batch(torch.tensor([10, 11]))[:2]) for each in (windows, with_change)]
    assert forecasts[0].shape == (2, 3, 7)
    assert torch.equal(forecasts[0][0], forecasts[1][0])
    assert not torch.allclose(forecasts[0][1], forecasts[1][1])
    forecasts[0].square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values()), gradients


@pytest.mark.parametrize("attention", supporting("noncausal cross"))
def test_every_cross_attention_forecasts(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_model(job(monkeypatch, attention))


@pytest.mark.parametrize("attention", EVERY_SELF)
def test_every_self_attention_forecasts(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that cannot be masked stand in a decoder that sees both sides, all that can in the encoder, too."""
    options = {}
    if attention in supporting("noncausal self"):
        options["encoder_self_attention_type"] = attention
    flags = [] if attention in supporting("causal self") else ["--unmasked-decoder"]
    check_model(job(monkeypatch, "softmax", *flags, **options, decoder_self_attention_type=attention))


def test_all_attentions_stand_somewhere() -> None:
    assert {*EVERY_SELF, *supporting("noncausal cross")} >= ATTENTIONS.keys()


@pytest.mark.parametrize("flags", [[], ["--unmasked-decoder"]])
def test_the_mask_of_the_decoder(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked, only the last row of the forecast sees the last time stamp."""
    found = job(monkeypatch, "softmax", *flags)
    inputs, stamps, _ = found.windows()["test"].batch(torch.tensor([0]))
    changed = stamps.clone()
    changed[0, -1] += 1
    model = found.model().eval()
    moved = (model(inputs, stamps) - model(inputs, changed)).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [bool(flags), bool(flags), True]


def test_distilling_halves_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    model = job(monkeypatch, encoder_layers=3).model().eval()
    assert model.encode(torch.zeros(2, 6, 8)).shape == (2, 2, 8)  # 6, 3, 2


def test_parameters_of_table_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forecast.py", "--scale", "paper"])
    model = forecast.Job(seasons.seasons(), "multivariate", 24, "softmax", 1, forecast.arguments()).model()
    assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M" == tables.TABLE["published"][0]["parameters"]


# --------------------------------------------------------------------------------------------------------- the command


def test_trains_and_scores_each_attention_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wave of ten days is learned; what the file of results has is not trained again."""
    data, results = write(tmp_path / "waves.csv", rows()), tmp_path / "results.jsonl"
    options: dict[str, Any] = {**SMALL, "epochs": 4, "lr": 0.02, "features": "univariate", "results": results}
    options |= {"decoder_cross_attention_type": ["softmax", "amlp_pquery"], "input_length": 12}
    commands.call(forecast, monkeypatch, data, **{**options, "batch_size": 8})
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [line["cross_attention"] for line in lines] == ["softmax", "amlp_pquery"]
    for line in lines:
        assert line["mse"] < line["repeated_day_mse"] / 4
        assert line["mae"] < line["repeated_day_mae"] / 2
        assert {"data": "waves", "horizon": 3, "features": "univariate", "seed": 1}.items() <= line.items()
        assert line["options"]["lr"] == 0.02
        assert {"commit", "device", "torch"} <= line.keys()
        assert f"{line['mse']:.3f} / {line['mae']:.3f}" in printed.out
    assert "amlp_pquery, seed 1: epoch 4 of 4" in printed.err

    commands.call(forecast, monkeypatch, data, **{**options, "batch_size": 8})
    again = capsys.readouterr()
    assert (again.out, again.err) == (printed.out, "")
    commands.call(forecast, monkeypatch, data, **{**options, "batch_size": 300, "epochs": 1})
    assert len(results.read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.csv"], "missing.csv does not exist"),
        (["--decoder-cross-attention-type", "xca"], "xca: it cannot be noncausal cross attention; choose one of abc,"),
        (["--decoder-cross-attention-type", "amlp-cov"], "'amlp-cov' is unknown; did you mean amlp_cov?"),
        (["--decoder-self-attention-type", "performer"], "performer: it cannot be masked; add --unmasked-decoder, or"),
        (["--start-length", "73"], "--start-length 73 is more than --input-length 72"),
        (["--horizon", "2881"], "--input-length 72 and --horizon 2881 are too long for the valid part of synthetic"),
        (["--horizon", "9999"], "--input-length 72 and --horizon 9999 are too long for the train part of synthetic"),
        (["--attention-dropout", "1.5"], "--attention-dropout 1.5 must be from 0 to below 1"),
        (["--horizon", "0"], "a number from 1 is needed"),
        (["--encoder-attention-heads", "3"], "--encoder-embed-dim 32 must be at least 4, and divisible by"),
        (["--scale", "papers"], "--scale 'papers' is unknown; did you mean paper?"),
        (["--epoch", "1"], "--epoch is unknown; did you mean --epochs?"),
        (["--device", "gpu"], "--device gpu cannot be used"),
        (["--lr", "-1"], "--lr -1.0 must be above 0"),
        (["--results", "/dev/null/results.jsonl"], "/dev/null exists"),
    ],
)
def test_mistakes(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(monkeypatch, capsys, message, *words)


def test_an_unknown_distance_needs_a_horizon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "daily.csv", rows())
    refused(monkeypatch, capsys, "daily has a row every 1440 minutes: --horizon is needed", path, "--scale", "paper")


def test_the_synthetic_series() -> None:
    """Its strongest period is a day, in every load; another seed gives another series."""
    found = seasons.seasons()
    assert found.columns == tuple(COLUMNS)
    assert found.rows_per_day == 24
    assert found.values.shape == (20 * 30 * 24, 7)
    for load in found.values[:, :6].T:
        power = np.abs(np.fft.rfft(load - load.mean())) ** 2
        assert 24 in {len(load) / peak for peak in np.argsort(power)[-2:]}
    assert found.sha256 == seasons.seasons().sha256 != seasons.seasons(seed=2).sha256


def test_the_page_shows_the_committed_results() -> None:
    page = (commands.ROOT / "docs/time-series.md").read_text(encoding="utf-8")
    lines, others = (read_results(commands.ROOT / f"docs/results/{name}.jsonl") for name in RESULTS)
    assert {line["data_sha256"] for line in lines + others} == {seasons.seasons().sha256}
    assert tables.details(lines) in page
    assert tables.comparison(lines) in page
    for line in others:
        assert tables.both(line["mse"], line["mae"]) in page
