"""Images of a folder, and what is made of them: small ones, enlarged again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from amlp_fairseq.common.files import sha256


class Folder(Dataset[Tensor]):
    """The images of a folder and the folders in it, by their names: each (3, S, S) of 8 bits, the square in the middle
    made smaller (bicubic).

    Args:
        path: what does not end like an image is not read.
        size: S.

    Attributes:
        name: that of the folder.
        sha256: a checksum over their names and contents; the first 16 hexadecimal digits.

    Raises:
        ValueError: if there are none, or naming one that is damaged, smaller than S, or not of 8 bits.
    """

    def __init__(self, path: Path, size: int) -> None:
        endings = Image.registered_extensions()
        self.name, self.size = path.resolve().name, size
        self.files = sorted(file for file in path.rglob("*") if file.suffix.lower() in endings)
        if not self.files:
            raise ValueError(f"{path} is no folder with images")
        digest = hashlib.sha256()
        for file in self.files:
            with opened(file) as image:
                if min(image.size) < size:
                    raise ValueError(f"{file} has {image.width} x {image.height} pixels; --high-size is {size}")
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"{file} has pixels of more than 8 bits (Pillow's mode {image.mode})")
                image.load()  # finds damage before the first training
            digest.update(f"{file.relative_to(path)} {sha256(file)}\n".encode())
        self.sha256 = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with opened(self.files[index]) as image:
            square = ImageOps.fit(image.convert("RGB"), (self.size, self.size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """An image, which is read when it is used.

    Raises:
        ValueError: naming the file, if it cannot be opened, or not be used within the context.
    """
    try:
        with Image.open(file) as image:
            yield image
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{file} is no image, or damaged ({error})") from None


def enlarged(high: Tensor, low_size: int) -> Tensor:
    """Images (B, 3, S, S) of 8 bits made smaller, and as large as before again: bicubic, with the filters of Pillow."""
    return resized(resized(high, low_size), high.size(-1))


def resized(images: Tensor, size: int) -> Tensor:
    out = F.interpolate(images.float(), (size, size), mode="bicubic", antialias=True)
    return out.round().clamp(0, 255).byte()
