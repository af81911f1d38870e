"""examples/text_to_speech: the loader and the distortions by hand and by fairseq's code, the command on tones."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import numpy as np
import pytest
import torch
from numpy import ndarray

pytest.importorskip("librosa")
sys.path.insert(0, str(commands.ROOT / "examples/text_to_speech"))
import distortion
import distortion_table
import prepare
import soundfile
import speak
import tones
from fairseq import options
from fairseq.data import Dictionary
from fairseq.data.audio.audio_utils import TTSMelScale, TTSSpectrogram
from fairseq.tasks.text_to_speech import batch_compute_distortion, compute_rms_dist

from amlp_fairseq.models.text_to_speech import PluginFastSpeech2Model, PluginTTSTransformerModel
from amlp_fairseq.training.results import read_results

RESULTS = commands.ROOT / "docs/results/text_to_speech.jsonl"
ALIGNMENT = "Begin,End,Label,Type,Speaker\n0.5,1.0,HH,phones,x\n1.0,1.2,AY,phones,x\n0.5,1.2,hi,words,x\n"


def paths(n: int, m: int) -> Iterator[list[tuple[int, int]]]:
    """All paths of time warping from the first pair of frames to the pair (n, m)."""
    if n == m == 0:
        yield [(0, 0)]
    for i, j in ((1, 1), (1, 0), (0, 1)):
        if n >= i and m >= j:
            for path in paths(n - i, m - j):
                yield [*path, (n, m)]


def test_time_warping_by_hand() -> None:
    """A frame that is held costs nothing; what differs costs its difference, once for each pair."""
    a, b = np.array([[0.0], [1.0], [1.0], [5.0]]), np.array([[0.0], [1.0], [3.0]])
    # 0 0 | 1 1 | 1 1 | 5 3
    assert distortion.warped_distance(a, b) == (2.0, 4)
    # √((3² + 4²) / 2), twice
    assert distortion.warped_distance(np.array([[3.0, 4.0]]), np.zeros((2, 2))) == (pytest.approx(2 * 12.5**0.5), 2)


def test_time_warping_by_all_paths() -> None:
    rng = np.random.default_rng(1)
    for n, m in ((1, 1), (2, 5), (4, 4), (5, 3)):
        a, b = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))
        costs = {
            sum(float(np.sqrt(np.mean((a[i] - b[j]) ** 2))) for i, j in path): len(path) for path in paths(n - 1, m - 1)
        }
        assert distortion.warped_distance(a, b) == (pytest.approx(min(costs)), costs[min(costs)])


def test_distortions_are_fairseqs() -> None:
    """Spectra and coefficients by their formulas in float64, aligned by fairseq's own time warping."""
    rng, rate = np.random.default_rng(2), 8000
    waveforms = [rng.normal(size=n) * np.linspace(1, 0.01, n) for n in (1700, 1300)]

    def spectrum(waveform: ndarray) -> ndarray:
        padded = np.pad(waveform, 200, mode="reflect")
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
        frames = [padded[start : start + 400] * window for start in range(0, len(waveform) + 1, 100)]
        power = np.abs(np.fft.rfft(frames)) ** 2
        mels = np.linspace(2595 * np.log10(1 + 20 / 700), 2595 * np.log10(1 + 4000 / 700), 82)
        points = 700 * (10 ** (mels / 2595) - 1)
        triangles = [np.interp(np.arange(201) * 20, points[i : i + 3], [0, 1, 0]) for i in range(80)]
        return np.log(power @ np.array(triangles).T + 1e-6)

    def cepstrum(waveform: ndarray) -> ndarray:
        k, n = np.arange(13)[:, None], np.arange(80)
        basis = np.sqrt(2 / 80) * np.cos(np.pi * k * (2 * n + 1) / 160)
        basis[0] /= np.sqrt(2)
        return spectrum(waveform) @ basis.T

    found = distortion.distortions(*waveforms, rate)
    for name, formula in (("mcd", cepstrum), ("msd", spectrum)):
        a, b = ([torch.from_numpy(waveform)] for waveform in waveforms)
        ((distance, extra),) = batch_compute_distortion(
            a, b, rate, lambda y, formula=formula: torch.from_numpy(formula(y.numpy())), compute_rms_dist, None
        )
        assert found[name] == (pytest.approx(float(distance), rel=1e-4), int(extra[-1].sum()))


def test_the_spectrogram_is_what_fairseqs_vocoder_reads() -> None:
    waveform = np.random.default_rng(3).normal(size=4000).astype(np.float32)
    magnitudes = TTSSpectrogram(1024, 1024, 256)(torch.from_numpy(waveform)[None])
    expected = TTSMelScale(80, 22050, 20, 8000, 513)(magnitudes)[0].clamp(min=1e-5).log().T
    mel, energy = prepare.spectrogram(waveform)
    np.testing.assert_allclose(mel, expected, atol=1e-3)
    np.testing.assert_allclose(energy, magnitudes[0].norm(dim=0), rtol=1e-4)


def test_an_alignment_by_hand(tmp_path: Path) -> None:
    """Silence before and behind the phones; boundaries are rounded to frames of 256 / 22050 seconds."""
    path = tmp_path / "x.csv"
    path.write_text(ALIGNMENT, encoding="utf-8")
    ends = prepare.read_alignment(path, 1.5)
    assert ends == [("sil", 0.5), ("HH", 1.0), ("AY", 1.2), ("sil", 1.5)]
    # 43.07, 86.13, 103.36, and all of the 130 frames
    assert prepare.durations([end for _, end in ends], 130).tolist() == [43, 43, 17, 27]
    assert prepare.means(np.array([1.0, 3.0, 5.0]), np.array([2, 0, 1])).tolist() == [2.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Begin,End\n0,1\n", "needs the columns Begin, End, Label and Type"),
        (ALIGNMENT.replace("0.5,1.0", "0.5,?"), "with times in seconds"),
        (ALIGNMENT.replace("1.0,1.2", "0.8,1.2"), "'AY' from 0.8 to 1.2 does not follow what ends at 1"),
        (ALIGNMENT.replace("1.0,1.2", "1.0,nan"), "'AY' from 1.0 to nan does not follow what ends at 1"),
        (ALIGNMENT.replace("1.0,1.2", "1.0,inf"), "'AY' from 1.0 to inf does not follow what ends at 1"),
        ("Begin,End,Label,Type,Speaker\n", "x.csv has no phones"),
    ],
)
def test_what_is_no_alignment(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        prepare.read_alignment(path, 2.0)


def test_what_is_no_corpus(tmp_path: Path) -> None:
    metadata = tmp_path / "metadata.csv"
    for line in ("LJ001-0001|a", "LJ001-0001|a|a\tb"):
        metadata.write_text(f"{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"metadata.csv, line 1: 'name\|transcription\|normalised transcription'"):
            prepare.read_metadata(metadata)
    metadata.write_text("LJ001-0001|a|a\nLJ004-0001|a|a\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no utterance of the set 'dev'"):
        prepare.read_metadata(metadata)
    wav = tmp_path / "a.wav"
    wav.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"a.wav is no recording"):
        prepare.read_recording(wav)
    soundfile.write(wav, np.zeros((2000, 2)), 16000)
    with pytest.raises(ValueError, match=r"a.wav has 2 channel\(s\) at 16000 Hz, needed is one at 22050 Hz"):
        prepare.read_recording(wav)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tones, prepared with their alignments."""
    folder = tmp_path_factory.mktemp("tones")
    tones.write_tones(folder / "recorded")
    prepare.prepare(folder / "recorded", folder / "data", folder / "recorded/alignments")
    return folder / "data"


def test_the_tones_are_read_as_they_were_made(data: Path) -> None:
    """Each symbol with its duration, to a frame."""
    lines = (data / "train.tsv").read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t")
    for line in lines[1:]:
        row = dict(zip(header, line.split("\t"), strict=True))
        assert len(np.load(data / row["audio"])) == int(row["n_frames"]) == sum(map(int, row["duration"].split()))
        for symbol, frames in zip(row["tgt_text"].split(), row["duration"].split(), strict=True):
            assert abs(int(frames) - tones.SYMBOLS[symbol][1] * 22050 / 256) < 2
    with pytest.raises(FileExistsError, match="is prepared already"):
        prepare.prepare(data, data, None)


def test_the_pitch_of_a_tone() -> None:
    """Also in the silence behind it; silence alone has none."""
    tone = np.sin(2 * np.pi * 220 * np.arange(8192) / 22050)
    pitch = prepare.log_pitch(np.concatenate([tone, np.zeros(4096)]), 49)
    assert pitch.shape == (49,)
    assert np.exp(pitch) == pytest.approx(220, rel=0.03)
    assert not prepare.log_pitch(np.zeros(4096), 17).any()


def trained(data: Path, row: str, updates: int, folder: Path) -> dict[str, Any]:
    """The scores of a row of the reduced scale after some updates."""
    words = speak.command(data, row, "reduced", 1, folder / row, ["--max-update", str(updates), "--cpu"])
    commands.run("fairseq_cli.train", *words, "--user-dir", commands.PLUGIN)
    return speak.score(folder / row / "checkpoint_best.pt", data, "test", folder / "spoken")


def test_a_model_learns_to_speak(data: Path, tmp_path: Path) -> None:
    """FastSpeech 2 with AMLP: after its training it is far better than before, and than the mean frame."""
    before = trained(data, "fastspeech2_amlp", 1, tmp_path / "before")
    after = trained(data, "fastspeech2_amlp", 400, tmp_path / "after")
    for kind in ("mcd", "msd"):
        assert after[kind] < 0.5 * before[kind]
        assert after[kind] < 0.5 * after[f"mean_frame_{kind}"]
    assert after["length"] == pytest.approx(1, abs=0.05)
    assert after["frames_per_second"] > 0
    assert len(list((tmp_path / "after/spoken").glob("*.spoken.wav"))) == tones.TEXTS


@pytest.mark.long
def test_the_autoregressive_model_learns_to_speak(data: Path, tmp_path: Path) -> None:
    after = trained(data, "tts_transformer_local", 300, tmp_path)
    assert after["mcd"] < 0.7 * after["mean_frame_mcd"]
    assert after["length"] == pytest.approx(1, abs=0.2)


def test_the_command(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Each row is trained once, with the options behind ``--``; the table has the paper's numbers."""
    calls: list[list[str]] = []
    scores = {"mcd": 1.5, "msd": 0.5, "mean_frame_mcd": 8.0, "mean_frame_msd": 4.0, "length": 1.0, "parameters": 380000}
    monkeypatch.setattr(speak, "train", calls.append)
    monkeypatch.setattr(speak, "score", lambda *_: scores)
    results = tmp_path / "results.jsonl"
    words = ["speak.py", str(data), "--row", "fastspeech2_amlp", "--results", str(results), "--work", str(tmp_path)]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [*words, "--", "--lr", "0.1"])
        speak.main()
    assert len(calls) == len(read_results(results)) == 1
    assert calls[0][-2:] == ["--lr", "0.1"]
    table = capsys.readouterr().out
    assert (
        "| fastspeech2_amlp    | 0.38M      | 1.500 | 0.500 | 1.00   | FS2 (AMLP) | 41.49M     | 3.327 | 1.940 |"
        in table
    )
    assert "| mean frame repeated |            | 8.000 | 4.000 |" in table


def test_a_training_for_each_inner_dimension(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Of the rows that have one; each prints its distortion and speed."""
    calls: list[list[str]] = []
    scores = {"mcd": 1.5, "msd": 0.5, "frames_per_second": 2000.0, "parameters": 380000}
    monkeypatch.setattr(speak, "train", calls.append)
    monkeypatch.setattr(speak, "score", lambda *_: {**scores, "mcd": len(calls)})
    words = ["speak.py", str(data), "--row", "fastspeech2", "fastspeech2_amlp", "--inner-dim", "2", "8"]
    monkeypatch.setattr(sys, "argv", [*words, "--work", str(tmp_path), "--", "--lr", "0.1"])
    speak.main()
    plain, two, eight = calls
    assert plain[-2:] == ["--lr", "0.1"]
    assert (two[-2:], eight[-2:]) == (["--attention-inner-dim", "2"], ["--attention-inner-dim", "8"])
    assert [line.split("|")[1:7] for line in capsys.readouterr().out.splitlines()[2:]] == [
        [f" {name:<16} ", f" {c:<1} ", " 0.38M      ", f" {mcd} ", " 0.500 ", " 2000     "]
        for name, c, mcd in (
            ("fastspeech2", "", "1.000"),
            ("fastspeech2_amlp", "2", "2.000"),
            ("fastspeech2_amlp", "8", "3.000"),
        )
    ]


@pytest.mark.parametrize(
    ("changed", "trained_again"),
    [("train.tsv", True), ("dev.tsv", True), ("gcmvn_stats.npz", True), ("test.tsv", False), ("config.yaml", None)],
)
def test_other_data_of_the_same_name(
    changed: str, trained_again: bool | None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not continue the training of the first ones; with another test set alone, its model speaks again."""
    folders: list[Path] = []
    monkeypatch.setattr(speak, "train", lambda words: None)
    monkeypatch.setattr(speak, "score", lambda checkpoint, *_: folders.append(checkpoint.parent) or {})
    monkeypatch.setattr(speak, "comparison", str)
    for name in ("first", "second"):
        same_name = shutil.copytree(data, tmp_path / name / "data")
        if name == "second":
            with open(same_name / changed, "ab") as file:
                file.write(b"\n")
        words = [str(same_name), "--row", "fastspeech2", "--results", str(tmp_path / "results.jsonl")]
        monkeypatch.setattr(sys, "argv", ["speak.py", *words, "--work", str(tmp_path / "work")])
        speak.main()
    assert len(folders) == (1 if trained_again is None else 2)
    assert (folders[0] != folders[-1]) == bool(trained_again)


def test_mistakes_end_in_one_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = tmp_path / "letters"
    letters.mkdir()
    for name in ("train", "dev", "test"):
        (letters / f"{name}.tsv").write_text("id\taudio\tn_frames\ttgt_text\n", encoding="utf-8")
    for words, message in (
        ([str(letters), "--row", "fastspeech2"], f"--row fastspeech2 needs durations, which {letters} does not have"),
        ([str(tmp_path / "none")], f"{tmp_path}/none/train.tsv does not exist"),
        ([str(data), "--subset", "tests"], f"{data}/tests.tsv does not exist"),
    ):
        monkeypatch.setattr(sys, "argv", ["speak.py", *words])
        with pytest.raises(SystemExit) as error:
            speak.main()
        assert str(error.value.code).startswith(f"speak.py: {message}")


@pytest.mark.parametrize("row", list(distortion_table.TABLE["rows"]))
def test_sizes_beside_the_papers(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the paper's scale each model has the published parameters, gMLP's excepted, whose lengths the paper does not
    give: to 1 % with a vocabulary of 80 symbols."""
    published = distortion_table.TABLE["rows"][row].get("published")
    if published is None or "gmlp" in row:
        pytest.skip("no number, or with lengths that are not known")
    words = speak.command(Path("data"), row, "paper", 1, Path("x"), [])
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    for name in ("pitch_min", "pitch_max", "energy_min", "energy_max"):
        setattr(args, name, 0.0)
    args.speaker_to_id, dictionary = None, Dictionary()
    for number in range(80):
        dictionary.add_symbol(str(number))
    task = SimpleNamespace(src_dict=dictionary, get_speaker_embeddings=lambda args: None)
    cls = PluginFastSpeech2Model if "fastspeech2" in row else PluginTTSTransformerModel
    size = sum(parameter.numel() for parameter in cls.build_model(args, task).parameters())
    assert size == pytest.approx(float(published[1].rstrip("M")) * 1e6, rel=0.01)


def test_the_results_are_those_of_the_rows() -> None:
    """docs/results/text_to_speech.jsonl has every row, each of the same data, and docs/text-to-speech.md shows them."""
    lines = read_results(RESULTS)
    assert [line["row"] for line in lines] == list(distortion_table.TABLE["rows"])
    assert len({json.dumps([line[name] for name in ("data", "scale", "subset", "options")]) for line in lines}) == 1
    page = (commands.ROOT / "docs/text-to-speech.md").read_text(encoding="utf-8")
    assert distortion_table.comparison(lines) in page
