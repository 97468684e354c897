"""The demo's function, which describes a picture.

Functions can use any package that is installed beside volstream. A file that is not a picture raises an error, and is then
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
    """Returns size, mean colour (0 to 255) and perceptual hash of a picture."""
    with Image.open(file.open()) as image:
        red, green, blue = np.asarray(image.convert("RGB"), dtype=np.float64).mean(axis=(0, 1))
        return Picture(image.width, image.height, round(red, 1), round(green, 1), round(blue, 1), average_hash(image))


def average_hash(image: Image.Image) -> str:
    """Returns 64 bits as hex, one per cell of an 8 x 8 grid: set if brighter than the mean. Similar pictures share most."""
    grid = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.LANCZOS), dtype=np.float64)
    return np.packbits(grid > grid.mean()).tobytes().hex()
