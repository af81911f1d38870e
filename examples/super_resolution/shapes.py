"""Synthetic images in the place of faces: discs, rings, stripes and edges, whose borders few pixels can tell."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

#: Points along the side of a pixel, over which it is averaged.
POINTS = 4


class Drawn(Dataset[Tensor]):
    """Images of ``shapes``.

    Attributes:
        name: a name for results.
        sha256: a checksum over the images; the first 16 hexadecimal digits.
    """

    name = "drawn"

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.images = shapes(count, size, seed)
        self.sha256 = hashlib.sha256(self.images.numpy().tobytes()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def shapes(count: int, size: int, seed: int) -> Tensor:
    """Images (count, 3, size, size) of 8 bits: a plain background, and on it two of the four shapes, of any colours.

    Shapes are wide against a pixel of an eighth of the side, so that such pixels tell where their sharp borders are.
    """
    rng = np.random.default_rng(seed)
    grid = (np.arange(size * POINTS) + 0.5) / (size * POINTS)
    y, x = np.meshgrid(grid, grid, indexing="ij")
    images = np.empty((count, size, size, 3))
    for image in images:
        fine = np.broadcast_to(rng.uniform(0, 255, 3), (*x.shape, 3))
        for which in rng.choice(4, 2):
            shape = (disc, ring, stripes, edge)[which]
            fine = np.where(shape(x, y, rng)[..., None], rng.uniform(0, 255, 3), fine)
        image[:] = fine.reshape(size, POINTS, size, POINTS, 3).mean(axis=(1, 3))
    return torch.from_numpy(images.round().astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


Grid = NDArray[np.float64]
Mask = NDArray[np.bool_]


def disc(x: Grid, y: Grid, rng: np.random.Generator) -> Mask:
    return distance(x, y, rng) < rng.uniform(0.15, 0.35)


def ring(x: Grid, y: Grid, rng: np.random.Generator) -> Mask:
    return np.abs(distance(x, y, rng) - rng.uniform(0.2, 0.35)) < rng.uniform(0.06, 0.1)


def stripes(x: Grid, y: Grid, rng: np.random.Generator) -> Mask:
    return (across(x, y, rng) / rng.uniform(0.3, 0.6) + rng.random()) % 1 < 0.5


def edge(x: Grid, y: Grid, rng: np.random.Generator) -> Mask:
    return across(x, y, rng) < rng.uniform(-0.3, 0.3)


def distance(x: Grid, y: Grid, rng: np.random.Generator) -> Grid:
    """From a point that is not near the border."""
    a, b = rng.uniform(0.25, 0.75, 2)
    return np.hypot(x - a, y - b)


def across(x: Grid, y: Grid, rng: np.random.Generator) -> Grid:
    """From a line through the middle, in any direction; negative on one side."""
    angle = rng.uniform(0, 2 * np.pi)
    return np.cos(angle) * (x - 0.5) + np.sin(angle) * (y - 0.5)
