"""Make what fairseq's text_to_speech reads from a folder like LJSpeech's.

    python examples/text_to_speech/prepare.py LJSpeech-1.1 DATA [--alignments FOLDER]

LJSpeech-1.1 has metadata.csv and wavs/. As in fairseq's recipe, LJ001 and LJ002 are the test set, LJ003 is the
validation set, and the rest is for training. The text is read by letters; with alignments by their phones, with
durations, pitch and energy, which FastSpeech 2 needs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import yaml
from numpy import ndarray

from amlp_fairseq.common.arguments import Parser
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.librosa_import import import_librosa
from amlp_fairseq.common.user_errors import one_line_errors

SAMPLE_RATE, WINDOW, HOP, CHANNELS = 22050, 1024, 256, 80
LOWEST, HIGHEST = 20, 8000
#: The least value of a mel spectrogram before the logarithm.
FLOOR = 1e-5
#: Where the pitch of a voice is looked for, in Hz.
PITCHES = 71, 800
#: The set of an utterance by the first part of its name; all others are for training.
SETS = {"LJ001": "test", "LJ002": "test", "LJ003": "dev"}
#: What is said between the phones of an alignment.
SILENCE = "sil"


class Utterance(NamedTuple):
    """A line of ``metadata.csv``."""

    name: str
    text: str

    @property
    def set(self) -> str:
        return SETS.get(self.name.split("-")[0], "train")


def read_metadata(path: Path) -> list[Utterance]:
    """The utterances with their normalised transcriptions.

    Raises:
        ValueError: naming a line that is not ``name|transcription|normalised transcription``, or a set without
            utterances.
    """
    utterances = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        parts = line.split("|")
        if len(parts) != 3 or not parts[0] or not parts[2].strip() or "\t" in line:
            raise ValueError(
                f"{path}, line {number}: 'name|transcription|normalised transcription' without tabs is needed, "
                f"not {line!r}"
            )
        utterances.append(Utterance(parts[0], parts[2]))
    for name in ("train", "dev", "test"):
        if not any(utterance.set == name for utterance in utterances):
            raise ValueError(
                f"{path} has no utterance of the set {name!r}: names begin with {', '.join(SETS)} or others"
            )
    return utterances


def read_alignment(path: Path, seconds: float) -> list[tuple[str, float]]:
    """The phones with the time in seconds at which each ends, and silence between them.

    Args:
        path: a table of the Montreal Forced Aligner (``--output_format csv``).
        seconds: the duration of the utterance.

    Raises:
        ValueError: if it lacks a column, or its times are no numbers or do not increase.
    """
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        phones = [(row["Label"], float(row["Begin"]), float(row["End"])) for row in rows if row["Type"] == "phones"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} needs the columns Begin, End, Label and Type, with times in seconds: {error}"
        ) from None
    ends: list[tuple[str, float]] = []
    now = 0.0
    for label, begin, end in phones:
        if not now - 1e-3 <= begin <= end < np.inf:  # nan is not, either
            raise ValueError(f"{path}: {label!r} from {begin} to {end} does not follow what ends at {now:g}")
        if begin > now + 1e-3:
            ends.append((SILENCE, begin))
        ends.append((label or SILENCE, end))
        now = end
    if not phones:
        raise ValueError(f"{path} has no phones")
    return [*ends, (SILENCE, seconds)] if seconds > now + 1e-3 else ends


def durations(ends: list[float], frames: int) -> ndarray:
    """The numbers of frames of symbols that end at these times in seconds; their sum is ``frames``."""
    boundaries = np.round(np.array(ends) * SAMPLE_RATE / HOP).astype(int).clip(max=frames)
    boundaries[-1] = frames
    return np.diff(boundaries, prepend=0)


def spectrogram(waveform: ndarray) -> tuple[ndarray, ndarray]:
    """Log mel spectrogram (frames, 80), which fairseq's Griffin-Lim vocoder can read, and the norms of the frames'
    spectra (frames,), of samples (n,)."""
    librosa = import_librosa()
    magnitudes = np.abs(librosa.stft(waveform, n_fft=WINDOW, hop_length=HOP, pad_mode="reflect"))
    mel = librosa.feature.melspectrogram(
        S=magnitudes, sr=SAMPLE_RATE, n_fft=WINDOW, n_mels=CHANNELS, fmin=LOWEST, fmax=HIGHEST
    )
    return np.log(mel.clip(min=FLOOR)).T.astype(np.float32), np.linalg.norm(magnitudes, axis=0)


def log_pitch(waveform: ndarray, frames: int) -> ndarray:
    """Log of the fundamental frequency in Hz of each frame (frames,), interpolated where there is no voice; 0 if there
    is none at all."""
    pitch, voiced, _ = import_librosa().pyin(
        waveform, sr=SAMPLE_RATE, fmin=PITCHES[0], fmax=PITCHES[1], frame_length=WINDOW, hop_length=HOP
    )
    if not voiced.any():
        return np.zeros(frames)
    return np.interp(np.arange(frames), np.flatnonzero(voiced), np.log(pitch[voiced]))


def means(values: ndarray, counts: ndarray) -> ndarray:
    """The mean of the values (frames,) of each symbol that has so many frames; 0 for symbols without frames."""
    parts = np.split(values, np.cumsum(counts)[:-1])
    return np.array([part.mean() if len(part) else 0.0 for part in parts], dtype=np.float32)


def prepare(folder: Path, data: Path, alignments: Path | None) -> None:
    """Write manifests, features, vocabulary and ``config.yaml``, the latter last.

    Raises:
        ValueError: for a recording or an alignment that cannot be used.
        FileExistsError: if ``data`` is prepared already.
    """
    if (data / "config.yaml").exists():
        raise FileExistsError(f"{data} is prepared already: give another folder")
    utterances = read_metadata(folder / "metadata.csv")
    data = data.absolute()  # fairseq looks for what config.yaml names from the folder that it is started in
    kinds = ("mel", "pitch", "energy") if alignments else ("mel",)
    for kind in kinds:
        (data / kind).mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "dev": [], "test": []}
    ranges: dict[str, list[float]] = {"pitch": [], "energy": []}
    moments, count = np.zeros((2, CHANNELS)), 0
    for number, utterance in enumerate(utterances, 1):
        path = folder / "wavs" / f"{utterance.name}.wav"
        waveform = read_recording(path)
        mel, energy = spectrogram(waveform)
        row: dict[str, Any] = {"id": utterance.name, "audio": f"mel/{utterance.name}.npy", "n_frames": len(mel)}
        if alignments is None:
            row["tgt_text"] = " ".join(utterance.text.lower().replace(" ", "|"))
        else:
            ends = read_alignment(alignments / f"{utterance.name}.csv", len(waveform) / SAMPLE_RATE)
            counts = durations([end for _, end in ends], len(mel))
            row |= {"tgt_text": " ".join(symbol for symbol, _ in ends), "duration": " ".join(map(str, counts))}
            for kind, values in (("pitch", log_pitch(waveform, len(mel))), ("energy", np.log1p(energy))):
                averages = means(values, counts)
                ranges[kind] += [float(averages.min()), float(averages.max())]
                row[kind] = f"{kind}/{utterance.name}.npy"
                np.save(data / row[kind], averages)
        np.save(data / row["audio"], mel)
        rows[utterance.set].append(row)
        if utterance.set == "train":
            moments += mel.sum(axis=0, dtype=np.float64), np.square(mel, dtype=np.float64).sum(axis=0)
            count += len(mel)
        if number % 100 == 0 or number == len(utterances):
            print(f"{number} of {len(utterances)} utterances", file=sys.stderr)
    write_manifests(data, rows, moments / count, ranges)


def read_recording(path: Path) -> ndarray:
    """Samples between -1 and 1.

    Raises:
        ValueError: if it is no recording, or none of one channel at 22050 Hz.
    """
    path.stat()  # a missing file is named as such
    try:
        waveform, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path} is no recording: {error.error_string}") from None
    if waveform.shape[1] != 1 or rate != SAMPLE_RATE:
        raise ValueError(f"{path} has {waveform.shape[1]} channel(s) at {rate} Hz, needed is one at {SAMPLE_RATE} Hz")
    if len(waveform) < WINDOW:
        raise ValueError(f"{path} has {len(waveform)} samples, {WINDOW} are needed")
    return np.asarray(waveform[:, 0])


def write_manifests(
    data: Path, rows: dict[str, list[dict[str, Any]]], moments: ndarray, ranges: dict[str, list[float]]
) -> None:
    """Write what describes the features.

    Args:
        data: the folder.
        rows: the manifest of each set.
        moments: mean and mean square of each channel, (2, 80).
        ranges: values of pitch and energy, the least and the largest among them; empty without alignments.
    """
    for name, of_set in rows.items():
        with open(data / f"{name}.tsv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, list(of_set[0]), delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None
            )
            writer.writeheader()
            writer.writerows(of_set)
    symbols = Counter(symbol for row in rows["train"] for symbol in row["tgt_text"].split())
    (data / "vocab.txt").write_text(
        "".join(f"{symbol} {count}\n" for symbol, count in symbols.most_common()), encoding="utf-8"
    )
    mean, square = moments
    statistics = data / "gcmvn_stats.npz"
    np.savez(statistics, mean=mean, std=np.sqrt((square - mean**2).clip(min=FLOOR**2)))
    features = {
        "sample_rate": SAMPLE_RATE,
        "win_len_t": (WINDOW + 0.5) / SAMPLE_RATE,  # fairseq cuts off the fraction of the product
        "hop_len_t": (HOP + 0.5) / SAMPLE_RATE,
        "window_fn": "hann",
        "n_fft": WINDOW,
        "n_mels": CHANNELS,
        "f_min": LOWEST,
        "f_max": HIGHEST,
    }
    for kind, values in ranges.items():
        if values:
            features |= {f"{kind}_min": min(values), f"{kind}_max": max(values)}
    config = {
        "vocab_filename": "vocab.txt",
        "audio_root": str(data),
        "features": features,
        "global_cmvn": {"stats_npz_path": str(statistics)},
        "feature_transforms": {"*": ["global_cmvn"]},
    }
    (data / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def main() -> None:
    parser = Parser(
        prog="prepare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, metavar="LJSpeech-1.1", help="with metadata.csv and wavs/")
    parser.add_argument("data", type=Path, metavar="DATA", help="is made")
    parser.add_argument(
        "--alignments", type=Path, metavar="FOLDER", help="a table for each utterance: mfa align --output_format csv"
    )
    args = parser.parse_args()
    with one_line_errors("prepare.py"), clear_endings("prepare.py"):
        prepare(args.folder, args.data, args.alignments)


if __name__ == "__main__":
    main()
