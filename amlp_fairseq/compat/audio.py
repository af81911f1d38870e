"""Changes of ``fairseq.data.audio``: mel filters of librosa ≥ 0.10, which takes no positional arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.common.librosa_import import import_librosa


def get_mel_filters(sample_rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float) -> Tensor:
    """Slaney's mel filters (n_mels, n_fft / 2 + 1).

    Raises:
        ValueError: if librosa is not installed.
    """
    try:
        librosa = import_librosa()
    except ImportError:
        raise ValueError("the vocoder needs librosa: pip install 'amlp-fairseq[speech]'") from None
    filters = librosa.filters.mel(sr=sample_rate, n_fft=n_fft, n_mels=n_mels, fmin=f_min, fmax=f_max)
    return torch.from_numpy(filters).float()
