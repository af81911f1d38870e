"""PSNR and SSIM by scikit-image, and their table beside Table 4 of the AMLP paper."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from amlp_fairseq.training.results import in_columns

#: Scales and published numbers.
TABLE = yaml.safe_load(Path(__file__).with_name("table4.yaml").read_text(encoding="utf-8"))
#: The attentions of the paper's rows.
PUBLISHED = [name for row in TABLE["published"] for name in row["attentions"]]
#: Pixels along the side of the windows of SSIM.
WINDOW = 11


def psnr(images: Tensor, true: Tensor) -> list[float]:
    """The peak signal-to-noise ratio in dB of each of several images (N, 3, S, S) of 8 bits."""
    pairs = zip(true.numpy(), images.numpy(), strict=True)
    return [float(peak_signal_noise_ratio(*pair, data_range=255)) for pair in pairs]


def ssim(images: Tensor, true: Tensor) -> list[float]:
    """The structural similarity of each of several images (N, 3, S, S) of 8 bits: the mean over colours, in the windows
    of Wang et al. (2004), Gaussians of deviation 1.5 in ``WINDOW`` x ``WINDOW`` pixels."""
    pairs = zip(true.numpy(), images.numpy(), strict=True)
    windows = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return [float(structural_similarity(*pair, data_range=255, channel_axis=0, **windows)) for pair in pairs]


def table(lines: list[dict[str, Any]]) -> str:
    """PSNR and SSIM of each attention, averaged over seeds, followed by the paper's."""
    columns = ["self-attention", "parameters", "PSNR", "SSIM", "paper", "parameters", "PSNR", "SSIM"]
    rows = [["bicubic", "", *scores(lines, "bicubic_"), *[""] * 4]]
    for name in dict.fromkeys(line["self_attention"] for line in lines):
        of_name = [line for line in lines if line["self_attention"] == name]
        size = f"{of_name[0]['parameters'] / 1e6:.2f}M"
        row = next((row for row in TABLE["published"] if name in row["attentions"]), None)
        theirs = [""] * 4
        if row is not None:
            theirs = [row["row"], row["parameters"], *scores([row])]
        rows.append([name, size, *scores(of_name), *theirs])
    return in_columns(columns, rows)


def scores(lines: list[dict[str, Any]], prefix: str = "") -> list[str]:
    mean = [fmean(line[f"{prefix}{kind}"] for line in lines) for kind in ("psnr", "ssim")]
    return [f"{mean[0]:.2f}", f"{mean[1]:.3f}"]
