"""fairseq's Griffin-Lim vocoder with current librosa."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from fairseq.data.audio.audio_utils import get_mel_filters
from fairseq.models.text_to_speech.vocoder import GriffinLimVocoder


def test_the_filters_are_triangles() -> None:
    """Slaney's scale is linear below 1000 Hz: filters of area 1 between neighbouring points on the scale."""
    points = np.linspace(0, 900, 6)
    frequencies = np.fft.rfftfreq(512, 1 / 2000)
    expected = [np.interp(frequencies, points[i : i + 3], [0, 2 / (points[i + 2] - points[i]), 0]) for i in range(4)]
    np.testing.assert_allclose(get_mel_filters(2000, 512, 4, 0, 900).numpy(), expected, atol=1e-5)


def test_the_vocoder_speaks() -> None:
    """It says a tone in the tone's pitch."""
    np.random.seed(1)  # its first phases
    vocoder = GriffinLimVocoder(2000, 256, 64, 256, 20, 0, 1000, torch.hann_window, spec_bwd_max_iter=8)
    spectrum = torch.from_numpy(np.abs(np.fft.rfft(np.hanning(256) * np.sin(0.25 * np.pi * np.arange(256)))))
    mel = (get_mel_filters(2000, 256, 20, 0, 1000) @ spectrum.float()).clamp(min=1e-5).log()
    spoken = vocoder(mel.expand(20, -1)).flatten()
    assert abs(np.fft.rfft(spoken.numpy())).argmax() / len(spoken) * 2000 == pytest.approx(250, abs=20)


def test_without_librosa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "librosa", None)
    with pytest.raises(ValueError, match="the vocoder needs librosa"):
        get_mel_filters(2000, 512, 4, 0, 900)
