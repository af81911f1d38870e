"""Synthetic utterances in the place of LJSpeech: each symbol is a tone with its own pitch, duration and loudness."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import soundfile
from prepare import SAMPLE_RATE

#: Pitch in Hz, duration in seconds, and loudness.
SYMBOLS = {
    "a": (150, 0.08, 0.20),
    "e": (200, 0.12, 0.05),
    "i": (260, 0.10, 0.15),
    "o": (330, 0.14, 0.03),
    "u": (420, 0.09, 0.10),
    "y": (520, 0.11, 0.07),
}
#: The number of texts.
TEXTS = 4


def write_tones(folder: Path, seed: int = 1) -> None:
    """Write ``metadata.csv``, ``wavs/`` and ``alignments/``, the latter as the Montreal Forced Aligner does.

    Each text is there three times, for training, validation and the test: models learn them by heart.
    """
    rng = np.random.default_rng(seed)
    for name in ("wavs", "alignments"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    texts = ["".join(rng.choice(list(SYMBOLS), size=rng.integers(5, 9))) for _ in range(TEXTS)]
    lines = []
    for part in ("LJ001", "LJ003", "LJ004"):
        for number, text in enumerate(texts, 1):
            name = f"{part}-{number:04}"
            lines.append(f"{name}|{text}|{text}\n")
            soundfile.write(folder / f"wavs/{name}.wav", waveform(text), SAMPLE_RATE)
            write_alignment(folder / f"alignments/{name}.csv", text)
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")


def waveform(text: str) -> np.ndarray:
    """Samples of a text: a tone with five harmonics for each symbol."""
    tones = []
    for pitch, seconds, loudness in map(SYMBOLS.__getitem__, text):
        time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
        fade = np.minimum(1, 100 * np.minimum(time, time[::-1]))  # 10 ms
        tones.append(loudness * fade * sum(np.sin(2 * np.pi * k * pitch * time) / k for k in range(1, 6)))
    return np.concatenate(tones)


def write_alignment(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Begin", "End", "Label", "Type", "Speaker"])
        begin = 0.0
        for symbol in text:
            end = begin + SYMBOLS[symbol][1]
            writer.writerow([f"{begin:.3f}", f"{end:.3f}", symbol, "phones", "tones"])
            begin = end
