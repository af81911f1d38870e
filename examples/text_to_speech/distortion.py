"""Mel cepstral and mel spectral distortion with dynamic time warping.

The AMLP paper does not define them. These are the definitions of fairseq's evaluation, which cites Wave-Tacotron
(arXiv 2011.03568): root mean squared errors of log mel spectra (80 channels from 20 Hz, windows of 50 ms, a frame every
12.5 ms) and of their first 13 cepstral coefficients, of frames that dynamic time warping aligns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import ndarray
from scipy.fft import dct
from scipy.spatial.distance import cdist

from amlp_fairseq.common.librosa_import import import_librosa

CHANNELS, COEFFICIENTS = 80, 13


def log_mel(waveform: ndarray, sample_rate: int) -> ndarray:
    """Log mel power spectrum (frames, 80) of samples (n,)."""
    librosa = import_librosa()
    window = int(0.05 * sample_rate)
    waveform = librosa.util.fix_length(waveform, size=max(len(waveform), window))
    power = librosa.feature.melspectrogram(
        y=waveform,
        sr=sample_rate,
        n_fft=window,
        hop_length=int(0.0125 * sample_rate),
        pad_mode="reflect",
        n_mels=CHANNELS,
        fmin=20,
        htk=True,
        norm=None,
    )
    return np.log(power.T + 1e-6)


def cepstrum(spectrum: ndarray) -> ndarray:
    """The first 13 cepstral coefficients (frames, 13) of a log mel spectrum (frames, 80)."""
    coefficients: ndarray = dct(spectrum, norm="ortho")[:, :COEFFICIENTS]
    return coefficients


def warped_distance(a: ndarray, b: ndarray) -> tuple[float, int]:
    """The least sum of root mean squared errors along a path of pairs of frames, and the number of its pairs.

    Args:
        a: frames (n, C).
        b: frames (m, C). The path goes from the first frames of both to the last ones; from each pair to the next one
            it moves on by one frame in ``a``, in ``b``, or in both.
    """
    total, path = import_librosa().sequence.dtw(C=cdist(a, b) / math.sqrt(a.shape[1]))
    return float(total[-1, -1]), len(path)


def distortions(reference: ndarray, spoken: ndarray, sample_rate: int) -> dict[str, tuple[float, int]]:
    """``mcd`` and ``msd`` of two waveforms: each a distance and its number of pairs, see :func:`warped_distance`."""
    a, b = log_mel(reference, sample_rate), log_mel(spoken, sample_rate)
    return {"mcd": warped_distance(cepstrum(a), cepstrum(b)), "msd": warped_distance(a, b)}
