"""The demo's function: what can be said of a picture without looking at it twice.

Any package that is installed beside volstream can be used; a file that cannot be read as a picture raises, and is then
listed as a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from volstream import File


@dataclass
class Picture:
    """One row of the result table."""

    width: int
    height: int
    red: float
    green: float
    blue: float
    hash: str


def describe(file: File) -> Picture:
    """Size, mean colour (0 to 255) and perceptual hash of a picture."""
    with Image.open(file.open()) as image:
        red, green, blue = np.asarray(image.convert("RGB"), dtype=np.float64).mean(axis=(0, 1))
        return Picture(image.width, image.height, round(red, 1), round(green, 1), round(blue, 1), average_hash(image))


def average_hash(image: Image.Image) -> str:
    """64 bits as hex, one for each cell of an 8 x 8 grid: whether it is brighter than the mean. Similar pictures share most."""
    grid = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.LANCZOS), dtype=np.float64)
    return np.packbits(grid > grid.mean()).tobytes().hex()
